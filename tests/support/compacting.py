"""Logs to be compacted, batch by batch as brokers write them, and what must stay.

`RandomLog` writes the directory of a partition with all magics, codecs, producers and
transactions. Its records are known from their generation, so the required result of a
compaction is computed without reading a byte (`survivors`).
"""

from __future__ import annotations

import dataclasses
import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import crc32c

from logstore.record.compression import compress
from support.hostile import varint

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMMIT, ABORT = 1, 0
TIME_MS = 1_700_000_000_000


class Item(NamedTuple):
    """A record: its offset, key (None: none), value (None: a tombstone) and time."""

    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch: its bytes and its records.

    Attributes:
        marker: `COMMIT` or `ABORT` of a control batch, else None.
    """

    data: bytes
    items: tuple[Item, ...]
    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    marker: int | None = None


def batch2(
    items: Sequence[Item],
    *,
    base: int | None = None,
    last: int | None = None,
    codec: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    leader_epoch: int = 0,
    headers: int = 0,
) -> Batch:
    """A batch of magic 2; `producer`: id, epoch, first sequence."""
    base = items[0].offset if base is None else base
    last = items[-1].offset if last is None else last
    times = [item.time_ms for item in items] or [-1]
    area = b"".join(_record(item, base, times[0], headers) for item in items)
    number = CODECS.index(codec)
    if number:
        area = compress(number, area, 2, 3 if codec == "zstd" else -1)
    covered = struct.pack(
        ">hiqqqhii", attributes | number, last - base, times[0], max(times),
        *producer, len(items),
    ) + area  # fmt: skip
    head = struct.pack(">qiib", base, len(covered) + 9, leader_epoch, 2)
    data = head + struct.pack(">I", crc32c.crc32c(covered)) + covered
    is_transactional = bool(attributes & 0x10)
    return Batch(data, tuple(items), last, producer[0], is_transactional)


def _record(item: Item, base: int, time_ms: int, headers: int) -> bytes:
    def text(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(item.time_ms - time_ms) + varint(item.offset - base)
    body += text(item.key) + text(item.value) + varint(headers)
    body += b"".join(text(b"h%d" % n) + text(b"x" * (n % 64)) for n in range(headers))
    return varint(len(body)) + body


def marker(
    offset: int, producer_id: int, epoch: int, kind: int, time_ms: int = TIME_MS
) -> Batch:
    """A control batch that ends a transaction."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7)
    item = Item(offset, key, value, time_ms)
    made = batch2([item], producer=(producer_id, epoch, -1), attributes=0x30)
    return dataclasses.replace(made, items=(), marker=kind)


def message(item: Item, magic: int, attributes: int = 0) -> bytes:
    """A message of magic 0 or 1, with its offset."""

    def text(data: bytes | None) -> bytes:
        return struct.pack(">i", -1 if data is None else len(data)) + (data or b"")

    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", item.time_ms)
    body += text(item.key) + text(item.value)
    head = struct.pack(">qi", item.offset, len(body) + 4)
    return head + struct.pack(">I", zlib.crc32(body)) + body


def messages(items: Sequence[Item], magic: int, codec: str = "none") -> list[Batch]:
    """The same as messages, or as one wrapper."""
    number = CODECS.index(codec)
    if not number:
        return [Batch(message(i, magic), (i,), i.offset) for i in items]
    first, last = items[0].offset, items[-1].offset
    inner = b"".join(
        message(i._replace(offset=i.offset - first) if magic else i, magic)
        for i in items
    )
    packed = compress(number, inner, magic, -1)
    newest = max(item.time_ms for item in items)
    data = message(Item(last, None, packed, newest), magic, number)
    return [Batch(data, tuple(items), last)]


class RandomLog:
    """A random log.

    Attributes:
        segments: of batches; the last one is active.
    """

    def __init__(
        self,
        seed: int,
        *,
        keys: int = 30,
        segments: int = 6,
        magics: Sequence[int] = (0, 1, 2),
        codecs: Sequence[str] = CODECS,
        transactions: bool = True,
        keyless: bool = False,
        tombstones: bool = True,
    ) -> None:
        self.rng = random.Random(f"log {seed}")
        self.keys = keys
        self.keyless = keyless
        self.tombstones = tombstones
        self.codecs = codecs
        self.offset = 0
        self.segments: list[tuple[int, list[Batch]]] = []
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        lowest = 0
        for _ in range(segments):
            self.segments.append((self.offset, []))
            # Formats rise along a log, as brokers are upgraded.
            lowest = max(lowest, self.rng.choice(magics))
            has_transactions = transactions and lowest == 2
            for _ in range(self.rng.randrange(3, 14)):
                self._add(lowest, has_transactions)
        for producer_id in sorted(self.open):
            self._end(producer_id)

    def _items(self, count: int) -> list[Item]:
        items = []
        for _ in range(count):
            key: bytes | None = b"key-%d" % self.rng.randrange(self.keys)
            if self.keyless and self.rng.random() < 0.1:
                key = None
            value: bytes | None = b"value-%d-" % self.offset
            value += bytes(
                self.rng.randrange(256) for _ in range(self.rng.randrange(40))
            )
            if self.rng.random() < 0.15 and self.tombstones:
                value = None
            time_ms = TIME_MS + self.offset * 10 + self.rng.randrange(200)
            items.append(Item(self.offset, key, value, time_ms))
            self.offset += 1
        return items

    def _put(self, batches: Iterable[Batch]) -> None:
        self.segments[-1][1].extend(batches)

    def _add(self, magic: int, has_transactions: bool) -> None:
        rng = self.rng
        if self.segments[-1][1] and rng.random() < 0.05:
            self.offset += rng.randrange(1, 5)  # a gap, as of an earlier compaction
        count = rng.randrange(1, 12)
        if magic < 2:
            codec = rng.choice([c for c in self.codecs if c != "zstd"])
            self._put(messages(self._items(count), magic, codec))
            return
        kind = rng.random()
        if has_transactions and kind < 0.25 and self.open:
            self._end(rng.choice(sorted(self.open)))
            return
        producer, attributes = (-1, -1, -1), 0
        if kind < 0.7 and has_transactions:
            producer_id = rng.randrange(10, 14)
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + count
            producer = producer_id, 0, sequence
            if producer_id < 13:
                self.open.add(producer_id)
                attributes = 0x10
        self._put(
            [
                batch2(
                    self._items(count),
                    codec=rng.choice(self.codecs),
                    producer=producer,
                    attributes=attributes,
                    headers=rng.choice((0, 0, 2)),
                )
            ]
        )

    def _end(self, producer_id: int) -> None:
        self.open.discard(producer_id)
        kind = self.rng.choice((COMMIT, ABORT))
        time_ms = TIME_MS + self.offset * 10
        self._put([marker(self.offset, producer_id, 0, kind, time_ms)])
        self.offset += 1

    @property
    def batches(self) -> list[Batch]:
        return [batch for _, batches in self.segments for batch in batches]

    @property
    def active_base(self) -> int:
        return self.segments[-1][0]

    def write(self, partition: Path) -> None:
        """Write the log files of a partition that does not exist yet."""
        partition.mkdir(parents=True)
        for base, batches in self.segments:
            path = partition / f"{base:020d}.log"
            path.write_bytes(b"".join(batch.data for batch in batches))

    def items(self) -> list[Item]:
        """The records that a reader of committed records gets."""
        return committed(self.batches)

    def survivors(self, end: int | None = None) -> list[Item]:
        """Records that a first compaction of all records below `end` must leave."""
        return survivors(self.batches, self.active_base if end is None else end)


def committed(batches: Sequence[Batch]) -> list[Item]:
    """The records of batches, except aborted transactions."""
    aborted: set[int] = set()
    since: dict[int, list[int]] = {}
    for number, batch in enumerate(batches):
        if batch.marker is not None:
            if batch.marker == ABORT:
                aborted.update(since.get(batch.producer_id, ()))
            since.pop(batch.producer_id, None)
        elif batch.is_transactional:
            since.setdefault(batch.producer_id, []).append(number)
    return [
        item
        for number, batch in enumerate(batches)
        if number not in aborted
        for item in batch.items
    ]


def survivors(batches: Sequence[Batch], end: int) -> list[Item]:
    """The last record of each key below an offset, and all from there on."""
    items = committed(batches)
    last = {item.key: item.offset for item in items if item.offset < end}
    return [
        item
        for item in items
        if item.offset >= end
        or (item.key is not None and last[item.key] == item.offset)
    ]
