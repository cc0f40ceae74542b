"""A log without a state file belongs to another program: nothing is appended to it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import logstore
from logstore.io.layout import PARTITION_STATE
from logstore.store.opening import open_store
from support.appending import CALLS
from support.damage import FaultyFiles, FullDisk
from support.values import append_one, expected, fill, new_partition, read_all


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_first_append_needs_the_state_file(
    tmp_path: Path, call: str, error: int
) -> None:
    """Nothing is appended while it cannot be written; then the append succeeds."""
    files = FaultyFiles()
    state = tmp_path / "orders-0" / PARTITION_STATE
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        files.fail("write", error, name=f"{PARTITION_STATE}.tmp")
        for _ in range(2):
            with pytest.raises(logstore.StorageError):
                CALLS[call](partition)
            assert partition.end_offset == 0
            assert not state.exists()
        files.heal()
        CALLS[call](partition)
        assert partition.end_offset > 0
        assert state.exists()


@pytest.mark.parametrize("call", CALLS)
def test_state_file_that_a_deletion_removed_is_there_before_an_append(
    tmp_path: Path, call: str
) -> None:
    """A deletion removes it if a full disk has no room for the new one."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(
            store, segment_bytes=500, retention_bytes=600, retention_ms=-1,
            file_delete_delay_ms=0,
        )  # fmt: skip
        fill(partition, 60)
        state = tmp_path / "orders-0" / PARTITION_STATE
        files.fail("write", errno.ENOSPC, name=PARTITION_STATE)
        files.fail("create", errno.ENOSPC, name=f"{PARTITION_STATE}.tmp")
        assert store.topic("orders").apply_retention()
        assert not state.exists()
        start, end = partition.start_offset, partition.end_offset
        assert list(partition.read()) == expected(1, start, end)
        for _ in range(2):
            with pytest.raises(logstore.DiskFullError, match="state"):
                CALLS[call](partition)
            assert partition.end_offset == end
        after = partition.segments[1].base_offset
        assert partition.delete_before(after) == after
        files.heal()
        files.forget()
        CALLS[call](partition)
        assert partition.end_offset > end
        assert state.exists()
        names = [name for method, name in files.calls if method in ("write", "rename")]
        written = [name.removesuffix(".tmp") for name in names]
        assert PARTITION_STATE in written
        log = next(name for name in written if name.endswith(".log"))
        assert written.index(PARTITION_STATE) < written.index(log)


def test_store_without_room_for_a_state_file_can_be_closed(tmp_path: Path) -> None:
    """All records are there at the next opening."""
    files = FullDisk()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(
        store, segment_bytes=500, retention_bytes=600, retention_ms=-1,
        file_delete_delay_ms=0,
    )  # fmt: skip
    fill(partition, 60)
    files.fail("write", errno.ENOSPC, name=PARTITION_STATE)
    files.fail("create", errno.ENOSPC, name=f"{PARTITION_STATE}.tmp")
    assert store.topic("orders").apply_retention()
    start = partition.start_offset
    store.close()
    assert read_all(tmp_path) == expected(1, start, 60)
    with logstore.open(tmp_path) as again:
        partition = again.topic("orders")[0]
        assert append_one(partition) == 60
        assert partition.start_offset == start
