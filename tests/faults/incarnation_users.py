"""Users of a topic that is deleted and created again, truncated, compacted, moved and
used by another program meanwhile (`incarnations`). Each takes a step between any two
steps of a history, and reports problems.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import logstore
from logstore import LogStoreError

__all__ = ["KINDS", "TOPIC", "User"]

TOPIC = logstore.TopicPartition("t", 0)
# How long a follower may take to deliver an existing record.
_PATIENCE_S = 10.0


class History(Protocol):
    """A user's view of the history.

    Attributes:
        log: offset -> value of each record of the current log.
        start, end: its first offset, and the next one to be written.
        below: the records below `start` that may be there still.
        incarnation: how often the topic was made.
        serial: incremented for each record, so that each is unique.
        is_compacted: whether the topic keeps the last record of each key alone.
        steps: what has happened so far.
    """

    path: Path
    rng: random.Random
    notes: Counter[str]
    log: dict[int, bytes]
    below: dict[int, bytes]
    start: int
    end: int
    incarnation: int
    serial: int
    format: int
    is_compacted: bool
    steps: list[str]

    def writing(self) -> AbstractContextManager[logstore.Store]: ...

    def close_owner(self) -> None: ...

    def rows(self, count: int) -> tuple[list[bytes], list[bytes] | None]: ...

    def note(self, first: int, values: list[bytes]) -> None: ...


class User:
    """A user that continues with the topic between any two steps."""

    name = ""

    def __init__(self, case: History) -> None:
        self.case = case

    def step(self) -> str:
        """Do something; return its problem, or ""."""
        raise NotImplementedError

    def rest(self) -> str:
        """Take the last step, at the end of the history."""
        return self.step()

    def was_made_again(self) -> None:
        """Called after the topic was deleted and created again."""

    def was_cut(self, at: int) -> None:
        """Called after the log was cut."""

    def was_replaced(self) -> None:
        """Called after another directory has replaced the partition's."""

    def close(self) -> None:
        """Release everything."""


class _Handle(User):
    """A partition that was opened once, in a read-only store."""

    name = "handle"

    def __init__(self, case: History) -> None:
        super().__init__(case)
        self.store = logstore.open(case.path, read_only=True)
        self.open()

    def open(self) -> None:
        topic = self.store.topic("t")
        self.incarnation = self.case.incarnation
        self.topic, self.partition = topic, topic[0]

    def close(self) -> None:
        self.store.close()

    def step(self) -> str:
        case = self.case
        ways: list[Callable[[], list[bytes]]] = [
            lambda: [r.value or b"" for r in self.partition.read()],
            lambda: [r.value or b"" for r in self.partition.fetch(case.start)],
            lambda: [self.partition.get(case.end - 1).value or b""],
            lambda: [r.value or b"" for r in self.topic.read()],
        ]
        is_other = self.incarnation != case.incarnation
        try:
            found = case.rng.choice(ways)()
        except LogStoreError as error:
            if isinstance(error, logstore.TopicNotFoundError):
                if not is_other:
                    return f"the handle of the topic raises {error}"
                case.notes["handles that raise"] += 1
                if case.rng.random() < 0.5:
                    self.open()
            return ""
        if is_other and found:
            return f"a handle of incarnation {self.incarnation} gives {found[:3]}"
        if not {*found} <= {*case.log.values()}:
            return f"records that no log has: {found[:3]}"
        return ""


class _Staged(User):
    """Records that were staged for the topic are published for it alone."""

    name = "staged"

    def __init__(self, case: History) -> None:
        super().__init__(case)
        self.waiting: list[tuple[int, bytes, Any]] = []

    def step(self) -> str:
        case = self.case
        if self.waiting and case.rng.random() < 0.6:
            incarnation, value, staged = self.waiting.pop()
            with case.writing() as store:
                try:
                    first = store.publish([staged]).offsets[TOPIC].start
                except logstore.TopicNotFoundError:
                    if incarnation == case.incarnation:
                        return "what was staged for this topic is refused"
                    store.discard_staged([staged])
                    return ""
            if incarnation != case.incarnation:
                return f"what was staged for incarnation {incarnation} is published"
            case.note(first, [value])
            case.notes["staged records published"] += 1
            return ""
        values, keys = case.rows(1)
        with (
            logstore.open(case.path, read_only=True) as store,
            store.stage() as stage,
        ):
            if store.topic("t").id == "":
                return ""
            stage.append_many(store.topic("t")[0], values, keys)
            self.waiting.append((case.incarnation, values[0], stage.finish()))
        return ""


class _Committer(User):
    """A consumer in a group, opened again now and then: it continues at its position.

    Attributes:
        counts: what must be committed; None: nothing, or that is not known.
        place: the latest position at which the open consumer may continue; None: it
            is not known.
        is_late: the next step must commit the delivered records.
        is_over: there is no next step.
    """

    name = "consumer"

    def __init__(self, case: History) -> None:
        super().__init__(case)
        self.counts: int | None = None
        self.place: int | None = None
        self.is_cut = self.is_late = self.is_over = False
        self.one: Any = None
        self.incarnation = case.incarnation

    def open(self) -> Any:
        one = logstore.Consumer(
            self.case.path, group=self.name, reset="earliest", durable_only=False
        )
        one.subscribe(["t"])
        return one

    def close(self) -> None:
        if self.one is not None:
            self.one.close()
            self.one = None

    def was_made_again(self) -> None:
        self.counts = self.place = None

    def was_cut(self, at: int) -> None:
        if self.place is not None:
            self.place = min(self.place, at)
        if self.counts is not None and at < self.counts:
            # The proof of the position decides, at the next opening.
            self.counts, self.is_cut = None, True

    def is_committed(self, at: logstore.OffsetAndMetadata | None) -> bool:
        """Whether it is the required offset. A gap at the end may be skipped."""
        if at is None or self.counts is None or at.offset < self.counts:
            return False
        return not any(self.counts <= each < at.offset for each in self.case.log)

    def poll(self) -> list[tuple[int, bytes]]:
        assert self.one is not None
        found = []
        for _ in range(3):
            for records in self.one.poll(timeout_ms=0).values():
                found += [(r.offset, r.value or b"") for r in records]
        return found

    def step(self) -> str:
        case = self.case
        if self.one is not None and case.rng.random() < 0.3:
            self.close()
        is_new = self.one is None
        if self.one is None:
            self.one, self.is_cut, self.place = self.open(), False, self.counts
        try:
            if self.is_late and not is_new:
                self.one.commit()
                self.counts = self.place
            self.is_late = False
            if is_new and self.counts is not None:
                at = self.one.committed(TOPIC)
                if not self.is_committed(at):
                    return f"committed is {at}, it was {self.counts}"
            found = self.poll()
            problem = self.judge(found, is_new=is_new)
            if problem:
                return problem
            if found:
                self.place = found[-1][0] + 1
                self.incarnation = case.incarnation
                self.is_late = not self.is_over and case.rng.random() < 0.3
                if not self.is_late:
                    self.one.commit()
                    self.counts = self.place
        except logstore.TopicNotFoundError:
            self.close()
        except logstore.errors.GroupError:
            self.close()
        return ""

    def judge(self, found: list[tuple[int, bytes]], *, is_new: bool) -> str:
        case = self.case
        if not found:
            return ""
        first, last = found[0][0], found[-1][0]
        rows = [(at, value) for at, value in case.log.items() if first <= at <= last]
        if found != rows:
            return f"gives {found[:3]}, in the log are {rows[:3]}"
        place = first if self.place is None else self.place
        if not is_new and any(place <= at < first for at in case.log):
            return f"goes on at offset {first}, it was at {self.place}"
        if is_new and self.counts is not None:
            left_out = [at for at in case.log if self.counts <= at < first]
            if left_out or first < self.counts:
                return f"goes on at offset {first}, {self.counts} was committed"
        return ""

    def rest(self) -> str:
        self.close()
        self.is_over = True
        found = self.step()
        if found or self.one is None:
            return found
        case = self.case
        if self.counts is not None and any(at >= self.counts for at in case.log):
            return f"ends at {self.counts} of {case.end}"
        return ""


class _Assigned(_Committer):
    """The same with `assign`."""

    name = "assigned"

    def open(self) -> Any:
        one = logstore.Consumer(
            self.case.path, group=self.name, reset="earliest", durable_only=False
        )
        one.assign([TOPIC])
        return one


class _InLoop:
    """A consumer for asyncio, with the calls of the other one: it stays open from step
    to step, and so does its event loop."""

    def __init__(self, one: logstore.aio.Consumer) -> None:
        self._one, self._loop = one, asyncio.new_event_loop()

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        return self._loop.run_until_complete(self._one.getmany(timeout_ms))

    def commit(self) -> None:
        self._loop.run_until_complete(self._one.commit())

    def committed(self, key: Any) -> logstore.OffsetAndMetadata | None:
        return self._loop.run_until_complete(self._one.committed(key))

    def close(self) -> None:
        try:
            self._loop.run_until_complete(self._one.stop())
        finally:
            self._loop.close()


class _Asyncio(_Committer):
    """The same with the consumer for asyncio."""

    name = "asyncio"

    def open(self) -> _InLoop:
        return _InLoop(
            logstore.aio.Consumer(
                self.case.path,
                group=self.name,
                topics=["t"],
                reset="earliest",
                durable_only=False,
            )
        )


class _AbortedError(Exception):
    """Ends a transaction."""


class _Transactional(_Committer):
    """A group that publishes what it reads, with its positions. Some of its
    transactions are aborted.

    Attributes:
        out: the topic that it publishes to.
    """

    name = "transactional"
    out = "out"

    def step(self) -> str:
        case = self.case
        case.close_owner()
        if self.one is not None and case.rng.random() < 0.5:
            self.close()
        is_new = self.one is None
        if self.one is None:
            self.one, self.place = self.open(), self.counts
        try:
            with self.one.transaction() as transaction:
                found = self.poll()
                if "compact" in case.steps and self.is_reset():
                    # Compaction has removed the batch that shows that nothing was cut.
                    self.is_cut = True
                problem = self.judge(found, is_new=is_new)
                if problem:
                    return problem
                for _, value in found:
                    transaction.append(self.out, value)
                if not self.is_over and case.rng.random() < 0.2:
                    raise _AbortedError
            if found:
                self.counts = self.place = found[-1][0] + 1
        except _AbortedError:
            case.notes["transactions aborted"] += 1
        except (logstore.TopicNotFoundError, logstore.errors.GroupError) as error:
            case.notes[f"transactions with {type(error).__name__}"] += 1
            self.close()
        return self.outputs()

    def is_reset(self) -> bool:
        """Whether the consumer has reported that it cannot continue at its position."""
        assert self.one is not None
        reader = self.one._core.readers.get(TOPIC)
        return reader is not None and reader.is_disproved

    def outputs(self) -> str:
        with logstore.open(self.case.path, read_only=True) as store:
            times = Counter(r.value for r in store[self.out][0].read())
        twice = [value for value, n in times.items() if n > 1]
        # After a cut the group may begin again.
        if twice and not self.is_cut:
            return f"{len(twice)} outputs are there twice: {twice[:3]}"
        return ""

    def rest(self) -> str:
        self.close()
        self.is_over = True
        found = self.step()
        self.close()
        if found:
            return found
        with logstore.open(self.case.path, read_only=True) as store:
            outputs = {r.value for r in store[self.out][0].read()}
        # Records that had been deleted, and are there again, are below the position.
        outputs |= {*self.case.below.values()}
        if self.is_cut and "compact" in self.case.steps:
            return ""  # it may have removed the batch that disproves the position
        missing = [v for v in self.case.log.values() if v not in outputs]
        return f"{len(missing)} inputs were left out: {missing[:3]}" if missing else ""


class _AssignedTransactional(_Transactional):
    """The same with `assign`."""

    name = "assigned transactional"
    out = "out-assigned"
    open = _Assigned.open


class _Follower(User):
    """An iterator that follows the log of a read-only store, and stays open.

    Attributes:
        place: the offset after the last record that it gave.
        is_over: the topic was made again, or another directory is in its place.
        is_cut: the log was cut below its place.
    """

    name = "follower"

    def __init__(self, case: History) -> None:
        super().__init__(case)
        self.loop = asyncio.new_event_loop()
        blocking = logstore.open(case.path, read_only=True)
        self.store = logstore.aio.Store(blocking)
        assert self.loop.run_until_complete(self.follow()) == ""

    async def follow(self) -> str:
        """Begin again, and read to the end: later reads must look for new records."""
        self.place = self.case.start
        self.is_over = self.is_cut = False
        self.records = self.store.topic("t")[0].follow(self.place)
        return await self._step()

    def close(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()

    def was_made_again(self) -> None:
        self.is_over = True

    def was_cut(self, at: int) -> None:
        self.is_cut |= at < self.place

    def was_replaced(self) -> None:
        self.is_over = True

    def step(self) -> str:
        return self.loop.run_until_complete(self._step())

    async def _step(self) -> str:
        """Check that it delivers all present records, or raises the right error."""
        case = self.case
        is_behind = self.place < case.start
        due = [row for row in case.log.items() if row[0] >= self.place]
        is_gone = self.is_over or self.is_cut or is_behind
        try:
            while due or is_gone:
                record = await asyncio.wait_for(anext(self.records), _PATIENCE_S)
                row = record.offset, record.value or b""
                if is_gone or row != due.pop(0):
                    return f"gives {row} at {self.place}, due are {due[:3]}"
                self.place = record.offset + 1
        except asyncio.TimeoutError:
            return f"gives no more from {self.place} on, due are {due[:3]}"
        except logstore.TopicNotFoundError as error:
            if not self.is_over:
                return f"raises {error}"
            case.notes["followers of another topic"] += 1
            return await self.follow()
        except logstore.OffsetOutOfRangeError as error:
            # A compaction may have removed the batch that shows that nothing was cut.
            if not is_gone and "compact" not in case.steps:
                return f"raises {error}"
            case.notes["followers of what is gone"] += 1
            return await self.follow()
        return ""


class _Producer(User):
    """A named producer, which does not know whether its last call has succeeded.

    Attributes:
        sent: (sequence, offset, value, key) of its records in the log that stands.
    """

    name = "producer"

    def __init__(self, case: History) -> None:
        super().__init__(case)
        self.sent: list[tuple[int, int, bytes, bytes | None]] = []

    def was_made_again(self) -> None:
        self.sent = []

    def was_cut(self, at: int) -> None:
        self.sent = [row for row in self.sent if row[1] < at]

    def step(self) -> str:
        case = self.case
        if case.format != 2:
            return ""  # its batches have no sequences
        with case.writing() as store:
            producer = store.producer("p")
            last = producer.last_sequence(TOPIC)
            sequence, offset, value, key = (
                self.sent[-1] if self.sent else (None, -1, b"", None)
            )
            if last != sequence:
                return f"is told the sequence {last}, its last is {sequence}"
            if sequence is not None:
                again = producer.append(TOPIC, value, key, sequence=sequence)
                if again != offset:
                    return f"sequence {sequence} is at {offset}, it was told {again}"
            following = 0 if sequence is None else sequence + 1
            values, keys = case.rows(1)
            key = keys[0] if keys else None
            at = producer.append(
                TOPIC, values[0], key, sequence=following, durable=True
            )
            case.note(at, values)
            self.sent.append((following, at, values[0], key))
        case.notes["sequences checked"] += 1
        return ""


KINDS = (
    _Handle, _Follower, _Staged, _Committer, _Assigned, _Asyncio, _Transactional,
    _AssignedTransactional, _Producer,
)  # fmt: skip
