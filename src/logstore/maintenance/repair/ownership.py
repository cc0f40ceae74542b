"""The marks for the last writer of a store and how it stopped, during a repair.

The mark of a clean stop is removed before the first change, and restored after the last
one if it was there before. If another program wrote the store last, the store has no
mark of ours, and gets none.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Marks
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.maintenance.verify.context import StoreFacts


class RepairMarks:
    """The marks of a store under repair.

    Attributes:
        generation: the generation that state files are written with.
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
        """Remove the mark of a clean stop, once, before the first change."""
        if not self._has_begun and self._is_own:
            self._marks.begin(_nothing)
        self._has_begun = True

    def finish(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set the recovery points of the repaired partitions (`ends`: the end of each
        log, all of it synced), and restore the mark."""
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
