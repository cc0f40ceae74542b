"""The screen of records: a partition, or a topic merged by time; one record as a whole;
jumps, searches, and following what is appended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer

from logstore.cli.browse.dialogs import JumpDialog, SearchDialog
from logstore.cli.browse.document_view import MARGIN, DocumentView
from logstore.cli.browse.hunt import Found, hunt
from logstore.cli.browse.lines import Line, NoticeLine, RecordLine
from logstore.cli.browse.page import Page, Task
from logstore.cli.browse.payload import (
    MODES,
    Block,
    Document,
    Whole,
    document_of,
    whole_of,
)
from logstore.cli.browse.record_table import RecordTable
from logstore.cli.browse.window import KEPT, PART, Part, Place, View, Window
from logstore.cli.params import Bound, FromEnd
from logstore.cli.selection import Selection
from logstore.cli.text import counted, grouped

_FOLLOW_S: Final = 0.3
_REPORT_S: Final = 0.1
_SLOW_S: Final = 0.25


class _Search:
    """A search, and where it is.

    Attributes:
        place: where it goes on; None: nowhere.
        begin, stop: of the whole of it.
        is_running: whether a thread is at it.
    """

    def __init__(self, selection: Selection, begin: Place, stop: Place) -> None:
        self.selection = selection
        self.begin, self.stop = begin, stop
        self.place: Place | None = begin
        self.found = 0
        self.damage = 0
        self.is_running = True
        self.progress = ""


class RecordsPage(Page):
    """Records as rows; the one at the cursor as a whole below them."""

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
        Binding("m", "more", "More matches", show=False),
        Binding("r", "again", "Read again", show=False),
        # The footer of 80 columns has no room for them.
        Binding("1", "app.topics", "Topics", show=False),
        Binding("2", "app.groups", "Groups", show=False),
        Binding("3", "app.damage", "Damage", show=False),
    ]

    def __init__(
        self, open_view: Callable[[], View], title: str, start: Bound = None
    ) -> None:
        super().__init__(title)
        self._open_view = open_view
        self._start = start
        self._view: View | None = None
        self._window: Window | None = None
        self._is_loading = False
        self._search: _Search | None = None
        self._follow: Timer | None = None
        self._mode = 0
        self._whole: Whole | None = None
        self._slow: Timer | None = None
        self._before_search: Place | None = None
        self._ends: Place = {}
        self._typed = ["", ""]

    def body(self) -> ComposeResult:
        yield RecordTable(id="records")
        yield DocumentView(id="whole")

    def on_mount(self) -> None:
        self._whole_view.display = False
        self._table.focus()
        self.say("reading ...")
        self._jump(self._start)

    @property
    def _table(self) -> RecordTable:
        return self.query_one("#records", RecordTable)

    @property
    def _whole_view(self) -> DocumentView:
        return self.query_one("#whole", DocumentView)

    # ------------------------------------------------------------------ windows

    def _jump(self, bound: Bound) -> None:
        """Show the records at a bound."""

        def work(task: Task) -> tuple[View, Part, int, Place]:
            view = self._view or self._open_view()
            return view, *view.around(view.place(bound)), view.ends()

        self._replace(work)

    def _show_at(self, place: Place) -> None:
        view = self._view
        assert view is not None
        self._replace(lambda task: (view, *view.around(place), view.ends()))

    def _replace(self, work: Callable[[Task], Any]) -> None:
        self._is_loading = True
        self.in_thread(work, self._replaced, "window")

    def _replaced(self, result: tuple[View, Part, int, Place]) -> None:
        view, part, cursor, ends = result
        self._is_loading = False
        self._view, self._ends = view, ends
        self._table.is_merged = view.is_merged
        self._window = Window(part)
        self._search = None
        self._table.put(self._window.lines, cursor)
        self._tell()

    def gave_up(self, group: str) -> None:
        if group == "window":
            self._is_loading = False
        elif group == "search" and self._search is not None:
            self._search.is_running = False
        elif group == "follow":
            self._is_loading = False
            self._stop_following()
        elif group == "whole":
            self._end_wait()
            self._whole = None
            self._whole_view.put(Document())

    def on_record_table_near(self, event: RecordTable.Near) -> None:
        """Bring what follows, or comes before, unless it is there or on its way."""
        view, window = self._view, self._window
        if self._is_loading or view is None or window is None or self._search:
            return
        if event.is_end and not window.at_end:
            place = dict(window.stop)
            self._is_loading = True
            self.in_thread(
                lambda task: (view.forward(place), view.ends()),
                self._came_behind,
                "window",
            )
        elif not event.is_end and not window.at_start:
            place = dict(window.start)
            self._is_loading = True
            self.in_thread(
                lambda task: view.backward(place), self._came_before, "window"
            )

    def _came_behind(self, result: tuple[Part, Place]) -> None:
        self._is_loading = False
        window = self._window
        if window is None or self._search:
            return
        part, self._ends = result
        self._append(window, part)

    def _came_before(self, part: Part) -> None:
        self._is_loading = False
        if self._window is None or self._search:
            return
        count = self._window.prepend(part)
        self._table.shift(self._window.lines, count)
        self._tell()

    # ------------------------------------------------------------------ what is told

    def _tell(self) -> None:
        line, search = self._table.current, self._search
        if search is not None:
            self.say(search.progress)
            return
        parts = []
        if line is None:
            parts.append("no records")
        else:
            name = f"partition {line.partition}, " if self._is_merged else ""
            end = self._ends.get(line.partition, 0)
            parts.append(f"{name}offset {grouped(line.offset)} of {grouped(end)}")
        if self._follow is not None:
            parts.append("following")
        self.say("   ".join(parts))

    @property
    def _is_merged(self) -> bool:
        return self._view is not None and self._view.is_merged

    def on_record_table_moved(self) -> None:
        if self._window is not None or self._search is not None:
            self._tell()
        if self._whole_view.display:
            self._load_whole()

    # ------------------------------------------------------------------ one record

    def on_record_table_opened(self) -> None:
        self._whole_view.display = True
        self._load_whole()

    def _load_whole(self) -> None:
        line, view = self._table.current, self._view
        if line is None or view is None:
            return
        if isinstance(line, NoticeLine):
            self._whole = None
            text = line.text
            self._whole_view.put(Document([Block(1, lambda _: text, "note")]))
            return
        partition = view.partitions[line.partition]
        offset, mode, width = line.offset, MODES[self._mode], self._document_width

        def work(task: Task) -> tuple[Whole, Document]:
            whole = whole_of(partition, offset)
            return whole, document_of(whole, mode, width)

        self._work_on_whole(work)

    def _work_on_whole(self, work: Callable[[Task], tuple[Whole, Document]]) -> None:
        """Have a thread make a document; what was shown stays for a moment."""
        note = Document([Block(1, lambda _: "reading ...", "head")])
        self._end_wait()
        self._slow = self.set_timer(_SLOW_S, lambda: self._whole_view.put(note))
        self.in_thread(work, self._put_whole, "whole")

    def _end_wait(self) -> None:
        if self._slow is not None:
            self._slow.stop()

    @property
    def _document_width(self) -> int:
        return max(self.app.size.width - MARGIN, 20)

    def _put_whole(self, result: tuple[Whole, Document]) -> None:
        self._end_wait()
        self._whole, document = result
        self._whole_view.put(document)

    def on_resize(self) -> None:
        self._redraw_whole()

    def _redraw_whole(self) -> None:
        whole = self._whole
        if whole is None:
            return
        mode, width = MODES[self._mode], self._document_width
        self._work_on_whole(lambda task: (whole, document_of(whole, mode, width)))

    def action_mode(self) -> None:
        """Keys and values as text, JSON or hex."""
        self._mode = (self._mode + 1) % len(MODES)
        self.notify(f"keys and values as {MODES[self._mode]}", timeout=1.5)
        if not self._whole_view.display:
            self.on_record_table_opened()
        else:
            self._redraw_whole()

    def action_step(self, by: int) -> None:
        """The next row, the one before, also while one is shown alone."""
        self._table.action_move(by)

    def action_zoom(self) -> None:
        """The record alone, or the rows, too."""
        if not self._whole_view.display:
            self.on_record_table_opened()
        self._table.display = not self._table.display
        (self._table if self._table.display else self._whole_view).focus()

    def action_back(self) -> None:
        """Stop or close what is open, or go back."""
        search = self._search
        if search is not None and search.is_running:
            self.stop_work("search")
            search.is_running = False
            search.progress += "   stopped"
            self._tell()
        elif self._whole_view.display:
            self._whole_view.display = False
            self._table.display = True
            self._whole = None
            self._table.focus()
        elif search is not None and self._before_search is not None:
            self._show_at(self._before_search)
        else:
            super().action_back()

    # ------------------------------------------------------------------ jumps

    def action_first(self) -> None:
        """The start of the log."""
        self._end_search()
        self._jump(None)

    def action_last(self) -> None:
        """The end of the log."""
        self._end_search()
        self._jump(FromEnd(1))

    def action_again(self) -> None:
        """Read the rows once more, as the log is now."""
        line = self._table.current
        if line is None or self._window is None or self._search:
            self._jump(None)
            return
        place = dict(self._window.start)
        for one in self._window.lines[: self._table.cursor]:
            place[one.partition] = max(one.next_offset, place[one.partition])
        self._show_at(place)

    def action_jump(self) -> None:
        """To an offset, to a time, to the last N."""

        def answered(bound: Bound) -> None:
            if bound is not None:
                self._end_search()
                self._jump(bound)

        self.app.push_screen(JumpDialog(), answered)

    # ------------------------------------------------------------------ search

    def action_search(self, first: int) -> None:
        """Only records with a key, or a match."""

        def answered(result: tuple[Selection, list[str]] | None) -> None:
            if result is not None:
                selection, self._typed = result
                self._begin_search(selection)

        self.app.push_screen(SearchDialog(first, self._typed), answered)

    def _begin_search(self, selection: Selection) -> None:
        view, window = self._view, self._window
        if view is None or window is None:
            return
        self._stop_following()
        if self._search is None:
            place = dict(window.start)
            for line in window.lines[: self._table.cursor]:
                place[line.partition] = max(line.next_offset, place[line.partition])
            self._before_search = place
        self.stop_work("window")
        self._is_loading = False
        self._search = _Search(selection, {}, {})
        self._table.put([], 0)

        def ends(task: Task) -> tuple[Place, Place]:
            return view.starts(), view.ends()

        def begin(places: tuple[Place, Place]) -> None:
            self._search = _Search(selection, *places)
            self._go_on()

        self.in_thread(ends, begin, "search")

    def _go_on(self) -> None:
        view, search = self._view, self._search
        if view is None or search is None or search.place is None:
            return
        start, said = search.place, 0.0
        search.is_running = True
        search.progress = "searching ..."
        self._tell()

        def work(task: Task) -> tuple[_Search, Found]:
            pending: list[Line] = []

            def report(found: Found) -> None:
                nonlocal said
                task.check()
                pending.extend(found.lines)
                now = time.monotonic()
                if now - said >= _REPORT_S:
                    said = now
                    lines, pending[:] = list(pending), []
                    task.hand(self._came_matches, (search, found._replace(lines=lines)))

            last = hunt(
                view, search.selection, start, report, search.begin, search.stop
            )
            return search, last._replace(lines=list(pending))

        self.in_thread(work, self._searched, "search")

    def _came_matches(self, result: tuple[_Search, Found]) -> None:
        search, found = result
        if search is not self._search:
            return
        search.place = found.place
        search.found += sum(isinstance(one, RecordLine) for one in found.lines)
        search.damage += sum(isinstance(one, NoticeLine) for one in found.lines)
        search.progress = _progress(search, found)
        if found.lines:
            is_first = not self._table.lines
            self._table.put(
                [*self._table.lines, *found.lines],
                0 if is_first else self._table.cursor,
            )
        self._tell()

    def _searched(self, result: tuple[_Search, Found]) -> None:
        search, found = result
        if search is not self._search:
            return
        self._came_matches(result)
        search.is_running = False
        if found.is_done:
            search.place = None
        else:
            search.progress += "   m: go on"
        self._tell()

    def action_more(self) -> None:
        """Look further behind these matches."""
        search = self._search
        if search is None or search.is_running or search.place is None:
            return
        self._table.put([], 0)
        self._go_on()

    def action_context(self) -> None:
        """Leave the search: the log around this row."""
        line, view = self._table.current, self._view
        if self._search is None or line is None or view is None:
            return
        self._end_search()
        number, offset = line.partition, line.offset

        def work(task: Task) -> tuple[View, Part, int, Place]:
            return view, *view.around(view.beside(number, offset)), view.ends()

        self._replace(work)

    def _end_search(self) -> None:
        self.stop_work("search")
        self._search = None

    # ------------------------------------------------------------------ following

    def action_follow(self) -> None:
        """Show what is appended, or no longer."""
        if self._follow is not None:
            self._stop_following()
            self._tell()
            return
        self._end_search()
        self._jump(FromEnd(1))
        self._follow = self.set_interval(_FOLLOW_S, self._look)
        self._tell()

    def _stop_following(self) -> None:
        if self._follow is not None:
            self._follow.stop()
            self._follow = None

    def _look(self) -> None:
        view, window = self._view, self._window
        if self._is_loading or view is None or window is None or self._search:
            return
        if not self._table.is_at_last and len(window.lines) > KEPT - PART:
            return  # somebody reads rows that would have to go
        place = dict(window.stop)
        self._is_loading = True
        self.in_thread(
            lambda task: (
                view.forward(place, looks_behind=False),
                view.ends(),
            ),
            self._came_new,
            "follow",
        )

    def _came_new(self, result: tuple[Part, Place]) -> None:
        self._is_loading = False
        if self._window is None or self._search:
            return
        part, self._ends = result
        behind = sum(self._ends[n] - offset for n, offset in part.stop.items())
        if behind > KEPT and self._table.is_at_last:
            self._jump(FromEnd(1))  # more comes than anybody reads
        else:
            self._append(self._window, part)

    def _append(self, window: Window, part: Part) -> None:
        """Show what follows; who follows the log and is at its end stays there."""
        sticks = self._follow is not None and self._table.is_at_last
        dropped = window.append(part)
        if part.lines:
            self._table.shift(window.lines, -dropped)
            if sticks:
                self._table.go_to(len(window.lines) - 1)
        self._tell()


def _progress(search: _Search, found: Found) -> str:
    what = counted(search.found, "match")
    damage = f", {counted(search.damage, 'damaged part')}" * bool(search.damage)
    return (
        f"{what}{damage}   looked at {grouped(found.looked)} of "
        f"{counted(found.total, 'offset')}"
    )


def title_of(topic: str, number: int | None, count: int) -> str:
    """Where one is, of a partition or of a topic as a whole."""
    if number is not None:
        return f"{topic} / partition {number}"
    return f"{topic} / {counted(count, 'partition')} by time"
