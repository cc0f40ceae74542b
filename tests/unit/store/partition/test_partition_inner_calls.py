"""Appends that are made inside another call on the same partition, by code of the
caller: what makes its records, and handlers of its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import config_of

FORMATS = [(1, "none"), (2, "none"), (2, "gzip")]


def contents(partition: logstore.Partition) -> dict[int, bytes | None]:
    """Value of each offset."""
    return {record.offset: record.value for record in partition.read()}


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_iterable_may_append_to_the_partition_that_takes_its_items(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The inner record comes first: no offset is returned twice, and all records are
    there after the next opening."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(magic, codec))[0]
        partition.append(b"first")
        inner = []

        def lines() -> Iterator[bytes]:
            yield b"good"
            inner.append(partition.append(b"of the iterable", durable=True))
            yield b"also good"

        assert partition.append_many(lines()) == range(2, 4)
        assert inner == [1]
        found = contents(partition)
        wanted = [b"first", b"of the iterable", b"good", b"also good"]
        assert found == dict(enumerate(wanted))
    with logstore.open(tmp_path) as store:
        assert contents(store.topic("orders")[0]) == found


class Shipper(logging.Handler):
    """Appends each message to a partition."""

    def __init__(self, partition: logstore.Partition) -> None:
        super().__init__()
        self.partition = partition
        self.told: dict[int, bytes] = {}

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().encode()
        self.told[self.partition.append(message)] = message


@pytest.mark.parametrize(
    "call",
    [
        lambda partition: partition.truncate_to(15),
        lambda partition: partition.delete_before(10),
        lambda partition: partition.delete_before(partition.end_offset),
    ],
    ids=["truncate", "delete", "delete all"],
)
def test_log_handler_may_append_to_the_partition_whose_change_is_logged(
    tmp_path: Path, call: Callable[[logstore.Partition], object]
) -> None:
    """The change is complete when its message is logged: each acknowledged record is
    there."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = logstore.TopicConfig(segment_bytes=300)
        partition = store.create_topic("orders", config=config)[0]
        for number in range(20):
            partition.append(b"%050d" % number)
        handler, log = Shipper(partition), logging.getLogger("logstore")
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            call(partition)
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
        assert handler.told
        offset = partition.append(b"afterwards")
        found = contents(partition)
        assert found[offset] == b"afterwards"
        assert handler.told.items() <= found.items()
