"""Snapshots of a store: by its owner, by the lock, and by a request to the owner."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logstore
from logstore import TopicPartition
from logstore.io import layout
from logstore.io.files import Files
from logstore.store.copy import snapshot_requests
from logstore.store.opening import open_store
from support.cluster_files import cluster_files, make_cluster

CONFIG = logstore.TopicConfig(segment_bytes=4096, message_format=2)
KEY = TopicPartition("t", 0)


def _published(store: logstore.Store, sequence: int) -> None:
    with store.stage("spark", sequence) as stage:
        for partition in store.topic("t"):
            stage.append_many(partition, [b"published %d" % sequence])
        staged = stage.finish()
    store.publish(staged, identity="spark", sequence=sequence, note="a note")


def _filled(store: logstore.Store) -> None:
    topic = store.create_topic("t", 3, CONFIG)
    for number in range(60):
        topic[number % 3].append(b"%03d" % number * 60, key=b"k")
    _published(store, 1)
    store.producer("p").append(topic[0], b"once", sequence=7)
    topic[1].delete_before(3)
    store.create_topic("empty", 2)


def _committed(store: logstore.Store, offset: int) -> None:
    with logstore.Consumer(store, group="g", reset="earliest") as consumer:
        consumer.assign([KEY])
        consumer.seek(KEY, offset)
        consumer.commit()


def _records(path: Path) -> dict[tuple[str, int], list[tuple[int, bytes | None]]]:
    with logstore.open(path, read_only=True) as store:
        return {
            (topic.name, partition.number): [
                (record.offset, record.value) for record in partition.read()
            ]
            for topic in store
            for partition in topic
        }


@pytest.mark.parametrize("links", [True, False])
def test_snapshot_of_an_open_store_has_everything_and_opens_as_closed(
    tmp_path: Path, links: bool
) -> None:
    """Records, settings, publications, positions and producers."""
    source, copy = tmp_path / "source", tmp_path / "deep" / "copy"
    with logstore.open(source) as store:
        _filled(store)
        _committed(store, 5)
        steps: list[logstore.types.SnapshotProgress] = []
        report = store.snapshot(copy, links=links, on_progress=steps.append)
        expected = _records(source)
        # The original continues, and its copy does not see it.
        store.topic("t")[0].append(b"later")
        store.topic("t")[0].truncate_to(2)
    assert _records(copy) == expected
    assert steps[-1].bytes_done == steps[-1].bytes_total == report.bytes
    assert (report.topics, report.partitions, report.groups) == (2, 5, 1)
    assert (report.identities, report.damaged) == (1, ())
    assert (report.bytes_linked > 0) == links
    assert os.listdir(copy.parent) == ["copy"]
    assert not list(copy.rglob("*unfinished*"))
    checked = logstore.verify(copy, deep=True)
    assert checked.ok
    assert not checked.problems
    with logstore.open(copy) as store:
        assert store.topic("t").config == CONFIG
        assert store.topic("t")[1].start_offset == 3
        last = store.last_publication("spark")
        assert last is not None
        assert (last.sequence, last.note) == (1, "a note")
        assert store.producer("p").last_sequence(("t", 0)) == 7
        with logstore.Consumer(store, group="g") as consumer:
            assert consumer.committed(KEY) == logstore.OffsetAndMetadata(5)
        assert store.topic("t")[0].append(b"goes on") == len(expected["t", 0])
    assert logstore.verify(copy, deep=True).ok
    assert logstore.verify(source, deep=True).ok


def test_snapshot_while_it_is_written_to_has_no_part_of_anything(
    tmp_path: Path,
) -> None:
    """Publications are whole, positions are not above the ends."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _filled(store)
        _committed(store, 1)
        stopped = threading.Event()

        def publish() -> None:
            sequence = 2
            while not stopped.is_set():
                _published(store, sequence)
                sequence += 1

        def append_and_commit() -> None:
            partition = store.topic("t")[0]
            while not stopped.is_set():
                _committed(store, partition.append(b"x" * 300) + 1)
                partition.compact() if partition.config.compacts else partition.flush()

        threads = [
            threading.Thread(target=work) for work in (publish, append_and_commit)
        ]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                store.snapshot(tmp_path / str(number))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    for number in range(5):
        copy = tmp_path / str(number)
        published = [
            [value for _, value in rows if value and value.startswith(b"published")]
            for (topic, _), rows in _records(copy).items()
            if topic == "t"
        ]
        assert published[0] == published[1] == published[2]
        with logstore.open(copy) as store:
            assert store.published("spark") == len(published[0])
            with logstore.Consumer(store, group="g") as consumer:
                found = consumer.committed(KEY)
            assert found is not None
            assert found.offset <= store.topic("t")[0].end_offset
        assert logstore.verify(copy, deep=True).ok


def test_snapshot_at_a_bad_place_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten, and nothing is put into the store."""
    source = tmp_path / "source"
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    (full / "x").mkdir(parents=True)
    file.write_bytes(b"")
    empty.mkdir()
    with logstore.open(source) as store:
        _filled(store)
        for place in (full, file, source / "inside", source):
            with pytest.raises(logstore.ConfigError, match="no snapshot can be made"):
                store.snapshot(place)
        store.snapshot(empty)
    assert _records(empty) == _records(source)
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "full", "source"]


class _Mounted(Files):
    """Each directory is the root of a separate mount."""

    def mounts(self, fd: int) -> tuple[int, str]:
        return self.stat(fd).inode, ""


@pytest.mark.parametrize("what", ["link", "mount point", "lost link", "file"])
def test_snapshot_at_what_a_directory_cannot_replace_is_refused_before_it_is_made(
    tmp_path: Path, what: str
) -> None:
    """No time is wasted on the copy, which could take hours."""
    place, there = tmp_path / "place", tmp_path / "there"
    files: Files = Files()
    if what == "mount point":
        files = _Mounted()
        place.mkdir()
    elif what == "file":
        place.write_bytes(b"")
        place /= "below"
    else:
        place.symlink_to(there)
        if what == "link":
            there.mkdir()

    def fail(progress: logstore.types.SnapshotProgress) -> None:
        raise AssertionError(progress)

    with open_store(tmp_path / "source", _files=files) as store:
        _filled(store)
        with pytest.raises(logstore.ConfigError, match="no snapshot can be made"):
            store.snapshot(place, on_progress=fail)


def test_snapshot_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """On a full disk nothing is at the path, and the store continues."""

    class Full(Files):
        left = 1 << 60

        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(28, os.strerror(28))
            super().write(fd, data, pos)

    files = Full()
    with open_store(tmp_path / "source", _files=files) as store:
        _filled(store)
        for left in (0, 3, 9):
            files.left = left
            with pytest.raises(logstore.DiskFullError):
                store.snapshot(tmp_path / "copy", links=False)
            files.left = 1 << 60
            assert os.listdir(tmp_path) == ["source"]
        store.snapshot(tmp_path / "copy")


def test_unfinished_snapshot_is_no_store(tmp_path: Path) -> None:
    """A killed process leaves it; it is opened neither for reading nor for writing."""

    class Killed(Files):
        def rename(self, dir_fd: int, old: str, new: str) -> None:
            super().rename(dir_fd, old, new)
            if new == layout.OWNER and self.is_killed:
                os._exit(9)

        is_killed = False

    files = Killed()
    source = tmp_path / "source"
    with open_store(source, _files=files) as store:
        _filled(store)
        pid = os.fork()
        if not pid:
            files.is_killed = True
            try:
                logstore.verify(source)
                with open_store(tmp_path / "other", _files=Killed()) as other:
                    _filled(other)
                    files.is_killed = Killed.is_killed = True
                    other.snapshot(tmp_path / "copy")
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    (left,) = (name for name in os.listdir(tmp_path) if "unfinished" in name)
    assert not (tmp_path / "copy").exists()
    for read_only in (True, False):
        with pytest.raises(logstore.StoreNotFoundError, match="unfinished"):
            logstore.open(tmp_path / left, read_only=read_only)
    # Nor do checks of files accept it without opening the store.
    for look in (logstore.verify, logstore.kafka.check_handover, logstore.report):
        with pytest.raises(logstore.StoreNotFoundError, match="unfinished"):
            look(tmp_path / left)
    with pytest.raises(logstore.StoreNotFoundError, match="unfinished"):
        logstore.repair(tmp_path / left, "skip")


@pytest.mark.parametrize("way", ["into", "instead"])
def test_snapshot_that_is_put_back_in_its_place_is_a_copy(
    tmp_path: Path, way: str
) -> None:
    """A reader that had read more of the original notices the cut, as in any other
    copy."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    with logstore.open(source) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([b"both"] * 10)
        store.snapshot(copy)
        partition.append_many([b"of the original"] * 10)
        mark = partition.mark()
    assert mark is not None
    if way == "into":
        for path in source.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(copy, source, dirs_exist_ok=True)
    else:
        shutil.rmtree(source)
        copy.rename(source)
    with logstore.open(source) as store:
        partition = store.topic("t")[0]
        partition.append_many([b"later"] * 20)
        assert partition.unchanged_below(mark) == 10
    with logstore.open(source) as store:
        # After its close it is an independent store, with the marks that it gave.
        partition = store.topic("t")[0]
        settled = partition.mark()
        assert settled is not None
        assert partition.unchanged_below(mark) == 10
        partition.append(b"more")
        unchanged = partition.unchanged_below(settled)
        assert unchanged is not None
        assert unchanged > 30


_OWNER = """
import sys, logstore
with logstore.open(sys.argv[1]) as store:
    store.topic("t")[0].append(b"of the owner")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_snapshot_by_another_process_is_made_by_the_owner(tmp_path: Path) -> None:
    """Every owner serves requests, also one that does not publish for others."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _filled(store)
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        owner.stdout.readline()
        with logstore.open(source, read_only=True) as store:
            report = store.snapshot(tmp_path / "copy")
            with pytest.raises(logstore.ConfigError):
                store.snapshot(tmp_path / "copy")
        owner.stdin.close()
    assert report.partitions == 5
    assert _records(tmp_path / "copy") == _records(source)
    assert _records(source)["t", 0][-1][1] == b"of the owner"
    assert not [name for name in os.listdir(source) if "request" in name]


def test_snapshot_of_a_store_without_owner_takes_the_lock(tmp_path: Path) -> None:
    """A read-only store opens itself for writing for the time of the snapshot."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _filled(store)
    with logstore.open(source, read_only=True) as store:
        store.snapshot(tmp_path / "copy")
    assert _records(tmp_path / "copy") == _records(source)
    assert (source / layout.CLEAN_SHUTDOWN).exists()


def test_snapshot_of_an_owner_that_does_not_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker, or an earlier version, has the lock: the error names the method."""
    monkeypatch.setattr(snapshot_requests, "_BEGIN_S", 0.2)
    monkeypatch.setattr(snapshot_requests.SnapshotServer, "start", lambda self: None)
    source = tmp_path / "source"
    with logstore.open(source) as owner:
        _filled(owner)
        with (
            logstore.open(source, read_only=True) as store,
            pytest.raises(logstore.StoreLockedError, match=r"Store\.snapshot") as info,
        ):
            store.snapshot(tmp_path / "copy")
        assert info.value.holder_pid == os.getpid()
    assert not [name for name in os.listdir(source) if "request" in name]
    assert not (tmp_path / "copy").exists()


def test_request_whose_process_has_ended_is_removed(tmp_path: Path) -> None:
    """A leftover request makes no snapshot, and stops no later one."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _filled(store)
        (source / layout.SNAPSHOT_REQUEST).write_text('{"path":"/x","links":true}\n')
        with logstore.open(source, read_only=True) as reader:
            reader.snapshot(tmp_path / "copy")
    assert not (source / layout.SNAPSHOT_REQUEST).exists()
    assert _records(tmp_path / "copy") == _records(source)


def test_snapshot_of_a_damaged_partition_has_its_damage(tmp_path: Path) -> None:
    """A partition that takes no appends is copied unchanged, and named."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _filled(store)
    log = sorted((source / "t-0").glob("*.log"))[-1]
    data = log.read_bytes()[:-10]
    log.write_bytes(data)
    with logstore.open(source) as store:
        report = store.snapshot(tmp_path / "copy")
    assert report.damaged == (KEY,)
    assert (tmp_path / "copy" / "t-0" / log.name).read_bytes() == data
    problems = [
        [problem.kind for problem in logstore.verify(path).problems]
        for path in (source, tmp_path / "copy")
    ]
    assert problems[0] == problems[1]
    assert problems[0]


def test_snapshot_of_a_damaged_partition_leaves_out_what_was_put_aside(
    tmp_path: Path,
) -> None:
    """The directory of a repair is no file of the partition, also if the partition is
    damaged again."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    with logstore.open(source) as store:
        _filled(store)

    def damage() -> None:
        log = max((source / "t-0").glob("*.log"), key=lambda log: log.stat().st_size)
        data = bytearray(log.read_bytes())
        data[-10] ^= 1
        log.write_bytes(data)

    damage()
    logstore.repair(source, "skip")
    assert list((source / "t-0").glob(layout.QUARANTINE_PREFIX + "*"))
    damage()
    (source / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    with logstore.open(source) as store:
        assert store.snapshot(copy).damaged == (KEY,)
    assert not list((copy / "t-0").glob(layout.QUARANTINE_PREFIX + "*"))
    logs = [sorted((path / "t-0").glob("*.log")) for path in (source, copy)]
    assert [log.read_bytes() for log in logs[0]] == [
        log.read_bytes() for log in logs[1]
    ]


def test_snapshot_without_the_directory_of_a_partition_names_it(tmp_path: Path) -> None:
    """The report of a backup names the partition that is not in it, and so does the
    copy."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    with logstore.open(source) as store:
        _filled(store)
    shutil.rmtree(source / "t-1")
    with logstore.open(source) as store:
        report = store.snapshot(copy)
    assert report.damaged == (TopicPartition("t", 1),)
    assert report.partitions == 4
    with logstore.open(copy) as store:
        labels = [action.label for action in store.recovery_report.actions]
    assert labels == ["lost-segment"]


def _of_a_cluster(source: Path) -> None:
    """The directory of a KRaft broker that was stopped, with topics of its cluster."""
    with logstore.open(source) as store:
        _filled(store)
    make_cluster(source, {"t": b"t" * 16, "empty": b"e" * 16})
    (source / "replication-offset-checkpoint").write_text("0\n1\nt 0 5\n")


@pytest.mark.parametrize("links", [True, False])
def test_snapshot_of_a_brokers_directory_has_what_the_broker_starts_with(
    tmp_path: Path, links: bool
) -> None:
    """A snapshot that is put in the place of a broker's directory is of its cluster,
    and has its topics, byte for byte; the other program may write to it in place."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    _of_a_cluster(source)
    (source / "__cluster_metadata-0" / "foreign").mkdir()
    (source / "remote-log-index-cache").mkdir()
    expected = cluster_files(source)
    with logstore.open(source) as store:
        report = store.snapshot(copy, links=links)
    assert (report.topics, report.partitions) == (2, 5)
    assert cluster_files(copy) == expected == cluster_files(source)
    assert len(expected) == 13
    for path in expected:
        assert (copy / path).stat().st_nlink == 1
    assert (copy / "replication-offset-checkpoint").exists()
    for left_out in ("remote-log-index-cache", "__cluster_metadata-0/foreign"):
        assert not (copy / left_out).exists()
    reports = [
        logstore.kafka.check_handover(path, from_kafka=False) for path in (source, copy)
    ]
    original, restored = (
        [(one.kind, one.effect, one.values) for one in report.findings]
        for report in reports
    )
    assert restored == original
    assert {one.message for one in reports[1].findings if one.kind == "topic"} == {
        "the cluster has empty", "the cluster has t",
    }  # fmt: skip
    with logstore.open(copy) as store:
        assert sorted(store.topics()) == ["empty", "t"]


def test_snapshot_that_cannot_copy_the_clusters_metadata_leaves_nothing(
    tmp_path: Path,
) -> None:
    """A broker would set all logs of such a copy aside: no copy is made."""

    class Bad(Files):
        """Cannot read the state of the quorum."""

        def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
            if name == "quorum-state":
                raise OSError(errno.EIO, "planted")
            return super().open(dir_fd, name, write=write)

    source = tmp_path / "source"
    _of_a_cluster(source)
    with (
        open_store(source, _files=Bad()) as store,
        pytest.raises(logstore.StorageError, match="No snapshot was made"),
    ):
        store.snapshot(tmp_path / "copy")
    assert os.listdir(tmp_path) == ["source"]
