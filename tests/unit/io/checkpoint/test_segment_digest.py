"""Digests of sealed segments: written after the roll, true as long as the segments
stay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import xxhash

import logstore
from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.segment_digest import (
    SegmentDigest,
    read_digest,
    write_digest,
)
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.damage import crash, fix_crc, flip_bit, frames, logs_in, overwrite
from support.values import append_one, config_of, every_magic, expected, fill


def digests_in(partition: Path) -> set[int]:
    names = [path.name for path in partition.iterdir()]
    found = {layout.parse_digest_file(name) for name in names}
    return {base for base in found if base is not None}


def sealed_in(partition: Path) -> set[int]:
    return {int(path.stem) for path in logs_in(partition)[:-1]}


def await_digests(partition: Path) -> None:
    """Wait for the store's thread, which writes them after the roll."""
    deadline = time.monotonic() + 30
    while digests_in(partition) != sealed_in(partition):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def new_partition(store: logstore.Store, magic: int = 1) -> logstore.Partition:
    config = config_of(magic, segment_bytes=400, segment_digests=True)
    return store.create_topic("orders", config=config)[0]


@every_magic
def test_digest_says_what_a_sealed_segment_was(tmp_path: Path, magic: int) -> None:
    """Offsets, size, times and XXH3 match the file."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        fill(partition, 30, call=3)
        await_digests(directory)
        infos = partition.segments[:-1]
        records = expected(magic, 0, 30)
    assert len(infos) > 2
    root = Directory.open_root(Files(), str(directory))
    for info in infos:
        digest = read_digest(root, info.base_offset)
        assert digest is not None
        data = Path(info.path).read_bytes()
        assert digest.xxh3 == xxhash.xxh3_128(data).hexdigest()
        assert (digest.size, digest.next_offset) == (len(data), info.next_offset)
        inside = records[info.base_offset : info.next_offset]
        assert digest.max_timestamp == max(r.timestamp_ms for r in inside)
    root.close()


def test_closing_writes_the_digests_that_are_due(tmp_path: Path) -> None:
    """Opening with the setting on makes up for digests that a crash left out, too."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    assert digests_in(directory) == sealed_in(directory)
    for path in directory.glob(f"{layout.DIGEST_PREFIX}*"):
        path.unlink()
    with logstore.open(tmp_path) as store:
        append_one(store.topic("orders")[0])
        await_digests(directory)


def test_without_the_setting_there_are_none(tmp_path: Path) -> None:
    """Digests cost a read of each segment, so they must be requested."""
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", config=config_of(1))[0], 30)
        store.topic("orders")[0].roll()
    assert digests_in(tmp_path / "orders-0") == set()


def test_digest_goes_with_its_segment(tmp_path: Path) -> None:
    """The digest is deleted with the segment; a segment that is appended to again is no
    longer sealed."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 30, call=3)
        await_digests(directory)
        bases = sorted(sealed_in(directory))
        partition.delete_before(bases[1])
        assert digests_in(directory) == set(bases[1:])
        partition.truncate_to(bases[-1])
        assert digests_in(directory) == set(bases[1:-1])
        fill(partition, 9, call=3)
        await_digests(directory)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
    assert logstore.verify(tmp_path).ok


def test_stale_digest_of_a_crash_is_removed(tmp_path: Path) -> None:
    """A stale digest is one of the active segment, or one without a segment."""
    with logstore.open(tmp_path / "live") as store:
        partition = new_partition(store)
        fill(partition, 30, call=3)
        await_digests(tmp_path / "live" / "orders-0")
        path = crash(tmp_path / "live", tmp_path / "killed")
    directory = path / "orders-0"
    active = int(logs_in(directory)[-1].stem)
    before = digests_in(directory)
    data = (directory / layout.digest_file(0)).read_bytes()
    for base in (active, 999):
        (directory / layout.digest_file(base)).write_bytes(data)
    with logstore.open(path) as store:
        assert store.topic("orders")[0].end_offset == 30
        assert digests_in(directory) == before


def test_digests_do_not_count_after_another_writer(tmp_path: Path) -> None:
    """It may have compacted the segments."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    (tmp_path / layout.CLEAN_SHUTDOWN).write_bytes(b"another")
    with logstore.open(tmp_path) as store:
        assert store.topic("orders")[0].end_offset == 30
        assert digests_in(tmp_path / "orders-0") == set()


def test_damaged_segment_gets_no_digest(tmp_path: Path) -> None:
    """A digest is never made of bytes that are known to be wrong."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    (directory / layout.digest_file(0)).unlink()
    flip_bit(logs_in(directory)[0], 8 * 30)
    with logstore.open(tmp_path) as store:
        append_one(store.topic("orders")[0])
    assert digests_in(directory) == sealed_in(directory) - {0}


@pytest.mark.parametrize("value", [{}, {"base_offset": 3}, {"base_offset": "x"}])
def test_bad_digest_is_an_error(tmp_path: Path, value: dict[str, object]) -> None:
    """The error names the file."""
    (tmp_path / layout.digest_file(3)).write_bytes(checkpoints.pack_state(value))
    root = Directory.open_root(Files(), str(tmp_path))
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match=r"digest-0+3 is no"
    ):
        read_digest(root, 3)
    assert read_digest(root, 4) is None
    root.close()


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_setting_is_true_or_false(text: str) -> None:
    """Texts in Kafka's style are accepted, too."""
    properties = {"segment.digests": "True"}
    assert logstore.TopicConfig.from_properties(properties).segment_digests is True
    with pytest.raises(logstore.ConfigError):
        logstore.TopicConfig.from_properties({"segment.digests": text})
    with pytest.raises(logstore.ConfigError):
        logstore.TopicConfig(segment_digests=1)  # type: ignore[arg-type]


def test_verify_tells_a_segment_that_is_not_what_was_sealed(tmp_path: Path) -> None:
    """This holds even if all checksums are right because they were recomputed."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    assert logstore.verify(tmp_path).ok
    log = logs_in(directory)[0]
    frame = frames(log)[1]
    overwrite(log, frame.pos + frame.size - 1, b"?")
    fix_crc(log, frame)
    (problem,) = logstore.verify(tmp_path).problems
    assert (problem.kind, problem.first_offset) == ("digest", 0)
    assert problem.path == str(directory / layout.digest_file(0))
    assert str(log) in problem.message


def test_verify_tells_a_bad_digest(tmp_path: Path) -> None:
    """The side file itself is damaged."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    path = tmp_path / "orders-0" / layout.digest_file(0)
    flip_bit(path, 8 * 60)
    (problem,) = logstore.verify(tmp_path).problems
    assert (problem.kind, problem.path) == ("state", str(path))


def test_repair_puts_a_digest_aside_that_is_not_borne_out(tmp_path: Path) -> None:
    """The segment stays, and its digest is kept for inspection."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 30, call=3)
    log = logs_in(directory)[0]
    frame = frames(log)[1]
    overwrite(log, frame.pos + frame.size - 1, b"?")
    fix_crc(log, frame)
    report = logstore.repair(directory, mode="skip")
    assert report.ok
    assert [action.label for action in report.actions] == ["put-aside"]
    assert 0 not in digests_in(directory)
    assert logstore.verify(tmp_path).ok


def test_digest_of_another_segment_is_no_digest(root: Directory) -> None:
    """The digest was copied under another name, or restored to the wrong place."""
    digest = SegmentDigest(10, 20, 5, -1, -1, "0" * 32)
    write_digest(root, digest)
    assert read_digest(root, 10) == digest
    assert read_digest(root, 20) is None
    root.rename(layout.digest_file(10), layout.digest_file(20))
    with pytest.raises(CorruptCheckpointError, match="that of the segment at 10"):
        read_digest(root, 20)
    value = {**digest.to_dict(), "size": "large"}
    checkpoints.write_state(root, layout.digest_file(10), value)
    with pytest.raises(CorruptCheckpointError, match="is not a digest of this segment"):
        read_digest(root, 10)
