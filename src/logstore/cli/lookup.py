"""Where a time begins in a partition that may be damaged.

A time is the first record at or after it. Of damaged records no time is known: the
first one that can be read is taken, and the damage before it is given with it, since it
may have held an earlier one. Damage that is older, by the largest time of a segment or
the entries of a time index, is not included.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

import logstore


class Beginning(NamedTuple):
    """Where a time begins.

    Attributes:
        offset: of the first readable record at or after it; the end of the log if no
            record is that late.
        damage: damage before that offset whose times are unknown.
        is_unsure: no older record lies between the damage and that offset, so the
            records of that time may begin in the damage.
    """

    offset: int
    damage: tuple[logstore.types.Damaged, ...] = ()
    is_unsure: bool = False


def beginning(partition: logstore.Partition, when: datetime.datetime) -> Beginning:
    """Look up a time, over damage.

    Raises:
        LogStoreError: the partition cannot be read, for another reason than damage.
    """
    # Before the lookup: records appended during it may be at or after the time.
    end = partition.end_offset
    met: list[logstore.types.Damaged] = []

    def leave_out(damaged: logstore.types.Damaged) -> bool:
        met.append(damaged)
        return isinstance(damaged.error, logstore.CorruptRecordError)

    records = partition.read(when, on_corruption=leave_out, limit=1)
    offset = next((record.offset for record in records), end)
    damage = tuple(damaged for damaged in met if damaged.first < offset)
    start = offset
    if damage and damage[-1].next_offset is not None:
        start = min(damage[-1].next_offset, offset)
    older = partition.read(start, offset, on_corruption="skip", limit=1)
    return Beginning(offset, damage, bool(damage) and next(older, None) is None)
