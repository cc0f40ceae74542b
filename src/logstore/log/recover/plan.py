"""The decision of opening about a partition: values, without any file."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from logstore.errors import (
    CorruptRecordError,
    LogStoreError,
    UnsupportedError,
    storage_error,
)
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    FOREIGN_PARTITION,
    ID_RENEWED,
    INDEX_REBUILT,
    LEFTOVERS_REMOVED,
    LOST_END,
    LOST_SEGMENT,
    OTHER_WRITER,
    POSITION_ABOVE_END,
    POSITION_LOWERED,
    START_BEYOND_END,
    STATE_DAMAGED,
    SWAP_FINISHED,
    TAIL_KEPT,
    TORN_TAIL,
    UNPUBLISHED,
    UNREADABLE,
    UNSUPPORTED,
)
from logstore.io.checkpoint.verdicts import Verdict
from logstore.log.recover.facts import ReadLog, Refusal
from logstore.log.recover.names import Operations

__all__ = [
    "CASES",
    "LogDamage",
    "OpeningFinding",
    "Plan",
    "PlannedSegment",
    "UnservedTail",
]

# The meaning of a case for the partition.
IS_CUT: Final = "bytes are saved to another file and cut"
IS_REPAIRED: Final = "nothing is lost"
IS_REPORTED: Final = "a file is treated as missing, or is no longer used"
TAKES_NO_APPENDS: Final = "nothing is changed, and the partition takes no appends"

# The thing that is `corrupt`, if not a batch.
EXTRA_BYTES: Final = "extra-bytes"
FOREIGN_SEGMENT: Final = "foreign-segment"
UNREAD_VERDICT: Final = "unread-verdict"

# The labelled cases, in the order of the table in docs/design.md. `make_plan` finds the
# cases of one partition; `other-writer`, `unpublished`, `foreign-partition`,
# `id-renewed`, `position-lowered` and `position-above-end` concern a store
# (`Ownership`, `Publisher`, `PartitionWriters`, `adopt_copy`), and `tail-kept` is the
# outcome of an act that failed (`apply`).
CASES: Final[dict[str, str]] = {
    TORN_TAIL: IS_CUT,
    TAIL_KEPT: TAKES_NO_APPENDS,
    INDEX_REBUILT: IS_REPAIRED,
    SWAP_FINISHED: IS_REPAIRED,
    LEFTOVERS_REMOVED: IS_REPAIRED,
    OTHER_WRITER: IS_REPORTED,
    FOREIGN_PARTITION: TAKES_NO_APPENDS,
    ID_RENEWED: IS_REPORTED,
    STATE_DAMAGED: IS_REPORTED,
    START_BEYOND_END: IS_REPORTED,
    DAMAGE_GONE: IS_REPORTED,
    UNPUBLISHED: IS_CUT,
    POSITION_LOWERED: IS_REPORTED,
    POSITION_ABOVE_END: TAKES_NO_APPENDS,
    LOST_END: TAKES_NO_APPENDS,
    LOST_SEGMENT: TAKES_NO_APPENDS,
    CORRUPT: TAKES_NO_APPENDS,
    UNSUPPORTED: TAKES_NO_APPENDS,
    UNREADABLE: TAKES_NO_APPENDS,
}


class LogDamage(NamedTuple):
    """Why a partition takes no appends.

    Attributes:
        label: of its case.
        path: of the file.
        reason: as in the error's message.
        position, offset: of its beginning.
        refusal: of the system; then this is the only damage.
    """

    label: str
    path: str
    reason: str
    position: int
    offset: int
    refusal: Refusal | None = None

    def error(self) -> LogStoreError:
        if self.refusal is not None:
            return storage_error(self.refusal.error(), self.refusal.action, self.path)
        if self.label == UNSUPPORTED:
            return UnsupportedError(
                f"{self.path} at byte {self.position} (offset {self.offset}): "
                f"{self.reason}",
                path=self.path,
                position=self.position,
                offset=self.offset,
            )
        return CorruptRecordError(
            self.reason, path=self.path, position=self.position, offset=self.offset
        )


class OpeningFinding(NamedTuple):
    """One labelled case that applies.

    Attributes:
        label: in `CASES`.
        name: of the file; "" for the directory.
        message: as a sentence; for bytes that are put aside, only the reason.
        position, size, first_offset: as in `RecoveryAction`.
        base: of the segment concerned; -1: no segment.
        detail: what is `corrupt`; "" a batch.
    """

    label: str
    name: str
    message: str
    position: int = -1
    size: int = 0
    first_offset: int = -1
    base: int = -1
    detail: str = ""


class PlannedSegment(NamedTuple):
    """A segment of the log; fields as in `Segment`."""

    base_offset: int
    size: int
    next_offset: int
    transition: str = ""
    is_lost: bool = False


class UnservedTail(NamedTuple):
    """Bytes after the end of the log in the last segment, which are not served.

    Attributes:
        name: of the file.
        pos, size: of these bytes in the file.
        first_offset: the end of the log.
        reason: why the log ends there.
    """

    name: str
    pos: int
    size: int
    first_offset: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The decision about a partition.

    Attributes:
        findings: the cases that apply, in the order in which they are dealt with.
        verdicts: the recorded verdicts that stay.
        damage: why it takes no appends; None if it does.
        is_end_unknown: the damage hides where the log ends: it cannot be used at all.
        operations: that were interrupted.
        indexed: sealed segments whose indexes are built.
        put_aside: segments that are left over from a roll that was undone.
        segments: of the log, in order.
        start_offset, end_offset: of the log.
        durable_before: everything below it is durable already.
        durable_offset: the same when the plan has been carried out.
        tail: the bytes after the end of the log.
        is_tail_cut: they are cut: the partition takes appends.
        rewritten_from: (position, offset) from which the last segment is made durable;
            None: all of it is.
        active_walk: the walk that knows the state of the last segment at its end; None:
            the own state does.
        is_indexed: the index files of the last segment count, up to `active_walk`.
        is_index_written: the indexes of the last segment of a closed log are written.
        digested: base offsets of the segments that have a digest.
        stale_digests: base offsets of those whose digest is removed.
    """

    findings: tuple[OpeningFinding, ...] = ()
    damage: LogDamage | None = None
    verdicts: tuple[Verdict, ...] = ()
    is_end_unknown: bool = False
    operations: Operations = dataclasses.field(default_factory=Operations)
    indexed: tuple[int, ...] = ()
    put_aside: tuple[int, ...] = ()
    segments: tuple[PlannedSegment, ...] = ()
    start_offset: int = 0
    durable_before: int = 0
    durable_offset: int = 0
    end_offset: int = 0
    tail: UnservedTail | None = None
    is_tail_cut: bool = False
    rewritten_from: tuple[int, int] | None = None
    active_walk: ReadLog | None = None
    is_indexed: bool = False
    is_index_written: bool = False
    digested: frozenset[int] = frozenset()
    stale_digests: frozenset[int] = frozenset()

    @property
    def labels(self) -> list[str]:
        return [finding.label for finding in self.findings]
