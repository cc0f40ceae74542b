"""The swap of compacted segments: after a power cut at any moment of it, after any call
that fails, and during reads, truncations and closes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import open_quietly
from logstore import Partition, Store, TopicConfig
from logstore.errors import StoreClosedError
from logstore.io.directory import Directory
from logstore.io.layout import CLEANED, LOG, SWAP, segment_file
from logstore.log.write.replacement import Replacement
from logstore.store.opening import open_store
from support.damage import FaultyFiles
from support.disk import MemoryDisk
from support.levels import some
from support.power_cut import cuts

CONFIG = TopicConfig(
    cleanup_policy="compact",
    message_format=2,
    segment_bytes=400,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
)


def made(store: Store, rounds: int = 6, config: TopicConfig = CONFIG) -> Partition:
    """A topic with several sealed segments, in which most records are superseded."""
    partition = store.create_topic("t", config=config)[0]
    for number in range(rounds):
        for key in range(5):
            partition.append(b"%d-%d" % (key, number) + b"." * 20, b"k%d" % key)
        partition.append(b"only-%d" % number, b"once-%d" % number)
    partition.roll()
    partition.append(b"last", b"k0", durable=True)
    return partition


def newest(partition: Partition) -> dict[bytes | None, bytes | None]:
    """The last value of each key, of offsets that rise."""
    found: dict[bytes | None, bytes | None] = {}
    before = -1
    for record in partition.read():
        assert record.offset > before
        before = record.offset
        found[record.key] = record.value
    return found


def test_compaction_that_a_power_cut_ends_leaves_the_last_record_of_each_key() -> None:
    """The log has the old segments, or the new ones, takes appends, and is compacted
    again."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = made(store)
    wanted, end = newest(partition), partition.end_offset
    moments = disk.record()
    assert partition.compact(force=True).removed > 20
    moments = list(moments)
    rng = random.Random(1)
    states = 0
    for moment in some(moments, 24, "moments"):
        for words, nodes in cuts(moment, rng, 8):
            again = MemoryDisk(nodes)
            opened = open_quietly(again)
            found = opened.topic("t")[0]
            where = f"{moment.what}: {words}"
            labels = {a.label for a in opened.recovery_report.actions}
            assert labels <= {"leftovers-removed", "swap-finished"}, where
            assert newest(found) == wanted, where
            assert found.end_offset == end
            found.append(b"more", b"k1", durable=True)
            found.compact(force=True)
            assert newest(found) == {**wanted, b"k1": b"more"}, where
            opened.close()
            states += 1
    assert states > 60


def test_state_that_recovery_of_a_swap_leaves_is_recovered_again() -> None:
    """The power is cut in the recovery itself."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = made(store)
    wanted = newest(partition)
    moments = disk.record()
    partition.compact(force=True)
    moments = [m for m in list(moments) if ".swap" in m.what or ".deleted" in m.what]
    rng = random.Random(2)
    for moment in some(moments, 8, "swap"):
        for _, nodes in cuts(moment, rng, 4):
            again = MemoryDisk(nodes)
            inner = again.record()
            opened = open_quietly(again)
            assert newest(opened.topic("t")[0]) == wanted
            for late in some(list(inner), 5, "recovery"):
                for _, left in cuts(late, rng, 4):
                    third = open_quietly(MemoryDisk(left))
                    assert newest(third.topic("t")[0]) == wanted


def test_leftover_of_a_failed_compaction_does_not_undo_a_later_one() -> None:
    """A `.cleaned` that could not be removed is below the segments of the log: in any
    outcome of the next compaction, opening keeps the last record of each key; and a
    broker would not find the file either once the old files are removed."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = made(store)
    partition.delete_before(partition.segments[1].base_offset)
    wanted = newest(partition)
    directory = partition._log.directory
    name = segment_file(0, LOG)
    for suffix in (CLEANED, SWAP):
        directory.write_file(name + suffix, b"")
    directory.sync()
    moments = disk.record()
    assert partition.compact(force=True).removed > 20
    assert not any(n.endswith((CLEANED, SWAP)) for n in directory.names())
    rng = random.Random(3)
    moments = [m for m in list(moments) if ".swap" in m.what or ".deleted" in m.what]
    for moment in some(moments, 12, "leftover"):
        for words, nodes in cuts(moment, rng, 4):
            opened = open_quietly(MemoryDisk(nodes))
            where = f"{moment.what}: {words}"
            assert newest(opened.topic("t")[0]) == wanted, where
            opened.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "planted")])
def test_output_that_is_interrupted_when_it_is_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The file may be there before the call that makes it returns."""
    real = Directory.create

    def create(self: Directory, name: str, **options: bool) -> int:
        fd = real(self, name, **options)
        if name.endswith(CLEANED):
            self.files.close(fd)
            raise error
        return fd

    with logstore.open(tmp_path) as store:
        partition = made(store)
        wanted = newest(partition)
        monkeypatch.setattr(Directory, "create", create)
        with pytest.raises((KeyboardInterrupt, logstore.StorageError)):
            partition.compact(force=True)
        monkeypatch.undo()
        assert not list((tmp_path / "t-0").glob("*.cleaned"))
        assert newest(partition) == wanted
        partition.compact(force=True)
        assert newest(partition) == wanted


def calls_of_a_compaction(tmp_path: Path) -> list[str]:
    files = FaultyFiles()
    store = logstore.store.opening.open_store(tmp_path / "count", _files=files)
    partition = made(store)
    files.forget()
    partition.compact(force=True)
    return [method for method, _ in files.calls]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_call_that_fails_during_a_compaction_loses_nothing(
    tmp_path: Path, error: int
) -> None:
    """The failure is reported, the log can be read, and opening it again makes it
    whole."""
    methods = calls_of_a_compaction(tmp_path)
    steps = [
        (method, sum(m == method for m in methods[: at + 1]))
        for at, method in enumerate(methods)
        if method not in ("close", "list", "lock")
    ]
    for number, (method, nth) in enumerate(some(steps, 16, str(error))):
        files = FaultyFiles()
        path = tmp_path / str(number)
        store = logstore.store.opening.open_store(path, _files=files)
        partition = made(store)
        wanted = newest(partition)
        files.fail(method, error, nth=nth, times=1)
        report: Any = None
        with contextlib.suppress(logstore.StorageError):
            report = partition.compact(force=True)
        files.heal()
        assert newest(partition) == wanted, (method, nth)
        try:
            partition.append(b"more", b"k1")
            wanted[b"k1"] = b"more"
        except logstore.errors.SyncFailedError:
            assert report is None
        try:
            store.close()
        except logstore.LogStoreError:
            assert report is None
        with logstore.open(path) as again:
            assert newest(again.topic("t")[0]) == wanted, (method, nth)
            again.topic("t")[0].compact(force=True)
            assert newest(again.topic("t")[0]) == wanted, (method, nth)
        assert not logstore.verify(path, deep=True).problems


def test_readers_go_on_in_the_segments_that_they_began_with(tmp_path: Path) -> None:
    """The files of several compactions may wait for their readers."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        before = [(r.offset, r.value) for r in partition.read()]
        readers = []
        for _ in range(3):
            reader = partition.read()
            seen = [next(reader)]
            readers.append(
                (reader, seen, [(r.offset, r.value) for r in partition.read()])
            )
            partition.compact(force=True)
            partition.append(b"later", b"k2")
            partition.roll()
        assert len(readers[0][2]) == len(before)
        for reader, seen, expected in readers:
            seen += reader
            assert [(r.offset, r.value) for r in seen] == expected


def test_other_process_reads_on_after_a_compaction(tmp_path: Path) -> None:
    """It reads old segments as long as it has them; once their files are removed, the
    compacted ones, up to the end of the log: the last record of each key is among
    them."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        with logstore.open(tmp_path, read_only=True) as other:
            log = other.topic("t")[0]
            reader = log.read()
            seen = {(record := next(reader)).key: record.value}
            for number in range(4):
                partition.append(b"new-%d" % number, b"k%d" % number)
            partition.roll()
            partition.compact(force=True)
            store.topic("t")[0].flush()
            wait_for_removal(tmp_path / "t-0")
            for record in reader:
                seen[record.key] = record.value
            assert seen == newest(partition)
            assert newest(log) == newest(partition)


def test_reader_that_looks_while_segments_are_swapped_misses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has the new segments at that moment, and their files have other names
    yet: another read of the same store looks, and the first one continues."""
    rename, looks = Directory.rename, []

    def look(self: Directory, old: str, new: str, *rest: Any, **options: Any) -> None:
        if old.endswith(LOG) and not looks:
            looks.append(log.end_offset)
        rename(self, old, new, *rest, **options)

    with logstore.open(tmp_path) as store:
        partition = made(store)
        with logstore.open(tmp_path, read_only=True) as other:
            log = other.topic("t")[0]
            reader = log.read()
            seen = {(record := next(reader)).key: record.value}
            for number in range(4):
                partition.append(b"new-%d" % number, b"k%d" % number)
            partition.roll()
            partition.append(b"end", b"end")
            with monkeypatch.context() as patch:
                patch.setattr(Directory, "rename", look)
                partition.compact(force=True)
            assert looks == [partition.end_offset]
            wait_for_removal(tmp_path / "t-0")
            for record in reader:
                seen[record.key] = record.value
            assert seen == newest(partition)


def wait_for_removal(directory: Path) -> None:
    for _ in range(500):
        if not list(directory.glob("*.deleted")):
            return
        time.sleep(0.01)
    raise AssertionError("the old files are still there")


def test_truncation_during_a_compaction_begins_it_anew(tmp_path: Path) -> None:
    """Records superseded by a record that is cut off are kept."""
    with logstore.open(tmp_path) as store:
        partition = made(store, rounds=4)
        cut = partition.segments[1].base_offset
        wanted: dict[bytes | None, bytes | None] = {}
        for record in partition.read(stop=cut):
            wanted[record.key] = record.value
        done = []

        def cut_once(_: Any) -> None:
            if not done:
                done.append(partition.truncate_to(cut))

        partition.compact(force=True, on_progress=cut_once)
        assert done == [cut]
        assert newest(partition) == wanted
        partition.append(b"after", b"k0")
        partition.roll()
        partition.compact(force=True)
        assert newest(partition) == {**wanted, b"k0": b"after"}


class Interrupt(BaseException):
    """Stands for an interrupt of a signal handler."""


def interrupt() -> None:
    raise Interrupt


def test_compaction_undoes_an_append_that_was_interrupted_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append rolls, and is interrupted, and so is its undo, between the steps of a
    compaction. The undo returns to the segments that the append found, so it must not
    come after they were replaced."""
    to_swap = Replacement._to_swap
    for nth in itertools.count(1):
        files, path = FaultyFiles(), tmp_path / str(nth)

        def again() -> None:
            files.at_call(1, interrupt)  # noqa: B023
            raise Interrupt

        with open_store(path, _files=files) as store:
            partition = made(store)
            wanted = newest(partition)

            def interrupted(replacement: Replacement, new: Any) -> None:
                to_swap(replacement, new)
                files.at_call(nth, again)  # noqa: B023
                with contextlib.suppress(Interrupt):
                    partition.append_many([b"z" * 100] * 9, [b"k0"] * 9)  # noqa: B023
                files.at_call(0, interrupt)  # noqa: B023

            monkeypatch.setattr(Replacement, "_to_swap", interrupted)
            partition.compact(force=True)
            monkeypatch.undo()
        with logstore.open(path) as store:
            assert not store.recovery_report
            found = newest(store.topic("t")[0])
        if found[b"k0"] == b"z" * 100:
            break
        assert found == wanted
    assert nth > 5


def test_close_during_a_compaction_ends_it(tmp_path: Path) -> None:
    """No file is written any more; the next opening removes its leftovers."""
    store = logstore.open(tmp_path)
    partition = made(store)
    wanted = newest(partition)
    with pytest.raises(StoreClosedError):
        partition.compact(force=True, on_progress=lambda _: store.close())
    with logstore.open(tmp_path) as again:
        assert newest(again.topic("t")[0]) == wanted


def test_deletion_of_the_topic_during_a_compaction_ends_it(tmp_path: Path) -> None:
    """The caller gets the error of a deleted topic."""
    with logstore.open(tmp_path) as store:
        partition = made(store)

        def delete(_: Any) -> None:
            if "t" in store:
                store.delete_topic("t")

        with pytest.raises(logstore.TopicNotFoundError):
            partition.compact(force=True, on_progress=delete)


def test_retention_during_a_compaction_deletes(tmp_path: Path) -> None:
    """The compaction continues with the rest."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        wanted = newest(partition)
        start = partition.segments[2].base_offset
        done = []

        def delete(_: Any) -> None:
            if not done:
                done.append(partition.delete_before(start))

        partition.compact(force=True, on_progress=delete)
        found = newest(partition)
        assert partition.start_offset == start
        assert {key: wanted[key] for key in found} == found
        assert {k for k in wanted if k and k.startswith(b"k")} <= found.keys()
