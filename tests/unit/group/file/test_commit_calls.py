"""A commit made in one native call equals one made step by step."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import logstore
from logstore import TopicPartition
from logstore import _native as native
from logstore.broker.kafka_records import OffsetCommit
from logstore.group.file import batches as batches_module
from logstore.group.file import slots as slots_module
from logstore.group.file.batches import Batches
from logstore.group.file.durable_point import FileId
from logstore.io.files import Files
from logstore.io.layout import OFFSET_MAX
from support.disk import MemoryDisk
from support.groups import T0, T1, OneMember, offset_in, store_with

NAME = ".logstore-group-g"


class ByCall(Files):
    """System calls of a group's files, one by one, since one of them is replaced."""

    def sync(self, fd: int) -> None:
        super().sync(fd)


class Recorded(Files):
    """Records commits made in one call, which begin before the append: the number of
    calls with the right result."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def make_steps(
        self, steps: native.Steps, end: int, begin: int = 0
    ) -> tuple[int, OSError | None]:
        done, error = steps.make(end, begin)
        if begin <= 1:
            self.made.append(done)
        return done, OSError(error, os.strerror(error)) if error else None


def file_id(one: OneMember) -> FileId:
    assert one.file._log._file is not None
    return one.file._log._file.id


def commit_of(offset: int, key: TopicPartition = T0) -> list[OffsetCommit]:
    return [OffsetCommit("g", *key, offset, commit_ms=1)]


@pytest.fixture
def files() -> Recorded:
    return Recorded()


@pytest.fixture
def one(tmp_path: Path, files: Recorded) -> Iterator[OneMember]:
    """A member that has committed durably."""
    member = OneMember(tmp_path, files=files)
    member.commit(0, durable=True)
    yield member
    member.close()


def test_second_commit_is_made_in_one_call(one: OneMember, files: Recorded) -> None:
    """This holds with and without a sync; the first commit creates the file."""
    one.commit(1, durable=True)
    one.commit(2)
    one.commit(3, durable=True)
    assert files.made == [11, 6, 11]
    assert one.slots.point.now().size == one.file.end.size


@pytest.mark.parametrize("kind", [Files, ByCall])
def test_both_ways_write_the_same(tmp_path: Path, kind: type[Files]) -> None:
    """The bytes of both files are the same, except for the times."""
    found = []
    for at_once in (False, True):
        path = tmp_path / f"{at_once}"
        path.mkdir()
        files = kind()
        vars(files)["now_ms"] = lambda: 5
        one = OneMember(path, files=files if kind is ByCall else None)
        one.file._batches._files = files
        one.at_once = at_once
        for offset in range(20):
            one.commit(offset, (T0, T1)[offset % 2], durable=offset % 3 == 0)
        point = one.slots.point.now()
        found.append(((path / NAME).read_bytes(), point.size, point.is_of_this_boot))
        assert one.slots.take(3)
        assert point.file == file_id(one)
        one.close()
    assert found[0] == found[1]


def test_what_another_member_did_is_read_first(
    one: OneMember, files: Recorded, tmp_path: Path
) -> None:
    """Its batch is not overwritten, and its locks are waited for."""
    other = OneMember(tmp_path)
    other.commit(7, T1, durable=True)
    assert not one.file.append_at_once(one.slots, commit_of(1), durable=True)
    assert files.made == [3]
    one.commit(1, durable=True)
    assert offset_in(tmp_path) == 1
    assert offset_in(tmp_path, T1) == 7
    assert other.slots.point.take_turn()
    # Another member has the turn: the append counts, and the sync waits for it.
    assert one.file.append_at_once(one.slots, commit_of(2), durable=False)
    other.slots.point.end_turn()

    def held() -> None:
        before = len(files.made)
        assert not one.file.append_at_once(one.slots, commit_of(3), durable=False)
        assert files.made[before:] == [1]

    other.slots.locked(held, 1)
    other.close()
    assert offset_in(tmp_path) == 2


def test_end_of_the_file_that_is_not_looked_at_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: any size of the file is accepted, and commits are lost."""

    def commit_in_turn(path: Path) -> list[int | None]:
        path.mkdir()
        one, two = OneMember(path), OneMember(path)
        for offset in range(10):
            one.commit(offset, T0)
            two.commit(offset, T1)
        one.commit(10, T0)
        return [offset_in(path, T0), offset_in(path, T1)]

    assert commit_in_turn(tmp_path / "right") == [10, 9]

    def set_append(self: native.Steps, number: int, data: bytes, pos: int) -> None:
        self.set_bytes(number + 1, data, pos)

    monkeypatch.setattr(native.Steps, "set_append", set_append)
    try:
        found: object = commit_in_turn(tmp_path / "wrong")
    except logstore.LogStoreError as error:
        found = error
    assert found != [10, 9]


def test_taken_turn_and_changed_point_are_synced_step_by_step(
    one: OneMember, files: Recorded, tmp_path: Path
) -> None:
    """Either one shows that another member syncs; the commit is durable in the end."""
    other = OneMember(tmp_path)
    size = one.file.end.size
    other.slots.point.set(file_id(one), size - 1)
    one.commit(1, durable=True)
    assert one.slots.point.now().size == one.file.end.size > size
    one.commit(2, durable=True)
    other.slots.point.set(file_id(one), one.file.end.size - 1)
    one.commit(3, durable=True)
    assert files.made[-2:] == [0, 11]  # the point was read again
    assert one.slots.point.now().size == one.file.end.size
    one.commit(4, durable=True)
    assert files.made[-1] == 11
    assert other.slots.point.take_turn()  # it was given back
    other.close()


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_point_that_changes_meanwhile_is_read_again(
    tmp_path: Path, is_doubtful: bool
) -> None:
    """It happens between the append and the turn to sync: the commit counts, and is
    durable, or an error reports that it may not be."""

    class Changing(Files):
        def lock_byte(self, fd: int, pos: int) -> bool:
            if self.changes and pos == slots_module._SYNC:
                self.changes = False
                point, id_of = other.slots.point, file_id(one)
                point.set(id_of, one.file.end.size - 1)
                if is_doubtful:
                    point.doubt(id_of)
            return super().lock_byte(fd, pos)

        changes = False

    files = Changing()
    one, other = OneMember(tmp_path, files=files), OneMember(tmp_path)
    one.commit(0, durable=True)
    one.commit(1, durable=True)
    files.changes = True
    if is_doubtful:
        with pytest.raises(logstore.errors.SyncFailedError):
            one.commit(2, durable=True)
    else:
        one.commit(2, durable=True)
        assert one.slots.point.now().size == one.file.end.size
    assert not files.changes
    assert offset_in(tmp_path) == 2
    one.commit(3, durable=True)
    point = one.slots.point.now()
    assert (point.size, point.is_doubtful) == (one.file.end.size, False)
    one.close()
    other.close()


def test_point_of_another_file_is_not_written(one: OneMember, tmp_path: Path) -> None:
    """Then the sync makes the right file durable first."""
    other = OneMember(tmp_path)
    other.slots.point.set(file_id(one)._replace(inode=3), 5, is_new=True)
    for offset in (1, 2):
        one.commit(offset, durable=True)
        point = one.slots.point.now()
        assert (point.file, point.size) == (file_id(one), one.file.end.size)
    other.close()


@pytest.mark.parametrize("name", [NAME, f"{NAME}.lock"])
def test_replaced_file_is_found(one: OneMember, tmp_path: Path, name: str) -> None:
    """The file with the name counts."""
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    (tmp_path / "filler").touch()
    (tmp_path / name).write_bytes(data)
    assert not one.file.append_at_once(one.slots, commit_of(1), durable=True)
    (tmp_path / name).unlink()
    assert not one.file.append_at_once(one.slots, commit_of(1), durable=True)
    if name != NAME:
        with pytest.raises(logstore.errors.FencedError, match="removed or replaced"):
            one.commit(1)


@pytest.mark.parametrize(
    ("call", "name", "nth", "error"),
    [
        ("lock_byte", f"{NAME}.lock", 1, logstore.StorageError),
        ("lock_byte", f"{NAME}.lock", 2, None),
        ("stat_name", f"{NAME}.lock", 1, logstore.StorageError),
        ("stat_name", NAME, 1, logstore.StorageError),
        ("write", NAME, 1, logstore.StorageError),
        ("write", f"{NAME}.lock", 1, None),
        ("unlock_byte", f"{NAME}.lock", 1, None),
        ("unlock_byte", f"{NAME}.lock", 2, None),
        ("read", f"{NAME}.lock", 1, logstore.StorageError),
        ("sync", NAME, 1, logstore.errors.SyncFailedError),
    ],
)
def test_refused_call_is_a_named_error_and_leaves_no_lock(
    call: str, name: str, nth: int, error: type[logstore.StorageError] | None
) -> None:
    """After a failure of any call after the append, the commit counts, and the rest is
    tried again step by step."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    for offset in range(2):
        one.commit(offset, durable=True)
    disk.fail(call, errno.EIO, name=name, nth=nth, times=1)
    if error is None:
        assert one.file.append_at_once(one.slots, commit_of(2), durable=True)
        assert one.slots.point.now().size == one.file.end.size
    else:
        with pytest.raises(error) as caught:
            one.file.append_at_once(one.slots, commit_of(2), durable=True)
        assert f"/store/{name}: " in f"{caught.value}: "
        assert type(caught.value) is error
    disk.heal()
    other = OneMember("/store", files=disk.process())
    assert other.slots.point.take_turn()
    other.slots.point.end_turn()
    found = other.slots.locked(lambda: other.offset(), 0)
    assert found == one.offset()
    assert found == (2 if error in (None, logstore.errors.SyncFailedError) else 1)
    other.commit(3, durable=True)
    one.commit(4, durable=True)
    assert other.offset() == 4


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("count", range(12))
def test_interrupt_leaves_no_lock(
    one: OneMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It comes after the given number of calls, before their result is known."""

    def interrupted(
        files: Files, steps: native.Steps, end: int, begin: int = 0
    ) -> NoReturn:
        steps.make(min(count, end), begin)
        raise Interrupted

    one.commit(1, durable=True)
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "make_steps", interrupted)
        with pytest.raises(Interrupted):
            one.file.append_at_once(one.slots, commit_of(2), durable=True)
    other = OneMember(tmp_path)
    assert other.slots.locked(lambda: other.offset(), 0) == (2 if count > 4 else 1)
    assert other.slots.point.take_turn()
    other.slots.point.end_turn()
    one.commit(3, durable=True)
    assert other.offset() == 3
    other.close()


@pytest.mark.parametrize("count", [-1, 4, 5])
def test_append_under_the_mutex_that_is_interrupted_is_taken_back(
    one: OneMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It was not acknowledged, whether written in part or as a whole."""

    def interrupted(
        files: Files, steps: native.Steps, end: int, begin: int = 0
    ) -> NoReturn:
        if count < 0:
            data = steps[begin]
            assert data.kind == native.STEP_WRITE
            one.root.files.write(data.fd, data.data[:30], data.pos)
        else:
            steps.make(min(count, end), begin)
        raise Interrupted

    one.at_once = False
    size = one.file.end.size
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "make_steps", interrupted)
        with pytest.raises(Interrupted):
            one.commit(1)
    assert (tmp_path / NAME).stat().st_size == size
    assert offset_in(tmp_path) == 0
    one.commit(2)
    assert offset_in(tmp_path) == 2


def test_sync_with_the_turn_that_is_interrupted_is_known_to_all(
    one: OneMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown whether the sync has failed."""

    def interrupted(
        files: Files, steps: native.Steps, end: int, begin: int = 0
    ) -> NoReturn:
        raise Interrupted

    one.at_once = False
    one.commit(1)
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "make_steps", interrupted)
        with pytest.raises(Interrupted):
            one.file.sync(one.slots, one.file.end)
    other = OneMember(tmp_path)
    assert other.slots.point.now().is_doubtful
    assert other.slots.point.take_turn()
    other.slots.point.end_turn()
    # The next append rewrites the file.
    other.commit(2, durable=True)
    assert not other.slots.point.now().is_doubtful
    assert offset_in(tmp_path) == 2
    other.close()


def test_file_that_is_large_enough_is_written_anew(
    one: OneMember, files: Recorded, tmp_path: Path
) -> None:
    """The commit is made step by step."""
    one.file._rewrite_at = one.file.end.size + 100
    one.commit(1, durable=True)
    assert files.made == []
    one.commit(2, durable=True)
    assert offset_in(tmp_path) == 2


def test_batch_is_the_same_as_from_the_encoder() -> None:
    """This holds even if it was derived from the previous batch."""
    rng = random.Random(1)
    files = Files()
    vars(files)["now_ms"] = lambda: now
    kept = Batches(files)
    for number in range(300):
        now = rng.choice([-1, 0, 1, rng.randrange(1 << 42)])
        commit = OffsetCommit(
            "g",
            rng.choice("tu"),
            rng.randrange(3),
            rng.choice([0, rng.randrange(1 << 63)]),
            rng.choice([-1, 7]),
            "m" * rng.choice([0, 0, 3, 130, 2000]),
            rng.randrange(1 << 42),
            None,
            rng.choice([None, "ab" * 16]),
        )
        items = kept.items("g", [commit])
        assert kept.batch(items, number) == Batches(files).batch(items, number)
    sizes = [len(data) for data, _ in kept._last.values()]
    assert sizes
    assert max(sizes) <= batches_module._KEPT_BYTES_MAX


def test_commit_of_an_offset_is_the_same_as_of_an_item(tmp_path: Path) -> None:
    """The bytes of the file, and the state of the member, are the same; commits that
    need several steps are declined."""
    found = []
    for plain in (False, True):
        path = tmp_path / f"{plain}"
        path.mkdir()
        files = Files()
        vars(files)["now_ms"] = lambda: 5
        one = OneMember(path, files=files)
        assert not one.file.commit_at_once(one.slots, T0, 0, "", None, durable=True)
        one.commit(0, durable=True)
        for offset in range(1, 20):
            key, durable = (T0, T1)[offset % 2], offset % 3 == 0
            proof = offset if offset % 4 else None
            if plain:
                assert one.file.commit_at_once(
                    one.slots, key, offset, "ab" * 16, proof, durable=durable
                )
            else:
                commit = OffsetCommit(
                    "g", *key, offset, -1, "", 5, None, "ab" * 16, proof
                )
                assert one.file.append_at_once(one.slots, [commit], durable=durable)
        found.append(((path / NAME).read_bytes(), one.file.commits()))
        assert one.offset() == 18
        assert one.offset(T1) == 19
        for name, value in (("last_offset", OFFSET_MAX - 1), ("end_pos", 1 << 20)):
            before = getattr(one.file._log, name)
            setattr(one.file._log, name, value)
            assert not one.file.commit_at_once(one.slots, T0, 0, "", None, durable=True)
            setattr(one.file._log, name, before)
        one.close()
    assert found[0] == found[1]


def test_only_so_many_batches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even for a group with very many partitions."""
    monkeypatch.setattr(batches_module, "_KEYS_MAX", 3)
    one = Batches(Files())
    for number in range(10):
        (item,) = one.items("g", commit_of(1, TopicPartition("t", number)))
        assert one.batch([item], 0)
        assert len(one._last) <= 3
        assert len(one._keys) <= 3


def test_consumer_commits_at_once(tmp_path: Path) -> None:
    """Its second commit, of one partition or of several."""
    path = store_with(tmp_path / "store")
    with logstore.Consumer(path, group="g", topics=["t"], reset="earliest") as one:
        one.poll()
        one.commit()
        assert one._core.place.member is not None
        file = one._core.place.member.group.file
        made = []
        calls = native.Steps.make

        class Seen(native.Steps):
            def make(self, end: int, begin: int = 0) -> tuple[int, int]:
                result = calls(self, end, begin)
                made.append(result)
                return result

        one.commit({T0: 1})
        assert file._log._calls is not None
        steps = file._log._calls.steps
        seen = Seen([steps[number] for number in range(len(steps))])
        file._log._calls.steps = seen
        one.commit({T0: 2, T1: 3})
        one.commit({T0: 4}, durable=False)
        assert made == [(11, 0), (6, 0)]
    assert offset_in(path) == 4
    assert offset_in(path, T1) == 3
