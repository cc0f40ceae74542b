"""A topic for tasks: the choice of partitions, and the results."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import logstore
import logstore.aio
from support.tasks import run


def test_append_returns_what_was_stored(tmp_path: Path) -> None:
    """Each format is tried, with the time of the producer or of the log."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            for magic in (0, 1, 2):
                config = logstore.TopicConfig(message_format=magic)
                topic = await store.create_topic(f"f{magic}", 2, config)
                found = await topic.append(b"a", b"k", timestamp_ms=7)
                record = topic[found.partition].get(found.offset)
                assert found == (
                    f"f{magic}",
                    record_partition(topic, b"k"),
                    0,
                    record.timestamp_ms,
                )
                now = await topic.append(b"b", partition=1, durable=True)
                assert topic[1].durable_offset == now.offset + 1
                assert now.timestamp_ms == topic[1].get(now.offset).timestamp_ms
            headers = (("h", b"1"),)
            found = await topic.append(b"c", headers=headers, partition=0)
            assert topic[0].get(found.offset).headers == headers
            config = logstore.TopicConfig(message_timestamp_type="LogAppendTime")
            topic = await store.create_topic("own", config=config)
            found = await topic.append(bytearray(b"d"), timestamp_ms=7)
            assert found.timestamp_ms == topic[0].get(0).timestamp_ms > 7

    def record_partition(topic: logstore.aio.Topic, key: bytes) -> int:
        return logstore.KafkaPartitioner().partition(key, 1, len(topic))

    run(main())


def test_append_many_returns_the_offsets_by_partition(tmp_path: Path) -> None:
    """Durable: one sync of each partition that got records."""
    arrow = pytest.importorskip("pyarrow")

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders", partitions=3)
            keys = [b"%d" % n for n in range(30)]
            appended = await topic.append_many(keys, keys, durable=True)
            assert sum(len(span) for _, span in appended) == 30
            for number, span in appended:
                assert span == range(len(topic[number]))
                assert topic[number].durable_offset == span.stop
            table = arrow.table({"value": keys, "key": keys})
            more = await topic.append_arrow(table, durable=True)
            assert [(n, len(s)) for n, s in more] == [(n, len(s)) for n, s in appended]
            ((number, span),) = await topic.append_many([b"x"], partition=2)
            assert (number, len(span)) == (2, 1)
            await topic.flush()
            assert topic[2].durable_offset == span.stop
            assert len(list(topic.read())) == 61

    run(main())


def test_bad_arguments_raise_and_write_nothing(tmp_path: Path) -> None:
    """They raise the errors of a blocking topic."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders", partitions=2)
            with pytest.raises(TypeError):
                await topic.append("text")  # type: ignore[arg-type]
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                await topic.append(b"", partition=7)
            with pytest.raises(logstore.ConfigError):
                await topic.append(b"", timestamp_ms=-2)
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                await topic.append_many([b""], partition=7)
            with pytest.raises(TypeError):
                await topic.append_many(["text"])  # type: ignore[list-item]
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                topic[7]
            assert sum(map(len, topic)) == 0

    run(main())


def test_caller_may_change_its_list_while_the_thread_appends(tmp_path: Path) -> None:
    """The list at the time of the call is appended."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders")
            values = [bytearray(b"a"), bytearray(b"b")]
            task = asyncio.create_task(topic.append_many(values))
            await asyncio.sleep(0)
            values[0][:] = b"X"
            values.clear()
            await task
            assert [r.value for r in topic.read()] == [b"a", b"b"]

    run(main())


def test_topic_has_the_facts_of_its_blocking_one(tmp_path: Path) -> None:
    """Its changes are awaited."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders", partitions=2)
            assert (topic.name, topic.numbers, len(topic)) == ("orders", (0, 1), 2)
            assert repr(topic) == "<logstore.aio.Topic orders with 2 partitions>"
            assert await topic.add_partitions(1) == 3
            assert [p.number for p in topic] == [0, 1, 2]
            config = logstore.TopicConfig(message_format=2, retention_bytes=0)
            await topic.configure(config)
            assert topic.config == topic.stored_config == config
            assert await topic.apply_retention() == []
            partitioner = logstore.KafkaPartitioner()
            topic.partitioner = partitioner
            assert topic.partitioner is topic.blocking.partitioner is partitioner

    run(main())
