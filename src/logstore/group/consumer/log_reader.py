"""Reads the log of a partition of a consumer, from a position on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

from logstore.errors import (
    CorruptionError,
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    StorageError,
    TopicNotFoundError,
    again,
)
from logstore.group.consumer.options import Options
from logstore.log.read.options import ReadOptions
from logstore.log.read.proof import ProofFinder
from logstore.log.read.view import View
from logstore.record.record import TopicRecord
from logstore.store.package_access import readable_end, views_of
from logstore.store.partition.partition import Partition
from logstore.store.partition.partition_views import Latest, Turn

__all__ = ["OTHER_LOG", "LogReader"]

# The log is not the one that was read: reading it again would hide that.
OTHER_LOG: Final = (OffsetOutOfRangeError, TopicNotFoundError)


class LogReader:
    """Reads one log, up to the next `seek` of the consumer.

    A position is one in the log that it has seen, or comes with a proof: `begin` asks
    for either before it reads on, whatever has ended the last read. The caller knows
    where to continue: a record that was read and not delivered is read again
    after a `restart`.

    Attributes:
        behind: damage after the records that were read last: the next read raises it.

    Args:
        latest: the log when the position was reached; None in it: the
            position is a number that was given, with a proof or without.
        proof: of the position that was given.
    """

    def __init__(
        self,
        partition: Partition,
        options: Options,
        latest: Latest | None = None,
        proof: int | None = None,
    ) -> None:
        self.behind: CorruptRecordError | None = None
        self._partition = partition
        self._consumer_options = options
        self._options = ReadOptions.of(
            options.durable_only, options.isolation, options.on_corruption
        )
        self._latest = latest or Latest()
        self._proof = proof
        self._proofs = ProofFinder()
        self._items: Iterator[Iterator[TopicRecord] | Turn] | None = None
        self._run: Iterator[TopicRecord] | None = None
        # The last end of the log that it has reached.
        self._turn: Turn | None = None
        # At most this number is taken from a run at a time: 1 after a failure.
        self._step = 1 << 30

    def anew(self, *, keeps_log: bool, proof: int | None) -> LogReader:
        """A reader for another position. A function that decides about damage is asked
        again.

        Args:
            keeps_log: the position is one in the log that this reader has seen.
        """
        latest = self._latest if keeps_log else None
        return LogReader(self._partition, self._consumer_options, latest, proof)

    def restart(self) -> None:
        """Read on from another position in the same log."""
        self._items, self._run, self._turn = None, None, None
        self._proofs.forget()

    def read(
        self, position: int | None, limit: int
    ) -> tuple[list[TopicRecord], int | None]:
        """(the next records, at most `limit`, the position after them); no records at
        the end of the log.

        A failure is raised after the records before it were returned, by the next call.

        Args:
            position: to begin at, if it has not begun.

        Raises: as `Partition.follow`.
        """
        if self.behind is not None:
            raise again(self.behind)
        first, records = position, list[TopicRecord]()
        try:
            while len(records) < limit:
                run = self._run
                if run is None:
                    item = self._next_item(position)
                    if isinstance(item, Turn):
                        self._turn = item
                        assert position is not None
                        position = max(position, item.offset)
                        break
                    run = self._run = item
                count = min(limit - len(records), self._step)
                part = list(itertools.islice(run, count))
                if len(part) < count:
                    self._run = None
                if part:
                    records = records + part if records else part
                    position = part[-1].offset + 1
        except BaseException as error:
            # The records taken from the run are not delivered: read them again.
            self.restart()
            if not isinstance(error, Exception):
                raise
            is_other = isinstance(error, OTHER_LOG)
            if not records and self._step > 1 and not is_other:
                # Maybe there are records before the one that cannot be read.
                self._step = 1
                return self.read(first, limit)
            if not records:
                raise
            if isinstance(error, CorruptRecordError):
                # A wrong offset hides records below the position: a read from there on
                # would not meet it again.
                self.behind = error
        return records, position

    def _next_item(self, position: int | None) -> Iterator[TopicRecord] | Turn:
        if self._items is None:
            self.begin(position)
        assert self._items is not None
        return next(self._items)

    @property
    def has_begun(self) -> bool:
        """True if the position was found to be in the log."""
        return self._items is not None

    def begin(self, position: int | None) -> None:
        """Begin to read at a position, which must not be None.

        Raises:
            OffsetOutOfRangeError: it is not in the log, or that was cut below it.
            PartitionNotFoundError: another log is in the place of the one it is of.
        """
        self._proofs.forget()
        assert position is not None
        latest = Latest()
        try:
            items = views_of(self._partition).topic_turns(
                position, self._options, latest
            )
        except OffsetOutOfRangeError:
            self._check_log(position)  # perhaps it knows why
            raise
        self._check_log(position)
        self._latest, self._items = latest, items

    def _check_log(self, position: int) -> None:
        """Raise if the log is not the one that the position is of. The view to be read
        was taken before that: what is cut later, the read finds out."""
        views, seen = views_of(self._partition), self._latest.view
        if seen is not None:
            seen.check_same(position, views.refreshed_bounds())
        elif self._proof is not None and views.disproves(position, self._proof):
            raise OffsetOutOfRangeError(
                position,
                self._partition.start_offset,
                self._partition.end_offset,
                partition=views.name,
                cut_to=position - 1,
            )

    def proof_of(self, offset: int, position: int | None) -> int | None:
        """The proof of an offset, if it is at the end of a batch.

        Args:
            position: up to which the log was read.

        Raises:
            OffsetOutOfRangeError, TopicNotFoundError: it has read up to there, and the
                log is not the one that it has read.
        """
        seen = self._latest.view
        is_read = seen is not None and offset <= (position or 0)
        try:
            proof = self._proofs.find(offset, seen, self._view_now, is_read=is_read)
        except LogStoreError:
            proof = None  # the next read meets it again
        # After the proof was read: else it may be that of a batch which was written
        # later in the place of the one that was read.
        if (
            seen is not None
            and is_read
            and not seen.source.is_as_it_was(seen.life, seen.cuts.serial)
        ):
            with contextlib.suppress(StorageError, CorruptionError):
                seen.check_same(offset, seen.source.refreshed())
        return proof

    def _view_now(self) -> View:
        return views_of(self._partition).now(False)

    def has_seen(self, offset: int = 0) -> bool:
        """True if it has seen the log, up to an offset."""
        view = self._latest.view
        return view is not None and offset <= view.log_end

    def readable_end(self) -> int:
        """The end of the records that it may deliver now."""
        return readable_end(self._partition, self._options)

    @property
    def waits_for_sync(self) -> bool:
        """True if there are records that are not durable yet."""
        turn = self._turn
        return turn is not None and turn.view.log_end > turn.view.end_offset
