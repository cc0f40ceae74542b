"""The screens of topics, and of the partitions of one topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import DataTable

from logstore.cli import ls
from logstore.cli.browse.catalog import (
    BrowserCatalog,
    PartitionRow,
    TopicRow,
    rows_of,
)
from logstore.cli.browse.grid import Grid
from logstore.cli.browse.page import Page
from logstore.cli.browse.work import ScreenTask
from logstore.cli.tables import Column
from logstore.cli.text import counted, grouped, size_text, time_text

_AGAIN_S: Final = 2.0
_REST: Final = 4  # the rows of a large store are read a fifth of the time at most
_REPORT_S: Final = 0.2
_UNKNOWN: Final = "-"


def _count_text(value: tuple[int, bool]) -> str:
    """Records that were counted, or how many there are at most."""
    number, is_counted = value
    return grouped(number) if is_counted or not number else f"≤ {grouped(number)}"


def damage_text(checked: int | None, trouble: str) -> str:
    """The mark of damage: what could not be read, or what `verify` found."""
    if trouble:
        return "! unreadable"
    if checked is None:
        return _UNKNOWN
    return f"! {counted(checked, 'problem')}" if checked else "ok"


class _Counting(Page):
    """A screen of rows that are read again and again, and whose records are counted
    on request."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "count", "Count"),
        Binding("r", "again", "Read again", show=False),
    ]

    def __init__(self, title: str, catalog: BrowserCatalog) -> None:
        super().__init__(title)
        self.catalog = catalog
        self._rows: list[Any] = []
        self._timer: Timer | None = None
        self._is_counting = False

    @property
    def grid(self) -> Grid:
        return self.query_one(Grid)

    def on_mount(self) -> None:
        self.grid.focus()
        self.say("reading ...")
        self._load()

    def on_screen_resume(self) -> None:
        self._load()

    def rows(self, task: ScreenTask) -> list[Any]:
        """Read the current rows; called in a thread."""
        raise NotImplementedError

    def counted_names(self) -> list[tuple[str, int]]:
        """The partitions of the rows."""
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError

    def _load(self) -> None:
        if self._timer is not None:
            self._timer.stop()

        def work(task: ScreenTask) -> tuple[list[Any], float]:
            begin = time.monotonic()
            return self.rows(task), time.monotonic() - begin

        self.work.start(work, self._loaded, "rows")

    def _loaded(self, result: tuple[list[Any], float]) -> None:
        self._rows, took = result
        self.grid.put(self._rows)
        if not self._is_counting:
            self.say(self.summary())
        self._later(took)

    def _later(self, took: float) -> None:
        if self.is_current:
            self._timer = self.set_timer(max(_AGAIN_S, _REST * took), self._load)

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.stop()

    def gave_up(self, group: str) -> None:
        if group == "count":
            self._is_counting = False
        elif group == "rows":
            self._later(_AGAIN_S)

    def action_again(self) -> None:
        """Read the rows once more."""
        self._load()

    def action_count(self) -> None:
        """Count the records, as stat does."""
        names = self.counted_names()
        self._is_counting = True
        self.say("counting ...")
        said = 0.0

        def work(task: ScreenTask) -> None:
            def progress(done: int, total: int) -> None:
                nonlocal said
                task.check()
                now = time.monotonic()
                if now - said >= _REPORT_S:
                    said = now
                    task.hand(self._counting, (done, total))

            self.catalog.count(names, progress)

        self.work.start(work, self._counted, "count")

    def _counting(self, progress: tuple[int, int]) -> None:
        done, total = progress
        if self._is_counting:
            self.say(f"counting: {size_text(done)} of {size_text(total)}   Esc: stop")

    def _counted(self, _: None) -> None:
        self._is_counting = False
        self._load()

    def action_back(self) -> None:
        """Stop counting, or go back."""
        if self._is_counting:
            self._is_counting = False
            self.work.stop("count")
            self.say("counting: stopped")
            return
        super().action_back()


class TopicsPage(_Counting):
    """All topics."""

    about = "Topics"

    def __init__(self, catalog: BrowserCatalog) -> None:
        super().__init__("topics", catalog)

    def body(self) -> ComposeResult:
        columns = (
            Column("topic", lambda row: row.name),
            Column(
                "partitions", lambda row: len(row.partitions), grouped, True, None, 4
            ),
            Column("records", _records_of, _count_text, True),
            Column("size", lambda row: row.size, size_text, True, None, 1),
            Column("damage", self._damage, str, False, None, 0),
            Column("first time", lambda row: row.first_ms, time_text, False, None, 6),
            Column("last time", lambda row: row.last_ms, time_text, False, None, 2),
            Column("keeps", lambda row: row.policy, str, False, None, 3),
            Column("format", lambda row: row.form or _UNKNOWN, str, False, None, 5),
        )
        yield Grid(columns, lambda row: row.name, self._style)

    def _damage(self, row: TopicRow) -> str:
        trouble = row.trouble + "".join(
            partition.trouble for partition in row.partitions
        )
        return damage_text(self.browser.problems_of(row.name), trouble)

    def _style(self, row: TopicRow) -> str:
        return "bold red" if self._damage(row).startswith("!") else ""

    def rows(self, task: ScreenTask) -> list[TopicRow]:
        rows: list[TopicRow] = []
        begin, shown = time.monotonic(), 0
        for row in rows_of(self.catalog, task.check):
            rows.append(row)
            # The first rows early; each time they are drawn, there are twice as many.
            is_late = time.monotonic() - begin >= _REPORT_S
            if is_late and len(rows) >= 2 * shown and not self._rows:
                shown = len(rows)
                task.hand(self._some, list(rows))
        return rows

    def _some(self, rows: list[TopicRow]) -> None:
        if not self._rows:
            self.grid.put(rows)
            self.say(f"reading ...   {counted(len(rows), 'topic')}")

    def summary(self) -> str:
        broken: list[Any] = [row for row in self._rows if row.trouble]
        broken += [
            partition
            for row in self._rows
            for partition in row.partitions
            if partition.trouble
        ]
        if broken:
            return f"{broken[0].name}: {broken[0].trouble}"
        sizes = sum(row.size for row in self._rows)
        return f"{counted(len(self._rows), 'topic')}, {size_text(sizes)}"

    def counted_names(self) -> list[tuple[str, int]]:
        return [
            (partition.topic, partition.number)
            for row in self._rows
            for partition in row.partitions
        ]

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self.grid.current
        if row is not None:
            self.browser.open_topic(
                row.name, [partition.number for partition in row.partitions]
            )


class PartitionsPage(_Counting):
    """The partitions of a topic."""

    about = "Partitions of a topic"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("a", "all", "All")]

    def __init__(self, catalog: BrowserCatalog, topic: str) -> None:
        super().__init__(topic, catalog)
        self._topic = topic

    def body(self) -> ComposeResult:
        yield Grid(_PARTITION_COLUMNS, lambda row: row.number, self._style)

    def _style(self, row: PartitionRow) -> str:
        return "bold red" if damage_of(row).startswith("!") else ""

    def rows(self, task: ScreenTask) -> list[PartitionRow]:
        rows = self.catalog.topic_row(self._topic).partitions
        for row in rows:
            row.problems = self.browser.problems_of(row.topic, row.number)
        return rows

    def summary(self) -> str:
        broken = [row for row in self._rows if row.trouble]
        if broken:
            return f"{broken[0].name}: {broken[0].trouble}"
        return counted(len(self._rows), "partition")

    def counted_names(self) -> list[tuple[str, int]]:
        return [(row.topic, row.number) for row in self._rows]

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self.grid.current
        if row is not None:
            self.browser.open_records(row.topic, row.number)

    def action_all(self) -> None:
        """The records of all partitions, by their times."""
        self.browser.open_records(self._topic, None, count=len(self._rows))


def _partitions_of(row: TopicRow) -> int:
    return len(row.partitions)


def _records_of(row: TopicRow) -> tuple[int, bool]:
    records = row.records
    return (row.offsets, False) if records is None else (records, True)


def damage_of(row: PartitionRow) -> str:
    return damage_text(row.problems, row.trouble)


def _listed(name: str, **changes: Any) -> Column:
    """A column of `ls`; of a partition that cannot be opened it is empty."""
    column = next(candidate for candidate in ls.COLUMNS if candidate.name == name)
    return Column(
        name,
        lambda row: (
            (False, 0) if row.listed is None else (True, column.key(row.listed))
        ),
        lambda value: column.text(value[1]) if value[0] else _UNKNOWN,
        column.is_number,
        None,
        changes.get("spare", column.spare),
    )


def _tallied(row: PartitionRow) -> tuple[int, bool]:
    if row.tally is not None:
        return row.tally.records, True
    return (0 if row.listed is None else row.listed.end - row.listed.start), False


_PARTITION_COLUMNS: Sequence[Column] = (
    Column("partition", lambda row: row.number, str, True),
    Column("records", _tallied, _count_text, True),
    _listed("start"),
    _listed("end", spare=1),
    _listed("durable"),
    _listed("segments"),
    _listed("size"),
    Column("damage", damage_of),
    Column("first time", lambda row: row.first_ms, time_text, False, None, 5),
    _listed("last time"),
    Column("format", lambda row: row.form or _UNKNOWN, str, False, None, 6),
)
