"""A log of which the caller holds both locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import logstore
from logstore.log.write.exclusive import ExclusiveLog
from logstore.store.partition.partition import appends_of
from support.values import append_records, config_of


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    """A partition with ten records, six of them durable."""
    with logstore.open(tmp_path) as store:
        config = config_of(2, segment_bytes=2000)
        partition = store.create_topic("orders", config=config)[0]
        append_records(partition, 6)
        partition.flush()
        append_records(partition, 4)
        yield partition


@contextmanager
def exclusive(partition: logstore.Partition) -> Iterator[ExclusiveLog]:
    writer = appends_of(partition).writer()
    with writer.sync_lock, writer.lock:
        yield writer.exclusive()


@pytest.mark.parametrize(("offset", "durable"), [(2, 2), (6, 6), (8, 6)])
def test_doubt_about_a_sync_never_makes_records_durable(
    partition: logstore.Partition, offset: int, durable: int
) -> None:
    assert partition.durable_offset == 6
    with exclusive(partition) as log:
        log.doubt_from(offset)
    assert partition.durable_offset == durable
    with exclusive(partition) as log:
        log.sync()
    assert partition.durable_offset == 10


def test_room_ends_with_the_segment(partition: logstore.Partition) -> None:
    """The limit is exact to the byte."""
    with exclusive(partition) as log:
        number, size = log.position()
        assert number == 0
        assert log.has_room(2000 - size)
        assert not log.has_room(2001 - size)


def test_records_are_dropped_from_an_offset_on(
    partition: logstore.Partition,
) -> None:
    """The log then ends at its former end."""
    records = list(partition.read())
    with exclusive(partition) as log:
        before = log.position()
    append_records(partition, 3)
    assert partition.end_offset == 13
    with exclusive(partition) as log:
        log.truncate_to(10, before, "a test")
    assert list(partition.read()) == records
    assert partition.end_offset == 10
