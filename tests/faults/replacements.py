"""Logs that are replaced under their readers, between any two of their steps.

A reader reads a partition in each way: in the writer's own store, in a read-only store,
and in another process. Before some of its system calls, and between two records, the
log is cut and grows again (to the same sizes, or
others), is deleted and created again (now and then under the same inode numbers), loses
its head, is compacted by a broker, or restored from a backup. The reader gets a part of
one state of the log, without a gap, up to the end that it asked for; or a named error
that the changes explain. A reader that looks again then sees the whole present log.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from faults.cases import folder_of, run_cases
from faults.method import Tally
from faults.replacement_judge import Call, explained, is_reopened, judge, short
from faults.replacers import TOPIC, Broker, Moment, Owner, time_of
from logstore import LogStoreError, segment
from logstore.io import wakeups
from logstore.log.read import cursor
from logstore.store.opening import open_store
from logstore.store.partition import partition_reads
from support.damage import FaultyFiles

NAME = "replacements"
UNIT = "replacements"
COUNTS = {"commit": 1_500, "nightly": 50_000, "release": 150_000}

# How long the reader waits for the thread that replaces the log, if both are in one
# store: it may hold a lock that the other one needs.
_PATIENCE_S = 0.2
Step = Callable[[], None]


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` replacements that a reader met."""
    notes = run_cases(__name__, count, seed, tally)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    case = _Case(key)
    with folder_of(in_memory=case.rng.random() < 0.5) as folder:
        found = case.run(Path(folder))
    notes["done"] = case.met
    notes.update({"reads that ended with an error": case.errors})
    return f"{case.what()}: {found}" if found else ""


class _Files(FaultyFiles):
    """Files without syncs, as no power is cut here. Followers sleep by their clock."""

    def new_watch(self) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, dir_fd: int) -> None:
        """Do nothing."""


class _Clock:
    """The clock of followers: it advances by itself, but stands still for some looks
    after a change."""

    def __init__(self) -> None:
        self.now = 0.0
        self.still = 0

    def monotonic(self) -> float:
        if self.still > 0:
            self.still -= 1
        else:
            self.now += 0.004
        return self.now

    def sleep(self, seconds: float) -> None:
        """Do nothing: followers do not wait here."""


class _Remote:
    """A replacer in another process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.history: list[Moment] = []
        self._pipe, far = multiprocessing.Pipe()
        self._child = os.fork()
        if self._child == 0:
            self._pipe.close()
            _serve(make, far)
        far.close()
        self._take()

    def _take(self) -> None:
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"the other process: {answer}")
        self.history += answer

    def do(self, step: str) -> None:
        self._pipe.send(step)
        self._take()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send("")
        self._pipe.close()
        os.waitpid(self._child, 0)


def _serve(make: Callable[[], Any], pipe: Connection) -> None:
    """Serve in the other process until the end is received."""
    try:
        try:
            replacer = make()
            told = 0
            while True:
                pipe.send(replacer.history[told:])
                told = len(replacer.history)
                step = pipe.recv()
                if not step:
                    replacer.close()
                    break
                replacer.do(step)
        except EOFError:
            pass
        except BaseException:
            pipe.send(traceback.format_exc()[-1200:])
    finally:
        os._exit(0)


class _Case:
    def __init__(self, key: str) -> None:
        rng = self.rng = random.Random(f"replacements {key}")
        self.where = rng.choice(
            ("own", "beside", "beside", "other", "broker", "broker")
        )
        self.is_apart = self.where == "other" or (
            self.where == "broker" and rng.random() < 0.2
        )
        self.way = rng.choice(tuple(_WAYS))
        steps = list(Broker.STEPS if self.where == "broker" else Owner.STEPS)
        if self.where == "own":
            steps = [step for step in steps if step not in ("restore", "reopen")]
        self.steps = rng.choices(steps, k=rng.choice((1, 1, 2, 3)))
        # Numbers of the reader's steps before which they happen: mostly early ones.
        self.at = sorted(int(2 ** rng.uniform(0, 6.5)) for _ in self.steps)
        self.opens = rng.random() < 0.2 and self.where != "own"
        self.buffer = rng.choice((150, 400, 1_500, 1 << 18))
        self.options: dict[str, Any] = {}
        if self.way in _WITH_OPTIONS:
            self.options = {
                # The durable offset of a broker's log is unknown.
                "durable_only": rng.random() < 0.2 and self.where != "broker",
                "isolation": rng.choice(("read_uncommitted", "read_committed")),
                "on_corruption": rng.choice(("raise", "skip")),
            }
        self.met = self.errors = 0
        self.count = 0
        self.is_acting = False
        self.clock = _Clock()
        self.late: threading.Thread | None = None
        self.failure = ""
        self.replacer: Any = None

    def what(self) -> str:
        moments = " > ".join(moment.what for moment in self.history[:12])
        return (
            f"{self.way} {self.options} {self.where}{' apart' * self.is_apart}"
            f"{' opening' * self.opens}, buffers of {self.buffer}, "
            f"{list(zip(self.steps, self.at, strict=True))}; {moments}"
        )

    @property
    def history(self) -> list[Moment]:
        return self.replacer.history if self.replacer is not None else []

    # -- the steps

    def step(self) -> None:
        """Called before each step of the reader."""
        if self.is_acting or threading.current_thread() is self.late:
            return
        if self.where == "own" and threading.current_thread() is not self.reader:
            return
        self.count += 1
        while self.at_next < len(self.at) and self.at[self.at_next] <= self.count:
            step = self.steps[self.at_next]
            self.at_next += 1
            self.met += 1
            self.clock.still = 8
            self.act(step)

    def act(self, step: str) -> None:
        if self.where != "own":
            self.is_acting = True
            try:
                self.act_late(step)
            finally:
                self.is_acting = False
            return
        self.join(60.0)
        self.late = threading.Thread(target=self.act_late, args=(step,), daemon=True)
        self.late.start()
        self.join(_PATIENCE_S)

    def act_late(self, step: str) -> None:
        try:
            self.replacer.do(step)
        except BaseException:
            self.failure = f"{step} beside a reader: {traceback.format_exc()[-1200:]}"

    def join(self, seconds: float) -> None:
        if self.late is not None and self.late is not threading.current_thread():
            self.late.join(seconds)
            if not self.late.is_alive():
                self.late = None

    # -- the case

    def run(self, folder: Path) -> str:
        path, files = folder / "store", _Files()
        self.reader = threading.current_thread()
        self.at_next = 0
        kind = Broker if self.where == "broker" else Owner
        its_files = files if self.where == "own" else _Files()
        own_rng = random.Random(self.rng.random())

        def make() -> Any:
            return kind(path, own_rng, its_files)

        self.replacer = _Remote(make) if self.is_apart else make()
        with contextlib.ExitStack() as stack:
            for module in (cursor, segment):
                stack.enter_context(
                    mock.patch.object(module, "READ_BYTES", self.buffer)
                )
            for module in (partition_reads, wakeups):
                stack.enter_context(mock.patch.object(module, "time", self.clock))
            try:
                found = self.read_all(path, files)
            finally:
                files.before = None
                self.join(60.0)
                self.is_acting = True
                self.replacer.close()
        return self.failure or found

    def read_all(self, path: Path, files: _Files) -> str:
        if self.where == "own":
            return self.read(self.replacer.partition, files)
        if not self.opens:
            with open_store(path, read_only=True, _files=files) as store:
                partition = store.topic(TOPIC)[0]
                list(partition.read())
                return self.read(partition, files) or self.look_again(store)
        files.before = lambda method, name: self.step()
        try:
            store = open_store(path, read_only=True, _files=files)
        except LogStoreError as error:
            return explained(error, self.history, "opening the store")
        with store:
            try:
                partition = store.topic(TOPIC)[0]
            except LogStoreError as error:
                files.before = None
                return explained(error, self.history, "opening the partition")
            return self.read(partition, files) or self.look_again(store)

    def read(self, partition: Any, files: _Files) -> str:
        files.before = lambda method, name: self.step()
        try:
            for _ in range(self.rng.choice((1, 1, 2))):
                found = _WAYS[self.way](self, partition)
                if found:
                    return str(found)
            return ""
        finally:
            files.before = None
            self.join(60.0)

    def look_again(self, store: Any) -> str:
        """Check that a read that begins now gets the current log."""
        last = self.history[-1]
        try:
            partition = store.topic(TOPIC)[0]
            found = [(record.offset, record.value) for record in partition.read()]
        except LogStoreError as error:
            if not last.exists:
                return ""
            return f"afterwards: {type(error).__name__}: {error}"
        if not last.exists:
            return f"afterwards: the topic is gone, and {found[:3]} can be read"
        wanted = [
            (offset, value)
            for offset, value in last.records.items()
            if offset >= last.start
        ]
        missing = {o for o, _ in wanted} - {o for o, _ in found}
        if set(found) - set(wanted) or missing - last.removed:
            return f"afterwards: {short(found)} for {short(wanted)}"
        return ""

    # -- what is asked

    def range_of(self) -> tuple[int | None, int | None]:
        """(start, stop) of a read."""
        rng, now = self.rng, self.history[-1]
        begin = now.start
        # A reader that sees only the files may find a lower end of a compacted log.
        end = now.durable if self.options["durable_only"] else now.end_seen
        first = None if rng.random() < 0.4 else rng.randint(begin, max(begin, end))
        stop = None if rng.random() < 0.7 else rng.randint(begin, max(begin, end) + 2)
        return first, stop

    def judged(
        self,
        call: Callable[[], Iterator[Sequence[tuple[int, bytes]]]],
        first: int | None,
        stop: int | None,
        **more: bool,
    ) -> str:
        """Make a call that returns runs of records, and check them."""
        begun = settled = len(self.history)
        got: list[tuple[int, bytes]] = []
        error: LogStoreError | None = None
        try:
            runs = call()
            self.join(60.0)
            settled = len(self.history)
            for run in runs:
                got += run
                self.step()
        except LogStoreError as found:
            error = found
            self.errors += 1
        self.join(60.0)
        asked = Call(
            begun, settled, first, stop, bool(self.options.get("durable_only")), **more
        )
        return judge(self.history, asked, got, error, self.where)


# ---------------------------------------------------------------- ways to read


def _records(found: Iterable[Any]) -> Iterator[list[tuple[int, bytes]]]:
    for record in found:
        yield [(record.offset, record.value)]


def _read(case: _Case, partition: Any) -> str:
    first, stop = case.range_of()
    return case.judged(
        lambda: _eager(_records, partition.read(first, stop, **case.options)),
        first, stop,
    )  # fmt: skip


def _eager(wrap: Callable[[Any], Any], found: Any) -> Any:
    """Wrap a read that was already begun when this is called."""
    return wrap(found)


def _batches(case: _Case, partition: Any) -> str:
    first, stop = case.range_of()

    def runs(found: Any) -> Iterator[list[tuple[int, bytes]]]:
        for batch in found:
            yield [
                (r.offset, r.value) for r in batch if stop is None or r.offset < stop
            ]

    # A batch continues after the requested end.
    return case.judged(
        lambda: _eager(runs, partition.read_batches(first, stop, **case.options)),
        first, stop, begins_early=True,
    )  # fmt: skip


def _arrow(case: _Case, partition: Any) -> str:
    first, stop = case.range_of()
    size = case.rng.choice((1, 7, 65536))

    def runs(found: Any) -> Iterator[list[tuple[int, bytes]]]:
        for batch in found:
            columns = batch.column("offset"), batch.column("value")
            yield list(zip(*(c.to_pylist() for c in columns), strict=True))

    return case.judged(
        lambda: _eager(
            runs, partition.read_arrow(first, stop, batch_records=size, **case.options)
        ),
        first, stop,
    )  # fmt: skip


def _follow(case: _Case, partition: Any) -> str:
    first, _ = case.range_of()
    return case.judged(
        lambda: _eager(
            _records, partition.follow(first, timeout=0.03, **case.options)
        ),
        first, None, follows=True,
    )  # fmt: skip


def _fetch(case: _Case, partition: Any) -> str:
    """Check a loop of independent calls, each by itself."""
    first = case.range_of()[0]
    offset = case.history[-1].start if first is None else first
    max_bytes = case.rng.choice((1, 200, 1_000, 1 << 20))
    for _ in range(400):
        begun = len(case.history)
        try:
            chunk = partition.fetch(offset, max_bytes, **case.options)
        except LogStoreError as error:
            case.errors += 1
            case.join(60.0)
            # It is not notified of changes between two calls.
            return explained(error, case.history[1:], f"fetch at {offset}")
        case.join(60.0)
        got = [(r.offset, r.value) for r in chunk]
        call = Call(begun, len(case.history), offset, chunk.next_offset, False)
        found = judge(case.history, call, got, None, case.where)
        if found:
            return f"fetch at {offset}, next is {chunk.next_offset}: {found}"
        if chunk.next_offset <= offset:
            if case.options["durable_only"] and is_reopened(case.history):
                return ""
            ends = [
                m.durable if case.options["durable_only"] else m.end_seen
                for m in case.history[begun - 1 :]
            ]
            ends += [m.end for m in case.history[begun - 1 :] if not m.exists]
            if offset < min(ends):
                return f"fetch at {offset} gives nothing, the end is {min(ends)}"
            return ""
        offset = chunk.next_offset
        case.step()
    return f"no end: 400 chunks, at {offset}"


# Calls that show the end of the log, which grows in steps between two moments.
_PASSING = ("end_offset", "segments", "offset_for_time")


def _one(
    case: _Case,
    ask: Callable[[], Any],
    right: Callable[[Moment, Any], bool],
    name: str,
) -> str:
    """Check a value, which must be right at one of the moments since the call."""
    for _ in range(3):
        begun = len(case.history)
        try:
            found = ask()
        except LogStoreError as error:
            case.errors += 1
            case.join(60.0)
            return explained(error, case.history[1:], name)
        case.join(60.0)
        window = case.history[begun - 1 :]
        if len(window) > 1 and name in _PASSING:
            # It may have seen the first part of records that were being written.
            case.step()
            continue
        if not any(right(moment, found) for moment in window):
            known = [(m.what, m.start, m.durable, m.end, m.bases) for m in window[-3:]]
            return f"{name} is {found}; it was {known}"
        case.step()
    return ""


def _time(case: _Case, partition: Any) -> str:
    values = list(case.history[-1].records.values())
    when = case.rng.choice([time_of(v) for v in values] or [0])
    when += case.rng.choice((-1, 0, 0, 1, 300, 10_000))

    def right(moment: Moment, found: Any) -> bool:
        late = (
            offset
            for offset, value in moment.records.items()
            if offset >= moment.start and time_of(value) >= when
        )
        first = next(late, None)
        if found == first:
            return True
        # Compaction removes records at an unknown moment.
        candidates = {
            offset
            for offset, value in moment.records.items()
            if offset >= moment.start and time_of(value) >= when
        }
        kept = min(candidates - moment.removed, default=None)
        if found is None:
            return kept is None
        return found in candidates and (kept is None or found <= kept)

    return _one(case, lambda: partition.offset_for_time(when), right, "offset_for_time")


def _end(case: _Case, partition: Any) -> str:
    def right(moment: Moment, found: Any) -> bool:
        if case.where == "broker" and moment.allows:
            # It may see the first part of records that are being written.
            return bool(found <= max(m.end for m in case.history))
        return moment.end_seen <= found <= moment.end

    return _one(case, lambda: partition.end_offset, right, "end_offset")


def _start(case: _Case, partition: Any) -> str:
    return _one(
        case, lambda: partition.start_offset, lambda m, found: m.start == found,
        "start_offset",
    )  # fmt: skip


def _segments(case: _Case, partition: Any) -> str:
    def right(moment: Moment, found: Any) -> bool:
        if any(
            one.next_offset != two.base_offset for one, two in itertools.pairwise(found)
        ):
            return False
        return (
            moment.bases is None
            or found == moment.bases
            or (tuple(info.base_offset for info in found) == moment.bases)
        )

    return _one(case, lambda: partition.segments, right, "segments")


_WAYS: dict[str, Callable[[_Case, Any], str]] = {
    "read": _read,
    "read_batches": _batches,
    "read_arrow": _arrow,
    "follow": _follow,
    "fetch": _fetch,
    "offset_for_time": _time,
    "end_offset": _end,
    "start_offset": _start,
    "segments": _segments,
}
_WITH_OPTIONS = {"read", "read_batches", "read_arrow", "follow", "fetch"}
