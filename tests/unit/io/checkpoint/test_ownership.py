"""The last writer of a store: notes of logstore count only while they are still
true."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced, crash, logs_in, snapshot_of
from support.values import append_one, config_of, expected, fill, new_partition

COUNT = 30


def write_two(path: Path) -> None:
    """A store that was closed cleanly, with two partitions of several segments."""
    with open_store(path, _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=400)
        for partition in store.create_topic("orders", 2, config).partitions:
            fill(partition, COUNT, call=5)


def another_writer(path: Path) -> None:
    """Write the marks of a broker that stopped cleanly, which differ from
    logstore's."""
    (path / layout.CLEAN_SHUTDOWN).write_bytes(b'{"version":0,"brokerEpoch":7}')


def drop_first_segment(partition: Path) -> int:
    """Drop it like a broker's retention; return the new start offset."""
    first, second, *_ = logs_in(partition)
    for file in partition.glob(f"{first.stem}.*"):
        file.unlink()
    return int(second.stem)


def test_state_of_an_untouched_partition_stays_stale_after_another_writer(
    tmp_path: Path,
) -> None:
    """After a broker has deleted a segment, written to one partition and been killed,
    logstore's notes of the other partition do not count either."""
    live = tmp_path / "live"
    write_two(live)
    another_writer(live)
    start = drop_first_segment(live / "orders-1")
    with open_store(live, _files=Unsynced()) as store:
        append_one(store.topic("orders")[0])
        killed = crash(live, tmp_path / "killed")
    for path in (live, killed):
        with logstore.open(path) as store:
            partition = store.topic("orders")[1]
            assert (partition.start_offset, partition.end_offset) == (start, COUNT)
            assert list(partition.read()) == expected(1, start, COUNT)
            assert append_one(partition) == COUNT
            assert store.recovery_report.actions == ()


def test_topic_that_is_made_anew_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    """The new topic gets neither the old recovery point nor the old start, whenever its
    creator is killed: it does not exist, or it is new."""
    live = tmp_path / "live"
    write_two(live)
    with logstore.open(live) as store:
        store.topic("orders")[0].delete_before(7)  # inside a segment
    killed = []
    files = FaultyFiles()

    def kill(method: str, name: str) -> None:
        copy = crash(live, tmp_path / f"killed-{len(killed)}")
        killed.append((copy, partition.end_offset if partition else -1))

    partition: logstore.Partition | None = None
    with open_store(live, _files=files) as store:
        store.delete_topic("orders")
        files.before = kill
        partition = store.create_topic("orders", 2, config_of(1))[0]
        for _ in range(3):
            append_one(partition)
        kill("", "")
        files.before = None
    assert len(killed) > 20
    for copy, end in killed:
        for read_only in (True, False):
            with logstore.open(copy, read_only=read_only) as store:
                assert not store.recovery_report.actions
                if "orders" in store.topics():
                    found = store.topic("orders")[0]
                    assert found.start_offset == 0
                    assert list(found.read()) == expected(1, 0, found.end_offset)
                    assert found.end_offset >= end
                assert not store.recovery_report.actions
        shutil.rmtree(copy)


def test_topic_that_another_writer_deleted_is_not_lost(tmp_path: Path) -> None:
    """After a broker has deleted a topic, it is gone, and no opening reports it
    missing."""
    write_two(tmp_path)
    with logstore.open(tmp_path) as store:
        store.create_topic("other")
    another_writer(tmp_path)
    shutil.rmtree(tmp_path / "orders-0")
    shutil.rmtree(tmp_path / "orders-1")
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["other"]
        append_one(store.topic("other")[0])
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["other"]
        assert not store.recovery_report


def test_part_of_a_topic_that_a_broker_holds_may_be_configured(tmp_path: Path) -> None:
    """A broker's directory may hold partitions 0 and 2 and no 1: none counts as
    missing."""
    write_two(tmp_path)
    for own in tmp_path.rglob(".logstore*"):
        own.unlink()
    (tmp_path / "orders-1").rename(tmp_path / "orders-2")
    with logstore.open(tmp_path) as store:
        store.topic("orders").configure(logstore.TopicConfig(retention_ms=5))
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert [p.number for p in store.topic("orders").partitions] == [0, 2]
        assert store.topic("orders").config.retention_ms == 5


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "read-only"])
@pytest.mark.parametrize("name", [layout.OWNER, layout.TOPICS])
def test_store_of_a_later_version_is_refused_untouched(
    tmp_path: Path, name: str, read_only: bool
) -> None:
    """The error names both versions, and no byte changes."""
    write_two(tmp_path)
    raise_version(tmp_path, name)
    before = snapshot_of(tmp_path)
    with pytest.raises(logstore.errors.UnsupportedError, match=r"version 9.* knows 1"):
        logstore.open(tmp_path, read_only=read_only)
    assert snapshot_of(tmp_path) == before
    report = logstore.verify(tmp_path)
    assert [problem.kind for problem in report.problems] == ["unsupported"]


def test_partition_of_a_later_version_is_refused_the_others_work(
    tmp_path: Path,
) -> None:
    """Only files of the later version cannot be used."""
    write_two(tmp_path)
    raise_version(tmp_path / "orders-1", layout.PARTITION_STATE)
    with logstore.open(tmp_path) as store:
        with pytest.raises(
            logstore.errors.UnsupportedError, match=r"version 9.* knows 2"
        ):
            store.topic("orders")[1]
        assert append_one(store.topic("orders")[0]) == COUNT
        assert [action.label for action in store.recovery_report.actions] == [
            "unsupported"
        ]


def raise_version(path: Path, name: str) -> None:
    """Give a state file the version of a later logstore."""
    files = Files()
    directory = Directory.open_root(files, str(path))
    data = directory.read_file(name)
    value = checkpoints.unpack_state(name, data)
    later = checkpoints.pack_state(value).replace(b'"version":1', b'"version":9')
    body = later.split(b"\n")[1]
    digest = checkpoints.digest_of(body)
    directory.write_file(name, f"xxh64 {digest}\n".encode() + body + b"\n")
    directory.close()


@pytest.mark.parametrize("value", [{}, {"clean": 1}, {"clean": 1, "fingerprints": 3}])
def test_owner_file_without_its_fields_is_damaged(
    tmp_path: Path, value: dict[str, int]
) -> None:
    """The store is handled like Kafka would handle it, and the report says so."""
    write_two(tmp_path)
    (tmp_path / layout.OWNER).write_bytes(checkpoints.pack_state(value))
    with logstore.open(tmp_path) as store:
        labels = [action.label for action in store.recovery_report.actions]
        assert labels == ["state-damaged"]
        for partition in store.topic("orders").partitions:
            assert list(partition.read()) == expected(1, 0, COUNT)


@pytest.mark.parametrize("is_tried_before", [False, True])
def test_marks_go_in_order_where_the_disk_is_full(
    tmp_path: Path, is_tried_before: bool
) -> None:
    """The owner file durably before Kafka's marker: a power cut that takes only the
    first of the two changes leaves no store that another program seems to have had.
    Changes of a first try are made durable, and stay."""
    with open_store(tmp_path) as store:
        append_one(new_partition(store))
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = store.topic("orders")[0]
        if is_tried_before:
            files.fail("sync_directory", errno.ENOSPC)
            with pytest.raises(logstore.DiskFullError, match="begin writing"):
                append_one(partition)
            assert (tmp_path / ".kafka_cleanshutdown").exists()
            files.heal()
        files.fail("create", errno.ENOSPC, name=".logstore-owner.tmp", times=1)
        files.forget()
        append_one(partition)
        change = ("set_modified", layout.OWNER), ("sync", layout.OWNER)
        owner = files.calls.index(change[not is_tried_before])
        marker = files.calls.index(("unlink", ".kafka_cleanshutdown"))
        assert ("sync_directory", "") in files.calls[owner:marker]


def ids_in(store: Path) -> set[str]:
    """The ids that its topics have or had."""
    text = (store / layout.TOPICS).read_text("utf-8")
    return set(re.findall('"id":"([0-9a-f]+)"', text))


@pytest.mark.parametrize("is_clean", [False, True])
def test_owner_file_stays_where_the_disk_is_full(
    tmp_path: Path, is_clean: bool
) -> None:
    """Without it topics would get other ids, and the committed offsets of their groups
    would no longer count. After a kill it already marks the store as not clean."""
    path = tmp_path / "store"
    with open_store(path) as store:
        append_one(new_partition(store))
        crash(path, tmp_path / "killed")
    store = path if is_clean else tmp_path / "killed"
    owner, known = store / layout.OWNER, ids_in(store)
    before = owner.stat()
    text = owner.read_bytes()
    files = FaultyFiles()
    with open_store(store, _files=files) as opened:
        files.fail("create", errno.ENOSPC, name=".logstore-owner.tmp")
        append_one(opened.topic("orders")[0])
        assert (owner.read_bytes() != text) == is_clean
        assert owner.stat().st_ino == before.st_ino
        assert owner.stat().st_ctime_ns != before.st_ctime_ns
        crash(store, tmp_path / "again")
    with open_store(tmp_path / "again") as opened:
        assert len(list(opened.topic("orders")[0].read())) == 2
        assert not opened.recovery_report.actions
    assert len(known) == 1
    assert ids_in(tmp_path / "again") == known


@pytest.mark.parametrize(
    ("method", "short"), [("open", -1), ("write", 7), ("truncate", -1), ("sync", -1)]
)
def test_owner_file_that_cannot_be_changed_goes(
    tmp_path: Path, method: str, short: int
) -> None:
    """Half a file never stays: the next opening finds no owner file, and opens the
    store like a directory of Kafka."""
    with open_store(tmp_path / "store") as store:
        append_one(new_partition(store))
    files = FaultyFiles()
    with open_store(tmp_path / "store", _files=files) as store:
        files.fail("create", errno.ENOSPC, name=".logstore-owner.tmp")
        files.fail(method, errno.ENOSPC, name=layout.OWNER, short=short)
        append_one(store.topic("orders")[0])
        assert not (tmp_path / "store" / layout.OWNER).exists()
        crash(tmp_path / "store", tmp_path / "killed")
    with open_store(tmp_path / "killed") as store:
        assert len(list(store.topic("orders")[0].read())) == 2


def test_owner_file_that_had_no_room_is_written_when_another_log_is_appended_to(
    tmp_path: Path,
) -> None:
    """Until then the next opening attributes the tail of a log to another program: a
    tail torn by a power failure would be damage."""
    path = tmp_path / "store"
    with open_store(path) as store:
        append_one(new_partition(store))
        append_one(store.create_topic("others")[0])
    owner, files = path / layout.OWNER, FaultyFiles()
    with open_store(path, _files=files) as store:
        files.fail("create", errno.ENOSPC, name=".logstore-owner.tmp")
        files.fail("open", errno.ENOSPC, name=layout.OWNER)
        append_one(store["orders"][0])
        assert not owner.exists()
        files.heal()
        append_one(store["orders"][0])
        assert not owner.exists()
        append_one(store["others"][0])
        assert owner.exists()
        crash(path, tmp_path / "killed")
    with open_store(tmp_path / "killed") as store:
        assert store._context.state.ownership.is_own
        assert [len(list(store[name][0].read())) for name in ("orders", "others")] == [
            3, 2,
        ]  # fmt: skip


def test_owner_file_is_read_again_if_it_is_being_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it is changed in place; a reader may once see half of it."""
    with open_store(tmp_path) as store:
        append_one(new_partition(store))
    read, seen = Directory.read_file, []

    def half(self: Directory, name: str, limit: int = 1 << 20) -> bytes:
        data = read(self, name, limit)
        if name != layout.OWNER or seen:
            return data
        seen.append(name)
        return data[:-9]

    monkeypatch.setattr(Directory, "read_file", half)
    with logstore.open(tmp_path, read_only=True) as reader:
        assert not reader.recovery_report.actions
    assert seen


def test_opening_after_a_kill_makes_the_names_of_a_partition_durable(
    tmp_path: Path,
) -> None:
    """The sync after the rename of its state may have failed, and the content of the
    state counts: no bytes past the durable point are left to write again."""
    with open_store(tmp_path / "store") as store:
        partition = new_partition(store)
        append_one(partition)
        partition.flush()
        partition.roll()
        crash(tmp_path / "store", tmp_path / "killed")
    files = FaultyFiles()
    with open_store(tmp_path / "killed", _files=files) as store:
        assert store.topic("orders")[0].durable_offset == 1
        assert files.count("sync_directory", "orders-0")


def test_settings_that_cannot_be_taken_over_are_a_named_error(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        append_one(partition)
        files.fail("truncate", errno.EIO, name=".log")
        with pytest.raises(logstore.StorageError, match="old settings"):
            store.topic("orders").configure(config_of(2, flush_ms=5))
        files.heal()
        # The settings of `config` decide what appends do; `append_one` relies on it.
        assert partition.config.message_format == 1
        assert store.topic("orders").config.message_format == 2
        append_one(partition)
        assert partition.end_offset == 2
        assert [record.headers for record in partition.read()] == [(), ()]
    with open_store(tmp_path) as store:
        assert store.topic("orders").config.flush_ms == 5
        assert len(list(store.topic("orders")[0].read())) == 2
