"""A store on a really full file system, and its required content."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import logstore
from faults.small_disks import Disk, fill_block
from logstore import DiskFullError, LogStoreError, TopicConfig

__all__ = ["COMMITS", "TRANSACTS", "Key", "Stock"]

# (topic, number of the partition).
Key = tuple[str, int]

# Two groups read the topic `u`: one commits offsets, the other one transactions.
COMMITS, TRANSACTS = "g", "h"
_SOURCE: Final = ("u", 0)
_WAIT_S: Final = 5.0
# Labels of a report for a loss, or a torn file.
_LOSSES: Final = {"lost-end", "lost-segment", "corrupt", "unreadable", "state-damaged"}


class Stock:
    """A store on a small disk, and its required content.

    The topic `t` gets all calls, `u` only appends.

    Attributes:
        store: the open store; None: it is closed.
        records: by partition, its records by their offsets.
        positions: by group, its committed offset in `u`; 0: nothing.
        sequences: how many records the named producer has appended.
        published: the last sequence number of the publisher.
        is_compacted: records of `t` may be gone.
        half_deleted: a topic whose deletion found no room for its last step.
        last_published: the partitions whose last records were published.
    """

    def __init__(self, disk: Disk, rng: random.Random) -> None:
        self.disk, self.rng = disk, rng
        self.path = disk.place / "store"
        self.records: dict[Key, dict[int, bytes]] = {}
        self.positions = dict.fromkeys((COMMITS, TRANSACTS), 0)
        self.sequences = self.published = 0
        self.is_compacted = False
        self.half_deleted = ""
        self.last_published: set[Key] = set()
        self._pads: list[Path] = []
        compacts = rng.random() < 0.3
        self.config = TopicConfig(
            message_format=2 if compacts else rng.choice((0, 1, 2)),
            segment_bytes=rng.choice((1500, 4000, 8000)),
            file_delete_delay_ms=0,
            retention_ms=-1,
            flush_ms=1 << 40,
            cleanup_policy="compact,delete" if compacts else "delete",
        )
        self.store = logstore.open(self.path)
        self._consumers: dict[str, logstore.Consumer] = {}
        self._producer: logstore.Producer | None = None

    # ------------------------------------------------------------ making it

    def make(self) -> None:
        """Fill the store, then perhaps the last blocks of its directories."""
        for name in ("t", "u"):
            topic = self.store.create_topic(name, config=self.config)
            self.records[name, 0] = {}
            for number in range(self.rng.randrange(2, 48) if name == "t" else 3):
                values = self.values(self.rng.randrange(1, 9))
                self.added({(name, 0): values}, self.append_to((name, 0), values))
                if number % 2:
                    topic[0].roll()
            topic[0].flush()
        if self.rng.random() < 0.5:
            self.commit(self.rng.randrange(1, len(self.records[_SOURCE]) + 1))
        if self.rng.random() < 0.3:
            self.reopen()
        if self.rng.random() < 0.7:
            self._pads += fill_block(self.path / "t-0")
        if self.rng.random() < 0.3:
            self._pads += fill_block(self.path)

    def values(self, count: int) -> list[bytes]:
        """New values."""
        return [self.rng.randbytes(self.rng.randrange(700)) for _ in range(count)]

    def keys(self, count: int) -> list[bytes]:
        """`count` keys, some of them equal."""
        return [b"%d" % self.rng.randrange(5) for _ in range(count)]

    def append_to(self, key: Key, values: list[bytes]) -> Callable[[], object]:
        """A call that appends values to a partition."""
        keys = self.keys(len(values))
        return lambda: self.partition(key).append_many(values, keys)

    def reopen(self) -> None:
        self.close()
        self.store = logstore.open(self.path)

    def close(self) -> None:
        """Close the store and its consumers; may be called again."""
        while self._consumers:
            self._consumers.popitem()[1].close()
        self._producer = None
        self.store.close()

    def abandon(self) -> None:
        """Release the disk, in any state."""
        for _ in range(2):
            with contextlib.suppress(LogStoreError):
                self.close()

    # ------------------------------------------------------------ what there is

    def partition(self, key: Key) -> logstore.Partition:
        topic, number = key
        return self.store.topic(topic)[number]

    def keys_of(self, topic: str) -> list[Key]:
        """The partitions of a topic; none if it was deleted."""
        return [key for key in self.records if key[0] == topic]

    def drop(self, key: Key, start: int, end: int) -> None:
        """Forget the records outside of a range."""
        there = self.records[key]
        self.records[key] = {o: v for o, v in there.items() if start <= o < end}

    def frees(self, act: Callable[[], object], files: int) -> str:
        """Make a call that must free the files of `files` segments."""
        before = self.disk.free()
        try:
            act()
        except LogStoreError as error:
            return f"cannot free space: {error}"
        return self.is_freed(before) if files else ""

    def is_freed(self, before: tuple[int, int]) -> str:
        """Wait until more is free than before; the problem, or ""."""
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            now = self.disk.free()
            if now[0] > before[0] or now[1] > before[1]:
                return ""
            time.sleep(0.01)
        return f"frees nothing: {before} bytes and inodes were free, now {now}"

    def added(self, rows: Mapping[Key, list[bytes]], act: Callable[[], object]) -> str:
        """Make a call that appends these values, or has no room and appends none."""
        logs = {key: self.partition(key) for key in rows}
        ends = {key: log.end_offset for key, log in logs.items()}
        try:
            act()
        except DiskFullError:
            now = {key: log.end_offset for key, log in logs.items()}
            return "" if now == ends else f"no room, but the ends are {now}, not {ends}"
        for key, values in rows.items():
            self.records[key].update(enumerate(values, ends[key]))
            if logs[key].end_offset != ends[key] + len(values):
                return f"{key} ends at {logs[key].end_offset}"
        self.last_published -= rows.keys()
        return ""

    # ------------------------------------------------------------ services

    def consumer(self, group: str) -> logstore.Consumer:
        """The consumer of a group, created if missing. Raises: `DiskFullError`."""
        if group not in self._consumers:
            self._consumers[group] = logstore.Consumer(
                self.store, group=group, topics=["u"], reset="earliest"
            )
        return self._consumers[group]

    def leave(self, group: str) -> None:
        """Close the consumer of a group."""
        if group in self._consumers:
            self._consumers.pop(group).close()

    def poll(self, group: str) -> list[bytes]:
        """Poll until a group's consumer has its partition, and a few records from the
        committed offset on; their values. Raises: `DiskFullError`."""
        consumer = self.consumer(group)
        end = time.monotonic() + _WAIT_S
        while not (found := consumer.poll(timeout_ms=20, max_records=3)):
            if consumer.assignment() or time.monotonic() > end:
                break
        return [record.value or b"" for each in found.values() for record in each]

    def commit(self, offset: int) -> str:
        """Commit an offset, or nothing if the disk is full."""
        with contextlib.suppress(DiskFullError):
            self.poll(COMMITS)
            self.consumer(COMMITS).commit(
                {_SOURCE: offset}, durable=self.rng.random() < 0.5
            )
            self.positions[COMMITS] = offset
        return self.position_of(COMMITS)

    def position_of(self, group: str) -> str:
        """Problem of the committed position of a group, or ""; "" also if there is no
        room to join the group."""
        try:
            self.poll(group)
            found = self.consumer(group).committed(_SOURCE)
        except DiskFullError:
            return ""
        offset = 0 if found is None else found.offset
        if offset == self.positions[group]:
            return ""
        return f"group {group} is at {offset}, not {self.positions[group]}"

    def producer(self) -> logstore.Producer:
        """The named producer. Raises: `DiskFullError`."""
        if self._producer is None:
            self._producer = self.store.producer("feeder")
        return self._producer

    # ------------------------------------------------------------ judging it

    def damage(self) -> str:
        """Loss reported by opening, or ""."""
        lost = [a for a in self.store.recovery_report.actions if a.label in _LOSSES]
        return f"opening says {lost[0]}" if lost else ""

    def differences(self, store: logstore.Store) -> str:
        """Problem of the topics and records of this store, or ""."""
        counts = {
            name: len(store.topic(name))
            for name in store.topics()
            if name != self.half_deleted
        }
        if counts != (wanted := Counter(topic for topic, _ in self.records)):
            return f"the topics are {counts}, not {dict(wanted)}"
        problems = (self._compare(store, key) for key in self.records)
        return next(filter(None, problems), "")

    def _compare(self, store: logstore.Store, key: Key) -> str:
        partition = store.topic(key[0])[key[1]]
        there = {r.offset: r.value for r in partition.read()}
        wanted = self.records[key]
        if self.is_compacted and key[0] == "t":
            wanted = {o: v for o, v in wanted.items() if o in there}
        if there != wanted:
            return f"{partition.name} has {sorted(there)}, not {sorted(wanted)}"
        return ""

    def look(self) -> str:
        """Reopen with room again and check; the store is closed before and after."""
        for pad in self._pads:
            pad.unlink(missing_ok=True)
        self.store = logstore.open(self.path)
        found = self.damage() or self.differences(self.store) or self._services()
        for key in self.records if not found else ():
            self.partition(key).append(b"more", b"k")
        self.close()
        if not found:
            report = logstore.verify(os.fspath(self.path), deep=True, threads=1)
            found = "" if report.ok else f"verify says {report.problems[0]}"
        return found

    def _services(self) -> str:
        for group, offset in self.positions.items():
            if found := self.position_of(group) if offset else "":
                return found
        if (number := self.store.published("publisher") or 0) != self.published:
            return f"the publisher is at {number}, not {self.published}"
        if self.sequences:
            last = self.store.producer("feeder").last_sequence(_SOURCE)
            if last != self.sequences - 1:
                return f"the producer is at {last}, not {self.sequences - 1}"
        return ""
