"""Apache Kafka 3.9.1 on this machine, with confluent-kafka as its client.

One broker (KRaft, one node) is started when the first case asks for it, and ended with
the process. It has the same two cores as its client. Its CPU seconds count as the
contestant's, since without it nothing is stored. Like logstore without syncs it leaves
records to the operating system; one replica, ``acks=1``.

Java and the jars are those of the tests: tests/support/kafka_tools.py.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.rounds import Contestant, UnavailableError
from bench.workload import TIMESTAMP_MS

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

from support.kafka_tools import KafkaTools, ToolsUnavailableError

__all__ = ["AppendMany", "Read"]

_CLUSTER = "bG9nc3RvcmUtYmVuY2gtMQ"
_START_SECONDS_MAX = 60
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
offsets.topic.replication.factor=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.message.timestamp.before.max.ms=9223372036854775807
"""
_PRODUCER = {
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


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Broker:
    """A running broker."""

    def __init__(self) -> None:
        cache = Path(tempfile.gettempdir()) / f"logstore-bench-kafka-{os.getuid()}"
        cache.mkdir(mode=0o700, exist_ok=True)
        try:
            tools = KafkaTools.find(cache)
        except ToolsUnavailableError as error:
            raise UnavailableError(str(error)) from error
        self._directory = Path(tempfile.mkdtemp(prefix="logstore-bench-kafka-"))
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = self._directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(
                port=port, controller=controller, directory=self._directory
            )
        )
        java = [tools.java, "-Xmx1g", "-Xms1g", "-cp", tools.classpath]
        format_ = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER]
        subprocess.run(
            [*java, *format_, "-c", str(settings)], check=True, capture_output=True
        )
        log = (self._directory / "broker.log").open("wb")
        self._process = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log
        )
        atexit.register(self._end)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + _START_SECONDS_MAX
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            try:
                admin.list_topics(timeout=2)
                return
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > end:
                    text = (self._directory / "broker.log").read_text()
                    raise UnavailableError(
                        f"the broker did not start: {text[-500:]}"
                    ) from None

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """Of all its threads, since it was started."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_brokers: list[Broker] = []


def _broker() -> Broker:
    if not _brokers:
        _brokers.append(Broker())
    return _brokers[0]


class _Client(Contestant):
    """Talks to the broker, about topics of its own."""

    def open(self) -> None:
        self.broker = _broker()
        self.servers = {"bootstrap.servers": self.broker.address}
        self.admin = AdminClient(self.servers)

    def cpu_seconds_elsewhere(self) -> float:
        return self.broker.cpu_seconds()

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
        self.producer = Producer({**self.servers, **_PRODUCER})

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
        self.produce(Producer({**self.servers, **_PRODUCER}), self.topic)

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
