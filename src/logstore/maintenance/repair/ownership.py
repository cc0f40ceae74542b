"""The ownership of a store during a repair.

The mark of a clean stop is removed before the first change, and restored after the last
one if it was there before. If another program wrote the store last, the store has no
mark of ours, and gets none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cleaner import CleanerCheckpoint
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.maintenance.verify.context import StoreMetadata


class RepairedOwnership:
    """The ownership of a store under repair.

    Attributes:
        store_epoch: the one that state files are written with.
    """

    def __init__(self, root: Directory, facts: StoreMetadata) -> None:
        self._root = root
        self._ownership = Ownership(root)
        self._is_own = facts.own
        self._is_clean = facts.clean
        self._points = dict(facts.points)
        self._starts = dict(facts.starts)
        self._has_begun = False
        self.store_epoch = facts.store_epoch
        self._ownership.store_epoch = facts.store_epoch
        self._ownership.is_own = facts.own

    def begin(self) -> None:
        """Remove the mark of a clean stop, once, before the first change."""
        if not self._has_begun and self._is_own:
            self._ownership.begin(_nothing)
            self._decide_publication()
        self._has_begun = True

    def _decide_publication(self) -> None:
        """Whether the last publication counts depends on bytes that are about to change
        their place: the journal is written so that it says so itself. A bad one is for
        the next opening to refuse."""
        root, publications = self._root, Publications(self._root)
        with contextlib.suppress(CorruptCheckpointError, UnsupportedError):
            journal = publications.journal()
            if journal is not None and journal.pending is not None:
                PublicationJournal(root, self._ownership, publications, 0).confirm()

    def finish(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set the recovery points of the repaired partitions (`ends`: the end of each
        log, all of it synced), lower other checkpoints to them, and restore the
        mark."""
        if not self._has_begun:
            return
        CleanerCheckpoint(self._root).lower_to(ends)
        self._forget_published(ends)
        self._ownership.lower_high_watermarks(ends)
        points = {**self._points}
        for key, end in ends.items():
            if self._is_own or points.get(key, 0) > end:
                points[key] = end
        if not self._is_own:
            if points != self._points:
                name = layout.RECOVERY_CHECKPOINT
                checkpoints.write_offsets(self._root, name, points)
        elif self._is_clean:
            self._ownership.end(points, self._starts)
        else:
            self._ownership.move_points(points)

    def _forget_published(self, ends: Mapping[TopicPartition, int]) -> None:
        """The logs that were made shorter than the journal of publications says have
        lost nothing more. A bad journal is for the next opening to refuse."""
        root, publications = self._root, Publications(self._root)
        try:
            journal = publications.journal()
        except (CorruptCheckpointError, UnsupportedError):
            return
        bases = {} if journal is None or not self._is_own else journal.bases
        gone = [key for key, end in bases.items() if ends.get(key, end) < end]
        if gone:
            PublicationJournal(root, self._ownership, publications, 0).forget_ends(gone)


def _nothing() -> None:
    """There is nothing to adopt: logstore was the last writer."""
