"""A table of few rows: topics, partitions, groups, findings.

It has the columns of the text tables (`logstore.cli.tables`), and drops them in the
same order if the terminal is narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from logstore.cli.browse.lines import clean, fitted
from logstore.cli.tables import Column

_PADDING: Final = 2
_FLEXIBLE_MIN: Final = 20


class Grid(DataTable[Text]):
    """Rows below their heads.

    Args:
        columns: as of a text table.
        id_of: what of a row stays the same when it is read again, for the cursor.
        style_of: the style of a row.
        flexible: the column that is cut before another one is left out, and then has
            the room that is left; counted as in `columns`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("g", "scroll_top", "First", show=False),
        Binding("G", "scroll_bottom", "Last", show=False),
        Binding("ctrl+d,ctrl+f", "page_down", "Page down", show=False),
        Binding("ctrl+u,ctrl+b", "page_up", "Page up", show=False),
        Binding("l", "select_cursor", "Open", show=False),
        Binding("o", "sort", "Order", show=False),
    ]

    def __init__(
        self,
        columns: Sequence[Column],
        id_of: Callable[[Any], Any],
        style_of: Callable[[Any], str] = lambda row: "",
        *,
        flexible: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, **options)
        self._every, self._id_of, self._style_of = tuple(columns), id_of, style_of
        self._flexible = flexible % len(self._every)
        self._given: list[Any] = []
        self._sorted_by: tuple[int, bool] | None = None
        self._heads: object = None
        self._cells: list[list[Text]] = []
        self.shown: list[Any] = []

    @property
    def current(self) -> Any:
        """The row at the cursor; None: the table is empty."""
        index = self.cursor_row
        return self.shown[index] if 0 <= index < len(self.shown) else None

    def put(self, rows: Sequence[Any]) -> None:
        """Show these rows in place of the others; the cursor stays at its row."""
        self._given = list(rows)
        self._draw()

    def _draw(self) -> None:
        before = self.current
        kept = None if before is None else self._id_of(before)
        rows = list(self._given)
        if self._sorted_by is not None:
            column, is_reversed = self._sorted_by
            rows.sort(key=self._every[column].key, reverse=is_reversed)
        texts = [[clean(c.text(c.key(row))) for c in self._every] for row in rows]
        widths = self._widths(texts)
        cells = [
            [
                self._cell(some[slot], slot, n, self._style_of(row))
                for slot, n in widths.items()
            ]
            for row, some in zip(rows, texts, strict=True)
        ]
        heads = widths, self._sorted_by, len(rows)
        if heads == self._heads:
            self._change(cells)
        else:
            self.clear(columns=True)
            for column, width in widths.items():
                self.add_column(self._head(column, width), width=width, key=str(column))
            self.add_rows(cells)
        self._heads, self._cells = heads, cells
        self.shown = rows
        names = [self._id_of(row) for row in rows]
        if kept in names:
            self.move_cursor(row=names.index(kept), animate=False)

    def _change(self, cells: list[list[Text]]) -> None:
        """Draw only what has changed, so that nothing moves under the eyes."""
        for row, (new, old) in enumerate(zip(cells, self._cells, strict=True)):
            for column, (text, before) in enumerate(zip(new, old, strict=True)):
                if text != before or text.style != before.style:
                    self.update_cell_at(Coordinate(row, column), text)

    def _widths(self, texts: list[list[str]]) -> dict[int, int]:
        """The columns that fit, in order, each with its width: the spare ones go first,
        after the flexible one was cut."""
        room = max(self.size.width, 40)
        widest = {}
        for index, column in enumerate(self._every):
            head = len(column.name) + 2  # the arrow of the order
            widest[index] = max(head, *(cell_len(cells[index]) for cells in texts), 0)
        flexible = self._flexible
        full = widest[flexible]
        widest[flexible] = min(full, _FLEXIBLE_MIN)
        while sum(widest.values()) + _PADDING * len(widest) > room:
            spare = max(widest, key=lambda slot: self._every[slot].spare)
            if not self._every[spare].spare:
                break
            del widest[spare]
        left = room - sum(widest.values()) - _PADDING * len(widest)
        widest[flexible] = min(full, widest[flexible] + max(left, 0))
        return widest

    def _head(self, index: int, width: int) -> Text:
        column = self._every[index]
        arrow = ""
        if self._sorted_by is not None and self._sorted_by[0] == index:
            arrow = " ▼" if self._sorted_by[1] else " ▲"
        text = column.name + arrow
        return Text(text.rjust(width) if column.is_number else text)

    def _cell(self, text: str, index: int, width: int, style: str) -> Text:
        if cell_len(text) > width:
            text = fitted(text, width)
        if self._every[index].is_number:
            text = text.rjust(width)
        return Text(text, style=style, no_wrap=True)

    def order_by(self, index: int) -> None:
        """Sort by a column; the same one again: the other way round."""
        was = self._sorted_by
        # Of numbers and times people ask for the largest.
        first = self._every[index].is_number
        turned = not was[1] if was is not None and was[0] == index else first
        self._sorted_by = index, turned
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next column (or click its head)."""
        keys = [int(str(key.value)) for key in self.columns]
        if not keys:
            return
        current_column = None if self._sorted_by is None else self._sorted_by[0]
        following = [
            key for key in keys if current_column is not None and key > current_column
        ]
        self.order_by(following[0] if following else keys[0])

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self.order_by(int(str(event.column_key.value)))

    def on_resize(self, event: events.Resize) -> None:
        self._draw()
