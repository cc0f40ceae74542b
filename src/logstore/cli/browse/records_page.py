"""The screen of records, of a partition or of a topic merged by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer

from logstore.cli.browse import record_pane, record_rows, record_search
from logstore.cli.browse.dialogs import JumpDialog, SearchDialog
from logstore.cli.browse.document_view import DocumentView
from logstore.cli.browse.page import Page
from logstore.cli.browse.record_pane import RecordPane
from logstore.cli.browse.record_rows import RecordRows
from logstore.cli.browse.record_search import RecordSearch
from logstore.cli.browse.record_table import RecordTable
from logstore.cli.browse.window import BrowserView
from logstore.cli.params import Bound
from logstore.cli.selection import Selection
from logstore.cli.text import counted, grouped

_FOLLOW_S: Final = 0.3


class RecordsPage(Page):
    """Records as rows, and the record at the cursor in a pane."""

    about = "Records, the oldest first"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search(1)", "Search", key_display="/"),
        Binding("equals_sign", "search(0)", "Key", key_display="="),
        Binding("colon", "jump", "Jump", key_display=":"),
        Binding("g,home", "first", "First", show=False),
        Binding("G,end", "last", "Last", show=False),
        Binding("f", "follow", "Follow"),
        Binding("v", "mode", "View"),
        Binding("n", "step(1)", "Next", show=False),
        Binding("p", "step(-1)", "Previous", show=False),
        Binding("z", "zoom", "Zoom", show=False),
        Binding("c", "context", "In the log", show=False),
        Binding("m", "more", "More", show=False),
        Binding("r", "again", "Read again", show=False),
        # The footer of 80 columns has no room for them.
        Binding("1", "app.topics", "Topics", show=False),
        Binding("2", "app.groups", "Groups", show=False),
        Binding("3", "app.damage", "Damage", show=False),
    ]

    def __init__(
        self, open_view: Callable[[], BrowserView], title: str, start: Bound = None
    ) -> None:
        super().__init__(title)
        self._start = start
        self._table = RecordTable()
        document = DocumentView()
        self._pane = RecordPane(document, self.work)
        self._widgets = (self._table, document)
        self._rows = RecordRows(self._table, self.work, open_view, self._show_status)
        self._search: RecordSearch | None = None
        self._typed = ["", ""]
        self._timer: Timer | None = None

    def body(self) -> ComposeResult:
        yield from self._widgets

    def on_mount(self) -> None:
        self._table.focus()
        self.say("reading ...")
        self._rows.jump(self._start)

    def on_resize(self) -> None:
        self._pane.redraw()

    def _show_status(self) -> None:
        """Show the progress of the search, or the place of the cursor."""
        line, search, rows = self._table.current, self._search, self._rows
        if search is not None:
            self.say(search.progress)
            return
        text = "no records"
        if line is not None:
            name = f"partition {line.partition}, " if self._table.is_merged else ""
            end = rows.ends.get(line.partition, 0)
            text = f"{name}offset {grouped(line.offset)} of {grouped(end)}"
        self.say(f"{text}   following" if rows.follows else text)

    def gave_up(self, group: str) -> None:
        if group == record_rows.GROUP:
            self._rows.failed()
            self._stop_following()
        elif group == record_search.GROUP and self._search is not None:
            self._search.failed()
        elif group == record_pane.GROUP:
            self._pane.failed()

    # ------------------------------------------------------------------ the table

    def on_record_table_near(self, event: RecordTable.Near) -> None:
        self._rows.near(is_end=event.is_end)

    def on_record_table_moved(self) -> None:
        if self._rows.view is not None:
            self._show_status()
        if self._pane.is_open:
            self._pane.show(self._table.current, self._rows.view)

    def on_record_table_opened(self) -> None:
        self._pane.show(self._table.current, self._rows.view)

    # ------------------------------------------------------------------ keys

    def action_step(self, by: int) -> None:
        """Move to the next row, or to the one before."""
        self._table.action_move(by)

    def action_mode(self) -> None:
        """Keys and values as text, JSON or hex."""
        if not self._pane.is_open:
            self.on_record_table_opened()
            return
        self._pane.next_mode()
        self.notify(f"keys and values as {self._pane.mode}", timeout=1.5)
        self._pane.redraw()

    def action_zoom(self) -> None:
        """Show the record alone, or below the rows."""
        if not self._pane.is_open:
            self.on_record_table_opened()
        self._table.display = not self._table.display
        if self._table.display:
            self._table.focus()
        else:
            self._pane.focus()

    def action_back(self) -> None:
        """Stop the search, close the record or the search, or go back."""
        search = self._search
        if search is not None and search.is_running:
            search.stop()
        elif self._pane.is_open:
            self._pane.close()
            self._table.display = True
            self._table.focus()
        elif search is not None:
            self._end_search()
            self._rows.show(search.origin)
        else:
            super().action_back()

    def action_first(self) -> None:
        """Move to the start of the log."""
        self._jump(None)

    def action_last(self) -> None:
        """Move to the end of the log."""
        self._end_search()
        self._rows.jump_to_last()

    def action_jump(self) -> None:
        """To an offset, to a time, to the last N."""

        def answered(bound: Bound) -> None:
            if bound is not None:
                self._jump(bound)

        self.app.push_screen(JumpDialog(), answered)

    def _jump(self, bound: Bound) -> None:
        self._end_search()
        self._rows.jump(bound)

    def action_again(self) -> None:
        """Read the rows once more."""
        if self._search is None:
            self._rows.show(self._rows.here())

    def action_search(self, first: int) -> None:
        """Only records with a key, or a match."""

        def answered(result: tuple[Selection, list[str]] | None) -> None:
            view = self._rows.view
            if result is None or view is None:
                return
            selection, self._typed = result
            self._stop_following()
            search = self._search
            origin = self._rows.here() if search is None else search.origin
            self._end_search()
            self._rows.pause()
            self._search = RecordSearch(
                view, selection, self._table, self.work, origin, self._show_status
            )
            self._search.start()

        self.app.push_screen(SearchDialog(first, self._typed), answered)

    def action_more(self) -> None:
        """Search further, after these matches."""
        if self._search is not None:
            self._search.more()

    def action_context(self) -> None:
        """Leave the search: the log around this row."""
        line = self._table.current
        if self._search is not None and line is not None:
            self._end_search()
            self._rows.show_beside(line.partition, line.offset)

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.stop()
            self._search = None

    # ------------------------------------------------------------------ following

    def action_follow(self) -> None:
        """Show what is appended, or no longer."""
        if self._rows.follows:
            self._stop_following()
            self._show_status()
            return
        self.action_last()
        self._rows.follows = True
        self._timer = self.set_interval(_FOLLOW_S, self._rows.look)

    def _stop_following(self) -> None:
        self._rows.follows = False
        if self._timer is not None:
            self._timer.stop()


def title_of(topic: str, number: int | None, count: int) -> str:
    """The title of the records of a partition, or of a topic as a whole."""
    if number is not None:
        return f"{topic} / partition {number}"
    return f"{topic} / {counted(count, 'partition')} by time"
