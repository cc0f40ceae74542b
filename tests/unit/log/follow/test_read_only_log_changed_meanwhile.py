"""A log that changes between two steps of a look or a plan: the look ends, and a caller
gets an answer, or an error of logstore."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.errors import PartitionNotFoundError
from logstore.io.checkpoint import entries
from logstore.io.checkpoint.checkpoints import CLEAN_SHUTDOWN_TEXT
from logstore.io.files import Files
from logstore.io.layout import (
    CLEAN_SHUTDOWN,
    LOG_START_CHECKPOINT,
    PARTITION_STATE,
    RECOVERY_CHECKPOINT,
)
from logstore.io.stamps import LookNames
from logstore.log.follow.file_identity import LogFiles
from logstore.log.follow.followed import FollowedLog
from logstore.log.follow.loading import Loader
from logstore.store.opening import open_store
from support.broker import foreign
from support.changing_logs import Scene, put_back
from support.damage import FaultyFiles, FixedClock, Unsynced, frames, logs_in, overwrite
from support.levels import Steps, stride
from support.read_ways import COUNT, SIZE, WAYS, Pair, append, pairs_of
from support.values import config_of, fill, new_partition

EPOCHS = "leader-epoch-checkpoint"
STARTS = LOG_START_CHECKPOINT


def test_look_ends_if_the_epochs_change_after_a_damaged_log_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup is copied over the files of a broker, one after the other."""
    part, whole = broker_log(tmp_path, 100)
    log = logs_in(part)[0]
    os.truncate(log, frames(log)[10].pos)
    (tmp_path / RECOVERY_CHECKPOINT).write_text("0\n1\norders 0 50\n")
    (part / EPOCHS).write_text("0\n1\n0 0\n")
    load_after, loads = Loader.load_after, []

    def then_copy(self: Loader, *args: object) -> object:
        loads.append(load_after(self, *args))  # type: ignore[arg-type]
        if len(loads) == 1:
            with (part / EPOCHS).open("r+b") as file:
                file.write(b"0\n2\n0 0\n1 60\n")
        assert len(loads) < 5
        return loads[-1]

    with open_store(tmp_path, read_only=True) as reading:
        beside = reading.topic("orders")[0]
        end = beside.end_offset
        assert end == 50
        (tmp_path / RECOVERY_CHECKPOINT).write_text("0\n1\norders 0 100\n")
        (tmp_path / CLEAN_SHUTDOWN).write_bytes(CLEAN_SHUTDOWN_TEXT)
        damaged = bytearray(whole)
        damaged[frames_at(log, whole)[15] + 70] ^= 0xFF
        with log.open("r+b") as file:
            file.write(damaged)
        monkeypatch.setattr(Loader, "load_after", then_copy)
        for _ in range(50):
            assert beside.end_offset in (75, 100)
            if loads:
                break
            time.sleep(0.02)  # until the writer counts as quiet
        assert len(loads) == 2
        assert beside.end_offset == 100


def test_start_of_a_deleted_log_is_not_that_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes a topic, and creates it again, after its start was read."""
    store = tmp_path / "store"
    part, _ = broker_log(store, 60)
    new, _ = broker_log(tmp_path / "new", 80)
    (store / STARTS).write_text("0\n0\n")
    look = FollowedLog.look

    def then_anew(self: FollowedLog, *args: object) -> object:
        if not (tmp_path / "old").exists():
            part.rename(tmp_path / "old")
            (store / STARTS).write_text("0\n0\n")
            shutil.copytree(new, part)
        return look(self, *args)  # type: ignore[arg-type]

    with open_store(store, read_only=True) as reading:
        beside = reading.topic("orders")[0]
        assert (beside.start_offset, beside.end_offset) == (0, 60)
        (store / STARTS).write_text("0\n1\norders 0 50\n")
        monkeypatch.setattr(FollowedLog, "look", then_anew)
        assert (beside.start_offset, beside.end_offset) == (0, 80)


def test_deletion_within_an_examination_of_all_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        fill(new_partition(store), 20)
        examine = LogFiles.is_any_replaced

        def delete(self: LogFiles, segments: object) -> bool:
            store.delete_topic("orders")
            return examine(self, segments)  # type: ignore[arg-type]

        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            assert beside.end_offset == 20
            monkeypatch.setattr(LogFiles, "is_any_replaced", delete)
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                beside._log.refreshed(fully=True)


def test_damage_that_cannot_be_read_again_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        fill(new_partition(store, 2), 60)
    (tmp_path / CLEAN_SHUTDOWN).unlink()
    log = logs_in(tmp_path / "orders-0")[0]
    overwrite(log, frames(log)[5].pos + 70, b"\xff\xff\xff")
    files, record = FaultyFiles(), LogFiles.record_damage

    def fail(self: LogFiles, *args: object) -> None:
        files.fail("read", errno.EIO, times=1)
        record(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFiles, "record_damage", fail)
    with open_store(tmp_path, read_only=True, _files=files) as reading:
        beside = reading.topic("orders")[0]
        assert files.count("read")
        with pytest.raises(logstore.CorruptRecordError):
            list(beside.read())


def test_seal_at_the_end_of_a_state_says_nothing_new(tmp_path: Path) -> None:
    """The seal is an entry without content, which a later version may append."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = new_partition(store)
        fill(partition, 20)
        partition.roll()
        partition.flush()
        state = tmp_path / "orders-0" / PARTITION_STATE
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            assert beside.end_offset == 20
            data = state.read_bytes()
            _, end = entries.split_entries(data)
            state.write_bytes(data + entries.later_entry(end, b"[]"))
            assert beside.end_offset == 20


class StateInTicks(Files):
    """A file system with ticks of an hour, which gives a new state file the inode of an
    earlier one."""

    def look(self, dir_fd: int, name: str, names: LookNames) -> bytes:
        data = bytearray(super().look(dir_fd, name, names))
        if PARTITION_STATE in names.names:
            after = len(names.names) - names.names.index(PARTITION_STATE)
            now_ns = self.now_ms() * 1_000_000
            struct.pack_into("=Q2q", data, len(data) - 32 * after, 1, now_ns, now_ns)
        return bytes(data)

    def now_ms(self) -> int:
        return 1_700_000_000_000


def test_history_is_read_again_until_its_stamp_has_settled(tmp_path: Path) -> None:
    """The next cut may leave the stamp of the state file unchanged."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = new_partition(store)
        fill(partition, 20, call=10)
        partition.flush()
        partition.truncate_to(19)
        with open_store(tmp_path, read_only=True, _files=StateInTicks()) as reading:
            beside = reading.topic("orders")[0]
            for cut_to in (18, 17, 16):
                mark = beside.mark()
                partition.truncate_to(cut_to)
                assert beside.unchanged_below(mark) == cut_to


def test_deletion_in_the_tick_of_a_look_that_lasts_longer_is_seen_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker rolls, and deletes its first segment while a look reads: the directory
    has the same time, which is not recent any more when the look ends."""
    with open_store(tmp_path / "store", _files=Unsynced()) as store:
        fill(new_partition(store, 2, segment_bytes=2000), 100)
    part = foreign(tmp_path / "store")
    first, last = logs_in(part)[0], logs_in(part)[-1]
    for file in part.glob(f"{last.stem}*"):
        file.rename(tmp_path / file.name)
    files = FixedClock(int(time.time() * 1000))
    with open_store(tmp_path / "store", read_only=True, _files=files) as reading:
        partition = reading.topic("orders")[0]
        assert partition.start_offset == 0
        for file in tmp_path.glob(f"{last.stem}*"):
            file.rename(part / file.name)
        tick_ns = part.stat().st_mtime_ns
        files.now = tick_ns // 1_000_000 + 1
        assert partition.end_offset == 100
        read_last = FollowedLog._read_last

        def read_slowly(log: FollowedLog) -> bool:
            monkeypatch.undo()
            is_same = read_last(log)
            for file in part.glob(f"{first.stem}.*"):
                file.unlink()
            os.utime(part, ns=(tick_ns, tick_ns))
            files.now += 30
            return is_same

        monkeypatch.setattr(FollowedLog, "_read_last", read_slowly)
        assert partition.start_offset == 0
        assert not first.exists()
        assert partition.start_offset > 0


def broker_log(path: Path, count: int) -> tuple[Path, bytes]:
    """The directory of a broker's log, and the bytes of its one segment."""
    with open_store(path, _files=Unsynced()) as store:
        fill(new_partition(store, 2), count)
    part = foreign(path)
    return part, logs_in(part)[0].read_bytes()


def frames_at(log: Path, data: bytes) -> list[int]:
    """Positions of the batches of a log, by its bytes."""
    copy = log.with_name("copy")
    copy.write_bytes(data)
    return [frame.pos for frame in frames(copy)]


@pytest.mark.parametrize("way", ["read", "skip", "batches", "arrow", "fetch"])
@pytest.mark.parametrize("magic", [1, 2])
def test_read_right_behind_the_cut_of_a_failed_append_speaks_of_no_damage(
    tmp_path: Path, magic: int, way: str
) -> None:
    """The read comes before each call of the writer from the cut on."""
    steps = Steps()
    for nth in steps:
        with Scene(tmp_path / str(nth)) as scene:
            steps.total = _read_behind_a_cut(scene, magic, way, nth)
    assert steps.total >= 2


def _read_behind_a_cut(scene: Scene, magic: int, way: str, nth: int) -> int:
    """Read right before the n-th call from the cut on; return the number of calls."""
    files = FaultyFiles()
    p = scene.create(magic, files)
    for _ in range(COUNT // 100):
        p.append_many([b"x" * SIZE] * 100)
    with scene.reading() as reading:
        reader = reading.topic("orders")[0]
        records: Iterator[Pair] = iter(())
        left, end = -1, 0

        def look(method: str, name: str) -> None:
            nonlocal left, end, records
            if left < 0 and method == "truncate" and name.endswith(".log"):
                end, left = reader.end_offset, nth
                records = iter(()) if way == "fetch" else WAYS[way](reader)
            left -= left > 0
            if left == 0 and end:
                want, end = list(range(end)), 0
                with contextlib.suppress(OffsetOutOfRangeError):
                    if way == "fetch":
                        got = [record.offset for record in reader.fetch(COUNT, 1 << 24)]
                        assert got in ([], want[COUNT:])
                    else:
                        assert [offset for offset, _ in records] == want

        files.forget()
        files.before = look
        files.fail("write", errno.EIO, name=".log", times=1, done=True)
        with pytest.raises(logstore.StorageError):
            p.append_many([b"z" * 500] * 700)
        files.before = None
        methods = [call[0] for call in files.calls]
        assert list(reader.read(COUNT - 1)) == list(p.read(COUNT - 1))
        return len(methods) - methods.index("truncate")


def test_cut_that_a_backup_undoes_within_a_look_gives_no_mixture(
    tmp_path: Path,
) -> None:
    """The log is cut and grows to its former size; a reader has read that, and before
    it looks again the known log is restored. The change in between does not count."""
    old = [b"old"] * 15
    logs = [old, [*old[:5], *[b"mid"] * 10], [*old, *[b"new"] * 12]]
    for at in itertools.count(1, stride(4)):
        with Scene(tmp_path / f"{at}") as scene:
            scene.saved(15)
            scene.store.close()
            files, calls = FaultyFiles(), itertools.count(1)
            steps = ["state", "cut", "restore"]

            def step(
                method: str,
                name: str,
                scene: Scene = scene,
                steps: list[str] = steps,
                calls: Iterator[int] = calls,
            ) -> None:
                if steps[0] == "state":
                    if (method, name) == ("read", ".logstore-state"):
                        del steps[0]
                elif steps[0] == "cut":
                    # After the state, which has no cut.
                    p = scene.open_partition()
                    p.truncate_to(5)
                    append(p, b"mid", 10)
                    del steps[0]
                elif next(calls) == at:  # noqa: B023
                    scene.store.close()
                    put_back(scene.backup, scene.path, "restored")
                    append(scene.open_partition(), b"new", 12)

            with scene.reading(_files=files) as reading:
                p = reading.topic("orders")[0]
                assert len(list(p.read())) == 15
                found = list[Pair]()
                # So that the state is read again.
                (scene.partition_path / "other").touch()
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


def _delete(store: logstore.Store) -> None:
    store.delete_topic("orders")


def _grow(store: logstore.Store) -> None:
    store.topic("orders").add_partitions(1)


def _create(store: logstore.Store) -> None:
    store.create_topic("others", partitions=2)


@pytest.mark.parametrize("opens", [True, False], ids=["opens", "follows"])
@pytest.mark.parametrize("change", [_delete, _grow, _create])
def test_topics_that_come_and_go_beside_a_reader_are_there_or_not(
    tmp_path: Path, change: Callable[[logstore.Store], None], opens: bool
) -> None:
    """None of their partitions is ever taken for lost, whenever it looks."""
    steps = Steps()
    for nth in steps:
        files, path = FaultyFiles(), tmp_path / str(nth)
        with open_store(path, _files=Unsynced()) as store:
            config = config_of(1, file_delete_delay_ms=0)
            store.create_topic("orders", partitions=2, config=config)[0].append(b"x")

            do = functools.partial(change, store)
            with contextlib.ExitStack() as stack:
                if opens:
                    files.at_call(nth, do)
                reading = stack.enter_context(
                    open_store(path, read_only=True, _files=files)
                )
                if not opens:
                    assert reading.topics() == ["orders"]
                    store.create_topic("between")
                    files.forget()
                    files.at_call(nth, do)
                for topic in reading.topics():
                    with contextlib.suppress(
                        logstore.TopicNotFoundError, PartitionNotFoundError
                    ):
                        for partition in reading.topic(topic).partitions:
                            assert len(list(partition.read())) <= 1
                steps.total = len(files.calls)
                files.before = None
                assert reading.topics() == store.topics()
                for topic in store.topics():
                    assert len(reading.topic(topic)) == len(store.topic(topic))
                assert not reading.recovery_report
    assert steps.total >= 8
