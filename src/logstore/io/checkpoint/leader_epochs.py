"""What tells whether a log that another program writes is still the same one.

A broker says nowhere that it has cut a log. But it writes down where each leader epoch
begins before it appends the first batch of it, and replicas with the same epochs have
the same records: below the first offset at which two such lists differ, a log is what
it was, and from there on it is another one. For such a log the list is what the cuts in
its state are for one of logstore's own.
"""

from __future__ import annotations

import itertools
from typing import Final

from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.directory import Directory
from logstore.io.files import Look, settled
from logstore.io.layout import LEADER_EPOCHS

__all__ = ["LeaderEpochs"]

_Rows = tuple[tuple[int, int], ...]
_NO_FILE: Final = (-1, -1, -1, -1)


class LeaderEpochs:
    """Kafka's leader epochs of a log, as they were when they were read; never changed.

    Attributes:
        rows: (epoch, first offset), rising; none where nobody can tell.
        token: what changes with the file; None where a change to come may leave it.
    """

    __slots__ = ("rows", "token")

    def __init__(self, rows: _Rows = (), token: object = None) -> None:
        self.rows = rows
        self.token = token

    @classmethod
    def of(cls, directory: Directory) -> LeaderEpochs:
        """As they are now."""
        # First: what is written meanwhile has another token.
        token = _token(directory)
        try:
            return cls(tuple(checkpoints.read_epochs(directory)), token)
        except (OSError, CorruptCheckpointError):
            return cls((), token)

    def now(self, directory: Directory) -> LeaderEpochs:
        """As they are now; the same object where they have not changed."""
        if self.token is not None and self.token == _seen(directory):
            return self
        new = LeaderEpochs.of(directory)
        if new.rows == self.rows:
            # Only the object that a look began with says that nothing has changed.
            self.token = new.token
            return self
        return new

    def same_below(self, other: LeaderEpochs) -> int | None:
        """The first offset at which two lists differ: below it, what was read under one
        is part of the log of the other. `NO_CUT`: nowhere; None: nobody can tell."""
        if not self.rows or not other.rows:
            return None
        # Who deletes the head of a log lets the first epoch begin where it begins.
        start = max(self.rows[0][1], other.rows[0][1])
        pairs = itertools.zip_longest(self._from(start), other._from(start))
        for pair in pairs:
            if pair[0] != pair[1]:
                return min(row[1] for row in pair if row is not None)
        return NO_CUT

    def _from(self, start: int) -> _Rows:
        """The epochs from an offset on; that of the offset itself is the first."""
        at = max((at for at, row in enumerate(self.rows) if row[1] <= start), default=0)
        epoch, first = self.rows[at]
        return ((epoch, max(first, start)), *self.rows[at + 1 :])


def _token(directory: Directory) -> object:
    seen = _seen(directory)
    if seen != _NO_FILE and settled(seen[2], directory.files) < 0:
        return None
    return seen


def _seen(directory: Directory) -> Look:
    try:
        return directory.look(LEADER_EPOCHS) or _NO_FILE
    except OSError:
        return _NO_FILE
