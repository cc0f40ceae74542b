"""Tables that a notebook shows for stores, topics, partitions and groups.

Text of the data (names, paths) is escaped by `markup`, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore.log.frames.markup import join, printable, tag
from logstore.log.frames.tables import Cell, table

__all__ = ["IS_COMPLETE", "Cell", "shown"]

# A notebook is to stay readable, and small.
_ROWS_MAX: Final = 100


def shown(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A title and a table, as HTML; of many rows the first, and how many there are."""
    more = len(rows) - _ROWS_MAX
    return join(
        tag("p", tag("b", printable(title))),
        table(head, rows[:_ROWS_MAX]) if rows else None,
        tag("p", f"and {more:,} more") if more > 0 else None,
    )


# The last line of the import: until it has run, the module must not be used.
IS_COMPLETE: Final = True
