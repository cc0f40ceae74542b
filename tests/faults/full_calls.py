"""The calls on a store on a full disk, each with its required result.

Calls that free space free it, and calls that need none work; all others work, or raise
`DiskFullError` and have done nothing. Any other error is a failure.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import logstore
from faults.full_store import COMMITS, TRANSACTS, Key, Stock
from logstore import DiskFullError

__all__ = ["CALLS", "Call"]

# Returns the problem; "" also if there is no object for the call.
Call = Callable[[Stock], str]

# On xfs a rename of a directory needs blocks, and blocks of removed files are freed in
# the background. A topic whose settings have no room either may stay then.
_HALF_DELETED = ("xfs",)
_STAGED = ".logstore-staged-"


def _log(stock: Stock) -> tuple[Key, logstore.Partition] | None:
    """One of the partitions of `t`, mostly the first; None: it was deleted."""
    keys = stock.keys_of("t")
    if not keys:
        return None
    key = keys[0] if stock.rng.random() < 0.8 else stock.rng.choice(keys)
    return key, stock.partition(key)


# ---------------------------------------------------------------- what frees space


def delete_before(stock: Stock) -> str:
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    if not (segments := partition.segments):
        return ""
    index = stock.rng.randrange(len(segments))
    base = segments[index].base_offset
    offset = max(base, partition.start_offset)
    if stock.rng.random() < 0.4:
        offset = stock.rng.randrange(offset, segments[index].next_offset + 1)
    before = stock.disk.free()
    try:
        partition.delete_before(offset)
    except DiskFullError as error:
        if offset == base or partition.start_offset < base:
            return f"cannot free space: {error}"
        offset = partition.start_offset
    stock.drop(key, offset, partition.end_offset)
    if partition.start_offset != offset:
        return f"start is {partition.start_offset}, not {offset}"
    return stock.is_freed(before) if index else ""


def retain(stock: Stock) -> str:
    found = _log(stock)
    if found is None or "delete" not in stock.config.cleanup_policy:
        return ""
    key, partition = found
    policies = [logstore.RetainBytes(stock.rng.choice((1, 9_000, 20_000)))]
    before = len(partition.segments)
    wanted = partition.apply_retention(dry_run=True, policies=policies)
    problem = stock.frees(
        lambda: partition.apply_retention(policies=policies), len(wanted)
    )
    stock.drop(key, partition.start_offset, partition.end_offset)
    if not problem and len(partition.segments) != before - len(wanted):
        return f"{len(partition.segments)} of {before} segments are left"
    return problem


def truncate(stock: Stock) -> str:
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    start, end = partition.start_offset, partition.end_offset
    # The log may begin inside a batch, but cannot end there.
    batches = [b.base_offset for b in partition.read_batches()]
    batches = [offset for offset in batches if offset >= start]
    if not batches:
        return ""
    offset = stock.rng.choice(batches)
    gone = sum(one.base_offset > offset for one in partition.segments)
    before = stock.disk.free()
    try:
        partition.truncate_to(offset)
    except DiskFullError as error:
        if key not in stock.last_published:
            return f"cannot free space: {error}"
        # The journal of publications must record the truncation first.
        return "" if partition.end_offset == end else "no room, but it was cut"
    stock.drop(key, start, offset)
    stock.last_published.discard(key)
    return stock.is_freed(before) if gone else ""


def delete_topic(stock: Stock) -> str:
    names = sorted({topic for topic, _ in stock.records} - {"u"})
    if not names:
        return ""
    name = stock.rng.choice(names)
    before = stock.disk.free()
    gone = [stock.records.pop(key) for key in stock.keys_of(name)]
    stock.last_published = {key for key in stock.last_published if key[0] != name}
    try:
        stock.store.delete_topic(name)
    except DiskFullError as error:
        # A topic without records cannot free space for a longer name.
        may_fail = stock.disk.kind in _HALF_DELETED or not any(gone)
        if may_fail and not stock.half_deleted:
            stock.half_deleted = name
            return ""
        return f"cannot free space: {error}"
    return stock.is_freed(before) if any(gone) else ""


# ---------------------------------------------------------------- appends


def append(stock: Stock) -> str:
    if (found := _log(stock)) is None:
        return ""
    values = stock.values(stock.rng.choice((1, 30)))
    return stock.added({found[0]: values}, stock.append_to(found[0], values))


def append_durable(stock: Stock) -> str:
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    (value,) = stock.values(1)
    before = partition.end_offset
    problem = stock.added(
        {key: [value]}, lambda: partition.append(value, b"k", durable=True)
    )
    if problem or partition.end_offset == before:
        return problem
    is_durable = partition.durable_offset == partition.end_offset
    return "" if is_durable else f"durable to {partition.durable_offset} only"


def append_arrow(stock: Stock) -> str:
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    values = stock.values(4)
    table = pa.table({
        "value": pa.array(values, pa.binary()),
        "key": pa.array(stock.keys(4), pa.binary()),
    })  # fmt: skip
    return stock.added({key: values}, lambda: partition.append_arrow(table))


def append_batches(stock: Stock) -> str:
    """A copy of the first batches of `u`, which have no producer."""
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    chunk = stock.partition(("u", 0)).fetch(0, max_bytes=1)
    values = [record.value or b"" for record in chunk]
    return stock.added({key: values}, lambda: partition.append_batches(chunk.buffer))


def publish(stock: Stock) -> str:
    if stock.config.message_format == 0:
        return ""
    rows = {key: stock.values(stock.rng.choice((1, 12))) for key in stock.records}
    number = stock.published + 1
    give = stock.store.publish if stock.rng.random() < 0.7 else stock.store.submit

    def act() -> None:
        with stock.store.stage("publisher", number) as stage:
            for key, values in rows.items():
                stage.append_many(stock.partition(key), values, stock.keys(len(values)))
            staged = stage.finish()
        try:
            give(staged, identity="publisher", sequence=number)
        except DiskFullError:
            stock.store.discard_staged(staged)
            raise
        stock.published = number

    problem = stock.added(rows, act)
    if not problem and stock.published == number:
        stock.last_published |= rows.keys()
    if (there := stock.store.published("publisher") or 0) != stock.published:
        return f"the publisher is at {there}, not {stock.published}"
    return problem or _left(stock)


def transaction(stock: Stock) -> str:
    """Write a record to `t` for each record of `u`, with the group's position."""
    key = ("t", 0)
    if stock.config.message_format == 0 or key not in stock.records:
        return ""
    values: list[bytes] = []

    def act() -> None:
        with stock.consumer(TRANSACTS).transaction() as begun:
            for value in stock.poll(TRANSACTS):
                values.append(value)
                begun.append("t", value, key=b"k", partition=0)
        stock.positions[TRANSACTS] += len(values)

    before = stock.positions[TRANSACTS]
    problem = stock.added({key: values}, act)
    if not problem and stock.positions[TRANSACTS] > before:
        stock.last_published.add(key)
        read = [stock.records["u", 0][n] for n in range(before, before + len(values))]
        if read != values:
            return "the records of a transaction are not those after the position"
    return problem or _left(stock) or stock.position_of(TRANSACTS)


def _left(stock: Stock) -> str:
    names = [name for name in os.listdir(stock.path) if name.startswith(_STAGED)]
    return f"{names} are left" if names else ""


def produce(stock: Stock) -> str:
    if stock.config.message_format != 2:
        return ""
    partition = stock.partition(("u", 0))
    try:
        producer = stock.producer()
    except DiskFullError:
        return ""
    values = stock.values(stock.rng.choice((1, 9)))
    keys, sequence = stock.keys(len(values)), stock.sequences
    is_durable = stock.rng.random() < 0.7

    def act() -> None:
        producer.append_many(
            partition, values, keys, sequence=sequence, durable=is_durable
        )
        stock.sequences += len(values)

    problem = stock.added({("u", 0): values}, act)
    last = producer.last_sequence(partition)
    if not problem and (-1 if last is None else last) != stock.sequences - 1:
        return f"the producer is at {last}, not {stock.sequences - 1}"
    return problem


# ---------------------------------------------------------------- what may need room


def create_topic(stock: Stock) -> str:
    names = {topic for topic, _ in stock.records} | {stock.half_deleted}
    name = next(name for name in ("t", "a", "b", "c", "d", "e") if name not in names)
    count = stock.rng.choice((1, 3))
    try:
        stock.store.create_topic(name, count, stock.config)
    except DiskFullError:
        is_there = name in stock.store.topics()
        return f"no room, but {name} is there" if is_there else ""
    stock.records |= {(name, number): {} for number in range(count)}
    return ""


def add_partitions(stock: Stock) -> str:
    if not (keys := stock.keys_of("t")):
        return ""
    topic = stock.store.topic("t")
    try:
        topic.add_partitions(1)
    except DiskFullError:
        return "" if len(topic) == len(keys) else f"no room, but {len(topic)} are there"
    stock.records["t", len(keys)] = {}
    return ""


def configure(stock: Stock) -> str:
    if not stock.keys_of("t"):
        return ""
    return _may_lack_room(lambda: stock.store.topic("t").configure(stock.config))


def _may_lack_room(act: Callable[[], object]) -> str:
    with contextlib.suppress(DiskFullError):
        act()
    return ""


def roll(stock: Stock) -> str:
    found = _log(stock)
    return _may_lack_room(found[1].roll) if found else ""


def compact(stock: Stock) -> str:
    found = _log(stock)
    if found is None or "compact" not in stock.config.cleanup_policy:
        return ""
    stock.is_compacted = True
    return _may_lack_room(functools.partial(found[1].compact, force=True))


def commit(stock: Stock) -> str:
    return stock.commit(stock.rng.randrange(1, len(stock.records["u", 0]) + 1))


def reset_offsets(stock: Stock) -> str:
    stock.leave(COMMITS)
    offset = stock.rng.randrange(1, len(stock.records["u", 0]) + 1)
    try:
        logstore.reset_offsets(
            stock.path, COMMITS, to=offset, topics=["u"], dry_run=False
        )
    except DiskFullError:
        return stock.position_of(COMMITS)
    stock.positions[COMMITS] = offset
    return stock.position_of(COMMITS)


def snapshot_here(stock: Stock) -> str:
    place = stock.disk.place / "snapshot"
    try:
        stock.store.snapshot(place, links=stock.rng.random() < 0.7)
    except DiskFullError:
        left = [name for name in os.listdir(place.parent) if name.startswith("snap")]
        return f"{left} are left" if left else ""
    return _checked_copy(stock, place)


def _checked_copy(stock: Stock, place: Path) -> str:
    with logstore.open(place, read_only=True) as store:
        problem = stock.differences(store)
    shutil.rmtree(place)
    return problem and f"of the snapshot, {problem}"


def repair(stock: Stock) -> str:
    """Take out a batch with one changed byte. Without room for that the log stays
    unchanged, and is intact with the old byte; or the call is made again."""
    if (found := _log(stock)) is None:
        return ""
    key, partition = found
    if not (batches := list(partition.read_batches())):
        return ""
    batch = stock.rng.choice(batches)
    first, end = batch.base_offset, batch.next_offset
    base = max(s.base_offset for s in partition.segments if s.base_offset <= first)
    start, folder = partition.start_offset, stock.path / partition.name
    file, at = folder / f"{base:020}.log", batch.position + batch.size_bytes - 1
    del partition, found, batch, batches
    stock.close()
    _flip(file, at)
    before = _logs(folder)
    mode = stock.rng.choice(("cut", "skip"))
    outside = None if stock.rng.random() < 0.6 else stock.disk.place.parent / "kept"
    try:
        logstore.repair(stock.path, mode, outside)
    except DiskFullError:
        if _logs(folder) == before and stock.rng.random() < 0.5:
            _flip(file, at)
            return _open(stock)
        stock.disk.empty()
        logstore.repair(stock.path, mode, outside)
    behind = {o: v for o, v in stock.records[key].items() if o >= end}
    stock.drop(key, start, first)
    stock.records[key].update(behind if mode == "skip" else {})
    return _open(stock)


def _logs(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.log"))}


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as log:
        log.seek(at)
        (byte,) = log.read(1)
        log.seek(at)
        log.write(bytes([byte ^ 1]))


# ---------------------------------------------------------------- what needs no room


def open_again(stock: Stock) -> str:
    stock.close()
    stock.disk.fill()
    return _open(stock)


def _open(stock: Stock) -> str:
    stock.store = logstore.open(stock.path)
    return stock.damage()


def flush(stock: Stock) -> str:
    for key in stock.records:
        partition = stock.partition(key)
        partition.flush()
        if partition.durable_offset != partition.end_offset:
            return f"{key} is durable to {partition.durable_offset} only"
    return ""


def read(stock: Stock) -> str:
    """Read in every way, also from a read-only store."""
    problem = stock.differences(stock.store)
    with logstore.open(stock.path, read_only=True) as store:
        problem = problem or stock.differences(store)
    for key, records in stock.records.items():
        partition = stock.partition(key)
        there = [r.offset for r in partition.follow(partition.start_offset, 0)]
        if there != [r.offset for r in partition.read()]:
            return problem or f"follow gives {there}"
        if there:
            offset = stock.rng.choice(there)
            values = {
                partition.get(offset).value,
                next(r.value for r in partition.fetch(offset) if r.offset == offset),
            }
            if values != {records[offset]}:
                return problem or f"at {offset} is something else"
            if stock.config.message_format and partition.offset_for_time(0) is None:
                return problem or "no record has a time"
    return problem


def verify(stock: Stock) -> str:
    is_deep = stock.rng.random() < 0.5
    report = logstore.verify(os.fspath(stock.path), deep=is_deep, threads=1)
    return "" if report.ok else f"verify says {report.problems[0]}"


def snapshot_elsewhere(stock: Stock) -> str:
    place = stock.disk.place.parent / "snapshot"
    stock.store.snapshot(place)
    return _checked_copy(stock, place)


def go_on(stock: Stock) -> str:
    """Check that appends succeed in the open store once there is room again."""
    stock.disk.empty()
    for key in stock.records:
        values = stock.values(2)
        before = len(stock.records[key])
        problem = stock.added({key: values}, stock.append_to(key, values))
        if problem or len(stock.records[key]) == before:
            return problem or f"{key} takes no appends with room again"
    return ""


# Weights of the calls.
CALLS: dict[Call, int] = {
    delete_before: 10,
    retain: 7,
    truncate: 10,
    delete_topic: 3,
    append: 3,
    append_durable: 2,
    append_arrow: 2,
    append_batches: 2,
    publish: 3,
    transaction: 3,
    produce: 3,
    create_topic: 2,
    add_partitions: 2,
    configure: 2,
    roll: 2,
    compact: 3,
    commit: 3,
    reset_offsets: 1,
    snapshot_here: 2,
    repair: 2,
    open_again: 3,
    flush: 2,
    read: 2,
    verify: 1,
    snapshot_elsewhere: 1,
    go_on: 2,
}
