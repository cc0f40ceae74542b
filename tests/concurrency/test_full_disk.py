"""A disk that is really full: file systems of a few MiB, mounted for the test."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from support.damage import snapshot_of

MIB = 1 << 20
VALUE = bytes(range(256)) * 4


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The directory of an empty file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={8 * MIB}", "none", str(place)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(8 * MIB)
        made = shutil.which("mkfs.ext4") and run(
            ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)]
        )
        if not made:
            pytest.skip("mkfs.ext4 is not there")
        command = ["mount", "-o", "loop", str(image), str(place)]
    if not run(command):
        pytest.skip(f"no right to mount a file system: {' '.join(command[:4])}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """Turn the log off: a logged warning would keep its error alive, and through its
    frames the deleted files that must free space."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def new_partition(store: logstore.Store, **settings: int) -> logstore.Partition:
    config = logstore.TopicConfig(
        segment_bytes=MIB, file_delete_delay_ms=0, retention_ms=-1, **settings
    )
    return store.create_topic("orders", config=config)[0]


def fill_up(partition: logstore.Partition, count: int = 7) -> int:
    """Append until the disk is full, `count` records a call; return the end offset."""
    with pytest.raises(logstore.DiskFullError):
        while True:
            end = partition.end_offset
            partition.append_many([VALUE] * count)
    assert partition.end_offset == end
    return end


def fill_rest(disk: Path) -> None:
    """Another program takes the last free byte."""
    with (disk / "rest").open("ab", buffering=0) as rest:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while rest.write(bytes(size)):
                    pass


def append_soon(partition: logstore.Partition) -> range:
    """Append once the store's thread has removed the deleted files."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return partition.append_many([VALUE] * 7)
        except logstore.DiskFullError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_full_disk_refuses_the_append_and_leaves_the_log(disk: Path) -> None:
    """The failed call leaves nothing; reading (in another process, too), flushing and
    closing still work; with room again, appends continue without a gap."""
    with logstore.open(disk / "data") as store:
        partition = new_partition(store)
        end = fill_up(partition)
        partition.flush()
        assert partition.durable_offset == end
        assert [r.offset for r in partition.read()] == list(range(end))
        before = snapshot_of(disk / "data")
        with logstore.open(disk / "data", read_only=True) as other:
            assert len(list(other.topic("orders")[0].read())) == end
        assert snapshot_of(disk / "data") == before
        for _ in range(3):
            with pytest.raises(logstore.DiskFullError):
                partition.append_many([VALUE] * 7)
        start = partition.segments[2].base_offset
        assert partition.delete_before(start) == start
        assert append_soon(partition) == range(end, end + 7)
    with logstore.open(disk / "data") as store:
        # An index for which there was no room at a roll is built now.
        labels = {action.label for action in store.recovery_report.actions}
        assert labels <= {"index-rebuilt"}
        partition = store.topic("orders")[0]
        found = [r.offset for r in partition.read()]
        assert found == list(range(start, end + 7))


def test_closing_on_a_full_disk_loses_nothing(disk: Path) -> None:
    """Appended records are durable; only the marks of a clean stop may be missing."""
    (disk / "others").write_bytes(bytes(MIB))
    with logstore.open(disk / "data") as store:
        end = fill_up(new_partition(store))
        fill_rest(disk)
    for _ in range(2):
        with logstore.open(disk / "data") as store:
            partition = store.topic("orders")[0]
            assert [r.offset for r in partition.read()] == list(range(end))
    (disk / "others").unlink()
    with logstore.open(disk / "data") as store:
        assert store.topic("orders")[0].append(b"more") == end
    with logstore.open(disk / "data") as store:
        assert not store.recovery_report


def test_positions_of_groups_count_after_a_full_disk(disk: Path) -> None:
    """The disk is too full twice in a row for the marks of a writer and of a clean
    stop: the topics are still taken for the same ones."""
    (disk / "others").write_bytes(bytes(MIB))
    with logstore.open(disk / "data") as store:
        partition = new_partition(store)
        for _ in range(20):
            partition.append_many([VALUE] * 100)
        starts = [segment.base_offset for segment in partition.segments]
        logstore.reset_offsets(
            disk / "data", "g", to=1900, topics=["orders"], dry_run=False
        )
    for start in starts[1:3]:
        fill_rest(disk)
        with logstore.open(disk / "data") as store:
            store.topic("orders")[0].delete_before(start)
            fill_rest(disk)
    (disk / "others").unlink()
    with (
        logstore.open(disk / "data") as store,
        logstore.Consumer(store, group="g", topics=["orders"]) as consumer,
    ):
        (records,) = consumer.poll(timeout_ms=60_000).values()
        assert records[0].offset == 1900
        assert not store.recovery_report


def test_store_without_a_free_byte_opens_and_deletes(disk: Path) -> None:
    """After a kill on a full disk: opening, reading, retention, deleting a topic."""
    program = f"""
        import os
        import logstore
        store = logstore.open({str(disk / "data")!r})
        config = logstore.TopicConfig(
            segment_bytes=1 << 20, file_delete_delay_ms=0, retention_bytes=1 << 20
        )
        partition = store.create_topic("orders", 2, config)[0]
        try:
            while True:
                partition.append_many([bytes(range(256)) * 4] * 7)
        except logstore.DiskFullError:
            print(partition.end_offset, flush=True)
        with open({str(disk / "rest")!r}, "wb", buffering=0) as rest:
            try:
                while rest.write(bytes(4096)):
                    pass
            except OSError:
                pass
        os._exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    end = int(done.stdout)
    with logstore.open(disk / "data") as store:
        topic = store.topic("orders")
        assert topic[0].end_offset == end
        assert [r.offset for r in topic[0].read()] == list(range(end))
        deletions = topic.apply_retention()
        assert len(deletions) > 2
        start = topic[0].start_offset
        assert [r.offset for r in topic[0].read()] == list(range(start, end))
        assert append_soon(topic[0]) == range(end, end + 7)
        store.delete_topic("orders")
        assert store.topics() == []
    with logstore.open(disk / "data") as store:
        assert store.topics() == []


def test_reader_in_another_process_sees_no_part_of_a_failed_append(disk: Path) -> None:
    """All records of a call have its number: a process that reads all the time never
    sees a record of a failed call."""
    stop = disk.parent / "stop"
    program = f"""
        import contextlib
        import os
        import logstore
        seen = set()
        store = logstore.open({str(disk / "data")!r}, read_only=True)
        partition = store.topic("orders")[0]
        print("ready", flush=True)
        while not os.path.exists({str(stop)!r}):
            with contextlib.suppress(logstore.OffsetOutOfRangeError):
                for record in partition.read(max(partition.end_offset - 21, 0)):
                    seen.add(int(record.value[:8]))
        print(*sorted(seen))
    """
    failed: set[int] = set()
    with logstore.open(disk / "data") as store:
        partition = new_partition(store)
        partition.append_many([b"%08d" % 0 + VALUE] * 7)
        reader = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            call = 0
            for _ in range(3):
                failures = 0
                while failures < 200:
                    call += 1
                    try:
                        partition.append_many([b"%08d" % call + VALUE] * 7)
                    except logstore.DiskFullError:
                        failed.add(call)
                        failures += 1
                partition.delete_before(partition.segments[1].base_offset)
            stop.touch()
            seen = set(map(int, reader.communicate(timeout=120)[0].split()))
        finally:
            reader.kill()
            reader.wait()
    assert seen
    assert failed
    assert seen & failed == set()


def test_reserve_keeps_room_for_others(disk: Path) -> None:
    """An append fails while min_free_bytes are still free."""
    config = logstore.StoreConfig(min_free_bytes=2 * MIB)
    with logstore.open(disk / "data", config=config) as store:
        partition = new_partition(store)
        fill_up(partition)
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_frsize >= 2 * MIB
        (disk / "others").write_bytes(bytes(2 * MIB - 64 * 1024))
        with pytest.raises(logstore.DiskFullError, match="min_free_bytes"):
            partition.append_many([VALUE] * 7)
        partition.delete_before(partition.end_offset)
        append_soon(partition)
