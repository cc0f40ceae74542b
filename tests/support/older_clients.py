"""Kafka clients of a broker of any release: topics, records and offsets of groups.

The client is librdkafka for 0.10 and later. It cannot talk to 0.8.2, for which that
release's own classes are used (`kafka/Simple.java`). Import this module after
``pytest.importorskip``, like `support.kafka_clients`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from logstore import Record, TimestampType
from support import kafka_clients as clients
from support.kafka_broker import KafkaBroker
from support.kafka_tools import numbers_of

__all__ = [
    "commit",
    "committed",
    "consumed",
    "create_topics",
    "line_of",
    "send",
    "sender",
]

_SECONDS = 60
_SIMPLE = "Simple.java"


def _is_oldest(broker: KafkaBroker) -> bool:
    return numbers_of(broker.release) < (0, 10)


def _hex(data: bytes | None) -> str:
    return "-" if data is None else "x" + data.hex()


def create_topics(broker: KafkaBroker, *names: str, **settings: object) -> None:
    """Create topics of one partition; "_" for "." in the names of settings."""
    if not _is_oldest(broker):
        clients.create_topics(broker, dict.fromkeys(names, 1), **settings)
        return
    config = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    options = [word for one in config for word in ("--config", one)]
    for name in names:
        broker.run(
            "kafka.admin.TopicCommand", "--zookeeper", broker.zookeeper, "--create",
            "--topic", name, "--partitions", "1", "--replication-factor", "1", *options,
        )  # fmt: skip
    end = time.monotonic() + _SECONDS
    while not all((broker.data / f"{name}-0").exists() for name in names):
        assert time.monotonic() < end, names
        time.sleep(0.1)


def sender(broker: KafkaBroker, topic: str, codec: str) -> subprocess.Popen[str]:
    """A producer of 0.8.2 that takes lines of `line_of`, and prints offsets when its
    input has ended."""
    return broker.clients(_SIMPLE, "send", topic, codec)


def line_of(key: bytes | None, value: bytes | None) -> str:
    """A record for `sender`."""
    return f"{_hex(key)}\t{_hex(value)}\n"


def send(
    broker: KafkaBroker, topic: str, records: Sequence[Record], codec: str = "none"
) -> list[Record]:
    """Send records to partition 0 in small batches; returns them as stored."""
    if not _is_oldest(broker):
        settings: dict[str, Any] = {
            "compression_type": codec, "batch_size": 2000, "linger_ms": 5,
        }  # fmt: skip
        return clients.send(broker, {topic: records}, **settings)[topic]
    with sender(broker, topic, codec) as process:
        lines = "".join(line_of(one.key, one.value) for one in records)
        offsets = process.communicate(lines)[0].split()
    kind = TimestampType.NO_TIMESTAMP
    return [
        one._replace(offset=int(offset), timestamp_ms=-1, timestamp_type=kind)
        for one, offset in zip(records, offsets, strict=True)
    ]


def consumed(broker: KafkaBroker, *topics: str) -> dict[str, list[Record]]:
    """All records of partition 0 of topics."""
    if not _is_oldest(broker):
        found = clients.consumed(broker, dict.fromkeys(topics, 1))
        return {topic: found[topic, 0] for topic in topics}
    return {
        topic: [
            clients.record_of_line(line)
            for line in broker.run_clients(_SIMPLE, "read", topic).splitlines()
        ]
        for topic in topics
    }


def _member(broker: KafkaBroker, group: str) -> Consumer:
    settings = {"group.id": group, "enable.auto.commit": False}
    return Consumer({**clients.connection(broker), **settings})


def commit(
    broker: KafkaBroker, group: str, offsets: Mapping[str, tuple[int, str]]
) -> None:
    """Commit offset and metadata of partition 0 of topics, with no member."""
    if _is_oldest(broker):
        for topic, (offset, text) in offsets.items():
            broker.run_clients(_SIMPLE, "commit", group, topic, str(offset), text)
        return
    member = _member(broker, group)
    places = [
        TopicPartition(topic, 0, offset, metadata=text)
        for topic, (offset, text) in offsets.items()
    ]
    for place in member.commit(offsets=places, asynchronous=False):
        assert place.error is None, place.error
    member.close()


def committed(
    broker: KafkaBroker, group: str, topics: Sequence[str]
) -> dict[str, tuple[int, str]]:
    """Committed offset and metadata of a group, from the broker."""
    if _is_oldest(broker):
        found = {}
        for topic in topics:
            line = broker.run_clients(_SIMPLE, "committed", group, topic)
            offset, _, text = line.removesuffix("\n").partition("\t")
            found[topic] = int(offset), text
        return found
    member = _member(broker, group)
    places = member.committed([TopicPartition(topic, 0) for topic in topics], 60)
    member.close()
    return {one.topic: (one.offset, one.metadata or "") for one in places}
