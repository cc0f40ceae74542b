"""A broker takes over the producers of a log from logstore, and gives them back.

logstore appends to a topic of a stopped broker, for a named producer and for one
without a name. The dump tool must print the same snapshots as the parser here; a broker
that loads them, and one that has lost them and reads the log, must know the same, and
must answer to repeated batches as logstore does.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.producer_snapshot import ProducerEntry, parse_snapshot
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.kafka_wire import Wire
from support.producing import sent
from support.releases import each_release

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.sampled(1)]

OTHER = 7
OUT_OF_ORDER, DUPLICATE, STALE_EPOCH = 45, 46, 47
_LINE = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
    r"currentTxnFirstOffset: (\S+) (?:lastTimestamp: (-?\d+) )?firstSequence: (-?\d+) "
    r"lastSequence: (-?\d+) lastOffset: (-?\d+) offsetDelta: (-?\d+) "
    r"timestamp: (-?\d+)"
)


def snapshots(data: Path) -> list[Path]:
    return sorted(data.glob("orders-0/*.snapshot"))


def newest(data: Path) -> tuple[int, list[ProducerEntry]]:
    """The offset and the entries of the last snapshot."""
    path = snapshots(data)[-1]
    entries = parse_snapshot(path.read_bytes(), str(path))
    return int(path.name[:20]), sorted(entries)


def dumped(lines: list[str]) -> list[ProducerEntry]:
    """The entries of a snapshot as the dump tool prints them."""
    found = []
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        assert match is not None, line
        producer, epoch, coordinator, _, stamp, first, last, offset, delta, again = (
            match.groups()
        )
        assert match[4] in ("None", "OptionalLong.empty")
        assert stamp in (again, None)  # 2.8 prints it once
        assert (int(last) - int(first)) % 2**31 == int(delta)
        numbers = (producer, epoch, last, offset, delta, again, coordinator)
        found.append(ProducerEntry(*map(int, numbers), -1))
    return sorted(found)


def produce(broker: KafkaBroker, batch: bytes) -> tuple[int, int]:
    """Send a batch as a client does: (error code, base offset)."""
    with Wire(broker.address) as wire:
        answer = wire.produce({"orders": batch})["orders"]
    return answer.error, answer.offset


@dataclass(frozen=True, slots=True)
class Handed:
    """A stopped broker's directory that logstore has written to.

    Attributes:
        last: the last batch of each producer, by its id, with its offset.
        end: of the log.
    """

    broker: KafkaBroker
    named: int
    last: dict[int, tuple[bytes, int]]
    end: int


@pytest.fixture(params=each_release())
def handed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Handed]:
    try:
        broker = KafkaBroker(tmp_path, request.param, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        broker.start()
        tool = "org.apache.kafka.tools.TopicCommand"
        if request.param.startswith("2"):
            tool = "kafka.admin.TopicCommand"
        broker.run(
            tool, "--bootstrap-server", broker.address,
            "--create", "--topic", "orders", "--partitions", "1",
            "--replication-factor", "1",
        )  # fmt: skip
        broker.stop()
        yield Handed(broker, *_written(broker.data))


def _written(data: Path) -> tuple[int, dict[int, tuple[bytes, int]], int]:
    last: dict[int, tuple[bytes, int]] = {}
    with logstore.open(data) as store:
        topic = store.topic("orders")
        topic.configure(logstore.TopicConfig(message_format=2))
        partition = topic[0]
        for epoch in range(3):
            producer = store.producer("outbox")
            for n in range(3):
                producer.append_many(partition, [b"%d" % n] * (n + 1))
                partition.append_batches(sent(OTHER, 1, 6 * epoch + 2 * n, 2))
            partition.append(b"plain")
            if epoch < 2:
                partition.roll()
        for batch in partition.read_batches():
            last[batch.producer_id] = bytes(batch.buffer), batch.base_offset
        end = partition.end_offset
    return producer.producer_id, last, end


@pytest.mark.thorough
def test_kafka_prints_the_snapshots_as_they_are_read_here(handed: Handed) -> None:
    """Snapshots made at the rolls, and at the end."""
    data = handed.broker.data
    files = snapshots(data)
    assert len(files) >= 3
    dump = handed.broker.tools.dump(files, root=data)
    assert dump.complaints == ()
    sections = dump.sections()
    for path in files:
        entries = sorted(parse_snapshot(path.read_bytes(), str(path)))
        lines = sections[path.relative_to(data).as_posix()]
        assert dumped([line for line in lines if line]) == entries
    assert newest(data)[0] == handed.end
    assert {entry.producer_id for entry in newest(data)[1]} == {OTHER, handed.named}


def test_broker_goes_on_with_the_producers_and_gives_them_back(handed: Handed) -> None:
    """The broker answers a repeated batch with its old offset, refuses a gap and an old
    epoch, and takes the next batch; then logstore knows the next batch."""
    broker, end = handed.broker, handed.end
    before = {entry.producer_id: entry for entry in newest(broker.data)[1]}
    broker.start()
    for batch, offset in (handed.last[OTHER], handed.last[handed.named]):
        assert produce(broker, batch) == (0, offset)
    following = sent(OTHER, 1, 18, 3)
    assert produce(broker, sent(OTHER, 1, 20))[0] == OUT_OF_ORDER
    assert produce(broker, sent(OTHER, 0, 18))[0] == STALE_EPOCH
    assert produce(broker, following) == (0, end)
    broker.stop()
    offset, entries = newest(broker.data)
    after = {entry.producer_id: entry for entry in entries}
    assert offset == end + 3
    assert after[handed.named] == before[handed.named]
    assert after[OTHER][1:5] == (1, 20, end + 2, 2)
    with logstore.open(broker.data) as store:
        partition = store.topic("orders")[0]
        assert partition.append_batches(following) == range(end, end + 3)
        producer = store.producer("outbox")
        last = before[handed.named].last_sequence
        assert producer.last_sequence(partition) == last
        assert producer.append(partition, b"x", sequence=last + 1) == end + 3


@pytest.mark.thorough
def test_broker_that_reads_the_log_knows_what_the_snapshot_says(
    handed: Handed, tmp_path: Path
) -> None:
    """The broker has lost all snapshots, and was not stopped cleanly."""
    broker = handed.broker
    expected = newest(broker.data)
    shutil.copytree(broker.data, tmp_path / "kept")
    for path in snapshots(broker.data):
        path.unlink()
    (broker.data / ".kafka_cleanshutdown").unlink()
    broker.start()
    # It has loaded the log when it answers.
    assert produce(broker, handed.last[OTHER][0]) == (0, handed.last[OTHER][1])
    broker.stop()
    assert newest(broker.data) == expected
