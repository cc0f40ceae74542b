"""Compaction of a log with impossible offsets: no checksum covers the offsets of a
batch, and a new segment would hide the damage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import crc32c
import pytest

import logstore
from logstore import TopicConfig
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import open_root
from logstore.log.compact import compactor
from logstore.log.compact.outcomes import survey_log
from logstore.log.compact.passes import BUFFERS_BYTES
from logstore.segment import Segment
from support.compacting import (
    ABORT,
    COMMIT,
    TIME_MS,
    Batch,
    Item,
    batch2,
    marker,
    messages,
)
from support.damage import fixed_crc, overwrite


def items(first: int, count: int, key: bytes = b"k") -> list[Item]:
    return [Item(first + n, key + b"%d" % n, b"v" * 20, TIME_MS) for n in range(count)]


CONFIG = TopicConfig(cleanup_policy="compact", message_format=2, file_delete_delay_ms=0)


def written(path: Path, segments: dict[int, list[Batch]]) -> Path:
    """The directory of a partition with these segments."""
    folder = path / "t-0"
    folder.mkdir(parents=True)
    for base, batches in segments.items():
        data = b"".join(batch.data for batch in batches)
        (folder / f"{base:020d}.log").write_bytes(data)
    return folder


def check_is_refused(
    path: Path, segments: dict[int, list[Batch]], name: int, last_offset: int
) -> logstore.CorruptRecordError:
    """Check that a compaction raises a named error, and the log stays, if the header of
    a segment's last batch gives it a wrong end offset."""
    folder = written(path, segments)
    with logstore.open(path) as store:
        store.topic("t").configure(CONFIG)
        assert list(store.topic("t")[0].read())
    batch = segments[name][-1]
    first = int.from_bytes(batch.data[:8], "big") + last_offset - batch.last_offset
    damaged = folder / f"{name:020d}.log"
    data = damaged.read_bytes()
    at = len(data) - len(batch.data)
    damaged.write_bytes(data[:at] + first.to_bytes(8, "big") + data[at + 8 :])
    with logstore.open(path) as store:
        before = {one.name: one.read_bytes() for one in folder.glob("*.log")}
        with pytest.raises(logstore.CorruptRecordError, match=r"offset") as caught:
            store.topic("t")[0].compact(force=True)
        assert not [*folder.glob("*.cleaned"), *folder.glob("*.swap")]
        after = {one.name: one.read_bytes() for one in folder.glob("*.log")}
        assert after == before
    return caught.value


ACTIVE = [batch2(items(40, 2, b"a"))]


@pytest.mark.parametrize("to", [20, 25, 39, 1 << 33])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_offsets_that_reach_into_the_next_segment_are_refused(
    tmp_path: Path, codec: str, to: int
) -> None:
    last = batch2(items(10, 5), codec=codec)
    segments = {0: [batch2(items(0, 10)), last]}
    segments[20] = [batch2(items(20, 5), codec=codec)]
    error = check_is_refused(tmp_path, {**segments, 40: ACTIVE}, 0, to)
    place = len(segments[0][0].data), 10
    assert (error.position, error.offset) == place


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_marker_that_lies_behind_its_segment_is_refused(
    tmp_path: Path, kind: int
) -> None:
    """It would be unknown whether the marker's transaction is open."""
    begun = batch2(items(0, 5), producer=(10, 0, 0), attributes=0x10)
    segments = {0: [begun, marker(10, 10, 0, kind)], 20: [batch2(items(20, 5))]}
    check_is_refused(tmp_path, {**segments, 40: ACTIVE}, 0, 1 << 33)


@pytest.mark.parametrize("to", [12, 15, 18])
def test_wrapper_whose_messages_do_not_follow_is_refused(
    tmp_path: Path, to: int
) -> None:
    """Its first offset is known only when it is decompressed."""
    (wrapper,) = messages(items(10, 10), 1, "gzip")
    segments = {0: [*messages(items(0, 10), 1, "gzip"), wrapper]}
    check_is_refused(tmp_path, {**segments, 40: ACTIVE}, 0, to)


def test_batch_of_a_transaction_that_goes_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end its transaction before its begin: the aborted value of a key would
    count, and the committed one before it would go. The first pass reads the keys
    before it, and nothing else there."""
    monkeypatch.setattr(compactor, "MEMORY_MIN", BUFFERS_BYTES)
    begun = batch2(items(20, 5), producer=(10, 0, 0), attributes=0x10)
    many = [batch2(items(20 * n, 20, b"a%d-" % n)) for n in range(5, 15)]
    goes_on = batch2(items(10_000, 2), producer=(10, 0, 5), attributes=0x10)
    segments = {
        0: [batch2(items(0, 5)), begun],
        100: many,
        10_000: [goes_on, marker(10_002, 10, 0, ABORT)],
        20_000: [batch2(items(20_000, 2))],
    }
    log = written(tmp_path, segments) / f"{10_000:020d}.log"
    with logstore.open(tmp_path) as store:
        store.topic("t").configure(CONFIG)
        partition = store.topic("t")[0]
        before = list(partition.read(isolation="read_committed"))
        assert len(before) == 5 + 200 + 2
        assert partition.last_stable_offset() == partition.end_offset
        overwrite(log, 0, (6).to_bytes(8, "big"))
        with pytest.raises(logstore.CorruptRecordError, match="do not increase"):
            partition.compact(force=True, max_memory=BUFFERS_BYTES)
        overwrite(log, 0, (10_000).to_bytes(8, "big"))
        assert list(partition.read(isolation="read_committed")) == before
        assert partition.compact(force=True).removed == 7


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_record_with_more_headers_than_the_limit_is_no_damage(
    tmp_path: Path, codec: str
) -> None:
    """A compaction raises the error of a read: limit, position and offset of the
    batch."""
    first, large = (
        batch2(items(0, 10)),
        batch2(items(10, 1), codec=codec, headers=100_001),
    )
    written(tmp_path, {0: [first, large], 40: ACTIVE})
    with logstore.open(tmp_path) as store:
        topic = store.topic("t")
        topic.configure(CONFIG)
        for call in (lambda: list(topic[0].read()), lambda: topic[0].compact()):
            with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
                call()
            assert caught.value.limit_name == "headers"
            assert f"at byte {len(first.data)} (offset 10)" in str(caught.value)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_damage_is_named_by_the_offset_that_a_compaction_has_not_read(
    tmp_path: Path, codec: str
) -> None:
    """The error has the position of the batch, even if a record in it is damaged."""
    first, wrong = batch2(items(0, 10)), batch2(items(10, 2), codec=codec, headers=1)
    content = bytearray(wrong.data)
    content[57:61] = (3).to_bytes(4, "big")  # one record more than there are
    content[17:21] = crc32c.crc32c(content[21:]).to_bytes(4, "big")
    wrong = dataclasses.replace(wrong, data=bytes(content))
    written(tmp_path, {0: [first, wrong], 40: ACTIVE})
    with logstore.open(tmp_path) as store:
        topic = store.topic("t")
        topic.configure(CONFIG)
        for call in (lambda: list(topic[0].read()), lambda: topic[0].compact()):
            with pytest.raises(logstore.CorruptRecordError) as caught:
                call()
            assert (caught.value.position, caught.value.offset) == (len(first.data), 10)


def test_unknown_magic_is_unsupported_for_a_survey(tmp_path: Path) -> None:
    """The file itself is not damaged."""
    later = bytearray(batch2(items(10, 1)).data)
    later[16] = 3
    data = batch2(items(0, 10)).data + later
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    directory = open_root(Files(), str(tmp_path))
    segment = Segment(directory, Descriptors(directory.files, 4), 0, len(data), 11)
    with pytest.raises(logstore.errors.UnsupportedError) as caught:
        list(survey_log([segment], 11))
    at = len(data) - len(later)
    assert (caught.value.position, caught.value.offset) == (at, 10)
    directory.close()


def test_damaged_wrapper_is_named_by_its_first_offset(tmp_path: Path) -> None:
    """Its header does not contain that offset: it follows from the batch before."""
    first, second = (messages(items(base, 10), 1, "gzip")[0].data for base in (0, 10))
    bad = second[:-6] + bytes([second[-6] ^ 0xFF]) + second[-5:]
    folder = written(tmp_path, {0: [], 40: ACTIVE})
    (folder / f"{0:020d}.log").write_bytes(first + fixed_crc(bad))
    with logstore.open(tmp_path) as store:
        store.topic("t").configure(CONFIG)
        with pytest.raises(logstore.CorruptRecordError) as caught:
            store.topic("t")[0].compact(force=True)
    assert (caught.value.position, caught.value.offset) == (len(first), 10)
