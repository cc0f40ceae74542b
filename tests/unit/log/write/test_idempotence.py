"""append_batches with the sequences of idempotent producers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import crc32c
import pytest

import logstore
from logstore.io.checkpoint.producer_snapshot import format_snapshot, parse_snapshot
from logstore.log.producers import EXPIRY_MS, Producers
from logstore.log.write.idempotence import Idempotence
from logstore.store.opening import open_store
from logstore.store.partition.partition import appends_of
from support.damage import FaultyFiles, crash, cut, frames, logs_in, overwrite
from support.levels import some
from support.producing import sent
from support.values import append_one, config_of


def made(store: logstore.Store, **settings: Any) -> logstore.Partition:
    return store.create_topic("orders", config=config_of(2, **settings))[0]


def sequences(partition: logstore.Partition) -> list[tuple[int, int]]:
    """(producer, first sequence) of the batches in the log."""
    return [(b.producer_id, b.base_sequence) for b in partition.read_batches()]


@pytest.mark.parametrize("codec", [0, 1])
def test_batch_that_is_sent_again_is_not_appended_again(
    tmp_path: Path, codec: int
) -> None:
    """Its offsets are returned, whatever was appended in between."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        first = partition.append_batches(sent(7, 0, 0, 3, codec=codec, timestamp_ms=9))
        second = partition.append_batches(sent(7, 0, 3, 2, codec=codec))
        append_one(partition)
        partition.append_many([b"x"] * 3)
        again = sent(7, 0, 3, 2, codec=codec)
        assert partition.append_batches(again) == second == range(3, 5)
        assert partition.append_batches(again, expected_offset=99) == second
        assert partition.append_batches(again, durable=True) == second
        assert partition.durable_offset >= second.stop
        assert partition.end_offset == 9
        unchecked = partition.append_batches(again, check_producers=False)
        assert (first, unchecked) == (range(3), range(9, 11))


def test_refused_batch_writes_nothing_and_the_next_one_is_taken(
    tmp_path: Path,
) -> None:
    with logstore.open(tmp_path) as store:
        partition = made(store)
        partition.append_batches(sent(7, 1, 0, 5))
        for batch, error in (
            (sent(7, 1, 6), logstore.errors.OutOfOrderSequenceError),
            (sent(7, 0, 5), logstore.errors.InvalidProducerEpochError),
            (sent(7, 1, 0, 5) + sent(7, 1, 5), logstore.errors.DuplicateSequenceError),
            (sent(7, 1, 5) + sent(7, 1, 5), logstore.errors.OutOfOrderSequenceError),
        ):
            with pytest.raises(error, match="orders-0") as caught:
                partition.append_batches(batch)
            assert isinstance(caught.value, logstore.errors.ProducerError)
            assert caught.value.partition == "orders-0"
            assert partition.end_offset == 5
        assert partition.append_batches(sent(7, 1, 5)) == range(5, 6)
        with pytest.raises(logstore.errors.OffsetConflictError):
            partition.append_batches(sent(7, 1, 6), expected_offset=9)
        assert partition.append_batches(sent(7, 1, 6), expected_offset=6) == range(6, 7)


def test_failed_append_is_no_batch_of_its_producer(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = made(store)
        partition.append_batches(sent(7, 0, 0))
        files.fail("write", name=".log", times=1)
        with pytest.raises(logstore.StorageError):
            partition.append_batches(sent(7, 0, 1))
        assert partition.append_batches(sent(7, 0, 1)) == range(1, 2)
        assert sequences(partition) == [(7, 0), (7, 1)]


def test_batches_that_were_cut_are_appended_again(tmp_path: Path) -> None:
    """The producers are the ones of the current log."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        for n in range(8):
            assert partition.append_batches(sent(7, 0, n)) == range(n, n + 1)
        partition.truncate_to(6)
        assert partition.append_batches(sent(7, 0, 5)) == range(5, 6)
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            partition.append_batches(sent(7, 0, 7))
        assert partition.append_batches(sent(7, 0, 6)) == range(6, 7)
        partition.roll()
        partition.truncate_to(0)
        assert list(Path(tmp_path, "orders-0").glob("*.snapshot")) == []
        assert partition.append_batches(sent(7, 0, 77)) == range(1)


@pytest.mark.parametrize("at", ["closed", "killed"])
@pytest.mark.parametrize("snapshots", ["kept", "damaged", "removed"])
def test_window_survives_a_close_and_a_crash(
    tmp_path: Path, at: str, snapshots: str
) -> None:
    """All five batches of the window are known, over several segments, whichever
    snapshots there are."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        partition = made(store)
        for n in range(9):
            partition.append_batches(sent(7, 0, n))
            partition.append_batches(sent(8, 0, 2 * n, 2))
            if n % 2:
                partition.roll()
        if at == "killed":
            partition.flush()
            shutil.copytree(path, tmp_path / "killed")
    path = tmp_path / ("killed" if at == "killed" else "store")
    found = sorted((path / "orders-0").glob("*.snapshot"))
    assert len(found) >= 4
    for one in found:
        if snapshots == "damaged":
            overwrite(one, 2, b"\xff\0\xff")
        elif snapshots == "removed":
            one.unlink()
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        for n in range(4, 9):
            start = 3 * n
            assert partition.append_batches(sent(7, 0, n)) == range(start, start + 1)
            assert partition.append_batches(sent(8, 0, 2 * n, 2)) == range(
                start + 1, start + 3
            )
        with pytest.raises(logstore.errors.DuplicateSequenceError):
            partition.append_batches(sent(7, 0, 3))
        assert partition.append_batches(sent(7, 0, 9)) == range(27, 28)
        assert not logstore.verify(path).problems or snapshots == "damaged"


def test_expired_producer_may_begin_anywhere(tmp_path: Path) -> None:
    """The producer expires one day after its newest record; older segments are not
    read."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = made(store)
        now = files.now_ms()
        old = now - EXPIRY_MS - 5_000
        partition.append_batches(sent(7, 0, 5, timestamp_ms=old))
        partition.append_batches(sent(8, 0, 5, timestamp_ms=now))
        assert partition.append_batches(sent(7, 0, 99, timestamp_ms=old))
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            partition.append_batches(sent(8, 0, 99, timestamp_ms=now))


def test_snapshots_are_written_and_deleted_as_kafka_does(tmp_path: Path) -> None:
    """At the base of each new segment, and at the end when the log is closed: one such
    snapshot at a time. They go with their segments."""
    folder = tmp_path / "orders-0"

    def offsets() -> list[int]:
        return sorted(int(one.name[:20]) for one in folder.glob("*.snapshot"))

    with logstore.open(tmp_path) as store:
        partition = made(store, file_delete_delay_ms=0)
        append_one(partition)
        partition.roll()
        assert offsets() == []  # no batch of a producer was checked
        for n in range(3):
            partition.append_batches(sent(7, 0, n))
            partition.roll()
        assert offsets() == [2, 3, 4]
        partition.append_batches(sent(7, 0, 3))
    assert offsets() == [2, 3, 4, 5]
    entries = parse_snapshot((folder / f"{5:020}.snapshot").read_bytes(), "")
    assert [entry[:5] for entry in entries] == [(7, 0, 3, 4, 0)]
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        partition.append_batches(sent(7, 0, 4))
        partition.roll()
        assert offsets() == [2, 3, 4, 6]
        partition.delete_before(4)
        assert offsets() == [4, 6]
    assert offsets() == [4, 6]


def test_snapshot_is_current_at_each_close(tmp_path: Path) -> None:
    """Others may have appended since, the file may have been released before, and no
    batch of a producer may have been checked since the store was opened."""
    folder = tmp_path / "orders-0"

    def newest() -> tuple[int, list[tuple[int, ...]]]:
        path = max(folder.glob("*.snapshot"))
        entries = parse_snapshot(path.read_bytes(), "")
        return int(path.name[:20]), [entry[:4] for entry in entries]

    with logstore.open(tmp_path) as store:
        partition = made(store)
        partition.append_batches(sent(7, 0, 0, 3))
        partition.append_many([b"x"] * 2)
        partition.roll()
        assert newest() == (5, [(7, 0, 2, 2)])
        partition.append_many([b"x"] * 2)
    assert newest() == (7, [(7, 0, 2, 2)])
    for end in (8, 9):
        with logstore.open(tmp_path) as store:
            partition = store.topic("orders")[0]
            partition.append(b"x")
        assert newest() == (end, [(7, 0, 2, 2)])
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        partition.append_batches(sent(7, 0, 3))
        assert appends_of(partition).writer()._log.rest()
    assert newest() == (10, [(7, 0, 3, 9)])
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        partition.append_batches(sent(8, 0, 3), check_producers=False)
        partition.append(b"x")
    # Unchecked batches were not read: the older snapshot is true.
    assert newest() == (10, [(7, 0, 3, 9)])
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert partition.append_batches(sent(8, 0, 3)) == range(10, 11)
        partition.append_batches(sent(7, 0, 4), check_producers=False)
    assert newest() == (13, [(7, 0, 4, 12), (8, 0, 3, 10)])


def test_snapshot_beyond_the_end_is_removed_by_the_next_opening(
    tmp_path: Path,
) -> None:
    """A cut that was interrupted, or a disk that has lost records: the log grows past
    its offset again, with others, and a roll may be there."""
    path, copy = tmp_path / "a", tmp_path / "b"
    with logstore.open(path) as store:
        partition = made(store)
        for n in range(4):
            partition.append_batches(sent(7, 0, n))
        log = appends_of(partition).writer()._log
        log.sync_all()
        log.idempotence.write_snapshot(log.bounds)
        crash(path, copy)
    name = Path("orders-0", f"{4:020}.snapshot")
    assert (copy / name).exists()
    (segment,) = logs_in(copy / "orders-0")
    state = copy / "orders-0" / ".logstore-state"
    state.unlink()
    (copy / ".logstore-owner").unlink()
    cut(segment, frames(segment)[2].pos)
    with logstore.open(copy) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == 2
        assert not (copy / name).exists()
        partition.append_many([b"x"] * 2)
        partition.roll()
        assert partition.append_batches(sent(7, 0, 2)) == range(4, 5)


def test_snapshot_of_an_interrupted_cut_is_removed(tmp_path: Path) -> None:
    """It was cut, and its writer died before it removed the snapshots."""
    path, copy = tmp_path / "a", tmp_path / "b"
    files = FaultyFiles()
    with open_store(path, _files=files) as store:
        partition = made(store)
        for n in range(4):
            partition.append_batches(sent(7, 0, n))
    with open_store(path, _files=files) as store:
        partition = store.topic("orders")[0]
        files.fail("unlink", name=".snapshot")
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.truncate_to(2)
        crash(path, copy)
        files.heal()
    name = Path("orders-0", f"{4:020}.snapshot")
    assert (copy / name).exists()
    with logstore.open(copy) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == 2
        assert not (copy / name).exists()
        assert partition.append_batches(sent(7, 0, 2)) == range(2, 3)


def test_snapshot_of_a_deleted_segment_is_not_believed(tmp_path: Path) -> None:
    """The snapshot is left if its name could not be changed; the log has continued
    since."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = made(store, file_delete_delay_ms=0)
        partition.append_batches(sent(7, 0, 0))
        partition.roll()
        for n in range(1, 4):
            partition.append_batches(sent(7, 0, n))
        partition.roll()
        partition.append(b"x")
        files.fail("rename", name=".snapshot")
        partition.delete_before(5)
        files.heal()
    folder = tmp_path / "orders-0"
    found = sorted(int(one.name[:20]) for one in folder.glob("*.snapshot"))
    assert found == [1, 4, 5]
    for offset in (4, 5):
        (folder / f"{offset:020}.snapshot").unlink()
    with logstore.open(tmp_path) as store:
        # The producer is unknown now: any sequence is accepted.
        assert store.topic("orders")[0].append_batches(sent(7, 0, 77)) == range(5, 6)


def test_interrupted_append_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches are in the log; an interrupt came before they were added."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        partition.append_batches(sent(7, 0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(Idempotence, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                partition.append_batches(bytearray(sent(7, 0, 1)))
        assert partition.end_offset == 2
        log = appends_of(partition).writer()._log
        log.idempotence.write_snapshot(log.bounds)
        assert not list(tmp_path.glob("orders-0/*.snapshot"))
        partition.append(b"x")  # from here on, the usual way is prepared again
        assert partition.append_batches(sent(7, 0, 1)) == range(1, 2)
        assert partition.append_batches(sent(7, 0, 2)) == range(3, 4)
        assert windows(log.idempotence._upto(log.bounds)) == full_scan(partition)


class Counting:
    """Counts the calls that C has taken."""

    def __init__(self, partition: logstore.Partition) -> None:
        self._real = partition._prepared
        self.taken = 0
        partition._prepared = self  # type: ignore[assignment]

    def append_batches(self, data: Any, check: bool) -> range | None:
        offsets = self._real.append_batches(data, check)
        self.taken += offsets is not None
        return offsets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_next_batches_of_known_producers_take_the_short_way(tmp_path: Path) -> None:
    """All others do not, and find the batches that C has appended."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        counting = Counting(partition)
        for producer in (7, 8):
            partition.append_batches(sent(producer, 0, 0))
        assert counting.taken == 0
        for n in range(1, 9):
            for producer in (7, 8):
                partition.append_batches(sent(producer, 0, n))
            partition.append(b"plain")
        partition.append_batches(sent(7, 0, 9) + sent(8, 0, 9, 2) + sent(7, 0, 10))
        assert counting.taken == 17
        end = partition.end_offset
        assert partition.append_batches(sent(8, 0, 9, 2)) == range(end - 3, end - 1)
        assert partition.append_batches(sent(7, 0, 7)) == range(20, 21)
        for batch in (sent(7, 0, 12), sent(8, 0, 4), sent(9, 0, 0) + sent(7, 0, 10)):
            with pytest.raises(logstore.errors.ProducerError):
                partition.append_batches(batch)
        assert partition.append_batches(sent(7, 1, 0)) == range(end, end + 1)
        assert counting.taken == 17
        for n in (1, 2):
            partition.append_batches(sent(7, 1, n))
        assert counting.taken == 19
        partition.append_batches(sent(7, 1, 9), check_producers=False)
        partition.append_batches(sent(7, 1, 10))
        assert counting.taken == 20
        log = appends_of(partition).writer()._log
        assert windows(log.idempotence._upto(log.bounds)) == full_scan(partition)
        partition.roll()
        partition.append_batches(sent(7, 1, 11))
        partition.truncate_to(partition.end_offset - 1)
        assert partition.append_batches(sent(7, 1, 11)).start == end + 5
    newest = max(tmp_path.glob("orders-0/*.snapshot"))
    entries = parse_snapshot(newest.read_bytes(), "")
    assert [entry[:3] for entry in entries] == [(7, 1, 11), (8, 0, 10)]


def test_short_way_is_not_taken_after_an_append_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer may be further than C knows."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        for n in range(2):
            partition.append_batches(sent(7, 0, n))
        log = appends_of(partition).writer()._log
        with monkeypatch.context() as patch:
            patch.setattr(Producers, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.idempotence._upto(log.bounds)  # it takes what C has appended
        partition.append(b"plain")
        assert partition.append_batches(sent(7, 0, 1)) == range(1, 2)
        assert partition.append_batches(sent(7, 0, 2)) == range(3, 4)
        assert windows(log.idempotence._upto(log.bounds)) == full_scan(partition)


def interrupted(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_state_has_the_times_that_are_stored(tmp_path: Path) -> None:
    """The times are the ones of the append, if the topic stores them."""
    with logstore.open(tmp_path) as store:
        partition = made(store, message_timestamp_type="LogAppendTime")
        partition.append_batches(sent(7, 0, 0, timestamp_ms=5) + sent(8, 0, 9))
        partition.append_batches(sent(7, 0, 1, codec=1, timestamp_ms=6))
        log = appends_of(partition).writer()._log
        assert windows(log.idempotence._upto(log.bounds)) == full_scan(partition)
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            partition.append_batches(sent(7, 0, 3, timestamp_ms=6))


def test_roll_inside_an_append_writes_no_snapshot(tmp_path: Path) -> None:
    """The snapshot would be of the producers before the append, at no segment's
    base."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        config = config_of(1, segment_bytes=2_000)
        partition = store.create_topic("orders", config=config)[0]
        partition.append_batches(sent(7, 0, 0))
        files.forget()
        partition.append_many([bytes(500)] * 20)
        assert len(partition.segments) > 3
        assert files.count("create", ".snapshot.tmp") == 0


def test_snapshot_that_cannot_be_written_costs_no_record(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = made(store)
        partition.append_batches(sent(7, 0, 0))
        files.fail("create", name=".snapshot.tmp")
        partition.roll()
        assert partition.append_batches(sent(7, 0, 1)) == range(1, 2)
    files.heal()
    assert list(tmp_path.glob("orders-0/*.snapshot")) == []
    with logstore.open(tmp_path) as store:
        assert store.topic("orders")[0].append_batches(sent(7, 0, 0)) == range(1)


def test_damage_in_what_must_be_read_is_a_named_error(tmp_path: Path) -> None:
    """A caller that needs no check continues."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        for n in range(3):
            partition.append_batches(sent(7, 0, n))
            partition.roll()
    for one in tmp_path.glob("orders-0/*.snapshot"):
        one.unlink()
    overwrite(tmp_path / "orders-0" / f"{1:020}.log", 8, b"\x7f")
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        with pytest.raises(logstore.CorruptRecordError):
            partition.append_batches(sent(7, 0, 3))
        assert partition.end_offset == 3
        partition.append_batches(sent(7, 0, 3), check_producers=False)


def full_scan(partition: logstore.Partition) -> dict[int, Any]:
    """The producers of a log, read from its start."""
    log = partition._writer._log  # type: ignore[union-attr]
    producers = Producers(log.bounds.start)
    Idempotence(log.context, 0)._read_on(producers, log.bounds)
    return windows(producers)


def windows(producers: Producers) -> dict[int, Any]:
    return {
        key: (one.epoch, list(one.batches), one.timestamp_ms)
        for key, one in producers._by_id.items()
    }


@pytest.mark.parametrize("seed", some(range(60), 6))
def test_state_is_that_of_a_full_scan_after_anything(tmp_path: Path, seed: int) -> None:
    """The log gets batches of producers, other records, rolls, cuts, closes,
    crashes."""
    rng = random.Random(seed)
    path, number = tmp_path / "0", 0
    store = logstore.open(path)
    partition = made(store, segment_bytes=rng.choice([2_000, 1 << 20]))
    next_of: dict[int, tuple[int, int]] = {}
    for _ in range(120):
        what = rng.choice(["batch"] * 8 + ["plain", "roll", "cut", "close", "kill"])
        if what == "batch":
            producer = rng.randrange(4)
            epoch, sequence = next_of.get(producer, (0, 0))
            size = rng.randrange(1, 5)
            change = rng.random()
            if change < 0.1:
                epoch, sequence = epoch + 1, 0
            elif change < 0.2:
                sequence = max(sequence - rng.randrange(1, 5), 0)
            batch = sent(producer, epoch, sequence, size, codec=rng.randrange(2))
            before = partition.end_offset
            try:
                offsets = partition.append_batches(batch)
            except logstore.errors.ProducerError:
                assert partition.end_offset == before
            else:
                if offsets.start == before:
                    next_of[producer] = epoch, sequence + size
        elif what == "plain":
            partition.append_many([b"x" * 30] * rng.randrange(1, 30))
        elif what == "roll":
            partition.roll()
        elif what == "cut" and partition.end_offset:
            bases = [batch.base_offset for batch in partition.read_batches()]
            partition.truncate_to(rng.choice(bases))
        elif what in ("close", "kill"):
            number += 1
            copy = tmp_path / str(number)
            if what == "close":
                store.close()
                path.rename(copy)
            else:
                shutil.copytree(path, copy)
                store.close()
            path = copy
            store = logstore.open(path)
            partition = store.topic("orders")[0]
        log = appends_of(partition).writer()._log
        assert windows(log.idempotence._upto(log.bounds)) == full_scan(partition)
    store.close()
    assert not logstore.verify(path).problems


def test_snapshot_has_the_bytes_of_kafkas() -> None:
    """Snapshots are the empty one, and the first entries of a broker's."""
    assert format_snapshot([]).hex() == "000148674bc700000000"
    entry = bytes.fromhex(
        "0000000000000014000300000001000000000000001700000001"
        "0000018bcfe56a59ffffffff0000000000000016"
    )
    body = bytes.fromhex("00000001") + entry
    crc = crc32c.crc32c(body).to_bytes(4, "big")
    data = format_snapshot([])[:2] + crc + body
    assert format_snapshot(parse_snapshot(data, "")) == data
