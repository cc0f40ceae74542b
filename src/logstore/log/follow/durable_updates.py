"""Reads the durable offset that the writer of a log, another process, publishes."""

from __future__ import annotations

import contextlib

from logstore.io.checkpoint.durable_page import read_page
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.log.recover import RecoveredLog

__all__ = ["DurableUpdates"]


class DurableUpdates:
    """The durable offset that the writer of one log publishes after its syncs. The
    caller's lock guards it.

    Attributes:
        offset: all records below it are durable; -1: only the state of the log is
            known.
    """

    def __init__(self, directory: Directory, ownership: Ownership) -> None:
        self.offset = -1
        self._directory = directory
        self._ownership = ownership
        # The log to which `offset` belongs.
        self._log: tuple[str, int] | None = None

    def update(self, loaded: RecoveredLog, end: int) -> None:
        """Read the published offset, if it may be higher than the known one.

        Args:
            loaded: the log, with its state.
            end: the offset at which its readers stop: a higher one is not needed.
        """
        log = loaded.log_id, loaded.cuts.serial
        if self._log != log:
            self._log, self.offset = log, -1
        if max(self.offset, loaded.durable_offset) >= end:
            return
        # An error counts as a missing file.
        with contextlib.suppress(OSError):
            # An offset above the end may be of a log that a backup has replaced.
            self.offset = max(self.offset, min(self._read(*log), end))

    def forget(self, low: int) -> None:
        """Another log may be in the place of this one from this offset on, with the
        same id and cuts: a backup was put back."""
        self.offset = min(self.offset, low)

    def _read(self, log_id: str, cuts: int) -> int:
        """The durable offset in the file, if it is of this log; else -1."""
        return read_page(self._directory, self._ownership.writer(), log_id, cuts)
