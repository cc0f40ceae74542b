"""Disks that return wrong bytes or errors: reads are right or raise, nothing else.

Any byte of any file of a store is read with a flipped bit, or with EIO: each read gives
the promised records, up to an error with a name; nothing is cut because of it, so that
everything is there once the disk works again; the rest of the store can be read. A
compaction that reads such bytes loses nothing, either. Two small cases are added: a
system that reads and writes a few bytes at a time, and a second process that wants to
write.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from typing import Any
from unittest import mock

from faults.checker import PATH, open_quietly
from faults.compactions import Compacted
from faults.method import Tally
from faults.rows import append_rows
from faults.workers import spread
from faults.workloads import Program
from logstore import LogStoreError, StoreConfig, StoreLockedError
from logstore import _native as native
from logstore.io import files as _files
from logstore.store.opening import open_store
from support.disk import MemoryDisk, end_processes
from support.values import config_of, expected

NAME = "lying_disk"
UNIT = "lies and refusals"
COUNTS = {"commit": 600, "nightly": 20_000, "release": 100_000}

# Cases for one store.
_EACH = 100
# This number of them are compactions.
_COMPACTIONS = 10


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` cases, some for each store."""
    stores = [(seed * 1000 + number,) for number in range(-(-count // _EACH))]
    for number, found in spread(_problems_of, stores):
        for text in found:
            if text:
                tally.failed(f"store {number}: {text}")
            else:
                tally.passed()


def _problems_of(seed: int) -> tuple[int, list[str]]:
    return seed, problems(seed)


def problems(seed: int, only: Sequence[str] = ()) -> list[str]:
    """Problem of each case of a store, or "".

    Args:
        only: ends of file names: other files are not damaged; none: all. ".compacted":
            compactions.
    """
    rng = random.Random(f"lies {seed}")
    program = Program(seed, topics=2)
    # The durable offset follows each sync: damage past it is taken for a torn tail.
    program._config = StoreConfig(flush_checkpoint_ms=0)
    program.open()
    program.do_create_topic()
    for _ in range(8):
        program.do_append_many()
        program.do_append_durable()
    program.do_delete_before()
    for _, partition in program.partitions():
        partition.flush()
    program.see()
    found = [_guarded(lambda: _locked(program.disk)), _guarded(lambda: _small(seed))]
    if rng.random() < 0.5:
        program.close()
    else:
        program.disk = program.disk.kill()
    files = [
        (path, size)
        for path, data in program.disk.tree().items()
        if (size := len(data)) and data != b"/" and path.endswith(tuple(only) or "")
    ]
    if not only or ".compacted" in only:
        found += Compacted(seed).lies(_EACH if only else _COMPACTIONS)
    # Requested files may be missing.
    for _ in range(_EACH - len(found) if files else 0):
        # Logs are most of the bytes, and small files most of the names.
        path, size = rng.choice([*files, *[f for f in files if f[0].endswith(".log")]])
        at, lie = rng.randrange(size), rng.choice((0, 1 << rng.randrange(8)))
        text = _guarded(lambda: _lie(program, path, at, lie, rng))  # noqa: B023
        kind = f"bits {lie:#x} changed" if lie else "EIO"
        found.append(f"{path} at byte {at}, {kind}: {text}" if text else "")
    end_processes()
    return found


def _guarded(call: Any) -> str:
    try:
        return str(call())
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def _lie(program: Program, path: str, at: int, lie: int, rng: random.Random) -> str:
    disk = MemoryDisk(program.disk.medium.nodes, clock=program.disk.medium.clock)
    if rng.random() < 0.8:
        # Readers then trust the modification times, and check less often.
        disk.advance(60)
    name = path.rpartition("/")[2]
    for read_only in (True, False):
        ill = disk.process()
        ill.damage(name, at, at + 1, lie=lie)
        try:
            store = open_quietly(ill, read_only=read_only)
        except LogStoreError:
            ill.kill()
            continue
        for topic_name, topic in program.promises.topics.items():
            for number, log in enumerate(topic.logs):
                many = 100 if name.endswith("index") else 1
                text = _read(store, topic_name, number, log.records, rng, many)
                if text:
                    return text
        ill.kill()
    with open_quietly(disk) as store:
        for topic_name, topic in program.promises.topics.items():
            for number, log in enumerate(topic.logs):
                partition = store.topic(topic_name)[number]
                start = partition.start_offset
                if list(partition.read()) != log.records[start:]:
                    return f"{partition.name} is not what it was, once the disk is well"
                if start > min(log.starts):
                    return f"{partition.name} begins at {start}"
    return ""


def _read(
    store: Any,
    topic: str,
    number: int,
    records: list[Any],
    rng: random.Random,
    many: int,
) -> str:
    """Read a partition from its start, and from `many` other offsets."""
    try:
        partition = store.topic(topic)[number]
        start, end = partition.start_offset, partition.end_offset
    except LogStoreError:
        return ""
    offsets = range(start, end + 1)
    for first in {start, *rng.sample(offsets, min(many, len(offsets)))}:
        got = []
        complete = False
        try:
            for record in partition.read(first):
                got.append(record)
            complete = True
        except LogStoreError:
            pass
        wanted = records[first : first + len(got)]
        if got != wanted:
            return f"{partition.name} from {first}: {got[-1:]} for {wanted[-1:]}"
        if complete and first + len(got) != end:
            return f"{partition.name} from {first}: {len(got)} records, up to {end}"
    return ""


def _locked(disk: MemoryDisk) -> str:
    try:
        open_quietly(disk.process())
    except StoreLockedError:
        return ""
    return "a second process may write"


class _FewBytes:
    """`native`, with reads and writes that stop after a few bytes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(native, name)

    def write_at(self, fd: int, data: Any, pos: int) -> int:
        return native.write_at(fd, data[: self._few(len(data))], pos)

    def read_at(self, fd: int, view: memoryview, pos: int) -> int:
        return native.read_at(fd, view[: self._few(len(view))], pos)

    def _few(self, size: int) -> int:
        return self._rng.randint(min(1, size), size)


def _small(seed: int) -> str:
    few = _FewBytes(random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = folder + PATH
        with mock.patch.object(_files, "native", few):
            with open_store(path) as store:
                topic = store.create_topic("few", config=config_of(1, "none"))
                append_rows(topic[0], range(9), 1, seed)
            with open_store(path) as store:
                read = list(store.topic("few")[0].read())
    return "" if read == expected(1, 0, 9, seed) else f"{len(read)} records were read"
