"""What all screens of the browser have: a line that says where one is, one that says
what happens, keys, and work in threads.

Nothing is read in the thread that draws. What a thread has read comes back as a
message, so that it never waits for a screen that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, get_current_worker

import logstore
from logstore.cli.advice import error_text
from logstore.cli.browse.catalog import StoppedError
from logstore.cli.browse.lines import clean
from logstore.cli.browse.window import told
from logstore.cli.text import relative

_Result = TypeVar("_Result")


class Task:
    """Work of a thread for a screen. Any thread may call it."""

    def __init__(self, page: Page, worker: Worker[None]) -> None:
        self._page, self._worker = page, worker

    @property
    def is_stopped(self) -> bool:
        """Whether nobody waits for the result any longer."""
        return self._worker.is_cancelled

    def check(self) -> None:
        """End the work if nobody waits for it. Raises: StoppedError."""
        if self.is_stopped:
            raise StoppedError

    def hand(self, take: Callable[[Any], None], value: Any) -> None:
        """Have the screen take a value, in its own thread."""
        if not self.is_stopped:
            self._page.post_message(Page.Came(take, value))


class Page(Screen[None]):
    """A screen of the browser.

    Attributes:
        about: what the help says of it.
    """

    about: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,h", "back", "Back"),
    ]

    class Came(Message):
        """A thread has something for this screen."""

        def __init__(self, take: Callable[[Any], None], value: Any) -> None:
            super().__init__()
            self.take, self.value = take, value

    def __init__(self, title: str) -> None:
        super().__init__()
        self._where = title

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

    # ------------------------------------------------------------------ what happens

    def entitle(self) -> None:
        """Set the line that says where one is."""
        path = relative(self.browser.catalog.path)
        # The path at the end: it is the longer one, and known.
        text = Text(f"{clean(self._where)}   ({clean(path)})", no_wrap=True)
        self.query_one("#where", Static).update(text)

    def _on_mount(self, event: events.Mount) -> None:
        super()._on_mount(event)
        self.entitle()

    def say(self, text: str, style: str = "") -> None:
        """Set the line that says what happens: of the store, escaped before."""
        self.query_one("#status", Static).update(Text(text, style=style))

    def complain(self, error: Exception) -> None:
        """Say what failed, as the other commands do."""
        self.say(told(error_text(error)), "bold red")

    # ------------------------------------------------------------------ threads

    def in_thread(
        self,
        work: Callable[[Task], _Result],
        take: Callable[[_Result], None],
        group: str,
    ) -> None:
        """Do work in a thread, and take its result in this one. Later work of the same
        group stops it; an error is shown."""

        def run() -> None:
            task = Task(self, get_current_worker())
            try:
                result = work(task)
            except StoppedError:
                return
            except (logstore.LogStoreError, OSError, ValueError) as error:
                task.hand(self._failed, (group, error))
                return
            task.hand(take, result)

        self.run_worker(run, thread=True, exclusive=True, group=group)

    def _failed(self, what: tuple[str, Exception]) -> None:
        group, error = what
        self.complain(error)
        self.gave_up(group)

    def gave_up(self, group: str) -> None:
        """The work of a group has failed; the reason is shown."""

    def on_page_came(self, message: Page.Came) -> None:
        message.stop()
        if self.is_attached:
            message.take(message.value)

    def stop_work(self, group: str) -> bool:
        """Stop the work of a group; whether there was some."""
        stopped = self.workers.cancel_group(self, group)
        return bool(stopped)

    # ------------------------------------------------------------------ keys

    def action_back(self) -> None:
        """To the screen before."""
        self.browser.go_back()
