"""How low a log was cut, and when: what tells readers whether what they have read still
stands.

Every truncation, and every undoing of an append that others may have seen, is a cut: it
takes all from an offset on. Each has a serial number, larger than all before it. Who
has looked at the log under one serial asks later for the lowest cut since: below that
offset the log is what it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from logstore.io.layout import OFFSET_MAX

__all__ = ["NO_CUT", "Cuts", "LogMark"]

# So many are told apart; older ones are taken together, as the lowest of them.
ROWS_MAX: Final = 32

# The lowest cut where there was none: the log is what it was, up to any offset.
NO_CUT: Final = OFFSET_MAX


class LogMark(NamedTuple):
    """Which log a partition has, and when: a plain value, to be kept beside offsets.
    Made by `Partition.mark`, for `Partition.unchanged_below`.

    Attributes:
        log_id: of the log; a partition that is deleted and made again has another.
        serial: of its newest cut.
    """

    log_id: str
    serial: int


class Cuts(NamedTuple):
    """The cuts of one log; a value, never changed.

    Attributes:
        serial: of the newest cut; 0 before the first.
        rows: (serial, offset) of those that matter. A cut that a later one went below
            is forgotten: who asks since before it has to know of the lower one.

    Invariant: serials rise, offsets rise, the last serial is `serial`.
    """

    serial: int = 0
    rows: tuple[tuple[int, int], ...] = ()

    @classmethod
    def known(cls, serial: int, rows: Iterable[tuple[int, int]]) -> Cuts:
        """As a state file has them. One of a version that noted how often, and not how
        low, tells nothing of the cuts before: they may have taken all.

        Raises:
            ValueError: they break the invariant.
        """
        found = tuple((at, offset) for at, offset in rows)
        ats, offsets = [row[0] for row in found], [row[1] for row in found]
        if ats != sorted(set(ats)) or offsets != sorted(set(offsets)):
            raise ValueError("cuts do not rise")
        if ats and ats[-1] > serial:
            raise ValueError(f"a cut has serial {ats[-1]}, the newest is {serial}")
        if serial and (not ats or ats[-1] != serial):
            found = ((serial, 0),)
        return cls(serial, found)

    def after(self, offset: int, now_ms: int = 0) -> Cuts:
        """These, and one more that takes all from `offset` on.

        Args:
            now_ms: the serial is not below that time: a log that went back to what it
                was (a backup was put back) and goes on is told from the one that it
                was, as both have given out other serials since.
        """
        serial = max(self.serial + 1, min(now_ms, NO_CUT))
        rows = [row for row in self.rows if row[1] < offset]
        rows.append((serial, offset))
        if len(rows) > ROWS_MAX:
            rows[:2] = [(rows[1][0], rows[0][1])]
        return Cuts(serial, tuple(rows))

    def lowest_since(self, serial: int) -> int:
        """The lowest offset that was cut to behind the cut of `serial`: below it, the
        log is what it was then. `NO_CUT` where nothing was cut; 0 where the serial is
        none of this log."""
        if serial == self.serial:
            return NO_CUT
        if serial > self.serial:
            return 0
        return next(offset for at, offset in self.rows if at > serial)

    def is_known_since(self, serial: int) -> bool:
        """Whether `lowest_since` is more than a bound: no cuts from behind that serial
        were taken together with others."""
        return len(self.rows) < ROWS_MAX or serial >= self.rows[0][0]
