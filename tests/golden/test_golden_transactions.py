"""Transactions of real brokers, appended to a store of ours batch by batch: the same
transaction indexes and producer snapshots, byte for byte, and the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.producer_snapshot import parse_snapshot
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.golden import GoldenPartition, all_partitions, comparable

# Not the compacted ones, whose logs have gaps.
TRANSACTIONS = [
    golden for golden in all_partitions() if golden.topic in ("txn", "open-txn")
]
each_partition = pytest.mark.parametrize("golden", TRANSACTIONS, ids=str)


class ClockOf(Files):
    """A clock that does not advance."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def copied(golden: GoldenPartition, path: Path) -> Path:
    """The batches of a golden partition in a store of ours, with its segments."""
    bases = {int(log.stem) for log in golden.directory.glob("*.log")} - {0}
    with logstore.open(golden.scenario.directory, read_only=True) as source:
        batches = list(source.topic(golden.topic)[golden.number].read_batches())
    newest = max(batch.max_timestamp_ms for batch in batches)
    config = logstore.TopicConfig(message_format=2)
    with open_store(path, _files=ClockOf(newest)) as store:
        partition = store.create_topic("copy", config=config)[0]
        for batch in batches:
            if batch.base_offset in bases:
                partition.roll()
            partition.append_batches(
                bytes(batch.buffer),
                transactions=True,
                expected_offset=batch.base_offset,
            )
    return path / "copy-0"


def files_of(path: Path, suffix: str) -> dict[str, bytes]:
    found = {file.name: file.read_bytes() for file in path.glob(f"*{suffix}")}
    return {name: data for name, data in found.items() if data}


@each_partition
def test_copied_transactions_have_the_files_of_the_broker(
    golden: GoldenPartition, tmp_path: Path
) -> None:
    """`.txnindex` of each release; `.snapshot` from 2.8 on (before, the map of another
    library gave the order, and markers had no time)."""
    mine = copied(golden, tmp_path)
    assert files_of(mine, ".txnindex") == files_of(golden.directory, ".txnindex")
    theirs, ours = files_of(golden.directory, ".snapshot"), files_of(mine, ".snapshot")
    assert theirs
    for name, data in theirs.items():
        if golden.scenario.name.startswith("1."):
            both = [
                {entry._replace(timestamp=0) for entry in parse_snapshot(one, name)}
                for one in (data, ours[name])
            ]
            assert both[0] == both[1]
        else:
            assert data == ours[name]


@each_partition
def test_copied_transactions_are_read_as_the_broker_served_them(
    golden: GoldenPartition, tmp_path: Path
) -> None:
    """Committed records only, up to the first open transaction."""
    copied(golden, tmp_path)
    with logstore.open(tmp_path, read_only=True) as store:
        records = store.topic("copy")[0].read(isolation="read_committed")
        found = tuple(comparable(record) for record in records)
    assert list(found) == golden.records("read_committed")
