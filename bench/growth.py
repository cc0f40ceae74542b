"""The cost of calls in large stores: ``python -m bench.growth`` prints the table.

For each call of the public interface, its time with 10, 1,000 and 100,000 segments,
topics, partitions, records or batches of transactions, and how it grows. Then the
memory of a partition that was written to, and the descriptors of a store compared with
its `max_open_files`.

It measures logstore itself, so all files are in a file system in memory
(``--directory`` chooses another), where a sync costs nothing. Stores are made as files,
as another program would leave them, and taken over by logstore before anything is
measured: making 100,000 topics one by one would measure the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import logging
import os
import resource
import shutil
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import crc32c

import logstore

__all__ = ["main"]

SIZES: Final = (10, 1_000, 100_000)
_CALLS_MAX: Final = 30
# A call is repeated for this many seconds, and three times if it does not take long.
_SECONDS: Final = 0.5
_TIME: Final = 1_700_000_000_000
# Growth below this factor, from the smallest to the largest size, is flat.
_FLAT: Final = 3.0
_LOGARITHMIC: Final = 8.0
_CONFIG: Final = logstore.TopicConfig(
    segment_bytes=100, flush_ms=1 << 62, flush_messages=1 << 40, segment_ms=1 << 62,
    file_delete_delay_ms=1 << 40, retention_ms=-1,
)  # fmt: skip

_STATE: Final = "the partition's state, which names each segment, is rewritten"
_TUPLE: Final = "the tuple of segments is copied"
# Reasons for the growth of costs, by the name of the call: found with a profiler.
WHY: Final = {
    "open, and first use": "each segment is looked at once",
    "open read-only, and first use": "each segment is looked at once",
    "segments": "it gives them all, and looks at each file",
    "apply_retention(dry_run)": "it looks at each file",
    "offset_for_time of segments": "the list of segments is gone through",
    "offset_for_time, of the future": "the list of segments is gone through",
    "offset_for_time of records": "one buffer is walked over, at the most",
    "read_batches, one batch": "one buffer is walked over, at the most",
    "read, one record": "one buffer is walked over, at the most",
    "append that rolls": _TUPLE,
    "append_many of segments": "some of the calls roll",
    "roll": _TUPLE,
    "delete_before, a segment": _STATE,
    "first fetch, read_committed": "what the broker wrote is read, once",
    "truncate_to of segments": "each name in the directory is looked at",
    "topics()": "it gives them all",
    "open and close of created": "each name and entry is looked at",
    "open read-only of created": "each name and entry is looked at",
    "open and close": "each name in the directory is looked at",
    "open read-only": "each name in the directory is looked at",
    "open, append, close": "each name in the directory is looked at",
    "partitions": "it gives them all",
    "append to a new partition": "Python's collector has more objects to go through",
    "add_partitions(1)": "the list of all numbers is rebuilt",
    "flush of the topic": "it looks at them all",
    "open after a kill": "the log after the durable point is read again",
}


class Row(NamedTuple):
    """A line of the table."""

    call: str
    grows: str
    seconds: tuple[float | None, ...]

    @property
    def shape(self) -> str:
        known = [s for s in self.seconds if s is not None]
        if len(known) < len(self.seconds):
            return "not measured"
        # Smaller times are noise.
        growth = max(known[-1], 2e-5) / max(known[0], 2e-5)
        if growth < _FLAT:
            return "flat"
        return "logarithmic" if growth < _LOGARITHMIC else f"grows {growth:,.0f} times"


def timed(call: Callable[[int], Any], most: int = _CALLS_MAX) -> float:
    """The median of at most `most` calls, in seconds; the first is not counted."""
    call(0)
    times = []
    end = time.perf_counter() + _SECONDS
    for number in range(1, most):
        begin = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - begin)
        over = time.perf_counter() - end
        if over > (0 if len(times) >= 3 else 4 * _SECONDS):
            break
    return statistics.median(times)


# ---------------------------------------------------------------- stores as files


def _message(offset: int) -> bytes:
    value = b"%060d" % offset
    body = struct.pack(">bbqi", 1, 0, _TIME + offset, -1)
    body += struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _write_log(folder: Path, segments: int, records: int = 1) -> None:
    """A partition with this many segments, each with this many records."""
    folder.mkdir(mode=0o700)
    for number in range(segments):
        base = number * records
        data = b"".join(_message(offset) for offset in range(base, base + records))
        (folder / f"{base:020d}.log").write_bytes(data)


def _take_over(path: Path, topics: list[str], config: logstore.TopicConfig) -> None:
    """Convert the directory to a closed store of logstore's own."""
    with logstore.open(path) as store:
        for name in topics:
            topic = store.topic(name)
            topic.configure(config)
            topic[0].append(b"x" * 60)


@contextlib.contextmanager
def _new_path(directory: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="growth-", dir=directory) as folder:
        path = Path(folder) / "store"
        path.mkdir(mode=0o700)
        yield path


Measured = dict[str, float]


def segments(path: Path, size: int) -> Measured:
    """Calls on one partition with `size` segments."""
    _write_log(path / "t-0", size)
    _take_over(path, ["t"], _CONFIG)

    def opening(read_only: bool) -> Callable[[int], None]:
        def call(_: int) -> None:
            with logstore.open(path, read_only=read_only) as store:
                _ = store.topic("t")[0].end_offset

        return call

    found = {
        "open, and first use": timed(opening(False)),
        "open read-only, and first use": timed(opening(True)),
    }
    with logstore.open(path) as store, logstore.open(path, read_only=True) as other:
        p, q = store.topic("t")[0], other.topic("t")[0]
        for where, one in (("", p), (", read-only", q)):
            found |= {f"{name}{where}": timed(c) for name, c in _reads(one).items()}
        found |= {name: timed(call) for name, call in _writes(store, p).items()}

        def look(number: int) -> None:
            p.append(b"y" * (number % 2))
            _ = q.end_offset

        found["append, and a look, read-only"] = timed(look)

        def roll(_: int) -> None:
            p.append(b"x" * 60)
            _ = q.end_offset

        found["append that rolls, and a look, read-only"] = timed(roll)
    return found


def _reads(p: logstore.Partition) -> dict[str, Callable[[int], Any]]:
    middle = (p.start_offset + p.end_offset) // 2
    when = _TIME + middle
    committed: dict[str, Any] = {"isolation": "read_committed"}
    return {
        "end_offset": lambda n: p.end_offset,
        "segments": lambda n: p.segments,
        "read, one record": lambda n: next(p.read(middle + n % 3)),
        "read_batches, one batch": lambda n: next(p.read_batches(middle + n % 3)),
        "read_arrow, one record": lambda n: p.read_arrow(middle, middle + 1).read_all(),
        "fetch": lambda n: p.fetch(middle + n % 3, 1000),
        "fetch, read_committed": lambda n: p.fetch(middle + n % 3, 1000, **committed),
        "follow, a look at the end": lambda n: list(p.follow(p.end_offset, timeout=0)),
        "follow, read_committed, a look at the end": lambda n: list(
            p.follow(p.end_offset, timeout=0, **committed)
        ),
        "offset_for_time": lambda n: p.offset_for_time(when),
        "offset_for_time, of the future": lambda n: p.offset_for_time(1 << 60),
        "last_stable_offset": lambda n: p.last_stable_offset(),
        "apply_retention(dry_run)": lambda n: p.apply_retention(dry_run=True),
    }


def _writes(
    store: logstore.Store, p: logstore.Partition
) -> dict[str, Callable[[int], Any]]:
    def cut(_: int) -> None:
        p.append(b"to be cut")
        p.truncate_to(p.end_offset - 1)

    def trim(_: int) -> None:
        p.delete_before(p.start_offset + 1)

    def roll(_: int) -> None:
        p.append(b"")
        p.roll()

    def flush(_: int) -> None:
        p.append(b"")
        p.flush()

    def publish(_: int) -> None:
        with store.stage() as stage:
            stage.append_many(p, [b"x"])
            store.publish([stage.finish()])

    return {
        "append that rolls": lambda n: p.append(b"x" * 60),
        "append_many": lambda n: p.append_many([b""]),
        "append, durable": lambda n: p.append(b"", durable=True),
        "roll": roll,
        "flush": flush,
        "truncate_to": cut,
        "delete_before, a segment": trim,
        "publish": publish,
    }


def topics(path: Path, size: int) -> Measured:
    """Calls on a store with `size` topics, of one partition each."""
    for number in range(size):
        _write_log(path / f"t{number}-0", 0)
    config = logstore.TopicConfig(flush_ms=1 << 62)
    _take_over(path, ["t0"], config)

    def opening(_: int) -> None:
        logstore.open(path).close()

    def looking(_: int) -> None:
        logstore.open(path, read_only=True).close()

    def writing(_: int) -> None:
        with logstore.open(path) as store:
            store.topic("t0")[0].append(b"x")

    found = {
        "open and close": timed(opening),
        "open read-only": timed(looking),
        "open, append, close": timed(writing),
    }
    with logstore.open(path) as store:
        p = store.topic("t0")[0]
        made: list[str] = []

        def create(_: int) -> None:
            made.append(f"new{len(made)}")
            store.create_topic(made[-1])

        def delete(n: int) -> None:
            if not made:
                create(n)
            store.delete_topic(made.pop())

        calls: dict[str, Callable[[int], Any]] = {
            "topics()": lambda n: store.topics(),
            "topic(), and a partition": lambda n: store.topic(f"t{n % 10}")[0],
            "create_topic": create,
            "configure": lambda n: store.topic("t0").configure(
                logstore.TopicConfig(flush_ms=(1 << 61) + n)
            ),
            "delete_topic": delete,
            "append": lambda n: p.append(b"x"),
            "delete_before": lambda n: (
                p.append(b"x"), p.append(b"x"), p.delete_before(p.end_offset - 1)
            ),
            "publish": _writes(store, p)["publish"],
            "published()": lambda n: store.published("me"),
        }  # fmt: skip
        found |= {name: timed(call) for name, call in calls.items()}
    return found


def created(path: Path, size: int) -> Measured:
    """Calls on a store with `size` topics that logstore has created."""
    path.rmdir()
    with logstore.open(path) as store:
        for number in range(size):
            store.create_topic(f"a_topic_{number}")
        calls: dict[str, Callable[[int], Any]] = {
            "create_topic": lambda n: store.create_topic(f"new_{n}"),
            "configure": lambda n: store.topic("new_1").configure(
                logstore.TopicConfig(segment_ms=(1 << 40) + n)
            ),
            "delete_topic": lambda n: store.delete_topic(f"new_{n}"),
        }
        # As many are deleted as are created.
        found = {name: timed(call, 4) for name, call in calls.items()}

    def opening(read_only: bool) -> Callable[[int], None]:
        return lambda n: logstore.open(path, read_only=read_only).close()

    found["open and close"] = timed(opening(False))
    found["open read-only"] = timed(opening(True))
    return found


def transactions(path: Path, size: int) -> Measured:
    """Calls with ``read_committed`` on a log of a broker with `size` batches of
    transactions, the first of which is open."""
    folder = path / "t-0"
    folder.mkdir(mode=0o700)
    with (folder / f"{0:020d}.log").open("wb") as file:
        for offset in range(size):
            kind = _OPEN if offset == 0 else _COMMITTED if offset % 2 else _MARKER
            file.write(_transactional(offset, *kind))
    found: Measured = {}
    with logstore.open(path) as store, logstore.open(path, read_only=True) as other:
        for where, one in (("", store), (", read-only", other)):
            p = one.topic("t")[0]
            _ = p.end_offset
            begin = time.perf_counter()
            p.fetch(0, 1000, isolation="read_committed")
            found[f"first fetch, read_committed{where}"] = time.perf_counter() - begin
            calls = _committed_reads(p)
            found |= {f"{name}{where}": timed(call) for name, call in calls.items()}
    return found


def _committed_reads(p: logstore.Partition) -> dict[str, Callable[[int], Any]]:
    committed: dict[str, Any] = {"isolation": "read_committed"}
    return {
        "fetch, read_committed": lambda n: p.fetch(0, 1000, **committed),
        "follow, read_committed, a look at the start": lambda n: list(
            p.follow(0, timeout=0, **committed)
        ),
        "last_stable_offset": lambda n: p.last_stable_offset(),
    }


# Producer, and whether it is a marker.
_OPEN: Final = (1, False)
_COMMITTED: Final = (2, False)
_MARKER: Final = (2, True)


def _transactional(offset: int, producer: int, is_marker: bool) -> bytes:
    """A batch of magic 2 with one record."""
    key, value = (b"\0\0\0\1", b"\0" * 6) if is_marker else (b"k", b"v" * 6)
    body = b"\0\0\0" + bytes([2 * len(key)]) + key
    body += bytes([2 * len(value)]) + value + b"\0"
    records = bytes([2 * len(body)]) + body
    attributes = 0x30 if is_marker else 0x10
    rest = struct.pack(">hiqqqhii", attributes, 0, _TIME, _TIME, producer, 0, -1, 1)
    crc = struct.pack(">I", crc32c.crc32c(rest + records))
    tail = struct.pack(">ib", 0, 2) + crc + rest + records
    return struct.pack(">qi", offset, len(tail)) + tail


def partitions(path: Path, size: int) -> Measured:
    """Calls on a topic with `size` partitions."""
    path.rmdir()
    config = logstore.TopicConfig(flush_ms=1 << 62)
    with logstore.open(path) as store:
        begin = time.perf_counter()
        topic = store.create_topic("t", size, config)
        each = (time.perf_counter() - begin) / size
        p = topic[0]
        p.append(b"x")

        def number_of(n: int) -> int:
            return size - 1 - n % size

        calls: dict[str, Callable[[int], Any]] = {
            "topic[n]": lambda n: topic[n % 10],
            "len(topic)": lambda n: len(topic),
            "append by key": lambda n: topic.append(b"x", key=b"key"),
            "append to a new partition": lambda n: topic.append(
                b"x", partition=number_of(n)
            ),
            "append": lambda n: p.append(b"x"),
            "append, durable": lambda n: p.append(b"x", durable=True),
            "delete_before": lambda n: (
                p.append(b"x"), p.append(b"x"), p.delete_before(p.end_offset - 1)
            ),
            "publish": _writes(store, p)["publish"],
            "add_partitions(1)": lambda n: topic.add_partitions(1),
            "partitions": lambda n: topic.partitions,
            "flush of the topic": lambda n: topic.flush(),
        }  # fmt: skip
        found = {"create_topic, for each partition": each}
        # The smallest topic has ten that are new.
        found |= {name: timed(call, 9) for name, call in calls.items()}
    return found


def records(path: Path, size: int) -> Measured:
    """Calls on a partition with `size` records in one segment."""
    config = logstore.TopicConfig(flush_ms=1 << 62, flush_messages=1 << 40)
    with logstore.open(path) as store:
        p = store.create_topic("t", config=config)[0]
        for first in range(0, size, 1_000):
            count = min(1_000, size - first)
            times = [_TIME + first + n for n in range(count)]
            p.append_many([b"x" * 60] * count, timestamps_ms=times)
    found: Measured = {}
    with logstore.open(path) as store, logstore.open(path, read_only=True) as other:
        p, q = store.topic("t")[0], other.topic("t")[0]
        for where, one in (("", p), (", read-only", q)):
            found |= {f"{name}{where}": timed(c) for name, c in _reads(one).items()}
        found |= {name: timed(call) for name, call in _writes(store, p).items()}
        p.append_many([b"x" * 60] * size)
        killed = path.with_name("killed")
        shutil.copytree(path, killed)

    def recover(_: int) -> None:
        copy = path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(killed, copy)
        begin = time.perf_counter()
        with logstore.open(copy) as store:
            _ = store.topic("t")[0].end_offset
        took.append(time.perf_counter() - begin)

    took: list[float] = []
    timed(recover)
    found["open after a kill"] = statistics.median(took)
    return found


SUBJECTS: Final[dict[str, Callable[[Path, int], Measured]]] = {
    "segments": segments,
    "topics": topics,
    "created": created,
    "transactions": transactions,
    "partitions": partitions,
    "records": records,
}


# ---------------------------------------------------------------- memory, descriptors


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory(path: Path, count: int = 3_000) -> float:
    """Bytes of memory for each partition that was written to."""
    path.rmdir()
    with logstore.open(path) as store:
        parts = store.create_topic("t", count).partitions
        before = _resident()
        for p in parts:
            p.append(b"x")
        return (_resident() - before) / count


def descriptors(path: Path, limit: int) -> int:
    """The largest number of descriptors of a store, without the ones that were open
    before."""
    path.rmdir()
    config = logstore.TopicConfig(segment_bytes=100, file_delete_delay_ms=0)
    before = most = len(os.listdir("/proc/self/fd"))
    store_config = logstore.StoreConfig(max_open_files=limit)

    def look() -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    with logstore.open(path, config=store_config) as store:
        parts = store.create_topic("t", 8, config).partitions
        for number in range(100):
            for p in parts:
                p.append(b"%060d" % number)
            look()
        readers = [p.read() for p in parts]
        for reader in readers:
            next(reader)
            look()
        for p in parts:
            p.delete_before(p.end_offset - 10)
            look()
        for reader in readers:
            with contextlib.suppress(logstore.OffsetOutOfRangeError):
                list(reader)
            look()
        with store.stage() as stage:
            for p in parts:
                stage.append_many(p, [b"y" * 60])
            store.publish([stage.finish()])
        look()
        store.delete_topic("t")
        look()
    return most - before


# ---------------------------------------------------------------- the table


def _measure(
    name: str, sizes: tuple[int, ...], directory: str | None, seconds: float
) -> list[Row]:
    columns: list[Measured] = []
    for size in sizes:
        begin = time.perf_counter()
        with _new_path(directory) as path:
            columns.append(SUBJECTS[name](path, size))
        took = time.perf_counter() - begin
        print(f"{name}: {size:,} took {took:.1f} s", file=sys.stderr, flush=True)
        if took > seconds and size != sizes[-1]:
            print(f"{name}: larger ones would take too long", file=sys.stderr)
            break
    calls = columns[0]
    return [
        Row(
            call,
            name,
            tuple(
                columns[at].get(call) if at < len(columns) else None
                for at in range(len(sizes))
            ),
        )
        for call in calls
    ]


def _line(row: Row) -> str:
    times = "".join(
        f" {'-' if s is None else format(s * 1000, '.3f' if s < 0.1 else '.0f')} |"
        for s in row.seconds
    )
    call = row.call.removesuffix(", read-only")
    why = WHY.get(f"{call} of {row.grows}", WHY.get(call, ""))
    why = why if row.shape != "flat" else ""
    shape = f"{row.shape}: {why}" if why else row.shape
    return f"| {row.call} | {row.grows} |{times} {shape} |"


def main(arguments: list[str] | None = None) -> int:
    """Print the tables, in the form of docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*SUBJECTS, "limits"])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    memory_files = "/dev/shm" if os.path.isdir("/dev/shm") else None
    parser.add_argument("--directory", default=memory_files)
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS",
        help="a size that takes longer is the last one",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    sizes = tuple(int(size) for size in options.sizes.split(","))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A store made as files counts as another program's; each opening logs that.
    logging.disable(logging.WARNING)
    chosen = options.only or [*SUBJECTS, "limits"]
    today = datetime.date.today().isoformat()
    print(f"{today}, Python {sys.version.split()[0]}, {options.directory}")
    heads = "".join(f" ms at {size:,} |" for size in sizes)
    print(f"\n| call | of |{heads} growth |")
    print("| --- | --- |" + " ---: |" * len(sizes) + " --- |")
    for name in SUBJECTS:
        if name in chosen:
            for row in _measure(name, sizes, options.directory, options.patience):
                print(_line(row), flush=True)
    if "limits" in chosen:
        with _new_path(options.directory) as path:
            print(f"\nmemory of a partition written to: {memory(path) / 1024:.1f} KiB")
        print("\n| max_open_files | descriptors of the store, at the most |")
        print("| ---: | ---: |")
        for limit in (16, 64, 256):
            with _new_path(options.directory) as path:
                print(f"| {limit} | {descriptors(path, limit)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
