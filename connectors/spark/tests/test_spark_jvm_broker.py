"""The format ``logstore-jvm`` over the log directory of a running Kafka broker."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kafka_tools import ToolsUnavailableError
from support.levels import IS_ALL

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.running_broker import Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
]

JVM, PYTHON = "logstore-jvm", "logstore"
SECONDS = int(os.environ.get("LOGSTORE_SPARK_SECONDS", "60" if IS_ALL else "15"))
SEED = int(os.environ.get("LOGSTORE_SPARK_SEED", "1"))
PARTITIONS = 2
ISOLATIONS = ("read_committed", "read_uncommitted")
Found = list[tuple[int, int, bytes | None, bytes | None]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    try:
        started = Broker(tmp_path)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    yield started
    started.kill()


class Producers(threading.Thread):
    """Two producers: one without transactions, one whose transactions are committed or
    aborted. Batches have all codecs; the segments are small."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._address = broker.address
        self._rng = random.Random(SEED)

    def run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self.error = error

    def _produce(self) -> None:
        rng = self._rng
        servers = {"bootstrap.servers": self._address, "linger.ms": 5}
        codecs = ("none", "gzip", "snappy", "lz4", "zstd")
        plain = [Producer({**servers, "compression.type": c}) for c in codecs]
        bound = Producer({**servers, "transactional.id": "test"})
        bound.init_transactions(60)
        while not self.stop.is_set():
            one = rng.choice(plain)
            self._some(one)
            one.flush(60)
            if rng.random() < 0.5:
                bound.begin_transaction()
                self._some(bound)
                if rng.random() < 0.5:
                    bound.flush(60)
                    self._some(rng.choice(plain))
                if rng.random() < 0.6:
                    bound.commit_transaction(60)
                else:
                    bound.abort_transaction(60)
            time.sleep(rng.choice([0, 0, 0.05]))
        for one in plain:
            one.flush(60)

    def _some(self, producer: Any) -> None:
        rng = self._rng
        for _ in range(rng.choice([1, 5, 100])):
            producer.produce(
                "orders",
                rng.choice([None, b"", rng.randbytes(rng.randrange(100))]),
                rng.choice([None, b"key"]),
                partition=rng.randrange(PARTITIONS),
                headers=rng.choice([None, [("h", b"1"), ("h", None)]]),
            )


def consumed(broker: Broker, isolation: str) -> Found:
    """Records of Kafka's own client, up to the ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": f"test-{isolation}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition("orders", n, 0) for n in range(PARTITIONS)])
    found: Found = []
    ended = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            ended.add(message.partition())
        else:
            at = (message.partition(), message.offset())
            found.append((*at, message.key(), message.value()))
    consumer.close()
    return sorted(found)


def rows_of(frame: Any) -> Found:
    rows = frame.select("partition", "offset", "key", "value").collect()
    return sorted(
        (r.partition, r.offset, *(b if b is None else bytes(b) for b in r[2:]))
        for r in rows
    )


def test_stream_of_a_running_broker_is_what_its_consumer_gets(
    spark: Any, tmp_path: Path, broker: Broker
) -> None:
    """Both isolations, while producers write; then a batch of each reader."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = NewTopic("orders", PARTITIONS, 1, config={"segment.bytes": "30000"})
    admin.create_topics([topic])["orders"].result(60)
    producers = Producers(broker)
    producers.start()
    options = {"subscribe": "orders", "path": str(broker.data)}
    queries = []
    for isolation in ISOLATIONS:
        frame = (
            spark.readStream.format(JVM)
            .options(**options, isolation=isolation, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 5_000)
            .load()
        )
        query = (
            frame.select("partition", "offset", "key", "value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / isolation / "checkpoint"))
            .start(str(tmp_path / isolation / "out"))
        )
        queries.append(query)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and producers.is_alive():
        time.sleep(0.5)
        for isolation in ISOLATIONS:  # only errors are checked
            frame = spark.read.format(JVM).options(**options, isolation=isolation)
            frame.load().selectExpr("count(*)", "sum(length(value))").collect()
    producers.stop.set()
    producers.join(120)
    assert producers.error is None, producers.error
    for isolation, query in zip(ISOLATIONS, queries, strict=True):
        expected = consumed(broker, isolation)
        assert len({(p, o) for p, o, _, _ in expected}) == len(expected) > 1_000
        query.processAllAvailable()
        batches = len(list((tmp_path / isolation / "checkpoint" / "commits").iterdir()))
        query.stop()
        assert query.exception() is None
        out = spark.read.parquet(str(tmp_path / isolation / "out"))
        assert rows_of(out) == expected
        for name in (JVM, PYTHON):
            reader = spark.read.format(name).options(**options, isolation=isolation)
            assert rows_of(reader.load()) == expected
        print(f"{isolation}: {len(expected)} records, {batches} batches")
