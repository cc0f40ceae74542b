"""Kafka's checkpoint with the compacted offset of each partition."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from logstore import _native as native
from logstore._native.locks import RANK_OWNERSHIP
from logstore.errors import StorageError
from logstore.io.checkpoint.cleaner import CleanerCheckpoint, CompactedOffsets
from logstore.io.directory import Directory
from logstore.io.layout import CLEANER_CHECKPOINT, TopicPartition
from support.disk import MemoryDisk

A, B, C = (TopicPartition("orders", number) for number in range(3))


@pytest.fixture
def checkpoint(disk: MemoryDisk) -> Iterator[CleanerCheckpoint]:
    """The checkpoint has offset 10 for partition 0, and 20 for 1."""
    root = Directory.open_root(disk, "/store")
    found = CleanerCheckpoint(root)
    found.set(A, 10)
    found.set(B, 20)
    yield found
    root.close()


def test_offsets_that_were_set_are_read(checkpoint: CleanerCheckpoint) -> None:
    checkpoint.set(A, 12)
    assert checkpoint.read() == {A: 12, B: 20}


@pytest.mark.parametrize(("at", "after"), [(0, 0), (9, 9), (10, 10), (11, 10)])
def test_cut_lowers_an_offset_and_never_raises_it(
    checkpoint: CleanerCheckpoint, at: int, after: int
) -> None:
    """Offsets below a cut stay compacted, and no others."""
    checkpoint.lower_to({A: at})
    assert checkpoint.read() == {A: after, B: 20}
    checkpoint.lower_to({B: 30, A: 50, C: 5})
    assert checkpoint.read() == {A: after, B: 20}


def test_partition_that_is_deleted_is_forgotten(checkpoint: CleanerCheckpoint) -> None:
    checkpoint.forget([B, C])
    assert checkpoint.read() == {A: 10}


@pytest.mark.parametrize("change", ["lower", "forget"])
def test_full_disk_prevents_no_cut(
    disk: MemoryDisk, checkpoint: CleanerCheckpoint, change: str
) -> None:
    """The file is removed: then all logs are compacted again."""
    disk.fail("write", errno.ENOSPC)
    if change == "lower":
        checkpoint.lower_to({A: 3})
    else:
        checkpoint.forget([A])
    disk.heal()
    assert checkpoint.read() == {}
    assert CLEANER_CHECKPOINT not in disk.tree()


def test_damaged_file_counts_as_empty(
    disk: MemoryDisk, checkpoint: CleanerCheckpoint
) -> None:
    with Directory.open_root(disk, "/store").opened(
        CLEANER_CHECKPOINT, write=True
    ) as fd:
        disk.write(fd, b"7", 0)
    assert checkpoint.read() == {}


def test_owner_of_a_store_gets_a_named_error_and_may_repeat_the_call(
    disk: MemoryDisk, checkpoint: CleanerCheckpoint
) -> None:
    """A checkpoint that cannot be written keeps its former content."""
    root = Directory.open_root(disk, "/store")
    compacted = CompactedOffsets(root, native.Mutex(RANK_OWNERSHIP, "a lock"))
    disk.fail("open", errno.EIO, name=CLEANER_CHECKPOINT)
    with pytest.raises(StorageError, match=f"read .*{CLEANER_CHECKPOINT}"):
        compacted.all()
    disk.heal()
    disk.fail("write", errno.EIO)
    with pytest.raises(StorageError, match=f"write .*{CLEANER_CHECKPOINT}"):
        compacted.record(A, 12)
    disk.heal()
    assert compacted.all() == {A: 10, B: 20}
    compacted.record(A, 12)
    compacted.lower(B, 3)
    assert compacted.all() == checkpoint.read() == {A: 12, B: 3}
    compacted.forget([A])
    assert compacted.all() == {B: 3}
    root.close()
