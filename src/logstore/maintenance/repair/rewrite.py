"""Changes the files of a log, in steps: a crash leaves the state before or after a
step.

All bytes to be removed are in the quarantine already. Index files are removed before
their log changes: a broker, and logstore, build missing indexes and may trust existing
ones.
"""

from __future__ import annotations

import contextlib

from logstore.index import TXN_ENTRY_BYTES, parse_txn_index
from logstore.io.directory import Directory
from logstore.io.layout import (
    CLEANED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from logstore.log.recover.durable import copy_bytes
from logstore.log.recover.rebuild import cut_transactions
from logstore.maintenance.repair.plan import RepairedSegment, VerifiedSegment
from logstore.maintenance.repair.quarantine import Quarantine


class Rewrite:
    """The changes to the log of one partition."""

    def __init__(self, directory: Directory, quarantine: Quarantine) -> None:
        self.directory = directory
        self.quarantine = quarantine

    def remove(self, removed: list[VerifiedSegment]) -> None:
        """Remove whole segments, the last one first."""
        for source in sorted(removed, key=lambda f: -f.base):
            self._unlink_indexes(source.base)
            self.quarantine.take_out(source.name)

    def cut(self, targets: list[RepairedSegment]) -> None:
        """Cut the segments of which a prefix stays, the last one first.

        1. unlink the indexes; 2. truncate and sync; 3. transaction index.
        """
        directory = self.directory
        for target in reversed(targets):
            if target.base != target.source.base or target.is_whole:
                continue
            if not target.is_prefix:
                continue
            self._unlink_indexes(target.base)
            size = target.ranges[0][1] if target.ranges else 0
            with directory.opened(target.source.name, write=True) as fd:
                directory.files.truncate(fd, size)
                directory.files.sync(fd)
            cut_transactions(directory, target.base, target.last + 1)

    def rewrite(self, targets: list[RepairedSegment]) -> list[RepairedSegment]:
        """Rewrite the other changed segments, group by group; returns the new ones."""
        rewritten = self._rename(targets)
        renamed = [t for t in targets if t.base != t.source.base and t not in rewritten]
        group = _closure(targets, renamed)
        if group:
            self._swap(group)
        rewritten += group
        for target in reversed(targets):
            if target not in rewritten and not target.is_whole and not target.is_prefix:
                self._swap([target])
                rewritten.append(target)
        return rewritten

    def _rename(self, targets: list[RepairedSegment]) -> list[RepairedSegment]:
        """Rename the segments that stay whole and whose right name is free. There is
        no moment at which both names exist. Returns the renamed segments.

        1. unlink the indexes; 2. rename the log, and the transaction index; sync.
        """
        directory = self.directory
        done: list[RepairedSegment] = []
        while True:
            names = set(directory.names())
            free = [
                target
                for target in targets
                if target.base != target.source.base
                and target.is_whole
                and target not in done
                and segment_file(target.base, LOG) not in names
            ]
            if not free:
                return done
            target = free[0]
            self._unlink_indexes(target.source.base)
            directory.rename(target.source.name, segment_file(target.base, LOG))
            with contextlib.suppress(FileNotFoundError):
                directory.rename(
                    segment_file(target.source.base, TXN_INDEX),
                    segment_file(target.base, TXN_INDEX),
                )
            directory.sync()
            done.append(target)

    def create(self, base: int) -> None:
        """Create an empty segment, durably."""
        directory = self.directory
        directory.files.close(directory.create(segment_file(base, LOG)))
        directory.sync()

    def _unlink_indexes(self, base: int) -> None:
        for suffix in (INDEX, TIME_INDEX):
            self.directory.unlink(segment_file(base, suffix), missing_ok=True)

    def _swap(self, group: list[RepairedSegment]) -> None:
        """Replace old files by new ones, as Kafka's compaction does.

        1. write the new ones under `.cleaned`, and sync them; 2. rename them to
        `.swap`, the highest first; sync the directory: the commit; 3. unlink the old;
        4. remove `.swap` from the names; sync. Opening, by logstore or a broker, undoes
        the work that was not committed and finishes the work that was.
        """
        directory = self.directory
        names: list[str] = []
        try:
            for target in group:
                names += self._write_cleaned(target)
            directory.sync()
        except BaseException:
            with contextlib.suppress(OSError):
                for target in group:
                    for suffix in (LOG, TXN_INDEX):
                        name = segment_file(target.base, suffix) + CLEANED
                        directory.unlink(name, missing_ok=True)
            raise
        for name in sorted(names, reverse=True):
            directory.rename(name + CLEANED, name + SWAP)
        directory.sync()
        for target in group:
            self._unlink_indexes(target.source.base)
            directory.unlink(
                segment_file(target.source.base, TXN_INDEX), missing_ok=True
            )
            directory.unlink(target.source.name, missing_ok=True)
        for name in sorted(names):
            directory.rename(name + SWAP, name)
        directory.sync()

    def _write_cleaned(self, target: RepairedSegment) -> list[str]:
        """Write the bytes of a segment that stay; the names without `.cleaned`."""
        directory, files = self.directory, self.directory.files
        names = [segment_file(target.base, LOG)]
        with directory.opened(target.source.name) as fd:
            to_fd = directory.create(names[0] + CLEANED, exclusive=False)
            try:
                position = 0
                for begin, end in target.ranges:
                    n = copy_bytes(directory, fd, begin, end, to_fd, position)
                    if n < end - begin:
                        raise OSError(f"{target.source.name} became shorter")
                    position += n
                files.sync(to_fd)
            finally:
                files.close(to_fd)
        transactions = self._transactions(target)
        if transactions is not None:
            name = segment_file(target.base, TXN_INDEX)
            names.append(name)
            directory.write_file(name + CLEANED, transactions)
        return names

    def _transactions(self, target: RepairedSegment) -> bytes | None:
        """The aborted transactions of a segment whose markers stay; None: no file."""
        name = segment_file(target.source.base, TXN_INDEX)
        try:
            data = self.directory.read_file(name)
        except FileNotFoundError:
            return None
        entries = parse_txn_index(data, self.directory.path_of(name))
        markers: set[int] = set()
        for run in target.source.runs:
            for begin, end, first, last in target.source.batches(run):
                if any(low <= begin and end <= high for low, high in target.ranges):
                    markers.update(
                        e.last_offset for e in entries if first <= e.last_offset <= last
                    )
        return b"".join(
            data[slot * TXN_ENTRY_BYTES : (slot + 1) * TXN_ENTRY_BYTES]
            for slot, entry in enumerate(entries)
            if entry.last_offset in markers
        )


def _closure(
    targets: list[RepairedSegment], renamed: list[RepairedSegment]
) -> list[RepairedSegment]:
    """The segments that must be swapped together with segments that get another name.

    Opening removes every segment between the lowest and the highest offset of committed
    `.swap` files; so each segment there, by its old or new name, has to be one of them.
    """
    if not renamed:
        return []
    low = min(min(t.base, t.source.base) for t in renamed)
    high = max(max(t.last, t.base, t.source.base) for t in renamed)
    while True:
        group = [
            t
            for t in targets
            if low <= t.source.base <= high
            or (t.base <= high and low <= max(t.last, t.base))
        ]
        wider = (
            min(low, *(min(t.base, t.source.base) for t in group)),
            max(high, *(max(t.last, t.base, t.source.base) for t in group)),
        )
        if wider == (low, high):
            return group
        low, high = wider
