"""A partition that a consumer reads: its position and its committed offset."""

from __future__ import annotations

from typing import Final, TypeAlias

from logstore.errors import (
    CorruptionError,
    LogStoreError,
    NoOffsetForPartitionError,
    RecordTooLargeError,
    UnsupportedError,
)
from logstore.group.consumer.log_reader import OTHER_LOG, LogReader
from logstore.group.consumer.options import Options
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord
from logstore.store.partition.partition import Partition

__all__ = ["LASTING", "Before", "PartitionReader"]

# The errors of a partition that come again until a `seek`.
LASTING: Final = (
    CorruptionError,
    NoOffsetForPartitionError,
    RecordTooLargeError,
    UnsupportedError,
)


class PartitionReader:
    """One partition of a consumer: what was delivered, and what is committed.

    The position is after the last record that was delivered, or the target of a `seek`:
    `log` and the records that were read ahead may be further. Records between `base`
    and the position is delivered again if it is not committed.

    Attributes:
        key: which partition.
        partition: the same, open.
        topic_id: of the topic when the reader was made: another one may have the name.
        log: reads it.
        position: the next offset to be delivered; None: it is not known yet.
        base: first offset delivered after the last commit: the committed one, or
            the target of a `seek`.
        has_delivered: whether it has delivered records since the last commit; a `seek`
            does not change that.
        committed: the offset that was committed last, if known.
        is_disproved: that offset was not in the log, and is committed again even if it
            is in it by now.
        is_paused: whether `poll` leaves it out.
        error: raised by each `poll` until a `seek`; None: none.
    """

    def __init__(self, partition: Partition, topic_id: str, options: Options) -> None:
        self.key = TopicPartition(partition.topic, partition.number)
        self.partition = partition
        self.topic_id = topic_id
        self.log = LogReader(partition, options)
        self.position: int | None = None
        self.base: int | None = None
        self.committed: int | None = None
        self.has_delivered = False
        self.is_disproved = False
        self.is_paused = False
        self.error: LogStoreError | None = None
        # Records that were read and not delivered, the next one last.
        self._ahead: list[TopicRecord] = []

    # ------------------------------------------------------------ the position

    def seek(self, offset: int | None, *, proof: int | None = None) -> None:
        """Deliver from an offset of the present log; None: from where the consumer
        says.

        Args:
            proof: of the offset, if it is a position that was committed.
        """
        self._move(offset, self._base_for(offset), proof=proof)

    def seek_in_seen(self, offset: int) -> None:
        """Deliver from an offset of the log that it has seen, if that has it: a cut
        below it since then is an error, if none was raised for it yet."""
        is_told = isinstance(self.error, OTHER_LOG)
        keeps_log = self.log.has_seen(offset) and not is_told
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
        log = self.log.anew(keeps_log=keeps_log, proof=proof)
        # Nothing is called from here on.
        self.position, self.base = position, base
        self.log, self.error = log, None

    def _begin_again(self) -> None:
        self.log.restart()
        self._ahead.clear()

    def back_to(self, position: int | None) -> None:
        """Deliver again from a position on, which it had before: the records since then
        were read, and not delivered."""
        self._begin_again()
        self.position, self.log.behind = position, None

    def rewind(self) -> None:
        """Deliver again what was delivered since the last commit: from `base` on, as
        soon as the consumer knows that no other member has committed since."""
        self._move(None, self.base, keeps_log=True)
        self.has_delivered = False

    def set_committed(self, offset: int) -> None:
        """Note what was committed."""
        self.committed = self.base = offset
        self.is_disproved = False

    # ------------------------------------------------------------ records

    def take(self, limit: int) -> list[TopicRecord]:
        """The next records, at most `limit`, and none at the end of the log.

        A failure is raised after the records before it were returned, by the next call.

        Raises: as `Partition.follow`.
        """
        if self._ahead:
            return self.take_ahead(limit)
        # Whatever fails before the position is set, the records are read again.
        records, self.position = self.log.read(self.position, limit)
        self.has_delivered = self.has_delivered or bool(records)
        return records

    def read_ahead(self, limit: int) -> bool:
        """Read at most `limit` records for `next_ahead`; whether there are any.

        Raises: as `take`.
        """
        if not self._ahead:
            try:
                records, position = self.log.read(self.position, limit)
                if records:
                    self._ahead = records[::-1]
                else:
                    self.position = position
            except BaseException:
                self._begin_again()
                raise
        return bool(self._ahead)

    @property
    def ahead(self) -> int:
        """The number of records that were read and not delivered."""
        return len(self._ahead)

    def take_ahead(self, limit: int) -> list[TopicRecord]:
        """Take records that were read ahead, at most `limit`."""
        records = self._ahead[: -limit - 1 : -1]
        if records:
            position = records[-1].offset + 1
            del self._ahead[-limit:]
            self.position = position
            self.has_delivered = True
        return records

    def next_ahead(self) -> TopicRecord | None:
        """Deliver one record that was read ahead; None: no record is left."""
        if not self._ahead:
            return None
        record = self._ahead[-1]
        position = record.offset + 1
        # Nothing is called from here on: an interrupt comes before it or after it.
        del self._ahead[-1]
        self.position = position
        self.has_delivered = True
        return record


# Positions that readers had before they read.
Before: TypeAlias = list[tuple[PartitionReader, int | None]]
