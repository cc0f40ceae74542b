"""The result of `repair`, or of its dry run: labels, actions and report.

docs/design.md ("Repair") has the table of cases with the same labels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from logstore.maintenance.verify import VerifyProblem

# Changes to the bytes of a log.
CUT: Final = "cut"
SKIPPED: Final = "skipped"
REMOVED: Final = "segment-removed"
RENAMED: Final = "segment-renamed"
LOST: Final = "lost-accepted"
END_KEPT: Final = "end-kept"
# Changes to other files.
INDEX_BUILT: Final = "index-rebuilt"
STATE_BUILT: Final = "state-rebuilt"
PUT_ASIDE: Final = "put-aside"
TIDIED: Final = "tidied"
VERDICT_GONE: Final = "damage-gone"
# Parts that were not changed.
LEFT_ALONE: Final = "left-alone"
LEFT_OUT: Final = "left-out"


@dataclasses.dataclass(frozen=True, slots=True)
class RepairAction:
    """A change that `repair` made (with ``dry_run``: would make), or a part left alone.

    Attributes:
        label: which case of the table in docs/design.md: ``cut``, ``skipped``,
            ``segment-removed``, ``segment-renamed``, ``lost-accepted``, ``end-kept``,
            ``index-rebuilt``, ``state-rebuilt``, ``put-aside``, ``tidied``,
            ``damage-gone``, ``left-alone``, ``left-out``.
        path: absolute path of the file.
        position: its first byte; None if a position has no meaning.
        bytes: how many bytes were taken out of the log.
        first_offset, last_offset: the offsets that are not in the log any more, or not
            served, inclusive; None for no offsets or unknown ones.
        kept_at: the file that keeps the bytes, or None.
        message: the same as a sentence.
    """

    label: str
    path: str
    position: int | None
    bytes: int
    first_offset: int | None
    last_offset: int | None
    kept_at: str | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class RepairReport:
    """The changes that `repair` made, and the problems that remain.

    Attributes:
        actions: all changes made; with `dry_run` all that would be made.
        remaining: the problems that `verify` (with ``deep``) finds now. With `dry_run`
            nothing was repaired, so these are all.
        mode: ``cut`` or ``skip``; None: the log itself was only examined.
        dry_run: whether nothing was changed.
        quarantine: the directories that were made for the bytes taken out.
    """

    actions: tuple[RepairAction, ...] = ()
    remaining: tuple[VerifyProblem, ...] = ()
    mode: str | None = "cut"
    dry_run: bool = False
    quarantine: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is left to repair."""
        return not self.remaining

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}
