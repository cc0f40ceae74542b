"""Readers of a store's directory while a broker has it.

The broker appends, rolls, deletes by size and on request, compacts, commits and aborts,
is killed and started again; the one of 0.10 knows no transactions, headers and requests
to delete. Each read must be right (`support.broker_ledger`), by each way to read, of
new readers and of long-lived ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Record, TimestampType
from support.broker_ledger import Ledger, number_of
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError, numbers_of
from support.levels import IS_ALL, mostly_thorough
from support.releases import NEWEST, STARTED

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException, Producer

from support import kafka_clients as clients

SECONDS = int(os.environ.get("LOGSTORE_BROKER_SECONDS", "180" if IS_ALL else "15"))
SEED = int(os.environ.get("LOGSTORE_BROKER_SEED", "1"))
TOPICS = ("rolled", "retained", "compacted", "bound")
ISOLATIONS = ("read_uncommitted", "read_committed")
WAIT_S = 60
# From 4.0 on, no segment is smaller.
_SEGMENT_BYTES = 1 << 20
_SETTINGS = {
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
    "log.cleaner.backoff.ms": 300,
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 3000,
}

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 3 * SECONDS),
]


def codecs_of(release: str) -> tuple[str, ...]:
    return clients.CODECS if numbers_of(release) >= (2, 1) else clients.CODECS[:-1]


def kill_every_s(release: str) -> float:
    """Time until the broker is killed, in seconds. Older ones begin to delete, and to
    store the starts of logs, half a minute after their start."""
    longest = 20 if numbers_of(release) >= (3, 5) else 60
    return min(longest, SECONDS / 3)


def is_plain(release: str) -> bool:
    """Whether there is magic 1 only, and one kind of producers."""
    return numbers_of(release) < (0, 11)


class Sender(threading.Thread):
    """Sends to all topics until it is stopped, also while the broker is down."""

    def __init__(self, broker: KafkaBroker, ledger: Ledger) -> None:
        super().__init__()
        self.ending = threading.Event()
        self.error: BaseException | None = None
        self._connection = clients.connection(broker)
        self._is_plain = is_plain(broker.release)
        self._ledger = ledger
        self._rng = random.Random(SEED)
        self._count = 0
        self._plain = [
            Producer(self._settings(**{"compression.type": codec, "linger.ms": 5}))
            for codec in codecs_of(broker.release)
        ]
        self._bound = None if self._is_plain else self._new_bound()

    def _settings(self, **more: object) -> dict[str, object]:
        return {
            **self._connection,
            "enable.idempotence": not self._is_plain,
            "message.timeout.ms": 0,
            "reconnect.backoff.max.ms": 500,
            **more,
        }

    def _new_bound(self) -> Any:
        settings = {"transactional.id": "test", "message.timeout.ms": 60_000}
        bound = Producer(self._settings(**settings))
        self._again(lambda: bound.init_transactions(WAIT_S))
        return bound

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                one = self._rng.choice(self._plain)
                self._send(one, self._rng.choice(TOPICS), None)
                one.poll(0)
                if self._bound is not None and self._rng.random() < 0.4:
                    self._transaction()
                time.sleep(self._rng.choice([0, 0.02, 0.1]))
            for one in self._plain:
                assert one.flush(WAIT_S) == 0
        except BaseException as error:
            self.error = error

    def _send(self, producer: Any, topic: str, transaction: int | None) -> None:
        rng = self._rng
        for _ in range(rng.choice([1, 3, 20])):
            self._count += 1
            number = self._count
            key = rng.choice([b"", None, b"key"])
            if topic == "compacted":
                key = b"%d" % rng.randrange(40)
            value = rng.choice([None, b"", rng.randbytes(rng.randrange(3000))])
            headers: list[tuple[str, bytes | None]] = [("number", b"%d" % number)]
            headers += rng.choice([[], [("more", None), ("more", b"")]])
            if self._is_plain:
                headers, value = [], b"%d:" % number + (value or b"")
            stamp = time.time_ns() // 1_000_000 - rng.choice([0, 0, 0, 300])
            kind = TimestampType.CREATE_TIME
            record = Record(-1, stamp, key, value, tuple(headers), kind)
            self._ledger.add(record, transaction)
            self._produce(
                producer,
                topic,
                value,
                key,
                partition=0,
                timestamp=stamp,
                headers=headers,
                on_delivery=lambda e, m, n=number: self._delivered(e, m, n),
            )

    def _produce(self, producer: Any, *record: object, **more: object) -> None:
        """A broker that has just restarted does not know its topics for a while."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                producer.produce(*record, **more)
                return
            except KafkaException as error:
                is_unknown = error.args[0].code() == KafkaError._UNKNOWN_TOPIC
                if not is_unknown or time.monotonic() > end:
                    raise
            producer.poll(0.2)

    def _delivered(self, error: Any, message: Any, number: int) -> None:
        # A record whose offset was lost in a kill of the broker has no known place.
        if error is None and message.offset() >= 0:
            self._ledger.acknowledge(message.topic(), number, message.offset())

    def _transaction(self) -> None:
        transaction = self._ledger.begin_transaction()
        state = "unknown"
        try:
            self._bound.begin_transaction()
            for _ in range(self._rng.choice([1, 2])):
                self._send(self._bound, self._rng.choice(TOPICS), transaction)
                if self._rng.random() < 0.5:
                    self._bound.flush(WAIT_S)
            state = self._rng.choice(["committed", "committed", "aborted"])
            end = self._bound.abort_transaction
            if state == "committed":
                end = self._bound.commit_transaction
            self._again(lambda: end(WAIT_S))
        except KafkaException as error:
            state = "unknown"
            if error.args[0].txn_requires_abort():
                with contextlib.suppress(KafkaException):
                    self._again(lambda: self._bound.abort_transaction(WAIT_S))
                    state = "aborted"
            if state == "unknown":
                self._bound = self._new_bound()
        self._ledger.end_transaction(transaction, state)

    def _again(self, call: Callable[[], object]) -> None:
        """Repeat a call until the broker is back."""
        end = time.monotonic() + 3 * WAIT_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > end:
                    raise


# ------------------------------------------------------------------- looks


def _read(partition: Any, isolation: str) -> list[Record]:
    return list(partition.read(isolation=isolation))


def _batches(partition: Any, isolation: str) -> list[Record]:
    start = partition.start_offset  # may be inside a batch
    batches = partition.read_batches(isolation=isolation)
    every = (r for batch in batches if not batch.is_control for r in batch)
    return [record for record in every if record.offset >= start]


def _fetched(partition: Any, isolation: str) -> list[Record]:
    found: list[Record] = []
    offset = partition.start_offset
    while True:
        chunk = partition.fetch(offset, 50_000, isolation=isolation)
        found += [record for record in chunk if record.offset >= offset]
        if chunk.next_offset <= offset:
            return found
        offset = chunk.next_offset


def _followed(partition: Any, isolation: str) -> list[Record]:
    return list(partition.follow(timeout=0, isolation=isolation))


WAYS = (_read, _batches, _fetched, _followed)


class Looker:
    """Reads the logs, and checks each result.

    Attributes:
        looks: how many.
        moved: how many looks a deletion has overtaken.
    """

    def __init__(self, data: Path, ledger: Ledger) -> None:
        self.looks = self.moved = 0
        self._data, self._ledger = data, ledger
        self._rng = random.Random(f"looks {SEED}")
        self._staying = logstore.open(data, read_only=True)
        self._starts = dict.fromkeys(TOPICS, 0)
        self._following: dict[tuple[str, str], list[Record]] = {
            (topic, isolation): [] for topic in TOPICS for isolation in ISOLATIONS
        }

    def close(self) -> None:
        self._staying.close()

    def look(self) -> None:
        """Read one topic in one way, by a new reader or by the long-lived one."""
        topic, isolation = self._rng.choice(TOPICS), self._rng.choice(ISOLATIONS)
        self.looks += 1
        if self._rng.random() < 0.4:
            with logstore.open(self._data, read_only=True) as store:
                self._look(store.topic(topic)[0], isolation)
        else:
            self._look(self._staying.topic(topic)[0], isolation)
        self._follow(topic, isolation)

    def _look(self, partition: Any, isolation: str) -> None:
        topic = partition.topic
        until = self._ledger.acknowledged_until(topic)
        assert partition.end_offset >= until
        start = self._start(partition)
        try:
            records = self._rng.choice(WAYS)(partition, isolation)
        except logstore.OffsetOutOfRangeError as error:
            # The segment was deleted before the read reached it.
            self._overtaken(topic, start, error)
            return
        compacted = topic == "compacted"
        self._ledger.check(
            topic, records, compacted=compacted, isolation=isolation, until=until
        )
        if records and not compacted and isolation == "read_uncommitted":
            assert start <= records[0].offset
            # Markers of transactions may come before the first record.
            first = self._first(topic, self._start(partition))
            assert first is None or records[0].offset <= first
        self._look_at_one(partition, records)

    def _overtaken(
        self, topic: str, offset: int, error: logstore.OffsetOutOfRangeError
    ) -> None:
        """A deletion overtook the read; any other cause is an error."""
        assert topic == "retained", error
        assert offset < error.start, error
        self.moved += 1

    def _first(self, topic: str, start: int) -> int | None:
        return self._ledger.first_since(topic, 0, start)

    def _start(self, partition: Any) -> int:
        start: int = partition.start_offset
        assert start == 0 or partition.topic == "retained"
        assert start >= self._starts[partition.topic]
        self._starts[partition.topic] = start
        return start

    def _look_at_one(self, partition: Any, records: list[Record]) -> None:
        if not records:
            return
        record = self._rng.choice(records)
        topic = partition.topic
        try:
            assert partition.get(record.offset) == record
        except (logstore.OffsetOutOfRangeError, logstore.errors.RecordNotFoundError):
            if topic != "compacted":
                assert topic == "retained"
                assert record.offset < self._start(partition)
        start = self._start(partition)
        offset = partition.offset_for_time(record.timestamp_ms)
        if topic == "compacted":
            if offset is not None:
                found = self._ledger.sent_at(topic, offset)
                assert found is None or found.timestamp_ms >= record.timestamp_ms
            return
        later = self._ledger.first_since(
            topic, record.timestamp_ms, self._start(partition)
        )
        assert offset is not None or later is None
        if later is not None:
            assert start <= offset <= later
            found = self._ledger.sent_at(topic, offset)
            assert found is None or found.timestamp_ms >= record.timestamp_ms

    def _follow(self, topic: str, isolation: str) -> None:
        """A reader that continues at its last position."""
        found = self._following[topic, isolation]
        start = found[-1].offset + 1 if found else None
        partition = self._staying.topic(topic)[0]
        try:
            for record in partition.follow(start, timeout=0, isolation=isolation):
                found.append(record)
        except logstore.OffsetOutOfRangeError as error:
            self._overtaken(topic, start or 0, error)
            self._ledger.check(topic, found, isolation=isolation)
            found.clear()

    def finish(self) -> None:
        """The followed records are complete and right, too."""
        for (topic, isolation), found in self._following.items():
            compacted = topic == "compacted"
            self._ledger.check(topic, found, compacted=compacted, isolation=isolation)


# ------------------------------------------------------------------- broker


@pytest.fixture(params=mostly_thorough(("0.10.2.2", "1.1.1", *STARTED), NEWEST))
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaBroker]:
    try:
        started = KafkaBroker(tmp_path, request.param, cache_directory(), _SETTINGS)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with started:
        started.start()
        small = {"segment_bytes": _SEGMENT_BYTES, "segment_ms": 1500}
        small["file_delete_delay_ms"] = 500
        clients.create_topics(started, {"rolled": 1, "bound": 1}, **small)
        retention = {"retention_bytes": _SEGMENT_BYTES // 4}
        clients.create_topics(started, {"retained": 1}, **small, **retention)
        compaction = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.01,
            "delete_retention_ms": 500,
        }
        clients.create_topics(started, {"compacted": 1}, **small, **compaction)
        yield started


class Life(threading.Thread):
    """Deletions, kills and restarts of the broker, while other threads send."""

    def __init__(self, broker: KafkaBroker, ledger: Ledger) -> None:
        super().__init__()
        self.ending = threading.Event()
        self.kills = 0
        self.error: BaseException | None = None
        self._broker, self._ledger = broker, ledger
        self._half_s = kill_every_s(broker.release) / 2

    def run(self) -> None:
        try:
            while not self.ending.wait(self._half_s):
                offset = self._ledger.acknowledged_until("retained") // 2
                if offset and not is_plain(self._broker.release):
                    clients.delete_records(self._broker, "retained", offset)
                if self.ending.wait(self._half_s):
                    break
                self._broker.stop(kill=True)
                self.kills += 1
                self._broker.start()
                clients.await_topics(self._broker, dict.fromkeys(TOPICS, 1))
        except BaseException as error:
            self.error = error


def ours(data: Path, isolation: str) -> clients.Found:
    with logstore.open(data, read_only=True) as store:
        return {(t, 0): _read(store.topic(t)[0], isolation) for t in TOPICS}


def compare(broker: KafkaBroker, isolation: str) -> int:
    """Records of Kafka's client equal ours at the end. The cleaner may run in between.
    Returns the number of records."""
    counts = dict.fromkeys(TOPICS, 1)
    for _ in range(10):
        expected = clients.consumed(broker, counts, isolation)
        found = ours(broker.data, isolation)
        if found == expected:
            break
        time.sleep(2)
    for place, records in expected.items():
        assert found[place] == records, place
    return sum(map(len, expected.values()))


@pytest.mark.thorough
def test_every_look_at_a_running_broker_is_right(broker: KafkaBroker) -> None:
    ledger = Ledger()
    sender, life = Sender(broker, ledger), Life(broker, ledger)
    looker = Looker(broker.data, ledger)
    end = time.monotonic() + SECONDS
    sender.start()
    life.start()
    try:
        while time.monotonic() < end and not (sender.error or life.error):
            looker.look()
    finally:
        life.ending.set()
        life.join()
        sender.ending.set()
        sender.join()
    for thread in (sender, life):
        if thread.error is not None:
            raise thread.error
    for _ in range(20):
        looker.look()
    looker.finish()
    looker.close()
    totals = [compare(broker, isolation) for isolation in ISOLATIONS]
    broker.stop(kill=True)
    uncommitted = ours(broker.data, ISOLATIONS[0])
    with logstore.open(broker.data) as store:
        for (topic, _), records in uncommitted.items():
            assert _read(store.topic(topic)[0], ISOLATIONS[0]) == records
    assert {number_of(r) for records in uncommitted.values() for r in records}
    deleted = min(record.offset for record in uncommitted["retained", 0])
    compacted = uncommitted["compacted", 0]
    print(
        f"{broker.release}: {SECONDS} s, {life.kills} kills, {looker.looks} looks, "
        f"{looker.moved} overtaken, {ledger.compared} records compared; at last "
        f"{totals} records, {deleted} deleted, {len(compacted)} of "
        f"{compacted[-1].offset + 1} after compaction"
    )
