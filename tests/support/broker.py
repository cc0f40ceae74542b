"""Steps of a broker on a log, as Kafka's log cleaner and replicas take them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from support.damage import fixed_crc, frames, logs_in

__all__ = [
    "MARKER",
    "bases",
    "compaction",
    "foreign",
    "with_epoch",
    "with_random_transactions",
    "with_transactions",
]

_SUFFIXES = (".log", ".index", ".timeindex")

# (key, value) of the control record that commits.
MARKER = (b"\0\0\0\1", bytes(6))


def foreign(path: Path) -> Path:
    """Remove logstore's own files from a store, as if a broker had written it. Returns
    the directory of the partition ``orders-0``."""
    for own in [*path.glob(".logstore*"), *path.glob("*-0/.logstore*")]:
        own.unlink()
    return path / "orders-0"


def bases(partition: Path) -> list[int]:
    """Base offsets of the segments."""
    return [int(log.name[:20]) for log in logs_in(partition)]


def compaction(
    partition: Path,
    chosen: Sequence[int],
    keep: Callable[[int], bool] = lambda number: number % 2 == 0,
    *,
    is_late: bool = True,
) -> list[Callable[[], None]]:
    """Steps, in order, that replace segments (by base offset) by one under the name of
    the first, with the batches to keep (by their number in the segment).

    With `is_late`, the old files stay, as ``.deleted``.
    """
    first = chosen[0]

    def file(base: int, suffix: str) -> Path:
        return partition / f"{base:020d}{suffix}"

    content = b""
    for base in chosen:
        log = file(base, ".log")
        data = log.read_bytes()
        for number, frame in enumerate(frames(log)):
            if keep(number):
                content += data[frame.pos : frame.pos + frame.size]

    def write() -> None:
        file(first, ".log.cleaned").write_bytes(content)
        for suffix in _SUFFIXES[1:]:
            file(first, suffix + ".cleaned").write_bytes(b"")

    def rename(base: int, old: str, new: str) -> Callable[[], None]:
        def step() -> None:
            if file(base, old).exists():
                file(base, old).rename(file(base, new))

        return step

    def remove() -> None:
        for base in chosen:
            for suffix in _SUFFIXES:
                file(base, suffix + ".deleted").unlink(missing_ok=True)

    steps = [write]
    steps += [rename(first, s + ".cleaned", s + ".swap") for s in _SUFFIXES]
    steps += [rename(b, s, s + ".deleted") for b in chosen for s in _SUFFIXES]
    steps += [rename(first, s + ".swap", s) for s in _SUFFIXES]
    if not is_late:
        steps.append(remove)
    return steps


def with_epoch(batch: bytes, offset: int, epoch: int) -> bytes:
    """A batch of magic 2 as a broker writes it at an offset."""
    head = struct.pack(">q", offset) + batch[8:12] + struct.pack(">i", epoch)
    return fixed_crc(head + batch[16:])


def _empty_indexes(partition: Path) -> None:
    """Empty the indexes, like a broker that has rewritten its logs."""
    for log in logs_in(partition):
        for suffix in _SUFFIXES[1:]:
            log.with_suffix(suffix).write_bytes(b"")
    for snapshot in partition.glob("*.snapshot"):
        snapshot.unlink()


def with_transactions(partition: Path, every: int) -> None:
    """Turn all batches of magic 2, which have one record each, into transactions of one
    producer: each `every`-th (with `MARKER` as its record) is the marker that commits
    the batches before it."""
    for log in logs_in(partition):
        data, made = log.read_bytes(), b""
        for frame in frames(log):
            batch = bytearray(data[frame.pos : frame.pos + frame.size])
            is_marker = frame.offset % every == every - 1
            struct.pack_into(">H", batch, 21, 0x30 if is_marker else 0x10)
            struct.pack_into(">qhi", batch, 43, 7, 0, -1 if is_marker else 0)
            made += fixed_crc(bytes(batch))
        log.write_bytes(made)
    _empty_indexes(partition)


def with_random_transactions(
    partition: Path, rng: random.Random, ends: float = 0.4
) -> None:
    """Assign batches of magic 2 to up to four producers, or to none: batches with one
    record become, with the probability `ends`, markers that commit or abort an open
    transaction. The last transactions may stay open."""
    open_producers: set[int] = set()
    for log in logs_in(partition):
        data, made = log.read_bytes(), b""
        for frame in frames(log):
            batch = bytearray(data[frame.pos : frame.pos + frame.size])
            is_single = batch[57:61] == b"\0\0\0\1"
            if is_single and open_producers and rng.random() < ends:
                producer = rng.choice(sorted(open_producers))
                open_producers.remove(producer)
                body = b"\0\0\0\x08" + struct.pack(">hh", 0, rng.randrange(2))
                body += b"\x0c" + bytes(6) + b"\0"
                batch[61:] = bytes([2 * len(body)]) + body
                struct.pack_into(">i", batch, 8, len(batch) - 12)
                struct.pack_into(">H", batch, 21, 0x30)
                struct.pack_into(">qhi", batch, 43, producer, 0, -1)
            elif rng.random() < 0.8:
                producer = rng.randrange(4)
                open_producers.add(producer)
                codec = batch[22] & 7
                struct.pack_into(">H", batch, 21, 0x10 | codec)
                struct.pack_into(">qhi", batch, 43, producer, 0, 0)
            made += fixed_crc(bytes(batch))
        log.write_bytes(made)
    _empty_indexes(partition)
