"""Reads a partition of a consumer."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Final, TypeAlias

from logstore.errors import (
    CorruptionError,
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    TopicNotFoundError,
    UnsupportedError,
)
from logstore.group.errors import NoOffsetForPartitionError
from logstore.io.layout import TopicPartition
from logstore.log.read.corruption import DamagePolicy, OnCorruption
from logstore.log.read.options import ReadOptions
from logstore.log.read.proof import ProofFinder
from logstore.log.read.view import View
from logstore.record.record import TopicRecord
from logstore.store.inside import views_of
from logstore.store.partition.partition import Partition
from logstore.store.partition.partition_views import Latest, Turn

__all__ = ["LASTING", "Before", "PartitionReader"]

# The errors of a partition that come again until a `seek`.
LASTING: Final = (
    CorruptionError,
    NoOffsetForPartitionError,
    RecordTooLargeError,
    UnsupportedError,
)

# The log is not the one that was read: reading it again would hide that.
_OTHER_LOG: Final = (OffsetOutOfRangeError, TopicNotFoundError)


class PartitionReader:
    """A partition that a consumer reads, and how far it is.

    Its position is one in the log that it has seen, or comes with a proof: `begin` asks
    for either before it reads on, whatever has ended the last read.

    Attributes:
        key: which partition.
        partition: the same, open.
        topic_id: of the topic when the reader was made: another one may have the name.
        position: the next offset to be delivered; None: it is not known yet.
        base: where it began to deliver after the last commit: what is committed, or
            the target of a `seek`.
        has_delivered: whether it has delivered records since the last commit; a `seek`
            does not change that.
        committed: the offset that was committed last, as far as it is known.
        is_disproved: that offset was not in the log, and is committed again even if it
            is in it by now.
        is_paused: whether `poll` leaves it out.
        error: raised by each `poll` until a `seek`; None: none.
        turn: the last end of the log that it has reached.

    Args:
        durable_only, isolation, on_corruption: as in `Partition.read`.
    """

    __slots__ = (
        "_ahead",
        "_behind",
        "_items",
        "_latest",
        "_on_corruption",
        "_options",
        "_proof",
        "_proofs",
        "_run",
        "_step",
        "base",
        "committed",
        "error",
        "has_delivered",
        "is_disproved",
        "is_paused",
        "key",
        "partition",
        "position",
        "topic_id",
        "turn",
    )

    def __init__(
        self,
        partition: Partition,
        topic_id: str,
        *,
        durable_only: bool,
        isolation: str,
        on_corruption: OnCorruption = "raise",
    ) -> None:
        self.key = TopicPartition(partition.topic, partition.number)
        self.partition = partition
        self.topic_id = topic_id
        self.position: int | None = None
        self.base: int | None = None
        self.committed: int | None = None
        self.has_delivered = False
        self.is_disproved = False
        self.is_paused = False
        self.error: LogStoreError | None = None
        self.turn: Turn | None = None
        # Damage after the records that were read last: the next read raises it.
        self._behind: CorruptRecordError | None = None
        self._on_corruption = on_corruption
        self._options = ReadOptions.of(durable_only, isolation, on_corruption)
        self._items: Iterator[Iterator[TopicRecord] | Turn] | None = None
        self._run: Iterator[TopicRecord] | None = None
        self._proofs = ProofFinder()
        # The log as it was when the position was reached; None in it: the position is
        # a number that was given, with a proof or without.
        self._latest = Latest()
        self._proof: int | None = None
        # Records that were read and not delivered, the next one last.
        self._ahead: list[TopicRecord] = []
        # At most so many are taken from a run at a time: 1 after a failure.
        self._step = 1 << 30

    def seek(self, offset: int | None, *, proof: int | None = None) -> None:
        """Deliver from an offset of the log as it is now; None: from where the consumer
        says.

        Args:
            proof: of the offset, if it is a position that was committed.
        """
        self._move(offset, self._base_for(offset), proof=proof)

    def seek_in_seen(self, offset: int) -> None:
        """As `seek`, to an offset of the log that it has seen, if that has it: a cut
        below it since then is an error, if none was raised for it yet."""
        seen = self._latest.view
        is_seen = seen is not None and offset <= seen.log_end
        is_told = isinstance(self.error, _OTHER_LOG)
        keeps_log = is_seen and not is_told
        self._move(offset, self._base_for(offset), keeps_log=keeps_log)

    def _base_for(self, offset: int | None) -> int | None:
        is_kept = offset is not None and self.base is not None and self.has_delivered
        return self.base if is_kept else offset

    def cut_to(self, offset: int) -> None:
        """Deliver from an offset to which the log was cut. A `rewind` goes no further
        than that: later records do not exist any more."""
        base = offset if self.base is None else min(self.base, offset)
        self._move(offset, base)

    def _move(
        self,
        position: int | None,
        base: int | None,
        *,
        keeps_log: bool = False,
        proof: int | None = None,
    ) -> None:
        """Deliver from a position on: all of it, or nothing, with an interrupt."""
        self._begin_again()
        latest = self._latest if keeps_log else Latest()
        # The function is asked anew.
        policy = DamagePolicy(self._on_corruption)
        self._options = self._options._replace(policy=policy)
        # Nothing is called from here on.
        self.position, self.base = position, base
        self._latest, self._proof = latest, proof
        self.error = self._behind = None
        self._step = 1 << 30

    def _begin_again(self) -> None:
        self._items, self._run, self.turn = None, None, None
        self._ahead.clear()
        self._proofs.forget()

    def take(self, limit: int) -> list[TopicRecord]:
        """The next records, at most `limit`, and none at the end of the log.

        A failure is raised after the records before it were returned, by the next call.

        Raises: as `Partition.follow`.
        """
        if self._ahead:
            return self.take_ahead(limit)
        found, position = self._read(limit)
        self.position = position
        self.has_delivered = self.has_delivered or bool(found)
        return found

    def take_ahead(self, limit: int) -> list[TopicRecord]:
        """As `take`, of those that were read ahead."""
        found = self._ahead[: -limit - 1 : -1]
        if found:
            position = found[-1].offset + 1
            del self._ahead[-limit:]
            self.position = position
            self.has_delivered = True
        return found

    def read_ahead(self, limit: int) -> bool:
        """Read at most `limit` records for `next_ahead`; whether there are any.

        Raises: as `take`.
        """
        if not self._ahead:
            try:
                found, position = self._read(limit)
                if found:
                    self._ahead = found[::-1]
                else:
                    self.position = position
            except BaseException:
                self._begin_again()
                raise
        return bool(self._ahead)

    def _read(self, limit: int) -> tuple[list[TopicRecord], int | None]:
        """(the next records, the position after them), which is not set yet: whatever
        fails before it is, the records are read again."""
        if self._behind is not None:
            raise self._behind.with_traceback(None)
        position, found = self.position, list[TopicRecord]()
        try:
            while len(found) < limit:
                run = self._run
                if run is None:
                    item = self._next_item()
                    if isinstance(item, Turn):
                        self.turn = item
                        assert position is not None
                        position = max(position, item.offset)
                        break
                    run = self._run = item
                count = min(limit - len(found), self._step)
                part = list(itertools.islice(run, count))
                if len(part) < count:
                    self._run = None
                if part:
                    found = found + part if found else part
                    position = part[-1].offset + 1
        except BaseException as error:
            # The records taken from the run are not delivered: read them again.
            self._begin_again()
            if not isinstance(error, Exception):
                raise
            is_other = isinstance(error, _OTHER_LOG)
            if not found and self._step > 1 and not is_other:
                # Maybe there are records before the one that cannot be read.
                self._step = 1
                return self._read(limit)
            if not found:
                raise
            if isinstance(error, CorruptRecordError):
                # A wrong offset hides records below the position: a read from there on
                # would not meet it again.
                self._behind = error
        return found, position

    def back_to(self, position: int | None) -> None:
        """Deliver again from a position on, which it had before: the records since then
        were read, and not delivered."""
        self._begin_again()
        self.position, self._behind = position, None

    def rewind(self) -> None:
        """Deliver again what was delivered since the last commit: from `base` on, as
        soon as the consumer knows that nobody else has committed since."""
        self._move(None, self.base, keeps_log=True)
        self.has_delivered = False

    def set_committed(self, offset: int) -> None:
        """Note what was committed."""
        self.committed = self.base = offset
        self.is_disproved = False

    @property
    def has_begun(self) -> bool:
        """Whether the position was found to be in the log."""
        return self._items is not None

    def begin(self) -> None:
        """Begin to read at the position, which must not be None.

        Raises:
            OffsetOutOfRangeError: it is not in the log, or that was cut below it.
            PartitionNotFoundError: another log is in the place of the one it is of.
        """
        self._proofs.forget()
        assert self.position is not None
        latest = Latest()
        try:
            items = views_of(self.partition).topic_turns(
                self.position, self._options, latest
            )
        except OffsetOutOfRangeError:
            self._check_log(self.position)  # perhaps it knows why
            raise
        self._check_log(self.position)
        self._latest, self._items = latest, items

    def _check_log(self, position: int) -> None:
        """Raise if the log is not the one that the position is of. The view to be read
        was taken before that: what is cut later, the read finds out."""
        views, seen = views_of(self.partition), self._latest.view
        if seen is not None:
            seen.check_same(position, views.refreshed_bounds())
        elif self._proof is not None and views.disproves(position, self._proof):
            raise OffsetOutOfRangeError(
                position,
                self.partition.start_offset,
                self.partition.end_offset,
                partition=str(self.key),
                cut_to=position - 1,
            )

    def _next_item(self) -> Iterator[TopicRecord] | Turn:
        if self._items is None:
            self.begin()
        assert self._items is not None
        return next(self._items)

    @property
    def ahead(self) -> int:
        """How many records were read and not delivered."""
        return len(self._ahead)

    def next_ahead(self) -> TopicRecord | None:
        """Deliver one of those."""
        if not self._ahead:
            return None
        record = self._ahead[-1]
        position = record.offset + 1
        # Nothing is called from here on: an interrupt comes before it or after it.
        del self._ahead[-1]
        self.position = position
        self.has_delivered = True
        return record

    def proof_of(self, offset: int) -> int | None:
        """The proof of a position, if it is at the end of a batch.

        Raises:
            OffsetOutOfRangeError, TopicNotFoundError: it has read up to there, and the
                log is not the one that it has read.
        """
        seen = self._latest.view
        is_read = seen is not None and offset <= (self.position or 0)
        now = functools.partial(views_of(self.partition).now, False)
        proof: int | None = None
        # The next read meets it again.
        with contextlib.suppress(LogStoreError):
            proof = self._proofs.find(offset, seen, now, is_read=is_read)
        if seen is not None and is_read:
            self._check_seen(seen, offset)
        return proof

    def _check_seen(self, seen: View, offset: int) -> None:
        # After the proof was read: else it may be that of a batch which was written
        # later in the place of the one that was read.
        if not seen.source.is_as_it_was(seen.life, seen.cuts.serial):
            with contextlib.suppress(StorageError, CorruptionError):
                seen.check_same(offset, seen.source.refreshed())

    @property
    def knows_log(self) -> bool:
        """Whether its position is one in a log that it has seen."""
        return self._latest.view is not None

    def readable_end(self) -> int:
        """The end of what it may deliver now."""
        partition = self.partition
        end = (
            partition.durable_offset
            if self._options.durable_only
            else partition.end_offset
        )
        if self._options.is_committed:
            end = min(end, partition.last_stable_offset())
        return end

    @property
    def waits_for_sync(self) -> bool:
        """Whether there are records that are not durable yet."""
        turn = self.turn
        return turn is not None and turn.view.log_end > turn.view.end_offset


# Positions that readers had before they read.
Before: TypeAlias = list[tuple[PartitionReader, int | None]]
