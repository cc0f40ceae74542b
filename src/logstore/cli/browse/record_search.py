"""A search on the screen of records: its matches are the rows, until it is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logstore.cli.browse.hunt import SearchProgress, hunt
from logstore.cli.browse.lines import RecordLine
from logstore.cli.browse.record_table import RecordTable
from logstore.cli.browse.window import BrowserView, Place
from logstore.cli.browse.work import ScreenTask, ScreenThreads
from logstore.cli.selection import Selection
from logstore.cli.text import counted, grouped

GROUP: Final = "search"


class RecordSearch:
    """One search through a log, from its start.

    Attributes:
        origin: the place to return to.
        progress: how far it is, as a sentence.
        is_running: whether a thread searches.

    Args:
        on_change: called after each change of the rows or of the progress.
    """

    def __init__(
        self,
        view: BrowserView,
        selection: Selection,
        table: RecordTable,
        work: ScreenThreads,
        origin: Place,
        on_change: Callable[[], None],
    ) -> None:
        self._view, self._selection = view, selection
        self._table, self._work, self._on_change = table, work, on_change
        self.origin = origin
        self.progress = "searching ..."
        self.is_running = True
        self._begin: Place = {}
        self._stop: Place = {}
        self._next: Place | None = None
        self._counts = [0, 0]  # matches, damaged parts

    def start(self) -> None:
        """Search from the start of the log to the end that it has now."""
        self._table.put([], 0)
        self._work.start(
            lambda task: (self._view.starts(), self._view.ends()), self._started, GROUP
        )

    def _started(self, places: tuple[Place, Place]) -> None:
        self._begin, self._stop = places
        self._hunt(self._begin)

    def more(self) -> None:
        """Continue after the matches that are shown, which disappear."""
        if not self.is_running and self._next is not None:
            self._table.put([], 0)
            self._hunt(self._next)

    def stop(self) -> None:
        """Stop the thread."""
        self._work.stop(GROUP)
        if self.is_running:
            self.failed()
            self.progress += "   stopped"
            self._on_change()

    def failed(self) -> None:
        self.is_running = False

    def _hunt(self, start: Place) -> None:
        self.is_running = True

        def work(task: ScreenTask) -> SearchProgress:
            last = hunt(
                self._view,
                self._selection,
                start,
                lambda progress: task.hand(self._came, progress),
                self._begin,
                self._stop,
                check=task.check,
            )
            return last._replace(lines=[])  # they were handed over

        self._work.start(work, self._ended, GROUP)

    def _came(self, progress: SearchProgress) -> None:
        if not self.is_running:
            return
        matches = sum(isinstance(line, RecordLine) for line in progress.lines)
        self._counts[0] += matches
        self._counts[1] += len(progress.lines) - matches
        damage = f", {counted(self._counts[1], 'damaged part')}" * bool(self._counts[1])
        self.progress = (
            f"{counted(self._counts[0], 'match')}{damage}   looked at "
            f"{grouped(progress.looked)} of {counted(progress.total, 'offset')}"
        )
        if progress.lines:
            self._table.extend(progress.lines)
        self._on_change()

    def _ended(self, progress: SearchProgress) -> None:
        self._came(progress)
        self.is_running = False
        self._next = None if progress.is_done else progress.place
        if not progress.is_done:
            self.progress += "   m: more"
        self._on_change()
