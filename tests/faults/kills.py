"""kill -9 at random moments of a writer, with readers in other processes.

A kill loses no written record: the next writer continues in the same store, and checks
that each record is there whose append had returned. Three readers live through many
kills and check each record that they get. Each writer is a fork of the method's own
process, so that a kill costs milliseconds and may strike anywhere: opening,
recovery, appends, rolls, deletions, retention, background syncs, closing, and the
services of `kills_services`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logstore
from faults.children import forked
from faults.kills_services import ROWS, check_services, create_topics, serve
from faults.method import Tally
from faults.recorded_calls import scratch
from faults.workers import spread
from logstore import OffsetOutOfRangeError, StoreConfig
from support.values import FORMATS, append_one, append_records, config_of, record_of

NAME = "kills"
UNIT = "kill -9"
COUNTS = {"commit": 60, "nightly": 1_000, "release": 2_000}

_PARTITIONS = 3
_CALL = 7
# Kills of one store; then a new one, of another format.
_ROUNDS = 30
_SECONDS = 30
# Per partition, in memory that all processes share: the end of acknowledged appends,
# the largest possible end, the durable offset, and the smallest and largest possible
# start offset.
_WRITTEN, _BEGUN, _DURABLE, _START, _START_MAX = range(5)
_FIELDS = 5
_SERVICES = _PARTITIONS + 1


class _Shared:
    """Numbers shared by the processes, which survive every kill. Each is stored
    atomically: half a number, left by a kill or seen by a reader, would be wrong."""

    def __init__(self) -> None:
        # One more row: the number of checks that the readers have made.
        # After it, the numbers of the services.
        rows = mmap.mmap(-1, 8 * _FIELDS * (_SERVICES + ROWS))
        self._numbers = memoryview(rows).cast("q")

    def get(self, partition: int, field: int) -> int:
        return self._numbers[partition * _FIELDS + field]

    def set(self, partition: int, field: int, value: int) -> None:
        self._numbers[partition * _FIELDS + field] = value


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` kills, in stores of all formats."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=scratch()) as folder:
        tasks = []
        for number, first in enumerate(range(0, count, _ROUNDS)):
            rounds = min(_ROUNDS, count - first)
            tasks.append((folder, 1000 * seed + number, rounds))
        reads = refused = 0
        for done, failures, notes in spread(store_of, tasks):
            tally.passed(done - len(failures))
            for failure in failures:
                tally.failed(failure)
            reads += notes[0]
            refused += notes[1]
        tally.note(f"{reads:,} reads beside the writers, {refused:,} second writers")


def store_of(
    folder: str, seed: int, rounds: int
) -> tuple[int, list[str], tuple[int, int]]:
    """Kill the writers of one store `rounds` times."""
    own = Path(tempfile.mkdtemp(dir=folder))
    path, log = own / "store", own / "failures"
    rng = random.Random(seed)
    magic, codec = rng.choice(FORMATS)
    shared = _Shared()
    what = f"seed {seed} magic{magic}-{codec}"
    with logstore.open(path) as store:
        store.create_topic("orders", _PARTITIONS, _config(magic, codec))
        create_topics(store)
    readers = [
        forked(lambda work=work: work(path, magic, seed, shared), log)
        for work in (_read, _follow, _fetch)
    ]
    done = refused = 0
    failures: list[str] = []
    try:
        for number in range(rounds):
            child = forked(lambda n=number: _write(path, seed, n, shared), log)
            is_stuck = not _kill_soon(child, rng, number)
            done += 1
            if is_stuck:
                failures.append(f"{what} round {number}: the writer does not die")
            if rng.randrange(4) == 0:
                refused += _check_lock(path, failures, f"{what} round {number}")
            _check_after(path, magic, seed, shared, failures, f"{what} round {number}")
            if failures or log.exists():
                break
    finally:
        for reader in readers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
    if log.exists():
        failures.append(
            f"{what} round {done}: {log.read_text(encoding='utf-8')[:1500]}"
        )
    reads = shared.get(_PARTITIONS, 0)
    shutil.rmtree(own, ignore_errors=True)
    return max(done, len(failures)), failures, (reads, refused)


def _config(magic: int, codec: str) -> Any:
    return config_of(
        magic, codec, segment_bytes=2_000, index_interval_bytes=200,
        flush_ms=3, flush_messages=200, retention_bytes=20_000,
        file_delete_delay_ms=60_000,
    )  # fmt: skip


def _kill_soon(child: int, rng: random.Random, number: int) -> bool:
    """Kill a writer after a moment: often while it opens, rarely after its close."""
    longest = (0.004, 0.02, 0.08)[number % 3]
    time.sleep(rng.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.0005)
    return False


# ---------------------------------------------------------------- the writer


def _write(path: Path, seed: int, number: int, shared: _Shared) -> None:
    rng = random.Random(f"{seed}/{number}")
    config = StoreConfig(flush_checkpoint_ms=rng.choice((0, 5, 5_000)))
    for _ in range(20):
        with logstore.open(path, config=config) as store:
            topic = store.topic("orders")
            for _ in range(rng.randint(1, 60)):
                if rng.random() < 0.1:
                    serve(store, rng, shared, _SERVICES)
                at = rng.randrange(_PARTITIONS)
                _do_something(topic[at], at, seed, rng, shared)


def _do_something(
    partition: Any, at: int, seed: int, rng: random.Random, shared: _Shared
) -> None:
    kind = rng.randrange(24)
    if kind == 0:
        partition.roll()
    elif kind == 1:
        partition.flush()
        shared.set(at, _DURABLE, partition.end_offset)
    elif kind == 2:
        low = partition.start_offset
        start = rng.randint(low, max(low, partition.end_offset - 40))
        shared.set(at, _START_MAX, start)
        partition.delete_before(start)
        shared.set(at, _START, start)
    elif kind == 3:
        plan = partition.apply_retention(dry_run=True)
        if plan:
            start = max(plan[-1].segment.next_offset, partition.start_offset)
            shared.set(at, _START_MAX, start)
            partition.apply_retention()
            shared.set(at, _START, start)
    else:
        durable = rng.randrange(10) == 0
        first = partition.end_offset
        count = 1 if kind < 8 else _CALL
        # Calls begin at multiples, so that a reader knows the extent of each call.
        count = count if first % _CALL == 0 else _CALL - first % _CALL
        shared.set(at, _BEGUN, first + count)
        if count == 1:
            append_one(partition, seed + at, durable=durable)
        else:
            append_records(partition, count, seed + at, durable=durable)
        shared.set(at, _WRITTEN, first + count)
        if durable:
            shared.set(at, _DURABLE, first + count)


def _check_lock(path: Path, failures: list[str], what: str) -> int:
    """Check that a second writer is refused while one lives, but not afterwards."""
    got, told = os.pipe()

    def hold() -> None:
        with logstore.open(path):
            os.write(told, b"x")
            time.sleep(_SECONDS)

    holder = os.fork()
    if holder == 0:
        with contextlib.suppress(BaseException):
            hold()
        os._exit(1)
    os.close(told)
    try:
        if os.read(got, 1) != b"x":
            failures.append(f"{what}: a writer does not get in after a death")
            return 1
        try:
            logstore.open(path).close()
            failures.append(f"{what}: two writers at a time")
        except logstore.StoreLockedError as error:
            if error.holder_pid != holder:
                failures.append(f"{what}: the holder is {holder}, not {error}")
    finally:
        os.close(got)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    return 1


def _check_after(
    path: Path, magic: int, seed: int, shared: _Shared, failures: list[str], what: str
) -> None:
    """Check as the next owner: all written records are there, and nothing else."""
    try:
        with logstore.open(path) as store:
            for at, partition in enumerate(store.topic("orders").partitions):
                _check_partition(partition, at, magic, seed, shared)
            check_services(store, shared, _SERVICES)
    except Exception as error:
        failures.append(f"{what}, after the kill: {error!r}"[:900])


def _check_partition(
    partition: Any, at: int, magic: int, seed: int, shared: _Shared
) -> None:
    start, end = partition.start_offset, partition.end_offset
    starts = (shared.get(at, _START), shared.get(at, _START_MAX))
    assert start in starts, f"begins at {start}, not at {starts}"
    shared.set(at, _START, start)
    written, begun = shared.get(at, _WRITTEN), shared.get(at, _BEGUN)
    assert written <= end <= max(begun, written), f"{written} <= {end} <= {begun}"
    assert partition.durable_offset >= shared.get(at, _DURABLE)
    shared.set(at, _WRITTEN, end)
    offset = start
    for record in partition.read():
        want = record_of(offset, magic, seed + at)
        assert record == want, f"{record}, not {want}"
        offset += 1
    assert offset == end, f"read up to {offset} of {end}"


# ---------------------------------------------------------------- the readers


def _rounds(shared: _Shared) -> Iterator[None]:
    """Yield until this process is killed."""
    while True:
        yield
        # Inexact with three writers of the number, which does not matter.
        shared.set(_PARTITIONS, 0, shared.get(_PARTITIONS, 0) + 1)
        if os.getppid() == 1:
            sys.exit(0)


def _in_order(
    records: Any, offset: int, magic: int, seed: int, limit: int = 1 << 62
) -> int:
    """Check each of some records; return the offset after the last one."""
    for record in records:
        want = record_of(offset, magic, seed)
        if record != want:
            raise AssertionError(f"a reader got {record}, not {want}")
        offset += 1
        if offset >= limit:
            break
    return offset


def _read(path: Path, magic: int, seed: int, shared: _Shared) -> None:
    """Read whole logs, over and over; each read ends at the end of an append."""
    rng = random.Random(seed)
    with logstore.open(path, read_only=True) as store:
        topic = store.topic("orders")
        for _ in _rounds(shared):
            at = rng.randrange(_PARTITIONS)
            written = shared.get(at, _WRITTEN)
            with contextlib.suppress(OffsetOutOfRangeError):
                start = topic[at].start_offset
                end = _in_order(topic[at].read(start), start, magic, seed + at)
                begun = shared.get(at, _BEGUN)
                if not written <= max(end, start) or end > begun:
                    raise AssertionError(f"read to {end}, {written}..{begun} there")


def _follow(path: Path, magic: int, seed: int, shared: _Shared) -> None:
    """Follow the durable records."""
    rng = random.Random(seed + 1)
    offsets = [0] * _PARTITIONS
    with logstore.open(path, read_only=True) as store:
        topic = store.topic("orders")
        for _ in _rounds(shared):
            at = rng.randrange(_PARTITIONS)
            try:
                records = topic[at].follow(offsets[at], timeout=0.02, durable_only=True)
                offsets[at] = _in_order(
                    records, offsets[at], magic, seed + at, offsets[at] + 50
                )
            except OffsetOutOfRangeError as error:
                # Only a deletion of the head may bring it here.
                if offsets[at] > shared.get(at, _START_MAX):
                    raise AssertionError(f"{offsets[at]} is gone: {error}") from error
                offsets[at] = max(topic[at].start_offset, offsets[at])


def _fetch(path: Path, magic: int, seed: int, shared: _Shared) -> None:
    """Read chunks and columns from random offsets; reopen the store each time."""
    rng = random.Random(seed + 2)
    for _ in _rounds(shared):
        with logstore.open(path, read_only=True) as store:
            at = rng.randrange(_PARTITIONS)
            partition = store.topic("orders")[at]
            with contextlib.suppress(OffsetOutOfRangeError):
                low, high = partition.start_offset, partition.end_offset
                first = rng.randint(low, high)
                chunk = partition.fetch(first, rng.choice((64, 900, 10_000)))
                end = _in_order(chunk, first, magic, seed + at)
                if end != max(chunk.next_offset, first):
                    raise AssertionError(f"fetched to {end} of {chunk.next_offset}")
                stop = rng.randint(first, high)
                offset = first
                for batch in partition.read_arrow(first, stop, batch_records=10):
                    rows = zip(
                        batch.column("offset").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    )
                    for found, value in rows:
                        want = record_of(offset, magic, seed + at)
                        if (found, value) != (offset, want.value):
                            raise AssertionError(f"a column has {value} at {found}")
                        offset += 1
                if offset != stop:
                    raise AssertionError(f"columns end at {offset}, not at {stop}")


__all__ = ["COUNTS", "NAME", "UNIT", "run", "store_of"]
