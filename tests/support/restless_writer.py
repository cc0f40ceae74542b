"""A writer that makes calls of every kind until it is killed, and a journal from which
a reader knows the allowed content.

    python -m support.restless_writer STORE JOURNAL SEED

A value holds the place of its record, and how often the log had been cut when it was
written: that, and the place of each cut, determines each record of each view of the
log. The journal has a line before and a line after each step; it never lags.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import logstore
from support.values import FORMATS

__all__ = ["PARTITIONS", "Account", "RestlessWriter", "account_of"]

TOPIC = "orders"
PARTITIONS = 2
# Maximum length of a partition; the head of a longer one is deleted.
RECORDS_MAX = 6_000
# Lines of the journal: before a cut, when it is done, and when a kill prevented it;
# before and after records are appended; before and after a head is deleted.
CUT, IS_CUT, NOT_CUT = "cut", "is cut", "not cut"
APPEND, APPENDED = "append", "appended"
DELETE, DELETED = "delete", "deleted"


def value_of(partition: int, offset: int, cuts: int) -> bytes:
    """The value of a record that was written after this number of cuts of its
    partition."""
    return b"%d@%d/%d" % (partition, offset, cuts) + b"." * (offset % 37)


class Account(NamedTuple):
    """State of one partition in a journal.

    Attributes:
        cuts: the offset of each cut, by its number; 0: the beginning.
        pending: the number of a cut that may have happened; 0: none.
        written: every record below it was appended, or cut.
        begun: no record is at or above it.
        start, start_max: the first offset is one of these, or between them.
    """

    cuts: dict[int, int]
    pending: int = 0
    written: int = 0
    begun: int = 0
    start: int = 0
    start_max: int = 0

    def after(self, kind: str, numbers: list[int]) -> Account:
        """State after another line."""
        if kind == CUT:
            number, offset = numbers
            return self._replace(
                cuts={**self.cuts, number: offset},
                pending=number,
                written=min(self.written, offset),
            )
        if kind == IS_CUT:
            return self._replace(pending=0)
        if kind == NOT_CUT:
            kept = {n: at for n, at in self.cuts.items() if n != self.pending}
            return self._replace(cuts=kept, pending=0, written=numbers[0])
        if kind == APPEND:
            return self._replace(begun=max(self.begun, *numbers))
        if kind == APPENDED:
            return self._replace(written=numbers[0])
        if kind == DELETE:
            return self._replace(start_max=numbers[0])
        assert kind == DELETED
        return self._replace(start=numbers[0])

    def wrong(self, partition: int, rows: Iterable[tuple[int, bytes]]) -> str:
        """Problem of the (offset, value) of one view, in the order of the log, or "".
        There may be gaps."""
        found = list(rows)
        newest = max((int(v.rstrip(b".").split(b"/")[1]) for _, v in found), default=0)
        cuts = sorted((n, at) for n, at in self.cuts.items() if n <= newest)
        last = -1
        for offset, value in found:
            if offset <= last:
                return f"offset {offset} comes after {last}"
            last = offset
            number = max(n for n, at in cuts if at <= offset)
            want = value_of(partition, offset, number)
            if value != want:
                return f"{value!r} at {offset}, not {want!r}: {self}"
        return ""


def account_of(journal: Path) -> list[Account]:
    """Current accounts in a journal, by partition."""
    accounts = [Account({0: 0})] * PARTITIONS
    # A line that a kill left unfinished was not followed by its step.
    for line in journal.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            kind, partition, *numbers = json.loads(line)
            accounts[partition] = accounts[partition].after(kind, numbers)
    return accounts


class RestlessWriter:
    """The process of the writer."""

    def __init__(self, path: Path, journal: Path, seed: int) -> None:
        self.kills = 0
        self._arguments = [str(path), str(journal)]
        self._seed = seed
        journal.touch()
        self.start()

    def start(self) -> None:
        """Start it, again after a kill, and wait until it has written something."""
        journal = Path(self._arguments[1])
        size = journal.stat().st_size
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *self._arguments, str(self._seed)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._seed += 1
        deadline = time.monotonic() + 60
        while journal.stat().st_size <= size + 200:
            self.check()
            assert time.monotonic() < deadline, "the writer does not begin"
            time.sleep(0.02)

    def check(self) -> None:
        """Raise AssertionError if it has ended."""
        assert self._process.poll() is None, "the writer has ended"

    def pause(self) -> None:
        """Stop it at once, possibly in the middle of a call."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.kills += 1


# -------------------------------------------------------------------- its program


class _Program:
    def __init__(self, path: str, journal: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if os.path.getsize(journal) and not journal.read_bytes().endswith(b"\n"):
            os.write(self._journal, b"\n")
        config = logstore.StoreConfig(flush_checkpoint_ms=self._rng.choice([0, 5_000]))
        self._store = logstore.open(path, config=config)
        if not self._store.topics():
            self._create()
        self._partitions = list(self._store.topic(TOPIC))
        self._cuts = []
        for partition, account in zip(
            self._partitions, account_of(journal), strict=True
        ):
            if account.pending:
                end = partition.end_offset
                kind = IS_CUT if end <= account.cuts[account.pending] else NOT_CUT
                self._say(kind, partition, end)
                account = account.after(kind, [end])
            self._cuts.append(max(account.cuts))
        self._sequence = self._store.published("restless") or 0
        # End offsets of calls, at which a batch ends: the log can be cut there.
        self._ends: list[list[int]] = [[] for _ in self._partitions]

    def _create(self) -> None:
        magic, codec = self._rng.choice(FORMATS)
        config = logstore.TopicConfig(
            message_format=magic,
            compression_type=codec,
            segment_bytes=self._rng.choice([2_000, 20_000]),
            index_interval_bytes=200,
            flush_messages=self._rng.choice([50, 1 << 40]),
            file_delete_delay_ms=self._rng.choice([0, 100, 60_000]),
        )
        self._store.create_topic(TOPIC, PARTITIONS, config)

    def _say(self, kind: str, partition: Any, *numbers: int) -> None:
        if kind == APPENDED:
            self._ends[partition.number] += numbers
        line = json.dumps([kind, partition.number, *numbers])
        os.write(self._journal, line.encode() + b"\n")

    def run(self) -> None:
        """Work until it is killed, or its parent has ended."""
        parent = os.getppid()
        steps = [self._append] * 12 + [self._publish] * 2
        steps += [self._roll, self._flush, self._cut, self._delete]
        while os.getppid() == parent:
            self._rng.choice(steps)(self._rng.choice(self._partitions))
            time.sleep(self._rng.choice([0, 0, 0.002, 0.02]))

    def _values(self, partition: Any, count: int) -> tuple[list[bytes], list[int]]:
        first, number = partition.end_offset, partition.number
        offsets = range(first, first + count)
        cuts = self._cuts[number]
        values = [value_of(number, offset, cuts) for offset in offsets]
        return values, [10**6 + offset for offset in offsets]

    def _append(self, partition: Any) -> None:
        count = self._rng.choice([1, 3, 20, 60])
        end = partition.end_offset + count
        values, times = self._values(partition, count)
        self._say(APPEND, partition, end)
        partition.append_many(
            values, timestamps_ms=times, durable=self._rng.random() < 0.1
        )
        self._say(APPENDED, partition, end)

    def _publish(self, partition: Any) -> None:
        if partition.config.message_format == 0:
            return  # nothing can be published there
        self._sequence += 1
        with self._store.stage("restless", self._sequence) as stage:
            for partition in self._partitions:
                values, times = self._values(partition, self._rng.randrange(1, 20))
                stage.append_many(partition, values, timestamps_ms=times)
                self._say(APPEND, partition, partition.end_offset + len(values))
            staged = stage.finish()
        self._store.publish([staged], identity="restless", sequence=self._sequence)
        for partition in self._partitions:
            self._say(APPENDED, partition, partition.end_offset)

    def _roll(self, partition: Any) -> None:
        partition.roll()

    def _flush(self, partition: Any) -> None:
        partition.flush()

    def _cut(self, partition: Any) -> None:
        ends = self._ends[partition.number]
        ends[:] = [at for at in ends[-10:] if at > partition.start_offset]
        if not ends:
            return
        offset = self._rng.choice(ends)
        ends[:] = [at for at in ends if at <= offset]
        number = self._cuts[partition.number] + 1
        self._say(CUT, partition, number, offset)
        partition.truncate_to(offset)
        self._cuts[partition.number] = number
        self._say(IS_CUT, partition, number)

    def _delete(self, partition: Any) -> None:
        start, end = partition.start_offset, partition.end_offset
        if end - start > RECORDS_MAX:
            start = self._rng.randrange(start, end - RECORDS_MAX // 2)
            self._say(DELETE, partition, start)
            partition.delete_before(start)
            self._say(DELETED, partition, start)


def main() -> None:
    """Work until it is killed."""
    _Program(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])).run()


if __name__ == "__main__":
    main()
