"""Checks a store against the changes that a program has reported.

A program prints a line before each change, and one after it, in one order with its
system calls. `Account` folds the lines read so far into what must be in the store, and
what may be; `Account.judge` opens it and looks.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import logstore
from faults.service_promises import (
    COMMITS,
    IN,
    OUT,
    PARTITIONS,
    PRODUCER,
    TRANSACTIONS,
    Offsets,
)
from logstore import LogStoreError, Record, StoreConfig
from logstore.group.consumer.transaction import GroupPositions
from logstore.group.file import synced_file
from logstore.group.file.durable_point import FileId
from logstore.io.files import ProcessId
from logstore.io.layout import TopicPartition
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.groups import OneMember
from support.values import record_of

__all__ = ["Account", "Broken", "line", "one_number"]

# How a line begins, and the names of the rest.
CREATE, CREATED = "create", "created"  # topic, partitions, magic
APPEND, APPENDED = "append", "appended"  # partition, first offset, end, seed
DURABLE = "durable"  # partition, end
DELETE, DELETED = "delete", "deleted"  # partition, start
CUT, WAS_CUT = "cut", "was-cut"  # partition, end
DROP, DROPPED = "drop", "dropped"  # topic
# "", rows of (partition, first offset, end, seed); a failed call is settled except for
# the reported rows.
PUBLISH, PUBLISHED, SETTLED = "publish", "published", "settled"

# partition: it is compacted from now on.
COMPACT = "compact"
# partition, first offset, end, sequence of the first: of the producer's records.
SEQUENCE = "sequence"
# "", [[partition, offset], ...] of the group that reads `IN`; whether it is durable, or
# whether it counts though the call has failed.
COMMIT, COMMITTED, REFUSED = "commit", "committed", "refused"
# "": from here on each call is examined.
MARK = "mark"

# Appended by checkers only.
_OWN_SEED = 999


class Broken(Exception):
    """A promise was not kept."""


class _NextStart(Unsynced):
    """Files after a restart of the machine."""

    def process_id(self) -> ProcessId:
        return super().process_id()._replace(boot=b"the next start..")


@contextlib.contextmanager
def one_number() -> Iterator[None]:
    """Give all files of a group one inode number, as a file system may give it to files
    that exist one after the other: so a rewritten state has the number of the recorded
    one, too."""

    def of(inode: int = 0, first: bytes = bytes(12)) -> FileId:
        return FileId(7 if inode else 0, first)

    with mock.patch.object(synced_file, "FileId", of):
        yield


def line(*fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@functools.lru_cache(maxsize=20_000)
def _record(offset: int, magic: int, seed: int) -> Record:
    return record_of(offset, magic, seed)


class _Partition:
    """Required and allowed contents of a partition."""

    def __init__(self, magic: int) -> None:
        self.magic = magic
        self.seeds: dict[int, set[int]] = {}
        self.written = 0
        self.durable = 0
        self.start = 0
        self.starts = {0}
        self.is_compacted = False

    def check(self, partition: Any, floor: int, name: str) -> list[Record]:
        """Check the log and return its records; `floor`: the least end offset."""
        if partition.start_offset not in self.starts:
            raise Broken(
                f"{name} begins at {partition.start_offset}, not at {self.starts}"
            )
        try:
            records = list(partition.read())
        except LogStoreError as error:
            raise Broken(f"{name} cannot be read: {error!r}") from error
        offset = partition.start_offset
        if self.is_compacted:
            offset = self._check_compacted(records, offset, name)
        for record in records if not self.is_compacted else ():
            allowed = self.seeds.get(offset, ())
            if not any(record == _record(offset, self.magic, s) for s in allowed):
                raise Broken(f"{name}: {record} at {offset} (seeds {allowed})")
            offset += 1
        if offset != partition.end_offset:
            raise Broken(f"{name}: read up to {offset} of {partition.end_offset}")
        if offset < min(floor, max(self.seeds, default=-1) + 1):
            raise Broken(f"{name} ends at {offset}, {floor} was promised")
        if not partition.start_offset <= partition.durable_offset <= offset:
            raise Broken(f"{name}: durable up to {partition.durable_offset}")
        return records

    def _check_compacted(self, records: list[Record], start: int, name: str) -> int:
        """Check a compacted log: only superseded records may be missing; return the end
        of its records."""
        found = {record.offset: record for record in records}
        if list(found) != sorted(found):
            raise Broken(f"{name}: offsets are not in order: {list(found)}")
        for offset, record in found.items():
            allowed = self.seeds.get(offset, ())
            if not any(record == _record(offset, self.magic, s) for s in allowed):
                raise Broken(f"{name}: {record} at {offset} (seeds {allowed})")
        end = max(found, default=start - 1) + 1
        later: set[bytes | None] = set()
        for offset in reversed(range(start, end)):
            if offset in found:
                later.add(found[offset].key)
            elif not any(
                _record(offset, self.magic, s).key in later
                for s in self.seeds.get(offset, ())
            ):
                raise Broken(f"{name}: the last record of its key at {offset} is gone")
        return end


class Account:
    """State that follows from the lines a program has printed so far."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.topics: dict[str, tuple[int, int]] = {}
        self.creating: dict[str, tuple[int, int]] = {}
        self.dropping: set[str] = set()
        self.partitions: dict[str, _Partition] = {}
        # The publication under way: all of it is there, or nothing.
        self.publication: list[tuple[str, int, int, int]] = []
        self.offsets: Offsets | None = None
        self.sequences: dict[str, dict[int, int]] = {}
        for text in lines:
            self.add(text)

    def add(self, text: bytes) -> None:
        """Take note of a line."""
        what, name, *rest = json.loads(text)
        if what == CREATE:
            self.creating[name] = (rest[0], rest[1])
            for number in range(rest[0]):
                key = f"{name}-{number}"
                self.partitions.setdefault(key, _Partition(rest[1]))
        elif what == CREATED:
            self.topics[name] = self.creating.pop(name)
        elif what == DROP:
            self.dropping.add(name)
        elif what == DROPPED:
            self.dropping.discard(name)
            del self.topics[name]
            for key in [k for k in self.partitions if k.rpartition("-")[0] == name]:
                del self.partitions[key]
        elif what in (COMMIT, COMMITTED, REFUSED):
            self._commit(what, dict(rest[0]), *rest[1:])
        elif what == MARK:
            pass
        elif what == COMPACT:
            self.partitions[name].is_compacted = True
        elif what == SEQUENCE:
            first, end, sequence = rest
            known = self.sequences.setdefault(name, {})
            known.update({o: sequence + o - first for o in range(first, end)})
        elif what in (PUBLISH, PUBLISHED, SETTLED):
            rows = [tuple(row) for row in rest[0]]
            self.publication = [] if what == PUBLISHED else rows
            for key, first, end, seed in rows if what != SETTLED else ():
                append = APPEND if what == PUBLISH else APPENDED
                self._add(self.partitions[key], append, first, end, seed)
                if what == PUBLISHED:
                    self._add(self.partitions[key], DURABLE, end)
        else:
            self._add(self.partitions[name], what, *rest)

    def _commit(self, what: str, offsets: dict[int, int], *more: bool) -> None:
        if self.offsets is None:
            self.offsets = Offsets()
        if what == COMMIT:
            self.offsets.begin(offsets)
        elif what == COMMITTED:
            self.offsets.has_returned(offsets, durable=more[0])
        else:
            self.offsets.has_failed(offsets, counts=more[0])

    def _add(self, of: _Partition, what: str, *numbers: int) -> None:
        if what == APPEND:
            first, end, seed = numbers
            for offset in range(first, end):
                of.seeds.setdefault(offset, set()).add(seed)
        elif what == APPENDED:
            first, end, seed = numbers
            of.written = end
            for offset in range(first, end):
                of.seeds[offset] = {seed}
        elif what == DURABLE:
            of.durable = max(of.durable, numbers[0])
        elif what == DELETE:
            of.starts.add(numbers[0])
        elif what == DELETED:
            of.start, of.starts = numbers[0], {numbers[0]}
        elif what == CUT:
            of.written = min(of.written, numbers[0])
            of.durable = min(of.durable, numbers[0])
        elif what == WAS_CUT:
            of.seeds = {o: s for o, s in of.seeds.items() if o < numbers[0]}

    # ------------------------------------------------------------ judging

    def judge(self, path: Path, *, written: bool = False) -> None:
        """Open a store, check everything, append, open it again.

        Args:
            path: its directory, which this changes.
            written: all written records must be there, not only the durable ones.

        Raises:
            Broken: with the reason.
        """
        try:
            self._judge(path, written)
        except LogStoreError as error:
            raise Broken(f"refused: {error!r}") from error
        except (OSError, AssertionError, KeyError, ValueError) as error:
            raise Broken(f"an error without a name: {error!r}") from error

    def _judge(self, path: Path, written: bool) -> None:
        before: dict[str, list[Record]] | None = None
        if path.exists() and any(path.iterdir()):
            with logstore.open(path, read_only=True) as store:
                before = self._look(store, written)
        appended: dict[str, Record] = {}
        config = StoreConfig(flush_checkpoint_ms=0, publish_for_others=False)
        with open_store(path, _files=Unsynced(), config=config) as store:
            after = self._look(store, written)
            self._look_at_producer(store)
            self._look_at_positions(store)
        with open_store(path, _files=Unsynced(), config=config) as store:
            if before is not None and {k: v for k, v in before.items() if v} != {
                k: v for k, v in after.items() if v
            }:
                raise Broken("a reader was served something else than the owner")
            for name in after:
                topic, _, number = name.rpartition("-")
                partition = store.topic(topic)[int(number)]
                key = b"own" if partition.config.compacts else None
                offset = partition.append(b"%d" % _OWN_SEED, key, timestamp_ms=7)
                appended[name] = next(iter(partition.read(offset)))
                if appended[name].value != b"%d" % _OWN_SEED:
                    raise Broken(f"{name}: appended, and {appended[name]} was read")
        with logstore.open(path, read_only=True) as store:
            for name, records in after.items():
                topic, _, number = name.rpartition("-")
                if list(store.topic(topic)[int(number)].read()) != [
                    *records,
                    appended[name],
                ]:
                    raise Broken(f"{name}: not the same when opened again")
        with open_store(path, _files=Unsynced()) as store:
            if store.recovery_report:
                action = store.recovery_report.actions[0]
                raise Broken(f"mended twice: {action.label}: {action.message}")
        with one_number():
            report = verify(path, _files=Unsynced() if written else _NextStart())
        for problem in report.problems:
            raise Broken(f"verify: {problem.message}")
        if self.offsets is not None:
            self._look_at_group(path, written)

    def _look_at_producer(self, store: Any) -> None:
        """Check that the producer gets the sequence of its last record."""
        for name, known in self.sequences.items():
            topic, _, number = name.rpartition("-")
            if topic not in store.topics():
                continue
            partition = store.topic(topic)[int(number)]
            end = partition.end_offset
            last = max((s for offset, s in known.items() if offset < end), default=None)
            told = store.producer(PRODUCER).last_sequence(partition)
            if told != last:
                raise Broken(f"the producer is told {told} of {name}, not {last}")

    def _look_at_positions(self, store: Any) -> None:
        """Checks that the transactions made one record of each record they read."""
        if OUT not in self.topics or OUT not in store.topics():
            return
        _, positions = GroupPositions(store, TRANSACTIONS).read()
        read = sum(position.offset for position in positions.values())
        made = store.topic(OUT)[0].end_offset
        if made != read:
            raise Broken(f"{made} records were made of {read}")

    def _look_at_group(self, path: Path, written: bool) -> None:
        """Checks committed offsets under the mutex; then commits twice."""
        assert self.offsets is not None
        files = Unsynced() if written else _NextStart()
        one = OneMember(path, COMMITS, files=files)
        keys = [TopicPartition(IN, number) for number in range(PARTITIONS)]
        with one_number():
            one.slots.locked(lambda: one.file.refresh_held(one.slots), 10)
            found = [one.offset(key) or 0 for key in keys]
            text = self.offsets.problem(found, is_killed=written)
            if text:
                raise Broken(text)
            one.commit(77, keys[0], durable=True)
            one.commit(78, keys[0], durable=True)
        one.close()
        again = OneMember(path, COMMITS, files=files)
        if [again.offset(key) or 0 for key in keys] != [78, *found[1:]]:
            raise Broken("a commit is not found")
        again.close()

    def _look(self, store: Any, written: bool) -> dict[str, list[Record]]:
        have = store.topics()
        for name in have:
            if name not in self.topics and name not in self.creating:
                raise Broken(f"topic {name} is there, and should not be")
        found: dict[str, list[Record]] = {}
        ends: dict[str, int] = {}
        for name, (count, _) in self.topics.items():
            if name not in have:
                if name in self.dropping:
                    continue
                raise Broken(f"topic {name} is gone")
            topic = store.topic(name)
            allowed = {count, self.creating.get(name, (count, 0))[0]}
            if len(topic) not in allowed:
                raise Broken(f"topic {name} has {len(topic)} partitions")
        for name in have:
            topic = store.topic(name)
            for number in range(len(topic)):
                key = f"{name}-{number}"
                known = self.partitions[key]
                floor = known.written if written else known.durable
                found[key] = known.check(topic[number], floor, key)
                ends[key] = topic[number].end_offset
        rows = [row for row in self.publication if row[0] in ends]
        if any(ends[key] > first for key, first, _, _ in rows) and any(
            ends[key] < end for key, _, end, _ in rows
        ):
            raise Broken(f"half of a publication is there: {rows}, {ends}")
        return found
