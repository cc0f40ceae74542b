"""A search for records with a key or a match, from a place to the end of the log.

`Selection` decides which records match, as for `records --key --grep`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import logstore
from logstore.cli.browse.lines import Line, line_of
from logstore.cli.browse.window import Place, View
from logstore.cli.selection import Selection

# Records between two reports, and records that are found before it stops to ask.
_STEP: Final = 5000
FOUND_MAX: Final = 1000


class Found(NamedTuple):
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
    view: View,
    selection: Selection,
    start: Place,
    on_report: Callable[[Found], None],
    begin: Place | None = None,
    stop: Place | None = None,
) -> Found:
    """Look at the records from a place on, and report what is found.

    It ends at the end that the log had, or after `FOUND_MAX` records; the result was
    reported, too, and has the place to continue at. An exception of `on_report` ends
    it.

    Args:
        begin, stop: of the whole search, if this continues one; None: from `start` to
            the end of the log.
    """
    matches = selection.matches or (lambda record: True)
    ends = view.ends() if stop is None else stop
    starts = view.starts()
    at = {n: min(max(offset, starts[n]), ends[n]) for n, offset in start.items()}
    first = at if begin is None else begin
    before = sum(max(at[n] - first[n], 0) for n in at)
    total = before + sum(ends[n] - at[n] for n in at)
    origin = dict(at)
    lines: list[Line] = []
    found = 0

    def looked() -> int:
        return before + sum(at[n] - origin[n] for n in at)

    def met(damaged: logstore.types.Damaged) -> bool:
        line = view.damage(damaged, ends)
        if line.next_offset > at[line.partition]:
            lines.append(line)
            at[line.partition] = line.next_offset
        return True

    def report(is_done: bool = False) -> Found:
        nonlocal lines
        one = Found(lines, dict(at), looked(), total, is_done)
        lines = []
        on_report(one)
        return one

    for count, (number, record) in enumerate(view.read(dict(at), ends, met), 1):
        at[number] = record.offset + 1
        if matches(record):
            lines.append(line_of(number, record))
            found += 1
        if found >= FOUND_MAX:
            return report()
        if count % _STEP == 0:
            report()
    at = dict(ends)
    return report(is_done=True)
