"""Follows a log that was loaded, as its writer appends, rolls and deletes."""

from __future__ import annotations

from collections.abc import Mapping

from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.checkpoint.partition_state import PartitionMetadata, StateGrowth
from logstore.io.layout import LEADER_EPOCHS, LOG, PARTITION_STATE, segment_file
from logstore.io.stamps import FileStamp, Look, settled, stamp_of
from logstore.log.follow import rolls
from logstore.log.follow.change_stamps import (
    Guards,
    PartitionStamp,
    WriterStamps,
    writer_stamps,
)
from logstore.log.follow.decide import Depth, depth_of, goes_on, is_other_log
from logstore.log.follow.file_identity import log_bases
from logstore.log.follow.loading import LoadedLog, Loader, observed
from logstore.log.follow.new_batches import read_new_batches
from logstore.log.follow.observed import ChangeStamps, Names, Observed
from logstore.log.read.view import Segments
from logstore.segment import Segment

__all__ = ["FollowedLog"]


class FollowedLog:
    """A log that was loaded, and all that has been read of it since. The caller's lock
    guards it.

    Attributes:
        log, files: of the log.
        segments: in order.
        writer: the mark of logstore's writer when it was loaded.
    """

    def __init__(self, loader: Loader, loaded: LoadedLog) -> None:
        state, stamp = loaded.state, loaded.stamp
        self.log, self.files = loaded.log, loaded.files
        self.segments = Segments(loaded.log.segments)
        if self.segments:
            self.segments[-1].show_indexes(loaded.log.index, loaded.log.times)
        self.writer = stamp.ownership.owner
        self._loader = loader
        self._directory = loader.directory
        self._epochs = loaded.epochs
        self._stale_cuts = loaded.stale_cuts
        # When it was loaded, and where its state ended when that was last read.
        self._stamp = stamp
        self._state_end = None if state is None else state.file_end
        # The bytes after the end are not part of the log, and will be removed.
        is_truncating = state is not None and state.is_truncating
        self.is_ended = is_truncating or loaded.log.damage is not None
        # At the last look at the names, or at what has begun since.
        self._mtime_ns, self._state = stamp.mtime_ns, stamp.state
        # Of the directory, when it certainly had no next segment.
        self._without_next: FileStamp | None = None
        self._guards_of: tuple[Segment | None, Guards] | None = None

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    def observed(self) -> Observed:
        """The values of the log, as loaded and as read since."""
        return observed(
            self.log,
            self.segments,
            self.files,
            self._epochs,
            self._stamp.directory_id,
            self.writer,
            self._stale_cuts,
        )

    # -- looks

    @property
    def guards(self) -> Guards:
        """The names that a look at this log examines."""
        last, known = self.segments[-1] if self.segments else None, self._guards_of
        if known is None or known[0] is not last:
            # It may be a compacted one that still has its `.swap`.
            name = "" if last is None else last.file.name(LOG)
            known = last, Guards.of(name, is_foreign=self.files.is_foreign)
            self._guards_of = known
        return known[1]

    def look(self, before: Look | None = None) -> Look:
        """Look at the guards and the last file, as `Directory.look`.

        Raises:
            OSError: the directory or a file cannot be examined.
        """
        return self._directory.look(self.guards.all, before)

    # -- has it changed?

    def has_new_writer(self, look: Look) -> bool:
        """Whether logstore's own log has got a new writer since it was loaded. A backup
        may have been put back, and even if the log is the same again, bytes read in
        between may be of another one; or a broker has taken the store over."""
        if self.files.is_foreign:
            return False
        return writer_stamps(look.stamps()) != self._writer_stamps(self._stamp)

    def is_of_one_log(self, end: int, look: Look) -> bool:
        """Whether everything that was read of a foreign log from this end on is of one
        log: part may be from before a cut, and part from after it.

        Args:
            look: from after that.
        """
        if not self.files.is_foreign or self.end_offset == end:
            return True
        return self._epochs_now(look.stamps()) is self._epochs

    def stands(self, look: Look, *, is_last: bool) -> bool:
        """Whether the present state says that all that was read is part of the log, and
        ends with a whole append. Before an append whose first part may be seen and then
        undone, the owner records that in the state.

        Args:
            look: from after that.
            is_last: a part of an append is enough, if none of it can be undone.
        """
        if look.stamps()[PARTITION_STATE] == self._state:
            return True
        first = self.segments[0].base_offset if self.segments else 0
        metadata = self._loader.metadata()
        if not self._is_other(metadata, first):
            # A look at a log of which all is deleted at once costs the most, and may
            # find the same again.
            state = metadata.state
            is_deletion = state and state.start_offset > self.log.start_offset
            return is_last or state is None or bool(is_deletion)
        # Perhaps it was restored in place, which does not change the directory's time.
        self._mtime_ns = -1
        return False

    def _epochs_now(self, stamps: Mapping[str, FileStamp | None]) -> LeaderEpochs:
        epochs = self._epochs
        if epochs.are_of(stamps[LEADER_EPOCHS]):
            return epochs
        return epochs.now(self._directory)

    def _is_other(self, metadata: PartitionMetadata, first: int) -> bool:
        """Whether the log is another one, or was cut, compacted or put back."""
        state, log = metadata.state, self.log
        if is_other_log(log, state, first, is_foreign=self.files.is_foreign):
            return True
        stale = metadata.stale
        if stale is not None and stale.cuts != self._stale_cuts:
            return True  # logstore had taken it back in between, and has cut it
        if state is None or not self.segments:
            return False
        # The file of a segment is made before the state has it.
        base = state.active["base_offset"]
        is_newer = base > log.active_state.raw.base_offset
        if not is_newer or self._directory.exists(segment_file(base, LOG)):
            return False
        later = self._loader.after_deletion(metadata)
        return later is None or self._is_other(later, first)

    def _writer_stamps(self, stamp: PartitionStamp) -> WriterStamps:
        return stamp.writer_stamps(is_foreign=self.files.is_foreign)

    def _stamps_before(self) -> ChangeStamps:
        stamp = self._stamp
        return ChangeStamps(
            stamp.directory_id,
            self._writer_stamps(stamp),
            self._mtime_ns,
            self._state,
            self._epochs.rows,
            stamp if self.is_ended else None,
        )

    def _stamps_now(self, look: Look) -> ChangeStamps:
        if self.is_ended:
            return self._stamps_of_ended(look)
        stamps, epochs = look.stamps(), self._epochs
        names, state = stamps["."], stamps[PARTITION_STATE]
        assert names is not None
        if self.files.is_foreign:
            epochs = self._epochs_now(stamps)
        # If these differ, the names show it.
        is_same, has_next = (names[1], state) == (self._mtime_ns, self._state), False
        if is_same and names != self._without_next:
            has_next = self._has_next()
            files = self._directory.files
            if not has_next and settled(names[2], look.begun_ms, files) >= 0:
                self._without_next = names
        return ChangeStamps(
            look.place,
            writer_stamps(stamps),
            names[1],
            state,
            epochs.rows,
            None,
            has_next,
        )

    def _stamps_of_ended(self, look: Look) -> ChangeStamps:
        """The stamps of a log with damage, or that is about to be cut: everything that
        the stamp has, the leader epochs of a foreign one, and the bytes at its end."""
        stamp = self._loader.stamp()
        is_same = stamp == self._stamp and not self.files.is_last_other(self.segments)
        if self.files.is_foreign:
            is_same &= self._epochs_now(look.stamps()) is self._epochs
        return ChangeStamps(
            stamp.directory_id,
            self._writer_stamps(stamp),
            stamp.mtime_ns,
            stamp.state,
            self._epochs.rows,
            stamp if is_same else None,
        )

    def _has_next(self) -> bool:
        """Whether there is a new segment although the directory's time has not
        changed."""
        if not self.segments:
            return False
        end = self.end_offset
        return end > self.segments[-1].base_offset and (
            self._directory.exists(segment_file(end, LOG))
        )

    # -- growing

    def grow(self, look: Look) -> bool:
        """Take in appends, rolls and deletions. False: other things may have changed,
        and the log has to be loaded again.

        Args:
            look: from before that.

        Raises:
            OSError, LogStoreError: a file cannot be read, or is gone.
        """
        now = self._stamps_now(look)
        depth = depth_of(self._stamps_before(), now, self.end_offset)
        if depth is Depth.NOTHING or depth is Depth.FILES:
            return depth is Depth.NOTHING
        if now.epochs != self._epochs.rows:
            # The epochs differ after all that was read, or only the files can show a
            # cut.
            self._epochs = self._epochs.now(self._directory)
        stamp = look.stamps().get(self.guards.last)
        if depth is Depth.NAMES:
            is_known = self._grow_by_rolls(now)
            if is_known is None:
                is_known = self._grow_by_names(now, look.begun_ms)
            if not is_known:
                return False
            stamp = None  # of this look no more
        stamp = stamp or (self._last_stamp() if self.segments else None)
        return stamp is None or self._grow_at_end(stamp, look.begun_ms)

    def _grow_by_rolls(self, now: ChangeStamps) -> bool | None:
        """Add the segments that logstore's own writer has begun, if nothing else has
        happened (rolls.py). None: the names and the whole state must be looked at;
        False: as `grow`.

        Args:
            now: from before this look.
        """
        end, state, log = self._state_end, now.state, self.log
        if self.files.is_foreign or not self.segments or end is None or state is None:
            return None
        has_grown = state != self._state
        if state[-1] <= end.size if has_grown else not self._has_next():
            return None
        if not self._read_last():
            return False
        while self._has_next():
            self._begin_segment(log.end_offset)
        self.files.record_end(self.segments[-1])
        if has_grown:
            # After the log was read: if the state has only grown until now, no bytes
            # that were read have been cut, or may be.
            later = self._directory.stamp(PARTITION_STATE)
            growth = later and StateGrowth.read(self._directory, end, later[-1])
            if not growth or not rolls.take_growth(growth, log, self.segments):
                return None
            self._state, self._state_end = later, growth.file_end
        # Not `settled`: the next segment is looked for by its name.
        self._mtime_ns = now.mtime_ns
        return True

    def _grow_by_names(self, now: ChangeStamps, begun_ms: int) -> bool:
        """Add new segments after the last one, drop those deleted at the front. False:
        as `grow`.

        Args:
            begun_ms: from before `now`.
        """
        bases = log_bases(self._directory)
        if not bases:
            return False
        metadata, known = self._loader.metadata(), self.segments
        names = Names([segment.base_offset for segment in known], self.files.is_foreign)
        first = goes_on(names, sorted(bases), metadata.log_start)
        if first is None or self._is_other(metadata, known[first].base_offset):
            return False
        kept = known.since(first)
        if self.files.are_sealed_replaced(kept[:-1]) or not self._read_last():
            return False
        added = sorted(base for base in bases if base > kept[-1].base_offset)
        if added and added[0] < kept[-1].next_offset:
            return False  # it was cut during this look
        self.segments = kept
        for base in added:
            self._begin_segment(base)
        self._take_metadata(metadata)
        self.files.record_end(self.segments[-1])
        self._mtime_ns = settled(now.mtime_ns, begun_ms, self._directory.files)
        self._state = now.state
        return True

    def _take_metadata(self, metadata: PartitionMetadata) -> None:
        """Take over the state and the start of the log that has not been cut."""
        log, state, start = self.log, metadata.state, metadata.log_start
        if state is not None:
            start = state.start_offset
            rolls.take_state(state, log, self.segments)
            self._state_end = state.file_end
            self.segments = rolls.segments_of(state, self.segments)
        log.start_offset = max(start, self.segments[0].base_offset, log.start_offset)

    def _read_last(self) -> bool:
        """Read what was appended to the last segment. False: its file is another."""
        last = self.segments[-1]
        if not self.files.is_unchanged(last, self._last_stamp()):
            return False
        self._read(last)
        return True

    def _last_stamp(self) -> FileStamp:
        """The stamp of the last file now."""
        return stamp_of(self._directory.stat(self.segments[-1].file.name(LOG)))

    def _begin_segment(self, base: int) -> None:
        """Add the segment that follows the last one, and read it."""
        last, log = self.segments[-1], self.log
        segment = rolls.begin_segment(
            self._directory, self._loader.descriptors, log, last, base
        )
        if self.files.is_foreign and not log.tail_bytes:
            last.file.sealed_size = last.size
        self.segments = Segments((*self.segments, segment))
        self._read(segment)

    def _grow_at_end(self, stamp: FileStamp, begun_ms: int) -> bool:
        """Read what was appended to the last segment, if anything was. False: as
        `grow`.

        Args:
            stamp: of its file, from before that.
            begun_ms: from before the stamp.
        """
        last, files = self.segments[-1], self.files
        if not files.is_unchanged(last, stamp):
            return False
        if not files.has_more(last, stamp):
            return True
        size = last.size
        self._read(last)
        files.record_end(last)
        if last.size > size:
            return True
        is_quiet = files.record_torn(stamp, begun_ms)
        first = self.segments[0].base_offset
        return not (is_quiet or self._is_other(self._loader.metadata(), first))

    def _read(self, segment: Segment) -> None:
        read_new_batches(self._directory, self._loader.config, self.log, segment)
