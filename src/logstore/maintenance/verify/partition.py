"""One partition directory: its log, segment by segment, and the derived files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.index import STALE_DIGEST, UNKNOWN_DIGEST, digest_of
from logstore.io import layout
from logstore.io.checkpoint.partition_state import PartitionState, SealedRow
from logstore.io.checkpoint.recovery_report import LOST_TOLD
from logstore.io.checkpoint.segment_digest import hash_log, read_digest
from logstore.io.directory import Directory
from logstore.io.layout import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.log.read.transactions import parse_snapshot
from logstore.log.recover.survey import Survey, survey
from logstore.maintenance.verify.context import Context, check_checkpoint
from logstore.maintenance.verify.indexes import check_txn_index
from logstore.maintenance.verify.log import LogCheck
from logstore.maintenance.verify.parallel import Job
from logstore.maintenance.verify.report import (
    DIGEST,
    EXTRA_BYTES,
    LEFTOVER,
    LOST_BYTES,
    LOST_SEGMENT,
    MISSING_INDEX,
    NOT_REGULAR,
    OFFSETS,
    ORPHAN,
    PRODUCER_SNAPSHOT,
    STATE,
    TIME_INDEX_FAULT,
    Check,
    Run,
)

_ATTEMPTS: Final = 3


class PartitionCheck(Check):
    """One partition directory.

    `on_segment` is called with each segment when its check is complete, in order.
    """

    def __init__(
        self,
        run: Run,
        directory: Directory,
        context: Context,
        on_segment: Callable[[LogCheck], None] | None = None,
    ) -> None:
        super().__init__(run, directory)
        self.directory = directory
        self.context = context
        self.on_segment = on_segment
        self.aborted: set[tuple[int, int]] = set()
        self._last: LogCheck | None = None
        self._last_offset = -1

    def size(self) -> int:
        return log_bytes(self.directory)

    def jobs(self) -> Iterator[Job]:
        names = self._regular(self.directory.names())
        found = self._survey(names)
        bases = sorted(found.logs)
        self._check_missing(found)
        for base, following in zip(bases, [*bases[1:], None], strict=False):
            log = self._segment(base, found, following)
            yield Job(partial(self._walk, log), partial(self._take, log))
        yield Job(None, partial(self._finish, names, found))

    def _row(self, log: LogCheck) -> SealedRow | None:
        """The row of logstore's state for a sealed segment that seems intact."""
        state = self.context.state
        if state is None or not log.is_sound or log.is_gone:
            return None
        return self.context.rows.get(log.base)

    def _walk(self, log: LogCheck) -> None:
        """The checks that need no other segment."""
        log.walk()
        if self._row(log) is not None:
            self._check_digest(log)

    def _check_digest(self, log: LogCheck) -> None:
        """The side file of a sealed segment, if there is one."""
        run, path = log.run_of, self.directory.path_of(layout.digest_file(log.base))
        try:
            digest = read_digest(self.directory, log.base)
            if digest is None:
                return
            found = hash_log(self.directory, log.base, log.size)
        except FileNotFoundError:
            return
        except (CorruptCheckpointError, UnsupportedError) as error:
            run.problem(STATE, path, str(error))
            return
        except OSError as error:
            run.unreadable(path, error)
            return
        if (digest.size, digest.xxh3) != (log.size, found):
            run.problem(
                DIGEST,
                path,
                f"{log.path} is not what it was when it was sealed: {log.size} bytes "
                f"with digest {found}, not {digest.size} with {digest.xxh3}, and "
                f"nothing else is wrong with it"
                + ("" if log.is_deep else " (not looked into compressed batches)"),
                first=log.base,
                last=log.last_offset,
            )

    def _check_time_digest(self, log: LogCheck, digest: int) -> None:
        """Compare the time index of a sealed segment with the recorded digest."""
        name = segment_file(log.base, TIME_INDEX)
        try:
            data = self.directory.read_file(name)
        except OSError:
            return  # reported with the index
        path = self.directory.path_of(name)
        told = any(problem.path == path for problem in log.run_of.problems)
        known = digest not in (UNKNOWN_DIGEST, STALE_DIGEST)
        if known and digest != digest_of(data) and not told:
            log.run_of.problem(
                TIME_INDEX_FAULT,
                path,
                f"time index {path} is not what it was when its segment was sealed",
            )

    def _take(self, log: LogCheck) -> None:
        """Continue with a segment that was walked over; those before it are done."""
        log.last_before = self._last_offset
        log.conclude()
        row = self._row(log)
        if row is not None:
            self._check_time_digest(log, row[-1])
        self.run_of.merge(log.run_of)
        self._check_next_offset(log)
        self._last_offset = max(log.last_offset, self._last_offset)
        self._last = log
        if self.on_segment is not None:
            self.on_segment(log)

    def _finish(self, names: list[str], found: Survey) -> None:
        """The remaining checks when all segments are done."""
        try:
            if self._last is None:
                if self.context.state is None:
                    self._check_empty()
            elif not self._last.is_gone:
                self._check_end(self._last)
            self._check_others(names, found)
        except OSError as error:
            self.run_of.unreadable(self.directory.path, error)

    def _regular(self, names: list[str]) -> list[str]:
        """The names without those that are not regular files."""
        run, kept = self.run_of, []
        for name in names:
            path = self.directory.path_of(name)
            try:
                info = self.directory.stat(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                run.unreadable(path, error)
                continue
            known = parse_segment_file(name) or name in (
                layout.LEADER_EPOCHS,
                layout.PARTITION_METADATA,
                layout.PARTITION_STATE,
            )
            if info.is_file:
                kept.append(name)
            elif known:
                run.problem(NOT_REGULAR, path, f"{path} is not a regular file")
        return kept

    def _survey(self, names: list[str]) -> Survey:
        """The meaning of the names (`recovery.survey`), with notes about leftovers."""
        run, directory = self.run_of, self.directory
        try:
            found = survey(directory, run.descriptors)
        except OSError:
            # A `.swap` that cannot be read (reported already): treated as missing.
            logs = {
                p.base_offset: ""
                for name in names
                if (p := parse_segment_file(name)) and not p.transition
                if p.suffix == LOG
            }
            found = Survey(logs, [], [], [], [], frozenset(names))
        regular = set(names)
        found.logs = {
            base: transition
            for base, transition in found.logs.items()
            if segment_file(base, LOG) + transition in regular
        }
        for suffix, some, meaning in (
            (DELETED, found.deleted, "wait for their deletion"),
            (CLEANED, found.leftovers, "are left of an unfinished compaction"),
            (SWAP, found.swaps, "replace others as soon as the log is opened"),
        ):
            if some:
                run.note(
                    LEFTOVER,
                    directory.path_of(some[0]),
                    f"{directory.path}: {len(some)} {suffix} files {meaning}",
                )
        return found

    def _segment(self, base: int, found: Survey, following: int | None) -> LogCheck:
        transition = found.logs[base]
        log = LogCheck(
            self.run_of.child(),
            self.directory,
            segment_file(base, LOG) + transition,
            base,
            self.context,
            following,
            aborted=self.aborted,
        )
        state = self.context.state
        row = self.context.rows.get(base)
        is_doubtful = row is not None and row[-1] == STALE_DIGEST
        if state is not None and not log.is_last:
            is_doubtful |= base >= state.active["base_offset"]
        if is_doubtful:
            path = self.directory.path_of(segment_file(base, INDEX))
            self.run_of.note(
                MISSING_INDEX,
                path,
                f"indexes of {log.path} may not have been finished when it was sealed; "
                f"they are built anew when the log is opened for writing",
            )
            return log
        log.index_names = (
            segment_file(base, INDEX) + transition,
            segment_file(base, TIME_INDEX) + transition,
        )
        return log

    def _check_missing(self, found: Survey) -> None:
        """Check for the segments and bytes that logstore's own state lists."""
        state = self.context.state
        if state is None:
            return
        wanted, active = self.context.rows, state.active["base_offset"]
        missing = []
        for base in sorted({*wanted, active}):
            if base in found.logs:
                if base in wanted:
                    self._check_sealed_size(base, wanted[base][1])
            elif base != active or state.active["size"]:
                missing.append(base)
        deleted = self._deleted_since(missing)
        lost = [base for base in missing if base not in deleted]
        for base in lost[:LOST_TOLD]:
            path, last = self._place(base), self._last_of(base, state)
            self.run_of.problem(
                LOST_SEGMENT,
                path,
                f"segment {path} is gone: offsets {base} to {last}",
                first=base,
                last=last,
            )
        rest = lost[LOST_TOLD:]
        if rest:
            path, last = self._place(rest[0]), self._last_of(rest[-1], state)
            self.run_of.problem(
                LOST_SEGMENT,
                path,
                f"{len(rest)} more segments of {self.directory.path} are gone, between "
                f"offsets {rest[0]} and {last}",
                first=rest[0],
                last=last,
            )

    def _place(self, base: int) -> str:
        return self.directory.path_of(segment_file(base, LOG))

    def _last_of(self, base: int, state: PartitionState) -> int:
        """The last offset of a segment that no longer exists."""
        row = self.context.rows.get(base)
        return (state.durable_offset if row is None else row[2]) - 1

    def _deleted_since(self, bases: list[int]) -> set[int]:
        """Which of these segments a writer has deleted after its state was read."""
        deleted: set[int] = set()
        for _ in range(_ATTEMPTS):
            if len(deleted) == len(bases):
                break
            try:
                state = PartitionState.read(self.directory)
            except CorruptCheckpointError:
                break
            except OSError:
                state = None
            known = {row[0] for row in state.sealed} if state else set()
            start = None if state is None else state.start_offset
            deleted.update(
                base
                for base in bases
                if base not in known and (start is None or base < start)
            )
        return deleted

    def _check_sealed_size(self, base: int, size: int) -> None:
        name = segment_file(base, LOG)
        path = self.directory.path_of(name)
        try:
            found = self.directory.stat(name).size
        except OSError:
            return
        if found < size:
            self.run_of.problem(
                LOST_BYTES,
                path,
                f"{path} has {found} bytes, {size} were durable: {size - found} are "
                f"gone",
                position=found,
            )
        elif found > size:
            self.run_of.problem(
                EXTRA_BYTES,
                path,
                f"{path} is sealed and has {found} bytes, not {size}: {found - size} "
                f"too many",
                position=size,
            )

    def _check_next_offset(self, log: LogCheck) -> None:
        """Whether a segment ends with the offset that logstore recorded."""
        state = self.context.state
        if state is None or not state.is_gapless or not log.is_sound or log.is_gone:
            return
        row = self.context.rows.get(log.base)
        noted = None if row is None else row[2]
        active = state.active
        if log.base == active["base_offset"] and (
            self.context.clean and log.size == active["size"]
        ):
            noted = state.durable_offset
        if noted is not None and log.last_offset + 1 != noted:
            self.run_of.problem(
                OFFSETS,
                log.path,
                f"{log.path} ends with offset {log.last_offset}, not {noted - 1}",
                position=log.end,
                first=min(log.last_offset + 1, noted),
                last=max(log.last_offset, noted - 1),
            )

    def _check_end(self, log: LogCheck) -> None:
        """Whether the log reaches as far as it is known to be durable."""
        run, context, path = self.run_of, self.context, log.path
        state = context.state
        end = log.last_offset + 1
        if state is not None:
            active = state.active
            if active["base_offset"] != log.base:
                return
            if log.size < active["size"]:
                run.problem(
                    LOST_BYTES,
                    path,
                    f"{path} has {log.size} bytes, {active['size']} were durable: "
                    f"{active['size'] - log.size} are gone from its end",
                    position=log.size,
                    first=end,
                    last=max(state.durable_offset - 1, end),
                )
            elif context.clean and log.size > active["size"]:
                run.problem(
                    EXTRA_BYTES,
                    path,
                    f"{path} has {log.size - active['size']} bytes behind the end of a "
                    f"log that was closed at byte {active['size']}",
                    position=active["size"],
                )
            elif context.clean and state.durable_offset < context.recovery_point:
                self._older_than_store(log, state.durable_offset)
            return
        # An empty last segment may follow an unclean stop of Kafka; not a clean one.
        is_known = log.batches > 0 or context.clean
        if is_known and log.is_sound and end < context.recovery_point:
            run.problem(
                LOST_BYTES,
                path,
                f"{path} ends before offset {end}; according to "
                f"{layout.RECOVERY_CHECKPOINT} everything below "
                f"{context.recovery_point} was durable",
                position=log.size,
                first=end,
                last=context.recovery_point - 1,
            )

    def _older_than_store(self, log: LogCheck, end: int) -> None:
        """Report a partition that agrees with its own state, but not with the store's
        marks: it was restored from a backup without the rest."""
        point = self.context.recovery_point
        self.run_of.problem(
            LOST_BYTES,
            log.path,
            f"{log.path} ends before offset {end}, as the state of its partition says; "
            f"according to {layout.RECOVERY_CHECKPOINT} it ended before {point} when "
            f"the store was closed",
            position=log.size,
            first=end,
            last=point - 1,
        )

    def _check_empty(self) -> None:
        """Whether a partition without any segment has lost them."""
        context, path = self.context, self.directory.path
        if context.recovery_point > context.log_start:
            self.run_of.problem(
                LOST_SEGMENT,
                path,
                f"{path} has no segment; according to {layout.RECOVERY_CHECKPOINT} "
                f"everything below {context.recovery_point} was durable",
                first=context.log_start,
                last=context.recovery_point - 1,
            )

    def _check_others(self, names: list[str], found: Survey) -> None:
        """Check files that are neither a log nor an index of one."""
        run, directory = self.run_of, self.directory
        gone = {*found.superseded, *found.leftovers, *found.deleted}
        for name in names:
            if name in gone:
                continue
            parsed = parse_segment_file(name)
            if parsed is None:
                if name in (layout.LEADER_EPOCHS, layout.PARTITION_METADATA):
                    check_checkpoint(run, directory, name)
                elif name.startswith(layout.TORN_PREFIX):
                    path = directory.path_of(name)
                    run.note(LEFTOVER, path, f"{path}: a torn tail that was cut")
                continue
            if parsed.suffix == SNAPSHOT:
                self.check_snapshot(name)
            elif parsed.suffix == TXN_INDEX:
                check_txn_index(run, directory, name, parsed, self.aborted)
            elif parsed.suffix != LOG and parsed.base_offset not in found.logs:
                path = directory.path_of(name)
                run.note(ORPHAN, path, f"{path} has no log beside it")

    def check_snapshot(self, name: str) -> None:
        run, path = self.run_of, self.directory.path_of(name)
        try:
            parse_snapshot(self.directory.read_file(name), path)
        except CorruptCheckpointError as error:
            # Not synced before its name appears: a crash may leave a part of it.
            tell = run.problem if self.context.clean else run.note
            tell(PRODUCER_SNAPSHOT, path, str(error))
        except OSError as error:
            run.unreadable(path, error)


def log_bytes(directory: Directory) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for name in directory.names():
            if name.endswith((LOG, LOG + SWAP)):
                with contextlib.suppress(OSError):
                    total += directory.stat(name).size
    return total
