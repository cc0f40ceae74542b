"""Tables whose columns a reader can sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.log.frames.markup import Child, Html, tag
from logstore.log.frames.units import number_text, size_text, time_text

__all__ = ["Cell", "table"]


class Cell(NamedTuple):
    """The text of a cell, and its sort key: a number for numbers."""

    shown: Child
    key: str | float | None = None
    is_number: bool = False

    @classmethod
    def number(cls, value: float) -> Cell:
        """A count; a dash for one that is not known (below 0)."""
        return cls(number_text(value) if value >= 0 else "-", value, True)

    @classmethod
    def size(cls, value: float) -> Cell:
        """Bytes."""
        return cls(size_text(value), value, True)

    @classmethod
    def time(cls, timestamp_ms: int) -> Cell:
        """A time in UTC."""
        return cls(time_text(timestamp_ms, seconds=False), timestamp_ms, True)


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Html:
    """A table; columns of numbers are aligned to the right."""
    numeric = [
        bool(rows) and all(row[column].is_number for row in rows)
        for column in range(len(head))
    ]
    heads = [
        tag("th", name, cls="n" if is_number else None, scope="col")
        for name, is_number in zip(head, numeric, strict=True)
    ]
    lines = [
        tag(
            "tr",
            [
                tag(
                    "td",
                    cell.shown,
                    cls="n" if is_number else None,
                    data_v=f"{cell.key:.10g}" if cell.is_number else None,
                )
                for cell, is_number in zip(row, numeric, strict=True)
            ],
        )
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", heads)),
            tag("tbody", lines),
            cls="sort",
        ),
        cls="scroll",
    )
