"""Judges the records that a reader gets while its log is replaced."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from faults.replacers import GONE, Moment
from logstore import LogStoreError


class Call(NamedTuple):
    """A read of a partition.

    Attributes:
        begun, settled: number of moments at the call, and when its bounds were known.
        first, stop: the requested offsets.
        durable_only: whether it stops at the durable offset.
        follows: whether it continues with later records.
        begins_early: it may begin with records below `first`, in the same batch.
    """

    begun: int
    settled: int
    first: int | None
    stop: int | None
    durable_only: bool
    follows: bool = False
    begins_early: bool = False


def short(pairs: Sequence[tuple[int, Any]]) -> str:
    if len(pairs) <= 4:
        return f"{list(pairs)}"
    return f"{len(pairs)} records, {list(pairs[:2])} to {list(pairs[-2:])}"


def _names_of(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def explained(error: LogStoreError, moments: Iterable[Moment], what: str) -> str:
    """Problem if none of the moments explains an error, or ""."""
    allowed = frozenset[str]().union(*(moment.allows for moment in moments))
    if _names_of(error) & allowed:
        return ""
    text = f"{what} raises {type(error).__name__} ({str(error)[:300]})"
    return f"{text}, where {sorted(allowed) or 'nothing'} would be right"


def judge(
    history: Sequence[Moment],
    call: Call,
    got: Sequence[tuple[int, bytes]],
    error: LogStoreError | None,
    where: str,
) -> str:
    """Problem of the result of a call, or ""."""
    window = history[call.begun - 1 :]
    bounds = history[call.begun - 1 : call.settled]
    if call.begins_early and call.first is not None:
        got = [(offset, value) for offset, value in got if offset >= call.first]
    offsets = [offset for offset, _ in got]
    if any(b <= a for a, b in itertools.pairwise(offsets)):
        return f"offsets do not rise: {offsets}"
    if call.first is None:
        firsts = sorted({moment.start for moment in bounds})
    else:
        firsts = [call.first]
    ends = {m.durable if call.durable_only else m.end for m in bounds}
    if call.stop is not None:
        ends = {min(end, call.stop) for end in ends}
    if call.follows:
        # It has looked again since the last step.
        last = window[-1]
        ends = {last.durable if call.durable_only else last.end}
    elif offsets and offsets[-1] >= max(ends) and not call.begins_early:
        return f"{offsets[-1]} was given, and the end was {sorted(ends)}"
    if error is not None:
        # Until the call has returned, earlier steps count as well.
        since = window[1:]
        if where == "own" and not call.follows:
            # A read in the owner's process keeps the segments that it began with.
            in_call = bounds[1:]
            later = history[call.settled :]
            since = [*in_call, *[m for m in later if m.what != "delete head"]]
        # It may be a partition that was deleted.
        since = [*since, *(m for m in history[1:] if m.allows == GONE)]
        found = explained(error, since, f"after {len(got)} records it")
        if found:
            return found
        reasons = [_gap(m, firsts, got, None) for m in window]
    elif call.durable_only and is_reopened(history) and where != "own":
        # The durable offset was recorded before, or is not yet recorded.
        reasons = [_gap(m, firsts, got, None) for m in window]
    elif call.follows:
        reasons = [_gap(window[-1], firsts, got, end) for end in ends]
    else:
        reasons = [_gap(m, firsts, got, end) for m in window for end in ends]
    if any(not text for _, text in reasons):
        return ""
    said = f", then {type(error).__name__}: {str(error)[:200]}" if error else ""
    best = max(reasons)[1]  # the log that it is most like
    return f"{best}; from {firsts} to {sorted(ends)}{said}"


def is_reopened(history: Sequence[Moment]) -> bool:
    return any(m.what in ("reopen", "restore", "cut") for m in history)


def _gap(
    moment: Moment,
    firsts: Sequence[int],
    got: Sequence[tuple[int, bytes]],
    end: int | None,
) -> tuple[int, str]:
    """(number of right records, why the read records are no part of the log at a
    moment, from the first offset up to `end`; None: up to the last one read)."""
    for right, (offset, value) in enumerate(got):
        wanted = moment.records.get(offset)
        if wanted != value:
            there = wanted and wanted[:13]
            return right, (
                f"{right} records are those of {moment.what!r}, but offset {offset} "
                f"has {value[:13]!r} for {there!r}"
            )
    up_to = end if end is not None else got[-1][0] + 1 if got else 0
    there = {offset for offset, _ in got}
    text = ""
    for first in firsts:
        wanted = {o for o in moment.records if first <= o < up_to}
        missing = wanted - there - moment.removed
        if not missing:
            return len(got), ""
        text = (
            f"of {moment.what!r}, {len(missing)} records are missing, from "
            f"{min(missing)} on, without an error; there are "
            f"{short([(o, '') for o in sorted(there)])}"
        )
    return len(got), text
