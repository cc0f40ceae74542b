"""Appends by tasks: their results, their order, and that they never block a loop."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from support.tasks import Held, every_loop, new_partition, run, until, values_of

ZSTD = logstore.TopicConfig(message_format=2, compression_type="zstd")
HEADERS = (("trace", b"1"), ("empty", None))


def flushes(partition: logstore.aio.Partition) -> int:
    writer = partition.blocking._writer
    assert writer is not None
    return writer.flush_counts()[0]


@every_loop
def test_append_returns_the_offset_of_its_record(
    tmp_path: Path, loop_kind: str
) -> None:
    """It does with each option, and with each kind of value."""

    async def main() -> None:
        config = logstore.TopicConfig(message_format=2)
        async with new_partition(tmp_path, config) as p:
            assert await p.append(b"0") == 0
            assert await p.append(b"1", b"key", timestamp_ms=7) == 1
            assert await p.append(b"2", headers=HEADERS) == 2
            assert await p.append(b"3", expected_offset=3) == 3
            assert await p.append(b"4", durable=True) == 4
            assert p.durable_offset == 5
            assert await p.append(bytearray(b"5"), memoryview(b"k")) == 5
            assert await p.append(None) == 6
            first, second, third, *_ = p.read()
            assert (first.value, second.key, second.timestamp_ms) == (b"0", b"key", 7)
            assert third.headers == HEADERS
            want = [b"0", b"1", b"2", b"3", b"4", b"5", None]
            assert values_of(p) == want
            assert p.get(5).key == b"k"

    run(main(), loop_kind)


def test_each_way_of_appending_many_returns_the_offsets(tmp_path: Path) -> None:
    """Lists, iterables, large ones, Arrow, batches; durable or not."""
    arrow = pytest.importorskip("pyarrow")

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            assert await p.append_many([b"a", b"b"]) == range(2)
            assert await p.append_many(iter([b"c"]), durable=True) == range(2, 3)
            assert p.durable_offset == 3
            assert await p.append_many([bytearray(b"d")], [b"k"], [7]) == range(3, 4)
            large = [b"%d" % n for n in range(3000)]
            assert await p.append_many(large) == range(4, 3004)
            assert await p.append_many([b"e"], expected_offset=3004) == range(
                3004, 3005
            )
            assert await p.append_many([]) == range(3005, 3005)
            table = arrow.table({"value": [b"f", b"g"]})
            assert await p.append_arrow(table, durable=True) == range(3005, 3007)
            assert p.durable_offset == 3007
            batches = b"".join(bytes(b.buffer) for b in p.read_batches(0, 2))
            offsets = await p.append_batches(batches, durable=True)
            assert offsets == range(3007, 3009)
            assert await p.append_batches(bytearray(batches)) == range(3009, 3011)
            assert values_of(p) == [
                *[b"a", b"b", b"c", b"d"], *large, b"e", b"f", b"g", *[b"a", b"b"] * 2
            ]  # fmt: skip
            assert p.get(3).timestamp_ms == 7

    run(main())


def test_durable_appends_of_a_thousand_tasks_share_one_sync(tmp_path: Path) -> None:
    """All tasks that wait at the hand-over, of all kinds of appends."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"first", durable=True)
            before = flushes(p)
            offsets = await asyncio.gather(
                *(p.append(b"%d" % n, durable=True) for n in range(1000)),
                p.append_many([b"x"], durable=True),
            )
            assert flushes(p) == before + 1
            assert offsets == [*range(1, 1001), range(1001, 1002)]
            assert p.durable_offset == 1002

    run(main())


@pytest.mark.parametrize(
    "config",
    [
        logstore.TopicConfig(segment_bytes=2000),
        logstore.TopicConfig(flush_messages=3),
        ZSTD,
        logstore.TopicConfig(message_timestamp_type="LogAppendTime"),
    ],
    ids=["rolls", "syncs", "compresses", "log-append-time"],
)
def test_appends_are_in_the_log_in_the_order_they_began(
    tmp_path: Path, config: logstore.TopicConfig
) -> None:
    """This holds even if a thread does some of them."""
    rng = random.Random(1)

    async def main() -> None:
        async with new_partition(tmp_path, config) as p:
            calls: list[Any] = []
            for n in range(300):
                value, durable = b"%d" % n, rng.random() < 0.2
                kind = rng.randrange(4)
                if kind == 0:
                    calls.append(p.append_many([value], durable=durable))
                elif kind == 1:
                    calls.append(p.append(bytearray(value), durable=durable))
                else:
                    calls.append(p.append(value, durable=durable))
            offsets = await asyncio.gather(*calls)
            firsts = [o if isinstance(o, int) else o.start for o in offsets]
            assert firsts == list(range(300))
            assert values_of(p) == [b"%d" % n for n in range(300)]

    run(main())


@pytest.mark.parametrize("durable", [False, True])
def test_append_that_has_to_wait_lets_other_tasks_run(
    tmp_path: Path, durable: bool
) -> None:
    """Another thread holds the lock of the log: the loop continues."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            held = Held(p)
            one = asyncio.create_task(p.append(b"1", durable=durable))
            many = asyncio.create_task(p.append_many([b"2"], durable=durable))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not one.done()
            assert not many.done()
            assert p.end_offset == 1
            held.release()
            assert (await one, await many) == (1, range(2, 3))
            assert p.durable_offset == (3 if durable else p.durable_offset)

    run(main())


def test_small_appends_are_done_at_once(tmp_path: Path) -> None:
    """No thread is used: also with headers, with a codec, and with a waiting
    follower."""

    async def main() -> None:
        async with new_partition(tmp_path, ZSTD) as p:
            await p.append(b"opens the file")
            follower = p.follow(1)
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.01)
            for call in (
                p.append(b"1"),
                p.append(b"2", headers=HEADERS),
                p.append(bytearray(b"3")),
                p.append_many([b"4"], headers=[HEADERS]),
            ):
                with pytest.raises(StopIteration):  # it never waited
                    call.send(None)
            assert values_of(p)[1:] == [b"1", b"2", b"3", b"4"]
            assert (await waiting).value == b"1"

    run(main())


def test_appends_are_at_once_again_when_the_thread_is_done(tmp_path: Path) -> None:
    """All tasks of a batch continue without it, not only the last."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            calls = 0
            call = p._services.commits.call

            def counted(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                return call(*args)

            p._services.commits.call = counted  # type: ignore[method-assign]

            async def work() -> None:
                for _ in range(10):
                    await p.append(b"x", durable=True)

            await asyncio.gather(*(work() for _ in range(100)))
            assert p.durable_offset == 1000
            # The first call of each kind, as the log has no file open; and calls made
            # when the background has just taken the lock.
            assert 100 <= calls <= 600

    run(main())


def test_mutable_values_may_be_changed_while_an_append_waits(tmp_path: Path) -> None:
    """The values at the time of the call are appended."""

    async def main() -> None:
        config = logstore.TopicConfig(message_format=2)
        async with new_partition(tmp_path, config) as p:
            await p.append(b"0")
            held = Held(p)
            value, header, values = bytearray(b"1"), bytearray(b"h"), [bytearray(b"2")]
            batch = bytearray(b"".join(bytes(b.buffer) for b in p.read_batches()))
            tasks = [
                asyncio.create_task(p.append(value, headers=[("h", header)])),
                asyncio.create_task(p.append_many(values)),
                asyncio.create_task(p.append_batches(batch)),
            ]
            await asyncio.sleep(0.01)
            value[:] = header[:] = values[0][:] = b"X"
            values.clear()
            batch[:] = bytes(len(batch))
            held.release()
            assert await asyncio.gather(*tasks) == [1, range(2, 3), range(3, 4)]
            assert values_of(p) == [b"0", b"1", b"2", b"0"]
            assert p.get(1).headers == (("h", b"h"),)

    run(main())


@pytest.mark.parametrize("is_queued", [False, True])
def test_bad_arguments_raise_as_in_a_blocking_call(
    tmp_path: Path, is_queued: bool
) -> None:
    """Nothing is written, not even after an append that waits."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            held = Held(p) if is_queued else None
            first = asyncio.create_task(p.append(b"1"))
            await asyncio.sleep(0)
            cases: list[tuple[type[Exception], Any]] = [
                (TypeError, p.append("text")),  # type: ignore[arg-type]
                (TypeError, p.append(b"", 1)),  # type: ignore[arg-type]
                (TypeError, p.append(b"", timestamp_ms="now")),  # type: ignore[arg-type]
                (logstore.ConfigError, p.append(b"", timestamp_ms=-2)),
                (logstore.errors.UnsupportedError, p.append(b"", headers=HEADERS)),
                (TypeError, p.append(b"", headers=[1])),  # type: ignore[list-item]
                (logstore.errors.RecordTooLargeError, p.append(bytes(2 << 20))),
                (logstore.errors.OffsetConflictError, p.append(b"", expected_offset=9)),
                (TypeError, p.append(b"", expected_offset="9")),  # type: ignore[arg-type]
                (TypeError, p.append_many(["text"])),  # type: ignore[list-item]
                (TypeError, p.append_many(b"text")),  # type: ignore[arg-type]
                (logstore.ConfigError, p.append_many([b""], [b"", b""])),
                (
                    logstore.errors.OffsetConflictError,
                    p.append_many([b""], expected_offset=9),
                ),
                (logstore.CorruptRecordError, p.append_batches(b"text")),
                (TypeError, p.append_batches("text")),  # type: ignore[arg-type]
            ]
            tasks = [asyncio.ensure_future(call) for _, call in cases]
            await asyncio.sleep(0.01)
            if held is not None:
                held.release()
            assert await first == 1
            for (error, _), task in zip(cases, tasks, strict=True):
                with pytest.raises(error):
                    await task
            assert values_of(p) == [b"0", b"1"]

    run(main())


def test_append_to_a_read_only_store_is_refused(tmp_path: Path) -> None:
    """It raises the error of a blocking call."""

    async def main() -> None:
        async with new_partition(tmp_path):
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                p = store.topic("orders")[0]
                for call in (p.append(b""), p.append_many([b""]), p.flush(), p.roll()):
                    with pytest.raises(logstore.errors.ReadOnlyError):
                        await call

    run(main())


def test_cancelled_append_that_had_not_begun_is_not_in_the_log(tmp_path: Path) -> None:
    """This holds even if it waits for the hand-over to the thread."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            task = asyncio.create_task(p.append(b"never"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held = Held(p)
            first = asyncio.create_task(p.append(b"1"))
            await asyncio.sleep(0.01)  # the thread has it
            second = asyncio.create_task(p.append(b"never"))
            third = asyncio.create_task(p.append(b"2"))
            await asyncio.sleep(0.01)
            second.cancel()
            held.release()
            assert await first == 1
            with pytest.raises(asyncio.CancelledError):
                await second
            assert await third == 2
            assert values_of(p) == [b"0", b"1", b"2"]

    run(main())


def test_cancelled_append_that_the_thread_has_is_wholly_in_the_log(
    tmp_path: Path,
) -> None:
    """Later appends follow it."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            held = Held(p)
            task = asyncio.create_task(p.append_many([b"1", b"2"], durable=True))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            later = asyncio.create_task(p.append(b"3"))
            await asyncio.sleep(0.01)
            held.release()
            assert await later == 3
            assert values_of(p) == [b"0", b"1", b"2", b"3"]

    run(main())


def test_append_may_be_cancelled_while_it_waits_for_its_sync(tmp_path: Path) -> None:
    """The record is there, and the tasks that wait with it are served."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            tasks = [asyncio.create_task(p.append(b"x", durable=True)) for _ in "123"]
            await asyncio.sleep(0)
            assert p.end_offset == 4
            tasks[0].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError)
            assert results[1:] == [2, 3]
            assert p.durable_offset == 4

    run(main())


def test_flush_makes_durable_what_was_appended_before(tmp_path: Path) -> None:
    """This includes records that the thread has not appended yet; many tasks share one
    sync."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            held = Held(p)
            append = asyncio.create_task(p.append(b"1"))
            flush = asyncio.create_task(p.flush())
            await asyncio.sleep(0.01)
            held.release()
            await flush
            assert p.durable_offset == 2
            await append
            await p.append(b"2")
            before = flushes(p)
            await asyncio.gather(*(p.flush() for _ in range(50)))
            assert (flushes(p), p.durable_offset) == (before + 1, 3)

    run(main())


def test_other_changes_of_a_partition_are_awaited(tmp_path: Path) -> None:
    """They equal the blocking calls, run in another thread."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append_many([b"%d" % n for n in range(10)])
            await p.roll()
            await p.append(b"10")
            assert len(p.segments) == 2
            assert await p.delete_before(4) == 4
            assert await p.truncate_to(8) == 8
            assert (p.start_offset, p.end_offset, len(p)) == (4, 8, 4)
            policy = logstore.RetainBytes(0)
            (deletion,) = await p.apply_retention(policies=[policy], dry_run=True)
            assert (deletion.segment.base_offset, p.start_offset) == (0, 4)
            with pytest.raises(logstore.OffsetOutOfRangeError):
                await p.truncate_to(100)
            with pytest.raises(logstore.ConfigError, match="compact"):
                await p.compact()

    run(main())


def test_compaction_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """Compaction of one partition, or of all, runs in another thread, like the blocking
    one."""
    config = logstore.TopicConfig(cleanup_policy="compact")
    threads = set()

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("t", 2, config)
            for p in topic.partitions:
                await p.append_many([b"1", b"2"], keys=[b"k", b"k"])
                await p.roll()

            def seen(progress: logstore.types.CompactionProgress) -> None:
                threads.add(threading.get_ident())

            dry = await topic[0].compact(force=True, dry_run=True)
            assert (dry.removed, len(topic[0])) == (1, 2)
            done = await topic[0].compact(force=True, on_progress=seen)
            assert done.removed == 1
            assert [record.value for record in topic[0].read()] == [b"2"]
            reports = await store.compact(force=True)
            assert set(reports) == {("t", 0), ("t", 1)}
            assert reports["t", 1].removed == 1

    run(main())
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("blocking", "twin", "inner"),
    [
        # It completes the recovery: `recover` is awaited.
        (logstore.Store, logstore.aio.Store, {"recovery_report"}),
        # Used inside this package.
        (logstore.Topic, logstore.aio.Topic, {"is_of"}),
        (
            logstore.Partition,
            logstore.aio.Partition,
            # For connectors, which have their own threads.
            {"byte_ranges", "mark", "unchanged_below"},
        ),
    ],
)  # fmt: skip
def test_every_method_has_its_twin(blocking: type, twin: type, inner: set[str]) -> None:
    """The names are the same."""
    names = {name for name in dir(blocking) if not name.startswith("_")}
    assert {name for name in names if not hasattr(twin, name)} == inner


def test_partition_has_the_facts_of_its_blocking_one(tmp_path: Path) -> None:
    """Its methods for reading are the same, with the same signatures."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            for name in ("topic", "topic_id", "number", "name", "path", "config"):
                assert getattr(p, name) == getattr(p.blocking, name)
            assert (p.topic, p.number, p.name) == ("orders", 0, "orders-0")
            assert repr(p) == f"<logstore.aio.Partition orders-0 at {p.path}>"
            assert bool(p)
            await p.append_many([b"a", b"b"])
            assert p.fetch(0).next_offset == 2
            assert p.offset_for_time(0) == 0
            assert p.last_stable_offset() == 2
            assert logstore.aio.Partition.read is logstore.Partition.read

    run(main())


def test_appends_are_seen_by_blocking_readers_at_once(tmp_path: Path) -> None:
    """They see them while the loop runs."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            seen: list[bytes | None] = []
            reader = asyncio.to_thread(
                lambda: [seen.append(r.value) for r in p.blocking.follow(limit=3)]
            )
            reading = asyncio.create_task(reader)
            for n in range(3):
                await p.append(b"%d" % n)
                await until(lambda n=n: len(seen) > n)
            await reading
            assert seen == [b"0", b"1", b"2"]

    run(main())
