"""A store with a long history: a kill, damage and repair, retention, rebuilt indexes,
publications, truncation, deletion, named producers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import logstore
from logstore import Record, TimestampType
from support.adopting import adopting
from support.damage import append_garbage, flip_bit, frames, logs_in
from support.producing import sent
from support.values import append_records, config_of, fill, record_of, value_of

__all__ = ["Lived", "live"]

SEGMENT_BYTES = 900
_KILLED_AFTER = 40
_TRUNCATED_TO, _DELETED_BEFORE = 70, 33
_FOREIGN_PRODUCER = 7
# Magic and codec of each topic with records of `support.values`.
_FORMATS = {
    "killed": (2, "zstd"),
    "killed-old": (1, "gzip"),
    "repaired": (1, "none"),
    "repaired-end": (2, "lz4"),
    "retained": (2, "none"),
    "reindexed": (0, "snappy"),
    "published": (1, "lz4"),
    "adopted": (2, "gzip"),
    "truncated": (2, "snappy"),
    "deleted": (1, "none"),
    "empty": (2, "none"),
}


class Lived(NamedTuple):
    """A closed store with topics of one partition each.

    Attributes:
        directory: of the store.
        written: the record that was written at an offset of a topic.
        topics: their names.
        kept: how many records each has at least.
    """

    directory: Path
    written: Callable[[str, int], Record]
    topics: tuple[str, ...]
    kept: dict[str, int]

    def records(self, topic: str) -> list[Record]:
        """Records that logstore reads.

        Raises:
            AssertionError: it is not what was written.
        """
        with logstore.open(self.directory, read_only=True) as store:
            found = list(store.topic(topic)[0].read())
        assert len(found) >= self.kept[topic]
        assert found == [self.written(topic, record.offset) for record in found]
        return found


def _config(topic: str) -> logstore.TopicConfig:
    magic, codec = _FORMATS[topic]
    return config_of(
        magic, codec, segment_bytes=SEGMENT_BYTES, index_interval_bytes=200
    )


def live(directory: Path) -> Lived:
    """Make the store."""
    kept = dict.fromkeys(_FORMATS, 0)
    with logstore.open(directory) as store:
        for topic in _FORMATS:
            partition = store.create_topic(topic, config=_config(topic))[0]
            if topic not in ("empty", "published", "adopted"):
                fill(partition, 100, call=4)
        store.topic("truncated")[0].truncate_to(_boundary(store.topic("truncated")[0]))
        assert store.topic("deleted")[0].delete_before(_DELETED_BEFORE)
        policy = logstore.RetainBytes(SEGMENT_BYTES)
        assert store.topic("retained").apply_retention(policies=[policy])
        _publish(store, kept)
        produced = _produce(store)
    kept["killed"], kept["killed-old"] = _kill(directory)
    kept |= _damage(directory)
    kept["reindexed"] = _reindex(directory)
    with logstore.open(directory) as store:
        assert not store.recovery_report.actions
        for topic in ("truncated", "deleted"):
            fill(store.topic(topic)[0], 20, call=3)
            kept[topic] = 20
        kept["retained"] = len(store.topic("retained")[0])
        kept["produced"] = store.topic("produced")[0].end_offset

    def written(topic: str, offset: int) -> Record:
        if topic == "produced":
            return produced[offset]
        return record_of(offset, _FORMATS[topic][0])

    return Lived(directory, written, (*_FORMATS, "produced"), kept)


def _boundary(partition: logstore.Partition) -> int:
    """The first batch at or above an offset."""
    return next(
        batch.base_offset
        for batch in partition.read_batches()
        if batch.base_offset >= _TRUNCATED_TO
    )


def _publish(store: logstore.Store, kept: dict[str, int]) -> None:
    """Publish in two steps, with records between them; one topic adopts the staged
    file."""
    topics = [store.topic(name)[0] for name in ("published", "adopted")]
    for sequence in (1, 2):
        with adopting(), store.stage("job", sequence) as stage:
            for partition in topics:
                first = partition.end_offset
                records = [
                    record_of(offset, partition.config.message_format)
                    for offset in range(first, first + 60)
                ]
                for at in range(0, 60, 6):
                    some = records[at : at + 6]
                    two = partition.config.message_format == 2
                    stage.append_many(
                        partition,
                        [record.value for record in some],
                        [record.key for record in some],
                        [record.timestamp_ms for record in some],
                        [record.headers for record in some] if two else None,
                    )
            staged = stage.finish()
            store.publish([staged], identity="job", sequence=sequence)
        for partition in topics:
            append_records(partition, 3)
            kept[partition.topic] = partition.end_offset


def _produce(store: logstore.Store) -> list[Record]:
    """Batches of a named producer in three epochs, and of an idempotent client's."""
    config = config_of(2, segment_bytes=SEGMENT_BYTES)
    partition = store.create_topic("produced", config=config)[0]
    for epoch in range(3):
        producer = store.producer("outbox")
        for n in range(4):
            values = [value_of(n + at) for at in range(5)]
            producer.append_many(partition, values, timestamps_ms=[1000 + n] * 5)
            batch = sent(_FOREIGN_PRODUCER, 1, 12 * epoch + 3 * n, 3, timestamp_ms=1000)
            partition.append_batches(batch)
        partition.roll()
    records = []
    for record in partition.read():
        turn, at = divmod(record.offset, 8)
        number = turn % 4
        value = value_of(number + at) if at < 5 else b"%d" % (3 * turn + at - 5)
        stamp = 1000 + number if at < 5 else 1000
        kind = TimestampType.CREATE_TIME
        records.append(Record(record.offset, stamp, None, value, (), kind))
    assert len(records) == 96
    return records


def _append_until_killed(directory: str, acknowledged: Connection) -> None:
    with logstore.open(directory) as store:
        topics = [store.topic(name)[0] for name in ("killed", "killed-old")]
        while True:
            for partition in topics:
                append_records(partition, 3)
            acknowledged.send([partition.end_offset for partition in topics])


def _kill(directory: Path) -> list[int]:
    """Let a process append until it is killed; its last write is torn. Opening
    recovers. Returns the acknowledged ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_append_until_killed, args=(str(directory), there), daemon=True
    )
    process.start()
    there.close()  # so that the end of the process ends the wait
    for _ in range(_KILLED_AFTER):
        ends: list[int] = here.recv()
    process.kill()
    process.join()
    for topic in ("killed", "killed-old"):
        append_garbage(logs_in(directory / f"{topic}-0")[-1])
    with logstore.open(directory) as store:
        labels = [action.label for action in store.recovery_report.actions]
        assert labels.count("torn-tail") == 2, labels
    return ends


def _damage(directory: Path) -> dict[str, int]:
    """Damage and repair two logs: one loses a batch in the middle, one its end."""
    for topic, mode in (("repaired", "skip"), ("repaired-end", "cut")):
        logs = logs_in(directory / f"{topic}-0")
        log = logs[0 if mode == "skip" else -2]
        frame = frames(log)[2]
        flip_bit(log, 8 * (frame.pos + frame.size - 1))
        report = logstore.repair(directory / f"{topic}-0", mode)
        assert report.actions, report
    with logstore.open(directory, read_only=True) as store:
        ends = {n: len(list(store.topic(n)[0].read())) for n in _FORMATS}
    assert ends["repaired"] < 100
    assert ends["repaired-end"] < 100
    return {name: ends[name] for name in ("repaired", "repaired-end")}


def _reindex(directory: Path) -> int:
    """Delete and rebuild all indexes of a log."""
    partition = directory / "reindexed-0"
    indexes = [*partition.glob("*.index"), *partition.glob("*.timeindex")]
    for path in indexes:
        path.unlink()
    assert len(logstore.rebuild_index(partition)) > 2
    return 100
