"""A finding about a directory, and the one list of the kinds of damage.

Each tool chooses judges (`logstore.maintenance`), and shows their findings in its own
public type. Whether records are concerned is decided here, for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from logstore.io.layout import LOG, parse_partition_directory, parse_segment_file

__all__ = [
    "CHANGES",
    "LOSES",
    "NOTE",
    "OK",
    "PROBLEM",
    "REFUSES",
    "WARNS",
    "Finding",
]

# Judges: the contents of a directory, what opening it does, what a broker does with it,
# what it stands on.
CONTENTS: Final = "contents"
OPENING: Final = "opening"
BROKER: Final = "broker"
ENVIRONMENT: Final = "environment"

# Severities, from the least to the worst. Of the contents and the environment, only
# `ok`, `note` and `problem`.
OK: Final = "ok"
NOTE: Final = "note"
WARNS: Final = "warns"
CHANGES: Final = "changes"
PROBLEM: Final = "problem"
LOSES: Final = "loses"
REFUSES: Final = "refuses"
_PROBLEMS: Final = frozenset((PROBLEM, LOSES, REFUSES))

# Kinds of the contents.
DAMAGED_BATCH: Final = "damaged-batch"
PARTIAL_BATCH: Final = "partial-batch"
ZEROS: Final = "zeros"
OFFSETS: Final = "offsets"
EXTRA_BYTES: Final = "extra-bytes"
START_BEYOND_END: Final = "start-beyond-end"
LOST_BYTES: Final = "lost-bytes"
LOST_SEGMENT: Final = "lost-segment"
DIGEST: Final = "digest"
NOT_REGULAR: Final = "not-a-regular-file"
UNREADABLE: Final = "unreadable"
UNSUPPORTED: Final = "unsupported"
OFFSET_INDEX: Final = "offset-index"
TIME_INDEX_FAULT: Final = "time-index"
MISSING_INDEX: Final = "missing-index"
TXN_INDEX_FAULT: Final = "transaction-index"
PRODUCER_SNAPSHOT: Final = "producer-snapshot"
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"
TORN_TAIL: Final = "torn-tail"
ZERO_TAIL: Final = "zero-tail"
GROUP: Final = "group"
# Kinds that are never a problem.
LEFTOVER: Final = "leftover"
KNOWN_DAMAGE: Final = "known-damage"
ORPHAN: Final = "orphan"
UNCLEAN_STOP: Final = "unclean-stop"
IN_USE: Final = "in-use"
OTHER_WRITER: Final = "other-writer"
UNPUBLISHED: Final = "unpublished"
FOREIGN: Final = "foreign"

# Actions of `repair` on a kind: it takes bytes out of the log, cuts an end that opening
# cuts, too, does without lost bytes, leaves the partition alone, builds a file from the
# log, or puts a file aside.
TAKE_OUT: Final = "take-out"
CUT: Final = "cut"
DO_WITHOUT: Final = "do-without"
LEAVE: Final = "leave"
BUILD: Final = "build"
PUT_ASIDE: Final = "put-aside"

# Whether a problem is damage to records (None: if the file is a log), and what `repair`
# does about it. Any other kind is about neither.
_KINDS: Final[Mapping[str, tuple[bool | None, str]]] = {
    DAMAGED_BATCH: (True, TAKE_OUT),
    PARTIAL_BATCH: (True, TAKE_OUT),
    ZEROS: (True, TAKE_OUT),
    OFFSETS: (True, TAKE_OUT),
    EXTRA_BYTES: (True, TAKE_OUT),
    START_BEYOND_END: (True, TAKE_OUT),
    LOST_BYTES: (True, DO_WITHOUT),
    LOST_SEGMENT: (True, DO_WITHOUT),
    DIGEST: (True, PUT_ASIDE),
    NOT_REGULAR: (None, LEAVE),
    UNREADABLE: (None, LEAVE),
    UNSUPPORTED: (None, ""),  # of a log, the walk decides
    OFFSET_INDEX: (False, BUILD),
    TIME_INDEX_FAULT: (False, BUILD),
    MISSING_INDEX: (False, BUILD),
    TXN_INDEX_FAULT: (False, PUT_ASIDE),
    PRODUCER_SNAPSHOT: (False, PUT_ASIDE),
    CHECKPOINT: (False, PUT_ASIDE),
    STATE: (False, PUT_ASIDE),
    TORN_TAIL: (False, CUT),
    ZERO_TAIL: (False, CUT),
}
_NEITHER: Final = False, ""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a judge says about a directory.

    Attributes:
        judge: its source: ``contents``, ``opening``, ``broker``, ``environment``.
        kind: its subject, in a word.
        severity: how bad it is for this judge.
        path: the absolute path that it is about.
        message: the finding, as a sentence.
        position: its first byte; None if a position has no meaning.
        first_offset, last_offset: the offsets that cannot be read because of it,
            inclusive; None for no offsets or unknown ones.
        values: the same as plain values.
    """

    judge: str
    kind: str
    severity: str
    path: str
    message: str
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    values: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, compare=False, hash=False
    )

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong, records are lost, or it is refused."""
        return self.severity in _PROBLEMS

    @property
    def touches_records(self) -> bool:
        """Whether it is damage to records (or may be: a log that cannot be read)."""
        answer, _ = _KINDS.get(self.kind, _NEITHER)
        if not self.is_problem or answer is not None:
            return self.is_problem and answer is True
        name = self.path.rpartition("/")[2]
        parsed = parse_segment_file(name)
        is_log = parsed is not None and parsed.suffix == LOG
        return is_log or parse_partition_directory(name) is not None

    @property
    def remedy(self) -> str:
        """Action of `repair` on it; "" for none."""
        return _KINDS.get(self.kind, _NEITHER)[1]
