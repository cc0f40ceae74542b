"""The entry of calls into a consumer, and the delivery of records that were read
ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import TopicPartition
from logstore._native import forks
from logstore.group.consumer import deliveries as module
from logstore.group.consumer.consumer import deliveries_of
from logstore.group.consumer.deliveries import Deliveries

T0 = TopicPartition("t", 0)


@pytest.fixture
def one(tmp_path: Path) -> logstore.Consumer:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        for number in range(5):
            store.topic("t")[0].append(b"%d" % number, durable=True)
    one = logstore.Consumer(tmp_path, reset="earliest", max_poll_records=2)
    one.assign([T0])
    return one


def values(found: dict[TopicPartition, list[logstore.TopicRecord]]) -> list[object]:
    return [record.value for records in found.values() for record in records]


def test_records_are_delivered_only_if_they_were_read_ahead(
    one: logstore.Consumer,
) -> None:
    """One by one or several, each once; at least `max_poll_records` are read."""
    deliveries = deliveries_of(one)
    with one:
        assert deliveries.next_read(at_once=False) is None
        assert deliveries.next_many(None, at_once=False) == {}
        assert deliveries.read_ahead(1, 60.0)
        record = deliveries.next_read(at_once=False)
        assert record is not None
        assert record.value == b"0"
        assert one.position(T0) == 1
        assert values(deliveries.next_many(9, at_once=False)) == [b"1"]
        assert deliveries.next_read(at_once=False) is None
        assert deliveries.read_ahead(9, 60.0)
        assert values(deliveries.next_many(None, at_once=False)) == [b"2", b"3"]
        assert values(deliveries.poll(0, None)) == [b"4"]
        assert not deliveries.read_ahead(None, 0.0)


def test_records_wait_when_the_group_is_to_be_looked_at(one: logstore.Consumer) -> None:
    """A task that takes them at once must not keep the consumer from checking the
    group."""
    deliveries = deliveries_of(one)
    with one:
        assert deliveries.read_ahead(None, 60.0)
        one._core.look_now()
        assert deliveries.next_read(at_once=True) is None
        assert deliveries.next_many(None, at_once=True) == {}
        assert values(deliveries.next_many(None, at_once=False)) == [b"0", b"1"]


def calls_of(deliveries: Deliveries) -> list[Callable[[], object]]:
    return [
        lambda: deliveries.poll(0, None),
        lambda: deliveries.read_ahead(None, 0),
        lambda: deliveries.next_read(at_once=True),
        lambda: deliveries.next_many(None, at_once=True),
    ]


def test_closed_consumer_lets_no_call_in(one: logstore.Consumer) -> None:
    """The error has the name of the consumer."""
    one.close()
    for call in calls_of(deliveries_of(one)):
        with pytest.raises(
            logstore.errors.StoreClosedError, match="Consumer without a group"
        ):
            call()


def test_child_of_a_fork_lets_no_call_in(
    one: logstore.Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer belongs to the parent."""
    deliveries, now = deliveries_of(one), forks()
    with one:
        assert not deliveries.entry.is_forked
        with monkeypatch.context() as child:
            child.setattr(module.native, "forks", lambda: now + 1)
            assert deliveries.entry.is_forked
            for call in (*calls_of(deliveries), deliveries.entry.check_fork):
                with pytest.raises(
                    logstore.errors.ForkedError, match="belongs to the parent"
                ):
                    call()
        assert values(deliveries.poll(60.0, 1)) == [b"0"]


@pytest.mark.parametrize("number", [0, -1, 1 << 32])
def test_number_of_records_is_checked(one: logstore.Consumer, number: int) -> None:
    """The check comes before anything is read."""
    deliveries = deliveries_of(one)
    with one:
        for call in (
            lambda: deliveries.poll(0, number),
            lambda: deliveries.read_ahead(number, 0),
            lambda: deliveries.next_many(number, at_once=True),
        ):
            with pytest.raises(logstore.ConfigError, match="max_records"):
                call()
