"""A log that is created again, or goes back to a backup, under a reader: it is another
log, and the reader is never given records of both."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore import OffsetOutOfRangeError
from logstore.errors import PartitionNotFoundError
from logstore.io.directory import Directory
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.levels import stride
from support.read_ways import COUNT, SIZE, WAYS, Pair, append, pairs_of
from support.values import config_of


@pytest.mark.parametrize("way", [*WAYS])
def test_log_that_was_made_anew_in_the_same_place_is_another_one(
    tmp_path: Path, way: str
) -> None:
    """The topic is deleted and created again between two looks of a reader in another
    process."""
    with (
        open_store(tmp_path, _files=Unsynced()) as store,
        open_store(tmp_path, read_only=True) as reading,
    ):
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", COUNT)
        records = WAYS[way](reading.topic("orders")[0])
        found = list(itertools.islice(records, 10))
        store.delete_topic("orders")
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"new", 2 * COUNT)
        with pytest.raises(PartitionNotFoundError):
            for pair in records:
                found.append(pair)
        assert {value[:3] for _, value in found} == {b"old"}
        anew = WAYS[way](reading.topic("orders")[0])
        assert next(anew)[1][:3] == b"new"


@pytest.mark.parametrize("way", ["read", "follow"])
def test_id_in_the_state_tells_a_log_from_one_in_a_directory_of_the_same_number(
    tmp_path: Path, way: str
) -> None:
    files = FaultyFiles()
    with (
        open_store(tmp_path, _files=Unsynced()) as store,
        open_store(tmp_path, read_only=True, _files=files) as reading,
    ):
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", COUNT)
        p.flush()
        reader = reading.topic("orders")[0]
        log: Any = reader._log
        records = WAYS[way](reader)
        found = list(itertools.islice(records, 10))
        store.delete_topic("orders")
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"new", 2 * COUNT)
        p.flush()
        info = log.directory.info()
        # As if the directory were the same.
        followed = log._log
        place = info.device, info.inode
        followed._stamp = followed._stamp._replace(directory_id=place)
        with pytest.raises(PartitionNotFoundError, match="another topic"):
            found += records
        assert {value[:3] for _, value in found} == {b"old"}


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
@pytest.mark.parametrize("way", ["read", "batches", "follow"])
def test_backup_that_is_put_back_under_a_reader_gives_no_mixture(
    tmp_path: Path, way: str, how: str
) -> None:
    """The log returns to the backup, and continues with other records."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with open_store(path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", 500)
    shutil.copytree(path, backup)
    with open_store(path, _files=Unsynced()) as store:
        append(store.topic("orders")[0], b"old", COUNT)
    with open_store(path, read_only=True) as reading:
        records = WAYS[way](reading.topic("orders")[0])
        found = list(itertools.islice(records, 1000))
        for file in backup.rglob("*"):
            to = path / file.relative_to(backup)
            if not file.is_file():
                continue
            if how == "replaced":
                temporary = to.with_name(".putting-back")
                shutil.copy2(file, temporary)
                temporary.rename(to)
            else:
                to.write_bytes(file.read_bytes())
        with open_store(path, _files=Unsynced()) as store:
            p = store.topic("orders")[0]
            assert p.end_offset == 500
            append(p, b"new", 2 * COUNT)
            p.flush()
        with pytest.raises((OffsetOutOfRangeError, PartitionNotFoundError)):
            for pair in records:
                found.append(pair)
        offsets = [offset for offset, _ in found]
        assert offsets == list(range(len(found)))
        assert {value[:3] for _, value in found} == {b"old"}


@pytest.mark.parametrize("age_s", [0, 0.2])
def test_backup_from_before_a_deletion_at_the_start_is_another_log(
    tmp_path: Path, age_s: float
) -> None:
    """The backup is written over the existing files; only the start shows it: the start
    falls. The directory's time, which is unchanged, is trusted if it is of some age."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with open_store(path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(2))[0]
        append(p, b"old", 10)
        p.flush()
    shutil.copytree(path, backup)
    with open_store(path, _files=Unsynced()) as store:
        store.topic("orders")[0].delete_before(4)
    time.sleep(age_s)
    with open_store(path, read_only=True) as reading:
        p = reading.topic("orders")[0]
        assert p.start_offset == 4
        for file in backup.rglob("*"):
            if file.is_file():
                (path / file.relative_to(backup)).write_bytes(file.read_bytes())
        with open_store(path, _files=Unsynced()) as store:
            append(store.topic("orders")[0], b"new", 1)
            assert p.start_offset == 0
            assert [record.offset for record in p.read()] == list(range(11))


def restore(backup: Path, path: Path) -> None:
    """Copy a backup over the existing files: they keep their inodes, and get the times
    and sizes of the backup."""
    for file in path.rglob("*.log"):
        if not (backup / file.relative_to(path)).exists():
            file.unlink()
    for file in backup.rglob("*"):
        if file.is_file():
            shutil.copy2(file, path / file.relative_to(backup))


@contextlib.contextmanager
def grown(
    path: Path, value: bytes, count: int, *, size: int = SIZE, cut_to: int | None = None
) -> Iterator[None]:
    """Open a store that is closed, perhaps cut its log, append; it stays open: only the
    log shows its growth."""
    with open_store(path, _files=Unsynced()) as store:
        p = store.topic("orders")[0]
        if cut_to is not None:
            p.truncate_to(cut_to)
        append(p, value, count, size=size)
        yield


def saved_and_killed(tmp_path: Path, saved: int, more: int) -> tuple[Path, Path]:
    """Return a store as after a kill, and a backup of it without its last records."""
    live, path, backup = tmp_path / "live", tmp_path / "store", tmp_path / "backup"
    with open_store(live, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", saved)
        p.flush()
        shutil.copytree(live, backup)
        append(p, b"old", more)
        shutil.copytree(live, path)
    return path, backup


@pytest.mark.parametrize("way", ["read", "batches", "arrow", "follow"])
def test_backup_with_the_same_state_gives_no_mixture(tmp_path: Path, way: str) -> None:
    """No state was written between the backup and the lost records, and files without a
    change since then are not copied back: only the log and the mark of its writer
    change."""
    path, backup = saved_and_killed(tmp_path, 500, COUNT)
    state, log = "orders-0/.logstore-state", f"orders-0/{0:020d}.log"
    with open_store(path, read_only=True) as reading:
        records = WAYS[way](reading.topic("orders")[0])
        found = list(itertools.islice(records, 1000))
        assert (path / state).read_bytes() == (backup / state).read_bytes()
        (path / log).write_bytes((backup / log).read_bytes())
        with grown(path, b"new", 2 * COUNT):
            with pytest.raises((OffsetOutOfRangeError, PartitionNotFoundError)):
                for pair in records:
                    found.append(pair)
            assert {value[:3] for _, value in found} == {b"old"}
            after = [(r.value or b"")[:3] for r in reading.topic("orders")[0].read()]
            assert after == [b"old"] * 500 + [b"new"] * 2 * COUNT


def test_backup_that_grows_to_the_size_that_was_lost_is_seen(tmp_path: Path) -> None:
    """Only the mark of its writer shows the change: the file has its former length, and
    the names and times of the directory are the same."""
    path, backup = saved_and_killed(tmp_path, 5, 10)
    log = f"orders-0/{0:020d}.log"
    size = (path / log).stat().st_size
    framing = size // 15 - SIZE
    time.sleep(0.05)  # separates the times of earlier and later changes
    with open_store(path, read_only=True) as reading:
        p = reading.topic("orders")[0]
        assert p.end_offset == 15
        (path / log).write_bytes((backup / log).read_bytes())
        with grown(path, b"new", 5, size=2 * SIZE + framing):
            assert (path / log).stat().st_size == size
            assert p.end_offset == 10
            assert [(r.value or b"")[:3] for r in p.read()] == [b"old"] * 5 + [
                b"new"
            ] * 5


def test_file_that_is_written_over_with_its_old_time_is_another(tmp_path: Path) -> None:
    """A copy may keep times: inode, size and time are the same."""
    (tmp_path / "file").write_bytes(b"old")
    directory = Directory.open_root(Unsynced(), str(tmp_path))
    before, info = directory.stamp("file"), (tmp_path / "file").stat()
    time.sleep(0.05)
    (tmp_path / "file").write_bytes(b"new")
    os.utime(tmp_path / "file", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert directory.stamp("file") != before
    directory.close()


def backed_up(path: Path, segment_bytes: int) -> tuple[Path, Path]:
    """A closed store with 15 records, and its backup, from when it had 5."""
    store_path, backup = path / "first", path / "backup"
    config = config_of(1, segment_bytes=segment_bytes)
    with open_store(store_path, _files=Unsynced()) as store:
        append(store.create_topic("orders", config=config)[0], b"old", 5)
    shutil.copytree(store_path, backup)
    with grown(store_path, b"old", 10):
        pass
    return store_path, backup


def logs_of(middle: tuple[int, bytes, int], last: int) -> list[list[bytes]]:
    """First bytes of each value, for three versions of the log: the first one, the
    second (cut to, grown by, how many), and the last backup after its growth."""
    cut_to, value, count = middle
    old = [b"old"] * 15
    return [old, [*old[:cut_to], *[value] * count], [*old[:5], *[b"new"] * last]]


@pytest.mark.parametrize(
    ("between", "size", "segment_bytes"),
    [
        ("restored", 300, 1 << 20),
        ("restored", 340, 1 << 20),  # the batches of the two lie at other places
        ("restored", 300, 1_500),
        ("cut", 300, 1 << 20),
        ("appended", 300, 1 << 20),
    ],
)
def test_backup_that_is_put_back_at_any_call_of_a_look_gives_no_mixture(
    tmp_path: Path, between: str, size: int, segment_bytes: int
) -> None:
    """The reader looks at a log that was changed, so it loads it again; before each of
    its calls a backup is copied over the files, which then grow again. It returns
    records of one log, and a later look sees all of the last one."""
    last = 12
    first, backup = backed_up(tmp_path, segment_bytes)
    cut_to = {"restored": 5, "cut": 2, "appended": 15}[between]
    logs = logs_of((cut_to, b"mid", 7), last)
    for at in itertools.count(1, stride(13)):
        path = tmp_path / f"{at}"
        shutil.copytree(first, path)
        files, calls = FaultyFiles(), itertools.count(1)
        opened = contextlib.ExitStack()

        def step(method: str, name: str) -> None:
            if next(calls) == at:  # noqa: B023
                opened.close()  # noqa: B023
                restore(backup, path)  # noqa: B023
                opened.enter_context(grown(path, b"new", last))  # noqa: B023

        with opened, open_store(path, read_only=True, _files=files) as reading:
            p = reading.topic("orders")[0]
            found, records = list[Pair](), iter(list[Pair]())
            if between == "appended":
                # The read is in the middle of the log; otherwise it begins with the
                # look.
                records = pairs_of(p.follow(timeout=0))
                found += itertools.islice(records, 15)
            if between == "restored":
                restore(backup, path)
            cut = cut_to if between == "cut" else None
            opened.enter_context(grown(path, b"mid", 7, size=size, cut_to=cut))
            files.before = step
            with contextlib.suppress(OffsetOutOfRangeError, PartitionNotFoundError):
                if between != "appended":
                    records = pairs_of(p.follow(timeout=0))
                for pair in records:
                    found.append(pair)
            files.before = None
            values = [value[:3] for _, value in found]
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert any(values == log[: len(values)] for log in logs)
            if next(calls) <= at:
                break  # no such call was left
            assert [(r.value or b"")[:3] for r in p.read()] == logs[-1]
            assert p.segments[-1].next_offset == len(logs[-1])
    assert at > 10


def test_cut_that_a_backup_undoes_within_a_look_gives_no_mixture(
    tmp_path: Path,
) -> None:
    """The log is cut and grows to its former size; a reader has read that, and before
    it looks again the known log is restored. The change in between does not count."""
    first, last = tmp_path / "first", 12
    with open_store(first, _files=Unsynced()) as store:
        append(store.create_topic("orders", config=config_of(1))[0], b"old", 15)
    old = [b"old"] * 15
    logs = [old, [*old[:5], *[b"mid"] * 10], [*old, *[b"new"] * last]]
    for at in itertools.count(1, stride(4)):
        path = tmp_path / f"{at}"
        shutil.copytree(first, path)
        files, calls, steps = (
            FaultyFiles(),
            itertools.count(1),
            ["state", "cut", "restore"],
        )
        opened = contextlib.ExitStack()

        def step(method: str, name: str) -> None:
            if steps[0] == "state":  # noqa: B023
                if (method, name) == ("read", ".logstore-state"):
                    del steps[0]  # noqa: B023
            elif steps[0] == "cut":  # noqa: B023
                # After the state, which has no cut.
                opened.enter_context(grown(path, b"mid", 10, cut_to=5))  # noqa: B023
                del steps[0]  # noqa: B023
            elif steps[0] == "restore" and next(calls) == at:  # noqa: B023
                opened.close()  # noqa: B023
                restore(first, path)  # noqa: B023
                opened.enter_context(grown(path, b"new", last))  # noqa: B023

        with opened, open_store(path, read_only=True, _files=files) as reading:
            p = reading.topic("orders")[0]
            assert len(list(p.read())) == 15
            found = list[Pair]()
            (path / "orders-0" / "other").touch()  # so that the state is read again
            files.before = step
            with contextlib.suppress(OffsetOutOfRangeError, PartitionNotFoundError):
                for pair in pairs_of(p.follow(timeout=0)):
                    found.append(pair)
            files.before = None
            assert steps == ["restore"]
            values = [value[:3] for _, value in found]
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert any(values == log[: len(values)] for log in logs)
            if next(calls) <= at:
                break  # no such call was left
            assert [(r.value or b"")[:3] for r in p.read()] == logs[-1]
    assert at > 10
