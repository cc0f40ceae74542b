"""Finds out whether a log that another program writes is still the same one.

A broker does not record that it has cut a log. But it records where each leader epoch
begins before it appends the first batch of that epoch, and replicas with the same
epochs have the same records. Below the first offset at which two such lists differ, a
log is unchanged; from that offset on it is a different log. For such a log the list
serves as the recorded cuts do for one of logstore's own logs.
"""

from __future__ import annotations

import itertools
from typing import Final

from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.directory import Directory
from logstore.io.layout import LEADER_EPOCHS
from logstore.io.stamps import FileStamp, settled

__all__ = ["LeaderEpochs"]

_Rows = tuple[tuple[int, int], ...]
_NO_FILE: Final = (-1, -1, -1, -1)


class LeaderEpochs:
    """Kafka's leader epochs of a log at the time they were read; never changed.

    Attributes:
        rows: (epoch, first offset), rising; empty if they are unknown.
        cache_key: changes with the file; None if the next change may not alter it.
    """

    __slots__ = ("cache_key", "rows")

    def __init__(self, rows: _Rows = (), cache_key: object = None) -> None:
        self.rows = rows
        self.cache_key = cache_key

    @classmethod
    def of(cls, directory: Directory) -> LeaderEpochs:
        """The current epochs."""
        # Take the key first: a change during the read then has another key.
        cache_key = _cache_key(directory)
        try:
            return cls(tuple(checkpoints.read_epochs(directory)), cache_key)
        except (OSError, CorruptCheckpointError):
            return cls((), cache_key)

    def are_of(self, stamp: FileStamp | None) -> bool:
        """Whether they were read from the file with this stamp; None: of no file."""
        return self.cache_key is not None and self.cache_key == (stamp or _NO_FILE)

    def now(self, directory: Directory) -> LeaderEpochs:
        """The current epochs; the same object if they have not changed."""
        if self.are_of(_seen(directory)):
            return self
        new = LeaderEpochs.of(directory)
        if new.rows == self.rows:
            # Callers compare objects: the same one means that nothing has changed.
            self.cache_key = new.cache_key
            return self
        return new

    def same_below(self, other: LeaderEpochs) -> int | None:
        """The first offset at which two lists differ: below it, records read under one
        are part of the log of the other. `NO_CUT`: no difference; None: unknown."""
        if not self.rows or not other.rows:
            return None
        # Deleting the head of a log moves the first epoch's start to the log's start.
        start = max(self.rows[0][1], other.rows[0][1])
        pairs = itertools.zip_longest(self._from(start), other._from(start))
        for pair in pairs:
            if pair[0] != pair[1]:
                return min(row[1] for row in pair if row is not None)
        return NO_CUT

    def _from(self, start: int) -> _Rows:
        """The epochs from an offset on; the epoch of the offset itself is the first."""
        slot = max(
            (index for index, row in enumerate(self.rows) if row[1] <= start), default=0
        )
        epoch, first = self.rows[slot]
        return ((epoch, max(first, start)), *self.rows[slot + 1 :])


def _cache_key(directory: Directory) -> object:
    files = directory.files
    begun_ms, seen = files.now_ms(), _seen(directory)
    if seen != _NO_FILE and settled(seen[2], begun_ms, files) < 0:
        return None
    return seen


def _seen(directory: Directory) -> FileStamp:
    try:
        return directory.stamp(LEADER_EPOCHS) or _NO_FILE
    except OSError:
        return _NO_FILE
