"""Compacts one log: decides, maps the keys, rewrites the segments group by group.

The work is a generator of steps. Each step holds the lock of the compaction
(`CompactionGate.lock`), and no lock of the log, except during a swap. Between two steps
the log may be closed, cut or shortened; after a cut the compaction starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore._native.locks import Signal, logger
from logstore.config import TopicConfig, check_int
from logstore.errors import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    ReentrantCallError,
    StorageError,
    UnsupportedError,
    storage_error,
)
from logstore.io.layout import INDEX, LOG, OFFSET_MAX, TIME_INDEX, segment_file
from logstore.log.compact.dry_log import DryLog
from logstore.log.compact.outcomes import LogOutcomes, survey_log
from logstore.log.compact.passes import (
    BUFFERS_BYTES,
    CompactionWork,
    CutError,
    Pass,
    Steps,
)
from logstore.log.compact.plan import CompactionPlan, SegmentFacts, plan
from logstore.log.write.compaction_gate import UnderWay
from logstore.log.write.log_bounds import LogBounds
from logstore.log.write.replacement import Replacement
from logstore.log.write.writer import PartitionWriter
from logstore.segment import Segment

__all__ = [
    "CompactionOptions",
    "CompactionProgress",
    "CompactionReport",
    "check_compaction",
    "compact",
]

# How often a compaction starts again because the log was cut meanwhile.
_ATTEMPTS: Final = 5
# The least `max_memory`: some of it is for buffers.
MEMORY_MIN: Final = 2 * BUFFERS_BYTES
_WAIT_S: Final = 0.05


class CompactionOptions(NamedTuple):
    """How a log is compacted: see `Partition.compact`.

    Attributes:
        is_clock: `now_ms` is the system's time, and was not chosen by the caller.
        stable: returns the last stable offset of the log.
        decompressed_max: limit on one decompressed batch, in bytes.
        on_progress: called between steps, without a lock.
    """

    force: bool
    max_memory: int
    max_bytes_per_s: int | None
    now_ms: int
    is_clock: bool
    dry_run: bool
    stable: Callable[[], int]
    decompressed_max: int
    on_progress: Callable[[CompactionProgress], None] | None = None


class CompactionProgress(NamedTuple):
    """The progress of a compaction.

    Attributes:
        partition: ``topic-partition``.
        bytes_read: so far, in all passes over the log. A pass reads the log for
            transactions, the dirty part for its keys, and everything again to write it.
        bytes_total: to be read, as far as is known; rises if another pass is needed.
        removed: records, so far.
    """

    partition: str
    bytes_read: int
    bytes_total: int
    removed: int


class CompactionReport(NamedTuple):
    """The result of a compaction, or, with `dry_run`, the expected one.

    Attributes:
        before, after: bytes of the log of the partition. If a dry run has more keys
            than `max_memory` has room for, `after` is an estimate.
        removed: records that were removed.
        tombstones: removed records without a value.
        dirty_ratio: of the bytes that may be compacted, the share that had not been
            compacted before.
        segments: how many segments were replaced.
        memory: bytes of memory that were written to for it at one time, at the most:
            the map of keys, buffers, and large batches, a compressed one with its copy
            and what is in it.
    """

    before: int
    after: int
    removed: int
    tombstones: int
    dirty_ratio: float
    segments: int
    memory: int


def check_compaction(
    config: TopicConfig, name: str, max_memory: object, max_bytes_per_s: object
) -> None:
    """Raise `ConfigError` unless a partition may be compacted like that."""
    check_int("max_memory", max_memory, MEMORY_MIN, OFFSET_MAX)
    if max_bytes_per_s is not None:
        check_int("max_bytes_per_s", max_bytes_per_s, 1, OFFSET_MAX)
    if not config.compacts:
        raise ConfigError(
            f"{name} is not compacted: the cleanup_policy of its topic is "
            f"{config.cleanup_policy!r}, without 'compact'. Nothing was changed",
            name="cleanup_policy",
            value=config.cleanup_policy,
        )


def compact(
    writer: PartitionWriter | DryLog, options: CompactionOptions
) -> CompactionReport:
    """Compact a log. One thread at a time does so; others wait.

    Raises:
        CorruptRecordError, UnsupportedError, RecordTooLargeError: a batch cannot be
            read; what was replaced before stays so.
        DiskFullError: there is no room for the new segments; nothing was written.
        StorageError: as above; or the log was cut again and again.
        SyncFailedError: the log takes no more appends.
        ReentrantCallError: this thread is in the middle of a compaction of the log.
        LogStoreError: the reason why the log takes no appends.
    """
    return _Compactor(writer, options).run()


class _Compactor:
    """One call of `compact`."""

    def __init__(
        self, writer: PartitionWriter | DryLog, options: CompactionOptions
    ) -> None:
        self._writer = writer
        self._options = options
        self._gate = writer.compaction_gate
        self._replacement: Replacement | None = None
        if isinstance(writer, PartitionWriter) and not options.dry_run:
            self._replacement = writer.replacement
        self._files = writer.directory.files
        self._first_dirty: int | None = None
        self._plan: CompactionPlan | None = None
        self._bounds: LogBounds | None = None
        self._before = self._bytes_read = self._bytes_total = 0
        self._begun_s = self._files.monotonic()
        self._work = CompactionWork(
            writer.context,
            max_memory=options.max_memory,
            decompressed_max=options.decompressed_max,
            now_ms=options.now_ms,
            is_clock=options.is_clock,
            replacement=self._replacement,
        )

    def run(self) -> CompactionReport:
        name, work = self._writer.context.name, self._work
        mine = UnderWay()
        try:
            # Inside: an interrupt may come when it has been entered.
            self._enter(mine)
            self._before = sum(segment.size for segment in self._writer.segments)
            for _ in range(_ATTEMPTS):
                try:
                    self._drive(self._steps())
                    break
                except CutError:  # the cut has lowered the checkpoint
                    if isinstance(self._writer, DryLog):
                        self._writer.look()
            else:
                if self._replacement is not None:
                    self._replacement.begin()  # raises why, if the log has ended
                raise StorageError(
                    f"{name} was truncated {_ATTEMPTS} times during the "
                    "compaction; the replaced segments are compacted. Call it "
                    "again",
                    path=self._writer.directory.path,
                    action="compact",
                )
        finally:
            if self._gate.under_way is mine:
                self._gate.under_way = None
        if work.replaced and self._replacement is not None:
            logger.info(
                "%s compacted: %d records removed, %d bytes less in %d segments",
                name,
                work.removed,
                work.saved,
                len(work.replaced),
            )
        return CompactionReport(
            self._before,
            self._before - work.saved,
            work.removed,
            work.tombstones,
            self._plan.dirty_ratio if self._plan else 0.0,
            len(work.replaced),
            work.memory,
        )

    # ------------------------------------------------------------ steps

    def _enter(self, mine: UnderWay) -> None:
        """Wait for another compaction of this log."""
        while True:
            other = self._gate.under_way
            if other is not None and other.thread == mine.thread:
                raise ReentrantCallError(
                    f"{self._writer.context.name} is being compacted by this thread: a "
                    f"second compaction, from inside that one, would wait for itself"
                )
            with self._gate.lock:
                self._gate.check()
                if self._gate.under_way is None:
                    self._gate.under_way = mine
                    return
            self._files.wait(Signal().register(), _WAIT_S)

    def _drive(self, steps: Steps) -> None:
        """Do the steps; between them the log may be closed."""
        try:
            while True:
                with self._gate.lock:
                    self._gate.check()
                    try:
                        n = next(steps)
                    except StopIteration:
                        return
                    except (
                        CorruptRecordError,
                        UnsupportedError,
                        StorageError,
                    ) as error:
                        if self._has_changed(error):
                            raise CutError from error
                        raise
                self._bytes_read += n
                self._pause()
        except BaseException:
            self._give_up(steps)
            raise

    def _has_changed(self, error: LogStoreError) -> bool:
        """Whether the log was cut since the bounds were seen, before its end, or, if
        another process may write to it, has changed: apparent damage is then a
        change."""
        if isinstance(self._writer, DryLog):
            return self._writer.explains(error)
        if isinstance(error, StorageError):
            return False
        bounds, replacement = self._bounds, self._replacement
        now = self._writer.seen() if replacement is None else replacement.begin()[0]
        return (
            bounds is not None
            and now.cuts.lowest_since(bounds.cuts.serial) < bounds.end
        )

    def _give_up(self, steps: Steps) -> None:
        """Remove what is unfinished. After a close, the files are another owner's: the
        next opening removes them."""
        steps.close()
        output, self._work.output = self._work.output, None
        if output is None:
            return
        with self._gate.lock:
            try:
                self._gate.check()
            except LogStoreError:
                output.abandon()
            else:
                output.discard()

    def _pause(self) -> None:
        options = self._options
        if options.on_progress is not None:
            options.on_progress(
                CompactionProgress(
                    self._writer.context.name,
                    min(self._bytes_read, self._bytes_total),
                    self._bytes_total,
                    self._work.removed,
                )
            )
        if options.max_bytes_per_s is not None:
            due = self._begun_s + self._bytes_read / options.max_bytes_per_s
            while (seconds := due - self._files.monotonic()) > 0:
                self._files.wait(Signal().register(), min(seconds, _WAIT_S))
                self._gate.check()

    def _steps(self) -> Steps:
        """Pass after pass, until nothing is left that may be compacted: a pass ends
        when its map is full."""
        replacement = self._replacement
        if replacement is None:
            yield from self._dry_steps()
            return
        is_first = True
        while self._looks_wanted(is_first=is_first):
            # Before the bounds, which include all markers that it knows.
            stable = self._options.stable()
            bounds, self._first_dirty = replacement.begin()
            self._bounds = bounds
            facts = self._facts(bounds)
            if self._writer.cuts.lowest_since(bounds.cuts.serial) < bounds.end:
                raise CutError  # the facts may be of segments that were cut off
            decided = self._decide(bounds, facts, stable)
            if decided.has_moved:
                self._record(bounds, decided.first_dirty, decided.first_dirty)
            decided, outcomes = yield from self._survey(bounds, facts, decided, stable)
            one_pass = Pass(self._work, bounds, facts, decided, outcomes)
            yield from one_pass.map_keys()
            yield from one_pass.rewrite_all()
            self._record(bounds, one_pass.end, one_pass.needed_end)
            is_first = False
            if one_pass.end >= decided.end:
                return

    def _looks_wanted(self, *, is_first: bool) -> bool:
        """Whether another pass is wanted, as far as known without a lock."""
        *_, decided = self._look()
        return self._is_wanted(decided, is_first=is_first)

    def _look(self) -> tuple[LogBounds, list[SegmentFacts], int, CompactionPlan]:
        """The log as seen without a lock, its facts, its last stable offset, and the
        plan made of them."""
        self._first_dirty = self._writer.compacted_upto()
        stable = self._options.stable()
        bounds = self._writer.seen()
        facts = self._facts(bounds)
        return bounds, facts, stable, self._decide(bounds, facts, stable)

    def _record(self, bounds: LogBounds, end: int, needed_end: int) -> None:
        assert self._replacement is not None  # not in a dry run
        if not self._replacement.record(bounds, end, needed_end):
            raise CutError

    def _dry_steps(self) -> Steps:
        """Decide, and count the records that would stay; write nothing. If the map is
        too small for all keys, each pass is about some of them, and about the whole
        log."""
        bounds, facts, stable, decided = self._look()
        self._bounds, self._plan = bounds, None
        self._before = sum(segment.size for segment in bounds.segments)
        if not self._is_wanted(decided, is_first=True):
            return
        decided, outcomes = yield from self._survey(bounds, facts, decided, stable)
        # Else no number of classes would make a map whole.
        if decided.end - decided.first_dirty > native.MAP_OFFSETS_MAX:
            raise UnsupportedError(
                f"a dry compaction handles up to {native.MAP_OFFSETS_MAX} "
                f"offsets; in {self._writer.context.name}, offsets "
                f"{decided.first_dirty} to {decided.end - 1} are not compacted"
            )
        classes = 1
        while True:
            self._work.begin_count()
            self._expect(decided, classes)
            for number in range(classes):
                one_pass = Pass(
                    self._work, bounds, facts, decided, outcomes, (classes, number)
                )
                is_whole = yield from one_pass.map_keys()
                if not is_whole:
                    break
                yield from one_pass.rewrite_all()
            else:
                return
            classes *= 2

    def _is_wanted(self, decided: CompactionPlan, *, is_first: bool) -> bool:
        if is_first:
            self._plan = self._plan or decided
            return decided.is_due or self._options.force
        return decided.dirty_bytes > 0

    def _survey(
        self,
        bounds: LogBounds,
        facts: Sequence[SegmentFacts],
        decided: CompactionPlan,
        stable: int,
    ) -> Generator[int, None, tuple[CompactionPlan, LogOutcomes]]:
        """Look for transactions and producers. Each pass does so: they may be new. The
        plan ends before the first transaction that is open in these bounds: the
        log may have been cut since the last stable offset was asked for."""
        self._expect(decided)
        self._bytes_total += sum(segment.size for segment in bounds.segments)
        survey = yield from survey_log(bounds.segments, bounds.end)
        self._work.memory = max(self._work.memory, survey.memory_bytes)
        decided = self._decide(bounds, facts, min(stable, survey.stable(bounds.start)))
        return decided, survey.outcomes(decided.end, self._options.now_ms)

    def _expect(self, decided: CompactionPlan, passes: int = 1) -> None:
        """Expect more passes: each reads the keys of the dirty part, and then all."""
        each = decided.clean_bytes + 2 * decided.dirty_bytes
        self._bytes_total = self._bytes_read + passes * each

    # ------------------------------------------------------------ the decision

    def _decide(
        self, bounds: LogBounds, facts: Sequence[SegmentFacts], stable: int
    ) -> CompactionPlan:
        return plan(
            facts,
            checkpoint=self._first_dirty,
            start=bounds.start,
            end=bounds.end,
            stable=stable,
            config=self._writer.context.config,
            now_ms=self._options.now_ms,
        )

    def _facts(self, bounds: LogBounds) -> list[SegmentFacts]:
        config = self._writer.context.config
        asks_first = config.max_compaction_lag_ms < OFFSET_MAX
        dirty = bounds.start if self._first_dirty is None else self._first_dirty
        facts = []
        for segment in bounds.segments:
            is_dirty = segment.next_offset > dirty
            facts.append(
                SegmentFacts(
                    segment.base_offset,
                    segment.next_offset,
                    segment.size,
                    self._size(segment.base_offset, INDEX),
                    self._size(segment.base_offset, TIME_INDEX),
                    self._largest_ms(segment)
                    if is_dirty and config.min_compaction_lag_ms
                    else -1,
                    _first_ms(segment) if is_dirty and asks_first else -1,
                    self._modified_ns(segment),
                )
            )
        return facts

    def _size(self, base: int, suffix: str) -> int:
        try:
            return self._writer.directory.stat(segment_file(base, suffix)).size
        except OSError:
            return 0

    def _modified_ns(self, segment: Segment) -> int:
        try:
            return self._writer.directory.stat(segment.file.name(LOG)).mtime_ns
        except FileNotFoundError as error:
            raise CutError from error  # it was deleted meanwhile
        except OSError as error:
            raise storage_error(error, "examine", segment.path) from error

    def _largest_ms(self, segment: Segment) -> int:
        largest = segment.largest_timestamp()
        return largest if largest >= 0 else self._modified_ns(segment) // 1_000_000


def _first_ms(segment: Segment) -> int:
    """The largest timestamp of the first batch; -1 without batches."""
    first = None
    if segment.size:
        first = segment.first_header(0)
    return first[0].max_timestamp if first else -1
