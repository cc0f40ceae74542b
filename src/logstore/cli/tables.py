"""Tables: rows that can be sorted by a column and summed up, as wide as the terminal.

In a pipe a table has all of its columns: `grep` and `less -S` work on whole lines. On a
terminal it has only the columns that fit; the line below it names the rest.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from logstore.cli.lazy import import_package
from logstore.cli.output import Printer, is_terminal
from logstore.cli.text import escape

_GAP: Final = "  "
_DOTS: Final = "…"
# Long names have at least this many cells, or half of the terminal, before another
# column is left out for them.
_NAME_MIN: Final = 24
_SHORTEST: Final = 8


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its head, and the name for ``--sort``.
        key: the value of a row, by which rows are sorted.
        text: how a value is shown.
        is_number: whether it is aligned to the right.
        total: computes the total from the values of all rows; None: no total.
        spare: whether it may be left out: the column with the largest number is the
            first to go; 0: it always stays.
    """

    name: str
    key: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    is_number: bool = False
    total: Callable[[Iterable[Any]], Any] | None = None
    spare: int = 0


def sorted_by(
    rows: Sequence[Any], columns: Sequence[Column], sort: str | None
) -> list[Any]:
    """The rows by a column; with ``-`` in front of its name the largest first."""
    if sort is None:
        return list(rows)
    name = sort.removeprefix("-")
    key = next(column.key for column in columns if _slug(column.name) == name)
    return sorted(rows, key=key, reverse=sort.startswith("-"))


def names_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """The names that ``--sort`` accepts."""
    return tuple(_slug(column.name) for column in columns)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def print_table(
    printer: Printer,
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    total: str | None = None,
    indent: int = 0,
    sort: str | None = None,
) -> None:
    """Print rows below their heads, and the totals if there are several rows.

    Args:
        total: the text of the first column in the row of totals.
        indent: spaces in front of each line.
        sort: the column that they are sorted by, which stays.
    """
    texts = [[column.text(column.key(row)) for column in columns] for row in rows]
    has_total = total is not None and len(rows) > 1
    if has_total:
        last = [
            ""
            if column.total is None
            else column.text(column.total(column.key(row) for row in rows))
            for column in columns
        ]
        texts.append([total or "", *last[1:]])
    sorted_name = (sort or "").removeprefix("-")
    drawn = [
        _Drawn(
            column.name,
            [escape(row[index]) for row in texts],
            column.is_number,
            0 if _slug(column.name) == sorted_name else column.spare,
        )
        for index, column in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns - indent
    note = _fit(drawn, room) if is_terminal(printer.out) else ""
    front = " " * indent
    for number, text in enumerate(_lines(drawn)):
        is_bold = number == 0 or (has_total and number == len(texts))
        printer.line(front + text, "bold" if is_bold else "")
    if note:
        printer.once(textwrap.fill(note, room))


def _width(text: str) -> int:
    return int(import_package("rich.cells").cell_len(text))


class _Drawn:
    """A column with its cells, ready to be drawn.

    Attributes:
        width: in cells of a terminal, of which some characters take two.
    """

    def __init__(
        self, name: str, cells: list[str], is_number: bool, spare: int
    ) -> None:
        self.name = name
        self.cells = [name, *cells]
        self.is_number = is_number
        self.spare = spare
        self.width = max(map(_width, self.cells))

    def padded(self) -> Iterator[str]:
        for cell in self.cells:
            space = " " * (self.width - _width(cell))
            yield space + cell if self.is_number else cell + space

    def shorten(self, width: int) -> None:
        """Leave out the middle of texts that are longer: a name ends with a number."""
        set_size = import_package("rich.cells").set_cell_size
        for index, cell in enumerate(self.cells):
            if _width(cell) > width:
                head = set_size(cell, (width - 1) // 2).rstrip()
                tail = set_size(cell[::-1], width - 1 - (width - 1) // 2)[::-1]
                self.cells[index] = f"{head}{_DOTS}{tail.lstrip()}"
        self.width = max(map(_width, self.cells))


def _lines(drawn: Sequence[_Drawn]) -> Iterator[str]:
    for row in zip(*(column.padded() for column in drawn), strict=True):
        yield _GAP.join(row).rstrip()


def _fit(drawn: list[_Drawn], room: int) -> str:
    """Make columns fit: shorten long names, remove columns, shorten further. Returns a
    note about it; "" if all is shown."""
    every = list(drawn)
    is_cut = False

    def missing() -> int:
        gaps = len(_GAP) * (len(drawn) - 1)
        return sum(column.width for column in drawn) + gaps - room

    def shorten(least: int) -> bool:
        """Shorten the longest texts as far as is needed. Whether one was."""
        names = [
            drawn_column
            for drawn_column in drawn
            if not (drawn_column.is_number or drawn_column.spare)
        ]
        longest = max(names, key=lambda drawn_column: drawn_column.width, default=None)
        if missing() <= 0 or longest is None or longest.width <= least:
            return False
        longest.shorten(max(longest.width - missing(), least))
        return True

    while shorten(max(_NAME_MIN, room // 2)):
        is_cut = True
    removed: list[_Drawn] = []
    while missing() > 0 and any(column.spare for column in drawn):
        removed.append(max(drawn, key=lambda column: column.spare))
        drawn.remove(removed[-1])
    for column in reversed(removed):  # narrower ones fit after all
        if missing() + column.width + len(_GAP) <= 0:
            drawn[:] = [
                kept_column
                for kept_column in every
                if kept_column in drawn or kept_column is column
            ]
    while shorten(_SHORTEST):
        is_cut = True
    left_out = [column.name for column in every if column not in drawn]
    if not (left_out or is_cut):
        return ""
    parts = [f"without {', '.join(left_out)}"] if left_out else []
    parts += ["with shortened names"] if is_cut else []
    return f"({' and '.join(parts)}, to fit the terminal; a pipe gets all)"
