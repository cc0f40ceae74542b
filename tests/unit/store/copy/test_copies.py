"""The first opening of a copy: cuts at the ends of logs, positions, the directory."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

import logstore
from logstore import TopicPartition
from logstore.group.consumer import lowering
from logstore.group.file.group_file import GroupFile
from logstore.group.file.slots import Slots
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.publication.publisher import Publisher

KEY = TopicPartition("t", 0)


def _stored(path: Path, count: int = 10) -> None:
    with logstore.open(path) as store:
        topic = store.create_topic("t", exist_ok=True)
        topic[0].append_many([b"%d" % number for number in range(count)])


def _committed(path: Path, offset: int, group: str = "g") -> None:
    with logstore.Consumer(path, group=group, reset="earliest") as consumer:
        consumer.assign([KEY])
        consumer.seek(KEY, offset)
        consumer.commit()


def _position(path: Path, group: str = "g") -> int | None:
    with logstore.Consumer(path, group=group, reset="earliest") as consumer:
        found = consumer.committed(KEY)
    return None if found is None else found.offset


def test_position_above_the_end_of_a_copy_is_lowered_and_named(
    tmp_path: Path,
) -> None:
    """Records appended to the copy are not skipped: the position is durable, and in the
    report."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    shutil.copytree(data, copy)
    _stored(data)
    _committed(data, 15)
    _committed(data, 4, "low")
    for name in os.listdir(data):
        if name.startswith(".logstore-group-"):
            shutil.copy2(data / name, copy / name)
    with logstore.open(copy) as store:
        (action,) = store.recovery_report.actions
        assert (action.label, action.topic, action.partition) == (
            "position-lowered",
            "t",
            0,
        )
        assert action.first_offset == 10
        assert "'g' had the position 15" in action.message
    assert (_position(copy), _position(copy, "low")) == (10, 4)
    with logstore.open(copy) as store:
        assert not store.recovery_report.actions
    assert (_position(data), _position(data, "low")) == (15, 4)


@pytest.mark.parametrize("way", ["commits", "transactions"])
def test_position_from_before_a_cut_is_lowered_to_the_cut(
    tmp_path: Path, way: str
) -> None:
    """The log has grown again since: later records were not processed. A position from
    after the cut is lowered to the end."""
    data = tmp_path / "data"
    _stored(data, 30)
    if way == "transactions":
        _transacted(data, 30)
    else:
        _committed(data, 30)
    with logstore.open(data) as store:
        store.topic("t")[0].truncate_to(0)
        store.topic("t")[0].append_many([b"new"] * 10)
    (data / ".logstore-owner").unlink()
    assert _position(data) == 0
    with logstore.open(data) as store:
        (action,) = store.recovery_report.actions
        assert (action.label, action.first_offset) == ("position-lowered", 0)
    assert _position(data) == 0


def test_log_of_a_copy_has_a_cut_at_its_end_before_the_first_append(
    tmp_path: Path,
) -> None:
    """A reader that has read more of the original notices the cut, in every partition,
    also in one that is written to after another opening."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    with logstore.open(data) as store:
        other = store.create_topic("other")[0]
        other.append_many([b"x"] * 3)
        mark, other_mark = store.topic("t")[0].mark(), other.mark()
    shutil.copytree(data, copy)
    with logstore.open(data) as store:
        store.topic("t").append(b"only here")
        assert store.topic("t")[0].unchanged_below(mark) > 11
    with logstore.open(copy) as store:
        store.topic("t").append(b"only in the copy")
        assert store.topic("t")[0].unchanged_below(mark) == 10
    with logstore.open(copy) as store:
        store.topic("other").append(b"only in the copy")
        assert store.topic("other")[0].unchanged_below(other_mark) == 3
        assert store.topic("t")[0].unchanged_below(mark) == 10


def test_copy_that_was_killed_is_a_copy_at_the_next_opening(tmp_path: Path) -> None:
    """The directory is recorded when all logs have a state with their cut."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    with logstore.open(data) as store:
        other = store.create_topic("other")[0]
        other.append_many([b"x"] * 3)
        mark = other.mark()
    shutil.copytree(data, copy)
    pid = os.fork()
    if not pid:
        try:
            store = logstore.open(copy)
            store.topic("t").append(b"y", durable=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with logstore.open(copy) as store:
        store.topic("other").append(b"z")
        assert store.topic("other")[0].unchanged_below(mark) == 3


def test_store_that_is_not_a_copy_gets_no_cut(tmp_path: Path) -> None:
    """Opening, closing, and moving on the same file system change nothing."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    _stored(data)
    with logstore.open(data) as store:
        mark = store.topic("t")[0].mark()
    data.rename(moved)
    with logstore.open(moved) as store:
        store.topic("t").append(b"x")
        assert store.topic("t")[0].mark() == mark


def test_copy_without_its_owner_file_has_lower_positions(tmp_path: Path) -> None:
    """Without it the origin of the directory is unknown: it may be a copy."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    shutil.copytree(data, copy)
    _stored(data)
    _committed(data, 15)
    shutil.copy2(data / ".logstore-group-g", copy)
    os.unlink(copy / ".logstore-owner")
    with logstore.open(copy) as store:
        labels = [action.label for action in store.recovery_report.actions]
        assert "position-lowered" in labels
        store.topic("t").append(b"not skipped")
        with logstore.Consumer(
            store, group="g", topics=["t"], reset="error", durable_only=False
        ) as consumer:
            (records,) = consumer.poll(timeout_ms=1000).values()
    assert [record.value for record in records] == [b"not skipped"]


def test_positions_are_lowered_whatever_was_imported(tmp_path: Path) -> None:
    """A program that only opens the copy uses no group."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    shutil.copytree(data, copy)
    _stored(data)
    _committed(data, 15)
    shutil.copy2(data / ".logstore-group-g", copy)
    os.unlink(copy / ".logstore-owner")
    code = f"import logstore; logstore.open({str(copy)!r}).close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    with logstore.open(copy) as store:
        end = store.topic("t")[0].end_offset
    assert _position(copy) == end < 15


@pytest.mark.parametrize("way", ["copy", "snapshot"])
def test_copy_of_a_copy_is_one_too(tmp_path: Path, way: str) -> None:
    """The directory that is recorded is the one of the last clean close."""
    data, first, second = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    _stored(data)
    shutil.copytree(data, first)
    with logstore.open(first) as store:
        store.topic("t").append(b"x")
        mark = store.topic("t")[0].mark()
        if way == "snapshot":
            store.snapshot(second)
    if way == "copy":
        shutil.copytree(first, second)
    with logstore.open(second) as store:
        store.topic("t").append(b"y")
        assert store.topic("t")[0].unchanged_below(mark) == 11


def _published(path: Path, sequence: int, count: int = 3) -> logstore.types.Publication:
    with logstore.open(path) as store, store.stage("spark", sequence) as stage:
        stage.append_many(store.topic("t")[0], [b"%d" % sequence] * count)
        staged = stage.finish()
        return store.publish(staged, identity="spark", sequence=sequence)


def test_publication_without_its_records_is_unknown_in_a_copy(tmp_path: Path) -> None:
    """The same sequence is an error, a higher one continues; also after closing."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    _published(data, 1)
    with logstore.open(data) as store, store.stage("spark", 2) as stage:
        shutil.copytree(data, copy)
        stage.append_many(store.topic("t")[0], [b"2"] * 3)
        store.publish(stage.finish(), identity="spark", sequence=2)
        # Copied last: it is newer than the log.
        shutil.copy2(data / ".logstore-publication", copy)
    for _ in range(2):
        with pytest.raises(logstore.errors.PublicationUnknownError) as info:
            _published(copy, 2)
        assert (info.value.identity, info.value.sequence) == ("spark", 2)
    assert _published(copy, 3).is_new
    assert not _published(copy, 3).is_new
    with pytest.raises(logstore.errors.PublicationConflictError):
        _published(copy, 2)
    assert not _published(data, 2).is_new


@pytest.mark.parametrize("what", ["checksum", "fields", "row"])
def test_damaged_file_of_unknown_publications_refuses_only_repetitions(
    tmp_path: Path, what: str
) -> None:
    """A higher sequence is new, whatever the file contained."""
    data = tmp_path / "data"
    _stored(data)
    _published(data, 1)
    value = {"version": 1, "unknown": [["spark"]]} if what == "row" else {"version": 1}
    bad = b"garbage" if what == "checksum" else checkpoints.pack_state(value)
    (data / ".logstore-unknown").write_bytes(bad)
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match="logstore-unknown"
    ):
        _published(data, 1)
    assert _published(data, 2).is_new


def _transacted(path: Path, count: int, *, reset: str = "earliest") -> None:
    """Read the given number of records, and publish that position with a
    transaction."""
    with (
        logstore.open(path) as store,
        logstore.Consumer(store, group="g", topics=["t"], reset=reset) as consumer,
    ):
        with consumer.transaction():
            got = consumer.poll(timeout_ms=1000, max_records=count)
            assert sum(map(len, got.values())) == count


def _shown(path: Path, group: str = "g") -> int | None:
    (found,) = [one for one in logstore.groups(path) if one.group == group]
    (row,) = [row for row in found.partitions if row.partition == 0]
    return row.offset


def _contents(path: Path) -> dict[str, bytes]:
    """All files except data of the owner and of live members about themselves."""
    theirs = (".logstore-group-g.lock", ".logstore-lock")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name not in theirs
    }


def _copied_positions(tmp_path: Path, way: str) -> tuple[Path, Path]:
    """A store and a copy of it whose log ends at 10, with a position of 15."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    if way == "transactions":
        _transacted(data, 3)
    else:
        _committed(data, 3)
    shutil.copytree(data, copy)
    _stored(data)
    if way == "transactions":
        _transacted(data, 12)
    else:
        _committed(data, 15)
    for name in (".logstore-group-g", ".logstore-published"):
        if (data / name).exists():
            shutil.copy2(data / name, copy)
    return data, copy


@pytest.mark.parametrize("way", ["commits", "transactions"])
def test_position_in_a_copy_that_is_open_read_only_counts_as_lowered(
    tmp_path: Path, way: str
) -> None:
    """Consumers and lists have the position that the first opening for writing makes
    durable; nothing is written, and reading skips nothing."""
    data, copy = _copied_positions(tmp_path, way)
    before = _contents(copy)
    assert (_shown(copy), _shown(data)) == (10, 15)
    with logstore.open(copy, read_only=True) as reader:
        found = logstore.Consumer(reader, group="g", reset="error")
        committed = found.committed(KEY)
        assert committed is not None
        assert committed.offset == 10
        assert _contents(copy) == before
        found.assign([KEY])
        assert not found.poll(timeout_ms=0)
        with logstore.open(copy) as store:
            store.topic("t")[0].append_many([b"a", b"b"], durable=True)
        (records,) = found.poll(timeout_ms=1000).values()
        assert [record.value for record in records] == [b"a", b"b"]
        found.close()
    assert (_shown(copy), _shown(data)) == (10, 15)


@pytest.mark.parametrize("dry_run", [True, False])
def test_reset_in_a_copy_that_was_only_read_goes_from_the_lowered_position(
    tmp_path: Path, dry_run: bool
) -> None:
    """Three records back from the end of the copy, which its consumers are at."""
    data, copy = _copied_positions(tmp_path, "commits")
    (change,) = logstore.reset_offsets(copy, "g", shift=-3, dry_run=dry_run)
    assert (change.before, change.after) == (10, 7)
    after = 10 if dry_run else 7
    assert (_shown(copy), _shown(data)) == (after, 15)
    with logstore.open(copy):
        pass
    assert (_position(copy), _position(data)) == (after, 15)
    (change,) = logstore.reset_offsets(data, "g", shift=-3, dry_run=True)
    assert (change.before, change.after) == (15, 12)


def test_published_position_above_the_end_of_a_copy_is_lowered_and_named(
    tmp_path: Path,
) -> None:
    """A group that commits by transactions: durably, and once in the report. A
    transaction continues from there."""
    _, copy = _copied_positions(tmp_path, "transactions")
    with logstore.open(copy) as store:
        (action,) = store.recovery_report.actions
        assert (action.label, action.first_offset) == ("position-lowered", 10)
        assert "'g' had the position 15" in action.message
    with logstore.open(copy) as store:
        assert not store.recovery_report.actions
    assert _position(copy) == 10
    _stored(copy, 4)
    _transacted(copy, 4, reset="error")
    assert _position(copy) == 14


def test_published_position_of_a_copy_stays_lowered_after_a_kill(
    tmp_path: Path,
) -> None:
    """It is durable before the first append."""
    _, copy = _copied_positions(tmp_path, "transactions")
    pid = os.fork()
    if not pid:
        try:
            store = logstore.open(copy)
            store.topic("t")[0].append_many([b"x"] * 9, durable=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert _position(copy) == 10
    with logstore.open(copy) as store:
        labels = [action.label for action in store.recovery_report.actions]
    assert "position-lowered" not in labels
    assert _position(copy) == 10


def _full(*args: object, **more: object) -> NoReturn:
    raise logstore.DiskFullError("no space left", errno=errno.ENOSPC)


@pytest.mark.parametrize("is_owned", [True, False])
@pytest.mark.parametrize("way", ["commits", "transactions"])
def test_log_of_a_copy_whose_position_cannot_be_lowered_takes_no_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, is_owned: bool
) -> None:
    """Appended records would be skipped. The other partitions are written to, and the
    next opening tries again, even if the directory had no owner file."""
    _, copy = _copied_positions(tmp_path, way)
    if not is_owned:
        (copy / ".logstore-owner").unlink()
    with monkeypatch.context() as full:
        full.setattr(GroupFile, "append", _full)
        full.setattr(Publisher, "amend", _full)
        store = logstore.open(copy)
    labels = {action.label for action in store.recovery_report.actions}
    assert "position-above-end" in labels
    assert "position-lowered" not in labels
    partition = store.topic("t")[0]
    with pytest.raises(logstore.StorageError, match="'g' has the position 15, above"):
        partition.append(b"skipped")
    with store.stage("spark", 1) as stage:
        stage.append_many(partition, [b"skipped"])
        staged = stage.finish()
    with pytest.raises(logstore.StorageError, match="cannot be lowered: no space"):
        store.publish(staged, identity="spark", sequence=1)
    assert partition.end_offset == 10
    store.create_topic("other").append(b"x", durable=True)
    assert partition.delete_before(2) == 2
    store.close()
    with logstore.open(copy) as again:
        labels = {action.label for action in again.recovery_report.actions}
        assert "position-lowered" in labels
        assert "position-above-end" not in labels
        assert again.topic("t").append(b"read").offset == 10
        if is_owned:
            assert again.topic("t")[0].start_offset == 2
    assert _position(copy) == 10
    with logstore.open(copy) as again:
        assert not again.recovery_report.actions


def test_position_whose_group_stands_still_holds_up_an_opening_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one wait for all groups together."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    shutil.copytree(data, copy)
    _stored(data)
    for number in range(3):
        _committed(data, 15, f"g{number}")
    for file in data.glob(".logstore-group-g?"):
        shutil.copy2(file, copy)
    monkeypatch.setattr(lowering, "_WAIT_S", 0.3)
    root = Directory.open_root(Files(), str(copy))
    members = [Slots(root, f".logstore-group-g{n}", f"g{n}") for n in (0, 1)]

    def opened() -> tuple[list[str], float]:
        before = time.monotonic()
        with logstore.open(copy) as store:
            took = time.monotonic() - before
            return [one.label for one in store.recovery_report.actions], took

    labels, took = members[0].locked(lambda: members[1].locked(opened, 0), 0)
    assert labels == ["position-above-end", "position-above-end", "position-lowered"]
    assert 0.3 <= took < 0.6
    assert opened()[0] == ["position-lowered"] * 2
    for member in members:
        member.close()


def test_copy_whose_positions_cannot_be_read_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any partition could have one above its end. A damaged file does not prevent it:
    its consumers raise the error."""
    _, copy = _copied_positions(tmp_path, "commits")
    before = _contents(copy)

    def denied(file: GroupFile) -> NoReturn:
        raise logstore.StorageError("permission denied", path=file.path)

    with monkeypatch.context() as patched:
        patched.setattr(GroupFile, "refresh", denied)
        with pytest.raises(logstore.StorageError, match="permission denied"):
            logstore.open(copy)
    assert {**_contents(copy), ".lock": b""} == {**before, ".lock": b""}
    data = bytearray((copy / ".logstore-group-g").read_bytes())
    data[30] ^= 1
    (copy / ".logstore-group-g").write_bytes(data)
    with logstore.open(copy) as store:
        store.topic("t").append(b"x")
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        _committed(copy, 3)


def test_transaction_from_before_a_copy_is_refused_after_its_positions_were_lowered(
    tmp_path: Path,
) -> None:
    """The lowered positions have a new sequence number."""
    data, copy = _copied_positions(tmp_path, "transactions")
    identity = "group:g"
    with logstore.open(data, read_only=True) as store:
        before = store.last_publication(identity)
    with logstore.open(copy) as store:
        after = store.last_publication(identity)
    assert before is not None
    assert after is not None
    assert after.sequence == before.sequence + 1


@pytest.mark.parametrize("way", ["commits", "transactions"])
def test_position_above_the_end_of_what_is_no_copy_is_out_of_range(
    tmp_path: Path, way: str
) -> None:
    """It is neither lowered nor skipped, before and after the log has grown past it."""
    data, copy = _copied_positions(tmp_path, way)
    # The owner file is settled; then the positions of the other store come.
    with logstore.open(copy) as store:
        store.topic("t").append(b"10")
    for name in (".logstore-group-g", ".logstore-published"):
        if (data / name).exists():
            shutil.copy2(data / name, copy)
    for read_only in (True, False):
        with logstore.open(copy, read_only=read_only) as store:
            with logstore.Consumer(store, group="g", reset="error") as consumer:
                consumer.assign([KEY])
                with pytest.raises(logstore.OffsetOutOfRangeError):
                    consumer.poll(timeout_ms=0)
    _stored(copy)
    with logstore.Consumer(copy, group="g", reset="error") as consumer:
        consumer.assign([KEY])
        with pytest.raises(logstore.OffsetOutOfRangeError):
            consumer.poll(timeout_ms=0)


def test_publication_without_its_records_is_unknown_for_a_read_only_store(
    tmp_path: Path,
) -> None:
    """The same sequences are known before and after the first opening for writing, and
    a repeated hand-in is refused."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    _stored(data)
    _published(data, 1)
    with logstore.open(data) as store, store.stage("spark", 2) as stage:
        shutil.copytree(data, copy)
        stage.append_many(store.topic("t")[0], [b"2"] * 3)
        store.publish(stage.finish(), identity="spark", sequence=2)
        shutil.copy2(data / ".logstore-publication", copy)
    before = _contents(copy)
    with logstore.open(copy, read_only=True) as store:
        assert store.published("spark") == 2
        assert len(list(store.topic("t")[0].read())) == 13
        assert _contents(copy) == before
        with store.stage("spark", 2) as stage:
            stage.append_many(store.topic("t")[0], [b"2"] * 3)
            staged = stage.finish()
        with pytest.raises(logstore.errors.PublicationUnknownError):
            store.submit(staged, identity="spark", sequence=2)
        assert store.published("spark") == 2
        assert len(list(store.topic("t")[0].read())) == 13
