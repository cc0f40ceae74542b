"""The screen of damage: runs `verify` on request, and lists its findings."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar, Final, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

import logstore
from logstore.cli.browse.catalog import BrowserCatalog, partition_of
from logstore.cli.browse.grid import Grid
from logstore.cli.browse.page import Page
from logstore.cli.browse.window import plain
from logstore.cli.browse.work import ScreenTask
from logstore.cli.tables import Column
from logstore.cli.text import counted, offsets_text, size_text

_REPORT_S: Final = 0.2
_WIDTH: Final = 24


class _Row(NamedTuple):
    """A problem or a note; `at`: its number in the report."""

    at: int
    is_problem: bool
    finding: Any

    @property
    def where(self) -> str:
        name = partition_of(self.finding.path)
        return "-" if name is None else f"{name[0]}-{name[1]}"

    @property
    def message(self) -> str:
        """The message with the name of the file instead of its path, which is long."""
        path = self.finding.path
        name = os.path.basename(path)
        return plain(self.finding.message.replace(path, name))

    @property
    def offsets(self) -> str:
        first, last = self.finding.first_offset, self.finding.last_offset
        if first is None:
            return "-"
        return f"{first}.." if last is None else offsets_text(first, last + 1)


_COLUMNS: Final = (
    Column("level", lambda row: "problem" if row.is_problem else "note"),
    Column("kind", lambda row: row.finding.kind),
    Column("partition", lambda row: row.where),
    Column("offsets", lambda row: row.offsets, spare=1),
    Column("message", lambda row: row.message),
)


class DamagePage(Page):
    """Problems and notes. Enter on one shows the records there."""

    about = "Damage: the findings of verify"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "verify(False)", "Verify"),
        Binding("d", "verify(True)", "Deep"),
    ]

    def __init__(self, catalog: BrowserCatalog) -> None:
        super().__init__("damage")
        self._catalog = catalog
        self._is_running = False

    def body(self) -> ComposeResult:
        yield Grid(_COLUMNS, lambda row: row.at, _style, flexible=-1)
        yield Static("", id="message")

    def on_mount(self) -> None:
        self.query_one(Grid).focus()
        self._show()

    def on_screen_resume(self) -> None:
        if not self._is_running:
            self._show()

    def _show(self) -> None:
        report: logstore.types.VerifyReport | None = self.browser.report
        if report is None:
            self.say(
                "not verified yet   s: verify, d: also look into compressed batches"
            )
            return
        problems = [_Row(n, True, problem) for n, problem in enumerate(report.problems)]
        notes = [_Row(-1 - n, False, note) for n, note in enumerate(report.notes)]
        self.query_one(Grid).put([*problems, *notes])
        how = "looked into" if report.deep else "checked"
        text = (
            f"{how} {counted(report.segments, 'segment')}, "
            f"{counted(report.records, 'record')}, {size_text(report.bytes)}: "
            f"{counted(len(report.problems), 'problem')}, "
            f"{counted(len(report.notes), 'note')}"
        )
        self.say(text, "bold red" if report.problems else "")

    def action_verify(self, deep: bool) -> None:
        """Check all files; deep: compressed batches, too."""
        if self._is_running:
            return
        self._is_running = True
        self.say("verifying ...")
        target, said = self._catalog.target, 0.0

        def work(task: ScreenTask) -> logstore.types.VerifyReport:
            def progress(done: int, total: int) -> None:
                nonlocal said
                task.check()
                now = time.monotonic()
                if now - said >= _REPORT_S:
                    said = now
                    task.hand(self._verifying, (done, total))

            return logstore.verify(
                target,
                deep=deep,
                on_progress=progress,
                store_config=self.browser.config,
            )

        self.work.start(work, self._verified, "verify")

    def _verifying(self, progress: tuple[int, int]) -> None:
        done, total = progress
        if self._is_running:
            filled = _WIDTH * done // max(total, 1)
            bar = "#" * filled + "." * (_WIDTH - filled)
            self.say(f"[{bar}] {size_text(done)} of {size_text(total)}   Esc: stop")

    def _verified(self, report: logstore.types.VerifyReport) -> None:
        self._is_running = False
        self.browser.report = report
        self._show()

    def gave_up(self, group: str) -> None:
        self._is_running = False

    def action_back(self) -> None:
        """Stop, or go back."""
        if self._is_running:
            self._is_running = False
            self.work.stop("verify")
            self.say("verifying: stopped")
            return
        super().action_back()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        row = self.query_one(Grid).current
        text = "" if row is None else plain(row.finding.message)
        self.query_one("#message", Static).update(Text(text))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self.query_one(Grid).current
        name = None if row is None else partition_of(row.finding.path)
        if name is not None:
            self.browser.open_records(*name, row.finding.first_offset)


def _style(row: _Row) -> str:
    return "bold red" if row.is_problem else ""
