"""The facts about a partition from which opening decides: values, without any file.

`survey` collects them. It reads the answer to a question when the decision asks it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.verdicts import Verdict

__all__ = [
    "Facts",
    "LastBatch",
    "MissingFactError",
    "Question",
    "ReadIndexes",
    "ReadLast",
    "ReadLog",
    "Refusal",
    "Standing",
    "WalkFacts",
]


class Refusal(NamedTuple):
    """The system did not let us read a file.

    Attributes:
        action: what was tried: "open" or "read".
        errno: of the `OSError`; None without one.
        text: of the `OSError`.
    """

    action: str
    errno: int | None
    text: str

    @classmethod
    def of(cls, error: OSError, action: str) -> Refusal:
        return cls(action, error.errno, error.strerror or str(error))

    def error(self) -> OSError:
        if self.errno is None:
            return OSError(self.text)
        return OSError(self.errno, self.text)


class LastBatch(NamedTuple):
    """The last batch of a segment.

    Attributes:
        pos, end: bytes of the file.
        first, last: its offsets, inclusive.
        before: last offset of the batch before; for the first batch, the offset before
            the segment.
    """

    pos: int
    end: int
    first: int
    last: int
    before: int

    def has_moved(self, end: int) -> bool:
        """Whether it has other offsets than when the log was closed, at offset `end`:
        it ends beyond, and as many offsets are free between the batch before and the
        end. No checksum covers the offset."""
        return self.last >= end and self.before + 1 + self.last - self.first < end


class WalkFacts(NamedTuple):
    """How far the batches of a `.log` file are valid.

    Attributes:
        size: bytes of the file, or of the part that the log may have at most.
        pos: where the valid batches end.
        last_offset: of the last valid batch; without one, the offset before.
        batches: how many there are.
        reason: why they end before `size`.
        is_unsupported: because of data that is not understood.
        is_unknown_magic: because of a magic above 2.
        is_no_log: the file does not begin as a log does.
        has_more: valid batches follow after the first invalid bytes (looked for only
            if `needs_more`), and are not left over from an unfinished call.
        is_misplaced: the batch at `pos` is intact; only its offset does not follow
            the ones before, or is too far from the segment's name.
        readable_end: the offset up to which a reader reads nevertheless, or, if it
            leaves out damage, after that; -1: up to `pos`.
        moved: the last batch, if it had other offsets at the clean stop whose recovery
            point is known (without an own state); the other fields take it for right.
        refusal: the file could not be read; the other fields mean nothing then.
    """

    size: int
    pos: int
    last_offset: int
    batches: int = 1
    reason: str = ""
    is_unsupported: bool = False
    is_unknown_magic: bool = False
    is_no_log: bool = False
    has_more: bool = False
    is_misplaced: bool = False
    readable_end: int = -1
    moved: LastBatch | None = None
    refusal: Refusal | None = None

    @property
    def is_whole(self) -> bool:
        return self.refusal is None and self.pos == self.size


class ReadLog(NamedTuple):
    """A question: which batches of a segment are valid?

    Attributes:
        base: its base offset.
        is_from_state: walk from the durable point of the own state, else from byte 0.
        is_last: it is the last segment: also check what only a reader can check.
        end: where the log ends at the latest; -1: at the end of the file.
        is_end: only from the last entry of its index on.
    """

    base: int
    is_from_state: bool = False
    is_last: bool = False
    end: int = -1
    is_end: bool = False


class ReadIndexes(NamedTuple):
    """A question: are the index files of the last segment as the own state says?

    Attributes:
        base: its base offset.
        is_lost: its log is missing.
    """

    base: int
    is_lost: bool = False


class ReadLast(NamedTuple):
    """A question: which batch of the active segment ends at the durable point of the
    own state? Only the heads of the batches right before it are read.

    Attributes:
        base: its base offset.
    """

    base: int


class Standing(NamedTuple):
    """Result of checking a recorded verdict against the bytes.

    Attributes:
        is_there: the damage is still there, unchanged, or that is unknown.
        message: why not: as a sentence; "" if it is.
    """

    verdict: Verdict
    is_there: bool = True
    message: str = ""


Question: TypeAlias = ReadLog | ReadIndexes | ReadLast


class MissingFactError(Exception):
    """A decision depends on the answer to a question."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a partition.

    Attributes:
        path: of its directory, for messages.
        metadata: the facts from outside its log files.
        is_writable: it is opened for writing: then more is read, and repaired.
        names: of all its files.
        swap_ends: base offset -> next offset of the logs of a committed swap.
        sizes: base offset -> size of each `.log` file that may be in use.
        walks, indexes, lasts: the answers to questions. In the last one an offset of -1
            means: not known, but not before the position.
        standings: of the verdicts that were recorded.
    """

    path: str
    metadata: PartitionMetadata
    is_writable: bool
    names: frozenset[str]
    swap_ends: Mapping[int, int | Refusal] = dataclasses.field(default_factory=dict)
    sizes: Mapping[int, int | Refusal] = dataclasses.field(default_factory=dict)
    walks: Mapping[ReadLog, WalkFacts] = dataclasses.field(default_factory=dict)
    indexes: Mapping[ReadIndexes, bool] = dataclasses.field(default_factory=dict)
    lasts: Mapping[ReadLast, LogTail] = dataclasses.field(default_factory=dict)
    standings: tuple[Standing, ...] = ()

    def walk(self, question: ReadLog) -> WalkFacts:
        try:
            return self.walks[question]
        except KeyError:
            raise MissingFactError(question) from None

    def are_indexed(self, question: ReadIndexes) -> bool:
        try:
            return self.indexes[question]
        except KeyError:
            raise MissingFactError(question) from None

    def last_batch(self, question: ReadLast) -> LogTail:
        try:
            return self.lasts[question]
        except KeyError:
            raise MissingFactError(question) from None
