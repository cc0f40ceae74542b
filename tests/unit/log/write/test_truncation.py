"""A truncation reads the segment that it cuts."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest

import logstore
from faults.checker import open_quietly
from logstore.log.write import truncation
from logstore.log.write.durable_point import DurablePointWriter
from support.damage import overwrite
from support.disk import MemoryDisk

COUNT = 50


@pytest.mark.parametrize(
    ("pos", "wrong", "kind", "reason"),
    [
        (8, b"\0\0\0\5", logstore.CorruptRecordError, "a length is impossible"),
        (16, b"\3", logstore.errors.UnsupportedError, "magic is above 2"),
        (8, b"\0\1\0\0", logstore.CorruptRecordError, "the file ends or is empty"),
    ],
)
def test_damage_in_what_stays_is_named_and_nothing_is_cut(
    tmp_path: Path, pos: int, wrong: bytes, kind: type[Exception], reason: str
) -> None:
    """The error has the position of the batch and the first offset that was not
    read."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for number in range(COUNT):
            partition.append(b"value %04d" % number)
        path = Path(partition.segments[0].path)
        batch = 10 * (path.stat().st_size // COUNT)
        overwrite(path, batch + pos, wrong)
        before = path.read_bytes()
        with pytest.raises(kind, match=reason) as caught:
            partition.truncate_to(40)
        found = caught.value
        assert isinstance(
            found, logstore.CorruptRecordError | logstore.errors.UnsupportedError
        )
        assert (found.position, found.offset) == (batch, 10)
        assert path.read_bytes() == before
        assert partition.append(b"next") == COUNT


def test_segment_is_read_in_several_buffers(tmp_path: Path) -> None:
    """A batch that is larger than one of them is no reason to stop; the indexes equal
    the ones of a log that was written up to there."""
    config = logstore.TopicConfig(max_message_bytes=4 << 20)
    sizes = [100_000] * 15 + [3 << 20] + [100_000] * 15
    indexes = []
    for folder, count in ((tmp_path / "whole", 31), (tmp_path / "short", 25)):
        with logstore.open(folder) as store:
            partition = store.create_topic("t", config=config)[0]
            for size in sizes[:count]:
                partition.append(bytes(size), timestamp_ms=1_700_000_000_000)
            partition.truncate_to(25)
            assert partition.end_offset == 25
            assert [len(r.value or b"") for r in partition.read()] == sizes[:25]
            path = Path(partition.segments[0].path)
        indexes.append(path.with_suffix(".index").read_bytes().rstrip(b"\0"))
    assert indexes[0] == indexes[1]
    assert len(indexes[0]) >= 8 * 20


@pytest.mark.parametrize("end", [0, 3])
def test_truncation_that_is_interrupted_while_it_fails_takes_no_appends(
    tmp_path: Path, end: int
) -> None:
    """Appends would be acknowledged, and hidden: readers stop at the cut."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for number in range(5):
            partition.append(b"%d" % number)
        full = OSError(errno.ENOSPC, "full")
        with (
            mock.patch.object(DurablePointWriter, "write", side_effect=full),
            mock.patch.object(
                truncation, "_is_unchanged", side_effect=KeyboardInterrupt
            ),
            pytest.raises(KeyboardInterrupt),
        ):
            partition.truncate_to(end)
        with pytest.raises(
            logstore.errors.SyncFailedError, match="Open the store again"
        ):
            partition.append(b"behind")
    with logstore.open(tmp_path) as store:
        partition = store.topic("t")[0]
        assert [r.value for r in partition.read()] == [b"%d" % n for n in range(5)]
        assert partition.append(b"behind") == 5


@pytest.mark.parametrize("call", ["state", "directory", "cut"])
def test_flush_promises_nothing_that_a_truncation_may_still_cut(call: str) -> None:
    """The state of the truncation was written, and the truncation failed: the next
    opening may finish it."""
    disk = MemoryDisk()
    with open_quietly(disk) as store:
        partition = store.create_topic("t")[0]
        for number in range(5):
            partition.append(b"%d" % number)
        partition.flush()
        assert partition.durable_offset == 5
        if call == "cut":
            disk.fail("truncate", errno.EIO, times=1)
        else:
            name = "sync_directory" if call == "directory" else "rename"
            disk.fail(name, errno.EIO, times=1)
        with pytest.raises(logstore.errors.SyncFailedError, match="truncate"):
            partition.truncate_to(2)
        disk.heal()
        assert partition.durable_offset == 2
        if partition.end_offset > 2:
            with pytest.raises(logstore.errors.SyncFailedError):
                partition.flush()
        assert partition.durable_offset == 2
    with open_quietly(disk.kill()) as again:
        assert again.topic("t")[0].end_offset in (2, 5)
