"""A search for records with a key or a match, from a place to the end of the log.

`Selection` decides which records match, as for `records --key --grep`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import logstore
from logstore.cli.browse.lines import Line, line_of
from logstore.cli.browse.window import BrowserView, Place
from logstore.cli.selection import Selection

_REPORT_S: Final = 0.1
# Rows found, damage included, before the search stops to ask.
FOUND_MAX: Final = 1000


class _EnoughError(Exception):
    """The search has found enough rows."""


class SearchProgress(NamedTuple):
    """How far a search is.

    Attributes:
        lines: rows that were found since the last report, with damage among them.
        place: the next offsets to be searched.
        looked, total: offsets that were looked at, of all that are asked for.
        is_done: everything was looked at.
    """

    lines: list[Line]
    place: Place
    looked: int
    total: int
    is_done: bool = False


def hunt(
    view: BrowserView,
    selection: Selection,
    start: Place,
    on_report: Callable[[SearchProgress], None],
    begin: Place | None = None,
    stop: Place | None = None,
    *,
    check: Callable[[], None] = lambda: None,
) -> SearchProgress:
    """Look at the records from a place on, and report what is found.

    It ends at the end that the log had, or after `FOUND_MAX` rows; the result was
    reported, too, and has the place to continue at. An exception of `on_report` or
    `check` ends it.

    Args:
        on_report: called every 0.1 s, if records or damage come so soon.
        begin, stop: of the whole search, if this continues one; None: from `start` to
            the end of the log.
        check: called for each record, and for damage.
    """
    matches = selection.matches or (lambda record: True)
    ends = view.ends() if stop is None else stop
    starts = view.starts()
    place = {n: min(max(offset, starts[n]), ends[n]) for n, offset in start.items()}
    first = place if begin is None else begin
    before = sum(max(place[n] - first[n], 0) for n in place)
    total = before + sum(ends[n] - place[n] for n in place)
    origin = dict(place)
    lines: list[Line] = []
    rows = 0
    said = time.monotonic()

    def report(is_done: bool = False) -> SearchProgress:
        nonlocal lines
        looked = before + sum(place[n] - origin[n] for n in place)
        progress = SearchProgress(lines, dict(place), looked, total, is_done)
        lines = []
        on_report(progress)
        return progress

    def went_on() -> None:
        nonlocal said
        if rows >= FOUND_MAX:
            raise _EnoughError
        check()
        now = time.monotonic()
        if now - said >= _REPORT_S:
            said = now
            report()

    def met(damaged: logstore.types.Damaged) -> bool:
        nonlocal rows
        line = view.damage(damaged, ends)
        if line.next_offset > place[line.partition]:
            lines.append(line)
            rows += 1
            place[line.partition] = line.next_offset
        went_on()
        return True

    try:
        for number, record in view.read(dict(place), ends, met):
            place[number] = record.offset + 1
            if matches(record):
                lines.append(line_of(number, record))
                rows += 1
            went_on()
    except _EnoughError:
        return report()
    place = dict(ends)
    return report(is_done=True)
