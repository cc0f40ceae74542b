"""Transaction indexes that were lost or changed: `verify` reports them, `rebuild_index`
and `repair` make them from the log, and opening, if a broker was killed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.index import TXN_ENTRY_BYTES, TxnEntry, format_txn_index, parse_txn_index
from logstore.io.checkpoint.producer_snapshot import parse_snapshot
from support.broker import foreign
from support.transactions import Transactions

KIND = "transaction-index"
SETTINGS = logstore.TopicConfig(message_format=2, segment_bytes=600)


def written(path: Path, seed: int = 1, batches: int = 60) -> Transactions:
    """A closed store with a topic of transactions, some of which are open."""
    log = Transactions(random.Random(seed))
    with logstore.open(path) as store:
        partition = store.create_topic("orders", config=SETTINGS)[0]
        for _ in range(batches):
            partition.append_batches(log.next_batch(), transactions=True)
    assert log.open
    return log


def indexes(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.glob("orders-0/*.txnindex")}


def changed(position: int, number: int) -> Callable[[list[TxnEntry]], list[TxnEntry]]:
    """The last entry with one field increased by a number."""

    def change(entries: list[TxnEntry]) -> list[TxnEntry]:
        last = list(entries[-1])
        last[position] += number
        return [*entries[:-1], TxnEntry(*last)]

    return change


CHANGES: dict[str, Callable[[list[TxnEntry]], list[TxnEntry]]] = {
    "nothing is left": lambda entries: [],
    "the last is missing": lambda entries: entries[:-1],
    "another producer": changed(1, 9),
    "begins later": changed(2, 1),
    "ends elsewhere": changed(3, 1),
    "is stable too far": changed(4, 5),
    "one too many": lambda entries: [
        *entries,
        TxnEntry(0, 1, entries[-1].last_offset, entries[-1].last_offset + 1, 1 << 40),
    ],
}


@pytest.mark.parametrize("repair", ["rebuild_index", "repair", "index", "log"])
@pytest.mark.parametrize("what", CHANGES)
def test_index_that_contradicts_the_log_is_found_and_built_again(
    tmp_path: Path, what: str, repair: str
) -> None:
    """Each of the segments: `verify` names the file, and the bytes come back."""
    written(tmp_path)
    sound = indexes(tmp_path)
    assert len(sound) > 2
    for name, data in sound.items():
        path = tmp_path / "orders-0" / name
        entries = CHANGES[what](parse_txn_index(data, name))
        path.write_bytes(format_txn_index(entries))
        report = logstore.verify(tmp_path, deep=True)
        assert {problem.kind for problem in report.problems} == {KIND}
        assert {problem.path for problem in report.problems} == {str(path)}
        if repair == "repair":
            before = {p.name for p in (tmp_path / "orders-0").glob("*.log")}
            assert logstore.repair(tmp_path, "skip", dry_run=True).actions
            result = logstore.repair(tmp_path, "skip")
            assert [action.label for action in result.actions] == ["index-rebuilt"]
            assert {p.name for p in (tmp_path / "orders-0").glob("*.log")} == before
        else:
            place = {"rebuild_index": tmp_path, "index": path}
            target = place.get(repair, path.with_suffix(".log"))
            told = logstore.rebuild_index(target, dry_run=True)
            assert path.read_bytes() == format_txn_index(entries)
            assert logstore.rebuild_index(target) == told
            counts = {Path(row[0]).stem: row.aborted_transactions for row in told}
            assert counts[path.stem] == len(data) // TXN_ENTRY_BYTES
        assert indexes(tmp_path) == sound
        assert logstore.verify(tmp_path, deep=True).ok
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report


def test_index_that_is_gone_is_missed(tmp_path: Path) -> None:
    """Readers here need none: they find the aborted transactions in the log."""
    log = written(tmp_path)
    sound = indexes(tmp_path)
    for path in tmp_path.glob("orders-0/*.txnindex"):
        path.unlink()
    problems = logstore.verify(tmp_path, deep=True).problems
    assert [problem.kind for problem in problems] == [KIND] * len(log.aborted)
    assert all("served as committed" not in one.message for one in problems)
    assert all("serve its records as committed" in one.message for one in problems)
    with logstore.open(tmp_path, read_only=True) as store:
        records = store.topic("orders")[0].read(isolation="read_committed")
        assert [record.offset for record in records] == log.readable
    logstore.repair(tmp_path, "cut")
    assert indexes(tmp_path) == sound


def test_entry_of_records_that_were_deleted_stays(tmp_path: Path) -> None:
    """The log no longer has the beginning of the transaction; the index may."""
    log = written(tmp_path, batches=80)
    entry = next(
        e for e in log.aborted if e.last_offset - e.first_offset > 12 and e.first_offset
    )
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        bases = [segment.base_offset for segment in partition.segments]
        start = max(base for base in bases if base <= entry.last_offset)
        assert start > entry.first_offset
        partition.delete_before(start)
    for path in tmp_path.glob("orders-0/*.deleted"):
        path.unlink()
    assert logstore.verify(tmp_path, deep=True).ok
    sound = indexes(tmp_path)
    assert entry in [e for d in sound.values() for e in parse_txn_index(d, "")]
    logstore.rebuild_index(tmp_path)
    assert indexes(tmp_path) == sound


def test_index_behind_damage_stays_as_it_is(tmp_path: Path) -> None:
    """The beginnings of transactions are unknown: the damage is reported, and the index
    of each segment before it is built."""
    written(tmp_path)
    sound = indexes(tmp_path)
    logs = sorted((tmp_path / "orders-0").glob("*.log"))
    broken = logs[len(logs) // 2]
    data = bytearray(broken.read_bytes())
    data[70] ^= 1
    broken.write_bytes(data)
    for path in tmp_path.glob("orders-0/*.txnindex"):
        path.write_bytes(b"")
    errors: list[logstore.LogStoreError] = []
    built = logstore.rebuild_index(tmp_path, on_damage=errors.append)
    assert [type(error) for error in errors] == [logstore.CorruptRecordError]
    for row in built:
        log, aborted = row[0], row.aborted_transactions
        name = Path(log).stem + ".txnindex"
        if Path(log) < broken:
            assert aborted == len(sound.get(name, b"")) // TXN_ENTRY_BYTES
            assert indexes(tmp_path).get(name, b"") == sound.get(name, b"")
        else:
            assert aborted is None
            assert indexes(tmp_path).get(name, b"") == b""


def test_repair_that_cuts_the_log_cuts_its_transactions(tmp_path: Path) -> None:
    """The rest is consistent: nothing is found, and readers get the same."""
    log = written(tmp_path)
    logs = sorted((tmp_path / "orders-0").glob("*.log"))
    broken = logs[len(logs) // 2]
    data = bytearray(broken.read_bytes())
    data[70] ^= 1
    broken.write_bytes(data)
    logstore.repair(tmp_path, "cut")
    assert logstore.verify(tmp_path, deep=True).ok
    with logstore.open(tmp_path) as store:
        end = store.topic("orders")[0].end_offset
    left = [e for d in indexes(tmp_path).values() for e in parse_txn_index(d, "")]
    assert sorted(left) == sorted(e for e in log.aborted if e.last_offset < end)


# ------------------------------------------------------------ left by a broker


def left_by_a_broker(path: Path) -> Path:
    """A broker has been killed: no marker of a clean stop, no recovery points."""
    partition = foreign(path)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (path / name).unlink(missing_ok=True)
    return partition


@pytest.mark.parametrize("left", ["nothing", "a part", "too much"])
@pytest.mark.parametrize("snapshots", ["all", "first", "none"])
def test_opening_finishes_the_indexes_of_a_broker_that_was_killed(
    tmp_path: Path, left: str, snapshots: str
) -> None:
    """The broker's own recovery would do so, but may never run: after a clean stop of
    logstore a broker does not read logs again. The same holds for open transactions."""
    log = written(tmp_path)
    sound = indexes(tmp_path)
    partition = left_by_a_broker(tmp_path)
    for name, data in sound.items():
        wrong = {
            "nothing": b"",
            "a part": data[: TXN_ENTRY_BYTES // 2],
            "too much": data + struct.pack(">hqqqq", 0, 1, log.end, log.end + 1, 0),
        }
        (partition / name).write_bytes(wrong[left])
    files = sorted(partition.glob("*.snapshot"))
    for file in {"all": [], "first": files[1:], "none": files}[snapshots]:
        file.unlink()
    notes = logstore.verify(tmp_path, deep=True).notes
    assert (KIND in {note.kind for note in notes}) == (left == "nothing")
    with logstore.open(tmp_path) as store:
        partition_ = store.topic("orders")[0]
        assert partition_.last_stable_offset() == log.stable
        partition_.append(b"x", timestamp_ms=1000)
        log.end += 1
    assert indexes(tmp_path) == sound
    newest = max(partition.glob("*.snapshot"))
    open_since = {
        entry.producer_id: entry.current_txn_first_offset
        for entry in parse_snapshot(newest.read_bytes(), newest.name)
        if entry.current_txn_first_offset >= 0
    }
    if int(newest.stem) >= log.end - 1:
        assert open_since == {key: held[0] for key, held in log.open.items()}
    assert logstore.verify(tmp_path, deep=True).ok


def test_opening_keeps_the_indexes_that_a_broker_has_flushed(tmp_path: Path) -> None:
    """They are not read: files below the recovery point are not changed."""
    written(tmp_path)
    partition = left_by_a_broker(tmp_path)
    first = min(partition.glob("*.txnindex"))
    first.write_bytes(b"")
    last = max(partition.glob("*.log"))
    text = f"0\n1\norders 0 {int(last.stem)}\n"
    (tmp_path / "recovery-point-offset-checkpoint").write_text(text)
    with logstore.open(tmp_path) as store:
        store.topic("orders")[0].append(b"x")
    assert first.read_bytes() == b""
    (problem,) = {p.path for p in logstore.verify(tmp_path, deep=True).problems}
    assert problem == str(first)
