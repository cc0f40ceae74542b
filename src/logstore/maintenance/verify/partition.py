"""One partition directory: its log, segment by segment, and the derived files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from logstore.errors import CorruptCheckpointError
from logstore.index import STALE_DIGEST, UNKNOWN_DIGEST, digest_of
from logstore.io import layout
from logstore.io.checkpoint.partition_state import PartitionMetadata, SealedRow
from logstore.io.checkpoint.producer_snapshot import parse_snapshot
from logstore.io.checkpoint.segment_digest import hash_log, read_digest
from logstore.io.checkpoint.topic_identity import TopicIdentity
from logstore.io.directory import Directory
from logstore.io.layout import (
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.maintenance.finding import (
    DIGEST,
    LEFTOVER,
    NOT_REGULAR,
    ORPHAN,
    PRODUCER_SNAPSHOT,
    STATE,
    TIME_INDEX_FAULT,
)
from logstore.maintenance.verify.context import check_checkpoint, read_own
from logstore.maintenance.verify.decided import Decided
from logstore.maintenance.verify.log import LogWalk
from logstore.maintenance.verify.log_facts import LogFacts, other_end
from logstore.maintenance.verify.parallel import CheckJob
from logstore.maintenance.verify.report import Check, Run
from logstore.maintenance.verify.transactions import TransactionIndexes, check_txn_index

_ATTEMPTS: Final = 3


class PartitionCheck(Check):
    """One partition directory.

    `on_segment` is called with each segment when its check is complete, in order.
    """

    def __init__(
        self,
        run: Run,
        directory: Directory,
        context: PartitionMetadata,
        on_segment: Callable[[LogFacts], None] | None = None,
    ) -> None:
        super().__init__(run, directory)
        self.directory = directory
        self.context = context
        self.on_segment = on_segment
        self.decided: Decided
        self.transactions = TransactionIndexes(directory)
        self._last: LogFacts | None = None
        self._last_offset = -1

    def size(self) -> int:
        return log_bytes(self.directory)

    def jobs(self) -> Iterator[CheckJob]:
        names = self._regular(self.directory.names())
        self.decided = Decided(self.run_of, self.directory, self.context)
        self.decided.report()
        for base in self.decided.bases(names):
            walk = self._segment(base)
            yield CheckJob(partial(self._walk, walk), partial(self._take, walk))
        yield CheckJob(None, partial(self._finish, names))

    def _row(self, log: LogFacts) -> SealedRow | None:
        """The row of logstore's state for a sealed segment that seems intact."""
        state = self.context.state
        if state is None or not log.is_intact or log.is_deleted:
            return None
        return self.context.row(log.base)

    def _walk(self, walk: LogWalk) -> None:
        """The checks that need no other segment."""
        walk.walk()
        if self._row(walk.facts) is not None:
            self._check_digest(walk.run_of, walk.facts)

    def _check_digest(self, run: Run, log: LogFacts) -> None:
        """The side file of a sealed segment, if there is one."""
        path = self.directory.path_of(layout.digest_file(log.base))
        with run.reporting(STATE, path, later=STATE):
            digest = read_digest(self.directory, log.base)
            try:
                xxh3 = digest and hash_log(self.directory, log.base, log.size)
            except FileNotFoundError:
                return
            if digest and (digest.size, digest.xxh3) != (log.size, xxh3):
                text = (
                    f"{log.path} has changed since it was sealed: {log.size} "
                    f"bytes with digest {xxh3}, not {digest.size} with "
                    f"{digest.xxh3}, but no other damage"
                    + ("" if log.is_deep else " (not looked into compressed batches)")
                )
                run.problem(DIGEST, path, text, None, log.base, log.last_offset)

    def _check_time_digest(self, run: Run, log: LogFacts, digest: int) -> None:
        """Compare the time index of a sealed segment with the recorded digest."""
        name = segment_file(log.base, TIME_INDEX)
        try:
            data = self.directory.read_file(name)
        except OSError:
            return  # reported with the index
        path = self.directory.path_of(name)
        is_reported = any(problem.path == path for problem in run.problems)
        is_recorded = digest not in (UNKNOWN_DIGEST, STALE_DIGEST)
        if is_recorded and digest != digest_of(data) and not is_reported:
            run.problem(
                TIME_INDEX_FAULT,
                path,
                f"time index {path} has changed since its segment was sealed",
            )

    def _take(self, walk: LogWalk) -> None:
        """Continue with a segment that was walked over; those before it are done."""
        log, run = walk.facts, walk.run_of
        is_part = log.base not in self.decided.aside
        if is_part:
            walk.last_before = self._last_offset
        walk.conclude()
        if log.base in self.decided.foreign:
            run.findings.clear()
        row = self._row(log)
        if row is not None:
            self._check_time_digest(run, log, row[-1])
        self.run_of.merge(run)
        self.decided.report_size(log)
        if is_part:
            # Of the active segment, opening compares the end with its state.
            state = self.context.state
            is_contiguous = state is not None and state.is_contiguous
            if row is not None and is_contiguous and log.last_offset + 1 != row[2]:
                self.run_of.findings.append(other_end(log, row[2]))
            end = log.end if log.is_intact and not log.is_deleted else None
            self.transactions.add(self.run_of, log.name, log.base, end)
            self._last_offset = log.last_offset
            self._last = log
        if self.on_segment is not None:
            self.on_segment(log)

    def _finish(self, names: list[str]) -> None:
        """The remaining checks when all segments are done."""
        try:
            self.decided.report_rest(self._last)
            self._check_others(names)
            if self.run_of.deep:
                metadata = self.context
                is_finished = not (metadata.clean or metadata.is_own)
                self.transactions.check(self.run_of, is_finished=is_finished)
        except OSError as error:
            self.run_of.unreadable(self.directory.path, error)

    def _regular(self, names: list[str]) -> list[str]:
        """The names of regular files."""
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
            is_partition_file = parse_segment_file(name) or name in (
                layout.LEADER_EPOCHS,
                layout.PARTITION_METADATA,
                layout.PARTITION_STATE,
            )
            if info.is_file:
                kept.append(name)
            elif is_partition_file:
                run.problem(NOT_REGULAR, path, f"{path} is not a regular file")
        return kept

    def _segment(self, base: int) -> LogWalk:
        decided = self.decided
        transition = decided.logs[base]
        walk = LogWalk(
            self.run_of.child(),
            self.directory,
            segment_file(base, LOG) + transition,
            base,
            self.context,
            decided.following(base),
            end=decided.end_of(base),
            aborted=self.transactions.aborted,
        )
        if base in decided.indexed:
            return walk  # its indexes are built
        walk.facts.is_index_rebuilt |= base in decided.rebuilt
        walk.index_names = (
            segment_file(base, INDEX) + transition,
            segment_file(base, TIME_INDEX) + transition,
        )
        return walk

    def _check_others(self, names: list[str]) -> None:
        """Check files that are neither a log nor an index of one."""
        run, directory = self.run_of, self.directory
        operations = self.decided.plan.operations
        obsolete = {*operations.superseded, *operations.leftovers, *operations.waiting}
        for name in names:
            if name in obsolete:
                continue
            parsed = parse_segment_file(name)
            if parsed is None:
                if name in (layout.LEADER_EPOCHS, layout.PARTITION_METADATA):
                    check_checkpoint(run, directory, name)
                elif name.startswith(layout.TORN_PREFIX):
                    path = directory.path_of(name)
                    run.note(LEFTOVER, path, f"{path}: a torn tail that was cut")
                elif name == layout.DAMAGED:
                    self.decided.report_verdicts()
                elif name == layout.TOPIC_IDENTITY:
                    read_own(directory, name, run, TopicIdentity.read)
                continue
            if parsed.suffix == SNAPSHOT:
                check_snapshot(run, directory, name, is_clean=self.context.clean)
            elif parsed.suffix == TXN_INDEX:
                entries = check_txn_index(
                    run,
                    directory,
                    name,
                    parsed,
                    self.transactions.aborted,
                    None if self.context.clean else self._last_offset + 1,
                )
                self.transactions.entries[parsed.base_offset] = entries
            elif parsed.suffix != LOG and parsed.base_offset not in self.decided.logs:
                path = directory.path_of(name)
                run.note(ORPHAN, path, f"{path} has no log next to it")


def check_snapshot(
    run: Run, directory: Directory, name: str, *, is_clean: bool
) -> None:
    path = directory.path_of(name)
    with run.reporting(PRODUCER_SNAPSHOT, path):
        try:
            parse_snapshot(directory.read_file(name), path)
        except CorruptCheckpointError as error:
            if is_clean:
                raise
            # Not synced before its name appears: a crash may leave a part of it.
            run.note(PRODUCER_SNAPSHOT, path, str(error))


def log_bytes(directory: Directory) -> int:
    """Bytes of its `.log` files, if they are known."""
    try:
        infos = directory.infos()
    except OSError:
        return 0
    return sum(i.size for name, i in infos.items() if name.endswith((LOG, LOG + SWAP)))
