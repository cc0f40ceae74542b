"""Wakes a reader of partitions (a follower, or a consumer) that waits for new
records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from logstore import _native as native
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.wakeups import WATCHED_S_MAX, Wakeups, Watch
from logstore.store.partition.partition_views import PartitionViews

__all__ = ["NewRecords"]


class NewRecords:
    """Waits until there may be more in some partitions; for one thread at a time.

    The appends of this store wake it. If another process writes, it wakes by changes of
    the partitions' directories, of names in that of the store, and of the journal of
    publications, which shows a publication before the partitions do.

    Args:
        root: the directory of the store.
        interval_s: a wake-up less than this after the one before comes this much later,
            in seconds.
    """

    def __init__(self, root: Directory, interval_s: float = 0.0) -> None:
        self._root = root
        self._interval_s = interval_s
        self._woken_at = 0.0
        self._sources: tuple[object, ...] = ()
        self._wakeups: Wakeups | None = None

    def wait(
        self,
        views: Sequence[PartitionViews],
        seconds: float | None,
        *,
        more: Sequence[Watch] = (),
        incarnation: object = None,
    ) -> bool:
        """Wait at most `seconds` (None: no limit); may return earlier.

        Args:
            more: changes that wake it, too, unless this store writes.
            incarnation: differs if the directories were made again.

        Returns:
            Whether there may be more than before the previous call. True at once if the
            partitions, `more` or `incarnation` have changed since that call.
        """
        signals = [view.appended for view in views if view.appended is not None]
        directories = [view.log.directory for view in views]
        watches = list(more)
        journal = None
        if not signals:
            watches.append(Watch(self._root, native.WATCH_NAMES))
            with contextlib.suppress(OSError):
                # It is replaced by another file now and then.
                journal = self._root.stamp(layout.PUBLICATION)
        if journal is not None:
            watches.append(Watch(self._root, native.WATCH_WRITES, layout.PUBLICATION))
        sources = (signals, directories, watches, journal and journal[0], incarnation)
        wakeups = self._wakeups
        is_new = wakeups is None or wakeups.is_inherited or sources != self._sources
        if wakeups is None or is_new:
            self.close()
            self._wakeups = Wakeups(self._root.files, directories, signals, watches)
            self._sources = sources
            return True
        limit = WATCHED_S_MAX if seconds is None else min(seconds, WATCHED_S_MAX)
        is_woken = wakeups.wait(limit)
        if wakeups.is_reporting:
            if is_woken and time.monotonic() - self._woken_at < self._interval_s:
                time.sleep(self._interval_s)
            self._woken_at = time.monotonic()
            wakeups.take()
        return is_woken

    @property
    def is_reporting(self) -> bool:
        """Whether `wait` sleeps until it is woken, and not for a pause."""
        return self._wakeups is not None and self._wakeups.is_reporting

    def restart_pauses(self) -> None:
        """Sleep for a short time first if changes are not reported."""
        if self._wakeups is not None:
            self._wakeups.restart_pauses()

    def close(self) -> None:
        """Wait for nothing any more. May be called again, and waited with again."""
        if self._wakeups is not None:
            self._wakeups.close()
            self._wakeups = None
