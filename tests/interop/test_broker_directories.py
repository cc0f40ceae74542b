"""Brokers take over directories that logstore has written, and give them back.

A store in every format, with logs that have been through a kill, a repair, retention
and more, becomes the log directory of a broker, as docs/operations.md says. Its clients
must get every record; it appends, and is stopped or killed; then logstore appends, and
the broker again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Record, TimestampType
from support.damage import flip_bit, logs_in
from support.handing_over import hand_over, hand_over_topics
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.lived_store import Lived, live
from support.releases import each_release
from support.values import headers_of, key_of, timestamp_of, value_of

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from support import kafka_clients as clients

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

_OF_TIME = re.compile(r"coordinator|EventPerformanceMonitor|\.raft\.")
_NUMBER = re.compile(r"\d+")
_PARTITION = re.compile(r"partition=(\S+),")
every_end = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])


@dataclass(slots=True)
class Store:
    """A store in every format, and the records that must be read from it.

    Attributes:
        records: of partition 0 of each topic.
    """

    directory: Path
    records: dict[str, list[Record]]

    @property
    def counts(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return dict.fromkeys(self.records, 1)


@pytest.fixture(scope="module")
def lived(written: Any, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that is made once, and copied by each test."""
    directory = tmp_path_factory.mktemp("lived") / "store"
    shutil.copytree(written.directory, directory)
    past: Lived = live(directory)
    records = {topic: past.records(topic) for topic in past.topics}
    for format in written.samples:
        records[format.topic] = written.records(format.topic)
        assert [(r.offset, r.key, r.value) for r in records[format.topic]] == [
            (n, s.key, s.value) for n, s in enumerate(written.samples[format])
        ]
    return Store(directory, records)


@dataclass(slots=True)
class Handed:
    """A store and a stopped broker of which it is the log directory.

    Attributes:
        records: those acknowledged so far, of partition 0 of each topic.
        compared: how many records have been compared.
    """

    broker: KafkaBroker
    records: dict[str, list[Record]]
    compared: int = 0
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = dict.fromkeys(self.records, 1)

    def compare(self, found: clients.Found) -> None:
        """Every record, and no other."""
        for (topic, number), records in found.items():
            assert number == 0
            assert records == self.records[topic], topic
            self.compared += len(records)
        assert {topic for topic, _ in found} == set(self.records)

    def read_ours(self) -> clients.Found:
        """Records as logstore reads them, with the broker running or stopped."""
        with logstore.open(self.broker.data, read_only=True) as store:
            return {
                (topic, 0): list(store.topic(topic)[0].read()) for topic in self.records
            }

    def send(self, count: int) -> None:
        """The broker appends to each topic, in each codec."""
        topics = sorted(self.records)
        for at, codec in enumerate(clients.CODECS):
            some = {
                topic: self._next(topic, count)
                for topic in topics[at :: len(clients.CODECS)]
            }
            settings = {"enable_idempotence": at % 2 == 0}
            sent = clients.send(self.broker, some, compression_type=codec, **settings)
            for topic, records in sent.items():
                self.records[topic] += records

    def _next(self, topic: str, count: int) -> list[Record]:
        first = len(self.records[topic])
        kind = TimestampType.CREATE_TIME
        return [
            Record(-1, timestamp_of(n), key_of(n), value_of(n), headers_of(n), kind)
            for n in range(first, first + count)
        ]

    def append(self) -> list[str]:
        """logstore cuts off the last batch of a log and the first records of another,
        and appends to each topic. Returns the labels of its recovery."""
        with logstore.open(self.broker.data) as store:
            report = store.recovery_report
            self._shorten(store)
            for topic in self.records:
                partition = store.topic(topic)[0]
                two = partition.config.message_format == 2
                some = self._next(topic, 7)
                span = partition.append_many(
                    [r.value for r in some],
                    [r.key for r in some],
                    [r.timestamp_ms for r in some],
                    [r.headers for r in some] if two else None,
                )
                self.records[topic] += list(partition.read(start=span.start))
            return [action.label for action in report.actions]

    def _shorten(self, store: logstore.Store) -> None:
        cut = store.topic("truncated")[0]
        *_, last = cut.read_batches()
        assert cut.truncate_to(last.base_offset) > 0
        kept = self.records["truncated"]
        self.records["truncated"] = [r for r in kept if r.offset < last.base_offset]
        self._delete_before("deleted", 10)
        assert store.topic("deleted")[0].delete_before(
            self.records["deleted"][0].offset
        )

    def _delete_before(self, topic: str, count: int) -> int:
        self.records[topic] = self.records[topic][count:]
        return self.records[topic][0].offset

    def delete_records(self) -> None:
        """The broker deletes the first records of a log."""
        for topic in ("repaired", "killed"):
            offset = self._delete_before(topic, 7)
            clients.delete_records(self.broker, topic, offset)


@pytest.fixture(scope="module", params=each_release())
def cluster(
    request: pytest.FixtureRequest,
    lived: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> KafkaBroker:
    """A stopped broker whose cluster has the topics of the store."""
    directory = tmp_path_factory.mktemp(f"cluster-{request.param}")
    try:
        broker = KafkaBroker(directory, request.param, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        broker.start()
        # Retention would delete records of earlier years.
        clients.create_topics(broker, lived.counts, retention_ms=-1)
        broker.stop()
    return broker


@pytest.fixture
def handed(cluster: KafkaBroker, lived: Store, tmp_path: Path) -> Iterator[Handed]:
    shutil.copytree(lived.directory, tmp_path / "store")
    (tmp_path / "broker").mkdir()
    cluster.copy_to(tmp_path / "broker")
    with KafkaBroker(tmp_path / "broker", cluster.release, cache_directory()) as broker:
        hand_over(tmp_path / "store", broker)
        records = {topic: list(found) for topic, found in lived.records.items()}
        yield Handed(broker, records)


def warnings(broker: KafkaBroker) -> set[tuple[str, str, str]]:
    """Messages of the broker since its start at WARN and above, except complaints about
    a busy machine, and about a stop while its own topics are loaded."""
    return {
        (level, logger, _NUMBER.sub("N", text.replace(str(broker.data), "DATA")))
        for level, logger, text in broker.messages()
        if level not in ("TRACE", "DEBUG", "INFO") and not _OF_TIME.search(logger)
    }


def recovered(broker: KafkaBroker) -> list[str]:
    """The logs that the broker has checked at its start. The log of its controller is
    checked at each start."""
    texts = [text for _, _, text in broker.messages() if "Recovering unfl" in text]
    partitions = [_PARTITION.search(text) for text in texts]
    names = [found[1] for found in partitions if found is not None]
    assert len(names) == len(texts)
    return [name for name in names if name != "__cluster_metadata-0"]


def is_clean(broker: KafkaBroker) -> bool:
    """Whether the broker has started on logs that it considers flushed."""
    said = [text for _, _, text in broker.messages() if "clean shutdown file" in text]
    (found,) = said
    assert recovered(broker) == [] or found.startswith(("Attempting", "Recovering"))
    return found.startswith("Skipping recovery")


@pytest.mark.sampled(1)
@every_end
def test_broker_serves_every_record_and_both_go_on(handed: Handed, kill: bool) -> None:
    """Clients of the broker get the records of logstore, and logstore gets theirs,
    whether the broker was stopped or killed; then once more."""
    broker = handed.broker
    broker.start()
    assert is_clean(broker)
    handed.compare(clients.consumed(broker, handed.counts))
    handed.compare(clients.consumed_by_kafka(broker, handed.counts))
    handed.send(20)
    if not kill:  # whose memory of it is lost
        handed.delete_records()
    handed.compare(clients.consumed(broker, handed.counts))
    broker.stop(kill=kill)
    handed.compare(handed.read_ours())
    assert handed.append() == ["other-writer"]
    handed.compare(handed.read_ours())
    broker.start()
    assert is_clean(broker)
    handed.compare(clients.consumed(broker, handed.counts))
    handed.send(20)
    broker.stop()
    handed.compare(handed.read_ours())
    print(f"{broker.release}: {handed.compared} records compared")


def served(handed: Handed) -> set[tuple[str, str, str]]:
    """The warnings of a broker that starts, serves every record, appends and stops."""
    handed.broker.start()
    assert is_clean(handed.broker)
    handed.compare(clients.consumed(handed.broker, handed.counts))
    handed.send(2)
    handed.broker.stop()
    return warnings(handed.broker)


def restarted(handed: Handed) -> set[tuple[str, str, str]]:
    """The warnings of a broker that starts after a kill, and checks its logs."""
    broker = handed.broker
    broker.start()
    broker.stop(kill=True)
    broker.start()
    assert not is_clean(broker)
    assert recovered(broker)
    handed.compare(clients.consumed(broker, handed.counts))
    broker.stop()
    return warnings(broker)


@pytest.mark.thorough
def test_broker_warns_of_our_directory_as_of_its_own(
    handed: Handed, cluster: KafkaBroker, tmp_path: Path
) -> None:
    """The broker logs no warning that it does not log for its own directory with the
    same records, and checks no log after a clean stop, of logstore or of itself."""
    (tmp_path / "own").mkdir()
    cluster.copy_to(tmp_path / "own")
    with KafkaBroker(tmp_path / "own", cluster.release, cache_directory()) as broker:
        broker.start()
        clients.await_topics(broker, handed.counts)
        sent = clients.send(broker, handed.records)
        broker.stop()
        own = Handed(broker, sent)
        expected = served(own) | served(own) | restarted(own)
    found = served(handed) | served(handed) | restarted(handed)
    assert found <= expected
    assert handed.append() == ["other-writer"]
    assert served(handed) <= expected
    print(f"{cluster.release}: {len(expected)} warnings, {handed.compared} records")


@pytest.mark.sampled(1)
def test_broker_is_heard_that_finds_something_wrong(handed: Handed) -> None:
    """The check must be seen to fail."""
    (handed.broker.data / ".kafka_cleanshutdown").unlink()
    log = logs_in(handed.broker.data / "killed-0")[-1]
    flip_bit(log, 8 * log.stat().st_size - 1)
    handed.broker.start()
    clients.await_topics(handed.broker, handed.counts)
    assert not is_clean(handed.broker)
    handed.broker.stop()
    texts = [text for _, _, text in warnings(handed.broker)]
    assert any("Found invalid messages in log segment" in text for text in texts)


@pytest.mark.thorough
def test_broker_serves_logs_that_get_into_its_directory(
    cluster: KafkaBroker, lived: Store, tmp_path: Path
) -> None:
    """Some topics of a store are added to the topics of the broker; the directory is
    given back, too."""
    cluster.copy_to(tmp_path)
    topics = ["deleted", "killed", "produced", "magic0-lz4-CreateTime"]
    with KafkaBroker(tmp_path, cluster.release, cache_directory()) as broker:
        broker.start()
        clients.await_topics(broker, lived.counts)
        own = clients.send(broker, {"truncated": lived.records["truncated"]})
        broker.stop()
        hand_over_topics(lived.directory, broker, topics)
        handed = Handed(broker, {topic: list(lived.records[topic]) for topic in topics})
        handed.records |= own
        handed.counts["truncated"] = 1
        served(handed)
        served(handed)
        handed.compare(handed.read_ours())
