"""How low a log was cut, and when: readers learn whether the records they have read
are still in the log.

Every truncation is a cut, and so is every undoing of an append that others may have
seen: it removes all records from an offset on. Each cut has a serial number, larger
than all before it. A reader that has read the log under one serial asks later for the
lowest cut since: below that offset the log is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from logstore.io.layout import OFFSET_MAX

__all__ = ["NO_CUT", "UNKNOWN_CUTS", "Cuts", "LogMark"]

# The number of cuts kept separately; older ones are merged into the lowest of them.
ROWS_MAX: Final = 32

# The lowest cut if nothing was cut: the log is unchanged up to any offset.
NO_CUT: Final = OFFSET_MAX


class LogMark(NamedTuple):
    """Which log a partition has, and when: a plain value to store with offsets.
    Made by `Partition.mark`, for `Partition.unchanged_below`.

    Attributes:
        log_id: identifies the log; a partition that is deleted and created again has
            another one.
        serial: that of its newest cut.
    """

    log_id: str
    serial: int


class Cuts(NamedTuple):
    """The cuts of one log; a value, never changed.

    Attributes:
        serial: that of the newest cut; 0 before the first.
        rows: (serial, offset) of the cuts that matter. If a later cut went lower, the
            earlier one is dropped: readers from before it need the lower one.
        returns: the serials, of these, of cuts that removed nothing: logstore took the
            log back from another program, which may have.
        is_merged: the first of the rows stands for several cuts.

    Invariant: serials rise, offsets rise, the last serial is `serial`.
    """

    serial: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    returns: tuple[int, ...] = ()
    is_merged: bool = False

    @classmethod
    def from_rows(
        cls,
        serial: int,
        rows: Iterable[tuple[int, int]],
        returns: Iterable[int] = (),
        *,
        is_merged: bool = False,
    ) -> Cuts:
        """The cuts that a state file has. A file of a version that recorded the number
        of cuts, but no offsets, gives one cut at offset 0: they may have removed all.

        Raises:
            ValueError: they break the invariant.
        """
        cuts = tuple((cut_serial, offset) for cut_serial, offset in rows)
        ats, offsets = [row[0] for row in cuts], [row[1] for row in cuts]
        if ats != sorted(set(ats)) or offsets != sorted(set(offsets)):
            raise ValueError("cuts do not rise")
        if ats and ats[-1] > serial:
            raise ValueError(f"a cut has serial {ats[-1]}, the newest is {serial}")
        if serial and (not ats or ats[-1] != serial):
            cuts = ((serial, 0),)
        return cls(serial, cuts, tuple(returns), is_merged)

    @property
    def offsets(self) -> set[int]:
        """The offsets of the log's cuts that matter."""
        return {offset for _, offset in self.rows}

    def after(self, offset: int, now_ms: int = 0, *, is_return: bool = False) -> Cuts:
        """These cuts, and one more that removes all records from `offset` on.

        Args:
            now_ms: lower bound of the serial, a time. If an earlier state of a log was
                restored (from a backup) and the log continues from there, its serials
                since then differ from the other log's.
            is_return: it is one of `returns`.
        """
        serial = max(self.serial + 1, min(now_ms, NO_CUT))
        rows = [row for row in self.rows if row[1] < offset]
        rows.append((serial, offset))
        returns = {*self.returns, *[serial] * is_return}
        is_merged = self.is_merged and len(rows) > 1
        if len(rows) > ROWS_MAX:
            returns.discard(rows[1][0])
            rows[:2] = [(rows[1][0], rows[0][1])]
            is_merged = True
        kept = tuple(cut_serial for cut_serial, _ in rows if cut_serial in returns)
        return Cuts(serial, tuple(rows), kept, is_merged)

    def lowest_since(self, serial: int) -> int:
        """The lowest offset that was cut to after the cut of `serial`: below it, the
        log is unchanged since. `NO_CUT` if nothing was cut; 0 if the serial does not
        belong to this log."""
        if serial == self.serial:
            return NO_CUT
        if serial > self.serial:
            return 0
        return next(offset for cut_serial, offset in self.rows if cut_serial > serial)

    def lowest_removal_since(self, serial: int) -> int:
        """The lowest offset that logstore itself has cut to after the cut of `serial`;
        `NO_CUT` if it has not."""
        removals = (row for row in self.rows if row[0] not in self.returns)
        return next(
            (offset for cut_serial, offset in removals if cut_serial > serial), NO_CUT
        )

    def has_return_since(self, serial: int) -> bool:
        """Whether logstore took the log back from another program after the cut of
        `serial`."""
        return any(cut_serial > serial for cut_serial in self.returns)

    def lowest_from(self, time_ms: int) -> int:
        """The lowest offset that was cut to at a time, in Unix ms, or later; `NO_CUT`
        if nothing was. A cut that the clock cannot have seen counts as a later one."""
        return next(
            (offset for cut_serial, offset in self.rows if cut_serial >= time_ms),
            NO_CUT,
        )

    def is_known_since(self, serial: int) -> bool:
        """Whether `lowest_since` is exact and not only a bound: no cuts after that
        serial were merged with others."""
        # If the rows are this many, an earlier version may have merged some.
        may_be = self.is_merged or len(self.rows) >= ROWS_MAX
        return not may_be or serial >= self.rows[0][0]


# The cuts of a log while its state cannot be read: no cut that the state is found to
# have later is newer.
UNKNOWN_CUTS: Final = Cuts(NO_CUT)
