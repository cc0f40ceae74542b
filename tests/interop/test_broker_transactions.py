"""Transactions go from a broker to logstore, and back to the broker.

Producers of a real broker interleave transactions: committed, aborted, open at the end.
Its batches are appended to a store of ours, whose files must be the broker's, byte for
byte; the broker is started on them, and must serve the records that our readers read.
It ends the open transactions, whose beginnings it knows from our snapshot, and we
continue reading.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import logstore
from logstore.index import parse_txn_index
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.levels import IS_ALL
from support.releases import STARTED

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.thorough]

TOPIC = "orders"
SEGMENT_BYTES = 1 << 20  # the least of 4.x
SEEDS = range(3) if IS_ALL else range(1)
CASES = [(release, seed) for seed in SEEDS for release in STARTED]
CLIENTS = "Transactions.java"
Pairs = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Filled:
    """A stopped broker that has the transactions of a seed."""

    broker: KafkaBroker

    @property
    def partition(self) -> Path:
        return self.broker.data / f"{TOPIC}-0"

    def consumed(self, isolation: str) -> Pairs:
        """Records as a consumer of the running broker gets them."""
        text = self.broker.run_clients(CLIENTS, "read", TOPIC, isolation)
        rows = (line.split() for line in text.splitlines())
        return [(int(row[0]), row[1]) for row in rows if len(row) == 2]

    def bounds(self) -> tuple[int, int, int]:
        """Start, last stable offset and end, reported by the running broker."""
        text = self.broker.run_clients(CLIENTS, "bounds", TOPIC)
        start, stable, end = text.split()[-3:]
        return int(start), int(stable), int(end)


@pytest.fixture(params=CASES, ids=str)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filled]:
    release, seed = request.param
    directory = tmp_path / "broker"
    directory.mkdir()
    try:
        broker = KafkaBroker(directory, release, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        broker.start()
        broker.run(
            "org.apache.kafka.tools.TopicCommand"
            if release > "3.5"
            else "kafka.admin.TopicCommand",
            "--bootstrap-server", broker.address, "--create", "--topic", TOPIC,
            "--partitions", "1", "--replication-factor", "1",
            "--config", f"segment.bytes={SEGMENT_BYTES}",
        )  # fmt: skip
        text = broker.run_clients(CLIENTS, "fill", TOPIC, str(seed), "150", "20000")
        assert "FILLED" in text
        broker.stop()
        yield Filled(broker)


def read(path: Path, isolation: str) -> tuple[Pairs, tuple[int, int, int]]:
    """Records as our reader gets them from a log directory, and its bounds."""
    with logstore.open(path, read_only=True) as store:
        partition = store.topic(TOPIC)[0]
        pairs = [
            (record.offset, (record.value or b"").hex())
            for record in partition.read(isolation=isolation)
        ]
        stable = partition.last_stable_offset()
        return pairs, (partition.start_offset, stable, partition.end_offset)


def mirror(source: Path, target: Path) -> None:
    """Append the batches of a broker's log to a new store, one by one."""
    config = logstore.TopicConfig(message_format=2, segment_bytes=SEGMENT_BYTES)
    with (
        logstore.open(source, read_only=True) as theirs,
        logstore.open(target) as ours,
    ):
        partition = ours.create_topic(TOPIC, config=config)[0]
        for batch in theirs.topic(TOPIC)[0].read_batches():
            partition.append_batches(
                bytes(batch.buffer),
                transactions=True,
                expected_offset=batch.base_offset,
            )


def files_of(partition: Path, *suffixes: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(partition.iterdir())
        if path.suffix in suffixes
    }


def test_transactions_go_to_logstore_and_back(filled: Filled, tmp_path: Path) -> None:
    """The files of the copy equal the broker's; it serves them as we do, also after it
    has ended the open transactions; then we read all of it."""
    broker, mine = filled.broker, tmp_path / "mine"
    mirror(broker.data, mine)
    copy = mine / f"{TOPIC}-0"
    exact = (".txnindex", ".snapshot", ".index", ".timeindex", ".log")
    theirs = files_of(filled.partition, *exact)
    assert files_of(copy, *exact) == theirs
    aborted = [
        entry
        for name, data in theirs.items()
        if name.endswith(".txnindex")
        for entry in parse_txn_index(data, name)
    ]
    assert len(aborted) > 5
    assert sum(name.endswith(".log") for name in theirs) > 3
    uncommitted, committed = (
        read(mine, f"read_{how}") for how in ("uncommitted", "committed")
    )
    assert committed[1][1] < committed[1][2]  # some are open
    assert len(committed[0]) < len(uncommitted[0])
    # Hand-over, as docs/operations.md says.
    for path in filled.partition.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    shutil.copytree(copy, filled.partition, dirs_exist_ok=True)
    broker.start()
    assert filled.bounds() == committed[1]
    assert filled.consumed("read_committed") == committed[0]
    assert filled.consumed("read_uncommitted") == uncommitted[0]
    broker.run_clients(CLIENTS, "end")
    start, stable, end = filled.bounds()
    assert stable == end > committed[1][2]
    served = filled.consumed("read_committed")
    broker.stop()
    with logstore.open(broker.data) as store:
        assert store.topic(TOPIC)[0].last_stable_offset() == end
    assert read(broker.data, "read_committed") == (served, (start, stable, end))
    report = logstore.verify(filled.partition, deep=True)
    assert report.problems == ()


def test_broker_that_is_killed_is_finished_by_logstore(
    filled: Filled, tmp_path: Path
) -> None:
    """It loses its snapshots and transaction indexes with the power; logstore opens the
    directory and closes it, and the broker, which finds a clean stop, serves no record
    of an aborted or of an open transaction as committed."""
    broker = filled.broker
    expected = read(broker.data, "read_committed")
    before = files_of(filled.partition, ".txnindex")
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.data / name).unlink()
    for path in filled.partition.iterdir():
        if path.suffix in (".snapshot", ".txnindex"):
            path.unlink()
    with logstore.open(broker.data) as store:
        partition = store.topic(TOPIC)[0]
        assert partition.end_offset == expected[1][2]
    assert files_of(filled.partition, ".txnindex") == before
    assert (broker.data / ".kafka_cleanshutdown").exists()
    broker.start()
    assert filled.bounds() == expected[1]
    assert filled.consumed("read_committed") == expected[0]
