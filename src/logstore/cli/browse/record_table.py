"""The widget of records: draws the rows of a window that fit, and asks for more.

It knows nothing of the log. When the cursor comes near an end of the rows, it says so,
and its screen brings further ones; a row is drawn when it is visible, so that a key
costs one screen whatever the window has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from logstore.cli.browse.lines import Line, NoticeLine, RecordLine, fitted
from logstore.cli.text import time_text

_GAP: Final = "  "
_TIME: Final = 24
_KEY_MIN: Final = 8
_KEY_MAX: Final = 32
_HEADERS: Final = 3
# A screen with fewer columns has no dates, only times of the day.
_WIDE: Final = 70
_WHEEL: Final = 3
_PLAIN: Final = Style()
_HEAD: Final = Style(bold=True, underline=True)
_CURSOR: Final = Style(reverse=True)
_DAMAGE: Final = Style(color="red", bold=True)
_GONE: Final = Style(color="yellow")
_FAINT: Final = Style(dim=True)


class RecordTable(Widget, can_focus=True):
    """Rows of records, of which one is at the cursor.

    Attributes:
        is_merged: whether a row says which partition it is of.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "page(1)", "Page", show=False),
        Binding("pageup,b,ctrl+u,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("enter,l", "open", "Open"),
    ]

    cursor: reactive[int] = reactive(0)

    class Near(Message):
        """The cursor has come near an end: `is_end`, or else the start."""

        def __init__(self, is_end: bool) -> None:
            super().__init__()
            self.is_end = is_end

    class Moved(Message):
        """The cursor is at another row."""

    class Opened(Message):
        """The user opens the row at the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.is_merged = False
        self.lines: list[Line] = []
        self._top = 0

    # ------------------------------------------------------------------ rows

    @property
    def current(self) -> Line | None:
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    @property
    def is_at_last(self) -> bool:
        return self.cursor >= len(self.lines) - 1

    @property
    def page(self) -> int:
        """Rows that are visible."""
        return max(self.size.height - 1, 1)

    def put(self, lines: Sequence[Line], cursor: int) -> None:
        """Show these rows, with the cursor at one of them."""
        self.lines = list(lines)
        self.cursor = max(min(cursor, len(self.lines) - 1), 0)
        self._keep_visible()
        self.refresh()
        self.post_message(self.Moved())

    def extend(self, lines: Sequence[Line]) -> None:
        """Show further rows below; the cursor stays."""
        was_empty = not self.lines
        self.lines += lines
        self._keep_visible()
        self.refresh()
        if was_empty:
            self.post_message(self.Moved())

    def shift(self, lines: Sequence[Line], by: int) -> None:
        """Show these rows, of which each stands `by` rows further down than before."""
        self._top += by
        self.put(lines, self.cursor + by)

    def _keep_visible(self) -> None:
        last_top = max(len(self.lines) - self.page, 0)
        self._top = min(self._top, self.cursor)
        self._top = max(self._top, self.cursor - self.page + 1)
        self._top = max(min(self._top, last_top), 0)

    def go_to(self, row: int) -> None:
        """Move the cursor to a row, or to the nearest one that there is."""
        aim = max(min(row, len(self.lines) - 1), 0)
        is_moved = aim != self.cursor
        self.cursor = aim
        self._keep_visible()
        self.refresh()
        if is_moved:
            self.post_message(self.Moved())
        if row + self.page >= len(self.lines):
            self.post_message(self.Near(True))
        if row - self.page <= 0:
            self.post_message(self.Near(False))

    # ------------------------------------------------------------------ keys, mouse

    def action_move(self, by: int) -> None:
        self.go_to(self.cursor + by)

    def action_page(self, pages: int) -> None:
        self._top += pages * self.page
        self.go_to(self.cursor + pages * self.page)

    def action_open(self) -> None:
        self.post_message(self.Opened())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(_WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-_WHEEL)

    def on_click(self, event: events.Click) -> None:
        row = self._top + event.y - 1
        if event.y < 1 or row >= len(self.lines):
            return
        if row == self.cursor:
            self.action_open()
        else:
            self.go_to(row)

    def on_resize(self, event: events.Resize) -> None:
        self._keep_visible()
        self.refresh()

    # ------------------------------------------------------------------ drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._strip(fitted(self._head(width), width), _HEAD)
        index = self._top + y - 1
        if index >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[index]
        style = _CURSOR if index == self.cursor else _PLAIN
        if isinstance(line, NoticeLine):
            style += _DAMAGE if line.is_damage else _GONE
            name = f"{line.partition}: " if self.is_merged else ""
            return self._strip(fitted(f"{name}{line.text}", width), style)
        return self._row(line, width, style)

    def _strip(self, text: str, style: Style) -> Strip:
        return Strip([Segment(text, self.rich_style + style)], self.size.width)

    def _widths(self, width: int) -> tuple[int, int, int, int]:
        """(partition and offset, time, key, value)."""
        shown = self.lines[self._top : self._top + self.page]
        place = max((len(self._place(line)) for line in shown), default=0)
        place = max(place, len("p:offset") if self.is_merged else len("offset"))
        time = _TIME if width >= _WIDE else _TIME - 11
        room = width - place - time - _HEADERS - 4 * len(_GAP)
        keys = (x.key or "" for x in shown if isinstance(x, RecordLine))
        longest = max(map(len, keys), default=0)
        key = min(max(longest, _KEY_MIN), _KEY_MAX, max(room // 3, _KEY_MIN))
        return place, time, key, max(room - key, 1)

    def _place(self, line: Line) -> str:
        return f"{line.partition}:{line.offset}" if self.is_merged else f"{line.offset}"

    def _head(self, width: int) -> str:
        place, time, key, value = self._widths(width)
        name = ("p:offset" if self.is_merged else "offset").rjust(place)
        cells = [name, fitted("time", time), fitted("key", key), fitted("value", value)]
        return _GAP.join([*cells, "hdr"])

    def _row(self, line: RecordLine, width: int, style: Style) -> Strip:
        place, time, key, value = self._widths(width)
        when = time_text(line.timestamp_ms)
        if time < len(when):
            when = when[11:]  # the date goes first
        base = self.rich_style + style
        front = [self._place(line).rjust(place), fitted(when, time), ""]
        parts = [Segment(_GAP.join(front), base)]
        for text, room in ((line.key, key), (line.value, value)):
            faint = base + _FAINT if text is None else base
            parts += [Segment(fitted(text or "null", room), faint), Segment(_GAP, base)]
        count = str(line.headers) if line.headers else ""
        parts.append(Segment(count.rjust(_HEADERS), base))
        return Strip(parts).adjust_cell_length(width, base)
