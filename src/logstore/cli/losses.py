"""The data that a repair takes out of a log, in offsets and records."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Final

import logstore
from logstore.cli.schema import line
from logstore.cli.text import counted, grouped, size_text

# Labels of actions that take offsets out of a log.
_LOSING: Final = ("cut", "skipped", "segment-removed", "lost-accepted")


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The data that the actions of a repair take out of the logs.

    Attributes:
        mode: ``cut`` or ``skip``.
        actions: how many actions there are, also actions that lose nothing.
        partitions: how many partitions lose something.
        offsets: how many offsets are not served any more; not each had a record.
        readable: records among them that can be read before the repair. With
            `dry_run` alone: afterwards they are in the quarantine.
        bytes: taken out of the logs.
        is_exact: whether every action says which offsets it takes out.
        dry_run: whether nothing was changed.
    """

    mode: str
    actions: int
    partitions: int
    offsets: int
    readable: int
    bytes: int
    is_exact: bool
    dry_run: bool

    @property
    def records_text(self) -> str:
        """``at most 35, 30 of them readable``."""
        if not self.offsets:
            if self.is_exact:
                return "none"
            return f"unknown, {grouped(self.readable)} of them readable"
        text = f"at {'most' if self.is_exact else 'least'} {grouped(self.offsets)}"
        return f"{text}, {grouped(self.readable)} of them readable"

    @property
    def text(self) -> str:
        """Text of the loss, as part of a sentence."""
        out = f"{size_text(self.bytes)} out of the log"
        if not self.offsets:
            return out
        most = "at most " if self.is_exact else ""
        return (
            f"{out}: {counted(self.offsets, 'offset')}, "
            f"{most}{counted(self.offsets, 'record')}"
        )

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        del values["is_exact"], values["dry_run"]
        return line("loss", topic=None, partition=None, **values)


def loss_of(report: logstore.types.RepairReport) -> Loss:
    """The data that a report's actions take out. For a dry run, this also reads the
    records that can still be read, and counts them."""
    losing = [a for a in report.actions if a.label in _LOSING]
    offsets = {
        (os.path.dirname(a.path), a.first_offset, a.last_offset)
        for a in losing
        if a.first_offset is not None and a.last_offset is not None
    }
    return Loss(
        report.mode or "",
        len(report.actions),
        len({os.path.dirname(action.path) for action in losing}),
        sum(last - first + 1 for _, first, last in offsets),
        sum(_readable(action) for action in losing) if report.dry_run else 0,
        sum(action.bytes for action in report.actions),
        all(_is_known(action) for action in losing),
        report.dry_run,
    )


def _is_known(action: logstore.types.RepairAction) -> bool:
    """Whether an action lists all the offsets that it takes out, or its bytes contain
    no offsets."""
    if action.last_offset is not None:
        return True
    return action.first_offset is None and action.label in ("cut", "skipped")


def _readable(action: logstore.types.RepairAction) -> int:
    """Count the records that can be read in the bytes that an action would take out."""
    begin = action.position or 0
    end = begin + action.bytes
    try:
        entries = logstore.inspect_file(action.path).entries
        return sum(
            entry.batch.record_count
            for entry in entries
            if entry.damage is None and begin <= entry.position < end
            if not entry.batch.is_control
        )
    except (logstore.LogStoreError, OSError):
        return 0
