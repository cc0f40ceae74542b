"""Writers that replace a log under its readers: its owner, and a broker.

Each keeps the state of the log after each step, as a `Moment`, so that concurrent
readers can be checked against it. Values name their append and their offset, so that no
record of one log can be taken for one of another.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import logstore
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.broker import compaction
from support.damage import fixed_crc, logs_in
from support.values import config_of

__all__ = ["GONE", "TOPIC", "Broker", "Moment", "Owner", "time_of", "value_of"]

TOPIC = "orders"
_TIME = 1_600_000_000_000
# Concurrent readers know of each sync at once.
_CONFIG = logstore.StoreConfig(flush_checkpoint_ms=0)
OUT_OF_RANGE = "OffsetOutOfRangeError"
GONE = frozenset({OUT_OF_RANGE, "PartitionNotFoundError", "TopicNotFoundError"})


class Moment(NamedTuple):
    """A log between two steps of its writer.

    Attributes:
        what: the step that led here.
        records: offset -> value: records that a reader may get, including records
            deleted at the front, which a reader that has begun may still have.
        removed: offsets of records that compaction removed: a reader may lack them.
        start, end, durable: where readers begin and stop.
        bases: of the segments; None: not known.
        exists: whether there is such a topic.
        allows: the errors that this step may mean to a reader.
    """

    what: str
    records: Mapping[int, bytes]
    removed: frozenset[int]
    start: int
    end: int
    durable: int
    bases: tuple[int, ...] | None = None
    exists: bool = True
    allows: frozenset[str] = frozenset()

    @property
    def end_seen(self) -> int:
        """The lowest end that the files may show: a log that was cut after batches
        that were compacted away has no trace of them."""
        kept = [offset + 1 for offset in self.records if offset not in self.removed]
        return max(kept, default=self.start)


def value_of(stamp: int, offset: int, size: int) -> bytes:
    """The value at an offset that came with the append of this number."""
    return b"%06d.%06d" % (stamp, offset) + b"." * size


def time_of(value: bytes) -> int:
    """The timestamp of the record with a value: it rises, but not strictly, and starts
    again with each append."""
    stamp, offset = int(value[:6]), int(value[7:13])
    return _TIME + 10 * offset + 400 * (stamp % 5)


class _Log:
    """State of both replacers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.history: list[Moment] = []
        self.records: dict[int, bytes] = {}
        self.removed: frozenset[int] = frozenset()
        self.firsts: list[int] = []
        self.start = self.end = self.durable = 0
        self.exists = True
        self.stamp = 0
        self.size = rng.choice((8, 30, 90))
        # The state that a restore returns to.
        self.backup: tuple[Any, ...] = ()

    def note(self, what: str, allows: frozenset[str] = frozenset()) -> None:
        self.history.append(
            Moment(
                what, dict(self.records), self.removed, self.start, self.end,
                self.durable, self.bases(), self.exists, allows,
            )
        )  # fmt: skip

    def bases(self) -> tuple[int, ...] | None:
        return None

    def do(self, step: str) -> None:
        """Take a step, and note the state after it."""
        getattr(self, step)()

    def next_values(self, count: int, size: int) -> list[bytes]:
        """Values for the next append, which are noted as records of the log."""
        self.stamp += 1
        offsets = range(self.end, self.end + count)
        values = [value_of(self.stamp, offset, size) for offset in offsets]
        self.records.update(zip(offsets, values, strict=True))
        self.firsts.append(self.end)
        self.end += count
        return values

    def cut_to(self, offset: int) -> None:
        self.records = {o: v for o, v in self.records.items() if o < offset}
        self.removed = frozenset(o for o in self.removed if o < offset)
        self.firsts = [first for first in self.firsts if first < offset]
        self.end = offset
        self.durable = min(self.durable, offset)

    def empty(self) -> None:
        self.records, self.removed, self.firsts = {}, frozenset(), []
        self.start = self.end = self.durable = 0

    def save(self) -> tuple[Any, ...]:
        return (
            dict(self.records), self.removed, list(self.firsts), self.start, self.end,
            self.durable,
        )  # fmt: skip

    def bring_back(self, saved: tuple[Any, ...]) -> None:
        records, removed, firsts, self.start, self.end, self.durable = saved
        self.records, self.removed, self.firsts = dict(records), removed, list(firsts)

    def boundary(self) -> int | None:
        """An offset at which the log can be cut: the first of an append, or the end."""
        return self.rng.choice([f for f in self.firsts if f >= self.start] or [None])

    def grown_sizes(self) -> tuple[int, int, int]:
        """(calls, records of each, size of a value) of the appends after a cut: either
        the same as before, or others."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.randrange(1, 9), 3, self.size
        return rng.randrange(6), rng.choice((1, 2, 3, 4)), rng.choice((0, 8, 31, 90))


def put_back(saved: Path, path: Path, rng: random.Random) -> None:
    """Restore a directory from a copy, in one of several usual ways."""
    way = rng.choice(("replace", "copy", "copy over", "write over"))
    copy = shutil.copy2 if rng.random() < 0.5 else shutil.copy
    if way in ("replace", "copy"):
        if way == "replace":
            path.rename(path.with_name(f"away-{time.monotonic_ns()}"))
        else:
            shutil.rmtree(path)
        shutil.copytree(saved, path, copy_function=copy)
        return
    names = {str(file.relative_to(saved)) for file in saved.rglob("*")}
    for file in sorted(path.rglob("*"), reverse=True):
        if str(file.relative_to(path)) not in names:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    for name in sorted(names):
        source, target = saved / name, path / name
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            if way == "copy over":
                target.unlink(missing_ok=True)
            copy(source, target)


class Owner(_Log):
    """A store that is open for writing.

    Args:
        path: the new directory of the store.
        files: the system calls that it uses.
    """

    STEPS = (
        "append", "roll", "flush", "cut_and_grow", "cut_and_grow", "cut_and_grow",
        "cut", "cut_twice", "recreate", "recreate", "delete", "delete_head",
        "delete_head", "restore", "restore", "reopen",
    )  # fmt: skip

    def __init__(self, path: Path, rng: random.Random, files: Files) -> None:
        super().__init__(rng)
        self.path = path
        self.files = files
        magic, codec = rng.choice(
            (
                (1, "none"),
                (1, "none"),
                (1, "gzip"),
                (2, "none"),
                (2, "none"),
                (2, "lz4"),
            )
        )
        self.config = config_of(
            magic,
            codec,
            segment_bytes=rng.choice((300, 900, 3_000, 1 << 20)),
            index_interval_bytes=100,
            file_delete_delay_ms=rng.choice((0, 60_000)),
        )
        self.store = open_store(path, _files=files, config=_CONFIG)
        self.partition = self.store.create_topic(TOPIC, config=self.config)[0]
        self.grow(rng.randrange(1, 12), 3, self.size)
        if rng.random() < 0.5:
            self.durable = self.end
            self.partition.flush()
        self.saved = path.with_name("saved")
        shutil.copytree(path, self.saved)
        self.backup = self.save()
        if rng.random() < 0.7:
            self.grow(rng.randrange(1, 8), 3, self.size)
        self.note("begin")

    def bases(self) -> tuple[int, ...] | None:
        if not self.exists:
            return None
        return tuple(info.base_offset for info in self.partition.segments)

    def grow(self, calls: int, count: int, size: int) -> None:
        for _ in range(calls):
            values = self.next_values(count, size)
            times = [time_of(value) for value in values]
            self.partition.append_many(values, timestamps_ms=times)
        self.durable = self.partition.durable_offset

    def append(self) -> None:
        if self.exists:
            self.grow(1, self.rng.choice((1, 3)), self.size)
        self.note("append")

    def roll(self) -> None:
        if self.exists:
            self.partition.roll()
            self.durable = self.partition.durable_offset
        self.append()

    def flush(self) -> None:
        if self.exists:
            self.partition.flush()
            self.durable = self.end
        self.note("flush")

    def cut(self) -> None:
        boundary = self.boundary() if self.exists else None
        if boundary is not None:
            self.partition.truncate_to(boundary)
            self.cut_to(boundary)
            self.durable = self.partition.durable_offset
        self.note("cut", frozenset({OUT_OF_RANGE}))

    def cut_and_grow(self) -> None:
        self.cut()
        if self.exists:
            self.grow(*self.grown_sizes())
        self.note("grow again")

    def cut_twice(self) -> None:
        self.cut_and_grow()
        self.cut_and_grow()

    def delete(self) -> None:
        if self.exists:
            self.store.delete_topic(TOPIC)
            self.exists = False
        self.empty()
        self.note("delete", GONE)

    def recreate(self) -> None:
        self.delete()
        self.partition = self.store.create_topic(TOPIC, config=self.config)[0]
        self.exists = True
        self.note("create", GONE)
        self.grow(*self.grown_sizes())
        self.note("fill anew", GONE)

    def delete_head(self) -> None:
        if self.exists:
            self.start = self.rng.randint(self.start, self.end)
            self.partition.delete_before(self.start)
            self.durable = self.partition.durable_offset
        self.note("delete head", frozenset({OUT_OF_RANGE}))

    def _open(self) -> None:
        self.store = open_store(self.path, _files=self.files, config=_CONFIG)
        self.exists = TOPIC in self.store.topics()
        if self.exists:
            self.partition = self.store.topic(TOPIC)[0]
            self.durable = self.partition.durable_offset

    def reopen(self) -> None:
        self.store.close()
        self._open()
        self.note("reopen")

    def restore(self) -> None:
        """Restore the whole store, except its root directory, which may be a mount."""
        self.store.close()
        put_back_all(self.saved, self.path, self.rng)
        self.bring_back(self.backup)
        self._open()
        self.note("restore", GONE)
        self.grow(*self.grown_sizes())
        self.note("grow restored", GONE)

    def close(self) -> None:
        self.store.close()


def put_back_all(saved: Path, path: Path, rng: random.Random) -> None:
    """Restore the content of a store; its root directory stays."""
    for entry in list(path.iterdir()):
        if entry.is_file() and not (saved / entry.name).exists():
            entry.unlink()
        elif entry.is_dir() and not (saved / entry.name).exists():
            shutil.rmtree(entry)
    for entry in saved.iterdir():
        target = path / entry.name
        if entry.is_dir():
            if target.exists():
                put_back(entry, target, rng)
            else:
                shutil.copytree(entry, target)
        elif entry.name != ".lock":
            shutil.copy2(entry, target)
    for away in path.glob("away-*"):
        shutil.move(away, path.with_name(away.name))


# ---------------------------------------------------------------- a broker


def batch_of(base: int, values: list[bytes], epoch: int) -> bytes:
    """A batch of magic 2, as a broker stores it."""
    first = time_of(values[0])
    area = b""
    for number, value in enumerate(values):
        body = b"\0" + _varint(time_of(value) - first) + _varint(number) + _varint(-1)
        body += _varint(len(value)) + value + _varint(0)
        area += _varint(len(body)) + body
    last = max(map(time_of, values))
    count = len(values)
    tail = struct.pack(">hiqqqhii", 0, count - 1, first, last, -1, -1, -1, count) + area
    head = struct.pack(">qiibI", base, len(tail) + 9, epoch, 2, 0)
    return fixed_crc(head + tail)


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Broker(_Log):
    """A broker's replica of a partition: files that change as Kafka changes them."""

    STEPS = (
        "append", "roll", "cut_and_grow", "cut_and_grow", "cut", "recreate", "delete",
        "delete_head", "compact", "compact", "compact", "compact_on", "compact_on",
        "compact_on", "restore",
    )  # fmt: skip

    def __init__(self, path: Path, rng: random.Random, files: Files) -> None:
        super().__init__(rng)
        del files  # a broker has its own
        self.path = path
        self.epoch = 0
        self.epochs: list[tuple[int, int]] = []
        self.segment_bytes = rng.choice((300, 900, 3_000))
        # The remaining steps of a compaction.
        self.steps: list[Callable[[], None]] = []
        path.mkdir(mode=0o700)
        # Each broker has this file, which marks an empty log directory.
        (path / "meta.properties").write_text("version=0\nbroker.id=0\n")
        self.folder = path / f"{TOPIC}-0"
        self.make()
        self.grow(rng.randrange(1, 12), 3, self.size)
        self.saved = path.with_name("saved")
        shutil.copytree(path, self.saved)
        self.backup = self.save()
        if rng.random() < 0.7:
            self.grow(rng.randrange(1, 8), 3, self.size)
        self.note("begin")

    def make(self) -> None:
        self.folder.mkdir(mode=0o700)
        self.epoch += 1
        self.epochs = [(self.epoch, 0)]
        self.new_segment()
        self.write_epochs()

    def write_epochs(self) -> None:
        lines = [f"{epoch} {start}" for epoch, start in self.epochs]
        text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
        new = self.folder / "leader-epoch-checkpoint.tmp"
        new.write_text(text)
        new.rename(self.folder / "leader-epoch-checkpoint")

    def save(self) -> tuple[Any, ...]:
        return (super().save(), self.epoch, list(self.epochs))

    def bring_back(self, saved: tuple[Any, ...]) -> None:
        super().bring_back(saved[0])
        # The leader epoch is not restored: the next leader is a new one.
        self.epochs = list(saved[2])

    def new_segment(self) -> None:
        self.log = self.folder / f"{self.end:020d}.log"
        self.log.touch(0o600)
        for suffix in (".index", ".timeindex"):
            self.log.with_suffix(suffix).touch(0o600)

    def grow(self, calls: int, count: int, size: int) -> None:
        for _ in range(calls):
            base = self.end
            batch = batch_of(base, self.next_values(count, size), self.epoch)
            room = self.segment_bytes - self.log.stat().st_size
            if len(batch) > room and self.log.stat().st_size:
                self.log = self.folder / f"{base:020d}.log"
                self.log.touch(0o600)
            with self.log.open("ab") as file:
                file.write(batch)
        self.durable = self.end

    def append(self) -> None:
        if self.exists:
            self.grow(1, self.rng.choice((1, 3)), self.size)
        self.note("append")

    def roll(self) -> None:
        if self.exists and self.log.stat().st_size:
            self.new_segment()
        self.append()

    def cut(self) -> None:
        """Truncate the log like a replica that follows another leader."""
        self.finish()
        boundary = self.boundary() if self.exists else None
        if boundary is not None:
            logs = logs_in(self.folder)
            for log in reversed(logs):
                if int(log.name[:20]) >= boundary and log != logs[0]:
                    self.unlink(log)
            self.log = logs_in(self.folder)[-1]
            data, pos = self.log.read_bytes(), 0
            while pos < len(data):
                base, size = struct.unpack_from(">qi", data, pos)
                if base >= boundary:
                    break
                pos += 12 + size
            os.truncate(self.log, pos)
            self.cut_to(boundary)
            self.durable = self.end
            self.epoch += 1
            self.epochs = [e for e in self.epochs if e[1] < boundary]
            self.epochs.append((self.epoch, boundary))
            self.write_epochs()
        self.note("cut", frozenset({OUT_OF_RANGE}))

    def unlink(self, log: Path) -> None:
        for suffix in (".log", ".index", ".timeindex"):
            log.with_suffix(suffix).unlink(missing_ok=True)

    def cut_and_grow(self) -> None:
        self.cut()
        if self.exists:
            self.grow(*self.grown_sizes())
        self.note("grow again")

    def delete(self) -> None:
        self.finish()
        if self.exists:
            stray = f"{self.folder.name}.{self.rng.randrange(16**32):032x}-delete"
            self.folder.rename(self.path / stray)
            if self.rng.random() < 0.5:
                shutil.rmtree(self.path / stray)
            self.exists = False
        self.empty()
        self.note("delete", GONE)

    def recreate(self) -> None:
        self.delete()
        self.make()
        self.exists = True
        self.note("create", GONE)
        self.grow(*self.grown_sizes())
        self.note("fill anew", GONE)

    def delete_head(self) -> None:
        self.finish()
        logs = logs_in(self.folder) if self.exists else []
        if len(logs) > 1:
            kept = self.rng.randrange(1, len(logs))
            for log in logs[:kept]:
                for suffix in (".log", ".index", ".timeindex"):
                    file = log.with_suffix(suffix)
                    with contextlib.suppress(FileNotFoundError):
                        file.rename(f"{file}.deleted")
            self.start = int(logs[kept].name[:20])
            if self.rng.random() < 0.5:
                for file in self.folder.glob("*.deleted"):
                    file.unlink()
        self.note("delete head", frozenset({OUT_OF_RANGE}))

    def compact(self) -> None:
        """Begin a compaction, and take its first step."""
        self.finish()
        logs = logs_in(self.folder)[:-1] if self.exists else []
        if logs:
            first = self.rng.randrange(len(logs))
            count = self.rng.randint(1, min(3, len(logs) - first))
            chosen = [int(log.name[:20]) for log in logs[first : first + count]]
            modulus, rest = self.rng.choice(((2, 0), (2, 1), (3, 0)))
            numbers = {}
            for log in logs[first : first + count]:
                data, pos, number = log.read_bytes(), 0, 0
                while pos < len(data):
                    base, size = struct.unpack_from(">qi", data, pos)
                    last = base + struct.unpack_from(">i", data, pos + 23)[0]
                    for offset in range(base, last + 1):
                        numbers[offset] = number
                    pos, number = pos + 12 + size, number + 1
            self.removed |= {o for o, n in numbers.items() if n % modulus != rest}
            self.steps = compaction(
                self.folder,
                chosen,
                lambda number: number % modulus == rest,
                is_late=self.rng.random() < 0.5,
            )
        self.compact_on()

    def compact_on(self) -> None:
        """Take some steps of the compaction that is under way."""
        for _ in range(self.rng.randrange(1, 6)):
            if self.steps:
                self.steps.pop(0)()
        self.note("compact")

    def finish(self) -> None:
        while self.steps:
            self.steps.pop(0)()

    def restore(self) -> None:
        self.finish()
        put_back_all(self.saved, self.path, self.rng)
        self.bring_back(self.backup)
        self.exists = True
        self.log = logs_in(self.folder)[-1]
        self.note("restore", GONE)
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))
        self.write_epochs()
        self.grow(*self.grown_sizes())
        self.note("grow restored", GONE)

    def close(self) -> None:
        """Do nothing: there is no open store."""
