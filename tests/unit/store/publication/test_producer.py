"""Named producers: calls that may be repeated, also after a restart."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.checkpoint import producer_names
from logstore.io.layout import PRODUCERS
from logstore.log.producers import EXPIRY_MS
from logstore.store.opening import open_store
from logstore.store.partition.partition import appends_of
from support.damage import FaultyFiles, crash, flip_bit
from support.levels import some
from support.producing import sent
from support.values import config_of

LAST = 2**31 - 1
CODECS = ["none", "gzip"]


def made(store: logstore.Store, magic: int = 2, **settings: Any) -> logstore.Partition:
    return store.create_topic("orders", config=config_of(magic, **settings))[0]


def values_of(partition: logstore.Partition) -> list[bytes | None]:
    return [record.value for record in partition.read()]


@pytest.mark.parametrize("codec", CODECS)
def test_call_that_is_repeated_appends_nothing_again(
    tmp_path: Path, codec: str
) -> None:
    """The call returns its first offsets, even after other appends."""
    with logstore.open(tmp_path) as store:
        partition = made(store, codec=codec)
        producer = store.producer("outbox")
        assert producer.last_sequence(partition) is None
        first = producer.append_many(
            partition,
            [b"a", None, b"c"],
            [b"k", b"k", None],
            [1, 2, 3],
            [(), (("h", b"v"),), ()],
            sequence=0,
        )
        partition.append(b"other")
        second = producer.append_many(("orders", 0), [b"d"], sequence=3, durable=True)
        assert (first, second) == (range(3), range(4, 5))
        assert partition.durable_offset == 5
        for _ in range(2):
            assert producer.append_many(partition, [b"x"] * 3, sequence=0) == first
            assert producer.append(partition, b"x", sequence=3) == 4
        assert producer.last_sequence(partition) == 3
        assert values_of(partition) == [b"a", None, b"c", b"other", b"d"]
        record = next(iter(partition.read(1)))
        assert (record.key, record.timestamp_ms) == (b"k", 2)
        assert record.headers == (("h", b"v"),)
        batch = next(partition.read_batches())
        assert batch.producer_id == producer.producer_id >= 2**62
        assert (batch.producer_epoch, batch.base_sequence) == (0, 0)


def test_sequence_that_is_not_given_is_the_next_one(tmp_path: Path) -> None:
    """The next one of each partition; a call without records changes nothing."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2, config_of(2))
        producer = store.producer("outbox")
        assert producer.append_many(topic[0], [b"a", b"b"]) == range(2)
        assert producer.append(topic[0], b"c") == 2
        assert producer.append_many(topic[0], []) == range(3, 3)
        assert producer.append_many(topic[0], [], sequence=77) == range(3, 3)
        assert producer.append(topic[1], b"d", sequence=500) == 0
        assert producer.append(topic[1], b"d") == 1
        found = [producer.last_sequence(one) for one in topic.partitions]
        assert found == [2, 501]


def test_call_that_is_not_the_next_one_is_refused(tmp_path: Path) -> None:
    """A gap, a part of an appended call, one that is too old: nothing is written."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        producer = store.producer("outbox")
        for n in range(8):
            producer.append_many(partition, [b"x"] * 2, sequence=2 * n)
        for sequence, count, error in (
            (17, 1, logstore.errors.OutOfOrderSequenceError),
            (15, 2, logstore.errors.OutOfOrderSequenceError),
            (13, 2, logstore.errors.OutOfOrderSequenceError),
            (0, 2, logstore.errors.DuplicateSequenceError),
            (4, 1, logstore.errors.DuplicateSequenceError),
        ):
            with pytest.raises(error, match="orders-0") as caught:
                producer.append_many(partition, [b"y"] * count, sequence=sequence)
            assert isinstance(caught.value, logstore.errors.ProducerError)
            assert caught.value.producer_id == producer.producer_id
        assert partition.end_offset == 16
        assert producer.append_many(partition, [b"x"] * 2, sequence=6) == range(6, 8)
        # Several calls are found as one if nothing lies between them.
        assert producer.append_many(partition, [b"x"] * 4, sequence=12) == range(12, 16)
        assert producer.append(partition, b"z", sequence=16) == 16


def test_large_call_is_found_although_it_has_many_batches(tmp_path: Path) -> None:
    """More than the five that a producer's state has; calls of other producers in
    between are not counted as parts."""
    rng = random.Random(1)
    values = [rng.randbytes(1000) for _ in range(2000)]
    with logstore.open(tmp_path) as store:
        partition = made(store, segment_bytes=700_000)
        producer = store.producer("outbox")
        assert producer.append_many(partition, values, sequence=10) == range(2000)
        assert sum(1 for _ in partition.read_batches()) > 10
        assert producer.append_many(partition, values, sequence=10) == range(2000)
        producer.append_many(partition, values, sequence=2010)
        assert producer.append_many(partition, values * 2, sequence=10) == range(4000)
        partition.append(b"other")
        producer.append_many(partition, values, sequence=4010)
        with pytest.raises(logstore.errors.ProducerError):
            producer.append_many(partition, values * 2, sequence=2010)
        with pytest.raises(logstore.errors.ProducerError):
            producer.append_many(partition, values[1:], sequence=4011)
        assert producer.append_many(partition, values, sequence=4010) == range(
            4001, 6001
        )
        assert partition.end_offset == 6001
    with logstore.open(tmp_path) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        again = producer.append_many(partition, values, sequence=4010)
        assert again == range(4001, 6001)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("how", ["close", "kill", "take over"])
def test_sequences_go_on_in_another_epoch(tmp_path: Path, how: str, codec: str) -> None:
    """After a restart a call of the old epoch is found, and the next one appended."""
    path = tmp_path / "a"
    store = logstore.open(path)
    partition = made(store, codec=codec)
    old = store.producer("outbox")
    for n in range(7):
        old.append_many(partition, [b"%d" % n] * 2, sequence=2 * n)
    partition.flush()
    if how == "kill":
        path = crash(path, tmp_path / "b")
    if how != "take over":
        store.close()
        store = logstore.open(path)
        partition = store.topic("orders")[0]
    new = store.producer("outbox")
    assert (new.epoch, new.producer_id) == (1, old.producer_id)
    assert new.last_sequence(partition) == 13
    assert new.append_many(partition, [b"6"] * 2, sequence=12) == range(12, 14)
    assert new.append(partition, b"7", sequence=14) == 14
    assert new.append_many(partition, [b"5"] * 2, sequence=10) == range(10, 12)
    batches = list(partition.read_batches())
    assert [one.producer_epoch for one in batches] == [0] * 7 + [1]
    assert batches[-1].base_sequence == 14
    store.close()
    assert not logstore.verify(path, deep=True).problems


def test_producer_that_was_taken_over_is_fenced(tmp_path: Path) -> None:
    """It cannot append or query any more; other names continue."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        old, other = store.producer("outbox"), store.producer("other")
        old.append(partition, b"a")
        new = store.producer("outbox")
        for call in (
            lambda: old.append(partition, b"b"),
            lambda: old.append_many(partition, [b"a"], sequence=0),
            lambda: old.append_many(partition, []),
            lambda: old.last_sequence(partition),
        ):
            with pytest.raises(logstore.errors.ProducerFencedError) as caught:
                call()
            error = caught.value
            assert isinstance(error, logstore.errors.ProducerError)
            assert (error.name, error.epoch, error.expected) == ("outbox", 0, 1)
            assert error.partition == "orders-0"
            assert error.producer_id == old.producer_id
        assert new.append(partition, b"c") == 1
        assert other.append(partition, b"d") == 2
        assert values_of(partition) == [b"a", b"c", b"d"]


def test_take_over_excludes_appends_that_run_beside_it(tmp_path: Path) -> None:
    """The new one knows the earlier appends of the old one; no more follow."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        producer = store.producer("outbox")
        begun, done = threading.Event(), threading.Event()

        def append(one: logstore.Producer) -> None:
            try:
                while True:
                    one.append(partition, b"x")
                    begun.set()
            except logstore.errors.ProducerFencedError:
                done.set()

        for _ in some(range(20), 4):
            begun.clear()
            done.clear()
            thread = threading.Thread(target=append, args=(producer,))
            thread.start()
            assert begun.wait(60)
            producer = store.producer("outbox")
            last, end = producer.last_sequence(partition), partition.end_offset
            thread.join()
            assert done.is_set()
            assert partition.end_offset == end
            assert (-1 if last is None else last) == end - 1
            producer.append(partition, b"y")
        found = [batch.base_sequence for batch in partition.read_batches()]
        assert found == list(range(len(found)))


def test_log_with_a_later_epoch_fences(tmp_path: Path) -> None:
    """The file of the names is an old one, from a backup."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        store.producer("outbox").append(partition, b"a")
        old = (tmp_path / PRODUCERS).read_bytes()
        store.producer("outbox")
        store.producer("outbox").append(partition, b"b")
    (tmp_path / PRODUCERS).write_bytes(old)
    with logstore.open(tmp_path) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        with pytest.raises(logstore.errors.ProducerFencedError) as caught:
            producer.append(partition, b"c")
        assert (caught.value.epoch, caught.value.expected) == (1, 2)
        assert producer.last_sequence(partition) == 1
        assert store.producer("outbox").append(partition, b"c") == 2


def test_id_follows_when_all_epochs_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences continue, and calls under the old id are found."""
    monkeypatch.setattr(producer_names, "EPOCH_MAX", 1)
    ids = set()
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2, config_of(2))
        for n in range(5):
            producer = store.producer("outbox")
            ids.add(producer.producer_id)
            assert producer.epoch == n % 2
            for one in (topic[0], *[topic[1]][n:]):
                assert producer.last_sequence(one) == (n - 1 if n else None)
                if n:
                    assert (
                        producer.append(one, b"%d" % (n - 1), sequence=n - 1) == n - 1
                    )
                    with pytest.raises(logstore.errors.OutOfOrderSequenceError):
                        producer.append(one, b"x", sequence=n + 1)
                assert producer.append(one, b"%d" % n, sequence=n) == n
        assert producer.last_sequence(topic[1]) == 0
        assert producer.append(topic[1], b"0", sequence=0) == 0
        assert producer.append(topic[1], b"1", sequence=1) == 1
    assert len(ids) == 3


def test_sequences_go_on_at_zero_after_the_largest(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        partition, producer = made(store), store.producer("outbox")
        assert producer.append_many(partition, [b"x"] * 3, sequence=LAST - 1) == range(
            3
        )
        assert producer.last_sequence(partition) == 0
        assert producer.append_many(partition, [b"x"] * 3, sequence=LAST - 1) == range(
            3
        )
        assert producer.append(partition, b"y") == 3
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            producer.append(partition, b"x", sequence=LAST)


def test_named_producer_is_never_forgotten(tmp_path: Path) -> None:
    """Neither days without a record nor the deletion of all its records change that,
    even if the store is opened in between by programs that use no producer."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = made(store, file_delete_delay_ms=0)
        old = files.now_ms() - 9 * EXPIRY_MS
        producer = store.producer("outbox")
        producer.append_many(partition, [b"x"] * 3, None, [old] * 3, sequence=40)
        partition.append_batches(sent(7, 0, 5, timestamp_ms=old))
    for _ in range(3):
        with logstore.open(tmp_path) as store:
            partition = store.topic("orders")[0]
            partition.append_many([b"plain"] * 10)
            partition.roll()
            partition.delete_before(partition.end_offset - 1)
            partition.append(b"plain")
    with logstore.open(tmp_path) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        assert producer.last_sequence(partition) == 42
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            producer.append(partition, b"x", sequence=50)
        # A producer without a name has expired.
        partition.append_batches(sent(7, 0, 99))


def test_named_producer_is_known_after_a_kill_and_a_deletion(tmp_path: Path) -> None:
    """Killed before any snapshot but the first; then its segment is deleted."""
    path, killed = tmp_path / "a", tmp_path / "b"
    with logstore.open(path) as store:
        partition = made(store, file_delete_delay_ms=0)
        producer = store.producer("outbox")
        producer.append_many(partition, [b"x"] * 3)
        partition.flush()
        crash(path, killed)
    with logstore.open(killed) as store:
        partition = store.topic("orders")[0]
        partition.append(b"plain")
        partition.roll()
        partition.append(b"plain")
        partition.delete_before(4)
    with logstore.open(killed) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        assert producer.last_sequence(partition) == 2


def test_named_producer_is_known_after_a_deletion_and_a_cut(tmp_path: Path) -> None:
    """Its batch was deleted, and the log is cut below the snapshot that had it."""
    with logstore.open(tmp_path) as store:
        partition = made(store, file_delete_delay_ms=0)
        producer, other = store.producer("outbox"), store.producer("other")
        producer.append_many(partition, [b"x"] * 3)
        partition.roll()
        for n in range(4):
            other.append(partition, b"%d" % n)
        partition.delete_before(4)
        partition.truncate_to(5)
        assert producer.last_sequence(partition) == 2
        assert other.last_sequence(partition) == 1
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert store.producer("outbox").last_sequence(partition) == 2
        other = store.producer("other")
        assert other.append(partition, b"2", sequence=2) == 5


def test_named_producer_is_known_after_a_cut_of_all_its_batches(tmp_path: Path) -> None:
    """Its earlier records were deleted, and the snapshots have its last batch only: the
    first batch that is cut gives the sequence before it."""
    path, killed = tmp_path / "a", tmp_path / "b"
    with logstore.open(path) as store:
        partition = made(store, file_delete_delay_ms=0)
        producer = store.producer("outbox")
        producer.append(partition, b"0")
        producer.append(partition, b"1")
        partition.flush()
        crash(path, killed)
    with logstore.open(killed) as store:
        partition = store.topic("orders")[0]
        partition.append(b"plain")
        partition.roll()
        partition.append(b"plain")
        partition.delete_before(3)
        producer = store.producer("outbox")
        producer.append(partition, b"2")
        producer.append(partition, b"3")
    with logstore.open(killed) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        partition.truncate_to(4)
        assert producer.last_sequence(partition) == 1
        with pytest.raises(logstore.errors.DuplicateSequenceError):
            producer.append(partition, b"1", sequence=1)
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            producer.append(partition, b"3", sequence=3)
    with logstore.open(killed) as store:
        partition, producer = store.topic("orders")[0], store.producer("outbox")
        assert producer.append(partition, b"2", sequence=2) == 4
        assert producer.last_sequence(partition) == 2


def test_copy_of_a_log_with_its_producers_is_checked(tmp_path: Path) -> None:
    """Batches of named producers are checked when they are appended unchanged: their
    sequences continue over an epoch."""
    with logstore.open(tmp_path) as store:
        partition = made(store)
        copy = store.create_topic("copy", config=config_of(2))[0]
        for _ in range(3):
            store.producer("outbox").append_many(partition, [b"x"] * 2)
        for batch in partition.read_batches():
            assert copy.append_batches(batch.buffer) == range(
                batch.base_offset, batch.next_offset
            )
            assert copy.append_batches(batch.buffer).start == batch.base_offset
        stale = next(partition.read_batches()).buffer
        with pytest.raises(logstore.errors.InvalidProducerEpochError):
            copy.append_batches(stale)
        producer = store.producer("outbox")
        assert producer.last_sequence(copy) == 5
        assert producer.append(copy, b"y", sequence=6) == 6


@pytest.mark.parametrize("magic", [0, 1])
def test_topic_without_sequences_is_refused(tmp_path: Path, magic: int) -> None:
    with logstore.open(tmp_path) as store:
        partition, producer = made(store, magic), store.producer("outbox")
        with pytest.raises(logstore.errors.UnsupportedError, match="message_format=2"):
            producer.append(partition, b"x")
        assert partition.end_offset == 0
        assert producer.last_sequence(partition) is None
        topic = store.topic("orders")
        topic.configure(config_of(2))
        assert producer.append(topic[0], b"x") == 0
        topic.configure(config_of(magic))
        with pytest.raises(logstore.errors.UnsupportedError):
            producer.append(topic[0], b"x")


def test_settings_that_change_meanwhile_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records were encoded for other settings when the lock is taken."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", config=config_of(2))
        producer = store.producer("outbox")
        producer.append(topic[0], b"a")
        appends = appends_of(topic[0]).writer().appends
        encode = type(appends)._encode_all
        others = [config_of(1), config_of(2, codec="gzip")]

        def changed(self: object, groups: object) -> object:
            encoded = encode(appends, groups)  # type: ignore[arg-type]
            if others and not appends_of(topic[0]).writer().lock.is_mine:
                topic.configure(others.pop())
            return encoded

        monkeypatch.setattr(type(appends), "_encode_all", changed)
        assert producer.append_many(topic[0], [b"b" * 99] * 9) == range(1, 10)
        with pytest.raises(logstore.errors.UnsupportedError):
            producer.append(topic[0], b"c")
        codecs = [batch.compression for batch in topic[0].read_batches()]
        assert codecs == ["none", "gzip"]
        assert topic[0].end_offset == 10


def test_time_of_the_append_is_stored_where_the_topic_says_so(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        config = config_of(2, message_timestamp_type="LogAppendTime")
        partition = store.create_topic("orders", config=config)[0]
        producer = store.producer("outbox")
        before = files.now_ms()
        producer.append_many(partition, [b"x"] * 2, None, [5, 6])
        assert all(one.timestamp_ms >= before for one in partition.read())
        # The time of its last batch is the time of the append: it is not old.
        assert partition.append_batches(sent(3, 0, 0, timestamp_ms=1)) == range(2, 3)
        with pytest.raises(logstore.errors.OutOfOrderSequenceError):
            partition.append_batches(sent(3, 0, 5, timestamp_ms=1))


def test_bad_arguments_write_nothing(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "a") as store, logstore.open(tmp_path / "b") as other:
        partition, foreign = made(store), made(other)
        for name in ("", "x" * 1001, "\ud800", 7, None, b"x"):
            with pytest.raises(logstore.ConfigError):
                store.producer(name)  # type: ignore[arg-type]
        assert not (tmp_path / "a" / PRODUCERS).exists()
        producer = store.producer("x" * 1000)
        for sequence in (-1, 2**31, 1.5, "0", True):
            with pytest.raises(logstore.ConfigError):
                producer.append(partition, b"x", sequence=sequence)  # type: ignore[arg-type]
        with pytest.raises(logstore.ConfigError, match="another store"):
            producer.append(foreign, b"x")
        with pytest.raises(logstore.ConfigError):
            producer.append_many(partition, [b"x"], [b"k"] * 2)
        with pytest.raises(logstore.errors.RecordTooLargeError):
            producer.append(partition, bytes(2_000_000))
        for bad in ("orders", ("orders",), ("orders", "0"), ("orders", True), None):
            with pytest.raises(TypeError):
                producer.append(bad, b"x")  # type: ignore[arg-type]
        with pytest.raises(logstore.TopicNotFoundError):
            producer.append(("none", 0), b"x")
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            producer.append(("orders", 1), b"x")
        with pytest.raises(TypeError):
            pickle.dumps(producer)
        assert (partition.end_offset, foreign.end_offset) == (0, 0)
        assert producer.append(partition, b"x") == 0


def test_store_that_cannot_be_written_has_no_producer(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        partition, producer = made(store), store.producer("outbox")
    with pytest.raises(logstore.errors.StoreClosedError):
        producer.append(partition, b"x")
    with pytest.raises(logstore.errors.StoreClosedError):
        store.producer("outbox")
    with logstore.open(tmp_path, read_only=True) as reader:
        with pytest.raises(logstore.errors.ReadOnlyError):
            reader.producer("outbox")
        with logstore.open(tmp_path) as store:
            producer = store.producer("outbox")
            with pytest.raises(logstore.errors.ReadOnlyError):
                producer.append(reader.topic("orders")[0], b"x")


def test_deleted_topic_has_no_sequences(tmp_path: Path) -> None:
    """A topic that is made again with its name begins without any."""
    with logstore.open(tmp_path) as store:
        partition, producer = made(store), store.producer("outbox")
        producer.append_many(partition, [b"x"] * 3)
        store.delete_topic("orders")
        with pytest.raises(logstore.TopicNotFoundError):
            producer.append(partition, b"x")
        partition = made(store)
        assert producer.last_sequence(partition) is None
        assert producer.append(partition, b"x", sequence=3) == 0


# ---------------------------------------------------------------- the file of the names


def test_damaged_file_of_names_is_an_error_and_stays(tmp_path: Path) -> None:
    """Any flipped bit is an error: the file is never replaced by a new one."""
    with logstore.open(tmp_path) as store:
        made(store)
        store.producer("outbox")
    path = tmp_path / PRODUCERS
    good = path.read_bytes()
    for bit in some(range(8 * len(good)), 20):
        path.write_bytes(good)
        flip_bit(path, bit)
        bad = path.read_bytes()
        with logstore.open(tmp_path) as store:
            with pytest.raises(logstore.errors.CorruptCheckpointError) as caught:
                store.producer("outbox")
            assert caught.value.path == str(path)
            assert path.read_bytes() == bad
    path.write_bytes(b"")
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.errors.CorruptCheckpointError):
            store.producer("outbox")
        path.write_bytes(good)
        assert store.producer("outbox").epoch == 1


@pytest.mark.parametrize(
    "call", ["create", "write", "sync", "rename", "sync_directory"]
)
def test_take_over_that_fails_leaves_the_name_usable(tmp_path: Path, call: str) -> None:
    """Either the old producer continues, or the next take-over."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition, old = made(store), store.producer("outbox")
        old.append(partition, b"a")
        files.forget()
        files.fail(call, name=PRODUCERS if call != "sync_directory" else "", times=1)
        try:
            store.producer("outbox")
        except logstore.StorageError:
            assert old.append(partition, b"b", sequence=1) == 1
        files.heal()
        new = store.producer("outbox")
        assert new.epoch > old.epoch
        assert new.last_sequence(partition) == partition.end_offset - 1
    assert not logstore.verify(tmp_path).problems
