"""A reader, as another process opens it, whose log is cut, replaced or hard to read
between its calls: it continues, or says that records are gone, and never less."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.errors import PartitionNotFoundError
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import (
    CoarseTimes,
    FaultyFiles,
    Unsynced,
    flip_bit,
    frames,
    logs_in,
)
from support.levels import Steps
from support.values import config_of, expected, fill

COUNT, CUT = 4000, 3900


def long_log(
    path: Path, magic: int, files: Any = None
) -> tuple[logstore.Store, logstore.Partition]:
    """A log whose reading takes many calls."""
    store = open_store(path, _files=files or Unsynced())
    config = config_of(magic, segment_bytes=64 << 20)
    partition = store.create_topic("orders", config=config)[0]
    for _ in range(COUNT // 100):
        partition.append_many([b"x" * 1000] * 100)
    return store, partition


WAYS: dict[str, Callable[[logstore.Partition], Iterator[Any]]] = {
    "read": lambda partition: partition.read(),
    "read-skip": lambda partition: partition.read(on_corruption="skip"),
    "read_batches": lambda partition: partition.read_batches(),
    "read_arrow": lambda partition: iter(partition.read_arrow(batch_records=50)),
}


def offsets_of(item: Any) -> list[int]:
    """The offsets in what a read gave."""
    if isinstance(item, logstore.Record):
        return [item.offset]
    if isinstance(item, logstore.RecordBatch):
        return [record.offset for record in item]
    return list(item.column("offset").to_pylist())


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_read_beside_a_truncation_gives_all_that_stays_and_says_that_the_rest_is_gone(
    tmp_path: Path, way: str, magic: int
) -> None:
    """This holds even if another reader in its process has looked meanwhile."""
    store, partition = long_log(tmp_path, magic)
    with store, open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        items = WAYS[way](reader)
        found = offsets_of(next(items))
        partition.truncate_to(CUT)
        assert reader.end_offset == CUT
        with pytest.raises(OffsetOutOfRangeError):
            for item in items:
                found += offsets_of(item)
        assert found == list(range(CUT))


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("skip", ["raise", "skip"])
def test_follower_goes_on_behind_a_truncation(
    tmp_path: Path, magic: int, skip: str
) -> None:
    store, partition = long_log(tmp_path, magic)
    with store, open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        records = reader.follow(timeout=0.2, on_corruption=skip)
        found = [next(records)]
        partition.truncate_to(CUT)
        partition.append_many([b"y" * 1000] * 300)
        assert reader.end_offset == CUT + 300
        found += records
        assert [record.offset for record in found] == list(range(CUT + 300))
        assert {record.value[:1] for record in found[CUT:] if record.value} == {b"y"}


def test_follower_goes_on_behind_a_failed_append(tmp_path: Path) -> None:
    """No record is lost, and none is left out."""
    files = FaultyFiles()
    store, partition = long_log(tmp_path, 1, files)
    with store, open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        records = reader.follow(timeout=0.2)
        found = [next(records)]
        files.fail("write", errno.EIO, name=".log", times=1, done=True)
        with pytest.raises(logstore.StorageError):
            partition.append(b"z" * 500)
        partition.append_many([b"y" * 1000] * 100)
        assert reader.end_offset == COUNT + 100
        found += records
        assert [record.offset for record in found] == list(range(COUNT + 100))


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("way", ["read", "read_batches", "fetch"])
def test_log_that_was_cut_and_has_grown_again_is_no_damage(
    tmp_path: Path, way: str, magic: int
) -> None:
    """The bytes where a batch began may be anything, even a later format."""
    store, partition = long_log(tmp_path, magic)
    files = FaultyFiles()

    def cut() -> None:
        files.before = None
        partition.truncate_to(0)
        for _ in range(40):
            partition.append_many([b"\x7f" * 100_003])
        partition.flush()

    def cut_at_second_read(method: str, name: str) -> None:
        nonlocal reads
        reads += method == "read" and name.endswith(".log")
        if reads == 2:
            cut()

    reads = 0
    with store, open_store(tmp_path, read_only=True, _files=files) as reading:
        reader = reading.topic("orders")[0]
        assert reader.end_offset == COUNT
        with pytest.raises(OffsetOutOfRangeError):
            if way == "fetch":
                files.before = cut_at_second_read
                list(reader.fetch(3000))
            else:
                items = WAYS[way](reader)
                next(items)
                cut()
                list(items)
        assert [len(record.value or b"") for record in reader.read()] == [100_003] * 40


@pytest.mark.parametrize("new", [5, 12, 20, 40])
def test_topic_that_is_made_anew_is_another(tmp_path: Path, new: int) -> None:
    """Its segments may have the names of the ones before."""
    config = config_of(1, segment_bytes=700, index_interval_bytes=100)
    with (
        open_store(tmp_path, _files=Unsynced()) as store,
        open_store(tmp_path, read_only=True) as reading,
    ):
        fill(store.create_topic("orders", config=config)[0], 12, seed=1)
        reader = reading.topic("orders")[0]
        assert list(reader.read()) == expected(1, 0, 12, 1)
        records = reader.read()
        first = [next(records)]
        store.delete_topic("orders")
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, new, seed=2)
        partition.flush()
        for call in (reader.read, lambda: reader.fetch(0), lambda: reader.get(0)):
            with pytest.raises(PartitionNotFoundError, match="another topic"):
                call()
        for count in (new, new + 1):
            again = reading.topic("orders")[0]
            assert list(again.read()) == expected(1, 0, count, 2)
            fill(partition, 1, seed=2)
        # A read of the old one that goes on gives nothing of the new one.
        with contextlib.suppress(OffsetOutOfRangeError, PartitionNotFoundError):
            for record in records:
                first.append(record)
            assert len(first) == 12
        assert first == expected(1, 0, len(first), 1)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["rolled", "deleted"])
def test_segment_that_comes_at_any_call_of_a_look_is_seen_whole_or_not_yet(
    tmp_path: Path, is_deleted: bool
) -> None:
    """The state may speak of a segment that the names of a moment before have not."""
    config = logstore.StoreConfig(flush_checkpoint_ms=0)  # readers know of each sync
    for nth in itertools.count(1):
        files, calls, path = FaultyFiles(), itertools.count(1), tmp_path / str(nth)
        with open_store(path, _files=Unsynced(), config=config) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            fill(partition, 3)

            def roll(method: str, name: str) -> None:
                if next(calls) == nth:  # noqa: B023
                    partition.roll()  # noqa: B023
                    fill(partition, 3)  # noqa: B023
                    partition.flush()  # noqa: B023
                    if is_deleted:
                        partition.delete_before(6)  # noqa: B023

            with open_store(path, read_only=True, _files=files) as reading:
                reader = reading.topic("orders")[0]
                partition.flush()
                files.before = roll
                offsets = [r.offset for r in reader.read(durable_only=not is_deleted)]
                files.before = None
                # What has begun finishes: deleted files stay for a while.
                assert offsets in ([], [0, 1, 2], [0, 1, 2, 3, 4, 5])
                is_over = next(calls) <= nth
                assert is_over or reader.end_offset == 6
        if is_over:
            break


class _StopError(BaseException):
    """Stands for an interrupt."""


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, 0], ids=str)
@pytest.mark.parametrize("rolls", [True, False], ids=["rolls", "appends"])
def test_error_in_one_look_costs_only_that_look(
    tmp_path: Path, rolls: bool, error: int
) -> None:
    """At any of its calls, also an interrupt; the next look sees all there is."""
    steps = Steps()
    for nth in steps:
        files, path = FaultyFiles(), tmp_path / str(nth)

        def fail() -> None:
            raise OSError(error, "once") if error else _StopError

        with open_store(path, _files=Unsynced()) as store:
            config = config_of(1, "gzip", segment_bytes=700, index_interval_bytes=100)
            partition = store.create_topic("orders", config=config)[0]
            fill(partition, 12)
            with open_store(path, read_only=True, _files=files) as reading:
                reader = reading.topic("orders")[0]
                assert list(reader.read()) == expected(1, 0, 12)
                fill(partition, 40 if rolls else 2, call=3 if rolls else 1)
                files.forget()
                files.at_call(nth, fail)
                with contextlib.suppress(logstore.StorageError, _StopError):
                    assert reader.end_offset == partition.end_offset
                files.before = None
                steps.total = len(files.calls)
                for _ in range(2):
                    end = partition.end_offset
                    assert reader.end_offset == end
                    assert list(reader.read()) == expected(1, 0, end)
                    partition.roll()
                    fill(partition, 4, call=2)
    assert steps.total >= 8


def test_read_of_a_topic_that_is_deleted_speaks_of_no_damage(tmp_path: Path) -> None:
    config = config_of(1, segment_bytes=700, file_delete_delay_ms=0)
    with (
        open_store(tmp_path, _files=Unsynced()) as store,
        open_store(tmp_path, read_only=True) as reading,
    ):
        fill(store.create_topic("orders", config=config)[0], 30)
        reader = reading.topic("orders")[0]
        records = reader.read()
        next(records)
        store.delete_topic("orders")
        with pytest.raises(PartitionNotFoundError, match="orders-0 is no longer at"):
            list(records)
        with pytest.raises(PartitionNotFoundError, match="orders-0 is no longer at"):
            reader.fetch(20)


# ---------------------------------------------------------------- compaction


def compact(log: Path) -> None:
    """Keep every second batch, as a broker does: the new file takes the name."""
    data = log.read_bytes()
    kept = b"".join(
        data[frame.pos : frame.pos + frame.size] for frame in frames(log)[::2]
    )
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).write_bytes(b"")
    swap = log.with_suffix(".log.swap")
    swap.write_bytes(kept)
    swap.rename(log)


LOOKS: dict[str, Callable[[logstore.Partition], list[int]]] = {
    **{
        way: lambda partition, way=way: [  # type: ignore[misc]
            offset for item in WAYS[way](partition) for offset in offsets_of(item)
        ]
        for way in WAYS
    },
    "fetch": lambda partition: [record.offset for record in partition.fetch(0)],
}


@pytest.mark.parametrize("has_read", [True, False], ids=["read", "looked"])
@pytest.mark.parametrize("way", LOOKS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_segment_that_a_broker_compacted_between_two_looks(
    tmp_path: Path, magic: int, way: str, has_read: bool
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(magic, segment_bytes=4000)
        fill(store.create_topic("orders", config=config)[0], 400)
    foreign(tmp_path)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        if has_read:
            assert len(list(reader.read())) == 400
        assert reader.end_offset == 400
        log = logs_in(tmp_path / "orders-0")[0]
        compact(log)
        found = LOOKS[way](reader)
        with open_store(tmp_path, read_only=True) as fresh:
            assert found == LOOKS[way](fresh.topic("orders")[0])
        assert 1 < len(found) < 400


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("magic", [1, 2])
def test_read_under_way_goes_on_in_a_segment_that_a_broker_compacts(
    tmp_path: Path, magic: int, way: str
) -> None:
    """It gives each record that is still there once, in order, although it has to open
    the file anew, as where other partitions take its descriptor."""
    few = logstore.StoreConfig(max_open_files=16)
    store, partition = long_log(tmp_path, magic)
    with store:
        partition.roll()
        partition.append(b"the last")
        others = store.create_topic("others")[0]
        for _ in range(few.max_open_files + 1):
            others.append(b"of another file")
            others.roll()
    foreign(tmp_path)
    with open_store(tmp_path, read_only=True, config=few) as reading:
        reader = reading.topic("orders")[0]
        items = WAYS[way](reader)
        found = offsets_of(next(items))
        compact(logs_in(tmp_path / "orders-0")[0])
        for record in reading.topic("others")[0].read():
            assert record.value == b"of another file"
        for item in items:
            found += offsets_of(item)
        assert found == sorted(set(found))
        stay = [record.offset for record in reader.read()]
        assert len(stay) < COUNT * 3 // 4
        assert set(stay) <= set(found)


# ------------------------------------------------- between a cut and the note of it


@pytest.mark.parametrize("way", [*WAYS, "fetch"])
@pytest.mark.parametrize("magic", [1, 2])
def test_read_right_behind_the_cut_of_a_failed_append_speaks_of_no_damage(
    tmp_path: Path, magic: int, way: str
) -> None:
    """At each call of the writer from the cut on."""
    steps = Steps()
    for nth in steps:
        steps.total = _read_behind_a_cut(tmp_path / str(nth), magic, way, nth)
    assert steps.total >= 2


def _read_behind_a_cut(path: Path, magic: int, way: str, nth: int) -> int:
    """Read right before the n-th call from the cut on; returns how many there were."""
    files = FaultyFiles()
    store, partition = long_log(path, magic, files)
    with store, open_store(path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        items: Iterator[Any] = iter(())
        left, end = -1, 0

        def look(method: str, name: str) -> None:
            nonlocal left, end, items
            if left < 0 and method == "truncate" and name.endswith(".log"):
                end = reader.end_offset
                items = iter(()) if way == "fetch" else WAYS[way](reader)
                left = nth
            left -= left > 0
            if left == 0 and end:
                want, end = list(range(end)), 0
                with contextlib.suppress(OffsetOutOfRangeError):
                    if way == "fetch":
                        got = [record.offset for record in reader.fetch(COUNT, 1 << 24)]
                        assert got in ([], want[COUNT:])
                    else:
                        got = [o for item in items for o in offsets_of(item)]
                        assert got == want

        files.forget()
        files.before = look
        files.fail("write", errno.EIO, name=".log", times=1, done=True)
        with pytest.raises(logstore.StorageError):
            partition.append_many([b"z" * 500] * 700)
        files.before = None
        methods = [call[0] for call in files.calls]
        assert list(reader.read(COUNT - 1)) == list(partition.read(COUNT - 1))
        return len(methods) - methods.index("truncate")


# ---------------------------------------------------------------- topics come and go


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


def test_changes_within_one_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    """Deletions and topics, where the time of a directory stands still meanwhile."""
    for turn in range(20):
        path = tmp_path / str(turn)
        with open_store(path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(1))[0]
            fill(partition, 30)
            partition.roll()
            reading = open_store(path, read_only=True, _files=CoarseTimes(10_000_000))
            with reading:
                reader = reading.topic("orders")[0]
                assert reader.end_offset == 30
                partition.delete_before(30)
                assert reading.topics() == ["orders"]
                store.create_topic("others")
                assert reader.start_offset == 30
                assert reading.topics() == ["orders", "others"]


# ------------------------------------------------- in the writer's process, too


@pytest.mark.sampled(12)
@pytest.mark.parametrize("grows", [True, False], ids=["grows", "cut"])
@pytest.mark.parametrize("skip", ["raise", "skip"])
@pytest.mark.parametrize("way", ["read", "read_batches", "read_arrow"])
@pytest.mark.parametrize("read_only", [True, False], ids=["other", "same"])
def test_read_across_a_truncation_leaves_no_hole(
    tmp_path: Path, read_only: bool, way: str, skip: str, grows: bool
) -> None:
    """Wherever the read stands: it continues in the log as it is, or says what is gone;
    never in segments that were cut off."""
    ways: dict[str, Callable[[logstore.Partition], Iterator[Any]]] = {
        "read": lambda partition: partition.read(on_corruption=skip),
        "read_batches": lambda partition: partition.read_batches(on_corruption=skip),
        "read_arrow": lambda partition: iter(
            partition.read_arrow(batch_records=5, on_corruption=skip)
        ),
    }
    for delivered in (1, 30, 50, 59, 70, 100):
        path = tmp_path / str(delivered)
        with open_store(path, _files=Unsynced()) as store:
            config = config_of(2, segment_bytes=1500, index_interval_bytes=200)
            partition = store.create_topic("orders", config=config)[0]
            for _ in range(60):
                partition.append_many([b"v" * 40] * 3)
            with open_store(path, read_only=True) as reading:
                reader = reading.topic("orders")[0] if read_only else partition
                items = ways[way](reader)
                found: list[int] = []
                while len(found) < delivered:
                    found += offsets_of(next(items))
                stood = len(found)
                partition.truncate_to(60)
                if grows:
                    for _ in range(60):
                        partition.append_many([b"w" * 77] * 5)
                told = contextlib.suppress(OffsetOutOfRangeError)
                with told if grows else pytest.raises(OffsetOutOfRangeError):
                    for item in items:
                        found += offsets_of(item)
                assert found == list(range(len(found)))
                # What had been read ahead of the caller may be delivered.
                assert grows or len(found) <= max(60, stood + 24)


@pytest.mark.parametrize("nth", range(1, 60, 3))
def test_deletion_below_a_transactional_read_does_not_disturb_it(
    tmp_path: Path, nth: int
) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(
            2, segment_bytes=1200, index_interval_bytes=200, file_delete_delay_ms=0
        )
        partition = store.create_topic("orders", config=config)[0]
        for number in range(60):
            partition.append_many([b"v" * 48] * 3, timestamps_ms=[1000 + number] * 3)
        with open_store(tmp_path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]

            def delete() -> None:
                partition.delete_before(100)
                for gone in Path(partition.path).glob("*.deleted"):
                    gone.unlink(missing_ok=True)

            files.at_call(nth, delete)
            committed = reader.read(150, isolation="read_committed")
            assert [record.offset for record in committed] == list(range(150, 180))
            assert reader.last_stable_offset() == 180
            assert reader.offset_for_time(1055) == 165


@pytest.mark.parametrize("read_only", [True, False], ids=["other", "same"])
def test_skipping_read_that_has_begun_goes_on_in_deleted_segments(
    tmp_path: Path, read_only: bool
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=700, index_interval_bytes=100)
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, 60)
        log = logs_in(tmp_path / "orders-0")[1]
        bad = frames(log)[2]
        flip_bit(log, (bad.pos + bad.size - 1) * 8)
        with open_store(tmp_path, read_only=True) as reading:
            reader = reading.topic("orders")[0] if read_only else partition
            records = reader.read(on_corruption="skip")
            found = [next(records).offset]
            partition.delete_before(50)
            found += [record.offset for record in records]
            assert found == [o for o in range(60) if o != bad.offset]


def test_records_that_are_deleted_during_a_look_leave_no_segments(
    tmp_path: Path,
) -> None:
    """At whichever of its calls; the log continues with a roll, after which nothing but
    that is looked for."""
    files, nth, has_met = FaultyFiles(), 1, True
    config = config_of(2, segment_bytes=1 << 20)
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config)[0]
        with open_store(tmp_path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]
            while has_met:
                for number in range(4):
                    p.append(b"%d" % number)
                    p.roll()
                assert reader.end_offset == p.end_offset
                p.delete_before(p.start_offset + 1)
                has_met = False

                def delete() -> None:
                    nonlocal has_met
                    has_met = True
                    p.delete_before(p.end_offset - 1)

                files.at_call(nth, delete)
                assert reader.end_offset == p.end_offset
                files.before = None
                p.append(b"next")
                p.roll()
                found = [one.base_offset for one in reader.segments]
                assert found == [one.base_offset for one in p.segments], nth
                nth += 1
    assert nth > 20
