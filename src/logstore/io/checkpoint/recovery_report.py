"""What opening a store found and repaired: the labels of the cases, and the report.

docs/design.md has the table of the cases with the same labels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

__all__ = ["RecoveryAction", "RecoveryReport"]

# So many lost segments of a partition are told one by one; the rest together.
LOST_TOLD: Final = 10

# The labels: what was found, or done, at opening.
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
UNPUBLISHED: Final = "unpublished"


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryAction:
    """One thing that opening found or mended.

    Attributes:
        label: which case of the table in docs/design.md.
        topic, partition: where; partition -1 for the whole store.
        path: absolute path of the file.
        position: byte where it begins; -1 where that means nothing.
        bytes: how many bytes were cut, kept or are missing.
        first_offset: first offset concerned; -1 unknown.
        kept_at: where the bytes that were cut are kept, or None.
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
    """What opening had to mend; false when nothing."""

    actions: tuple[RecoveryAction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.actions)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values: ``{"actions": [...]}``, a dict for each action."""
        return {"actions": [dataclasses.asdict(action) for action in self.actions]}
