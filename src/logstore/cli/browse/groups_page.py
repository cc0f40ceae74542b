"""The screens of groups of consumers, and of the partitions and members of one group.

The content is that of `groups list` and `groups describe`.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.timer import Timer
from textual.widgets import DataTable

from logstore.cli.browse.catalog import BrowserCatalog
from logstore.cli.browse.grid import Grid
from logstore.cli.browse.lines import clean
from logstore.cli.browse.page import Page
from logstore.cli.browse.window import plain
from logstore.cli.browse.work import ScreenTask
from logstore.cli.group_list import (
    COLUMNS,
    MEMBER_COLUMNS,
    ROW_COLUMNS,
    FoundGroups,
    ListedGroup,
    about_members,
    groups_in,
)
from logstore.cli.tables import Column
from logstore.cli.text import counted

_AGAIN_S: Final = 2.0
_STUCK: Final = Column(
    "stuck", lambda row: row[1].is_stuck, lambda stuck: "STUCK" if stuck else ""
)


class _Watching(Page):
    """A screen with the groups of `groups list`, read again two seconds after the last
    read; if that took longer, after as long as it took."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, title: str, catalog: BrowserCatalog) -> None:
        super().__init__(title)
        self._catalog = catalog
        self._timer: Timer | None = None
        self._begin_s = 0.0
        self._is_reading = False

    def on_mount(self) -> None:
        self.say("reading ...")
        self.query(Grid).first().focus()
        self._load()

    def on_screen_resume(self) -> None:
        self._load()

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.stop()

    def _load(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        # A stopped read ends only later: never run two at a time.
        if not self._is_reading:
            self._is_reading = True
            self._begin_s = time.monotonic()
            self.work.start(self._found, self._take, "groups")

    def _later(self) -> None:
        self._is_reading = False
        took = time.monotonic() - self._begin_s
        if self.is_current:
            self._timer = self.set_timer(max(_AGAIN_S, took), self._load)

    def gave_up(self, group: str) -> None:
        self._later()

    def _found(self, task: ScreenTask) -> FoundGroups:
        return groups_in([self._catalog.root])

    def _take(self, groups: FoundGroups) -> None:
        if groups.problems:
            self.say(plain(groups.problems[0]), "bold red")
        else:
            self.say(self.summary(groups))
        notes = [clean(plain(note)) for note in about_members(groups.own)]
        if notes:
            more = f" (and {counted(len(notes) - 1, 'more note')})" * (len(notes) > 1)
            self.say(notes[0] + more, "bold yellow")
        self.put(groups)
        self._later()

    def put(self, groups: FoundGroups) -> None:
        raise NotImplementedError

    def summary(self, groups: FoundGroups) -> str:
        raise NotImplementedError


class GroupsPage(_Watching):
    """All groups."""

    about = "Groups of consumers"

    def __init__(self, catalog: BrowserCatalog) -> None:
        super().__init__("groups", catalog)

    def body(self) -> ComposeResult:
        yield Grid(COLUMNS, lambda row: (row.protocol, row.group), _style)

    def put(self, groups: FoundGroups) -> None:
        self.query_one(Grid).put(groups.listed)

    def summary(self, groups: FoundGroups) -> str:
        return counted(len(groups.listed), "group")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self.query_one(Grid).current
        if row is not None:
            self.app.push_screen(GroupPage(self._catalog, row))


class GroupPage(_Watching):
    """The partitions and members of a group. Enter on a partition shows the records
    from the committed offset on."""

    about = "A group: its partitions above, its members below (Tab)"

    def __init__(self, catalog: BrowserCatalog, group: ListedGroup) -> None:
        super().__init__(f"groups / {group.group}", catalog)
        self._group = group

    def body(self) -> ComposeResult:
        yield Grid(
            ROW_COLUMNS[1:], lambda row: (row[1].topic, row[1].partition), id="rows"
        )
        yield Grid(
            (*MEMBER_COLUMNS[1:], _STUCK),
            lambda row: row[1].id,
            lambda row: "bold red" if row[1].is_stuck else "",
            id="members",
        )

    def put(self, groups: FoundGroups) -> None:
        group = self._in(groups)
        if group is None:
            name = clean(self._group.group)
            self.say(f"group {name} no longer exists", "bold red")
            return
        self.query_one("#rows", Grid).put([(group.group, row) for row in group.rows])
        self.query_one("#members", Grid).put([(group.group, m) for m in group.members])

    def summary(self, groups: FoundGroups) -> str:
        group = self._in(groups)
        if group is None:
            return ""  # `put` says so
        return f"{group.state}, {counted(len(group.members), 'member')}"

    def _in(self, groups: FoundGroups) -> ListedGroup | None:
        name = self._group.protocol, self._group.group
        return next((g for g in groups.listed if (g.protocol, g.group) == name), None)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        selected_row: Any = self.query_one("#rows", Grid).current
        if event.data_table.id == "rows" and selected_row is not None:
            row = selected_row[1]
            self.browser.open_records(row.topic, row.partition, row.offset)


def _style(row: ListedGroup) -> str:
    return "bold red" if row.stuck else ""
