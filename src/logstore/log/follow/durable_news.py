"""The durable offset of a log that another process writes, as its writer tells it."""

from __future__ import annotations

import contextlib

from logstore.io.checkpoint.durable_page import read_page
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.log.recover import RecoveredLog

__all__ = ["DurableNews"]


class DurableNews:
    """What the writer of one log tells of its syncs. The caller's lock guards it.

    Attributes:
        offset: all below it is durable; -1: nothing is known but the state of the log.
    """

    def __init__(self, directory: Directory, ownership: Ownership) -> None:
        self.offset = -1
        self._directory = directory
        self._ownership = ownership
        # The log that `offset` is of.
        self._log: tuple[str, int] | None = None

    def hear(self, loaded: RecoveredLog, end: int) -> None:
        """Read what the writer tells, if it may be more than is known.

        Args:
            loaded: the log, with its state.
            end: where its readers stop: more is of no interest.
        """
        log = loaded.log_id, loaded.cuts.serial
        if self._log != log:
            self._log, self.offset = log, -1
        if max(self.offset, loaded.durable_offset) >= end:
            return
        # An error is as no file.
        with contextlib.suppress(OSError):
            # An offset above the end may be of a log that a backup has replaced.
            self.offset = max(self.offset, min(self._read(*log), end))

    def forget(self, low: int) -> None:
        """Another log may be in the place of this one from this offset on, with the
        same id and cuts: a backup was put back."""
        self.offset = min(self.offset, low)

    def _read(self, log_id: str, cuts: int) -> int:
        """What the file says of this log; -1: nothing."""
        return read_page(self._directory, self._ownership.writer(), log_id, cuts)
