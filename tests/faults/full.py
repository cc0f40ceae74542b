"""Really full file systems: what frees space frees it, and nothing is lost.

A store is made on a small file system: ext4 with blocks of two sizes, with directories
whose last block has no room for a longer name, xfs, tmpfs without bytes or without
inodes. Then the disk is full, and random calls follow. What must free space does:
deletions, retention, truncation, deleting a topic. All others work, or raise
`DiskFullError` and have done nothing. A close raises nothing. With room again the store
opens without a loss: each record that was acknowledged and not deleted is there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from faults.small_disks import Disk, any_kind, fill_block, mounted, why_not
from logstore import DiskFullError, LogStoreError, TopicConfig

NAME = "full"
UNIT = "calls on full disks"
COUNTS = {"commit": 200, "nightly": 5_000, "release": 30_000}

_CALLS = 4
_WAIT_S = 5.0
# On xfs a rename of a directory needs blocks, and those of removed files are freed in
# the background. A topic whose settings have no room either may stay then.
_HALF_DELETED = ("xfs",)
# Labels of a report that say that something is lost, or that a file was torn.
_LOSSES = {"lost-end", "lost-segment", "corrupt", "unreadable", "state-damaged"}


def run(count: int, seed: int, tally: Tally) -> None:
    """So many calls; those of file systems that cannot be had here are skipped."""
    notes = run_cases(__name__, count, seed, tally, worth=_CALLS)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
    rng = random.Random(f"full {key}")
    kind = any_kind(rng)
    reason = why_not(kind)
    if reason:
        notes["done"] = _CALLS
        notes[f"skipped on {kind}: {reason}"] = _CALLS
        return ""
    with (
        folder_of(in_memory=True) as folder,
        mounted(kind, Path(folder)) as disk,
    ):
        case = _Case(disk, rng)
        try:
            found = case.go()
        finally:
            case.close()
            gc.collect()
        notes["done"] = max(case.done, 1)
        notes.update(case.notes)
    return f"{kind}: {case.what}: {found}" if found else ""


class _Case:
    """A store on a small disk, and what must be in it.

    Attributes:
        done: calls that were made on the full disk.
        what: they were.
    """

    def __init__(self, disk: Disk, rng: random.Random) -> None:
        self.disk, self.rng = disk, rng
        self.path = disk.place / "store"
        self.done = 0
        self.what = ""
        self.notes: Counter[str] = Counter()
        # Of each topic: its records by their offsets, and where it begins.
        self.records: dict[str, dict[int, bytes]] = {}
        self.starts: dict[str, int] = {}
        self.is_compacted = False
        self.is_half_deleted = False
        self.pads: list[Path] = []
        compacts = rng.random() < 0.3
        self.config = TopicConfig(
            message_format=2 if compacts else rng.choice((0, 1, 2)),
            segment_bytes=rng.choice((1500, 4000, 8000)),
            file_delete_delay_ms=0,
            retention_ms=-1,
            flush_ms=1 << 40,
            cleanup_policy="compact,delete" if compacts else "delete",
        )
        self.store: logstore.Store | None = logstore.open(self.path)
        self.committed = rng.random() < 0.5

    # ------------------------------------------------------------ making it

    def go(self) -> str:
        """The whole case; what is wrong."""
        self._make()
        if self.rng.random() < 0.3:
            self._reopen()
        if self.rng.random() < 0.7:
            self.pads += fill_block(self.path / "t-0")
        if self.rng.random() < 0.3:
            self.pads += fill_block(self.path)
        self.disk.fill()
        for _ in range(_CALLS):
            found = self._call()
            self.done += 1
            if found:
                return found
            if self.rng.random() < 0.7:
                self.disk.fill()
        self._close()
        self.disk.empty()
        return self._look()

    def _make(self) -> None:
        assert self.store is not None
        for name in ("t", "u"):
            topic = self.store.create_topic(name, config=self.config)
            self.records[name], self.starts[name] = {}, 0
            for number in range(self.rng.randrange(2, 48) if name == "t" else 3):
                self._append(topic[0], self.rng.randrange(1, 9))
                if number % 2:
                    topic[0].roll()
            topic[0].flush()
        if self.committed:
            with logstore.Consumer(
                self.store, group="g", topics=["u"], reset="earliest"
            ) as consumer:
                consumer.poll(timeout_ms=5_000)
                consumer.commit()

    def _append(self, partition: logstore.Partition, count: int) -> None:
        values = [self.rng.randbytes(self.rng.randrange(700)) for _ in range(count)]
        keys = [b"%d" % self.rng.randrange(5) for _ in range(count)]
        offsets = partition.append_many(values, keys)
        self.records[partition.topic].update(zip(offsets, values, strict=True))

    def _reopen(self) -> None:
        self._close()
        self.store = logstore.open(self.path)

    def _close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def close(self) -> None:
        """Whatever has happened: let the disk go."""
        store, self.store = self.store, None
        if store is not None:
            try:
                store.close()
            except LogStoreError:
                store.close()

    # ------------------------------------------------------------ on the full disk

    def _call(self) -> str:
        """One call; what is wrong about it."""
        calls: list[Callable[[], str]] = [
            self._delete_before,
            self._retain,
            self._truncate,
            self._delete_topic,
            self._append_some,
            self._compact,
            self._roll,
            self._open_again,
            self._configure,
            self._flush,
        ]
        weights = (4, 3, 4, 1, 2, 2, 1, 2, 1, 1)
        call = self.rng.choices(calls, weights)[0]
        self.what += f" {call.__name__[1:]}"
        self.notes[call.__name__[1:]] += 1
        return call()

    def _topic(self) -> logstore.Partition | None:
        if self.store is None or "t" not in self.records:
            return None
        return self.store.topic("t")[0]

    def _frees(self, act: Callable[[], object], files: int) -> str:
        """A call that must free the files of so many segments."""
        before = self.disk.free()
        try:
            act()
        except LogStoreError as error:
            return f"cannot free space: {error}"
        return self._is_freed(before) if files else ""

    def _is_freed(self, before: tuple[int, int]) -> str:
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            now = self.disk.free()
            if now[0] > before[0] or now[1] > before[1]:
                return ""
            time.sleep(0.01)
        return f"frees nothing: {before} bytes and inodes were free, now {now}"

    def _drop(self, name: str, start: int, end: int) -> None:
        kept = {o: v for o, v in self.records[name].items() if start <= o < end}
        self.records[name], self.starts[name] = kept, start

    def _delete_before(self) -> str:
        partition = self._topic()
        if partition is None:
            return ""
        segments = partition.segments
        index = self.rng.randrange(len(segments))
        base = segments[index].base_offset
        offset = max(base, partition.start_offset)
        if self.rng.random() < 0.4:
            offset = self.rng.randrange(offset, segments[index].next_offset + 1)
        before = self.disk.free()
        try:
            partition.delete_before(offset)
        except DiskFullError as error:
            if offset == base or partition.start_offset < base:
                return f"cannot free space: {error}"
            offset = partition.start_offset
        self._drop("t", offset, partition.end_offset)
        if partition.start_offset != offset:
            return f"start is {partition.start_offset}, not {offset}"
        return self._is_freed(before) if index else ""

    def _retain(self) -> str:
        partition = self._topic()
        if partition is None or "delete" not in self.config.cleanup_policy:
            return ""
        policies = [logstore.RetainBytes(self.rng.choice((1, 9_000, 20_000)))]
        before = len(partition.segments)
        wanted = partition.apply_retention(dry_run=True, policies=policies)
        found = self._frees(
            lambda: partition.apply_retention(policies=policies), len(wanted)
        )
        self._drop("t", partition.start_offset, partition.end_offset)
        if not found and len(partition.segments) != before - len(wanted):
            return f"{len(partition.segments)} of {before} segments are left"
        return found

    def _truncate(self) -> str:
        partition = self._topic()
        if partition is None or partition.start_offset == partition.end_offset:
            return ""
        start = partition.start_offset
        # The log may begin inside a batch, where it cannot end.
        batches = [b.base_offset for b in partition.read_batches()]
        batches = [offset for offset in batches if offset >= start]
        if not batches:
            return ""
        offset = self.rng.choice(batches)
        gone = sum(one.base_offset > offset for one in partition.segments)
        found = self._frees(lambda: partition.truncate_to(offset), gone)
        self._drop("t", start, offset)
        return found

    def _delete_topic(self) -> str:
        if self._topic() is None or self.store is None:
            return ""
        store = self.store
        before = self.disk.free()
        del self.records["t"]
        try:
            store.delete_topic("t")
        except LogStoreError as error:
            if self.disk.kind in _HALF_DELETED and isinstance(error, DiskFullError):
                self.is_half_deleted = True
                self.notes["could not delete a topic (known)"] += 1
                return ""
            return f"cannot free space: {error}"
        return self._is_freed(before)

    def _append_some(self) -> str:
        partition = self._topic()
        if partition is None:
            return ""
        end = partition.end_offset
        try:
            self._append(partition, self.rng.choice((1, 30)))
        except DiskFullError:
            if partition.end_offset != end:
                return "an append that failed has left records"
        return ""

    def _compact(self) -> str:
        partition = self._topic()
        if partition is None or "compact" not in self.config.cleanup_policy:
            return ""
        self.is_compacted = True
        with contextlib.suppress(DiskFullError):
            partition.compact(force=True)
        return ""

    def _roll(self) -> str:
        partition = self._topic()
        if partition is not None:
            with contextlib.suppress(DiskFullError):
                partition.roll()
        return ""

    def _flush(self) -> str:
        partition = self._topic()
        if partition is not None:
            partition.flush()
        return ""

    def _configure(self) -> str:
        if self.store is not None and "t" in self.records:
            with contextlib.suppress(DiskFullError):
                self.store.topic("t").configure(self.config)
        return ""

    def _open_again(self) -> str:
        self._close()
        self.disk.fill()
        self.store = logstore.open(self.path)
        return self._damage()

    # ------------------------------------------------------------ what there is

    def _damage(self) -> str:
        assert self.store is not None
        lost = [a for a in self.store.recovery_report.actions if a.label in _LOSSES]
        return f"opening says {lost[0]}" if lost else ""

    def _look(self) -> str:
        """With room again."""
        for pad in self.pads:
            pad.unlink(missing_ok=True)
        self.store = logstore.open(self.path)
        found = self._damage()
        names = self.store.topics()
        if self.is_half_deleted and "t" in names:
            names.remove("t")
        if not found and names != sorted(self.records):
            found = f"the topics are {names}"
        for name in names if not found else ():
            partition = self.store.topic(name)[0]
            found = self._compare(partition)
            partition.append(b"more", b"k")
        if not found and self.committed:
            with logstore.Consumer(self.store, group="g", topics=["u"]) as consumer:
                consumer.poll(timeout_ms=0)
                if consumer.committed(("u", 0)) is None:
                    found = "what a group has committed does not count"
        self._close()
        if not found:
            report = logstore.verify(os.fspath(self.path), deep=True, threads=1)
            found = "" if report.ok else f"verify says {report.problems[0]}"
        return found

    def _compare(self, partition: logstore.Partition) -> str:
        there = {r.offset: r.value for r in partition.read()}
        wanted = self.records[partition.topic]
        if self.is_compacted and partition.topic == "t":
            wanted = {o: v for o, v in wanted.items() if o in there}
        if there != wanted:
            return f"{partition.name} has {sorted(there)}, not {sorted(wanted)}"
        return ""
