"""Apache Kafka 3.9.1 on this machine, with confluent-kafka as its client.

One broker (KRaft, one node) is started when the first case asks for it, and ended with
the process. It has the same two cores as its client. Its CPU seconds count as the
contestant's, since without it nothing is stored. Like logstore without syncs it leaves
records to the operating system; one replica, ``acks=1``.

Java and the jars are the same as in the tests: tests/support/kafka_tools.py.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.rounds import Contestant, UnavailableError
from bench.workload import TIMESTAMP_MS

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

from support.kafka_tools import ToolsUnavailableError
from support.running_broker import Broker, BrokerError

__all__ = ["PRODUCER", "AppendMany", "Read"]

PRODUCER = {
    "acks": "1",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
}
_CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 1_000_000,
}


_brokers: list[Broker] = []


def _broker() -> Broker:
    if not _brokers:
        directory = Path(tempfile.mkdtemp(prefix="logstore-bench-kafka-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        try:
            _brokers.append(Broker(directory))
        except (ToolsUnavailableError, BrokerError) as error:
            raise UnavailableError(str(error)) from error
        atexit.register(_brokers[0].kill)  # before its directory is removed
    return _brokers[0]


class _Client(Contestant):
    """Talks to the broker, about its own topics."""

    def open(self) -> None:
        self.broker = _broker()
        self.servers = {"bootstrap.servers": self.broker.address}
        self.admin = AdminClient(self.servers)

    def cpu_seconds_elsewhere(self) -> float:
        seconds: float = self.broker.cpu_seconds()
        return seconds

    def create(self) -> str:
        topic = f"bench-{uuid.uuid4()}"
        made = self.admin.create_topics([NewTopic(topic, 1, 1)])
        made[topic].result(30)
        return topic

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def produce(self, producer: Any, topic: str) -> None:
        produce, poll = producer.produce, producer.poll
        for keys, values in self.workload.batches:
            for key, value in zip(keys, values, strict=True):
                produce(topic, value, key, partition=0, timestamp=TIMESTAMP_MS)
            poll(0)
        if producer.flush(60):
            raise AssertionError("some records were not acknowledged")

    def consume(self, consumer: Any, topic: str) -> list[Any]:
        """All records of the topic, as the client's messages."""
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while len(found) < self.workload.count:
            messages = consumer.consume(10_000, 10)
            if not messages:
                raise AssertionError(f"{self.name} gave {len(found)} records")
            found += messages
        consumer.unassign()
        return found

    def check(self, messages: list[Any]) -> None:
        pairs = ((one.key(), one.value()) for one in messages)
        self.workload.check_pairs(pairs, self.name)


class AppendMany(_Client):
    """`produce` of each record; done when the broker has acknowledged all."""

    name = "Kafka 3.9.1 producer"

    def open(self) -> None:
        super().open()
        self.producer = Producer({**self.servers, **PRODUCER})

    def before(self) -> None:
        self.topic = self.create()

    def work(self) -> None:
        self.produce(self.producer, self.topic)

    def after(self, result: Any) -> None:
        consumer = Consumer({**self.servers, **_CONSUMER})
        self.check(self.consume(consumer, self.topic))
        consumer.close()
        self.delete(self.topic)


class Read(_Client):
    """`consume` of all records; keys and values are touched."""

    name = "Kafka 3.9.1 consumer"

    def open(self) -> None:
        super().open()
        self.topic = self.create()
        self.produce(Producer({**self.servers, **PRODUCER}), self.topic)

    def before(self) -> None:
        self.consumer = Consumer({**self.servers, **_CONSUMER})

    def work(self) -> list[Any]:
        messages = self.consume(self.consumer, self.topic)
        for one in messages:
            _, _ = one.key(), one.value()
        return messages

    def after(self, result: list[Any]) -> None:
        self.check(result)
        self.consumer.close()

    def close(self) -> None:
        self.delete(self.topic)
