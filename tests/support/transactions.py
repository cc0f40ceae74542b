"""Transactions of several producers: their batches and markers, and what is true."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import crc32c

from logstore.index import TxnEntry
from support.hostile import varint

__all__ = ["Transactions", "batch", "marker"]


def batch(
    base: int,
    records: list[tuple[bytes, bytes]],
    producer: int,
    *,
    control: bool,
    epoch: int = 0,
    sequence: int | None = None,
    timestamp_ms: int = 1000,
    headers: list[bytes] | None = None,
    transactional: bool | None = None,
) -> bytes:
    """A batch of magic 2; of a transaction, by default if it has a producer. Each
    record has headers of these names, without values."""
    area = b""
    for at, (key, value) in enumerate(records):
        body = b"\0" + varint(0) + varint(at) + varint(len(key)) + key
        body += varint(len(value)) + value + varint(len(headers or ()))
        body += b"".join(varint(len(h)) + h + varint(-1) for h in headers or ())
        area += varint(len(body)) + body
    is_transactional = producer >= 0 if transactional is None else transactional
    attributes = (0x10 if is_transactional else 0) | (0x20 if control else 0)
    times, count = (timestamp_ms, timestamp_ms), len(records)
    first = base if sequence is None else sequence
    head = struct.pack(">hiqq", attributes, count - 1, *times)
    head += struct.pack(">qhii", producer, epoch, -1 if control else first, count)
    crc = struct.pack(">I", crc32c.crc32c(head + area))
    rest = struct.pack(">ib", 0, 2) + crc + head + area
    return struct.pack(">qi", base, len(rest)) + rest


def marker(
    base: int,
    producer: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator: int = 0,
    timestamp_ms: int = 1000,
) -> bytes:
    """The batch that ends a transaction."""
    key = struct.pack(">hh", 0, int(commit))
    records = [(key, struct.pack(">hi", 0, coordinator))]
    return batch(
        base, records, producer, control=True, epoch=epoch, timestamp_ms=timestamp_ms
    )


@dataclass
class Transactions:
    """Batches as the producers of a broker's log send them, one after the other.

    Attributes:
        end: of the log.
        values: of all records, by offset.
        committed: the offsets of the records of committed transactions.
        aborted: the entries of the transaction index, in order.
        open: the offsets of each open transaction, by producer.
    """

    rng: random.Random
    timestamp_ms: int = 1000
    producers: int = 3
    end: int = 0
    values: dict[int, bytes] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    aborted: list[TxnEntry] = field(default_factory=list)
    open: dict[int, list[int]] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min((held[0] for held in self.open.values()), default=self.end)

    @property
    def readable(self) -> list[int]:
        """The offsets that a reader of committed records gets."""
        return sorted(one for one in self.committed if one < self.stable)

    def next_batch(self) -> bytes:
        """Next batch of one of the producers, or of its coordinator."""
        producer = self.rng.randrange(self.producers)
        if producer in self.open and self.rng.random() < 0.4:
            return self.ended(producer, commit=self.rng.random() < 0.5)
        return self.sent(producer, self.rng.randrange(1, 4))

    def sent(self, producer: int, count: int) -> bytes:
        """A batch of records."""
        offsets = range(self.end, self.end + count)
        rows = [(b"k", b"%d of %d" % (offset, producer)) for offset in offsets]
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + count
        self.open.setdefault(producer, []).extend(offsets)
        self.values.update(zip(offsets, (value for _, value in rows), strict=True))
        made = batch(
            self.end,
            rows,
            producer,
            control=False,
            sequence=sequence,
            timestamp_ms=self.timestamp_ms,
        )
        self.end += count
        return made

    def ended(self, producer: int, *, commit: bool) -> bytes:
        """The marker that ends the transaction of a producer."""
        made = marker(self.end, producer, commit=commit, timestamp_ms=self.timestamp_ms)
        held, at = self.open.pop(producer, []), self.end
        self.end += 1
        if commit:
            self.committed.update(held)
        elif held:
            entry = TxnEntry(0, producer, held[0], at, self.stable)
            self.aborted.append(entry)
        return made
