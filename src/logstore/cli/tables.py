"""Rows that can be sorted by a column and summed up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from logstore.cli.output import Printer


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its head, and the name for ``--sort``.
        key: the value of a row, by which rows are sorted.
        text: how a value is shown.
        is_number: whether it is aligned to the right.
        total: the value in the row of totals from those of all rows; None: nothing.
    """

    name: str
    key: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    is_number: bool = False
    total: Callable[[Iterable[Any]], Any] | None = None


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
) -> None:
    """Print rows below their heads, and the totals if there are several rows.

    Args:
        total: the text of the first column in the row of totals.
    """
    texts = [[column.text(column.key(row)) for column in columns] for row in rows]
    last: list[str] | None = None
    if total is not None and len(rows) > 1:
        last = [
            ""
            if column.total is None
            else column.text(column.total(column.key(row) for row in rows))
            for column in columns
        ]
        last[0] = total
    printer.table(
        [column.name for column in columns],
        texts,
        right=[column.name for column in columns if column.is_number],
        total=last,
        indent=indent,
    )
