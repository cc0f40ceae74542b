"""The app with all screens: how one goes from one to the other, and its looks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from rich.segment import Segment
from textual.app import App
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import LineFilter

import logstore
from logstore.cli.browse.catalog import BrowserCatalog, problems_by_partition
from logstore.cli.browse.damage_page import DamagePage
from logstore.cli.browse.dialogs import Help
from logstore.cli.browse.groups_page import GroupsPage
from logstore.cli.browse.page import Page
from logstore.cli.browse.records_page import RecordsPage, title_of
from logstore.cli.browse.topics_page import PartitionsPage, TopicsPage
from logstore.cli.params import Bound

INTERRUPTED: Final = 130
_OWN: Final = "logstore."
# The keys of every list; `_MOVING` are the names of their actions.
_MOVES: Final = (
    ("arrows, j k, wheel", "a row down, up"),
    ("PgDn PgUp, ctrl+d ctrl+u", "a page down, up"),
    ("g G, Home End", "the first, the last row"),
    ("Enter, l, click", "open"),
)
_MOVING: Final = ("move", "page", "open")


class _Plain(LineFilter):
    """Takes all colours away, which Textual makes grey: bold, dim and reverse stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and style.without_color, control)
            for text, style, control in segments
        ]


class Browser(App[int]):
    """A store, a broker's log directory, or a partition.

    Args:
        catalog: what is in it. Closed when the app ends.
        config: settings of the store, for `verify`.
        start: where records are shown from, when they are opened; None: the start.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "logstore"
    CSS = """
    #where {
        height: 1; text-style: bold; padding: 0 1; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    #status { height: auto; max-height: 4; padding: 0 1; background: $panel; }
    Grid { height: 1fr; scrollbar-size-vertical: 1; }
    Grid#members { border-top: solid $primary; }
    RecordTable { height: 1fr; }
    DocumentView {
        height: 1fr; border-top: solid $primary; padding: 0 1; overflow-x: hidden;
        overflow-y: scroll; scrollbar-size-vertical: 1;
    }
    DocumentView:focus { border-top: double $primary; }
    #message { height: auto; max-height: 6; padding: 0 1; border-top: solid $primary; }
    ModalScreen { align: center middle; }
    #dialog, #help {
        width: 76; max-width: 96%; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface;
    }
    .title { text-style: bold; margin-bottom: 1; }
    .faint { text-style: dim; }
    Grid:nocolor > .datatable--cursor { text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "topics", "Topics"),
        Binding("2", "groups", "Groups"),
        Binding("3", "damage", "Damage"),
        Binding("question_mark", "keys", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False),
        Binding("ctrl+c", "interrupt", "Interrupt", show=False, priority=True),
    ]

    def __init__(
        self,
        catalog: BrowserCatalog,
        *,
        config: logstore.StoreConfig | None = None,
        start: Bound = None,
    ) -> None:
        super().__init__()
        self.catalog = catalog
        self.config = config
        self._begin = start
        self._checked: dict[tuple[str, int], int] | None = None
        self._report: logstore.types.VerifyReport | None = None

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*filters, _Plain()] if os.environ.get("NO_COLOR") else filters

    # ------------------------------------------------------------------ what is known

    @property
    def report(self) -> logstore.types.VerifyReport | None:
        """Report of `verify`; None: it has not run."""
        return self._report

    @report.setter
    def report(self, report: logstore.types.VerifyReport) -> None:
        self._report = report
        self._checked = problems_by_partition(report)

    def problems_of(self, topic: str, number: int | None = None) -> int | None:
        """The problems of a partition, or of a topic; None: not known."""
        if self._checked is None:
            return None
        return sum(
            count
            for (name, partition), count in self._checked.items()
            if name == topic and number in (None, partition)
        )

    # ------------------------------------------------------------------ screens

    def on_mount(self) -> None:
        self.push_screen(TopicsPage(self.catalog))
        names = self.catalog.names()
        if len(names) == 1:
            self.open_topic(names[0], self.catalog.numbers(names[0]))

    def open_topic(self, topic: str, numbers: Sequence[int]) -> None:
        """The partitions of a topic; the records, if it has one."""
        if len(numbers) == 1:
            self.open_records(topic, numbers[0])
        else:
            self.push_screen(PartitionsPage(self.catalog, topic))

    def open_records(
        self, topic: str, number: int | None, start: Bound = None, count: int = 1
    ) -> None:
        """The records of a partition, or, without a number, of all `count` that were
        chosen; from where the command line says, if no place is given."""
        catalog = self.catalog
        title = title_of(topic, number, count)
        begin = self._begin if start is None else start
        self.push_screen(RecordsPage(lambda: catalog.view(topic, number), title, begin))

    def go_back(self) -> None:
        """Return to the previous screen; on the first screen, do nothing."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def _restart(self) -> None:
        while len(self.screen_stack) > 2:
            self.pop_screen()

    def action_topics(self) -> None:
        """All topics."""
        self._restart()

    def action_groups(self) -> None:
        """Groups of consumers, with lag and members."""
        if self.catalog.is_store:
            self._restart()
            self.push_screen(GroupsPage(self.catalog))
        elif isinstance(self.screen, Page):
            self.screen.say(
                "groups are those of a whole directory: PATH is a partition"
            )

    def action_damage(self) -> None:
        """Findings of verify."""
        self._restart()
        self.push_screen(DamagePage(self.catalog))

    def action_keys(self) -> None:
        """These keys."""
        screen = self.screen
        if isinstance(screen, Page):
            self.push_screen(Help(screen.about, [*_MOVES, *_keys_of(screen)]))

    async def action_quit(self) -> None:
        """End it."""
        self.exit(0)

    def action_interrupt(self) -> None:
        """End it, with status 130."""
        self.exit(INTERRUPTED)


def _keys_of(screen: Page) -> Iterator[tuple[str, str]]:
    """The keys of a screen, without the keys that move in any list: only bindings of
    the browser itself, once for each action."""
    seen: set[str] = set()
    for node, binding, *_ in screen.active_bindings.values():
        name = binding.action.removeprefix("app.").partition("(")[0]
        methods = (
            getattr(owner, f"action_{name}", None) for owner in (node, screen.app)
        )
        method: Any = next(
            (candidate for candidate in methods if candidate is not None), None
        )
        module = getattr(method, "__module__", "")
        if binding.action in seen or name in _MOVING or not module.startswith(_OWN):
            continue
        seen.add(binding.action)
        doc = (method.__doc__ or "").split("\n")[0].rstrip(".")
        key = binding.key_display or binding.key
        yield key, f"{binding.description}: {doc}" if doc else binding.description
