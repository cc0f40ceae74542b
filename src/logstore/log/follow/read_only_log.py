"""A partition that another process may be writing to, as a read-only store sees it.

`ReadOnlyLog` loads the partition once and then follows it: new bytes at the tail, new
and deleted segments. It never creates, changes or locks anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from logstore import _native as native
from logstore._native.locks import RANK_REFRESH
from logstore.config import TopicConfig
from logstore.errors import CorruptRecordError
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.ownership import MetadataNow, Ownership
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import TopicPartition
from logstore.io.segment_place import REPLACED
from logstore.io.stamps import Look, settled
from logstore.log.follow.change_stamps import BrokerStart, publication_key
from logstore.log.follow.decide import Which
from logstore.log.follow.durable_updates import DurableUpdates
from logstore.log.follow.follow_appends import AppendFollower
from logstore.log.follow.followed import FollowedLog
from logstore.log.follow.loading import ATTEMPTS, LoadedLog, Loader
from logstore.log.follow.publication_stop import PublicationStop
from logstore.log.read.view import Bounds, Segments
from logstore.log.recover import RecoveredLog

__all__ = ["ATTEMPTS", "ReadOnlyLog"]

# How often everything is looked at if an append may have ended meanwhile: a reader that
# is slower than the writer sees a part of an append that is complete by then.
LOOKS: Final = 8

Result = TypeVar("Result")


class ReadOnlyLog:
    """The segments and bounds of a partition as far as they can be read now."""

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        topic: str,
        partition: int,
        config: TopicConfig,
        metadata: MetadataNow,
        ownership: Ownership,
        publications: Publications,
        guard: Callable[[], None],
        lock_group: int,
    ) -> None:
        self.directory = directory
        self._guard = guard
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
            self._publication_stop,
        )
        self._lock = native.Mutex(
            RANK_REFRESH, f"the looks at {topic}-{partition}", lock_group
        )
        self._is_doubtful = False  # a refresh was interrupted
        # The cuts and replacements that this object has found, for its views.
        self._cuts = Cuts()
        self._life = 0  # how often another log was found in the place of this one
        # From before the last whole look: as long as these files are unchanged, nothing
        # was cut. None: no look guarantees this.
        self._uncut: Look | None = None
        self._appends = AppendFollower(directory, config.index_interval_bytes)
        self._durable = DurableUpdates(directory, ownership)
        # The stamp of the partition when its state was read; what that says of the log.
        self._history: tuple[object, tuple[str, Cuts] | None] = (None, None)
        self._log: FollowedLog
        self._take(self._loader.load())

    @property
    def loaded(self) -> RecoveredLog:
        return self._log.log

    @property
    def segments(self) -> Segments:
        return self._log.segments

    @property
    def start_offset(self) -> int:
        return self._log.log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log.end_offset

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is in progress."""
        return min(self._log.log.end_offset, self._publication_stop.offset)

    @property
    def durable_offset(self) -> int:
        # The state may be newer than the names by which the end was found.
        durable = max(self._log.log.durable_offset, self._durable.offset)
        return min(durable, self.high_watermark)

    @property
    def is_foreign(self) -> bool:
        """Whether another program than logstore writes it."""
        return self._log.files.is_foreign

    def free_bytes(self) -> int:
        """Bytes free on the file system."""
        return self.directory.free_bytes()

    def _take(self, new: LoadedLog) -> None:
        """Take over a log that was loaded."""
        self._log = FollowedLog(self._loader, new)
        self._broker_start.stamp = new.stamp.ownership.starts

    def refreshed(self, *, fully: bool = False) -> Bounds:
        """Take in the appends, rolls and deletions since the last refresh, and return
        the present log.

        Args:
            fully: something seems to be wrong: each file is examined.

        Raises:
            StoreClosedError, ForkedError: the store cannot be used.
            PartitionNotFoundError: it was deleted.
            StorageError: it cannot be read.
        """
        self._guard()
        with self._lock:
            if fully:
                self._look_at_files()
            elif not self._look_quickly():
                self._look()
            return self._bounds()

    def durable_of(self, seen: Bounds) -> int:
        """The durable offset that the writer publishes now, at most the end that a
        refresh found."""
        with self._lock:
            if (seen.life, seen.cuts.serial) != (self._life, self._cuts.serial):
                return seen.durable_offset
            self._durable.update(self._log.log, self.high_watermark)
            return min(self.durable_offset, seen.end_offset)

    def at_once(
        self,
        ask: Callable[[Segments, int, int, int], Result | None],
        durable_only: bool,
        target: int,
    ) -> Result | None:
        """The result of `ask` on the log of the last refresh, between its first and its
        last offset; None also if the log may have changed meanwhile. The log of a
        broker may lose segments at its start without a sign that is looked at here."""
        with self._lock:
            if self._uncut is None or self._is_doubtful or self._log.files.is_foreign:
                return None
            known = self._bounds()
        end = known.durable_offset if durable_only else known.end_offset
        result = ask(known.segments, known.start_offset, end, target)
        is_same = result is not None and self.is_as_it_was(
            known.life, known.cuts.serial
        )
        return result if is_same else None

    def is_as_it_was(self, life: int, serial: int) -> bool:
        """Whether certainly nothing was cut, and no other log put in the place of this
        one, since a refresh that found these."""
        # Before the numbers, which a refresh in another thread sets first.
        uncut = self._uncut
        if uncut is None or (life, serial) != (self._life, self._cuts.serial):
            return False
        try:
            return self.directory.look(uncut.names, uncut) is uncut
        except OSError:
            return False  # a refresh reports why

    def _look(self) -> None:
        """Look at everything."""
        self._uncut = None
        self._appends.forget()
        first, last = self._retry_look()
        log = self._log
        if first.names.names == log.guards.all.names:
            uncut = first.first(log.guards.cut)
            if uncut.has_settled(self.directory.files):
                self._uncut = uncut
        if not (log.is_ended or log.files.is_foreign):
            self._appends.begin(log, first, last)

    def _look_quickly(self) -> bool:
        """Take in appends, if nothing else has changed since the last whole look.
        False: look at everything."""
        try:
            return self._appends.look(self._log)
        except BaseException:
            self._appends.forget()
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
                files = self.directory.files
                begun_ms, now = files.now_ms(), self._loader.stamp()
                # The time of the directory changes with each file in it.
                cache_key: object = now._replace(mtime_ns=0)
                if cache_key != self._history[0]:
                    written = now.state
                    if written and settled(written[2], begun_ms, files) < 0:
                        cache_key = None  # the next cut may not change the stamp
                    state = self._loader.metadata(now.ownership).state
                    history = None
                    if state is not None and state.log_id:
                        history = state.log_id, state.cuts
                    self._history = cache_key, history
            except OSError as error:
                self._loader.fail(error)
            return self._history[1]

    def _look_at_files(self) -> None:
        """Look at everything, until no file was replaced since."""
        self._look()
        serial = -1
        while self._cuts.serial != serial and self._is_any_replaced():
            serial, self._is_doubtful = self._cuts.serial, True
            self._look()

    def _bounds(self) -> Bounds:
        # The writer's state guarantees this up to the durable offset. Later records may
        # be of a broker that has begun since.
        log = self._log.log
        free = range(log.foreign_end, max(log.foreign_end, log.durable_offset))
        return Bounds(
            self._log.segments,
            log.start_offset,
            self.high_watermark,
            self.durable_offset,
            self._cuts,
            self._life,
            transaction_free=free,
            tail=self._appends.tail,
            compactions=log.compactions,
        )

    def _is_any_replaced(self) -> bool:
        """Whether a file was replaced since the last refresh."""
        try:
            return self._log.files.is_any_replaced(self.segments)
        except OSError as error:
            self._loader.fail(error)

    def _retry_look(self) -> tuple[Look, Look]:
        """`_look_until_stable`, again if a change causes an error."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._look_until_stable()
            except CorruptRecordError:
                if self._is_doubtful or attempt == ATTEMPTS:
                    raise
                self._is_doubtful = True  # perhaps it was cut meanwhile
            except OSError as error:
                self._is_doubtful = True
                if self._loader.is_change(error) and attempt < ATTEMPTS:
                    continue
                self._loader.fail(error)
            except BaseException:
                self._is_doubtful = True
                raise

    def _look_until_stable(self) -> tuple[Look, Look]:
        """Look until no change during the look can affect its result.

        Returns:
            The look at the guards before everything that was read, and the one after.
        """
        begun, first, looks = self._log.end_offset, None, 0
        while True:
            looks += 1
            log, end, ends = self._log, self._log.end_offset, self._log.files.ends()
            start = self._broker_start.news(log.files)
            look = log.look()
            first = first or look
            if self._is_doubtful or not log.grow(look):
                self._load_again()
            now = self._log
            if now is log:
                # A newly loaded log has it already, or is another log.
                start = min(start, now.end_offset)
                now.log.start_offset = max(now.log.start_offset, start)
            has_read = now is not log or end < now.end_offset
            if has_read:
                look = now.look()
            if now is log and has_read and log.has_new_writer(look):
                # A backup was put back: the rest of it may be of another log.
                log.files.restore_ends(ends)
                self._is_doubtful = True
            elif (
                now.is_of_one_log(begun, look)
                and self._publication_stop.look(publication_key(look.stamps()))
                and (not has_read or now.stands(look, is_last=looks >= LOOKS))
            ):
                return first, look

    def _load_again(self) -> None:
        """Load the log again, and apply how it has changed."""
        before = self._log
        loaded, change = self._loader.load_after(
            before.observed(), before.segments, before.files
        )
        # The log is taken over at the end: after an interrupt all is decided again.
        is_other = change.log is Which.OTHER
        for segment in before.segments:
            if segment.base_offset in change.replaced:
                segment.place = REPLACED
        self._durable.forget(-1 if is_other else change.cut_to)
        if is_other:
            self._life += 1
        elif change.is_any:
            self._cuts = self._cuts.after(change.cut_to)
            loaded.files.keep_ends(before.files, change.cut_to)
        self._take(loaded)
        self._is_doubtful = False
