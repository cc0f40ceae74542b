"""The dump of a file, by the end of its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Final

import logstore
from logstore.cli.kafka.complaints import Complaints
from logstore.cli.kafka.heads import batch_line, head_of
from logstore.cli.kafka.indexes import (
    index_lines,
    snapshot_lines,
    time_index_lines,
    txn_index_lines,
)
from logstore.cli.kafka.lines import record_lines
from logstore.cli.kafka.wanted import REWRITTEN, MessageError, Wanted
from logstore.cli.output import Printer
from logstore.cli.text import escape

__all__ = ["Dump"]

_LOG: Final = ".log"
_RAFT_SNAPSHOT: Final = ".checkpoint"
_RAFT_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_BOOTSTRAP: Final = "bootstrap.checkpoint"
# Lines are printed piece by piece: a batch may have a million records.
_LINES: Final = 1000


class Dump:
    """One run of the tool: files one after the other, and reports at the end.

    Attributes:
        status: 0, or 1 if damage was met, or 2 if a file cannot be read otherwise.
    """

    def __init__(
        self, printer: Printer, wanted: Wanted, config: logstore.StoreConfig
    ) -> None:
        self.status = 0
        self._printer = printer
        self._wanted = wanted
        self._config = config
        self._complaints = Complaints(wanted.release)
        # A value or a name must not send control sequences to a terminal.
        self._is_escaped = printer.out.isatty()

    def file(self, path: str, *, is_log: bool = False) -> None:
        """Print a file; what cannot be read ends it, and is reported.

        Args:
            is_log: it is a log, whatever its name ends with.
        """
        shown = _as_java_names(path)
        lines = _Lines(self._printer, self._is_escaped)
        lines.add(f"Dumping {shown}")
        try:
            for line in self._lines(path, shown, is_log):
                lines.add(line)
        except logstore.CorruptionError as error:
            self._end(lines, str(error), 1)
        except MessageError as error:
            self._end(lines, f"{path}: {error}", 1)
        except (logstore.LogStoreError, OSError) as error:
            self._end(lines, str(error), 2)
        lines.flush()

    def finish(self) -> int:
        """Report what was found in all files; returns the exit status."""
        self._printer.flush()
        for line in self._complaints.lines():
            self._printer.complain(line)
        return self.status

    def _end(self, lines: _Lines, reason: str, status: int) -> None:
        lines.flush()
        self._printer.warn(reason)
        self.status = max(self.status, status)

    def _lines(self, path: str, shown: str, is_log: bool) -> Iterator[str]:
        wanted, complaints = self._wanted, self._complaints
        kind = _LOG if is_log else os.path.splitext("0" + os.path.basename(path))[1]
        if kind == _RAFT_SNAPSHOT and wanted.release == "2.8":
            kind = ""
        if kind in (_LOG, _RAFT_SNAPSHOT):
            return self._log(path)
        if kind == ".index":
            return index_lines(path, shown, wanted, complaints)
        if kind == ".timeindex":
            return time_index_lines(path, shown, wanted, complaints)
        if kind == ".txnindex":
            return txn_index_lines(path)
        if kind == ".snapshot":
            return snapshot_lines(path, wanted.release)
        self._printer.complain(f"Ignoring unknown file {shown}")
        return iter(())

    # ------------------------------------------------------------- logs

    def _log(self, path: str) -> Iterator[str]:
        wanted = self._wanted
        yield _title(os.path.basename(path), wanted.release)
        contents = logstore.inspect_file(path, store_config=self._config, by_size=True)
        frames: Any = contents.entries
        size: int = frames.size_bytes
        if wanted.max_bytes is not None:
            size = min(size, wanted.max_bytes)
            frames.seek(0, wanted.max_bytes)
        last = -1
        end = 0
        for frame in frames:
            head = head_of(frame)
            is_valid = frame.is_valid()
            if not is_valid:
                self.status = max(self.status, 1)
            yield batch_line(head, is_valid, wanted.release)
            if wanted.deep:
                for offset, line in record_lines(frame, head, wanted):
                    # From 4.3 on, a first offset above 0 counts as a gap, too.
                    is_first = last == -1 and wanted.release < REWRITTEN
                    if not is_first and last != offset - 1:
                        self._complaints.gap(contents.path, last, offset)
                    last = offset
                    yield line
            end = frame.position + frame.size_bytes
        if size > end and wanted.max_bytes is None:
            if not frames.is_torn:
                self.status = max(self.status, 1)
            name = os.path.basename(path)
            yield f"Found {size - end} invalid bytes at the end of {name}"


def _title(name: str, release: str) -> str:
    if name.endswith(_RAFT_SNAPSHOT):
        if name == _BOOTSTRAP:
            return "KRaft bootstrap snapshot"
        match = _RAFT_NAME.fullmatch(name)
        if match is None:
            raise MessageError("no snapshot of KRaft has such a name")
        return f"Snapshot end offset: {int(match[1])}, epoch: {int(match[2])}"
    digits = name.partition(".")[0]
    base = int(digits) if digits.isascii() and digits.isdigit() else 0
    return f"{'Starting' if release == '2.8' else 'Log starting'} offset: {base}"


def _as_java_names(path: str) -> str:
    """A path as Java's `File` has it: without double slashes, and none at the end."""
    short = re.sub("/+", "/", path)
    return short if short == "/" else short.rstrip("/")


class _Lines:
    """Lines that are printed together."""

    def __init__(self, printer: Printer, is_escaped: bool) -> None:
        self._printer = printer
        self._is_escaped = is_escaped
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        self._lines.append(escape(line) if self._is_escaped else line)
        if len(self._lines) >= _LINES:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._printer.line("\n".join(self._lines))
            self._lines = []
