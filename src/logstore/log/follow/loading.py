"""Loads the whole log of a partition that another process may be writing to."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from logstore.config import TopicConfig
from logstore.errors import (
    CorruptRecordError,
    LogStoreError,
    PartitionNotFoundError,
    UnsupportedError,
    storage_error,
)
from logstore.io.checkpoint.cuts import UNKNOWN_CUTS, Cuts
from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.checkpoint.ownership import MetadataNow
from logstore.io.checkpoint.partition_state import PartitionMetadata, PartitionState
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.stamps import FileStamp, settled
from logstore.log.follow.change_stamps import PartitionStamp
from logstore.log.follow.decide import Change, Which, decide, is_other_log
from logstore.log.follow.file_identity import LogFiles, adopt_copy, is_copy
from logstore.log.follow.observed import Bytes, Observed, SeenFile
from logstore.log.follow.publication_stop import PublicationStop
from logstore.log.recover import RecoveredLog, RecoveryContext, load
from logstore.segment import Segment

__all__ = ["ATTEMPTS", "LoadedLog", "Loader", "observed"]

# On a busy machine, a writer that deletes may be faster than a look at all files.
ATTEMPTS: Final = 100


class LoadedLog(NamedTuple):
    """A log, and the signs that show whether it has changed since.

    Attributes:
        log, files, epochs: all from one moment.
        state: of logstore's own log.
        stamp: from before the log was read.
        stale_cuts: of a foreign log: the cuts that logstore has recorded, as far as it
            is known.
    """

    log: RecoveredLog
    files: LogFiles
    epochs: LeaderEpochs
    state: PartitionState | None
    stamp: PartitionStamp
    stale_cuts: Cuts = Cuts()


class Loader(NamedTuple):
    """Loads one log, any number of times."""

    directory: Directory
    descriptors: Descriptors
    topic: str
    partition: int
    config: TopicConfig
    metadata: MetadataNow
    stop: PublicationStop

    def load(self, before: Observed | None = None) -> LoadedLog:
        """Load the whole log; repeat if the writer changed it meanwhile.

        Args:
            before: the last known values of the log.

        Raises:
            PartitionNotFoundError: it was deleted.
            LogStoreError: it cannot be read.
        """
        stamp: PartitionStamp | None = None
        damage = ""
        for attempt in range(ATTEMPTS):
            try:
                # Everything read from now on is later than this stamp.
                self.stop.begin()
                begun_ms, stamp = self.directory.files.now_ms(), self.stamp()
                loaded, is_same = self._load(stamp, begun_ms, before)
            except (LogStoreError, OSError) as error:
                if self.is_change(error, stamp) and attempt + 1 < ATTEMPTS:
                    continue
                if not isinstance(error, OSError):
                    raise
                raise storage_error(error, "read", self.directory.path) from error
            earlier_damage, damage = damage, str(loaded.log.damage or "")
            # Behind damage another program may append all the time: it is found again.
            if is_same and (damage == earlier_damage or loaded.files.has_last_stayed):
                break
        _record_damage(loaded)
        return loaded

    def load_after(
        self, before: Observed, segments: Sequence[Segment], files: LogFiles
    ) -> tuple[LoadedLog, Change]:
        """Load the log again, and decide how it has changed.

        Args:
            before: the last known values of the log, with its segments and files.

        Raises: as `load`.
        """
        for attempt in range(ATTEMPTS):
            loaded = self.load(before)
            log = loaded.log
            log.log_id = log.log_id or before.log_id
            now = observed(
                log,
                log.segments,
                loaded.files,
                loaded.epochs,
                loaded.stamp.directory_id,
                loaded.stamp.ownership.owner,
                loaded.stale_cuts,
            )
            change = decide(before, now)
            if change.log is not Which.UNKNOWN:
                break
            try:
                seen = _compare(before, now, segments, log.segments, files)
                # They were read by their names. If the log was cut, or files were
                # replaced, since it was loaded, that was recorded before.
                is_same = set(before.ends) == seen.standing
                is_same = is_same or self._has_only_grown(loaded, self.stamp())
            except OSError as error:
                if self.is_change(error) and attempt + 1 < ATTEMPTS:
                    continue
                self.fail(error)
            now = now._replace(bytes=seen)
            change = decide(before, now)
            if is_same:
                break
        by_base = {segment.base_offset: segment for segment in log.segments}
        for segment in segments:
            if now.bytes and segment.base_offset in now.bytes.copies:
                adopt_copy(segment, by_base[segment.base_offset])
        return loaded, change

    def _load(
        self, stamp: PartitionStamp, begun_ms: int, before: Observed | None
    ) -> tuple[LoadedLog, bool]:
        """Returns: the log; whether it was the same one all the time."""
        metadata = self.metadata(stamp.ownership)
        files = LogFiles(self.directory, is_foreign=metadata.state is None)
        epochs = LeaderEpochs()
        if files.is_foreign:
            epochs = LeaderEpochs.of(self.directory)
        log, metadata = self._load_named(metadata)
        state = metadata.state
        is_same = files.have_stayed(log.segments)
        if is_same:
            # Before the last stamp: the bytes must be of this log.
            end = log.tail_start + log.tail_bytes
            files.insert(log.segments, end if log.tail_bytes else -1)
        stale_cuts = _stale_cuts(metadata, before)
        if before and metadata.is_own and state is None and metadata.stale is None:
            # The log starts where its state said, which cannot be read now.
            start = min(before.start, log.end_offset)
            log.start_offset = max(log.start_offset, start)
        now = self.stamp()
        # Appends by the owner meanwhile change nothing, except in a damaged log.
        is_same &= log.damage is None or now == stamp
        settled_ns = settled(stamp.mtime_ns, begun_ms, self.directory.files)
        stamp = stamp._replace(mtime_ns=settled_ns)
        loaded = LoadedLog(log, files, epochs, state, stamp, stale_cuts)
        return loaded, is_same and self._has_only_grown(loaded, now)

    def _load_named(
        self, metadata: PartitionMetadata
    ) -> tuple[RecoveredLog, PartitionMetadata]:
        """Load the log that a state names.

        Its writer may have deleted segments since the state was read. Then the log is
        the one of a later state, which is tried at once: a load ends also if segments
        are deleted more often than all of it could be repeated.

        Returns:
            The log; the facts, with its state.
        """
        while True:
            names = frozenset(self.directory.names())
            later: PartitionMetadata | None = None
            if metadata.state is not None and not names >= metadata.state.logs:
                later = self.after_deletion(metadata)
            if later is None:
                try:
                    log = self._load_from(metadata, names)
                except (LogStoreError, OSError):
                    later = self.after_deletion(metadata)
                    if later is None:
                        raise
                else:
                    if log.damage is not None:
                        later = self.after_deletion(metadata)
                    if later is None:
                        return log, metadata
            metadata = later

    def _load_from(
        self, metadata: PartitionMetadata, names: frozenset[str]
    ) -> RecoveredLog:
        context = RecoveryContext(
            self.directory,
            self.descriptors,
            self.topic,
            self.partition,
            self.config,
            metadata,
            writable=False,
            names=names,
        )
        return load(context)

    def after_deletion(self, metadata: PartitionMetadata) -> PartitionMetadata | None:
        """The facts with the present state, if logstore's own writer has deleted
        segments since, and made no other change that matters to a reader; else None.
        Which log the state is of is asked when the log was loaded (`_has_only_grown`).
        """
        state = metadata.state
        now = None if state is None else PartitionState.read(self.directory)
        if state is None or now is None or metadata.clean:
            return None
        is_deletion = now.start_offset > state.start_offset and (
            now.store_epoch,
            now.cuts,
            now.compactions,
            now.is_truncating,
        ) == (state.store_epoch, state.cuts, state.compactions, state.is_truncating)
        if not is_deletion:
            return None
        now = dataclasses.replace(now, log_id=state.log_id)
        return dataclasses.replace(metadata, state=now)

    def stamp(self) -> PartitionStamp:
        """The stamp of the partition now."""
        return PartitionStamp.now(self.directory)

    def _has_only_grown(self, loaded: LoadedLog, now: PartitionStamp) -> bool:
        """Whether a log certainly was not cut between its stamp and the present one,
        and logstore's own writer has replaced none of its segments."""
        was = loaded.stamp
        if (now.directory_id, now.ownership) != (was.directory_id, was.ownership):
            return False
        if loaded.files.is_foreign:
            epochs = loaded.epochs.now(self.directory)
            return epochs is loaded.epochs and now.state == was.state
        return now.state == was.state or not is_other_log(
            loaded.log, self.metadata(now.ownership).state, 0, is_foreign=False
        )

    def fail(self, error: OSError) -> NoReturn:
        """Raise the error that a look has met, or `PartitionNotFoundError` if the
        partition was deleted."""
        self.is_change(error)
        if isinstance(error, LogStoreError):
            raise error
        raise storage_error(error, "read", self.directory.path) from error

    def is_change(self, error: Exception, stamp: object = None) -> bool:
        """Whether the writer did something between two stamps.

        Raises:
            PartitionNotFoundError: it has deleted the partition.
        """
        try:
            now = self.stamp()
        except FileNotFoundError as missing:
            raise PartitionNotFoundError(
                f"partition {self.directory.name} is no longer at "
                f"{self.directory.path}: its topic was deleted, or the directory "
                "was removed",
                topic=self.topic,
                partition=self.partition,
            ) from missing
        except OSError:
            return False
        is_deletion = getattr(error, "errno", None) == errno.ENOENT
        return is_deletion or (stamp is not None and now != stamp)


def _record_damage(loaded: LoadedLog) -> None:
    """Record the damage of the last segment: appends after it, as by a broker, do not
    change it."""
    damage, segments = loaded.log.damage, loaded.log.segments
    if segments and isinstance(damage, CorruptRecordError | UnsupportedError):
        last = segments[-1]
        if damage.path == last.path and damage.position is not None:
            loaded.files.record_damage(last, damage.position)


def _stale_cuts(metadata: PartitionMetadata, before: Observed | None) -> Cuts:
    """The cuts of a log that logstore had recorded when its state did not count, or
    could not be read. None of them is found again when it does.

    Args:
        before: the last known values of the log.
    """
    if metadata.stale is not None:
        return metadata.stale.cuts
    if before is not None:
        return before.cuts
    # Logstore may have recorded some: then only different bytes show a cut.
    return UNKNOWN_CUTS if metadata.is_own else Cuts()


def observed(
    log: RecoveredLog,
    segments: Sequence[Segment],
    files: LogFiles,
    epochs: LeaderEpochs,
    place: tuple[int, int],
    writer: FileStamp | None,
    stale_cuts: Cuts,
) -> Observed:
    """The values of a log, as loaded and as read since."""
    ends = tuple(end.end for end in files.ends())
    return Observed(
        files.is_foreign,
        place,
        log.start_offset,
        ends[-1].offset if ends else log.end_offset,
        tuple(
            SeenFile(
                segment.base_offset,
                segment.next_offset,
                segment.size,
                segment.file.inode,
                segment.file.sealed_size >= 0,
            )
            for segment in segments
        ),
        ends,
        "" if log.damage is None else str(log.damage),
        log_id=log.log_id,
        cuts=stale_cuts if files.is_foreign else log.cuts,
        compactions=log.compactions,
        durable=log.durable_offset,
        writer=writer,
        epochs=epochs.rows,
    )


def _compare(
    before: Observed,
    now: Observed,
    segments: Sequence[Segment],
    new: Sequence[Segment],
    files: LogFiles,
) -> Bytes:
    """Compare what was read of a log with the files that it has now.

    Raises:
        OSError: a file cannot be read.
    """
    copies = frozenset[int]()
    if not (before.is_foreign or now.is_foreign):
        by_base = {segment.base_offset: segment for segment in new}
        copies = frozenset(
            segment.base_offset
            for segment in segments
            if segment.base_offset in by_base
            and is_copy(segment, by_base[segment.base_offset])
        )
    return Bytes(files.standing(new), copies)
