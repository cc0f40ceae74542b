"""Reading over damage: it is reported at once, the next partitions follow, and the end
lists the missing offsets.

With ``raise`` a partition ends at its first damage; with ``skip`` reading continues at
the next offset that can be read. The default is ``raise`` for partitions, and ``skip``
for single files, which are read unrepaired. Missing are the offsets that were
requested, or may have been: `logstore.cli.lookup` says which damage has no known time.
A partition that cannot be read for another reason (a limit, an unknown format) is
reported likewise, and makes the status 2.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import logstore
from logstore.cli.lookup import beginning
from logstore.cli.output import Printer, is_terminal
from logstore.cli.tail import intact_behind
from logstore.cli.text import counted, offsets_text

CLEAN, PROBLEMS, UNUSABLE = 0, 1, 2


class DamagedFile(Protocol):
    """A `.log` file that is read although it is damaged."""

    path: str
    size_bytes: int

    @property
    def name(self) -> str | None:
        """``topic-number``; None if it is unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """Offsets that were not delivered: [first, next_offset), None if their end is
    unknown. Not every offset had a record.

    Attributes:
        is_asked: whether they were certainly requested. If False, a time was requested,
            and the offsets' times are unknown.
    """

    name: str
    first: int
    next_offset: int | None
    is_asked: bool = True


class DamageLog:
    """The damage in one run of a command.

    Attributes:
        missing: the offsets that were not delivered.
        status: the exit status because of it.
    """

    def __init__(
        self, printer: Printer | None, on_corruption: str | None = None
    ) -> None:
        self.missing: list[Missing] = []
        self.status = CLEAN
        self.has_broken = False
        self.damaged: set[str] = set()
        self.is_strict = on_corruption != "skip"
        self.is_strict_in_files = on_corruption == "raise"
        self._printer = printer
        self._has_ended = False

    @classmethod
    def silent(cls) -> DamageLog:
        """One that continues over damage and reports nothing."""
        return cls(None, "skip")

    @property
    def prints_to_terminal(self) -> bool:
        """Whether the records are printed on a terminal."""
        return self._printer is not None and is_terminal(self._printer.out)

    def _warn(self, text: str, style: str = "error") -> None:
        if self._printer is not None:
            self._printer.warn(text, style)

    def _raise_status(self, status: int) -> None:
        self.status = max(self.status, status)

    def broken(self, topic: str, number: int, error: Exception) -> None:
        """A partition that cannot be opened."""
        self.has_broken = True
        self.damaged.add(f"{topic}-{number}")
        self._raise_status(PROBLEMS)
        self._warn(f"{topic}-{number}: {error}")

    def refused(self, name: str, error: Exception) -> None:
        """A partition that cannot be read, for a reason other than damage."""
        self.damaged.add(name)
        self._raise_status(UNUSABLE)
        self._warn(f"{name}: {error}")

    # -------------------------------------------------------------- partitions

    def over(
        self,
        partition: logstore.Partition,
        bounds: Callable[[], tuple[Any, Any]],
        reading: Callable[..., Iterator[Any]],
        isolation: str,
    ) -> Iterator[Any]:
        """The values that a method of the partition yields, over damage.

        Args:
            bounds: gives start and stop as the method takes them.
            reading: `read`, `read_batches` or `read_arrow` with all else bound.
        """
        name = partition.name
        try:
            start, stop, is_over = self._offsets(partition, *bounds())
            if is_over:
                return

            def leave_out(damaged: logstore.types.Damaged) -> bool:
                return self._met(partition, damaged, start, stop)

            on_corruption = "raise" if self.is_strict else leave_out
            try:
                yield from reading(
                    start, stop, isolation=isolation, on_corruption=on_corruption
                )
            except logstore.CorruptRecordError as error:
                if not self.is_strict:
                    raise
                damaged = logstore.types.Damaged(error.offset, None, error)
                self._met(partition, damaged, start, stop)
            else:
                if stop is None:
                    self._look_behind(partition)
        except logstore.CorruptionError as error:
            self.damaged.add(name)
            self._raise_status(PROBLEMS)
            self._warn(f"{name}: {error}")
        except logstore.LogStoreError as error:
            self.refused(name, error)

    def _look_behind(self, partition: logstore.Partition) -> None:
        """Report intact batches after the end of a log that was read to its end."""
        text = intact_behind(partition) if self._printer is not None else ""
        if text:
            self.damaged.add(partition.name)
            self._raise_status(PROBLEMS)
            self._warn(f"{partition.name}: {text}")

    def _offsets(
        self, partition: logstore.Partition, start: Any, stop: Any
    ) -> tuple[int | None, int | None, bool]:
        """(both bounds as offsets, whether reading ends before it begins). Reading
        continues after damage at an offset, so a time must not be looked up again
        there."""
        is_over = False
        if isinstance(stop, datetime.datetime):
            stop = beginning(partition, stop).offset
        if isinstance(start, datetime.datetime):
            begin = beginning(partition, start)
            for damaged in begin.damage:
                self._met_before(partition, damaged, stop)
            start = begin.offset
            is_over = self.is_strict and begin.is_unsure
            end = partition.end_offset if stop is None else stop
            if is_over and start < end:
                self._has_ended = True
                self.missing.append(Missing(partition.name, start, end))
        return start, stop, is_over

    def _met_before(
        self,
        partition: logstore.Partition,
        damaged: logstore.types.Damaged,
        stop: int | None,
    ) -> None:
        """Report damage that may have held records of the time asked for."""
        first, following = damaged.first, damaged.next_offset
        end = partition.end_offset if stop is None else stop
        following = end if following is None else min(following, end)
        if following <= first:
            return
        name = partition.name
        self.damaged.add(name)
        self._raise_status(PROBLEMS)
        self.missing.append(Missing(name, first, following, is_asked=False))
        self._warn(
            f"{name}: {damaged.error} Left out: {offsets_text(first, following)}; it "
            "is not known whether these records are at or after the requested time."
        )

    def _met(
        self,
        partition: logstore.Partition,
        damaged: logstore.types.Damaged,
        start: int | None,
        stop: int | None,
    ) -> bool:
        """Report damage; whether to leave it out."""
        if not isinstance(damaged.error, logstore.CorruptRecordError):
            return False
        name, end = partition.name, partition.end_offset
        self.damaged.add(name)
        self._raise_status(PROBLEMS)
        if stop is not None:
            end = min(end, stop)
        first = damaged.first if start is None else max(damaged.first, start)
        following = damaged.next_offset
        until = end if following is None else min(following, end)
        if first < until:
            self.missing.append(Missing(name, first, until))
        self._has_ended = self._has_ended or self.is_strict
        what = (
            "the rest of the partition"
            if self.is_strict
            else offsets_text(first, until)
        )
        self._warn(f"{name}: {damaged.error} Left out: {what}.")
        return True

    # -------------------------------------------------------------- files

    def torn(self, source: DamagedFile, entry: Any) -> None:
        """Note the torn end of a file, as a crash, or a writer at work, leaves it."""
        self._warn(
            f"{source.path} at byte {entry.position}: the file ends with an "
            f"incomplete batch ({entry.damage}); {counted(entry.size_bytes, 'byte')} "
            "left out",
            "note",
        )

    def in_file(self, source: DamagedFile, entry: Any, *, is_end: bool) -> None:
        """Report damaged bytes of a file; `is_end`: it is not read any further."""
        self._raise_status(PROBLEMS)
        size = source.size_bytes - entry.position if is_end else entry.size_bytes
        self._warn(
            f"{source.path} at byte {entry.position}: damaged ({entry.damage}); "
            f"{counted(size, 'byte')} left out"
        )

    def in_batch(
        self,
        source: DamagedFile,
        batch: logstore.RecordBatch,
        error: logstore.LogStoreError,
    ) -> None:
        """An intact batch of a file whose records cannot be read."""
        self._raise_status(PROBLEMS)
        self._warn(f"{error}; {counted(batch.size_bytes, 'byte')} left out")

    def miss(
        self,
        source: DamagedFile,
        first: int,
        next_offset: int | None,
        *,
        is_asked: bool = True,
    ) -> None:
        """The offsets of a file that are missing because of its damage."""
        name = source.name or source.path
        self.damaged.add(name)
        self.missing.append(Missing(name, first, next_offset, is_asked))
        if self.is_strict_in_files and is_asked:
            self._has_ended = True

    # -------------------------------------------------------------- the end

    def finish(self) -> int:
        """Print the missing offsets, and return the exit status."""
        if self.missing:
            for missing_range in self.missing:
                self._warn(f"missing: {_missing_text(missing_range)}", "problem")
            ranges = [m for m in self.missing if m.next_offset is not None]
            count = sum((m.next_offset or 0) - m.first for m in ranges)
            least = len(ranges) < len(self.missing)
            names = {m.name for m in self.missing}
            text = f"{counted(count, 'offset')} of {counted(len(names), 'partition')}"
            self._warn(
                f"missing in all: {'at least ' * least}{text}"
                + ("" if least else f", at most {counted(count, 'record')}")
                + (
                    "; --on-corruption skip continues after the damage"
                    if self._has_ended
                    else ""
                ),
                "problem",
            )
        return self.status


def _missing_text(missing_range: Missing) -> str:
    unknown = (
        ""
        if missing_range.is_asked
        else "; it is not known whether they were requested"
    )
    if missing_range.next_offset is None:
        return f"{missing_range.name} from offset {missing_range.first} on{unknown}"
    count = missing_range.next_offset - missing_range.first
    return (
        f"{missing_range.name} offsets "
        f"{offsets_text(missing_range.first, missing_range.next_offset)} "
        f"({counted(count, 'offset')}, at most {counted(count, 'record')}{unknown})"
    )
