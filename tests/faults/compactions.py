"""Compaction over crashes, failing calls and readers: the log is the old or the new.

Random logs of all formats, codecs and producers, with aborted and open transactions, as
brokers write them, are compacted on a disk in memory. `survivors` gives the required
records, from the generation of the log, without reading a byte. In every state that a
kill or a power cut may leave of the compaction, and after every failing call of it:
there is no new record, all required ones are there, and a further compaction leaves
exactly those. A reader in another process that has begun before it gets the last record
of each key. A second compaction, after the time of tombstones, removes them, and not
before.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from typing import Any
from unittest import mock

import logstore
from faults.checker import open_quietly
from faults.crash_states import until_done
from faults.failing_calls import ERRORS, SHORT
from faults.method import Tally
from logstore import LogStoreError, TopicConfig
from logstore._native import compaction
from logstore.log.compact import passes
from support.compacting import TIME_MS, Batch, Item, RandomLog
from support.disk import MemoryDisk, disk_of, end_processes
from support.disk_changes import Nodes
from support.power_cut import cuts

__all__ = ["COUNTS", "NAME", "UNIT", "Compacted", "run", "states_of"]

NAME = "compactions"
UNIT = "crash states"
COUNTS = {"commit": 1_500, "nightly": 40_000, "release": 120_000}

_RETENTION_MS = 60_000
_MEMORY = 64 << 20
# The smallest possible map: a batch has up to 11 keys.
_SLOTS = 20
_NOW_MS = TIME_MS + 1_000_000
# For each log: moments of its compaction, states of each moment, and failing calls.
_MOMENTS = 12
_PER_MOMENT = 4
_FAILING = 8
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
_BITS = tuple(1 << bit for bit in range(8))


def run(count: int, seed: int, tally: Tally) -> None:
    """Checks `count` states, of as many logs as needed."""
    until_done(states_of, count, seed, tally)


def states_of(seed: int) -> tuple[int, list[str]]:
    """Check the states of the log of a seed: (number of passed states, failures)."""
    one = Compacted(seed)
    try:
        one.check()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return one.passed, [f"log {seed}, {one.step}: {text}"[:1500]]
    finally:
        end_processes()
    return one.passed, []


class _LongLog(RandomLog):
    """A log whose offsets exceed the range of one segment."""

    def _add(self, magic: int, has_transactions: bool) -> None:
        if self.offset and not self.segments[-1][1] and self.rng.random() < 0.15:
            self.offset += 1 << 31
            self.segments[-1] = self.offset, []
        super()._add(magic, has_transactions)


class Compacted:
    """A log, and the required result of its compaction.

    Attributes:
        passed: number of states that passed.
        step: the current step, in words.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"compactions {seed}")
        self.model = "ext4" if self.rng.random() < 0.3 else "weak"
        self.is_modern = self.rng.random() < 0.5
        self.log = _LongLog(
            seed,
            keys=self.rng.choice((5, 30)),
            segments=self.rng.randint(2, 6),
            magics=(2,) if self.is_modern else (0, 1, 2),
            keyless=self.rng.random() < 0.3,
        )
        self.segment_bytes = self.rng.choice((600, 2_000, 1 << 20))
        magics = {i.offset: b.data[16] for b in self.log.batches for i in b.items}

        def as_read(items: list[Item]) -> dict[int, Item]:
            # Records of format 0 have no time.
            return {
                i.offset: i if magics[i.offset] else i._replace(time_ms=-1)
                for i in items
            }

        self.before = as_read(self.log.items())
        self.after = as_read(self.log.survivors())
        # In one pass, or with a map of few keys in several.
        is_small = self.rng.random() < 0.5
        self._map_bytes = 300 if is_small else 1 << 20
        self.passed = 0
        self.step = "preparation"

    def _disk(self) -> MemoryDisk:
        files = [
            (f"store/t-0/{base:020d}.log", b"".join(batch.data for batch in batches))
            for base, batches in self.log.segments
        ]
        return disk_of(files, model=self.model, seed=self.rng.randrange(1 << 30))

    def _open(self, disk: MemoryDisk) -> Any:
        """The partition, which may be compacted."""
        store = open_quietly(disk)
        config = TopicConfig(
            cleanup_policy="compact",
            message_format=2,
            segment_bytes=self.segment_bytes,
            index_interval_bytes=100,
            delete_retention_ms=_RETENTION_MS,
            file_delete_delay_ms=0,
        )
        topic = store.topic("t")
        topic.configure(config)
        return topic[0]

    def check(self) -> None:
        """A compaction that nothing disturbs; crashes; failing calls; time."""
        disk = self._disk()
        partition = self._open(disk)
        self._must_be(partition, self.before)
        reading, seen = self._reader(disk)
        self.step = "compaction"
        moments = disk.record()
        self._compact(partition, _NOW_MS)
        moments = list(moments)
        disk.medium.moments = None
        self._must_be(partition, self.after)
        self.step = "a reader beside it"
        seen |= _rows(reading)
        missed = [one for offset, one in self.after.items() if seen.get(offset) != one]
        assert not missed, f"it has missed {missed[0]}"
        self.passed += 2
        self._age(partition)
        self.rng.shuffle(moments)
        for moment in moments[:_MOMENTS]:
            states: list[tuple[str, Nodes]] = [("killed", moment.nodes)]
            states += cuts(moment, self.rng, _PER_MOMENT, model=self.model)
            for words, nodes in states:
                self.step = f"{moment.what}: {words}"
                again = MemoryDisk(nodes, model=self.model, clock=moment.clock)
                self._after_crash(again, is_thorough=self.rng.random() < 0.2)
                self.passed += 1
        self._fail_calls()

    def _compact(self, partition: Any, now_ms: int) -> None:
        """Compacts with a map of only a few slots; other tests use the usual map."""
        with (
            mock.patch.object(passes, "BUFFERS_BYTES", _MEMORY - self._map_bytes),
            mock.patch.object(compaction, "_SLOTS_MIN", _SLOTS),
        ):
            partition.compact(force=True, now_ms=now_ms, max_memory=_MEMORY)

    def _reader(self, disk: MemoryDisk) -> tuple[Any, dict[int, Item]]:
        """A read in another process that has begun, and its records so far."""
        store = open_quietly(disk.process(), read_only=True)
        reading = store.topic("t")[0].read(isolation="read_committed")
        count = self.rng.randrange(len(self.before) + 1)
        return reading, _rows(itertools.islice(reading, count))

    def _after_crash(self, disk: MemoryDisk, *, is_thorough: bool) -> None:
        with open_quietly(disk.process(), read_only=True) as store:
            self._is_between(store.topic("t")[0])
        store = open_quietly(disk)
        self._is_between(store.topic("t")[0])
        assert not store.topic("t")[0]._log.health.damage
        if is_thorough:
            partition = store.topic("t")[0]
            self._compact(partition, _NOW_MS)
            self._must_be(partition, self.after)
            offset = partition.append(b"new", b"a new key")
            assert partition.get(offset).value == b"new"

    def _fail_calls(self) -> None:
        """Fail a call of the compaction; then the system works again, or the power
        fails, too."""
        self.step = "counting calls"
        disk = self._disk()
        partition = self._open(disk)
        disk.calls = calls = []
        self._compact(partition, _NOW_MS)
        disk.calls = None
        for _ in range(_FAILING):
            nth = self.rng.randint(1, len(calls))
            method, name = calls[nth - 1]
            error = self.rng.choice(ERRORS[method] or _ERRORS)
            short = self.rng.choice(SHORT) if method == "write" else -1
            self.step = f"call {nth}, {method} {name}, fails with {error}, {short}"
            disk = self._disk()
            partition = self._open(disk)
            times = self.rng.choice((1, 1, 1 << 60))
            disk.fail("*", error, nth=nth, times=times, short=short)
            with contextlib.suppress(LogStoreError):
                self._compact(partition, _NOW_MS)
            disk.heal()
            self._is_between(partition)
            moment = disk.moment()
            if self.rng.random() < 0.5:
                states = list(cuts(moment, self.rng, 3, model=self.model))
                nodes = self.rng.choice(states)[1] if states else moment.nodes
                self.step += ", and the power"
            else:
                nodes = moment.nodes
            again = MemoryDisk(nodes, model=self.model, clock=moment.clock)
            self._after_crash(again, is_thorough=True)
            self.passed += 1

    def lies(self, count: int) -> list[str]:
        """Problems of compactions on a disk that flips a bit of a read, or fails it: ""
        for each compaction without. Once the disk works again, every required record
        is there."""
        found = []
        for _ in range(count):
            disk = self._disk()
            partition = self._open(disk)
            name, at, lie = self._lie()
            disk.damage(name, at, at + 1, lie=lie)
            text = ""
            try:
                with contextlib.suppress(LogStoreError):
                    self._compact(partition, _NOW_MS)
                disk.heal()
                self._is_between(partition)
                self._after_crash(disk.kill(), is_thorough=True)
            except (AssertionError, LogStoreError) as error:
                text = f"{name}, byte {at}, bits {lie:#x}: {error!r}"
            found.append(text)
        return found

    def _lie(self) -> tuple[str, int, int]:
        """(a file, a byte of it, the bits that are read as others; 0: an error): often
        in the head of a batch, which no checksum covers."""
        segments = self.log.segments
        at = self.rng.choice([n for n, (_, batches) in enumerate(segments) if batches])
        base, batches = segments[at]
        end = segments[at + 1][0] if at + 1 < len(segments) else self.log.offset
        number = self.rng.choice((len(batches) - 1, self.rng.randrange(len(batches))))
        batch, lie = batches[number], self.rng.choice((0, *_BITS))
        is_head = self.rng.random() < 0.5
        spot = self.rng.randrange(8 if is_head else len(batch.data))
        if spot < 8:
            # An offset in a gap cannot be distinguished from the right one.
            moved = int.from_bytes(batch.data[:8], "big") ^ lie << 8 * (7 - spot)
            moved -= int.from_bytes(batch.data[:8], "big")
            low = batches[number - 1].last_offset if number else base - 1
            high = end if batch is batches[-1] else _first(batches[number + 1])
            if low < _first(batch) + moved and batch.last_offset + moved < high:
                lie = 0
        before = sum(len(one.data) for one in batches[:number])
        return f"{base:020d}.log", before + spot, lie

    def _age(self, partition: Any) -> None:
        """Let the retention time of the tombstones pass."""
        if not self.is_modern:
            return  # the modification times of the files decide
        self.step = "just before the horizon"
        self._compact(partition, _NOW_MS + _RETENTION_MS - 1)
        self._must_be(partition, self.after)
        self.step = "at the horizon"
        self._compact(partition, _NOW_MS + _RETENTION_MS)
        end = self.log.active_base
        left = {
            offset: item
            for offset, item in self.after.items()
            if offset >= end or item.value is not None
        }
        self._must_be(partition, left)
        self.step = "a record without a key"
        with contextlib.suppress(logstore.errors.InvalidRecordError):
            partition.append(b"no key")
            raise AssertionError("it was accepted")
        self.passed += 3

    # ------------------------------------------------------------ rules

    def _must_be(self, partition: Any, want: dict[int, Item]) -> None:
        found = _rows(partition.read(isolation="read_committed"))
        assert list(found) == sorted(found), "not in order"
        extra = [item for offset, item in found.items() if want.get(offset) != item]
        missing = [item for offset, item in want.items() if offset not in found]
        assert not extra, f"{extra[0]} is there, of {len(extra)}"
        assert not missing, f"{missing[0]} is missing, of {len(missing)}"

    def _is_between(self, partition: Any) -> None:
        """Check that each group of segments is either the old one or the new one."""
        found = _rows(partition.read(isolation="read_committed"))
        assert list(found) == sorted(found), "not in order"
        for offset, item in found.items():
            assert self.before.get(offset) == item, f"{item} was never there"
        for offset, item in self.after.items():
            assert found.get(offset) == item, f"{item} is missing"


def _first(batch: Batch) -> int:
    return batch.items[0].offset if batch.items else batch.last_offset


def _rows(records: Any) -> dict[int, Item]:
    return {
        record.offset: Item(
            record.offset, record.key, record.value, record.timestamp_ms
        )
        for record in records
    }
