"""Finds where readers of a partition stop while records of several partitions are
published."""

from __future__ import annotations

from logstore import _native as native
from logstore.io.checkpoint.publications import PublicationKey, Publications
from logstore.io.layout import TopicPartition

__all__ = ["PublicationStop"]


class PublicationStop:
    """The publications of a store, as the reader of one partition sees them. The
    caller's lock guards it.

    Attributes:
        offset: where readers stop (publications.py); `native.OFFSET_MAX`: at the end.
    """

    def __init__(self, publications: Publications, key: TopicPartition) -> None:
        self.offset = native.OFFSET_MAX
        self._publications = publications
        self._key = key
        self._cache_key: object = None

    def begin(self) -> None:
        """Call before a log is loaded."""
        self._cache_key = self._publications.cache_key()

    def look(self, cache_key: PublicationKey) -> bool:
        """Determine the offset, after the log was read. False if a publication began or
        ended since the last call: part of it may be visible.

        Args:
            cache_key: from a look at the files after the log was read.
        """
        previous_key, self._cache_key = self._cache_key, cache_key
        if cache_key != previous_key:
            return False
        high_watermarks = self._publications.high_watermarks(cache_key)
        if high_watermarks is None:
            return False
        self.offset = high_watermarks.get(self._key, native.OFFSET_MAX)
        return True
