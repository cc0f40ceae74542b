"""Reads of wrappers (magic 0 and 1), whose offset no checksum covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.damage import fix_crc, frames, overwrite
from support.read_ways import offsets_by_way
from support.values import config_of


def written(path: Path, magic: int) -> Path:
    """Write offsets 0 to 39 in 20 compressed batches; return the file."""
    with logstore.open(path) as store:
        topic = store.create_topic("t", config=config_of(magic, "gzip"))
        for number in range(20):
            topic[0].append_many([b"%d.%d" % (number, at) for at in range(2)])
    return path / "t-0" / f"{0:020d}.log"


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("by", [10, 1 << 31])
def test_read_goes_on_behind_a_wrapper_with_a_wrong_offset(
    tmp_path: Path, magic: int, by: int
) -> None:
    """The read does not continue at the stated offset: that would lose intact
    records."""
    log = written(tmp_path, magic)
    frame = frames(log)[5]
    overwrite(log, frame.pos, (frame.offset + by).to_bytes(8, "big"))
    intact = [*range(10), *range(12, 40)]
    with logstore.open(tmp_path, read_only=True) as store:
        p = store.topic("t")[0]
        for way, offsets in offsets_by_way(p, 0).items():
            got: list[int] = []
            with pytest.raises(logstore.CorruptRecordError) as caught:
                got.extend(offsets)
            assert (way, got, caught.value.next_offset) == (way, intact[:10], 12)
            assert (way, caught.value.offset) == (way, 10)
        for way, offsets in offsets_by_way(p, 12).items():
            assert (way, list(offsets)) == (way, intact[10:])
        for way, offsets in offsets_by_way(p, 0, on_corruption="skip").items():
            assert (way, list(offsets)) == (way, intact)


@pytest.mark.parametrize("by", [-2, -1, 1, 2, 3, 4, 9, 1 << 33])
@pytest.mark.parametrize("codec", ["gzip", "none"])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrong_offset_costs_the_records_of_its_batch_only(
    tmp_path: Path, magic: int, codec: str, by: int
) -> None:
    """The read may begin before it, or anywhere after it."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", config=config_of(magic, codec))
        for number in range(7):
            topic[0].append_many([b"%d.%d" % (number, at) for at in range(3)])
        topic[0].roll()
        topic[0].append_many([b"a", b"b", b"c"])
    log = tmp_path / "t-0" / f"{0:020d}.log"
    intact, before = log.read_bytes(), -1
    for frame in frames(log)[:4]:
        first, end = before + 1, frame.offset + 1
        before = frame.offset
        if frame.offset + by < 0:
            continue
        log.write_bytes(intact)
        overwrite(log, frame.pos, (frame.offset + by).to_bytes(8, "big"))
        with logstore.open(tmp_path, read_only=True) as store:
            p = store.topic("t")[0]
            assert (p.get(end).offset, p.get(end + 6).offset) == (end, end + 6)
            for offset in range(first, end):
                with pytest.raises(logstore.CorruptRecordError):
                    p.get(offset)
            for start in (end, end + 3, end + 6):
                for way, offsets in offsets_by_way(p, start).items():
                    assert (way, list(offsets)) == (way, [*range(start, 24)])
            for way, offsets in offsets_by_way(p, 0, on_corruption="skip").items():
                left = [*range(first), *range(end, 24)]
                assert (way, list(offsets)) == (way, left)
            for way, offsets in offsets_by_way(p, 0).items():
                with pytest.raises(logstore.CorruptRecordError) as caught:
                    list(offsets)
                error = caught.value
                assert (way, error.offset, error.next_offset) == (way, first, end)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("policy", ["raise", "asks"])
def test_error_of_damaged_content_says_the_first_offset_not_delivered(
    tmp_path: Path, magic: int, policy: str
) -> None:
    """The checksum of the batch is right: its content is found to be damaged when it is
    decompressed, which is during iteration for a chunk and a batch of magic 2."""
    log = written(tmp_path, magic)
    frame = frames(log)[5]
    last = frame.pos + frame.size - 6  # in the checksum of the gzip stream
    overwrite(log, last, bytes([log.read_bytes()[last] ^ 0xFF]))
    fix_crc(log, frame)
    asked: list[tuple[int, int | None, int | None]] = []

    def ask(damaged: logstore.types.Damaged) -> bool:
        asked.append((damaged.first, damaged.next_offset, damaged.error.offset))
        return False

    with logstore.open(tmp_path, read_only=True) as store:
        p = store.topic("t")[0]
        options: Any = {"on_corruption": ask} if policy == "asks" else {}
        for start in (0, 3):
            for way, offsets in offsets_by_way(p, start, **options).items():
                got: list[int] = []
                with pytest.raises(logstore.CorruptRecordError) as caught:
                    got.extend(offsets)
                assert (way, got) == (way, [*range(start, 10)])
                assert (caught.value.offset, caught.value.next_offset) == (10, 12)
    assert set(asked) <= {(10, 12, 10)}
    assert bool(asked) == (policy == "asks")
