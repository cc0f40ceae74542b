"""The parts that all screens of the browser have: the line of the title, the line of
the status, the footer, the work in threads."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

import logstore
from logstore.cli.advice import error_text
from logstore.cli.browse.lines import clean
from logstore.cli.browse.window import plain
from logstore.cli.browse.work import Came, ScreenThreads
from logstore.cli.text import relative


class Page(Screen[None]):
    """A screen of the browser.

    Attributes:
        about: the title of its help.
        work: its threads.
    """

    about: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,h", "back", "Back"),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._page_title = title
        self.work = ScreenThreads(self, self._failed)

    @property
    def browser(self) -> Any:
        """The app: its type is above this one."""
        return self.app

    def compose(self) -> ComposeResult:
        yield Static("", id="where")
        yield from self.body()
        yield Static("", id="status")
        yield Footer(show_command_palette=False)

    def body(self) -> ComposeResult:
        """The widgets between the two lines."""
        yield from ()

    def _on_mount(self, event: events.Mount) -> None:
        super()._on_mount(event)
        path = relative(self.browser.catalog.path)
        # The path is last: it is longer, and known.
        text = Text(f"{clean(self._page_title)}   ({clean(path)})", no_wrap=True)
        self.query_one("#where", Static).update(text)

    def say(self, text: str, style: str = "") -> None:
        """Set the status line. Text from the store must be escaped before."""
        self.query_one("#status", Static).update(Text(text, style=style))

    def _failed(self, failure: tuple[str, Exception]) -> None:
        group, error = failure
        text = error_text(error)
        if not isinstance(error, (logstore.LogStoreError, OSError, ValueError)):
            text = f"{type(error).__name__}: {text}"  # its text alone says little
        self.say(plain(text), "bold red")
        self.gave_up(group)

    def gave_up(self, group: str) -> None:
        """The work of a group has failed; the status line has the reason."""

    def on_came(self, message: Came) -> None:
        message.stop()
        if self.is_attached and not message.task.is_stopped:
            message.take(message.value)

    def action_back(self) -> None:
        """To the screen before."""
        self.browser.go_back()
