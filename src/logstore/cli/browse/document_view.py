"""The widget of a document: draws only the lines that are visible."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from logstore.cli.browse.lines import fitted
from logstore.cli.browse.payload import Document

# Columns of the terminal that hold no text: padding, and the scroll bar.
MARGIN: Final = 3
_STYLES: Final = {
    "": Style(),
    "head": Style(bold=True),
    "note": Style(color="red", bold=True),
}


class DocumentView(ScrollView, can_focus=True):
    """A document, from its first line on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down", show=False),
        Binding("k", "scroll_up", "Up", show=False),
        Binding("g", "scroll_home", "First", show=False),
        Binding("G", "scroll_end", "Last", show=False),
        Binding("space,ctrl+d,ctrl+f", "page_down", "Page", show=False),
        Binding("b,ctrl+u,ctrl+b", "page_up", "Page up", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.document = Document()

    def put(self, document: Document) -> None:
        """Show a document, from its first line on."""
        self.document = document
        self.virtual_size = Size(1, len(document))  # lines are cut to the width
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        text, name = self.document.line(y + self.scroll_offset.y)
        style = self.rich_style + _STYLES[name]
        return Strip([Segment(fitted(text, width), style)], width)
