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
    "SEVERITIES",
    "WARNS",
    "Finding",
]

# Judges: the contents of a directory, what opening it does, what a broker does with it,
# what it stands on.
CONTENTS: Final = "contents"
OPENING: Final = "opening"
BROKER: Final = "broker"
ENVIRONMENT: Final = "environment"

# Severities. Of the contents and the environment only `ok`, `note` and `problem`.
OK: Final = "ok"
NOTE: Final = "note"
WARNS: Final = "warns"
CHANGES: Final = "changes"
PROBLEM: Final = "problem"
LOSES: Final = "loses"
REFUSES: Final = "refuses"
# From the least to the worst.
SEVERITIES: Final = (OK, NOTE, WARNS, CHANGES, PROBLEM, LOSES, REFUSES)
_PROBLEMS: Final = frozenset((PROBLEM, LOSES, REFUSES))

# Kinds of the contents that are damage to records.
DAMAGED_BATCH: Final = "damaged-batch"
PARTIAL_BATCH: Final = "partial-batch"
ZEROS: Final = "zeros"
OFFSETS: Final = "offsets"
LOST_BYTES: Final = "lost-bytes"
EXTRA_BYTES: Final = "extra-bytes"
LOST_SEGMENT: Final = "lost-segment"
DIGEST: Final = "digest"
START_BEYOND_END: Final = "start-beyond-end"
# Kinds that are damage to records if they are about a log.
NOT_REGULAR: Final = "not-a-regular-file"
UNREADABLE: Final = "unreadable"
UNSUPPORTED: Final = "unsupported"
# Kinds about what is derived from a log, or stands beside it.
OFFSET_INDEX: Final = "offset-index"
TIME_INDEX_FAULT: Final = "time-index"
TXN_INDEX_FAULT: Final = "transaction-index"
PRODUCER_SNAPSHOT: Final = "producer-snapshot"
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"
GROUP: Final = "group"
# Kinds that are never a problem (those above are notes, too, if opening would repair
# the fault).
TORN_TAIL: Final = "torn-tail"
ZERO_TAIL: Final = "zero-tail"
LEFTOVER: Final = "leftover"
KNOWN_DAMAGE: Final = "known-damage"
MISSING_INDEX: Final = "missing-index"
ORPHAN: Final = "orphan"
UNCLEAN_STOP: Final = "unclean-stop"
IN_USE: Final = "in-use"
OTHER_WRITER: Final = "other-writer"
UNPUBLISHED: Final = "unpublished"
FOREIGN: Final = "foreign"

_OF_RECORDS: Final = frozenset(
    (
        DAMAGED_BATCH, PARTIAL_BATCH, ZEROS, OFFSETS, LOST_BYTES, EXTRA_BYTES,
        LOST_SEGMENT, DIGEST, START_BEYOND_END,
    )
)  # fmt: skip
_OF_RECORDS_IN_A_LOG: Final = frozenset((NOT_REGULAR, UNREADABLE, UNSUPPORTED))


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a judge says about a directory.

    Attributes:
        judge: who says it: ``contents``, ``opening``, ``broker``, ``environment``.
        kind: its subject, in a word.
        severity: how bad it is for this judge (`SEVERITIES`).
        path: the absolute path that it is about.
        message: the finding, as a sentence.
        position: byte where it begins; None if a position has no meaning.
        first_offset, last_offset: the offsets that cannot be read because of it,
            inclusive; None if there are none or they are unknown.
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
        if not self.is_problem:
            return False
        if self.kind in _OF_RECORDS:
            return True
        name = self.path.rpartition("/")[2]
        parsed = parse_segment_file(name)
        is_log = parsed is not None and parsed.suffix == LOG
        is_log |= parse_partition_directory(name) is not None
        return is_log and self.kind in _OF_RECORDS_IN_A_LOG
