"""Decides how a log has changed between two looks: from values, without any file.

Logstore's own writer records each cut and each compaction. Of the log of another
program, or after a backup was put back, only the files, the bytes before the former
ends and the leader epochs show it. Between two looks a log may be compacted, cut and
grow: each is decided separately. The cases are listed in the table in docs/design.md,
"What a reader sees of a log that changes".
"""

from __future__ import annotations

import bisect
import enum
import operator
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.log.follow.observed import (
    ChangeStamps,
    End,
    Names,
    Observed,
    SeenFile,
)
from logstore.log.recover import RecoveredLog

__all__ = [
    "CASES",
    "Change",
    "Depth",
    "Which",
    "decide",
    "depth_of",
    "goes_on",
    "is_other_log",
]


_BASE = operator.attrgetter("base")

OTHER_DIRECTORY: Final = "other-directory"
OTHER_ID: Final = "other-id"
OLDER_STATE: Final = "older-state"
SAME_DAMAGE: Final = "same-damage"
CUT: Final = "cut"
COMPACTED: Final = "compacted"
NEW_WRITER: Final = "new-writer"
OTHER_FILE: Final = "other-file"
OTHER_BYTES: Final = "other-bytes"
LOST_FILES: Final = "lost-files"
EPOCHS: Final = "epochs"

# The labelled cases, in the order of the table in docs/design.md.
CASES: Final = (
    OTHER_DIRECTORY,
    OTHER_ID,
    OLDER_STATE,
    SAME_DAMAGE,
    CUT,
    COMPACTED,
    NEW_WRITER,
    OTHER_FILE,
    OTHER_BYTES,
    LOST_FILES,
    EPOCHS,
)


class Which(enum.Enum):
    """The log that is there now, compared with the one before."""

    SAME = "same"
    OTHER = "other"
    # More facts are needed: a deeper look.
    UNKNOWN = "unknown"


class Depth(enum.Enum):
    """How deep a look goes."""

    NOTHING = 0
    # The end of the last file.
    END = 1
    # The names in the directory, and the state.
    NAMES = 2
    # Every file: the log is loaded again, and `decide` is asked.
    FILES = 3


class Change(NamedTuple):
    """How a log has changed.

    Attributes:
        log: whether it is the log of before.
        cut_to: everything below is unchanged; `NO_CUT`: nothing was cut off.
        start, end: of the log now.
        replaced: base offsets of the former segments through whose files nothing more
            may be read. (Reads continue in segments that logstore itself compacted.)
        why: the labels of the cases that apply.
    """

    log: Which
    cut_to: int
    start: int
    end: int
    replaced: frozenset[int] = frozenset()
    why: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether reads under way must find out how they continue."""
        return bool(self.log is not Which.SAME or self.replaced or self.is_cut)

    @property
    def is_cut(self) -> bool:
        return self.cut_to != NO_CUT


class _Fate(enum.Enum):
    """How the file of a segment has changed."""

    SAME = 0
    DELETED = 1  # at the start of the log: reads under way continue
    MISSING = 2
    REPLACED = 3
    REWRITTEN = 4
    RETURNED = 5  # it was missing, and nothing shows that it is another one


def decide(before: Observed, now: Observed) -> Change:
    """How a log has changed since an earlier look."""
    is_own = not (
        before.is_foreign
        or now.is_foreign
        or now.cuts.has_return_since(before.cuts.serial)
    )
    why = _why_other(before, now, is_own=is_own)
    if why:
        everything = frozenset(file.base for file in before.files)
        return Change(Which.OTHER, NO_CUT, now.start, now.end, everything, (why,))
    if before.damage and _has_only_grown(before, now):
        # A reader that met the damage and asks again gets the same error, however the
        # log grows after it.
        return Change(Which.SAME, NO_CUT, now.start, now.end, why=(SAME_DAMAGE,))
    if now.bytes is None:
        return Change(Which.UNKNOWN, NO_CUT, now.start, now.end)
    cut_to, replaced, reasons = (_own if is_own else _foreign)(before, now)
    # A file that was cut may have grown again.
    replaced |= {file.base for file in before.files if file.end > cut_to}
    return Change(Which.SAME, cut_to, now.start, now.end, frozenset(replaced), reasons)


def _has_only_grown(before: Observed, now: Observed) -> bool:
    """Whether nothing has changed, except that files may have more bytes at the end."""
    pairs = zip(before.files, now.files, strict=False)
    files = tuple(
        now._replace(size=was.size) for was, now in pairs if was.size <= now.size
    )
    return len(before.files) == len(now.files) and before == now._replace(
        ends=before.ends, files=files
    )


def _why_other(before: Observed, now: Observed, *, is_own: bool) -> str:
    """The reason why another log is in the place of this one; "": it is the same log.

    Args:
        is_own: logstore alone has written it since the look before.
    """
    if now.place != before.place:
        return OTHER_DIRECTORY
    # With an unknown id, it may be the same log.
    if before.log_id and now.log_id and before.log_id != now.log_id:
        return OTHER_ID
    if not is_own:
        # Records below a start that only logstore's state has are there again.
        return ""
    # These fall only if an older state was put back.
    if now.cuts.serial < before.cuts.serial or now.start < before.start:
        return OLDER_STATE
    cut_to = now.cuts.lowest_since(before.cuts.serial)
    return OLDER_STATE if now.durable < min(before.durable, cut_to) else ""


def _fates(
    before: Observed, now: Observed
) -> Iterator[tuple[SeenFile, SeenFile | None, _Fate]]:
    """The former files: (file, the one with the same name now, its fate)."""
    assert now.bytes is not None
    by_base = {file.base: file for file in now.files}
    first = min(by_base, default=now.start)
    # The end of an empty file is unchanged, whatever is below it.
    newest = next((end for end in reversed(before.ends) if end.size), None)
    rewritten = -1
    if newest is not None and newest not in now.bytes.standing:
        rewritten = newest.base
    for file in before.files:
        same = by_base.get(file.base)
        is_shorter = same is not None and same.size < file.size
        is_less = is_shorter or file.base == rewritten
        if same is None:
            fate = _Fate.DELETED if file.base < first else _Fate.MISSING
        elif same.inode == file.inode or file.base in now.bytes.copies:
            fate = _Fate.REWRITTEN if is_less else _Fate.SAME
        elif same.inode < 0:
            fate = _Fate.MISSING
        elif file.inode < 0:
            fate = _Fate.REWRITTEN if is_less else _Fate.RETURNED
        else:
            fate = _Fate.REPLACED
        yield file, same, fate


def _stands(before: Observed, now: Observed, upto: int = NO_CUT) -> int:
    """The highest former end of the log, up to an offset, that is still in it; 0 if no
    end is."""
    assert now.bytes is not None
    known = (end for end in before.ends if end.size)
    ends = (end.offset for end in known if end in now.bytes.standing)
    return max((offset for offset in ends if offset <= upto), default=0)


def _own(before: Observed, now: Observed) -> tuple[int, set[int], tuple[str, ...]]:
    """(where logstore's own log was cut, the files that are others, why)."""
    cut_to = now.cuts.lowest_since(before.cuts.serial)
    why = [CUT] if cut_to != NO_CUT else []
    is_compacted = now.compactions != before.compactions
    is_new_writer = now.writer != before.writer
    # If the log has lost records, reading reports it.
    is_hurt = bool(now.damage) and not is_new_writer
    last = now.files[-1].base if now.files else -1
    kept, replaced, unlike = set[int](), set[int](), list[int]()
    assert now.bytes is not None
    for file, _, fate in _fates(before, now):
        if is_compacted and file.base != last and fate is not _Fate.SAME:
            # Replaced by another with the same offsets, or put into the one before.
            continue
        end = End(file.end, file.base, file.size)
        is_end_there = bool(file.size) and end in now.bytes.standing
        if fate is not _Fate.REPLACED or is_end_there:
            kept.add(file.base)
        if fate is _Fate.REPLACED and is_end_there:
            # Counts as a copy: the former file is not open any more, to compare it.
            replaced.add(file.base)
            continue
        if fate is _Fate.REPLACED and file.size:
            # Put back from a backup: logstore itself replaces a file by a copy only.
            why.append(OTHER_FILE)
            cut_to = min(cut_to, file.base)
        if fate in (_Fate.MISSING, _Fate.REPLACED, _Fate.REWRITTEN):
            unlike.append(file.base)
            replaced.add(file.base)
        elif is_new_writer or fate is _Fate.RETURNED:
            # It may have been another file in between, which a backup has undone.
            replaced.add(file.base)
    if not is_hurt:
        # A backup was put back, perhaps over the same files, and has grown again.
        upto = cut_to
        known = (end for end in before.ends if end.size and end.base in kept)
        ends = [end.offset for end in known if end.offset <= upto]
        highest, stands = max(ends, default=0), _stands(before, now, upto)
        # Its files below the other one may have been refilled to their former ends.
        is_backup = is_new_writer and OTHER_FILE in why
        if now.files and (is_backup or highest > max(now.files[0].base, stands)):
            why.append(OTHER_BYTES)
            cut_to = stands
        elif cut_to == NO_CUT and unlike and not now.damage:
            why.append(LOST_FILES)
            cut_to = max(unlike[0], stands)
    why += [COMPACTED] * is_compacted + [NEW_WRITER] * is_new_writer
    return cut_to, replaced, tuple(dict.fromkeys(why))


def _foreign(before: Observed, now: Observed) -> tuple[int, set[int], tuple[str, ...]]:
    """The same for a log that another program writes, or has written."""
    told = LeaderEpochs(before.epochs).same_below(LeaderEpochs(now.epochs))
    if told is not None and told >= before.end:
        told = NO_CUT
    last = now.files[-1].base if now.files else -1
    replaced, unlike, why = set[int](), -1, list[str]()
    for file, same, fate in _fates(before, now):
        was_sealed = file.is_sealed
        if same and was_sealed and same.inode == file.inode and same.size != file.size:
            is_longer = told is None and same.size > file.size
            # No compaction begins a segment inside of a former one.
            after = bisect.bisect_right(now.files, file.base, key=_BASE)
            is_split = after < len(now.files) and now.files[after].base < file.end
            if is_longer or is_split or file.base == last:
                # The segments after it were cut off, and perhaps its end.
                fate, was_sealed = _Fate.REWRITTEN, False
            elif fate is _Fate.SAME:
                fate = _Fate.REWRITTEN  # overwritten in place, as by a backup
        elif fate is _Fate.REWRITTEN and same and same.inode == file.inode:
            was_sealed = False  # a compaction makes another file
        if fate in (_Fate.SAME, _Fate.DELETED):
            continue
        replaced.add(file.base)
        if fate is _Fate.RETURNED:
            continue
        # A segment that another program has compacted has the same offsets.
        is_compacted = was_sealed and same is not None
        if told == NO_CUT and fate is not _Fate.REWRITTEN:
            # It may have been the last one, and have become part of another.
            is_compacted |= file.end <= last
        if is_compacted:
            why.append(COMPACTED)
        elif unlike < 0:
            unlike = file.base
    cut_to = NO_CUT
    if told is not None and told != NO_CUT:
        why.append(EPOCHS)
        cut_to = min(told, now.end) if now.end < before.end else told
    elif unlike >= 0:
        why.append(OTHER_BYTES)
        # The end of the part seen to be unchanged may lie above `unlike`.
        cut_to = max(unlike, _stands(before, now))
        if told is not None and now.end < before.end:
            cut_to = now.end
    recorded = now.cuts.lowest_removal_since(before.cuts.serial)
    if recorded < min(cut_to, before.end):
        why.append(CUT)
        cut_to = recorded
    return cut_to, replaced, tuple(dict.fromkeys(why))


def is_other_log(
    was: RecoveredLog, state: PartitionState | None, first: int, *, is_foreign: bool
) -> bool:
    """Whether a log was cut, or is about to be, or was compacted, or has another owner,
    or has lost its segments before `first`, since it was loaded.

    Args:
        state: its own state now; None: another program writes it.
        is_foreign: another program wrote it then.
    """
    if state is None or is_foreign:
        return (state is None) != is_foreign
    # A deletion is recorded first; so is the fact that the next append may be removed
    # again. The start falls only if an older state was put back.
    return (
        was.log_id not in ("", state.log_id)
        or state.is_truncating
        or state.cuts.serial != was.cuts.serial
        or state.compactions != was.compactions
        or state.start_offset < max(first, was.start_offset)
    )


def depth_of(before: ChangeStamps, now: ChangeStamps, end: int) -> Depth:
    """How deep a look has to go.

    Args:
        end: of the log that was read.
    """
    if now.place != before.place or now.writer != before.writer:
        return Depth.FILES
    if before.stamp is not None:
        # The bytes after the end will be removed: the signs show when.
        return Depth.NOTHING if now.stamp == before.stamp else Depth.FILES
    if now.epochs != before.epochs:
        told = LeaderEpochs(before.epochs).same_below(LeaderEpochs(now.epochs))
        if told is not None and told < end:
            return Depth.FILES
    if (now.mtime_ns, now.state) != (before.mtime_ns, before.state) or now.has_next:
        return Depth.NAMES
    return Depth.END


def goes_on(before: Names, bases: Sequence[int], log_start: int) -> int | None:
    """The number of the first known segment that is still there, if segments were only
    added at the end and deleted at the start; else None.

    Args:
        bases: base offsets of the files that there are, in order.
        log_start: of a foreign log, as its owner says.
    """
    known, present = before.bases, set(bases)
    kept = [base for base in known if base in present]
    if not kept or kept != list(known[len(known) - len(kept) :]):
        return None
    if before.is_foreign and any(
        known[0] < base < kept[-1] for base in present.difference(kept)
    ):
        return None  # a segment was put back between them
    if before.is_foreign and bases[0] < known[0]:
        # A backup was put back in front of it. A file below the start does not count:
        # its owner has not removed it yet.
        above = [base for base in bases if base > bases[0]]
        if above[0] > log_start:
            return None
    return len(known) - len(kept)
