"""Batches of transactions that are appended: read as a broker's log, and with the
transaction index that a broker would have written, after any end of an append."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore.index import TxnEntry, parse_txn_index
from logstore.io.checkpoint.producer_snapshot import parse_snapshot
from logstore.store.opening import open_store
from support.damage import FaultyFiles, fixed_crc
from support.disk import MemoryDisk
from support.levels import some
from support.power_cut import cuts
from support.transactions import Transactions, batch, marker

# Segments with a few batches each.
SETTINGS = logstore.TopicConfig(message_format=2, segment_bytes=600)
Tree = dict[str, bytes]


def created(store: logstore.Store, **settings: Any) -> logstore.Partition:
    config = dataclasses.replace(SETTINGS, **settings)
    return store.create_topic("orders", config=config)[0]


def take(partition: logstore.Partition, data: bytes, **options: Any) -> range:
    return partition.append_batches(data, transactions=True, **options)


def fill(partition: logstore.Partition, log: Transactions, count: int) -> None:
    for _ in range(count):
        take(partition, log.next_batch())


def tree_of(path: Path) -> Tree:
    return {f"orders-0/{one.name}": one.read_bytes() for one in path.glob("orders-0/*")}


def indexed(tree: Tree) -> list[tuple[int, TxnEntry]]:
    """The entries of all transaction indexes, with the base offsets of these."""
    found = []
    for name, data in sorted(tree.items()):
        if name.endswith(".txnindex"):
            base = int(name.rpartition("/")[2][:20])
            found += [(base, entry) for entry in parse_txn_index(data, name)]
    return found


def expected_index(log: Transactions, bases: list[int]) -> list[tuple[int, TxnEntry]]:
    """Each entry, with the segment that has its marker."""
    return [
        (max(base for base in bases if base <= entry.last_offset), entry)
        for entry in log.aborted
        if entry.last_offset < log.end
    ]


def fetched(partition: logstore.Partition, start: int) -> Iterator[logstore.Record]:
    while True:
        chunk = partition.fetch(start, 300, isolation="read_committed")
        if chunk.next_offset == start:
            return
        yield from chunk
        start = chunk.next_offset


def found_in(table: Any) -> list[tuple[int, bytes]]:
    columns = (table.column(name).to_pylist() for name in ("offset", "value"))
    return list(zip(*columns, strict=True))


def check_reads(partition: logstore.Partition, log: Transactions) -> None:
    """Every way of reading gives the committed records below the first open
    transaction."""
    wanted = [(offset, log.values[offset]) for offset in log.readable]
    for start in (0, log.end // 2):
        rest = [one for one in wanted if one[0] >= start]
        for records in (
            partition.read(start, isolation="read_committed"),
            partition.follow(start, timeout=0, isolation="read_committed"),
            fetched(partition, start),
        ):
            assert [(record.offset, record.value) for record in records] == rest
        batches = list(partition.read_arrow(start, isolation="read_committed"))
        assert [one for batch in batches for one in found_in(batch)] == rest
    assert partition.last_stable_offset() == log.stable
    everything = [(r.offset, r.value) for r in partition.read()]
    assert everything == sorted(log.values.items())


@pytest.mark.parametrize("seed", range(4))
def test_appended_transactions_are_read_and_indexed_as_a_broker_would(
    tmp_path: Path, seed: int
) -> None:
    """The reads are in the process that appends, in another, and after each opening."""
    log = Transactions(random.Random(seed))
    with logstore.open(tmp_path) as store:
        partition = created(store)
        with logstore.open(tmp_path, read_only=True) as reader:
            other = reader.topic("orders")[0]
            for _ in range(4):
                fill(partition, log, 15)
                partition.flush()
                check_reads(partition, log)
                check_reads(other, log)
        bases = [segment.base_offset for segment in partition.segments]
        assert len(bases) > 5
        assert len(log.aborted) > 3
        assert indexed(tree_of(tmp_path)) == expected_index(log, bases)
    for read_only in (True, False):
        with logstore.open(tmp_path, read_only=read_only) as store:
            check_reads(store.topic("orders")[0], log)
    assert indexed(tree_of(tmp_path)) == expected_index(log, bases)
    report = logstore.verify(tmp_path, deep=True)
    assert (report.problems, report.notes) == ((), ())


def test_one_call_may_have_whole_transactions_of_several_segments(
    tmp_path: Path,
) -> None:
    """Each entry is in the index of its marker's segment, as if the batches had come
    one by one."""
    log = Transactions(random.Random(7))
    data = b"".join(log.next_batch() for _ in range(60))
    with logstore.open(tmp_path) as store:
        partition = created(store)
        assert take(partition, data) == range(log.end)
        bases = [segment.base_offset for segment in partition.segments]
        assert len(bases) > 5
        check_reads(partition, log)
    assert indexed(tree_of(tmp_path)) == expected_index(log, bases)


def test_snapshots_have_the_open_transactions(tmp_path: Path) -> None:
    """Snapshots are written at each roll, and at the close: a broker that continues
    from there holds readers back at the same offset. This holds for unchecked
    sequences, too."""
    log = Transactions(random.Random(3))
    first: dict[int, dict[int, int]] = {}
    with logstore.open(tmp_path) as store:
        partition = created(store)
        while len(first) < 8 or not log.open:
            held = {key: offsets[0] for key, offsets in log.open.items()}
            end = log.end
            take(partition, log.next_batch(), check_producers=False)
            if partition.segments[-1].base_offset == end and end:
                first[end] = held
    first[log.end] = {key: offsets[0] for key, offsets in log.open.items()}
    for offset, held in first.items():
        name = f"orders-0/{offset:020d}.snapshot"
        entries = parse_snapshot(tree_of(tmp_path)[name], name)
        found = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in entries
            if entry.current_txn_first_offset >= 0
        }
        assert found == held


def test_transaction_of_yesterday_goes_on_after_an_opening(tmp_path: Path) -> None:
    """The state of a producer with an open transaction never expires."""
    log = Transactions(random.Random(1))
    with logstore.open(tmp_path) as store:
        take(created(store), log.sent(1, 2))
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            take(partition, batch(2, [(b"", b"")], 1, control=False, sequence=7))
        take(partition, log.ended(1, commit=False))
    assert [entry for _, entry in indexed(tree_of(tmp_path))] == log.aborted
    assert log.aborted == [TxnEntry(0, 1, 0, 2, 3)]


def append_old(partition: logstore.Partition, count: int) -> None:
    """Records of no producer, with a timestamp of long ago; four fill a segment."""
    for _ in range(count):
        partition.append(b"p" * 150, timestamp_ms=1000)


@pytest.mark.parametrize("ending", ["kill", "no snapshots", "failed append"])
@pytest.mark.parametrize("sequence", [0, 7])
def test_transaction_of_long_ago_is_indexed_whatever_forgets_its_producer(
    ending: str, sequence: int
) -> None:
    """Its first batch lies in a segment whose records are all older than a day."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = created(store)
    append_old(partition, 3)
    records = [(b"k", b"aborted")] * 2
    data = batch(3, records, 5, control=False, sequence=sequence)
    take(partition, data, durable=True)
    if ending == "kill":
        disk = disk.kill()
        store = open_quietly(disk)
        partition = store.topic("orders")[0]
    append_old(partition, 8)
    assert any(one.endswith(".snapshot") for one in disk.tree())
    if ending == "failed append":
        disk.fail("write", name=".log", times=1, short=20)
        with pytest.raises(logstore.StorageError):
            append_old(partition, 1)
        disk.heal()
        append_old(partition, 8)
    elif ending == "no snapshots":
        disk = disk.kill()
        directory = disk.open_directory(disk.open_root(PATH), "orders-0")
        for name in disk.list(directory):
            if name.endswith(".snapshot"):
                disk.unlink(directory, name)
        store = open_quietly(disk)
        partition = store.topic("orders")[0]
    end = partition.end_offset
    assert partition.last_stable_offset() == 3
    take(partition, marker(end, 5, commit=False))
    store.close()
    found = [entry for _, entry in indexed(disk.tree())]
    assert found == [TxnEntry(0, 5, 3, end, end + 1)]


@pytest.mark.parametrize("is_rolled", [False, True])
def test_snapshot_has_the_transaction_that_a_kill_left_open(*, is_rolled: bool) -> None:
    """The opening may not need the producers: without a snapshot, a broker that finds a
    clean stop sees no open transaction."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    data = batch(0, [(b"k", b"open")], 5, control=False, sequence=0)
    take(created(store), data, durable=True)
    disk = disk.kill()
    store = open_quietly(disk)
    partition = store.topic("orders")[0]
    partition.append(b"x")
    if is_rolled:
        partition.roll()
    else:
        store.close()
    name = f"orders-0/{2:020d}.snapshot"
    found = {key.partition("store/")[2]: data for key, data in disk.tree().items()}
    entries = parse_snapshot(found[name], name)
    held = [(one.producer_id, one.current_txn_first_offset) for one in entries]
    assert held == [(5, 0)]


def test_snapshot_of_a_damaged_log_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The state of the producers cannot be read: the close succeeds, and reports
    that."""
    with logstore.open(tmp_path) as store:
        partition = created(store)
        take(partition, batch(0, [(b"k", b"open")], 5, control=False, sequence=0))
        append_old(partition, 8)
    for one in tmp_path.glob("orders-0/*.snapshot"):
        one.unlink()
    path = tmp_path / "orders-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with logstore.open(tmp_path) as store:
        append_old(store.topic("orders")[0], 1)
    assert "cannot snapshot the producers of orders-0" in caplog.text
    assert not list(tmp_path.glob("orders-0/*.snapshot"))


def test_empty_transactions_and_commits_are_not_indexed(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        partition = created(store)
        take(partition, marker(0, 1, commit=False))
        take(partition, batch(1, [(b"", b"x")], 1, control=False, sequence=0))
        take(partition, marker(2, 1, commit=True))
        take(partition, marker(3, 1, commit=False))
        assert partition.last_stable_offset() == 4
    assert not list(tmp_path.glob("orders-0/*.txnindex"))


def with_attributes(data: bytes, bits: int) -> bytes:
    return fixed_crc(data[:21] + bits.to_bytes(2, "big") + data[23:])


REFUSED: dict[str, tuple[bytes, type[Exception], str]] = {
    "another-control-batch": (
        batch(0, [(b"\0\0\0\2", b"")], 1, control=True),
        logstore.errors.UnsupportedError,
        "ends no transaction",
    ),
    "a-leader-change": (
        with_attributes(batch(0, [(b"\0\0\0\1", bytes(6))], 1, control=True), 0x20),
        logstore.errors.UnsupportedError,
        "ends no transaction",
    ),
    "two-markers-in-one": (
        batch(0, [(b"\0\0\0\1", bytes(6))] * 2, 1, control=True),
        logstore.errors.UnsupportedError,
        "ends no transaction",
    ),
    "a-key-that-is-none": (
        batch(0, [(b"\0", b"")], 1, control=True),
        logstore.CorruptRecordError,
        "has no type",
    ),
    "no-producer": (
        batch(0, [(b"", b"")], -1, control=False, transactional=True),
        logstore.CorruptRecordError,
        "of no producer",
    ),
    "no-sequence": (
        batch(0, [(b"", b"")], 1, control=False, sequence=-1),
        logstore.CorruptRecordError,
        "sequence number -1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_part_of_a_transaction_is_refused_by_name(
    tmp_path: Path, what: str
) -> None:
    """Nothing is written, not even the batches before it."""
    data, error, text = REFUSED[what]
    good = batch(0, [(b"", b"")], 5, control=False, sequence=0)
    with logstore.open(tmp_path) as store:
        partition = created(store)
        with pytest.raises(error, match=text):
            take(partition, good + data)
        assert partition.end_offset == 0
        assert partition.last_stable_offset() == 0
        take(partition, good)


def test_transactions_are_refused_unless_they_are_asked_for(tmp_path: Path) -> None:
    log = Transactions(random.Random(1))
    with logstore.open(tmp_path) as store:
        partition = created(store)
        for data in (log.sent(1, 1), log.ended(1, commit=True)):
            with pytest.raises(
                logstore.errors.UnsupportedError, match="transactions=True"
            ):
                partition.append_batches(data)
        assert partition.end_offset == 0


def test_stale_markers_and_batches_outside_of_a_transaction_are_refused(
    tmp_path: Path,
) -> None:
    """The rules are a broker's: the epochs of producers and coordinators only rise."""
    now = {"timestamp_ms": time.time_ns() // 1_000_000}
    with logstore.open(tmp_path) as store:
        partition = created(store)
        data = batch(0, [(b"", b"x")], 1, control=False, epoch=3, sequence=0, **now)
        take(partition, data)
        with pytest.raises(
            logstore.errors.InvalidProducerEpochError, match="epoch 3"
        ) as old:
            take(partition, marker(1, 1, commit=True, epoch=2, **now))
        assert (old.value.epoch, old.value.expected) == (2, 3)
        plain = bytearray(batch(1, [(b"", b"y")], 1, control=False, epoch=3, **now))
        plain = with_attributes(bytes(plain), 0)
        with pytest.raises(logstore.errors.UnsupportedError, match="not part of it"):
            take(partition, plain)
        take(partition, marker(1, 1, commit=True, epoch=3, coordinator=5, **now))
        with pytest.raises(
            logstore.errors.InvalidProducerEpochError, match="coordinator"
        ):
            take(partition, marker(2, 1, commit=True, epoch=3, coordinator=4, **now))
        assert partition.end_offset == 2
        # Without the check, as in the log that is copied.
        take(
            partition, marker(2, 1, commit=True, epoch=3, **now), check_producers=False
        )
        assert partition.end_offset == 3


def test_times_of_the_append_are_those_of_the_producers_state(tmp_path: Path) -> None:
    """Batches in a topic with LogAppendTime get another time, and stay markers."""
    log = Transactions(random.Random(2))
    with logstore.open(tmp_path) as store:
        partition = created(store, message_timestamp_type="LogAppendTime")
        take(partition, log.sent(1, 2))
        take(partition, log.sent(2, 2) + log.ended(1, commit=False))
        check_reads(partition, log)
        stored = {b.producer_id: b.max_timestamp_ms for b in partition.read_batches()}
    name = f"orders-0/{log.end:020d}.snapshot"
    entries = parse_snapshot(tree_of(tmp_path)[name], name)
    assert {entry.producer_id: entry.timestamp for entry in entries} == stored
    assert min(stored.values()) > 1_000_000


def test_truncation_takes_the_entries_with_their_markers(tmp_path: Path) -> None:
    log = Transactions(random.Random(5))
    with logstore.open(tmp_path) as store:
        partition = created(store)
        fill(partition, log, 60)
        for entry in reversed(log.aborted[2:]):
            partition.truncate_to(entry.last_offset)
            left = [one for _, one in indexed(tree_of(tmp_path))]
            assert left == [e for e in log.aborted if e.last_offset < entry.last_offset]
            assert partition.last_stable_offset() <= entry.first_offset


def damaged(data: bytes) -> bytes:
    return data[:-3]


def of_the_future(data: bytes) -> bytes:
    return data[:-16] + (1 << 40).to_bytes(8, "big") + data[-8:]


@pytest.mark.parametrize("change", [damaged, of_the_future])
def test_damaged_index_takes_no_entry_until_it_is_built_again(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    """The append is refused by name, and changes nothing; data and commits continue."""
    log = Transactions(random.Random(1))
    with logstore.open(tmp_path) as store:
        partition = created(store)
        for data in (log.sent(1, 1), log.ended(1, commit=False), log.sent(1, 1)):
            take(partition, data)
        (path,) = tmp_path.glob("orders-0/*.txnindex")
        before = path.read_bytes()
        path.write_bytes(change(before))
        lost = Transactions(random.Random(1), end=log.end, open={1: [2]})
        with pytest.raises(logstore.errors.CorruptIndexError) as caught:
            take(partition, lost.ended(1, commit=False))
        assert caught.value.path == str(path)
        assert partition.end_offset == log.end
        take(partition, log.sent(2, 1))
        take(partition, log.ended(2, commit=True))
    logstore.rebuild_index(tmp_path)
    assert path.read_bytes() == before
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        take(partition, log.ended(1, commit=False))
        check_reads(partition, log)
    assert [entry for _, entry in indexed(tree_of(tmp_path))] == log.aborted


@pytest.mark.parametrize("method", ["write", "sync", "open", "create", "rename"])
@pytest.mark.parametrize("nth", [1, 2])
def test_entry_that_cannot_be_written_leaves_neither_index_nor_record(
    tmp_path: Path, method: str, nth: int
) -> None:
    """A call is all or nothing: its index entries are removed again."""
    log = Transactions(random.Random(4))
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = created(store, segment_bytes=1 << 20)
        before = b"".join(log.sent(n, 1) for n in range(3))
        take(partition, before)
        if nth == 2:
            take(partition, log.ended(2, commit=False))
        known, end = list(log.aborted), log.end
        data = log.ended(1, commit=False)
        files.fail(method, name=".txnindex", times=1)
        try:
            take(partition, data)
        except logstore.StorageError:
            assert partition.end_offset == end
            assert [entry for _, entry in indexed(tree_of(tmp_path))] == known
            take(partition, data)
        assert partition.end_offset == log.end
        check_reads(partition, log)
    assert [entry for _, entry in indexed(tree_of(tmp_path))] == log.aborted
    assert logstore.verify(tmp_path, deep=True).ok


def test_power_cut_leaves_an_index_that_agrees_with_the_log() -> None:
    """The cut comes at each call of an append, with any writes on the disk: the next
    opening has all aborts of the log in the index, and no others."""
    log = Transactions(random.Random(11))
    disk = MemoryDisk()
    ends: list[tuple[int, list[TxnEntry]]] = [(0, [])]
    with open_quietly(disk) as store:
        partition = created(store)
        moments = disk.record()
        for number in range(30):
            count = 1 if number % 3 else 4
            data = b"".join(log.next_batch() for _ in range(count))
            take(partition, data, durable=number % 4 == 0)
            ends.append((log.end, list(log.aborted)))
    assert sum("txnindex" in moment.what for moment in moments) > 5
    of_end = dict(ends)
    rng = random.Random(2)
    for moment in some(moments, 60):
        for words, left in cuts(moment, rng, 4):
            after = MemoryDisk(left)
            with open_quietly(after) as store:
                if "orders" not in store.topics():
                    continue
                partition = store.topic("orders")[0]
                end = partition.end_offset
                bases = [segment.base_offset for segment in partition.segments]
                entries = [e for e in log.aborted if e.last_offset < end]
                wanted = [
                    (max(b for b in bases if b <= e.last_offset), e) for e in entries
                ]
                tree = {n.removeprefix(PATH + "/"): d for n, d in after.tree().items()}
                where = (moment.what, words, end)
                assert indexed(tree) == wanted, where
                if end in of_end:
                    assert entries == of_end[end], where
