"""Room for written bytes: a full disk refuses an append, and nothing else."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import logstore
from logstore.io.layout import INDEX, PARTITION_STATE, SEGMENT_SUFFIXES, TIME_INDEX
from logstore.store.opening import open_store
from support.appending import CALLS
from support.damage import FaultyFiles, FullDisk, logs_in
from support.values import (
    append_one,
    append_records,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


@every_format
def test_full_disk_refuses_an_append_before_a_byte_is_written(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """DiskFullError, and the file is unchanged; reading continues; appending does when
    there is room again, without a gap in the offsets."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, magic, codec, segment_bytes=4000)
        fill(partition, 20)
        files.full = True
        sizes = {p: p.stat().st_size for p in logs_in(tmp_path / "orders-0")}
        done = partition.end_offset
        with pytest.raises(logstore.DiskFullError) as caught:
            for _ in range(10_000):
                append_records(partition, 50)
                done = partition.end_offset
        assert caught.value.errno == errno.ENOSPC
        assert list(partition.read()) == expected(magic, 0, done)
        assert read_all(tmp_path) == expected(magic, 0, done)
        assert sizes
        files.full = False
        assert append_one(partition) == done
    assert read_all(tmp_path) == expected(magic, 0, done + 1)


def test_full_disk_does_not_prevent_opening_and_reading(tmp_path: Path) -> None:
    """A store opens on a full disk, for reading and for writing."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store, segment_bytes=500), 60)
    files = FullDisk()
    files.full = True
    with open_store(tmp_path, _files=files) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 60)
    store = open_store(tmp_path, _files=files)
    partition = store.topic("orders")[0]
    with pytest.raises(logstore.DiskFullError):
        append_one(partition)
    assert list(partition.read()) == expected(1, 0, 60)
    files.full = False
    append_one(partition)
    store.close()
    assert read_all(tmp_path) == expected(1, 0, 61)


@pytest.mark.parametrize("reopened", [False, True])
def test_full_disk_does_not_stop_retention(tmp_path: Path, reopened: bool) -> None:
    """Deleting segments needs no space; it frees some."""
    files = FullDisk()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(
        store, segment_bytes=500, retention_bytes=600, retention_ms=-1,
        file_delete_delay_ms=0,
    )  # fmt: skip
    fill(partition, 60)
    if reopened:
        store.close()
        store = open_store(tmp_path, _files=files)
        partition = store.topic("orders")[0]
    partition_start = partition.start_offset
    files.full = True
    deleted = store.topic("orders").apply_retention()
    assert deleted
    start = partition.start_offset
    assert start > partition_start
    assert len(logs_in(tmp_path / "orders-0")) == len(partition.segments)
    assert list(partition.read()) == expected(1, start, 60)
    files.full = False
    store.close()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert partition.start_offset == start
        assert list(partition.read()) == expected(1, start, 60)


def test_full_disk_does_not_stop_deletion_of_a_topic(tmp_path: Path) -> None:
    """A whole topic can be deleted, too."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        fill(new_partition(store, file_delete_delay_ms=0), 60)
        files.full = True
        store.delete_topic("orders")
        assert store.topics() == []
        files.full = False
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


def test_min_free_bytes_keeps_a_reserve(tmp_path: Path) -> None:
    """An append that would leave less than the reserve is refused, and the error names
    the reserve."""
    config = logstore.StoreConfig(min_free_bytes=1 << 62)
    with logstore.open(tmp_path, config=config) as store:
        partition = new_partition(store)
        for call in CALLS.values():
            with pytest.raises(logstore.DiskFullError, match="min_free_bytes"):
                call(partition)
        assert partition.end_offset == 0


class NoReserve(FaultyFiles):
    """A file system that cannot set space aside."""

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        """Stand for a file system without fallocate."""
        return False


@every_magic
def test_file_system_without_reserve_gets_the_same_log(
    tmp_path: Path, magic: int
) -> None:
    """Appends continue without a reserve, and one whose write fails is undone."""
    files = NoReserve()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, magic, segment_bytes=700)
        fill(partition, 30, call=4)
        files.fail("write", errno.ENOSPC, name=".log", short=9, times=1)
        with pytest.raises(logstore.DiskFullError):
            append_records(partition, 3)
        assert partition.end_offset == 30
        fill(partition, 5)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(magic, 0, 35)


NO_DELAY = {"segment_bytes": 500, "file_delete_delay_ms": 0, "retention_ms": -1}


def no_longer_names(files: FaultyFiles) -> None:
    """Let the directory have no room for a longer name than a file has."""
    for suffix in SEGMENT_SUFFIXES:
        files.fail("rename", errno.ENOSPC, name=suffix)


def test_deletion_without_room_for_longer_names_removes_the_files(
    tmp_path: Path,
) -> None:
    """If a full disk has no room for `.deleted`, files are removed at once."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        start = partition.segments[-1].base_offset
        files.full = True
        no_longer_names(files)
        assert partition.delete_before(start) == start
        assert len(logs_in(tmp_path / "orders-0")) == 1
        files.full = False
        files.heal()
        append_one(partition)
    with logstore.open(tmp_path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, start, 61)


@pytest.mark.parametrize("has_room_for_names", [False, True])
def test_truncation_on_a_full_disk_frees_space(
    tmp_path: Path, has_room_for_names: bool
) -> None:
    """`truncate_to` needs no space: the state file is changed in place."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        files.full = True
        if not has_room_for_names:
            no_longer_names(files)
        assert partition.truncate_to(20) == 20
        assert list(partition.read()) == expected(1, 0, 20)
        files.heal()
        files.full = False
        fill(partition, 5)
        assert partition.end_offset == 25
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert [r.offset for r in store.topic("orders")[0].read()] == list(range(25))


@pytest.mark.parametrize("missing", [(INDEX,), (TIME_INDEX,), (INDEX, TIME_INDEX)])
@pytest.mark.parametrize("start", [0, 3])
def test_truncation_needs_no_room_for_index_files(
    tmp_path: Path, start: int, missing: tuple[str, ...]
) -> None:
    """A segment that was rolled on a full disk may lack them, and a really full file
    system creates no file. The next opening builds them."""
    files = FullDisk()
    with open_store(tmp_path / "live", _files=files) as store:
        partition = new_partition(store, index_interval_bytes=64, **NO_DELAY)
        fill(partition, 60, call=2)
        partition.delete_before(start)
        segment = partition.segments[1]
        end = segment.base_offset + 4
        for suffix in missing:
            Path(segment.path).with_suffix(suffix).unlink()
        files.full = True
        for suffix in missing:
            files.fail("create", errno.ENOSPC, name=suffix)
        assert partition.truncate_to(end) == end
        assert partition.delete_before(segment.base_offset + 1)
        kept = expected(1, segment.base_offset + 1, end)
        assert list(partition.read()) == kept
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
        files.heal()
        files.full = False
        append_one(partition)
    for name, new_end in ("killed", end), ("live", end + 1):
        with logstore.open(tmp_path / name) as store:
            partition = store.topic("orders")[0]
            assert list(partition.read(stop=end)) == kept
            assert partition.end_offset == new_end
        assert logstore.verify(tmp_path / name, deep=True).ok
        last = Path(segment.path).name
        for suffix in (INDEX, TIME_INDEX):
            path = (tmp_path / name / "orders-0" / last).with_suffix(suffix)
            assert path.stat().st_size > 0


def test_truncation_that_cannot_be_written_down_changes_nothing(
    tmp_path: Path,
) -> None:
    """DiskFullError; appends continue when there is room again."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        files.full = True
        # There is no state file to be changed in place.
        files.fail("open", errno.ENOENT, name=PARTITION_STATE)
        with pytest.raises(logstore.DiskFullError, match="Nothing was cut"):
            partition.truncate_to(20)
        assert list(partition.read()) == expected(1, 0, 60)
        files.heal()
        files.full = False
        append_one(partition)
        assert list(partition.read()) == expected(1, 0, 61)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 61)


def test_truncation_that_was_refused_is_recorded_by_close(tmp_path: Path) -> None:
    """No append need follow: the state file records the end of the log."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        files.full = True
        files.fail("open", errno.ENOENT, name=PARTITION_STATE)
        with pytest.raises(logstore.DiskFullError, match="Nothing was cut"):
            partition.truncate_to(20)
        files.heal()
        files.full = False
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 60)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=str)
@pytest.mark.parametrize("refused", ["file", "directory"])
def test_truncation_that_may_be_written_down_ends_the_partition(
    tmp_path: Path, refused: str, error: int
) -> None:
    """The state file has its new bytes, and the sync of them is refused, or that of the
    directory: it is unknown what the next opening finds, so nothing is appended."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(store, **NO_DELAY)
    fill(partition, 60)
    if refused == "file":
        # Both the second file and, in its place, the one that is there.
        files.fail("sync", error, name=PARTITION_STATE + ".tmp")
        files.fail("sync", error, name=PARTITION_STATE)
    else:
        files.fail("sync_directory", error, name="orders-0")
    with pytest.raises(logstore.errors.SyncFailedError, match="Open the store again"):
        partition.truncate_to(20)
    files.heal()
    with pytest.raises(logstore.errors.SyncFailedError):
        append_one(partition)
    store.close()
    with logstore.open(tmp_path) as store:
        end = store.topic("orders")[0].end_offset
        assert end == 20
        assert read_all(tmp_path) == expected(1, 0, end)
        assert append_one(store.topic("orders")[0]) == end


def test_deletion_inside_a_segment_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    """The new start is written in place. Without room for that, the segments that are
    wholly below it are removed nevertheless, and the call reports that the disk is
    full."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        one, two = (segment.base_offset for segment in partition.segments[2:4])
        files.full = True
        assert partition.delete_before(one + 1) == one + 1
        files.fail("open", errno.ENOENT, name=PARTITION_STATE)
        with pytest.raises(logstore.DiskFullError):
            partition.delete_before(two + 1)
        assert partition.start_offset == two
        assert len(logs_in(tmp_path / "orders-0")) == len(partition.segments)
        files.heal()
        files.full = False
        assert partition.delete_before(two + 1) == two + 1
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, two + 1, 60)


def test_interrupted_deletion_is_finished_where_names_do_not_fit(
    tmp_path: Path,
) -> None:
    """Opening removes the segments below the start that the state file records."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, **NO_DELAY)
        fill(partition, 60)
        start = partition.segments[3].base_offset
        kept = {p: p.read_bytes() for p in (tmp_path / "orders-0").glob("0*")}
        partition.delete_before(start)
    for path, data in kept.items():
        path.write_bytes(data)
    files = FullDisk()
    no_longer_names(files)
    with open_store(tmp_path, _files=files) as store:
        partition = store.topic("orders")[0]
        assert partition.start_offset == start
        assert len(logs_in(tmp_path / "orders-0")) == len(partition.segments)
        assert list(partition.read()) == expected(1, start, 60)


class FileLimit(FaultyFiles):
    """A process that may write files of at most 4096 bytes, on a disk with room."""

    def resource_limits(self) -> tuple[int | None, int | None]:
        return None, 4096


@pytest.mark.parametrize("error", [errno.EFBIG, errno.EDQUOT, errno.ENOSPC])
def test_error_names_what_there_is_no_room_in(tmp_path: Path, error: int) -> None:
    """The limit is one of the process for a file, a quota, or the file system."""
    full = FullDisk()
    kinds = {errno.EFBIG: FileLimit(), errno.ENOSPC: full}
    files = kinds.get(error, FaultyFiles())
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, segment_bytes=1 << 20)
        append_one(partition)
        partition.roll()
        full.full = True
        files.fail("reserve", error)
        with pytest.raises(logstore.DiskFullError) as caught:
            partition.append(bytes(8000))
        full.full = False
        text = str(caught.value)
        assert ("the limit of this process (4096)" in text) == (error == errno.EFBIG)
        assert ("as with a quota" in text) == (error == errno.EDQUOT)
        assert ("0 bytes are free" in text) == (error == errno.ENOSPC)
        files.heal()
