"""Small windows over a screen: where to go, what to look for, which keys there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import click
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from logstore.cli.browse.lines import clean
from logstore.cli.params import BOUND, KEY, PATTERN, Bound
from logstore.cli.selection import Selection


class _Dialog(ModalScreen[Any]):
    """Some inputs below each other. Enter takes them, if they can be understood."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]
    title_text: ClassVar[str] = ""
    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, first: int = 0, values: Iterable[str] = ()) -> None:
        super().__init__()
        self._first = first
        self._values = [*values] or [""] * len(self.labels)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self.title_text, markup=False, classes="title")
            for number, label in enumerate(self.labels):
                yield Static(label, markup=False)
                yield Input(self._values[number], id=f"input-{number}")
            yield Static("", id="problem")
            yield Static("Enter: go    Esc: cancel", markup=False, classes="faint")

    def on_mount(self) -> None:
        self.query_one(f"#input-{self._first}", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            result = self.understood([field.value for field in self.query(Input)])
        except click.UsageError as error:
            problem = Text(clean(error.message), style="bold red")
            self.query_one("#problem", Static).update(problem)
            return
        self.dismiss(result)

    def understood(self, values: list[str]) -> Any:
        """The value of the inputs.

        Raises:
            click.UsageError: they are not understood.
        """
        raise NotImplementedError

    def action_cancel(self) -> None:
        self.dismiss(None)


class JumpDialog(_Dialog):
    """Asks for an offset or a time, as ``--from`` takes it."""

    title_text = "Jump to"
    labels = (
        "an offset (1,200), a time (2024-05-01T12:00:00Z, 1714564800000ms; without "
        "a\nzone: local time), or -N: the last N records",
    )

    def understood(self, values: list[str]) -> Bound:
        bound: Bound = BOUND.convert(values[0].strip(), None, None)
        return bound


class SearchDialog(_Dialog):
    """Asks for a key or a pattern, as ``--key`` and ``--grep`` take them. The result is
    (the selection, what was typed)."""

    title_text = "Show only records"
    labels = (
        "with exactly this key (text, hex:00ff or base64:AP8=)",
        "whose key or value matches this regular expression",
    )

    def understood(self, values: list[str]) -> tuple[Selection, list[str]]:
        key, pattern = values
        if not key and not pattern:
            raise click.UsageError("give a key, a regular expression, or both")
        selection = Selection(
            KEY.convert(key, None, None) if key else None,
            PATTERN.convert(pattern, None, None) if pattern else None,
        )
        return selection, values


class Help(ModalScreen[None]):
    """The keys of a screen. Any key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("escape,q,question_mark,enter", "close", "Close"),
    ]

    def __init__(self, about: str, keys: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self._about, self._keys = about, list(keys)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._about, markup=False, classes="title")
            text = "\n".join(f"{keys:24} {what}" for keys, what in self._keys)
            yield Static(text, markup=False)

    def action_scroll(self, by: int) -> None:
        self.query_one("#help").scroll_relative(y=by, animate=False)

    def action_close(self) -> None:
        self.dismiss()
