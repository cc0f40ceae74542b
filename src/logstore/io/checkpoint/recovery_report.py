"""The findings and repairs of opening a store: the labels of the cases, and the report.

The table of the cases in docs/design.md has the same labels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

__all__ = ["RecoveryAction", "RecoveryReport"]

# The number of lost segments of a partition reported one by one; the rest together.
LOST_REPORTED_MAX: Final = 10

# The labels: what opening found or did.
TORN_TAIL: Final = "torn-tail"
INDEX_REBUILT: Final = "index-rebuilt"
SWAP_FINISHED: Final = "swap-finished"
LEFTOVERS_REMOVED: Final = "leftovers-removed"
OTHER_WRITER: Final = "other-writer"
STATE_DAMAGED: Final = "state-damaged"
LOST_END: Final = "lost-end"
LOST_SEGMENT: Final = "lost-segment"
CORRUPT: Final = "corrupt"
UNSUPPORTED: Final = "unsupported"
UNREADABLE: Final = "unreadable"
TAIL_KEPT: Final = "tail-kept"
DAMAGE_GONE: Final = "damage-gone"
START_BEYOND_END: Final = "start-beyond-end"
UNPUBLISHED: Final = "unpublished"
FOREIGN_PARTITION: Final = "foreign-partition"
ID_RENEWED: Final = "id-renewed"
POSITION_LOWERED: Final = "position-lowered"
POSITION_ABOVE_END: Final = "position-above-end"


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryAction:
    """One thing that opening found or repaired.

    Attributes:
        label: which case of the table in docs/design.md.
        topic, partition: its place; partition -1 for the whole store.
        path: absolute path of the file.
        position: its first byte; -1 if that has no meaning.
        bytes: number of bytes that were cut or kept, or are missing.
        first_offset: first offset concerned; -1 if unknown.
        kept_at: the file that keeps the bytes that were cut, or None.
        message: the same as a sentence.
    """

    label: str
    topic: str
    partition: int
    path: str
    position: int
    bytes: int
    first_offset: int
    kept_at: str | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The repairs of opening a store; false if nothing was repaired."""

    actions: tuple[RecoveryAction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.actions)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values: ``{"actions": [...]}``, a dict for each action."""
        return {"actions": [dataclasses.asdict(action) for action in self.actions]}
