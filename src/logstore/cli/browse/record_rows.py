"""The rows of a partition or topic: a window that moves with the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from logstore.cli.browse.record_table import RecordTable
from logstore.cli.browse.window import KEPT, PART, BrowserView, Part, Place, Window
from logstore.cli.browse.work import ScreenTask, ScreenThreads
from logstore.cli.params import Bound

GROUP: Final = "window"
_Around = tuple[BrowserView, Part, int, Place]


class RecordRows:
    """Fills a table with the records around a place, and reads more at its ends.

    Attributes:
        view: the log; None until it was opened.
        ends: the ends of the partitions, as of the last read.
        follows: whether the cursor stays at the last row when rows are added.
        is_paused: whether the table shows other rows, which stay.

    Args:
        open_view: opens the log; called in a thread.
        on_change: called after each change of the rows.
    """

    def __init__(
        self,
        table: RecordTable,
        work: ScreenThreads,
        open_view: Callable[[], BrowserView],
        on_change: Callable[[], None],
    ) -> None:
        self._table, self._work = table, work
        self._open_view, self._on_change = open_view, on_change
        self._window: Window | None = None
        self._is_loading = False
        self.view: BrowserView | None = None
        self.ends: Place = {}
        self.follows = False
        self.is_paused = False

    def here(self) -> Place:
        """The place of the row at the cursor."""
        window = self._window
        if window is None:
            return {}
        place = dict(window.start)
        for line in window.lines[: self._table.cursor]:
            place[line.partition] = max(line.next_offset, place[line.partition])
        return place

    # ------------------------------------------------------------------ jumps

    def jump(self, bound: Bound) -> None:
        """Show the records from a bound on."""
        self._replace(lambda view: view.around(view.place(bound)))

    def jump_to_last(self) -> None:
        """Show the last records, with the cursor at the last one."""
        self._replace(lambda view: view.tail())

    def show(self, place: Place) -> None:
        """Show the records from a place on."""
        self._replace(lambda view: view.around(place))

    def show_beside(self, partition: int, offset: int) -> None:
        """Show the log from a record on."""
        self._replace(lambda view: view.around(view.beside(partition, offset)))

    def _replace(self, read: Callable[[BrowserView], tuple[Part, int]]) -> None:
        def work(task: ScreenTask) -> _Around:
            view = self.view or self._open_view()
            return view, *read(view.checked(task.check)), view.ends()

        self._is_loading = True
        self._work.start(work, self._replaced, GROUP)

    def _replaced(self, result: _Around) -> None:
        self.view, part, cursor, self.ends = result
        self._is_loading = self.is_paused = False
        self._table.is_merged = self.view.is_merged
        self._window = Window(part)
        self._table.put(self._window.lines, cursor)
        self._table.go_to(cursor)  # reads earlier rows, too
        self._on_change()

    def pause(self) -> None:
        """Leave the table to other rows, until the next jump."""
        self._work.stop(GROUP)
        self._is_loading = False
        self.is_paused = True

    def failed(self) -> None:
        """A read has failed."""
        self._is_loading = False

    # ------------------------------------------------------------------ scrolling

    def near(self, *, is_end: bool) -> None:
        """Read further records: the cursor is near an end of the rows."""
        view, window = self.view, self._window
        if view is None or window is None or self._is_loading or self.is_paused:
            return
        if is_end and not window.at_end:
            self._read_on(view, window)
        elif not is_end and not window.at_start:
            place = dict(window.start)
            self._is_loading = True
            self._work.start(
                lambda task: view.checked(task.check).backward(place),
                self._came_earlier,
                GROUP,
            )

    def look(self) -> None:
        """Read what was appended since the last read."""
        view, window = self.view, self._window
        if view is None or window is None or self._is_loading or self.is_paused:
            return
        # Rows that are being read must not be dropped for new ones.
        if self._table.is_at_last or len(window.lines) <= KEPT - PART:
            self._read_on(view, window, looks_further=False)

    def _read_on(self, view: BrowserView, window: Window, **options: Any) -> None:
        place = dict(window.stop)
        self._is_loading = True
        self._work.start(
            lambda task: (
                view.checked(task.check).forward(place, **options),
                view.ends(),
            ),
            self._came_later,
            GROUP,
        )

    def _came_later(self, result: tuple[Part, Place]) -> None:
        part, self.ends = result
        self._is_loading = False
        window = self._window
        if window is None or self.is_paused:
            return
        sticks = self.follows and self._table.is_at_last
        left = sum(self.ends[n] - offset for n, offset in part.stop.items())
        if sticks and left > KEPT:
            self.jump_to_last()  # more is appended than can be shown
            return
        dropped = window.append(part)
        if part.lines:
            self._table.shift(window.lines, -dropped)
            if sticks:
                self._table.go_to(len(window.lines) - 1)
        self._on_change()

    def _came_earlier(self, part: Part) -> None:
        self._is_loading = False
        window = self._window
        if window is None or self.is_paused:
            return
        count = window.prepend(part)
        self._table.shift(window.lines, count)
        self._on_change()
