"""A broker serves a topic that logstore has compacted, and compacts it on; logstore
continues after the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore import Record, TimestampType, TopicConfig
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.releases import STARTED

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from support import kafka_clients as clients

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

CONFIG = TopicConfig(
    cleanup_policy="compact",
    message_format=2,
    segment_bytes=20_000,
    file_delete_delay_ms=0,
)
_SECONDS = 90


@pytest.fixture(params=STARTED)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaBroker]:
    settings = {
        "log.cleaner.backoff.ms": 200,
        "log.cleaner.dedupe.buffer.size": 2 << 20,
        "log.retention.check.interval.ms": 500,
        "log.cleanup.policy": "compact",
        "log.cleaner.min.cleanable.ratio": 0.01,
        "log.roll.ms": 1000,
    }
    try:
        made = KafkaBroker(tmp_path, request.param, cache_directory(), settings)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


def first_dirty(data: Path) -> int:
    """The end of the last compaction of ``states-0``."""
    lines = (data / "cleaner-offset-checkpoint").read_text().splitlines()
    found = [int(line.split()[2]) for line in lines[2:] if line.startswith("states 0")]
    return found[0] if found else -1


def write(partition: logstore.Partition, first: int, count: int) -> None:
    for number in range(first, first + count):
        value = None if number % 11 == 3 else b"value-%d" % number
        partition.append(value, b"key-%d" % (number % 97))


def newest(records: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


def test_broker_serves_and_compacts_what_logstore_has_compacted(
    broker: KafkaBroker,
) -> None:
    """It begins at logstore's checkpoint, and logstore at the broker's."""
    broker.start()
    clients.create_topics(broker, {"states": 1})
    broker.stop()
    with logstore.open(broker.data) as store:
        topic = store.topic("states")
        topic.configure(CONFIG)
        write(topic[0], 0, 3000)
        topic[0].roll()
        report = topic[0].compact()
        assert report.removed > 2500
        write(topic[0], 3000, 20)
        ours = list(topic[0].read())
        end = topic[0].end_offset
    assert first_dirty(broker.data) == 3000
    broker.start()
    for consumed in (clients.consumed, clients.consumed_by_kafka):
        assert consumed(broker, {"states": 1})["states", 0] == ours
    # Two calls with a pause: the second one rolls, and the first is compacted.
    sent: list[Record] = []
    for number in range(2):
        now_ms = int(time.time() * 1000)
        records = [
            Record(
                -1, now_ms, b"key-%d" % key, b"sent-%d" % number, (),
                TimestampType.CREATE_TIME,
            )
            for key in range(50)
        ]  # fmt: skip
        sent += clients.send(broker, {"states": records})["states"]
        time.sleep(1.5)
    last = time.monotonic() + _SECONDS
    while first_dirty(broker.data) <= 3000:
        assert time.monotonic() < last, "the broker has not compacted"
        time.sleep(0.2)
    compacted = clients.consumed(broker, {"states": 1})["states", 0]
    assert newest(compacted) == newest([*ours, *sent])
    assert len(compacted) < len(ours) + len(sent)
    broker.stop()
    with logstore.open(broker.data) as store:
        partition = store.topic("states")[0]
        assert list(partition.read()) == compacted
        write(partition, 5000, 500)
        partition.roll()
        wanted = newest(list(partition.read()))
        planned = partition.compact(force=True)
        assert planned.removed > 0
        assert newest(list(partition.read())) == wanted
        assert partition.end_offset == end + len(sent) + 500
    check = logstore.verify(broker.data, deep=True)
    assert not check.problems
    broker.start()
    assert newest(clients.consumed(broker, {"states": 1})["states", 0]) == wanted
