"""The state file of a partition: its appended entries, and the changes that write it
whole."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import FaultyFiles, crash, cut, flip_bit, logs_in

# Each append rolls.
CONFIG = logstore.TopicConfig(segment_bytes=100, retention_ms=-1)
VALUE = b"x" * 60


def state_of(store: Path) -> PartitionState:
    directory = Directory.open_root(Files(), str(store)).child("orders-0")
    state = PartitionState.read(directory)
    assert state is not None
    return state


def entries(store: Path) -> int:
    return (store / "orders-0" / layout.PARTITION_STATE).read_bytes().count(b"xxh64 ")


def opened(path: Path, rolls: int, files: Any = None) -> logstore.Store:
    store = open_store(path, _files=files or Files())
    p = store.create_topic("orders", config=CONFIG)[0]
    for _ in range(rolls + 1):
        p.append(VALUE)
    return store


def test_roll_is_appended_to_the_state_file(tmp_path: Path) -> None:
    """Each roll is an entry, and the file has the same content as one that was written
    whole."""
    with opened(tmp_path / "store", 5) as store:
        assert entries(tmp_path / "store") == 6
        appended = state_of(tmp_path / "store")
        assert [row[0] for row in appended.sealed] == [0, 1, 2, 3, 4]
        assert (appended.active["base_offset"], appended.durable_offset) == (5, 5)
        store.topic("orders")[0].append(VALUE)
        assert entries(tmp_path / "store") == 7
    assert entries(tmp_path / "store") == 1
    closed = state_of(tmp_path / "store")
    assert closed.sealed[:5] == appended.sealed
    assert closed.durable_offset == 7


def test_roll_writes_the_same_number_of_bytes_whatever_the_log_has(
    tmp_path: Path,
) -> None:
    class Counting(Files):
        """Counts the bytes that this thread writes: not the bytes of a checkpoint by
        time, which a slow machine may reach."""

        written = 0

        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            if threading.current_thread() is threading.main_thread():
                self.written += len(data)
            super().write(fd, data, pos)

    files, costs = Counting(), []
    with opened(tmp_path, 0, files) as store:
        p = store.topic("orders")[0]
        for _ in range(400):
            files.written = 0
            p.append(VALUE)
            costs.append(files.written)
    assert max(costs[300:]) <= max(costs[10:20]) + 20  # longer numbers
    # Now and then it is written whole: each byte of it not more than twice.
    assert sum(costs) < 400 * 3 * min(costs)


def start_moved(p: logstore.Partition) -> None:
    p.append_many([b"", b""])
    p.delete_before(p.end_offset - 1)


def segments_dropped(p: logstore.Partition) -> None:
    p.delete_before(2)


def tail_cut(p: logstore.Partition) -> None:
    p.truncate_to(p.end_offset - 1)


@pytest.mark.parametrize("change", [start_moved, segments_dropped, tail_cut])
def test_every_other_change_writes_the_file_whole(tmp_path: Path, change: Any) -> None:
    """The change must not be undone if the last entry is damaged. Then rolls are
    appended again."""
    with opened(tmp_path, 5) as store:
        p = store.topic("orders")[0]
        change(p)
        assert entries(tmp_path) == 1
        start = state_of(tmp_path).start_offset
        for count in (1, 2, 3):
            p.append(VALUE)
            p.roll()
            assert entries(tmp_path) > count
        state = state_of(tmp_path)
        assert (state.start_offset, state.durable_offset) == (start, p.end_offset)
        assert [row[0] for row in state.sealed] == [
            segment.base_offset for segment in p.segments[:-1]
        ]


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_torn_entry_is_as_a_roll_that_was_not_recorded(
    tmp_path: Path, lost: int
) -> None:
    """Opening finds the segment that the entry would have named."""
    with opened(tmp_path / "store", 5):
        copy = crash(tmp_path / "store", tmp_path / "copy")
    state = copy / "orders-0" / layout.PARTITION_STATE
    cut(state, state.stat().st_size - lost)
    assert len(state_of(copy).sealed) == 4
    with logstore.open(copy) as store:
        labels = {action.label for action in store.recovery_report.actions}
        assert labels == {"index-rebuilt"}  # that of the new segment
        p = store.topic("orders")[0]
        assert [record.offset for record in p.read()] == list(range(6))
        assert p.append(VALUE) == 6
    assert logstore.verify(copy).problems == ()


def test_damaged_entry_before_the_last_one_is_reported(tmp_path: Path) -> None:
    """The state does not count then, and nothing is lost."""
    with opened(tmp_path / "store", 5):
        copy = crash(tmp_path / "store", tmp_path / "copy")
    state = copy / "orders-0" / layout.PARTITION_STATE
    second = state.read_bytes().index(b"xxh64 ", 10)
    flip_bit(state, (second + 40) * 8)
    with logstore.open(copy) as store:
        assert [a.label for a in store.recovery_report.actions] == ["state-damaged"]
        assert len(list(store.topic("orders")[0].read())) == 6


@pytest.mark.parametrize("call", ["write", "sync"])
def test_failed_entry_is_followed_by_a_whole_file(tmp_path: Path, call: str) -> None:
    """The append with the roll continues: the old durable point is true, too."""
    files = FaultyFiles()
    with opened(tmp_path, 3, files) as store:
        p = store.topic("orders")[0]
        files.fail(call, errno.ENOSPC, times=1, name=layout.PARTITION_STATE)
        p.append(VALUE)
        assert state_of(tmp_path).durable_offset in (3, 4)
        p.append(VALUE)
        assert (entries(tmp_path), state_of(tmp_path).durable_offset) == (1, 5)
        p.append(VALUE)
        assert (entries(tmp_path), state_of(tmp_path).durable_offset) == (2, 6)


def test_file_that_another_program_has_changed_is_written_whole(tmp_path: Path) -> None:
    """A copy was put back while the store is open, or the file has an extra byte."""
    with opened(tmp_path, 3) as store:
        state = tmp_path / "orders-0" / layout.PARTITION_STATE
        with state.open("ab") as file:
            file.write(b"x")
        store.topic("orders")[0].append(VALUE)
        assert (entries(tmp_path), state_of(tmp_path).durable_offset) == (1, 4)


def test_reader_learns_a_durable_point_that_was_appended(tmp_path: Path) -> None:
    """The directory does not show it: none of its names has changed."""
    config = logstore.TopicConfig(flush_ms=1 << 40, flush_messages=1 << 40)
    files = Files()
    store_config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with open_store(tmp_path, _files=files, config=store_config) as store:
        p = store.create_topic("orders", config=config)[0]
        p.append(b"x", durable=True)
        with logstore.open(tmp_path, read_only=True) as reading:
            reader = reading.topic("orders")[0]
            assert reader.durable_offset == 1
            for count in range(2, 6):
                p.append(b"x", durable=True)
                assert reader.durable_offset == count
            assert entries(tmp_path) > 4
    assert len(logs_in(tmp_path / "orders-0")) == 1


def test_segment_that_was_cut_and_sealed_again_has_its_new_row(tmp_path: Path) -> None:
    """The file may have been written whole before the cut, and again after the second
    sealing, which an entry recorded."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        partition = store.create_topic("orders")[0]
        partition.append_many([VALUE] * 3)
        partition.append_many([VALUE] * 3)
        partition.roll()
        partition.delete_before(1)
        sealed = state_of(path).sealed
        partition.truncate_to(4)
        partition.roll()
        partition.delete_before(2)
        assert state_of(path).sealed != sealed
        segment = partition.segments[0]
        assert [row[1] for row in state_of(path).sealed] == [segment.size_bytes]
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert partition.append(VALUE) == 4
        assert [record.offset for record in partition.read()] == [2, 3, 4]


def test_index_entries_behind_a_sync_wait_until_they_are_many(tmp_path: Path) -> None:
    """To open a file for each costs more than a reader saves; the close writes all."""
    config = logstore.TopicConfig(message_format=2, index_interval_bytes=1)
    path = tmp_path / "a-0" / "00000000000000000000.index"
    sizes = []
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", 1, config)[0]
        for _ in range(native.UNWRITTEN_MAX + 2):
            with store.stage() as stage:
                stage.append_many(partition, [b"v"])
                store.publish(stage.finish())
            sizes.append(path.stat().st_size // 8 if path.exists() else 0)
    # The first batch of a segment has no entry.
    assert sizes == [0] * native.UNWRITTEN_MAX + [native.UNWRITTEN_MAX] * 2
    assert path.stat().st_size // 8 == native.UNWRITTEN_MAX + 1
