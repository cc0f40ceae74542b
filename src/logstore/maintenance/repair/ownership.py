"""The marks on a store that tell who wrote last, and how it ended, around a repair.

The mark of a clean stop goes before the first change, and comes back behind the last
one where it was there before. A store that another program wrote last has no mark of
ours, and gets none.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Marks
from logstore.io.directory import Directory
from logstore.maintenance.verify.context import StoreFacts


class RepairMarks:
    """The marks of a store under repair.

    Attributes:
        generation: what state files are written under.
    """

    def __init__(self, root: Directory, facts: StoreFacts) -> None:
        self._root = root
        self._marks = Marks(root)
        self._is_own = facts.own
        self._is_clean = facts.clean
        self._points = dict(facts.points)
        self._starts = dict(facts.starts)
        self._has_begun = False
        self.generation = facts.generation
        self._marks.generation = facts.generation
        self._marks.is_own = facts.own

    def begin(self) -> None:
        """Take away the mark of a clean stop, once, before anything is changed."""
        if not self._has_begun and self._is_own:
            self._marks.begin(_nothing)
        self._has_begun = True

    def finish(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Have the recovery points tell of the partitions that were mended (`ends`:
        where each log ends, all of it synced), and put the mark back."""
        if not self._has_begun:
            return
        points = {**self._points}
        for key, end in ends.items():
            if self._is_own or points.get(key, 0) > end:
                points[key] = end
        if not self._is_own:
            if points != self._points:
                name = layout.RECOVERY_CHECKPOINT
                checkpoints.write_offsets(self._root, name, points)
        elif self._is_clean:
            self._marks.end(points, self._starts)
        else:
            self._marks.move_points(points)


def _nothing() -> None:
    """There is nothing to adopt: logstore was the last writer."""
