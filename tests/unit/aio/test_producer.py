"""A named producer for tasks: a repeated call appends once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import logstore
import logstore.aio
from support.tasks import Held, every_loop, new_partition, run, values_of

MAGIC_2 = logstore.TopicConfig(message_format=2)


@every_loop
def test_call_that_was_cancelled_is_repeated_and_appends_once(
    tmp_path: Path, loop_kind: str
) -> None:
    """Both if the thread had the call and if not."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            p = (await store.create_topic("orders", config=MAGIC_2))[0]
            producer = await store.producer("me")
            assert await producer.last_sequence(p) is None
            assert await producer.append(p, b"0", sequence=0) == 0
            for number in range(1, 4):
                held = Held(p) if number % 2 else None
                values = [b"%d" % number]
                options = {"sequence": number, "durable": True}
                task = asyncio.create_task(producer.append_many(p, values, **options))  # type: ignore[arg-type]
                await asyncio.sleep(0.01 if held is not None else 0)
                task.cancel()
                if held is not None:
                    held.release()
                span = await producer.append_many(p, values, **options)  # type: ignore[arg-type]
                assert span == range(number, number + 1)
                assert p.durable_offset == number + 1
            assert values_of(p) == [b"0", b"1", b"2", b"3"]
            assert await producer.last_sequence(("orders", 0)) == 3

    run(main(), loop_kind)


def test_options_are_those_of_the_blocking_producer(tmp_path: Path) -> None:
    """Keys, times, headers, partitions by name; and the attributes."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            p = (await store.create_topic("orders", config=MAGIC_2))[0]
            producer = await store.producer("me")
            headers = (("h", b"1"),)
            offset = await producer.append(
                ("orders", 0), b"v", b"k", timestamp_ms=7, headers=headers
            )
            record = p.get(offset)
            assert (record.key, record.timestamp_ms) == (b"k", 7)
            assert record.headers == headers
            for name in ("name", "epoch", "producer_id"):
                assert getattr(producer, name) == getattr(producer.blocking, name)
            assert repr(producer) == "<logstore.aio.Producer 'me' epoch 0>"

    run(main())


def test_errors_are_those_of_the_blocking_producer(tmp_path: Path) -> None:
    """Nothing is written."""

    async def main() -> None:
        async with new_partition(tmp_path, MAGIC_2) as p:
            store = logstore.aio.Store(p._services.check._blocking)  # type: ignore[attr-defined]
            plain = (await store.create_topic("plain"))[0]
            producer = await store.producer("me")
            await producer.append(p, b"0", sequence=0)
            with pytest.raises(logstore.errors.OutOfOrderSequenceError):
                await producer.append(p, b"2", sequence=2)
            with pytest.raises(logstore.ConfigError):
                await producer.append(p, b"", sequence=-1)
            with pytest.raises(TypeError):
                await producer.append(p, "text")  # type: ignore[arg-type]
            with pytest.raises(logstore.errors.UnsupportedError):
                await producer.append(plain, b"")
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                await producer.append(("orders", 7), b"")
            newer = await store.producer("me")
            await newer.append(p, b"1", sequence=1)
            with pytest.raises(logstore.errors.ProducerFencedError):
                await producer.append(p, b"late", sequence=2)
            with pytest.raises(logstore.ConfigError):
                await store.producer("")
            assert values_of(p) == [b"0", b"1"]

    run(main())
