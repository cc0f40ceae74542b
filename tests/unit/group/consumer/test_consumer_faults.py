"""Deliveries of a consumer after a call that failed in its middle, and after a change
between two calls: each partition has exactly one reader, and no record is left out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import StorageError
from logstore.errors import CommitFailedError, LogStoreError
from logstore.group.consumer.core import Core
from logstore.group.consumer.fetcher import Fetcher
from logstore.group.consumer.log_reader import LogReader
from logstore.group.consumer.positions import Positions
from logstore.group.consumer.reading import PartitionReader
from logstore.group.member import next_generation
from logstore.group.member.membership import Membership
from logstore.io.files import Files
from support.groups import T0, T1, consumer, drain, store_with
from support.interrupts import InterruptAtCall


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "s")


class Interrupt(BaseException):
    """Stands for an interrupt from the keyboard, or a time limit."""


def once(
    monkeypatch: pytest.MonkeyPatch,
    of: Any,
    name: str,
    error: BaseException,
    *,
    at: int = 1,
    after: bool = False,
) -> None:
    """Let a method fail in one of its calls, before it does anything or after it."""
    real, count = getattr(of, name), 0

    def failing(*args: Any, **given: Any) -> Any:
        nonlocal count
        count += 1
        if count == at and not after:
            raise error
        found = real(*args, **given)
        if count == at:
            raise error
        return found

    monkeypatch.setattr(of, name, failing)


# ------------------------------------------------------------------ partitions


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("error", [StorageError("no descriptor"), Interrupt()])
def test_partitions_that_were_taken_are_read_after_a_failure(
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    at: int,
) -> None:
    told: list[Any] = []
    one = opened(on_assign=told.extend)
    once(monkeypatch, Positions, "reader", error, at=at)
    with pytest.raises(type(error)):
        one.poll()
    assert told == []
    assert len(drain(one)) == 20
    assert sorted(told) == [T0, T1]
    assert one.assignment() == {T0, T1}


def test_partitions_are_read_though_the_call_that_took_them_was_interrupted(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened()
    once(monkeypatch, Membership, "take", Interrupt(), after=True)
    with pytest.raises(Interrupt):
        one.poll()
    assert len(drain(one)) == 20


def test_a_callback_is_told_of_no_partition_that_it_has_not_got(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned: list[Any] = []
    revoked: list[Any] = []
    one = opened(on_assign=assigned.extend, on_revoke=revoked.extend)
    once(monkeypatch, Positions, "reader", Interrupt(), at=2)
    with pytest.raises(Interrupt):
        one.poll()
    one.unsubscribe()
    assert (assigned, revoked) == ([], [])


def test_a_commit_before_subscribe_keeps_no_partition_from_being_read(
    opened: Callable[..., Any],
) -> None:
    one = opened(topics=[])
    one.commit({T0: 3})
    assert one.assignment() == set()
    told: list[Any] = []
    one.subscribe(["t"], on_assign=told.extend)
    assert len(drain(one)) == 17
    assert sorted(told) == [T0, T1]


@pytest.mark.parametrize("instance", ["a", None])
def test_what_was_thrown_out_delivers_nothing_though_it_cannot_join_again(
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    instance: str | None,
) -> None:
    lost: list[Any] = []
    stuck = opened(
        instance=instance,
        max_poll_interval_ms=10,
        max_poll_records=1,
        on_lost=lost.extend,
    )
    assert stuck.poll()
    other = opened(instance="b", on_stuck="evict")
    deadline = time.monotonic() + 60
    while other.assignment() != {T0, T1}:
        assert time.monotonic() < deadline
        other.poll(timeout_ms=10)
    if instance is not None:
        opened(instance=instance).poll()  # another one has its name
    else:
        once(monkeypatch, Membership, "check", StorageError("full"))
    stuck._core.look_now()
    with pytest.raises(LogStoreError):
        stuck.poll()
    assert stuck.assignment() == set()
    assert sorted(lost) == [T0, T1]
    if instance is None:
        other.close()
        assert len(drain(stuck)) == 20


# ------------------------------------------------------------------ the iterator


def test_the_iterator_delivers_nothing_of_a_partition_that_is_paused(
    opened: Callable[..., Any],
) -> None:
    one = opened()
    first = next(one)
    paused = (first.topic, first.partition)
    one.pause(paused)
    others = [next(one) for _ in range(10)]
    assert {record.partition for record in others} == {1 - first.partition}
    one.resume(paused)
    assert [next(one).offset for _ in range(9)] == list(range(1, 10))


def test_the_iterator_delivers_nothing_of_a_partition_that_was_given_up(
    opened: Callable[..., Any],
) -> None:
    one = opened()
    first = next(one)
    keys = one.assignment()
    opened().poll()
    while one.assignment() == keys:
        one._core.look_now()
        one._core.partitions.coordinate()
    # Records of both are read ahead, or of one: it varies which one is given up.
    left = {key.partition for key in one.assignment()}
    count = 10 - (first.partition in left)
    assert {next(one).partition for _ in range(count)} == left


def test_the_iterator_delivers_nothing_of_topics_that_were_given_up(
    opened: Callable[..., Any],
) -> None:
    one = opened()
    next(one)
    one.unsubscribe()
    assert one._deliveries.next_read(at_once=False) is None


# ------------------------------------------------------------------ records

ALL = sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(10))


@pytest.mark.parametrize(
    ("of", "name", "at", "error"),
    [
        (PartitionReader, "take", 1, Interrupt()),
        (PartitionReader, "take", 2, Interrupt()),
        (PartitionReader, "take", 2, MemoryError()),
        (LogReader, "_next_item", 2, Interrupt()),
        (LogReader, "_next_item", 3, Interrupt()),
        (Fetcher, "collect", 1, MemoryError()),
        (Core, "poll", 1, Interrupt()),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_poll_that_fails_loses_no_records(
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    of: Any,
    name: str,
    at: int,
    error: BaseException,
    after: bool,
) -> None:
    one = opened()
    found: list[bytes] = []
    with monkeypatch.context() as patch:
        once(patch, of, name, error, at=at, after=after)
        with pytest.raises(type(error)):
            for _ in range(10):
                found += drain(one, 15)
    one.commit()
    assert sorted(found + drain(one)) == ALL


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_second_interrupt_at_any_call_behind_a_poll_that_fails_loses_no_records(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that it has read are restored, by the next call if necessary."""
    call, take = 1, PartitionReader.take
    while True:
        one, tracer = opened(group=f"g{call}"), InterruptAtCall(call)

        def failing(
            reader: PartitionReader, limit: int, tracer: InterruptAtCall = tracer
        ) -> Any:
            take(reader, limit)
            tracer.__enter__()
            raise MemoryError

        found = drain(one, 3)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionReader, "take", failing)
            with pytest.raises((MemoryError, InterruptAtCall.Interrupt)):
                one.poll()
            tracer.__exit__()
        assert sorted(found + drain(one)) == ALL
        if not tracer.has_raised:
            break
        call += 1
    assert call > 2


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (PartitionReader, "read_ahead"),
        (LogReader, "_next_item"),
        (LogReader, "read"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_iteration_that_fails_loses_no_record(
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    of: Any,
    name: str,
    before: int,
) -> None:
    one = opened(max_poll_records=3)
    found = [next(one).value for _ in range(before)]
    with monkeypatch.context() as patch:
        once(patch, of, name, Interrupt(), after=True)
        with pytest.raises(Interrupt):
            for _ in range(20 - before):
                found.append(next(one).value)
    found += [next(one).value for _ in range(20 - len(found))]
    assert sorted(found) == ALL


def test_call_from_inside_a_call_is_refused(path: Path) -> None:
    """A signal handler or a finalizer may call at any line: it would find half of a
    poll."""
    refused = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal refused
        if event == "line" and frame.f_code.co_name in ("coordinate", "take"):
            for call in (one.poll, one.commit, one.assignment, one.close):
                with pytest.raises(
                    logstore.errors.ReentrantCallError, match="interrupted"
                ):
                    call()
                refused += 1
        return trace

    with consumer(path) as one:
        sys.settrace(trace)
        try:
            found = one.poll()
        finally:
            sys.settrace(None)
        assert sum(map(len, found.values())) == 20
        one.commit()
    assert refused


# ------------------------------------------------------------------ transactions


def test_a_seek_in_a_transaction_does_not_hide_what_was_delivered(
    path: Path, opened: Callable[..., Any]
) -> None:
    with logstore.open(path) as store:
        store.create_topic("out", 1)
    one = opened()
    transaction = one.transaction()
    for value in drain(one):
        transaction.append("out", value)
    for key in (T0, T1):
        one.seek(key, 10)
    opened().poll()
    while one.assignment() == {T0, T1}:
        one._core.look_now()
        one._core.partitions.coordinate()
    with pytest.raises(CommitFailedError, match="were delivered"):
        transaction.commit()
    with logstore.open(path, read_only=True) as store:
        assert list(store.topic("out")[0].read()) == []


def test_an_abort_delivers_the_same_records_again_after_a_seek(
    path: Path, opened: Callable[..., Any]
) -> None:
    with logstore.open(path) as store:
        store.create_topic("out", 1)
    one = opened()
    with one.transaction() as transaction:
        for value in drain(one):
            transaction.append("out", value)
    one.seek(T0, 4)
    transaction = one.transaction()
    assert len(drain(one)) == 6
    one.seek(T0, 9)
    transaction.abort()
    assert len(drain(one)) == 6


# ------------------------------------------------------------------ callbacks, time


def test_on_assign_that_failed_is_called_again_before_the_first_record(
    opened: Callable[..., Any],
) -> None:
    """It sets the positions; after it succeeded it is not called again."""
    told: list[Any] = []

    def assign(keys: Any) -> None:
        told.append(sorted(keys))
        if len(told) < 3:
            raise ValueError("the database is locked")
        for key in keys:
            one.seek(key, 4)

    one = opened(on_assign=assign)
    for _ in range(2):
        with pytest.raises(ValueError, match="locked"):
            one.poll()
    assert len(drain(one)) == 12
    assert told == [[T0, T1]] * 3
    one.subscribe(["t"], on_assign=told.append)
    drain(one)
    assert len(told) == 3


def test_partition_whose_on_assign_has_failed_is_given_up_with_on_revoke(
    opened: Callable[..., Any],
) -> None:
    """The callback may have begun work for it."""
    revoked: list[Any] = []

    def assign(_: Any) -> None:
        raise ValueError("the database is locked")

    one = opened(on_assign=assign, on_revoke=revoked.extend)
    with pytest.raises(ValueError, match="locked"):
        one.poll()
    one.unsubscribe()
    assert sorted(revoked) == [T0, T1]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_step_of_the_wall_clock_neither_throws_out_nor_keeps_a_member(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """A member that polled just now stays, and a hung one loses its partitions."""
    works, hangs, looks = (
        opened(on_stuck="evict", max_poll_interval_ms=interval)
        for interval in (60_000, 100, 60_000)
    )
    everybody = [works, hangs, looks]
    while [len(one.assignment()) for one in everybody[:2]] != [1, 1]:
        for one in everybody[:2]:
            one.poll(timeout_ms=1)
    real = Files.now_ms
    monkeypatch.setattr(Files, "now_ms", lambda self: real(self) + step_ms)
    end = time.monotonic() + 10
    while looks.assignment() == set() and time.monotonic() < end:
        looks.poll(timeout_ms=20)
    assert len(looks.assignment()) == 1
    works.commit()
    with pytest.raises(logstore.errors.FencedError):
        hangs.commit()


def test_rows_of_assigned_partitions_are_free_when_nobody_holds_them(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group whose members `assign` may use any number of topics over time; rows held
    by other members at the time are kept."""
    monkeypatch.setattr(next_generation, "ROWS_MAX", 6)
    one, other = opened(topics=()), opened(topics=())
    other.assign([T0, T1])
    other.commit({T0: 1, T1: 1})
    for day in range(5):
        with logstore.open(path) as store:
            store.create_topic(f"day-{day}", 3)
            if day:
                store.delete_topic(f"day-{day - 1}")
        keys = [logstore.TopicPartition(f"day-{day}", n) for n in range(3)]
        one.assign(keys)
        one.commit(dict.fromkeys(keys, 0))
        rows = one._core.place.member.group.file.state.rows
        assert set(rows) == {T0, T1, *keys}
    with pytest.raises(CommitFailedError, match="does not have"):
        one.commit({T0: 2})
    other.commit({T0: 2})
    with logstore.open(path) as store:
        store.create_topic("more", 9)
    more = [logstore.TopicPartition("more", n) for n in range(9)]
    one.assign(more)
    with pytest.raises(CommitFailedError):
        one.commit(dict.fromkeys(more, 0))
    one.commit(dict.fromkeys(more[:4], 0))
