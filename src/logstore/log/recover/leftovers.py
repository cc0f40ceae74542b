"""The first step of loading: the contents of a partition's directory, and operations
that were begun and not finished in it."""

from __future__ import annotations

import contextlib

from logstore.io import layout
from logstore.io.checkpoint.recovery_report import LEFTOVERS_REMOVED, SWAP_FINISHED
from logstore.io.layout import (
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.log.recover.context import Case
from logstore.log.recover.durable import cut_for_good
from logstore.log.recover.survey import Survey

__all__ = ["Names"]


class Names:
    """Finishes, or undoes, the operations that names on disk show were begun."""

    def __init__(self, case: Case, found: Survey) -> None:
        self.case = case
        self.found = found

    def finish(self) -> None:
        """Do all steps; if read-only, only those that change no file."""
        self.finish_truncation()
        self.finish_deletion()
        if self.case.writable:
            self.finish_transitions()
            self.remove_deleted()
            self.remove_orphans()

    def finish_truncation(self) -> None:
        """Continue a `truncate_to` that was interrupted after its commit.

        1. sync the directory: its commit may be in the page cache only; 2. cut the last
        segment that stays, and sync it; 3. remove the later ones; 4. sync the
        directory. The state file still says that a truncation is in progress: it is
        written again before the first append.
        """
        state = self.case.situation.state
        if state is None or not state.is_truncating:
            return
        base, size = state.active["base_offset"], state.active["size"]
        dropped = [b for b in self.found.logs if b > base]
        if self.case.writable:
            self.case.directory.sync()
        if self.case.writable and base in self.found.logs:
            files = self.case.directory.files
            with self.case.directory.opened(segment_file(base, LOG), write=True) as fd:
                if files.size(fd) >= size:
                    cut_for_good(files, fd, size)
        for later in dropped:
            del self.found.logs[later]
            if self.case.writable:
                for suffix in SEGMENT_SUFFIXES:
                    self.case.directory.unlink(
                        segment_file(later, suffix), missing_ok=True
                    )
        if self.case.writable and dropped:
            self.case.directory.sync()

    def finish_deletion(self) -> None:
        """Continue a deletion that was interrupted after its commit: rename the
        segments below the first one that the state knows. A crash may have restored any
        of their names.
        """
        state = self.case.situation.state
        if state is None:
            return
        first = min([row[0] for row in state.sealed] + [state.active["base_offset"]])
        if state.start_offset < first:
            return
        dropped = [b for b, swap in self.found.logs.items() if b < first and not swap]
        if dropped and self.case.writable:
            self.case.directory.sync()  # the state may be in the page cache only
        for base in dropped:
            del self.found.logs[base]
            if not self.case.writable:
                continue
            for suffix in SEGMENT_SUFFIXES:
                name = segment_file(base, suffix)
                with contextlib.suppress(FileNotFoundError):
                    self.case.directory.rename(name, name + DELETED)
                    self.found.deleted.append(name + DELETED)

    def finish_transitions(self) -> None:
        """Finish or undo an interrupted compaction or swap.

        1. remove the files that the swap supersedes; 2. rename `.swap` to final names;
        3. sync the directory; 4. remove `.cleaned` and unfinished `.swap` files.
        """
        directory = self.case.directory
        for name in self.found.superseded:
            directory.unlink(name, missing_ok=True)
        for name in self.found.swaps:
            directory.rename(name, name.removesuffix(SWAP))
        if self.found.swaps:
            directory.sync()
            self.case.report(
                SWAP_FINISHED,
                self.found.swaps[0],
                f"renamed {len(self.found.swaps)} .swap files to their final names; "
                f"removed {len(self.found.superseded)} files that they supersede",
            )
        for name in self.found.leftovers:
            directory.unlink(name, missing_ok=True)
        if self.found.leftovers:
            self.case.report(
                LEFTOVERS_REMOVED,
                self.found.leftovers[0],
                f"removed {len(self.found.leftovers)} files of an unfinished "
                f"compaction",
            )
        for base, transition in self.found.logs.items():
            if transition:
                self.found.logs[base] = ""
        if self.found.swaps or self.found.superseded:
            self.found.names = frozenset(directory.names())

    def remove_deleted(self) -> None:
        """Remove `.deleted` files whose delay is over; keep the others in `found`."""
        directory = self.case.directory
        now_ms = directory.files.now_ms()
        waiting: list[str] = []
        for name in self.found.deleted:
            with contextlib.suppress(FileNotFoundError):
                renamed_ms = directory.stat(name).ctime_ns // 1_000_000
                if 0 <= now_ms - renamed_ms < self.case.config.file_delete_delay_ms:
                    waiting.append(name)
                else:
                    directory.unlink(name, missing_ok=True)
        self.found.deleted = waiting

    def remove_orphans(self) -> None:
        """Remove index files without a log, as Kafka does."""
        for name in self.found.names:
            parsed = parse_segment_file(name)
            if (
                parsed is not None
                and not parsed.transition
                and parsed.suffix in (INDEX, TIME_INDEX, TXN_INDEX)
                and parsed.base_offset not in self.found.logs
            ):
                self.case.directory.unlink(name, missing_ok=True)

    def digests(self) -> set[int]:
        """The sealed segments that have a digest. The digest of a segment that is
        appended to, or does not exist, is stale: remove it."""
        bases = {
            base
            for name in self.found.names
            if (base := layout.parse_digest_file(name)) is not None
        }
        sealed = bases & set(sorted(self.found.logs)[:-1])
        if (
            self.case.situation.state is None
            and self.case.situation.state_error is None
        ):
            sealed = set()  # another program may have changed the segments
        if self.case.writable and self.case.damage is None:
            for base in bases - sealed:
                self.case.directory.unlink(layout.digest_file(base), missing_ok=True)
        return sealed
