"""Damage of a partition that Kafka's format itself shows, and damage that it hides.

Without logstore's own state a log is valid if each batch has its checksum, offsets rise
within and across segments, and the log reaches the recovery point; after a clean stop
it ends there, if its last batch could. Damaged bytes that still follow these rules look
like an intact log: this module finds them, independently of the library.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import crc32c

from logstore import Record
from logstore.io.layout import LOG

__all__ = ["Belief", "Bodies", "believable", "has_torn_tail"]


class _Batch(NamedTuple):
    offset: int
    magic: int
    body: bytes  # the bytes that the checksum covers
    size: int


class Bodies:
    """The records of each batch that was written, by the bytes under its checksum."""

    def __init__(self, tree: Mapping[str, bytes | None], truth: list[Record]) -> None:
        self._records: dict[bytes, tuple[int, list[Record]]] = {}
        by_offset = {record.offset: record for record in truth}
        batches = [b for _, _, found, _ in _segments(tree) for b in found]
        ends = [b.offset for b in batches[1:] if b.magic == 2] or []
        before = -1
        for at, batch in enumerate(batches):
            if batch.magic == 2:
                end = ends[at] if at < len(ends) else max(by_offset) + 1
                offsets = range(batch.offset, end)
            else:
                offsets = range(before + 1, batch.offset + 1)
            before = offsets[-1]
            records = [by_offset[o] for o in offsets if o in by_offset]
            self._records[batch.body] = (batch.offset, records)

    def records(self, batch: _Batch) -> list[Record] | None:
        """The records of a batch, for its present offset."""
        known = self._records.get(batch.body)
        if known is None:
            return None
        offset, records = known
        shift = batch.offset - offset
        if batch.magic < 2 and batch.body[1] & 7:
            # The messages inside a wrapper of magic 0 have absolute offsets; so have
            # messages of magic 1 in a wrapper without an offset.
            if batch.magic == 0:
                shift = 0
            elif batch.offset == 0 and records:
                shift = -records[0].offset
        return [record._replace(offset=record.offset + shift) for record in records]


class Belief(NamedTuple):
    """Records that a reader must accept by the rules of the format.

    Attributes:
        records: in order, up to the first broken rule.
        is_broken: a rule is broken: reading must raise an error there.
        hidden: offsets between the one by which a wrapper is looked up and the one of
            its last record: a read that begins there begins after the wrapper.
    """

    records: list[Record]
    is_broken: bool
    hidden: tuple[range, ...]


def believable(
    tree: Mapping[str, bytes | None],
    bodies: Bodies,
    *,
    log_start: int,
    recovery_point: int,
    is_clean: bool,
) -> Belief:
    """The records that a reader must accept by the format."""
    found = _segments(tree)
    # No reader opens segments that are below the start by their names.
    while len(found) > 1 and found[1][0] <= log_start:
        del found[0]
    records: list[Record] = []
    hidden: list[range] = []

    def belief(is_broken: bool) -> Belief:
        visible = [r for r in records if r.offset >= log_start]
        return Belief(visible, is_broken, tuple(hidden))

    end = last = -1
    for slot, (base, after, batches, rest) in enumerate(found):
        is_last = slot + 1 == len(found)
        if end > base:
            return belief(True)
        end = max(end, base)
        for batch in batches:
            more = bodies.records(batch)
            if not more:
                return belief(True)
            inner, own = more[-1].offset, batch.offset
            if inner != own and batch.magic < 2:
                hidden.append(range(min(inner, own) + 1, max(inner, own) + 1))
            if more[0].offset < end or batch.offset <= last:
                # Out of order: a torn tail, if there can be one.
                rest = b"out of order"
                break
            if 0 <= after <= max(more[-1].offset, batch.offset):
                records += [record for record in more if record.offset < after]
                return belief(True)
            end, last = more[-1].offset + 1, batch.offset
            records += more
        if rest and (is_clean or not is_last):
            return belief(True)
        if is_last and is_clean and batches and 0 < recovery_point < end:
            last_one = bodies.records(batches[-1]) or records
            del records[-len(last_one) :]
            begin = max(base, records[-1].offset + 1) if records else base
            if begin + last_one[-1].offset - last_one[0].offset < recovery_point:
                return belief(True)
            records += last_one
    return belief(end < recovery_point)


def has_torn_tail(tree: Mapping[str, bytes | None]) -> bool:
    """Whether there are bytes after the valid batches of the last segment."""
    found = _segments(tree)
    return bool(found) and bool(found[-1][3])


def _segments(
    tree: Mapping[str, bytes | None],
) -> list[tuple[int, int, list[_Batch], bytes]]:
    """(base offset, that of the next or -1, valid batches, bytes after them)."""
    logs = sorted(path for path in tree if path.endswith(LOG))
    bases = [int(path.rpartition("/")[2][: -len(LOG)]) for path in logs]
    return [
        (base, after, *_sound_batches(tree[path] or b""))
        for path, base, after in zip(logs, bases, [*bases[1:], -1], strict=True)
    ]


def _sound_batches(data: bytes) -> tuple[list[_Batch], bytes]:
    batches = []
    pos = 0
    while pos + 26 <= len(data):
        batch = _sound_batch(data, pos)
        if batch is None:
            break
        batches.append(batch)
        pos += batch.size
    return batches, data[pos:]


def _sound_batch(data: bytes, pos: int) -> _Batch | None:
    offset = int.from_bytes(data[pos : pos + 8], "big", signed=True)
    length = int.from_bytes(data[pos + 8 : pos + 12], "big", signed=True)
    end = pos + 12 + length
    magic = data[pos + 16]
    if not 14 <= length <= len(data) - pos - 12 or offset < 0 or magic > 2:
        return None
    if magic == 2:
        if length < 49:
            return None
        crc, body = data[pos + 17 : pos + 21], data[pos + 21 : end]
        is_intact = int.from_bytes(crc, "big") == crc32c.crc32c(body)
    else:
        crc, body = data[pos + 12 : pos + 16], data[pos + 16 : end]
        is_intact = int.from_bytes(crc, "big") == zlib.crc32(body)
    return _Batch(offset, magic, body, 12 + length) if is_intact else None
