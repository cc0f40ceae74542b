"""A program of `cancellations` about changes: each task has a separate topic in one
store, whose contents are known exactly after each call."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow

import logstore
import logstore.aio
from faults.cancellation_program import Cut, Program, named
from faults.cancelled_stores import closed, opened
from logstore.log.retention import RetentionPolicy
from logstore.segment import SegmentInfo

__all__ = ["Changes"]

_KEYS = 3


class _ByKey:
    """A partitioner that takes the number in the key."""

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        return int(key or b"0") % partitions


class _RetainNothing(RetentionPolicy):
    """Selects all segments but the active one."""

    @property
    def reason(self) -> str:
        return "nothing is kept"

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Sequence[SegmentInfo]:
        return segments[:-1]


class _Log:
    """Required contents of a partition.

    Attributes:
        rows: offset -> (key, value).
        start, end: its first offset, and the next one to be written.
        cuts: offsets at which batches begin.
    """

    def __init__(self) -> None:
        self.rows: dict[int, tuple[bytes, bytes]] = {}
        self.start = self.end = 0
        self.cuts = [0]

    def append(self, rows: list[tuple[bytes, bytes]]) -> None:
        if rows:
            self.cuts.append(self.end)
            self.rows.update(enumerate(rows, self.end))
            self.end += len(rows)

    def delete_before(self, at: int) -> None:
        self.start = max(at, self.start)
        self.rows = {o: row for o, row in self.rows.items() if o >= self.start}

    def cut(self, at: int) -> None:
        self.end = at
        self.rows = {o: row for o, row in self.rows.items() if o < at}
        self.cuts = [cut for cut in self.cuts if cut < at]

    def is_as(self, found: _Log) -> bool:
        ends = self.start, self.end
        return (found.start, found.end) == ends and found.rows == self.rows

    def is_compacted_to(self, found: _Log) -> bool:
        """Whether only records superseded by a later one of the key are missing."""
        last = {key: offset for offset, (key, _) in self.rows.items()}
        is_part = found.rows.items() <= self.rows.items()
        is_there = {*last.values()} <= found.rows.keys()
        return is_part and is_there and found.end == self.end


class _Change(NamedTuple):
    """A call, and its effect.

    Attributes:
        call, args, options: the call.
        change: makes the required change to a copy of the contents.
        is_completed: it is done once it has begun; else it may not be done.
        check: whether the remaining state is right after the call.
        keep: takes the result, if the task gets it.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = {}  # no task changes it
    change: Callable[[list[_Log]], object] = len
    is_completed: bool = True
    check: Callable[[], bool] = lambda: True
    keep: Callable[[Any], object] | None = None


class _Own:
    """One task, and its topic."""

    def __init__(self, case: Changes, number: int) -> None:
        self.case, self.rng = case, case.rng
        self.name = f"t{number}"
        self.is_compacted = case.rng.random() < 0.4
        self.serial = self.sequence = 0
        self.logs: list[_Log] = []
        self.topic: logstore.aio.Topic
        self.producer: logstore.aio.Producer | None = None

    @property
    def store(self) -> logstore.aio.Store:
        return self.case.store

    def config(self) -> logstore.TopicConfig:
        return logstore.TopicConfig(
            message_format=2,
            segment_bytes=self.rng.choice((300, 1000, 1 << 20)),
            file_delete_delay_ms=self.rng.choice((0, 60_000)),
            cleanup_policy="compact" if self.is_compacted else "delete",
        )

    def rows(self, most: int = 5) -> list[tuple[bytes, bytes]]:
        rows = []
        for _ in range(self.rng.randint(1, most)):
            self.serial += 1
            rows.append((b"%d" % self.rng.randrange(_KEYS), b"%d" % self.serial))
        return rows

    # ------------------------------------------------------------ one step

    async def step(self) -> None:
        if not self.logs:
            await self._make(self._create())
            return
        makers = [self._append] * 6 + [self._change] * 6 + [self._publish] * 2
        await self._make(self.rng.choice(makers)())

    async def _make(self, change: _Change | None) -> None:
        """Make a change, and compare the found state with the required one."""
        if change is None:
            return
        case = self.case
        what = change.call.__name__
        result = await case.call(
            change.call, *change.args, then=change.keep, **change.options
        )
        if result is Cut.NEVER:
            return
        if result is Cut.BEGUN:
            await case.settle()
            if not change.is_completed:
                await self.topic[0].flush()  # after the queued calls of the store
        after = copy.deepcopy(self.logs)
        change.change(after)
        may_be = [after]
        if result is Cut.BEGUN and not change.is_completed:
            may_be.append(self.logs)
        found = self._found()
        for logs in may_be:
            if self._is_as(found, logs):
                # Compacted records are gone.
                self.logs = logs
                for log, there in zip(logs, found, strict=True):
                    log.rows, log.start = there.rows, there.start
                break
        else:
            told = "cut" if result is Cut.BEGUN else "done"
            want = [log.rows for log in after]
            there = [log.rows for log in found]
            case.wrong.append(f"{what} {change.args} is {told}: {there}, not {want}")
            return
        if logs is after and not change.check():
            case.wrong.append(f"{what} {change.args}: {result}, and it is not done")

    def _is_as(self, found: list[_Log], logs: list[_Log]) -> bool:
        if len(found) != len(logs):
            return False
        pairs = zip(logs, found, strict=True)
        if self.is_compacted:
            return all(log.is_compacted_to(there) for log, there in pairs)
        return all(log.is_as(there) for log, there in pairs)

    def _found(self, store: Any = None) -> list[_Log]:
        store = store or self.store
        if self.name not in store:
            return []
        logs = []
        for partition in store.topic(self.name):
            log = _Log()
            log.start, log.end = partition.start_offset, partition.end_offset
            log.rows = {r.offset: (r.key, r.value) for r in partition.read()}
            logs.append(log)
        return logs

    def look(self, store: logstore.Store) -> None:
        """Check what is there at the end."""
        is_right = self._is_as(self._found(store), self.logs)
        self.case.expect(is_right, f"{self.name} is another one after the end")

    # ------------------------------------------------------------ the changes

    def _create(self) -> _Change:
        count = self.rng.choice((1, 2))

        def made(logs: list[_Log]) -> None:
            self.topic = self.store.topic(self.name, partitioner=_ByKey())
            logs.extend(_Log() for _ in range(count))

        args = (self.name, count, self.config())
        return _Change(self.store.create_topic, args, change=made)

    def _append(self) -> _Change:
        rng, topic = self.rng, self.topic
        rows = self.rows()
        at = rng.randrange(len(self.logs))
        partition = topic[at]
        keys, values = map(list, zip(*rows, strict=True))
        durable = {"durable": rng.random() < 0.6}
        table = pyarrow.table({"key": keys, "value": values})
        kind = rng.randrange(8)

        def to_one(logs: list[_Log]) -> None:
            logs[at].append(rows)

        def to_each(logs: list[_Log]) -> None:
            for number, log in enumerate(logs):
                log.append([r for r in rows if int(r[0]) % len(logs) == number])

        if kind < 2 and rng.random() < 0.7:
            return self._produce(at, partition, rows, durable)
        if kind == 2:
            rows = rows[:1]
            args = values[0], keys[0]
            return _Change(topic.append, args, durable, to_each, is_completed=False)
        if kind == 3:
            rows = rows[:1]
            args = values[0], keys[0]
            return _Change(partition.append, args, durable, to_one, is_completed=False)
        call, data, change = rng.choice(
            (
                (partition.append_many, (values, keys), to_one),
                (partition.append_arrow, (table,), to_one),
                (topic.append_many, (values, keys), to_each),
                (topic.append_arrow, (table,), to_each),
            )
        )
        return _Change(call, data, durable, change, is_completed=False)

    def _produce(
        self,
        at: int,
        partition: logstore.aio.Partition,
        rows: list[tuple[bytes, bytes]],
        options: dict[str, Any],
    ) -> _Change:
        """Append with a sequence: a cancelled append gets the next one, according to
        the log."""
        if self.producer is None:

            def kept(producer: logstore.aio.Producer) -> None:
                self.producer = producer

            return _Change(self.store.producer, (self.name,), keep=kept)
        last = self.producer.blocking.last_sequence(partition.blocking)
        first = 0 if last is None else last + 1
        options = {**options, "sequence": first}

        def to_one(logs: list[_Log]) -> None:
            logs[at].append(rows)

        keys, values = map(list, zip(*rows, strict=True))
        if len(rows) == 1:
            args = partition, values[0], keys[0]
            call: Any = self.producer.append
        else:
            args = partition, values, keys
            call = self.producer.append_many
        return _Change(call, args, options, to_one, is_completed=False)

    def _change(self) -> _Change | None:
        rng, topic = self.rng, self.topic
        at = rng.randrange(len(self.logs))
        log, partition = self.logs[at], topic[at]
        cut = rng.choice([*log.cuts, log.end])
        config = self.config()

        def begun_later(logs: list[_Log]) -> None:
            logs[at].delete_before(cut)

        def cut_off(logs: list[_Log]) -> None:
            logs[at].cut(cut)

        def rolled() -> bool:
            return _last_base(partition) == log.end

        def compacted() -> bool:
            base = _last_base(partition)
            rows = [key for o, (key, _) in self.logs[at].rows.items() if o < base]
            return not self.is_compacted or len(rows) == len({*rows})

        changes = [
            _Change(partition.roll, check=rolled),
            _Change(topic.flush),
            _Change(topic.configure, (config,), check=lambda: topic.config == config),
            _Change(self.store.recover),
            _Change(self.store.compact, options={"force": True}, check=compacted),
            _Change(self.store.compact, options={"dry_run": True}),
            _Change(self.store.delete_topic, (self.name,), {}, list.clear),
            self._snapshot(),
        ]
        if self.is_compacted:
            force = {"force": True}
            changes.append(_Change(partition.compact, (), force, check=compacted))
            return rng.choice(changes)
        changes.append(self._retain(rng.choice((topic, partition)), at))
        if cut >= log.start:
            changes += [
                _Change(partition.delete_before, (cut,), change=begun_later),
                _Change(partition.truncate_to, (cut,), change=cut_off),
                _Change(partition.truncate_to, (cut,), change=cut_off),
            ]
        if len(self.logs) < 4:
            changes.append(
                _Change(
                    topic.add_partitions, (1,), change=lambda logs: logs.append(_Log())
                )
            )
        return rng.choice(changes)

    def _retain(self, target: Any, at: int) -> _Change:
        """Delete all segments but the last one."""
        numbers = [at] if isinstance(target, logstore.aio.Partition) else range(9)
        starts = [*map(_last_base, self.topic.partitions)]

        def retained(logs: list[_Log]) -> None:
            for number, (log, start) in enumerate(zip(logs, starts, strict=True)):
                if number in numbers:
                    log.delete_before(start)

        policies = {"policies": [_RetainNothing()]}
        return _Change(target.apply_retention, (), policies, retained)

    def _snapshot(self) -> _Change:
        """A snapshot has the contents of this topic, which no task changes
        meanwhile."""
        self.serial += 1
        path = self.case.path.with_name(f"{self.name}-{self.serial}")
        logs = self.logs

        def is_whole() -> bool:
            with logstore.open(path, read_only=True) as store:
                is_right = self._is_as(self._found(store), logs)
            shutil.rmtree(path)
            return is_right

        return _Change(self.store.snapshot, (path,), check=is_whole)

    def _publish(self) -> _Change:
        """Stage records, and publish or discard them."""
        store, rng = self.store, self.rng
        identity, sequence = f"job {self.name}", self.sequence + 1
        at, rows = rng.randrange(len(self.logs)), self.rows()
        keys, values = map(list, zip(*rows, strict=True))
        with store.stage(identity, sequence) as stage:
            stage.append_many(self.topic[at].blocking, values, keys)
            staged = stage.finish()

        def are_gone() -> bool:
            return not any((self.case.path / name).exists() for name in staged.files)

        def published(logs: list[_Log]) -> None:
            self.sequence = sequence
            logs[at].append(rows)

        if rng.random() < 0.2:
            return _Change(store.discard_staged, (staged,), check=are_gone)
        return _Change(
            rng.choice((store.publish, store.submit)),
            (staged,),
            {"identity": identity, "sequence": sequence},
            published,
            check=lambda: store.published(identity) == sequence,
        )


def _last_base(partition: logstore.aio.Partition) -> int:
    """Base offset of the active segment; the end offset if nothing was ever written."""
    segments = partition.segments
    return segments[-1].base_offset if segments else partition.end_offset


class Changes(Program):
    """Tasks that change their topics."""

    CALLS = named(
        Opening="__await__ __aenter__ __aexit__",
        Store="create_topic delete_topic producer recover compact publish submit "
        "snapshot discard_staged close __aexit__",
        Topic="append append_many append_arrow flush configure add_partitions "
        "apply_retention",
        Partition="append append_many append_arrow roll delete_before truncate_to "
        "apply_retention compact",
        Producer="append append_many",
    )
    store: logstore.aio.Store

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._owns = [_Own(self, number) for number in range(rng.randint(2, 4))]

    async def main(self) -> None:
        self.store, leave = await opened(self)
        await self.together([own.step for own in self._owns])
        await closed(self, self.store, leave)

    def look(self) -> None:
        with logstore.open(self.path, read_only=True) as store:
            for own in self._owns:
                own.look(store)
