"""Named producers: they append with sequences, so that repeating a call appends nothing
again, also after a restart of the program.

The file `.logstore-producers` has the id and the epoch of each name; each partition has
the last sequences (`Idempotence`). `Store.producer` begins a new epoch, and the
`Producer` of an earlier one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from logstore.config import check_int
from logstore.errors import (
    ConfigError,
    InvalidProducerEpochError,
    ProducerFencedError,
    storage_errors,
)
from logstore.io.checkpoint.producer_names import NamedProducer, take_over
from logstore.io.layout import TopicPartition
from logstore.log.producers import SEQUENCES, Identity
from logstore.log.write.staged_files import check_identity
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import refuse_pickling
from logstore.record.encoder import pack_rows
from logstore.store.context import StoreContext
from logstore.store.partition.partition import Partition, appends_of
from logstore.store.topic.topic import Topic

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["NamedProducers", "Producer"]

# Only batches of this format have sequences.
_MAGIC = 2


class Producer:
    """Appends records with sequences. Made by `Store.producer`.

    The records of a producer in a partition are numbered: their sequences rise by 1
    from record to record, and 0 follows 2^31 - 1. A call with sequences that the
    partition has already appends nothing, and returns the offsets that its records
    have. So a caller that does not know whether a call has succeeded repeats it, with
    the same `sequence` and the same records; and one that begins again after a crash
    asks for `last_sequence`, and continues with the record after it. The sequences are
    stored in the batches themselves: a record and its sequence survive together, or
    neither.

    Any number of threads may use it, each for other partitions: in which order two
    threads append to one is not known. Partitions need ``message_format=2``. Batches
    that `Partition.append_batches` checks, and records of other producers, may go to
    the same partitions.

    Attributes:
        name: as given to `Store.producer`.
    """

    __slots__ = ("_identity", "_names", "_row", "name")

    def __init__(self, names: NamedProducers, name: str, row: NamedProducer) -> None:
        self._names = names
        self._row = row
        self._identity = Identity(row.ids[0], row.epoch, row.ids[1:])
        self.name = name

    @property
    def producer_id(self) -> int:
        """Producer id in its batches, from 2^62 on: a broker's ids begin at 0."""
        return self._identity.producer_id

    @property
    def epoch(self) -> int:
        """Epoch in its batches, 0 to 32767: the newest one of the name, unless the name
        was taken over."""
        return self._identity.epoch

    def __repr__(self) -> str:
        return f"<logstore.Producer {self.name!r} epoch {self.epoch}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, self.name)

    def last_sequence(self, partition: Partition | tuple[str, int]) -> int | None:
        """The sequence of the last record that this name, in any epoch, has in a
        partition; None if it has no record there.

        The first call for a partition may have to read its newest segments.

        Args:
            partition: a `Partition` of the store, or (topic, number).

        Raises:
            ProducerFencedError: the name was taken over.
            CorruptRecordError: damage in a segment that must be read.
            TopicNotFoundError, PartitionNotFoundError, StorageError.
        """
        writer = self._writer(partition)
        return writer.appends.last_sequence(self._identity, self._check_of(writer))

    def append(
        self,
        partition: Partition | tuple[str, int],
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        sequence: int | None = None,
        durable: bool = False,
    ) -> int:
        """Append one record and return its offset; see `append_many`."""
        return self.append_many(
            partition,
            (value,),
            None if key is None else (key,),
            None if timestamp_ms is None else (timestamp_ms,),
            (headers,) if headers else None,
            sequence=sequence,
            durable=durable,
        ).start

    def append_many(
        self,
        partition: Partition | tuple[str, int],
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        sequence: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append records, all or none, or find them there, and return their offsets.

        The log is searched for the sequences, not for the records: it is the caller's
        part to give a record the same sequence each time.

        Args:
            partition: a `Partition` of the store, or (topic, number).
            values, keys, timestamps_ms, headers: as in `Partition.append_many`.
            sequence: of the first record, 0 to 2^31 - 1: the one after the last; any,
                if the name has no record in the partition. None: the one after the
                last, or 0; then a call that is repeated appends again.
            durable: return when the records, also those found, survive a power failure.

        Raises:
            OutOfOrderSequenceError: records before these are missing, or a part of
                these is there; nothing was written.
            DuplicateSequenceError: they are there, before the last five batches: their
                offsets are not known. Nothing was written, and nothing is missing.
            ProducerFencedError: the name was taken over; nothing was written.
            UnsupportedError: the topic has not ``message_format=2``.
            ConfigError: `sequence` is out of range, or the partition of another store.

        and what `Partition.append_many` raises.
        """
        writer = self._writer(partition)
        if sequence is not None:
            check_int("sequence", sequence, 0, SEQUENCES - 1)
        rows = pack_rows(values, keys, timestamps_ms, headers, magic=_MAGIC)
        try:
            return writer.appends.append_numbered(
                [rows],
                self._identity,
                sequence,
                check=self._check_of(writer),
                durable=bool(durable),
            )
        except InvalidProducerEpochError as error:
            # The file of the names is older than the log.
            raise self._fenced(error.partition, error.expected) from error

    def _writer(self, partition: Partition | tuple[str, int]) -> PartitionWriter:
        return self._names.writer_of(partition)

    def _check_of(self, writer: PartitionWriter) -> Callable[[], None]:
        """Raises if the name was taken over. A partition is asked when no append to it
        can come between."""

        def check() -> None:
            newest = self._names.newest[self.name]
            if newest is not self._row:
                raise self._fenced(writer.context.name, newest.epoch)

        return check

    def _fenced(self, partition: str, newest: int) -> ProducerFencedError:
        return ProducerFencedError(
            f"producer {self.name!r} was taken over: it has epoch {newest} now, "
            f"this one has {self.epoch}. Nothing was written to {partition}. To "
            "continue with this one, take over the name again: Store.producer",
            name=self.name,
            producer_id=self.producer_id,
            partition=partition,
            epoch=self.epoch,
            expected=newest,
        )


class NamedProducers:
    """The named producers of an open store. The store's lock guards changes.

    Attributes:
        newest: by name, the producers that this process has taken over.
    """

    def __init__(
        self, context: StoreContext, find_topic: Callable[[str], Topic]
    ) -> None:
        self._context = context
        self._find_topic = find_topic
        self.newest: dict[str, NamedProducer] = {}

    def take_over(self, name: str) -> Producer:
        """See `Store.producer`."""
        if not check_identity(name, "name"):
            raise ConfigError(
                "the name of a producer is empty; nothing was done",
                name="name",
                value=name,
            )
        context = self._context
        with context.lock, storage_errors("write", context.path):
            context.check_open()
            context.state.begin_writing()
            # From now on, whatever becomes of the file.
            context.state.has_named_producers = True
            row = self.newest[name] = take_over(context.root, name)
        return Producer(self, name, row)

    def writer_of(self, partition: Partition | tuple[str, int]) -> PartitionWriter:
        """The writer of a partition of this store."""
        value: object = partition
        if not isinstance(value, Partition):
            topic, number = _as_key(value)
            partition = self._find_topic(topic)[number]
        assert isinstance(partition, Partition)
        writer = appends_of(partition).writer()
        if writer.context.services is not self._context:
            raise ConfigError(
                f"{partition.name} is a partition of another store than the producer; "
                f"nothing was written",
                name="partition",
                value=partition.name,
            )
        return writer


def _as_key(value: object) -> TopicPartition:
    if isinstance(value, tuple) and len(value) == 2:
        topic, number = value
        if isinstance(topic, str) and type(number) is int:
            return TopicPartition(topic, number)
    raise TypeError(
        f"partition is {value!r:.100}, not a Partition or (topic, number); nothing was "
        f"written"
    )
