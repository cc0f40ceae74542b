"""A partition that another process may be writing to, as a read-only store sees it.

`ReadOnlyLog` loads the partition once and then follows it: new bytes at the tail, new
and deleted segments. It never creates, changes or locks anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from logstore import _native as native
from logstore._native.locks import RANK_REFRESH
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptRecordError,
    LogStoreError,
    storage_error,
)
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.entries import FileEnd
from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.partition_state import PartitionMetadata, StateGrowth
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import FileInfo, FileStamp, settled
from logstore.io.layout import (
    LOG,
    PARTITION_STATE,
    TopicPartition,
    segment_file,
)
from logstore.log.follow import rolls
from logstore.log.follow.decide import Which, has_come_back, is_other_log
from logstore.log.follow.durable_news import DurableNews
from logstore.log.follow.file_identity import LogFiles, log_bases
from logstore.log.follow.loading import ATTEMPTS, LoadedLog, Loader, observed
from logstore.log.follow.new_batches import read_new_batches
from logstore.log.follow.publication_stop import PublicationStop
from logstore.log.follow.quick_look import QuickLook
from logstore.log.follow.signs import BrokerStart, cut_stamp
from logstore.log.read.view import Bounds
from logstore.log.recover import RecoveredLog
from logstore.segment import Segment

__all__ = ["ATTEMPTS", "ReadOnlyLog"]


class ReadOnlyLog:
    """The segments and bounds of a partition as far as they can be read now."""

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        topic: str,
        partition: int,
        config: TopicConfig,
        metadata: Callable[[], PartitionMetadata],
        ownership: Ownership,
        publications: Publications,
        lock_group: int,
    ) -> None:
        self.directory = directory
        self.descriptors = descriptors
        self.topic = topic
        self.partition = partition
        self.config = config
        self._metadata = metadata
        self._ownership = ownership
        self._broker_start = BrokerStart(ownership, metadata)
        key = TopicPartition(topic, partition)
        self._publication_stop = PublicationStop(publications, key)
        self._loader = Loader(
            directory,
            descriptors,
            topic,
            partition,
            config,
            metadata,
            ownership,
            self._publication_stop,
        )
        self._lock = native.Mutex(
            RANK_REFRESH, f"the looks at {topic}-{partition}", lock_group
        )
        self._mtime_ns = -1
        # Of logstore's own state, when it was last read.
        self._state_stamp: FileStamp | None = None
        self._state_end: FileEnd | None = None
        # The stamp of the partition when the log was loaded.
        self._stamp: object = None
        self._directory_id = (-1, -1)  # device and inode
        self._is_doubtful = False  # a refresh was interrupted
        # The cuts and replacements that this object has found, for its views.
        self._cuts = Cuts()
        self._life = 0  # how often another log was found in the place of this one
        # From before the last refresh.
        self._cut_stamp: object = None
        # Of a foreign log.
        self._epochs = LeaderEpochs()
        # As in `LogSnapshot`.
        self._writer: FileStamp | None = None
        self._is_truncating = False
        self._quick = QuickLook(directory, config.index_interval_bytes)
        self._news = DurableNews(directory, ownership)
        # The stamp of the partition when its state was read; what that says of the log.
        self._history: tuple[object, tuple[str, Cuts] | None] = (None, None)
        self._files: LogFiles
        self._loaded: RecoveredLog
        self.segments: tuple[Segment, ...] = ()
        self._take(self._loader.load())

    @property
    def loaded(self) -> RecoveredLog:
        return self._loaded

    @property
    def start_offset(self) -> int:
        return self._loaded.start_offset

    @property
    def end_offset(self) -> int:
        return self._loaded.end_offset

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is in progress."""
        return min(self._loaded.end_offset, self._publication_stop.offset)

    @property
    def durable_offset(self) -> int:
        # The state may be newer than the names by which the end was found.
        durable = max(self._loaded.durable_offset, self._news.offset)
        return min(durable, self.high_watermark)

    @property
    def is_foreign(self) -> bool:
        """Whether another program than logstore writes it."""
        return self._files.is_foreign

    def writer_stamp(self) -> FileStamp | None:
        """The writer's mark in the root, as it is now."""
        return self._ownership.writer()

    def free_bytes(self) -> int:
        """Bytes free on the file system."""
        return self.directory.free_bytes()

    def _take(self, new: LoadedLog) -> None:
        """Take over a log that was loaded."""
        self._loaded, self._files, self._epochs = new.log, new.files, new.epochs
        self._writer = new.stamp.ownership.owner
        self._broker_start.stamp = new.stamp.ownership.starts
        self._mtime_ns = new.stamp.mtime_ns
        self._state_stamp = new.stamp.state
        self._stamp = new.stamp
        self._directory_id = new.stamp.directory_id
        self.segments = tuple(new.log.segments)
        if self.segments:
            self.segments[-1].show_indexes(new.log.index, new.log.times)
        state = new.state
        self._state_end = None if state is None else state.file_end
        self._is_truncating = state is not None and state.is_truncating

    def _cut_stamp_now(self, *, is_safe: bool = False) -> object:
        return cut_stamp(
            self.directory, self._ownership, self._files, self.segments, is_safe=is_safe
        )

    def refresh(self) -> None:
        """Take in what was appended, rolled or deleted since the last refresh.

        Raises:
            PartitionNotFoundError: it was deleted.
            StorageError: it cannot be read.
        """
        with self._lock:
            if not self._look_quickly():
                # No view is made of it, so the cut stamp is not needed.
                self._cut_stamp = None
                self._look()

    def refreshed(self) -> Bounds:
        """As `refresh`, and return what was found."""
        with self._lock:
            if not self._look_quickly():
                self._refresh_now()
            return self._bounds()

    def durable_of(self, seen: Bounds) -> int:
        """The durable offset of what a refresh found, as the writer tells it now."""
        with self._lock:
            if (seen.life, seen.cuts.serial) != (self._life, self._cuts.serial):
                return seen.durable_offset
            self._news.hear(self._loaded, self.high_watermark)
            return min(self.durable_offset, seen.end_offset)

    def last_bounds(self) -> Bounds | None:
        """What the last refresh found, without another one, if `is_as_it_was` can tell
        whether it is still so; None if not. The log of a broker may lose segments at
        its start without a sign that it looks at."""
        with self._lock:
            can_tell = self._cut_stamp is not None or self._quick.guards is not None
            if not can_tell or self._is_doubtful or self._files.is_foreign:
                return None
            return self._bounds()

    def is_as_it_was(self, life: int, serial: int) -> bool:
        """Whether certainly nothing was cut, and no other log put in the place of this
        one, since a refresh that found these."""
        # Before the numbers, which a refresh in another thread sets first.
        guards, stamp = self._quick.guards, self._cut_stamp
        if (life, serial) != (self._life, self._cuts.serial):
            return False
        try:
            if guards is not None and guards == self._quick.guards_now():
                return True
            return stamp is not None and stamp == self._cut_stamp_now()
        except OSError:
            return False  # a refresh reports why

    def _refresh_now(self) -> None:
        stamp: object = None
        with contextlib.suppress(OSError):  # the refresh itself reports why
            stamp = self._cut_stamp_now(is_safe=True)
        self._cut_stamp = None
        self._look()
        self._cut_stamp = stamp

    def _look(self) -> None:
        """Look at everything."""
        self._quick.begin()
        self._retry_refresh()
        self._quick.end(not (self._is_at_its_end or self._files.is_foreign))

    def _look_quickly(self) -> bool:
        """Take in what was appended, if nothing else has changed since the last whole
        look. False: look at everything."""
        try:
            return self._quick.look(self._loaded, self.segments, self._files)
        except BaseException:
            self._quick.forget()
            self._is_doubtful = True
            raise

    def history(self) -> tuple[str, Cuts] | None:
        """The id of the log and how it was cut, as its state says now; None if there is
        no valid state.

        Raises:
            PartitionNotFoundError: it was deleted.
            StorageError: it cannot be read.
        """
        with self._lock:
            try:
                now = self._loader.stamp()
                # The time of the directory changes with each file in it.
                cache_key = now._replace(mtime_ns=0)
                if cache_key != self._history[0]:
                    state, history = self._metadata().state, None
                    if state is not None and state.log_id:
                        history = state.log_id, state.cuts
                    self._history = cache_key, history
            except OSError as error:
                self._loader.is_change(error)  # raises if it was deleted
                if isinstance(error, LogStoreError):
                    raise
                raise storage_error(error, "read", self.directory.path) from error
            return self._history[1]

    def refreshed_fully(self) -> Bounds:
        """As `refresh`, if something seems to be wrong: each file is examined."""
        with self._lock:
            self._refresh_now()
            serial = -1
            while self._cuts.serial != serial and self._is_any_replaced():
                serial, self._is_doubtful = self._cuts.serial, True
                self._refresh_now()
            return self._bounds()

    def _bounds(self) -> Bounds:
        # The writer's state says so of the part that it covers. What follows may be of
        # a broker that has begun since.
        foreign_end = self._loaded.foreign_end
        free = range(foreign_end, max(foreign_end, self._loaded.durable_offset))
        return Bounds(
            self.segments,
            self.start_offset,
            self.high_watermark,
            self.durable_offset,
            self._cuts,
            self._life,
            transaction_free=free,
            tail=self._quick.tail,
            compactions=self._loaded.compactions,
        )

    def _is_any_replaced(self) -> bool:
        """Whether a file is not the one that it was at the last refresh."""
        try:
            return self._files.is_any_replaced(self.segments)
        except OSError as error:
            raise storage_error(error, "read", self.directory.path) from error

    def _retry_refresh(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self._refresh_until_stable()
                return
            except CorruptRecordError:
                if self._is_doubtful or attempt + 1 == ATTEMPTS:
                    raise
                self._is_doubtful = True  # perhaps it was cut meanwhile
            except OSError as error:
                self._is_doubtful = True
                if self._loader.is_change(error) and attempt + 1 < ATTEMPTS:
                    continue
                if isinstance(error, LogStoreError):
                    raise
                raise storage_error(error, "read", self.directory.path) from error
            except BaseException:
                self._is_doubtful = True
                raise

    def _refresh_until_stable(self) -> None:
        begun = self._loaded.end_offset
        while True:
            loaded, end = self._loaded, self._loaded.end_offset
            files, ends = self._files, self._files.ends()
            start = self._broker_start.news(files)
            self._refresh()
            start, now = min(start, self.end_offset), self._loaded
            now.start_offset = max(now.start_offset, start)
            has_read = self._files is files and end < self.end_offset
            if has_read and self._has_new_writer():
                # A backup was put back: the rest of it may be of another log.
                files.restore_ends(ends)
                self._is_doubtful = True
            elif (
                self._is_of_one_log(begun)
                and self._publication_stop.look()
                and self._has_stayed(loaded, end)
            ):
                return

    def _is_of_one_log(self, end: int) -> bool:
        """Whether everything that a refresh has read, beginning at this end, is of one
        log: of a foreign log, part may be from before a cut, and part from after it."""
        return self._loaded.end_offset == end or self._leaders() is self._epochs

    def _has_new_writer(self) -> bool:
        """Whether logstore's own log has got a new writer since it was read. A backup
        may have been put back, and even if the log is what it was, what was read of it
        in between may be of another one."""
        return not self._files.is_foreign and self._ownership.writer() != self._writer

    def _leaders(self) -> LeaderEpochs:
        """The leader epochs of a foreign log now; the same object if they have not
        changed since it was compared."""
        epochs = self._epochs
        return epochs.now(self.directory) if self._files.is_foreign else epochs

    def _has_stayed(self, loaded: RecoveredLog, end: int) -> bool:
        """Whether a refresh has found nothing after an end of what was loaded, or the
        state says after it that all of that is part of the log. Before an append whose
        first part may be seen and then undone, the owner records that in the state."""
        if self._loaded is loaded and loaded.end_offset <= end:
            return True
        if self.directory.stamp(PARTITION_STATE) == self._state_stamp:
            return True
        first = self.segments[0].base_offset if self.segments else 0
        if not self._is_other(self._metadata(), first):
            return True
        # Perhaps it was restored in place, which leaves the directory's time as it was.
        self._mtime_ns = -1
        return False

    def _refresh(self) -> None:
        info, state = self.directory.info_and_stamp(PARTITION_STATE)
        is_other = (info.device, info.inode) != self._directory_id
        if self._is_doubtful or is_other or self._has_new_writer():
            self._start_over()
            self._is_doubtful = False
            return
        if self._is_at_its_end:
            # Bytes after the end will be removed; the state file will show when.
            is_cut = self._files.is_last_other(self.segments)
            if is_cut or self._loader.stamp() != self._stamp:
                self._start_over()
            return
        now = self._leaders()
        if now is not self._epochs:
            same_below = self._epochs.same_below(now)
            if same_below is not None and same_below < self._loaded.end_offset:
                self._start_over()
                return
            # They differ after all that was read, or only the files can show a cut.
            self._epochs = now
        mtime_ns, loaded = info.mtime_ns, self._loaded
        is_changed = mtime_ns != self._mtime_ns or state != self._state_stamp
        if (is_changed or self._is_recent()) and not self._follow_rolls(info, state):
            self._follow_names(mtime_ns)
            self._state_stamp = state
        # A log that was loaded again is complete.
        if self._loaded is loaded and self.segments and not self._is_at_its_end:
            self._follow_tail()

    @property
    def _is_at_its_end(self) -> bool:
        """Whether the bytes after the end are not part of the log, and will be
        removed."""
        return self._is_truncating or self._loaded.damage is not None

    def _is_recent(self) -> bool:
        """Whether there is a new segment although the directory's time has not
        changed."""
        if not self.segments:
            return False
        next_name = segment_file(self._loaded.end_offset, LOG)
        return self._loaded.end_offset > self.segments[-1].base_offset and (
            self.directory.exists(next_name)
        )

    def _follow_rolls(self, info: FileInfo, state: FileStamp | None) -> bool:
        """Add the segments that logstore's own writer has begun, if nothing else has
        happened (rolls.py). False: the names and the whole state must be looked at.

        Args:
            info, state: of the directory and the state, from before this look.
        """
        end = self._state_end
        if self._files.is_foreign or not self.segments or end is None or state is None:
            return False
        has_grown = state != self._state_stamp
        if state[-1] <= end.size if has_grown else not self._is_recent():
            return False
        loaded = self._loaded
        if not self._follow_last():
            return True
        while self._is_recent():
            self._begin_segment(loaded.end_offset)
        self._files.record_end(self.segments[-1])
        if has_grown:
            # After the log was read: if the state has only grown until now, nothing of
            # what was read has been cut, or may be.
            now = self.directory.stamp(PARTITION_STATE)
            growth = now and StateGrowth.read(self.directory, end, now[-1])
            if not growth or not rolls.take_growth(growth, loaded, self.segments):
                return False
            self._state_stamp = now
            self._state_end = growth.file_end
        # Not `settled`: the next segment is looked for by its name.
        self._mtime_ns = info.mtime_ns
        return True

    def _follow_names(self, mtime_ns: int) -> None:
        """Add new segments after the last one, drop those deleted at the front."""
        logs = log_bases(self.directory)
        bases = [segment.base_offset for segment in self.segments]
        base_set = set(bases)
        kept = [base for base in logs or () if base in base_set]
        if not (logs and kept and kept == bases[len(bases) - len(kept) :]):
            self._start_over()
            return
        metadata = self._metadata()
        if self._is_other(metadata, kept[0]) or (
            self._files.is_foreign and has_come_back(logs, bases[0], metadata.log_start)
        ):
            self._start_over()
            return
        segments = self.segments[len(bases) - len(kept) :]
        if self._files.are_sealed_replaced(segments[:-1]):
            self._start_over()
            return
        if not self._follow_last():
            return
        added = sorted(base for base in logs if base > bases[-1])
        if added and added[0] < segments[-1].next_offset:
            # It was cut during this refresh.
            self._start_over()
            return
        self.segments = segments
        for base in added:
            self._begin_segment(base)
        segments, start = self.segments, metadata.log_start
        state, loaded = metadata.state, self._loaded
        if state is not None:
            start = state.start_offset
            rolls.take_state(state, loaded, segments)
            self._state_end = state.file_end
            self.segments = rolls.segments_of(state, self.segments)
        start = max(start, self.segments[0].base_offset, loaded.start_offset)
        loaded.start_offset = start
        self._files.record_end(segments[-1])
        self._mtime_ns = settled(mtime_ns, self.directory.files)

    def _follow_last(self) -> bool:
        """Read what was appended to the last segment. False: its file is another one,
        and the log was loaded again."""
        last = self.segments[-1]
        info = self.directory.stat(last.file(LOG))
        if not self._files.is_unchanged(last, info):
            self._start_over()
            return False
        self._scan(last)
        return True

    def _begin_segment(self, base: int) -> None:
        """Add the segment that follows the last one, and read it."""
        last, loaded, directory = self.segments[-1], self._loaded, self.directory
        segment = rolls.begin_segment(directory, self.descriptors, loaded, last, base)
        last.is_sealed = self._files.is_foreign and not loaded.tail_bytes
        self.segments = (*self.segments, segment)
        self._scan(segment)

    def _is_other(self, metadata: PartitionMetadata, first: int) -> bool:
        is_foreign = self._files.is_foreign
        return is_other_log(self._loaded, metadata, first, is_foreign=is_foreign)

    def _start_over(self) -> None:
        """Load the log again, and apply how it has changed."""
        segments, files = self.segments, self._files
        before = observed(
            self._loaded,
            segments,
            files,
            self._epochs,
            self._directory_id,
            self._writer,
        )
        loaded, change = self._loader.load_after(before, segments, files)
        self._take(loaded)
        is_other = change.log is Which.OTHER
        for segment in segments:
            segment.is_retired |= segment.base_offset in change.replaced
        self._news.forget(-1 if is_other else change.cut_to)
        if is_other:
            self._life += 1
        elif change.is_any:
            self._cuts = self._cuts.after(change.cut_to)
            self._files.keep_ends(files, change.cut_to)

    def _follow_tail(self) -> None:
        segment = self.segments[-1]
        info = self.directory.stat(segment.file(LOG))
        if not self._files.is_unchanged(segment, info):
            self._start_over()
        elif self._files.has_more(segment, info):
            size = segment.size
            self._scan(segment)
            self._files.record_end(segment)
            if segment.size > size:
                return
            is_quiet = self._files.record_torn(info)
            is_other = self._is_other(self._metadata(), self.segments[0].base_offset)
            if is_quiet or is_other:
                self._start_over()

    def _scan(self, segment: Segment) -> None:
        read_new_batches(self.directory, self.config, self._loaded, segment)
