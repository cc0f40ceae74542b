"""Programs that write to a store and report each step (`accounts`).

Each is a function of (path, say, seed); its steps follow from the seed alone, except
after failed calls: then it continues with the working parts, as a service would.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from faults import accounts
from logstore import LogStoreError, PublicationTimeoutError, StoreConfig
from logstore.errors import SyncFailedError
from logstore.log.write.writer import PartitionWriter
from logstore.store.opening import open_store
from support.adopting import adopting
from support.values import (
    FORMATS,
    config_of,
    headers_of,
    key_of,
    timestamp_of,
    value_of,
)

__all__ = ["PROGRAMS", "Program", "Say", "Unknown", "Writer", "writing"]

Say = Callable[..., None]
Program = Callable[[Path, Say, int], None]

# Long enough even after failures: the owner is there, and answers.
_TIMEOUT_MS = 15_000
# Retention deletes segments older than a time, with the clock here.
_NOW = 1_600_000_000_000 + 10_000


class Unknown(Exception):
    """The program ends, because the outcome of a call is unknown to it."""


class Writer:
    """A store at work. Each change is reported before and after; errors of the library
    end the change, and nothing else."""

    def __init__(self, store: Any, say: Say, rng: random.Random) -> None:
        self.store = store
        self.say = say
        self.rng = rng
        self.has_failed = False

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        try:
            yield
        except SyncFailedError:
            # Raised once: `close` does not raise it again.
            self.has_failed = True
        except LogStoreError:
            pass

    def create(
        self, name: str, count: int, form: tuple[int, str], **settings: Any
    ) -> None:
        config = config_of(*form, index_interval_bytes=64, **settings)
        with self.trying():
            self.say(accounts.CREATE, name, count, form[0])
            self.store.create_topic(name, count, config)
            self.say(accounts.CREATED, name)

    def partitions(self) -> list[Any]:
        found = []
        for name in self.store.topics():
            for number in range(len(self.store.topic(name))):
                with self.trying():
                    found.append(self.store.topic(name)[number])
        return found

    def append(
        self, partition: Any, count: int, *, seed: int = -1, **options: Any
    ) -> None:
        """Append `count` records; `seed`: of their content, default: random."""
        seed = self.rng.randrange(100) if seed < 0 else seed
        name = f"{partition.topic}-{partition.number}"
        first = partition.end_offset
        offsets = range(first, first + count)
        two = partition.config.message_format == 2
        with self.trying():
            self.say(accounts.APPEND, name, first, first + count, seed)
            values = [value_of(o, seed) for o in offsets]
            keys = [key_of(o, seed) for o in offsets]
            times = [timestamp_of(o, seed) for o in offsets]
            headers = [headers_of(o, seed) for o in offsets] if two else None
            if count == 1:
                partition.append(
                    values[0], keys[0], timestamp_ms=times[0],
                    headers=headers[0] if headers else (), **options,
                )  # fmt: skip
            else:
                partition.append_many(values, keys, times, headers, **options)
            self.say(accounts.APPENDED, name, first, first + count, seed)
            # A background sync may have come further; this is the known minimum.
            self.say(accounts.DURABLE, name, partition.durable_offset)

    def publish(
        self, counts: dict[Any, int], sequence: int, through: Any = None
    ) -> None:
        """Append the given counts of records to some partitions, at once; sometimes
        twice.

        Args:
            through: a read-only store that hands them in.
        """
        rows = []
        publish = self.store.publish
        if through is not None:
            publish = functools.partial(through.submit, timeout_ms=_TIMEOUT_MS)
        way = adopting() if self.rng.random() < 0.5 else contextlib.nullcontext()
        store = through or self.store
        with way, self.trying(), store.stage("program", sequence) as stage:
            for partition, count in counts.items():
                seed, first = self.rng.randrange(100), partition.end_offset
                offsets = range(first, first + count)
                two = partition.config.message_format == 2
                stage.append_many(
                    partition,
                    [value_of(o, seed) for o in offsets],
                    [key_of(o, seed) for o in offsets],
                    [timestamp_of(o, seed) for o in offsets],
                    [headers_of(o, seed) for o in offsets] if two else None,
                )
                rows.append((partition.name, first, first + count, seed))
            staged = stage.finish()

            def call() -> None:
                publish([staged], identity="program", sequence=sequence)

            self.publishing(rows, list(counts), call, self.rng.randint(1, 2))

    def publishing(
        self,
        rows: Sequence[tuple[str, int, int, int]],
        partitions: Sequence[Any],
        call: Callable[[], None],
        times: int = 1,
    ) -> None:
        """Make a call, once or more often, that publishes these rows to partitions."""
        self.say(accounts.PUBLISH, "", rows)
        try:
            for _ in range(times):
                call()
                self.say(accounts.PUBLISHED, "", rows)
        except PublicationTimeoutError as error:
            # It may be published at any time now: later offsets are unknown.
            raise Unknown from error
        except LogStoreError as error:
            ended = {p.name for p in partitions if _has_failed(p, error)}
            left = [row for row in rows if row[0] in ended]
            self.say(accounts.SETTLED, "", left)
            raise

    def flush(self, partition: Any) -> None:
        with self.trying():
            partition.flush()
            self.say(accounts.DURABLE, partition.name, partition.end_offset)

    def roll(self, partition: Any) -> None:
        with self.trying():
            end = partition.end_offset
            partition.roll()
            self.say(accounts.DURABLE, partition.name, end)

    def delete(self, partition: Any) -> None:
        start, end = partition.start_offset, partition.end_offset
        with self.trying():
            offset = self.rng.randint(start, end)
            self.say(accounts.DELETE, partition.name, offset)
            partition.delete_before(offset)
            self.say(accounts.DELETED, partition.name, offset)

    def retain(self, partition: Any) -> None:
        with self.trying():
            plan = partition.apply_retention(_NOW, dry_run=True)
            if plan:
                start = max(plan[-1].segment.next_offset, partition.start_offset)
                self.say(accounts.DELETE, partition.name, start)
                partition.apply_retention(_NOW)
                self.say(accounts.DELETED, partition.name, start)

    def cut(self, partition: Any) -> None:
        with self.trying():
            start = partition.start_offset
            bases = [batch.base_offset for batch in partition.read_batches()]
            ends = [base for base in bases if base >= start]
            if not ends:
                return
            end = self.rng.choice(ends[len(ends) // 2 :])
            self.say(accounts.CUT, partition.name, end)
            partition.truncate_to(end)
            self.say(accounts.WAS_CUT, partition.name, end)
            self.say(accounts.DURABLE, partition.name, partition.durable_offset)

    def drop(self, name: str) -> None:
        with self.trying():
            self.store.topic(name)
            self.say(accounts.DROP, name)
            self.store.delete_topic(name)
            self.say(accounts.DROPPED, name)


class _Nobody(Writer):
    """A store that could not be opened: nothing happens."""

    def __init__(self, say: Say, rng: random.Random) -> None:
        super().__init__(None, say, rng)

    def create(
        self, name: str, count: int, form: tuple[int, str], **settings: Any
    ) -> None:
        """Do nothing."""

    def partitions(self) -> list[Any]:
        return []

    def drop(self, name: str) -> None:
        """Do nothing."""


@contextlib.contextmanager
def writing(
    path: Path, say: Say, rng: random.Random, **settings: Any
) -> Iterator[Writer]:
    # The run is repeatable without a thread that serves others.
    settings = {"publish_for_others": False, **settings}
    config = StoreConfig(flush_checkpoint_ms=rng.choice((0, 0, 5_000)), **settings)
    try:
        store = open_store(path, config=config)
    except LogStoreError:
        # Nothing can be done; the next opening may succeed.
        yield _Nobody(say, rng)
        return
    # Partial publications are undone, or the store would not be open.
    say(accounts.SETTLED, "", [])
    writer = Writer(store, say, rng)
    yield writer
    ends = {p.name: p.end_offset for p in writer.partitions()}
    with contextlib.suppress(LogStoreError):
        store.close()
        for name, end in ends.items() if not writer.has_failed else ():
            say(accounts.DURABLE, name, end)


def appends(path: Path, say: Say, seed: int) -> None:
    """Appends of all kinds, flushes and rolls in small segments, over two openings."""
    rng = random.Random(f"appends {seed}")
    for opening in range(2):
        with writing(path, say, rng) as writer:
            if opening == 0:
                for name in ("a", "b"):
                    writer.create(
                        name, rng.randint(1, 2), rng.choice(FORMATS),
                        segment_bytes=rng.choice((200, 350, 700)),
                        flush_ms=rng.choice((1, 1 << 62)),
                        flush_messages=rng.choice((5, 1 << 40)),
                    )  # fmt: skip
            for _ in range(rng.randint(4, 8)):
                for partition in writer.partitions():
                    _some_append(writer, partition)


def deletions(path: Path, say: Say, seed: int) -> None:
    """Delete heads and tails of logs, and whole topics, and append again."""
    rng = random.Random(f"deletions {seed}")
    for opening in range(2):
        with writing(path, say, rng) as writer:
            if opening == 0:
                for name in ("a", "b", "c"):
                    writer.create(
                        name, 1, rng.choice(FORMATS),
                        segment_bytes=300, retention_ms=9_800,
                        file_delete_delay_ms=rng.choice((0, 60_000)),
                    )  # fmt: skip
            for _ in range(rng.randint(3, 5)):
                for partition in writer.partitions():
                    for _ in range(2):
                        _some_append(writer, partition)
                    change = rng.choice(
                        (writer.delete, writer.cut, writer.retain, writer.flush)
                    )
                    change(partition)
            if opening == 0:
                writer.drop("c")


def recovery(path: Path, say: Say, seed: int) -> None:
    """Open a store that was not closed, with a torn tail, again and again."""
    rng = random.Random(f"recovery {seed}")
    config = StoreConfig(flush_checkpoint_ms=0, publish_for_others=False)
    with contextlib.suppress(LogStoreError):
        # This one is left open, like by a killed process.
        store = open_store(path, config=config)
        writer = Writer(store, say, rng)
        writer.create("a", 2, rng.choice(FORMATS), segment_bytes=400)
        for _ in range(rng.randint(2, 5)):
            for partition in writer.partitions():
                _some_append(writer, partition)
        for partition in writer.partitions():
            writer.append(partition, 2)
        _abandon(store)
        for log in sorted(path.glob("a-*/*.log"))[-1:]:
            with contextlib.suppress(OSError):
                _tear(log, rng)
    for _ in range(2):
        with writing(path, say, rng) as writer:
            for partition in writer.partitions():
                _some_append(writer, partition)


def publications(path: Path, say: Say, seed: int) -> None:
    """Publish to several partitions and topics at once, between appends to each."""
    rng = random.Random(f"publications {seed}")
    forms = [form for form in FORMATS if form[0]]
    sequence = 0
    for opening in range(2):
        with writing(path, say, rng) as writer:
            if opening == 0:
                for name in ("a", "b"):
                    writer.create(
                        name, rng.randint(1, 2), rng.choice(forms),
                        segment_bytes=rng.choice((200, 350, 700)),
                    )  # fmt: skip
            for _ in range(rng.randint(2, 4)):
                partitions = writer.partitions()
                for partition in rng.sample(partitions, min(2, len(partitions))):
                    _some_append(writer, partition)
                picked = rng.sample(partitions, min(3, len(partitions)))
                if picked:
                    sequence += 1
                    counts = {p: rng.randint(1, 12) for p in picked}
                    writer.publish(counts, sequence)


def hand_ins(path: Path, say: Say, seed: int) -> None:
    """Publications by a process without the lock: the owner publishes for it, or the
    lock is free, and it takes the lock."""
    rng = random.Random(f"hand-ins {seed}")
    forms = [form for form in FORMATS if form[0]]
    sequence = 0
    with contextlib.suppress(Unknown):
        for opening in range(3):
            with writing(path, say, rng, publish_for_others=True) as writer:
                if opening == 0:
                    for name in ("a", "b"):
                        writer.create(
                            name, rng.randint(1, 2), rng.choice(forms),
                            segment_bytes=rng.choice((200, 350, 700)),
                        )  # fmt: skip
                for _ in range(rng.randint(1, 3)):
                    partitions = writer.partitions()
                    for partition in rng.sample(partitions, min(1, len(partitions))):
                        _some_append(writer, partition)
                    sequence += 1
                    _hand_in(path, writer, partitions, sequence)
            sequence += 1
            with writer.trying(), open_store(str(path), read_only=True) as reader:
                # The lock is free.
                alone = Writer(reader, say, rng)
                _hand_in(path, alone, alone.partitions(), sequence)


def _hand_in(path: Path, writer: Writer, partitions: list[Any], sequence: int) -> None:
    rng = writer.rng
    picked = rng.sample(partitions, min(2, len(partitions)))
    if not picked:
        return
    counts = {partition: rng.randint(1, 9) for partition in picked}
    with writer.trying(), open_store(str(path), read_only=True) as reader:
        writer.publish(counts, sequence, reader)


def _has_failed(partition: Any, error: LogStoreError) -> bool:
    """Whether published records of a partition may be there after an error: its writer
    has ended, or the one of the store that was opened for the call."""
    if isinstance(partition._log, PartitionWriter):
        return partition._log.health.failed is not None
    return isinstance(error, SyncFailedError)


def _some_append(writer: Writer, partition: Any) -> None:
    rng = writer.rng
    kind = rng.randrange(8)
    if kind < 2:
        writer.append(partition, 1)
    elif kind < 5:
        writer.append(partition, rng.randint(2, 6))
    elif kind == 5:
        writer.append(partition, rng.randint(1, 12), durable=True)
    elif kind == 6:
        writer.flush(partition)
    else:
        writer.append(partition, 1)
        writer.roll(partition)


def _abandon(store: Any) -> None:
    """Forget a store without closing it. The lock belongs to the process, so that the
    next opening in this process gets it."""
    store._lifetime._stop()
    store._lifetime._let_go()


def _tear(log: Path, rng: random.Random) -> None:
    """Append the beginning of a batch to a log."""
    fd = os.open(log, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        os.pwrite(fd, os.pread(fd, rng.randint(1, 60), 0) or b"torn", size)
    finally:
        os.close(fd)


PROGRAMS: dict[str, Program] = {
    "appends": appends,
    "deletions": deletions,
    "hand-ins": hand_ins,
    "publications": publications,
    "recovery": recovery,
}
