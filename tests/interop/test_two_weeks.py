"""Two weeks in the life of a store: each day it is opened, written to and killed, and
copied, restored from a snapshot, or handed over to a broker and taken back, while
groups and producers continue. At the end every record is counted."""

from __future__ import annotations

import collections
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logstore
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.releases import WITH_KRAFT
from support.two_weeks import PARTITIONS

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from support import kafka_clients as clients

SEED = int(os.environ.get("LOGSTORE_TWO_WEEKS_SEED", "1"))
DAYS = 14
# The broker of a day; after a newer one no older one starts.
BROKERS = dict(zip((3, 6, 9, 12), WITH_KRAFT[-4:], strict=True))
# On these days the broker starts on a snapshot that has not been opened yet.
ON_SNAPSHOTS = (6, 12)
COUNTS = {"orders": PARTITIONS, "invoices": 1}
_TESTS = Path(__file__).resolve().parents[1]
# Seconds until the service of a day is killed.
_WORK_S = (0.3, 1.2)

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(1800),
]


class Life:
    """The store, and the records that it must have.

    Attributes:
        promised: values of orders that were acknowledged.
        heard: records read by the group `audit`: (partition, offset) and value.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "data"
        self.promised: set[bytes] = set()
        self.heard: collections.Counter[tuple[int, int, bytes]] = collections.Counter()
        self.events: list[str] = []
        self._directory = directory
        self._rng = random.Random(SEED)

    # ---------------------------------------------------------------- a day's work

    def serve(self, day: int) -> None:
        """Run a service, and kill it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "support.two_weeks", str(self.path), str(day)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=_TESTS,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        killer = threading.Timer(self._rng.uniform(*_WORK_S), process.kill)
        killer.start()
        out, errors = process.communicate()
        killer.cancel()
        assert process.returncode == -9, errors
        *lines, cut = (first + out).split(b"\n")
        assert lines, cut
        self.promised.update(lines)

    def bill(self, *, stops: bool = True) -> None:
        """The group `billing` writes an invoice for each order, in transactions; it may
        stop before it has them all."""
        with self._consumer("billing") as consumer:
            while True:
                with consumer.transaction() as transaction:
                    found = consumer.poll(max_records=50, timeout_ms=300)
                    for records in found.values():
                        for record in records:
                            name = b"%d-%d" % (record.partition, record.offset)
                            transaction.append("invoices", name)
                    if stops and self._rng.random() < 0.1:
                        break
                if not found:
                    return

    def audit(self) -> None:
        """The group `audit` reads new records, and commits; also while a broker
        runs."""
        with self._consumer("audit") as consumer:
            while found := consumer.poll(timeout_ms=300):
                for records in found.values():
                    for one in records:
                        self.heard[one.partition, one.offset, one.value] += 1
                consumer.commit()

    def _consumer(self, group: str) -> logstore.Consumer:
        return logstore.Consumer(
            self.path, group=group, topics=["orders"], reset="earliest"
        )

    # ------------------------------------------------------- changes of the store

    def copy(self) -> None:
        """The closed store is copied file by file; the copy replaces it."""
        with logstore.open(self.path):
            pass
        moved = self._directory / "copy"
        shutil.copytree(self.path, moved, symlinks=True)
        shutil.rmtree(self.path)
        moved.rename(self.path)

    def restore(self) -> None:
        """The machine is lost just after a snapshot, which replaces the store."""
        moved = self._directory / "snapshot"
        with logstore.open(self.path) as store:
            store.snapshot(moved)
        shutil.rmtree(self.path)
        moved.rename(self.path)

    def compact(self) -> None:
        """A topic is compacted, deleted and created again; the other topics stay."""
        config = logstore.TopicConfig(cleanup_policy="compact", message_format=2)
        with logstore.open(self.path) as store:
            if "beside" in store.topics():
                store.delete_topic("beside")
            beside = store.create_topic("beside", config=config)[0]
            for number in range(30):
                beside.append(b"%d" % number, key=b"%d" % (number % 3))
                if number % 10 == 9:
                    beside.roll()
            beside.compact(force=True)
            assert {record.value for record in beside.read()} >= {b"29"}

    def change(self) -> None:
        """The work of an operator on a day."""
        choices: list[Callable[[], None]] = [self.copy, self.restore, self.compact]
        chosen = self._rng.choice(choices)
        self.events.append(chosen.__name__)
        chosen()

    def broker_day(self, broker: KafkaBroker, day: int) -> None:
        """A broker has the directory, and writes; the audit runs at the same time."""
        sent = [b"sent %d-%d" % (day, number) for number in range(40)]
        with broker:
            broker.start()
            clients.await_topics(broker, COUNTS)
            records = [
                logstore.Record(-1, 1_700_000_000_000 + day, None, v) for v in sent
            ]
            clients.send(broker, {"orders": records}, enable_idempotence=True)
            self.audit()
            if day % 2:
                broker.stop()
            else:
                broker.stop(kill=True)
        self.promised.update(sent)

    # --------------------------------------------------------------------- the count

    def count(self) -> str:
        """Every record is there once, with its expected contents. Returns a summary."""
        with logstore.open(self.path, read_only=True) as store:
            orders = {
                (number, record.offset): record.value or b""
                for number in range(PARTITIONS)
                for record in store.topic("orders")[number].read()
            }
            invoices = [record.value for record in store.topic("invoices")[0].read()]
        values = collections.Counter(orders.values())
        twice = {value: times for value, times in values.items() if times > 1}
        assert not twice, f"{len(twice)} records are there more than once: {twice}"
        lost = self.promised - values.keys()
        assert not lost, f"{len(lost)} acknowledged records are lost: {lost}"
        for word in (b"published", b"moved"):
            numbers = [int(v.split()[1]) for v in values if v.startswith(word)]
            assert sorted(numbers) == list(range(len(numbers))), word
        expected = {b"%d-%d" % place for place in orders}
        assert collections.Counter(invoices) == collections.Counter(expected)
        heard = {(*place, value) for place, value in orders.items()}
        assert self.heard == collections.Counter(heard)
        return f"{len(orders)} orders, {len(invoices)} invoices, {self.events}"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "life"
    path.mkdir()
    return path


def test_every_record_of_two_weeks_is_there_once(directory: Path) -> None:
    """Nothing is lost, nothing is there twice, and no group reads a record twice."""
    try:
        first = KafkaBroker(directory, BROKERS[3], cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with first:
        first.start()
        clients.create_topics(first, COUNTS)
        first.stop()
    life = Life(directory)
    assert life.path == first.data
    with logstore.open(life.path) as store:
        for topic in COUNTS:
            store.topic(topic).configure(logstore.TopicConfig(message_format=2))
    for day in range(1, DAYS + 1):
        life.serve(day)
        life.audit()
        life.bill()
        if day in BROKERS:
            if day in ON_SNAPSHOTS:
                life.restore()
            else:
                with logstore.open(life.path):
                    pass
            life.events.append(BROKERS[day])
            broker = KafkaBroker(directory, BROKERS[day], cache_directory())
            life.broker_day(broker, day)
        life.change()
    life.audit()
    life.bill(stops=False)
    print(life.count())
