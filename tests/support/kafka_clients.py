"""Kafka clients of a broker: topics, and records as logstore has them.

There are two: Kafka's own (`kafka/Records.java`), of the release of the broker, and
librdkafka. Import this module after ``pytest.importorskip("confluent_kafka")``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from logstore import Record, TimestampType
from support.kafka_broker import KafkaBroker
from support.kafka_tools import numbers_of

__all__ = [
    "CODECS",
    "Found",
    "await_topics",
    "connection",
    "consumed",
    "consumed_by_kafka",
    "create_topics",
    "delete_records",
    "delete_topics",
    "record_of_line",
    "record_of_message",
    "send",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The records of each partition, by topic and number.
Found = dict[tuple[str, int], list[Record]]
_SECONDS = 60
_TYPES = {
    0: TimestampType.NO_TIMESTAMP,
    1: TimestampType.CREATE_TIME,
    2: TimestampType.LOG_APPEND_TIME,
}


def connection(broker: KafkaBroker) -> dict[str, Any]:
    """Settings for any client of librdkafka's."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.address, "log_level": 0}
    if numbers_of(broker.release) < (0, 10):  # cannot list its API versions
        fallback = {"broker.version.fallback": broker.release}
        settings |= {"api.version.request": False, **fallback}
    return settings


def _admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient(connection(broker))


def await_topics(broker: KafkaBroker, counts: Mapping[str, int]) -> None:
    """Wait until the broker leads all partitions of these topics."""
    admin = _admin(broker)
    end = time.monotonic() + _SECONDS
    while True:
        try:
            topics = admin.list_topics(timeout=10).topics
            led = {
                name: sum(p.leader >= 0 for p in topic.partitions.values())
                for name, topic in topics.items()
                if topic.error is None
            }
        except KafkaException:
            led = {}
        if all(led.get(name) == count for name, count in counts.items()):
            return
        assert time.monotonic() < end, (counts, led)
        time.sleep(0.2)


def create_topics(
    broker: KafkaBroker, counts: Mapping[str, int], **settings: object
) -> None:
    """Create topics with numbers of partitions, and wait for their leaders.

    Args:
        settings: of the topics, "_" for "." in their names.
    """
    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    await_topics(broker, {})
    topics = [NewTopic(name, count, 1, config=config) for name, count in counts.items()]
    admin = _admin(broker)  # alive until the answers have come
    for future in admin.create_topics(topics).values():
        future.result(_SECONDS)
    await_topics(broker, counts)


def delete_topics(broker: KafkaBroker, *names: str) -> None:
    """Ask the broker to delete topics; it deletes them later."""
    admin = _admin(broker)
    for future in admin.delete_topics(list(names)).values():
        future.result(_SECONDS)


def delete_records(broker: KafkaBroker, topic: str, before: int) -> None:
    """Ask the broker to delete the records of partition 0 below an offset."""
    place = TopicPartition(topic, 0, before)
    admin = _admin(broker)
    for future in admin.delete_records([place]).values():
        future.result(_SECONDS)


def record_of_message(message: Any) -> Record:
    """Record of a consumer's message."""
    kind, stamp = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(
        message.offset(),
        stamp if kind else -1,
        message.key(),
        message.value(),
        headers,
        _TYPES[kind],
    )


def consumed(
    broker: KafkaBroker,
    counts: Mapping[str, int],
    isolation: str = "read_uncommitted",
) -> Found:
    """All that librdkafka's consumer gets of these topics, up to their ends."""
    await_topics(broker, counts)
    consumer = Consumer(
        {
            **connection(broker),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    places = [(name, n) for name, count in counts.items() for n in range(count)]
    found: Found = {place: [] for place in places}
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(places):
        messages = consumer.consume(5_000, 1)
        for message in messages:
            place = message.topic(), message.partition()
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(place)
            else:
                found[place].append(record_of_message(message))
    consumer.close()
    return found


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text[1:])


def _headers(text: str) -> Iterable[tuple[str, bytes | None]]:
    for pair in text.split(",") if text else ():
        name, _, value = pair.partition("=")
        yield bytes.fromhex(name[1:]).decode(), _bytes(value)


def record_of_line(line: str) -> Record:
    """Record of a line that a Java program has printed."""
    _, _, offset, kind, stamp, key, value, headers = line.split("\t")
    return Record(
        int(offset),
        int(stamp),
        _bytes(key),
        _bytes(value),
        tuple(_headers(headers)),
        TimestampType(int(kind)),
    )


def consumed_by_kafka(
    broker: KafkaBroker,
    counts: Mapping[str, int],
    isolation: str = "read_uncommitted",
) -> Found:
    """All that the consumer of the broker's release gets, up to the ends."""
    await_topics(broker, counts)
    found: Found = {(name, n): [] for name in counts for n in range(counts[name])}
    for line in broker.run_clients("Records.java", isolation, *counts).splitlines():
        topic, number, _ = line.split("\t", 2)
        found[topic, int(number)].append(record_of_line(line))
    return found


def send(
    broker: KafkaBroker, batches: Mapping[str, Sequence[Record]], **settings: object
) -> dict[str, list[Record]]:
    """Send records to the partitions 0 of topics, and return them with the offsets that
    they got.

    Args:
        settings: of the producer, "_" for "." in their names.
    """
    config = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({**connection(broker), **config})
    sent: dict[str, list[Record]] = {topic: [] for topic in batches}
    errors = []

    def note(topic: str, record: Record, error: Any, message: Any) -> None:
        if error is None:
            kind = TimestampType.CREATE_TIME
            offset = message.offset()
            sent[topic].append(record._replace(offset=offset, timestamp_type=kind))
        else:
            errors.append((topic, str(error)))

    for topic, records in batches.items():
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=functools.partial(note, topic, record),
            )
            producer.poll(0)
    assert producer.flush(_SECONDS) == 0
    assert not errors, errors
    return sent
