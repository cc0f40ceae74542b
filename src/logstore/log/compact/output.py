"""The files of a compacted segment, under `.cleaned`, until they are complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from logstore import _native as native
from logstore.errors import StorageError
from logstore.index import (
    OffsetEntries,
    TimeEntries,
    TxnEntry,
    add_closing_entry,
    format_txn_index,
)
from logstore.io.directory import Directory
from logstore.io.layout import (
    CLEANED,
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from logstore.log.scan import take_batches
from logstore.log.write.replacement import COMPACTED_SUFFIXES, CompactedSegment

__all__ = ["Output"]

# A segment cannot be larger: positions in an index have 31 bits.
_SIZE_MAX = (1 << 31) - 1
# Write-back begins each time this many bytes were added: less is left for the sync.
_WRITE_BACK_BYTES = 8 << 20


class Output:
    """A segment that is being written. For one thread.

    Attributes:
        base_offset: of it.
        state: of the segment so far.
    """

    def __init__(self, directory: Directory, base_offset: int, interval: int) -> None:
        """Args:
        interval: ``index_interval_bytes``.

        Raises:
            OSError: as the system gives it.
        """
        self.base_offset = base_offset
        self.state = native.SegmentState(base_offset)
        self._directory = directory
        self._planner = native.Planner(interval, None)
        self._index, self._times = OffsetEntries(), TimeEntries()
        self._written_back = 0
        self._fd = -1
        try:
            self._fd = directory.create(self._name(LOG), exclusive=False)
            directory.files.truncate(self._fd, 0)
        except BaseException:
            # Also after an interrupt in `create`, which may have made the file.
            self.discard()
            raise

    def _name(self, suffix: str) -> str:
        return segment_file(self.base_offset, suffix) + CLEANED

    def write(self, data: memoryview | bytes) -> None:
        """Append whole batches.

        Raises:
            OSError: as the system gives it.
            StorageError: the segment would be too large.
        """
        files, pos = self._directory.files, self.state.size
        if pos + len(data) > _SIZE_MAX:
            raise StorageError(
                f"the compacted segment {self.base_offset} of {self._directory.path} "
                f"would have more than {_SIZE_MAX} bytes. Nothing was replaced",
                path=self._directory.path,
                action="compact",
            )
        files.write(self._fd, data, pos)
        pointer = native.pointer(data)
        taken, _ = take_batches(
            self._planner, self.state, pointer, len(data), self._index, self._times
        )
        assert taken == len(data)
        if self.state.size - self._written_back >= _WRITE_BACK_BYTES:
            size = self.state.size - self._written_back
            files.write_back(self._fd, self._written_back, size)
            self._written_back = self.state.size

    def finish(self, modified_ns: int, aborted: Iterable[TxnEntry]) -> CompactedSegment:
        """Write the indexes, and sync everything.

        Args:
            modified_ns: time of the last change of the last old file.
            aborted: the transactions whose markers are in it.

        Raises:
            OSError: as the system gives it.
        """
        files, directory = self._directory.files, self._directory
        add_closing_entry(self.state, self._times)
        contents = {INDEX: self._index.data(), TIME_INDEX: self._times.data()}
        transactions = format_txn_index(aborted)
        if transactions:
            contents[TXN_INDEX] = transactions
        for suffix, data in contents.items():
            fd = directory.create(self._name(suffix), exclusive=False)
            try:
                files.truncate(fd, 0)
                files.write(fd, data, 0)
                files.sync(fd)
            finally:
                files.close(fd)
        files.set_modified(self._fd, modified_ns)
        files.sync(self._fd)
        self.close()
        directory.sync()
        return CompactedSegment(
            self.base_offset,
            self.state.size,
            self.state.max_timestamp,
            self.state.max_timestamp_offset,
            self._times.digest(),
            (LOG, *contents),
        )

    def close(self) -> None:
        """Release the descriptor. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._directory.files.close(fd)

    abandon = close

    def discard(self) -> None:
        """Remove the files; opening removes any that are left."""
        with contextlib.suppress(OSError):
            self.close()
        for suffix in COMPACTED_SUFFIXES:
            with contextlib.suppress(OSError):
                self._directory.unlink(self._name(suffix), missing_ok=True)
