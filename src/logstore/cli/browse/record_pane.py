"""The pane of one record: reads the record at the cursor and makes its document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual.timer import Timer

from logstore.cli.browse.document_view import MARGIN, DocumentView
from logstore.cli.browse.lines import Line, NoticeLine
from logstore.cli.browse.payload import (
    MODES,
    Block,
    Document,
    Whole,
    document_of,
    whole_of,
)
from logstore.cli.browse.window import BrowserView
from logstore.cli.browse.work import ScreenTask, ScreenThreads

GROUP: Final = "whole"
_SLOW_S: Final = 0.25


def _one_line(text: str, style: str) -> Document:
    return Document([Block(1, lambda _: text, style)])


class RecordPane:
    """Shows one record in a widget. Work that takes long shows a note instead of the
    last record."""

    def __init__(self, widget: DocumentView, work: ScreenThreads) -> None:
        self._widget, self._work = widget, work
        self._mode = 0
        self._whole: Whole | None = None
        self._slow: Timer | None = None
        widget.display = False

    @property
    def is_open(self) -> bool:
        return bool(self._widget.display)

    @property
    def mode(self) -> str:
        """How keys and values are shown: one of `MODES`."""
        return MODES[self._mode]

    def next_mode(self) -> None:
        self._mode = (self._mode + 1) % len(MODES)

    def show(self, line: Line | None, view: BrowserView | None) -> None:
        """Open the pane with the record of a row, or with the text of a notice."""
        self._widget.display = True
        if line is None or view is None:
            return
        if isinstance(line, NoticeLine):
            self._whole = None
            self._widget.put(_one_line(line.text, "note"))
            return
        partition, offset = view.partitions[line.partition], line.offset
        mode, width = self.mode, self._width

        def work(task: ScreenTask) -> tuple[Whole, Document]:
            whole = whole_of(partition, offset)
            return whole, document_of(whole, mode, width)

        self._start(work)

    def redraw(self) -> None:
        """Show the same record in the mode and width of now."""
        whole = self._whole
        if whole is not None:
            mode, width = self.mode, self._width
            self._start(lambda task: (whole, document_of(whole, mode, width)))

    def close(self) -> None:
        self._widget.display = False
        self._whole = None

    def focus(self) -> None:
        self._widget.focus()

    def failed(self) -> None:
        """The record could not be read."""
        self._end_wait()
        self._whole = None
        self._widget.put(Document())

    @property
    def _width(self) -> int:
        return max(self._widget.app.size.width - MARGIN, 20)

    def _start(self, work: Callable[[ScreenTask], tuple[Whole, Document]]) -> None:
        self._end_wait()
        note = _one_line("reading ...", "head")
        self._slow = self._widget.set_timer(_SLOW_S, lambda: self._widget.put(note))
        self._work.start(work, self._put, GROUP)

    def _put(self, result: tuple[Whole, Document]) -> None:
        self._end_wait()
        self._whole, document = result
        self._widget.put(document)

    def _end_wait(self) -> None:
        if self._slow is not None:
            self._slow.stop()
