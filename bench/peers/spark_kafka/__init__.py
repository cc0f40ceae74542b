"""Spark's Kafka connector, and Kafka 3.9.1 on this machine for it to read from.

The broker has the same cores as Spark. Its client is confluent-kafka, its jars and the
connector's come by Maven (tests/support/kafka_tools.py, pom.xml).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import logstore
from bench.peers.kafka_broker import PRODUCER
from support.kafka_tools import find_classpath
from support.running_broker import Broker

__all__ = ["connector_jars", "topic_of"]

_POM: Final = Path(__file__).with_name("pom.xml")


def connector_jars() -> list[str]:
    """The jars that Spark needs.

    Raises:
        ToolsUnavailableError: Maven, or one of them, is missing.
    """
    cache = Path(tempfile.gettempdir()) / f"logstore-bench-spark-kafka-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    classpath: str = find_classpath(_POM, cache)
    return classpath.split(os.pathsep)


@contextlib.contextmanager
def topic_of(topic: logstore.Topic, folder: Path) -> Iterator[dict[str, Any]]:
    """A broker with the records of a topic, in partitions of the same numbers; gives
    the options for Spark to read them.

    Raises:
        ToolsUnavailableError, BrokerError: there is no broker.
    """
    folder.mkdir()
    broker = Broker(folder)
    try:
        _fill(broker.address, topic)
        yield {
            "kafka.bootstrap.servers": broker.address,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
        }
    finally:
        broker.kill()


def _fill(address: str, topic: logstore.Topic) -> None:
    """Produce the records of a topic to a new one of the same name."""
    servers = {"bootstrap.servers": address}
    admin = AdminClient(servers)  # dropped, it would end its calls
    made = admin.create_topics([NewTopic(topic.name, len(topic), 1)])
    made[topic.name].result(30)
    producer = Producer({**servers, **PRODUCER})
    for partition in topic:
        for n, record in enumerate(partition.read()):
            producer.produce(
                topic.name,
                record.value,
                record.key,
                partition=partition.number,
                timestamp=record.timestamp_ms,
            )
            if n % 1000 == 0:
                producer.poll(0)
    if producer.flush(120):
        raise AssertionError("some records were not acknowledged")
