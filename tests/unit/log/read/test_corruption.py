"""A function that decides about damage, in every way of reading."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.read.corruption import DamagePolicy
from logstore.types import Damaged
from support import transactions
from support.damage import flip_bit, frames, logs_in

BATCHES, RECORDS = 12, 5
COUNT = BATCHES * RECORDS
# Bad batches in the middle of a segment, at the end of one, at the end of the log.
BAD = (2, 7, 11)
GAPS = [(10, 15), (35, 40), (55, None)]
INTACT = [o for o in range(COUNT) if o // RECORDS not in BAD]

Way = Callable[[logstore.Partition, Any], Iterator[int]]


def rows(base: int, producer: int) -> bytes:
    """A batch of a transaction."""
    records = [(b"key", b"value")] * RECORDS
    return transactions.batch(base, records, producer, control=False)


def end_of(base: int, producer: int) -> bytes:
    return transactions.marker(base, producer, commit=True)


def fetched(partition: logstore.Partition, on_corruption: Any) -> Iterator[int]:
    at = partition.start_offset
    while at < partition.end_offset:
        chunk = partition.fetch(at, 1, on_corruption=on_corruption)
        yield from (record.offset for record in chunk)
        at = chunk.next_offset


def consumed(partition: logstore.Partition, on_corruption: Any) -> Iterator[int]:
    path = Path(partition.path).parent
    with logstore.Consumer(
        path,
        topics=["t"],
        reset="earliest",
        durable_only=False,
        on_corruption=on_corruption,
    ) as consumer:
        for _ in range(9):
            for records in consumer.poll(0).values():
                yield from (record.offset for record in records)


def awaited(partition: logstore.Partition, on_corruption: Any) -> Iterator[int]:
    async def follow() -> list[int]:
        path = Path(partition.path).parent
        async with await logstore.aio.open(path, read_only=True) as store:
            topic = store.topic("t")
            found = topic[0].follow(timeout=0, on_corruption=on_corruption)
            return [record.offset async for record in found]

    yield from asyncio.run(follow())


def by_arrow(partition: logstore.Partition, on_corruption: Any) -> Iterator[int]:
    for threads in (1, 4):
        found: list[int] = []
        for part in partition.read_arrow(
            columns=["offset"], threads=threads, on_corruption=on_corruption
        ):
            found += part.column(0).to_pylist()
    yield from found


WAYS: dict[str, Way] = {
    "read": lambda p, c: (r.offset for r in p.read(on_corruption=c)),
    "committed": lambda p, c: (
        r.offset for r in p.read(on_corruption=c, isolation="read_committed")
    ),
    "batches": lambda p, c: (
        r.offset for b in p.read_batches(on_corruption=c) for r in b
    ),
    "arrow": by_arrow,
    "follow": lambda p, c: (r.offset for r in p.follow(timeout=0, on_corruption=c)),
    "topic": lambda p, c: (
        r.offset
        for r in logstore.open(Path(p.path).parent, read_only=True)
        .topic("t")
        .read(on_corruption=c)
    ),
    "fetch": fetched,
    "Consumer": consumed,
    "aio": awaited,
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    """Three segments of four batches, in which three batches are damaged."""
    with logstore.open(tmp_path / "store") as store:
        config = logstore.TopicConfig(message_format=2)
        p = store.create_topic("t", config=config)[0]
        for number in range(BATCHES):
            p.append_many([b"value %d" % i for i in range(RECORDS)])
            if number in (3, 7):
                p.roll()
    logs = logs_in(tmp_path / "store" / "t-0")
    for number in BAD:
        bad = frames(logs[number // 4])[number % 4]
        flip_bit(logs[number // 4], 8 * (bad.pos + bad.size) - 1)
    with logstore.open(tmp_path / "store", read_only=True) as store:
        yield store.topic("t")[0]


@every_way
def test_function_is_told_of_each_damage_once_in_order(
    partition: logstore.Partition, way: str
) -> None:
    """The function gets the offsets that are left out and the error that a read would
    raise, in the thread of the caller, and all other records are delivered."""
    told: list[Damaged] = []
    threads = set()

    def leave_out(damaged: Damaged) -> bool:
        told.append(damaged)
        threads.add(threading.current_thread())
        return True

    assert list(WAYS[way](partition, leave_out)) == INTACT
    gaps = [(damaged.first, damaged.next_offset) for damaged in told]
    assert gaps == (GAPS * 2 if way == "arrow" else GAPS)
    assert threads == {threading.current_thread()}
    for damaged, number in zip(told, BAD, strict=False):
        assert damaged.error.next_offset == damaged.next_offset
        assert isinstance(damaged.error, logstore.CorruptRecordError)
        assert damaged.error.offset == damaged.first == number * RECORDS
        assert damaged.error.path


@every_way
def test_function_that_refuses_raises_the_error(
    partition: logstore.Partition, way: str
) -> None:
    """A result of False, or no result, is like "raise", after the records before the
    damage."""
    answers = iter([True, None])
    found = []
    with pytest.raises(logstore.CorruptRecordError) as caught:
        for offset in WAYS[way](partition, lambda damaged: next(answers)):
            found.append(offset)
    assert caught.value.offset == 35
    assert caught.value.next_offset == 40
    if way not in ("arrow", "aio"):  # these return no record before they have all
        assert found == [o for o in INTACT if o < 35]


@every_way
def test_what_the_function_raises_ends_the_read(
    partition: logstore.Partition, way: str
) -> None:
    def fail(damaged: Damaged) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(WAYS[way](partition, fail))


def damaged_at(path: str, position: int) -> Damaged:
    error = logstore.CorruptRecordError("it", path=path, position=position, offset=5)
    return Damaged(5, 8, error)


def test_function_is_asked_once_for_each_place() -> None:
    """A place is a file and a position: each place gets a separate answer."""
    asked: list[Damaged] = []

    def answer(damaged: Damaged) -> bool:
        asked.append(damaged)
        return damaged.error.position == 20

    policy = DamagePolicy(answer)
    places = [damaged_at(path, at) for path in ("a", "b") for at in (20, 30)]
    for _ in range(2):
        given = [policy.leaves_out(place) for place in places]
        assert given == [True, False, True, False]
    assert asked == places


def test_oldest_answer_is_forgotten_first() -> None:
    """Damage is met at most twice, and soon: memory has a bound."""
    asked: list[int | None] = []
    policy = DamagePolicy(lambda damaged: not asked.append(damaged.error.position))  # type: ignore[func-returns-value]
    for position in range(1025):
        policy.leaves_out(damaged_at("a", position))
    asked.clear()
    for position in (1024, 1, 0):
        assert policy.leaves_out(damaged_at("a", position))
    assert asked == [0]


def test_answer_that_is_no_bool_is_an_error(partition: logstore.Partition) -> None:
    """A coroutine is true, and would leave out all damage without a decision."""
    wrong: Any
    for wrong in (lambda damaged: 1, lambda damaged: asyncio.sleep):
        with pytest.raises(TypeError, match="on_corruption returned"):
            list(partition.read(on_corruption=wrong))


def test_damage_before_a_time_is_told_before_the_read(
    tmp_path: Path,
) -> None:
    """Its times are unknown: it may have held the first record of the time asked for.
    Damage between the start and a stop is reported by the read, in the order of the
    offsets."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        p = store.create_topic("t")[0]
        for number in range(6):
            p.append(b"v", timestamp_ms=1_000 * number)
    (log,) = logs_in(path / "t-0")
    for number in (2, 3):
        bad = frames(log)[number]
        flip_bit(log, 8 * (bad.pos + bad.size) - 1)
    since, until = (f"1970-01-01T00:00:0{second}+00:00" for second in (2, 5))
    told: list[Damaged] = []
    with logstore.open(path, read_only=True) as store:
        p = store.topic("t")[0]
        found = p.read(since, until, on_corruption=lambda d: not told.append(d))  # type: ignore[func-returns-value]
        assert [r.offset for r in found] == [4]
        assert [(d.first, d.next_offset) for d in told] == [(2, 4)]


def test_wrong_choices_are_refused_at_the_call(partition: logstore.Partition) -> None:
    for wrong in ("leave", None, 3):
        with pytest.raises(logstore.ConfigError, match="on_corruption"):
            partition.read(on_corruption=wrong)  # type: ignore[arg-type]
        with pytest.raises(logstore.ConfigError, match="on_corruption"):
            logstore.Consumer(partition.path, on_corruption=wrong)  # type: ignore[arg-type]
    with pytest.raises(logstore.ConfigError, match="on_corruption"):
        partition.to_dataset(on_corruption=lambda damaged: True)  # type: ignore[arg-type]


@pytest.mark.parametrize("producer", [1, 7])
def test_damage_that_hides_the_end_of_a_transaction_ends_the_read(
    tmp_path: Path, producer: int
) -> None:
    """It is unknown whether its records were committed, even if a later transaction of
    its producer was. All from there on is reported as left out, and only once."""
    parts = [
        rows(0, 1),
        end_of(5, 1),
        rows(6, 7),
        end_of(11, 7),
    ]
    parts[-1] = parts[-1][:-1] + bytes([parts[-1][-1] ^ 1])
    parts += [
        rows(12, 1),
        end_of(17, 1),
    ]
    (tmp_path / "t-0").mkdir(mode=0o700)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(parts))
    following = rows(18, producer) + end_of(23, producer)
    (tmp_path / "t-0" / f"{18:020d}.log").write_bytes(following)
    committed: Any = {"isolation": "read_committed"}
    with logstore.open(tmp_path, read_only=True) as store:
        p = store.topic("t")[0]
        ways: dict[str, Way] = {
            "read": lambda p, c: (
                r.offset for r in p.read(on_corruption=c, **committed)
            ),
            "batches": lambda p, c: (
                r.offset
                for b in p.read_batches(on_corruption=c, **committed)
                for r in b
            ),
            "fetch": lambda p, c: (
                r.offset
                for at in (0, 6)
                for r in p.fetch(at, 1, on_corruption=c, **committed)
            ),
        }
        for way in ways.values():
            told: list[Damaged] = []
            assert list(way(p, lambda d, to=told: not to.append(d))) == list(range(5))
            ((first, following_offset, error),) = told
            assert (first, following_offset, error.offset) == (6, None, 11)
            with pytest.raises(logstore.CorruptRecordError):
                list(way(p, lambda damaged: False))
            assert list(way(p, "skip")) == list(range(5))


def test_damage_of_records_in_a_transaction_leaves_out_these_alone(
    tmp_path: Path,
) -> None:
    """A batch of that size is no marker: the one after it ends the transaction."""
    parts = [rows(0, 7), rows(5, 7), rows(10, 7), end_of(15, 7), rows(16, 1)]
    parts[1] = parts[1][:-1] + bytes([parts[1][-1] ^ 1])
    parts.append(end_of(21, 1))
    (tmp_path / "t-0").mkdir(mode=0o700)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(parts))
    (tmp_path / "t-0" / f"{22:020d}.log").write_bytes(b"")
    told: list[Damaged] = []
    with logstore.open(tmp_path, read_only=True) as store:
        found = store.topic("t")[0].read(
            isolation="read_committed",
            on_corruption=lambda d: not told.append(d),  # type: ignore[func-returns-value]
        )
        assert [r.offset for r in found] == [*range(5), *range(10, 15), *range(16, 21)]
    assert [(d.first, d.next_offset) for d in told] == [(5, 10)]


@pytest.mark.parametrize("point", [None, 25, 50])
@pytest.mark.parametrize("way", ["read", "batches", "arrow", "follow", "fetch"])
def test_log_of_a_killed_broker_is_read_to_its_last_intact_batch(
    tmp_path: Path, way: str, point: int | None
) -> None:
    """Its recovery point does not matter: only the bad batch is left out, and without a
    choice it is an error."""
    parts = [rows(RECORDS * number, 1) for number in range(10)]
    parts[4] = parts[4][:-1] + bytes([parts[4][-1] ^ 1])
    (tmp_path / "t-0").mkdir(mode=0o700)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(parts) + b"torn")
    if point is not None:
        name = "recovery-point-offset-checkpoint"
        (tmp_path / name).write_text(f"0\n1\nt 0 {point}\n")
    told: list[Damaged] = []
    with logstore.open(tmp_path, read_only=True) as store:
        p = store.topic("t")[0]
        found = list(WAYS[way](p, lambda d: not told.append(d)))  # type: ignore[func-returns-value]
        assert found == [o for o in range(50) if o // RECORDS != 4]
        assert {(d.first, d.next_offset) for d in told} == {(20, 25)}
        with pytest.raises(logstore.CorruptRecordError):
            list(WAYS[way](p, "raise"))
