"""The positions where a consumer begins to read, and offsets of the logs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import (
    CommitFailedError,
    ConfigError,
    LogStoreError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from logstore.group.consumer.lowering import lowered_commit
from logstore.group.consumer.options import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Options,
)
from logstore.group.consumer.reading import PartitionReader
from logstore.group.consumer.transaction import GroupPositions
from logstore.group.file.group_file import GroupFile
from logstore.group.file.state import BY_COMMITS
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.layout import TopicPartition
from logstore.log.read.proof import ProofFinder
from logstore.record.arguments import as_time_ms
from logstore.store.package_access import (
    lowered_in_copy,
    partition_id,
    topics_now,
    views_of,
)
from logstore.store.partition.partition import Partition
from logstore.store.store import Store

__all__ = ["Positions", "commit_of", "offsets_for_times"]

_NO_EPOCH: Final = -1


class Positions:
    """The positions of one consumer.

    Args:
        file: the group's file; None: there is no group.
    """

    def __init__(self, store: Store, options: Options, file: GroupFile | None) -> None:
        self._store = store
        self._options = options
        self._file = file

    def reader(self, key: TopicPartition) -> PartitionReader:
        """A reader without a position.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: it does not exist.
        """
        return PartitionReader(self.partition(key), self.topic_id(key), self._options)

    def partition(self, key: TopicPartition) -> Partition:
        """Raises: TopicNotFoundError, PartitionNotFoundError."""
        return self._store.topic(key.topic)[key.partition]

    def committed(
        self, keys: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The valid committed offsets in the part of the group's file that was read. An
        offset that was committed for another topic of the same name does not count.

        Raises:
            ConfigError: the consumer has no group.
        """
        return {key: commit for key, (commit, _) in self._committed(keys).items()}

    def _committed(
        self, keys: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[OffsetAndMetadata, int | None]]:
        """The committed offsets, each with its proof."""
        keys = list(keys)
        if self._file is None:
            raise ConfigError(
                "this consumer has no group, and so no committed offsets",
                name="group",
            )
        if self._options.offsets is not None:
            stored_offsets = self._options.offsets.committed(keys)
            return {
                TopicPartition(*key): (OffsetAndMetadata(*stored_offsets[key]), None)
                for key in stored_offsets
            }
        if self.is_published():
            _, published = self._published().read()
            return {
                key: (OffsetAndMetadata(published[key].offset), published[key].proof)
                for key in keys
                if key in published and self._is_of_topic(key, published[key].topic_id)
            }
        committed_offsets = {}
        lowered_to = lowered_in_copy(self._store)
        for key in keys:
            commit = self._file.committed(key)
            if commit is None or not self._is_of_topic(key, commit.topic_id):
                continue
            commit = lowered_commit(commit, lowered_to)
            offset = OffsetAndMetadata(
                commit.offset, commit.metadata, commit.leader_epoch
            )
            committed_offsets[key] = offset, commit.proof
        return committed_offsets

    def _published(self) -> GroupPositions:
        return GroupPositions(self._store, self._options.group or "")

    def is_published(self) -> bool:
        """Whether the group commits by transactions: its file says so, or, if that
        was removed, the publications."""
        if self._file is None or self._file.state.way == BY_COMMITS:
            return False
        if self._file.state.way:
            return True
        return self._published().read()[0] > 0

    def _is_of_topic(self, key: TopicPartition, topic_id: str | None) -> bool:
        """Whether an offset that was committed with a topic's id counts. One from
        before the topic had an id does."""
        return counts_in(partition_id(self._store, key), topic_id)

    def check_same(self, readers: Iterable[PartitionReader]) -> None:
        """Raise `CommitFailedError` for a partition whose topic was made again since it
        was assigned: offsets of the earlier topic mean nothing in this one."""
        for reader in readers:
            now = topics_now(self._store, [reader.key.topic]).get(reader.key.topic)
            if now is None or not reader.topic_id or now[0] == reader.topic_id:
                continue
            raise CommitFailedError(
                f"the topic of partition {reader.key} was deleted and created "
                "again; this consumer read the earlier topic. Nothing was "
                "committed",
                group=self._options.group or "",
            )

    def topic_id(self, key: TopicPartition) -> str:
        """The id of the topic that has the name now; "" if it has no id.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: it does not exist.
        """
        topic = topics_now(self._store, [key.topic]).get(key.topic)
        if topic is None or key.partition not in topic[1]:
            self.partition(key)  # raises
        return "" if topic is None else topic[0]

    def begin(self, reader: PartitionReader) -> None:
        """Give a reader its position: the committed one, else by ``reset``.
        After a `rewind` it is `base`, unless another member has committed since.

        Raises:
            NoOffsetForPartitionError: nothing is committed, and ``reset="error"``.
        """
        if self._file is not None:
            commit, proof = self._committed([reader.key]).get(reader.key, (None, None))
            offset = None if commit is None else commit.offset
            is_rewound = reader.base is not None and offset == reader.committed
            if is_rewound and (reader.log.has_seen() or reader.base != offset):
                reader.seek_in_seen(reader.base or 0)
                return
            if commit is not None:
                reader.seek(commit.offset, proof=proof)
                reader.set_committed(commit.offset)
                return
        if self._options.reset == "error":
            raise NoOffsetForPartitionError(
                f"group {self._options.group!r:.100} has no valid committed "
                f"offset for partition {reader.key}, and reset is 'error'. Seek, "
                "or open the consumer with reset='earliest', 'latest' or a time "
                "span",
                group=self._options.group or "",
                partition=str(reader.key),
            )
        self.reset(reader)

    def go_on(self, reader: PartitionReader, error: LogStoreError) -> None:
        """Give a reader another position after an error about its log: the offset of
        the cut, or the committed offset in another log of the topic, or by ``reset``.
        """
        if not isinstance(error, OffsetOutOfRangeError):
            logger.warning("%s; reset to %s", error, "the committed offset")
            reader.seek(None)
            self.begin(reader)
        elif error.cut_to is None or not reader.log.has_seen():
            logger.warning("%s; reset to %s", error, self._options.reset)
            self.reset(reader)
        else:
            # With neither a gap nor the same records again.
            position = min(error.cut_to, reader.position or 0)
            position = max(
                position, reader.partition.start_offset, self._proven(reader)
            )
            logger.warning("%s; reset to %s", error, position)
            reader.cut_to(position)

    def _proven(self, reader: PartitionReader) -> int:
        """The committed offset, if the log still has the batch below it: a cut may be
        lower than the records that are gone, if their end is not known; else 0."""
        if self._file is None:
            return 0
        commit, proof = self._committed([reader.key]).get(reader.key, (None, None))
        if commit is None or proof is None or commit.offset > (reader.position or 0):
            return 0
        now = partial(views_of(reader.partition).now, False)
        crc = ProofFinder().find(commit.offset, None, now, is_read=False)
        return commit.offset if crc == proof else 0

    def proof_of(self, reader: PartitionReader, offset: int) -> int | None:
        """The proof of a position to commit, if it has one.

        Raises:
            CommitFailedError: the log was cut since it was read up to there, or another
                one is in its place. A commit for a deleted topic does not count, and
                has no proof.
        """
        try:
            return reader.log.proof_of(offset, reader.position)
        except TopicNotFoundError as error:
            if not self.has_topic(reader):
                return None
            cause: LogStoreError = error
        except OffsetOutOfRangeError as error:
            cause = error
        raise CommitFailedError(
            f"{cause}. Nothing was committed; the next poll finds the position",
            group=self._options.group or "",
        ) from cause

    def has_topic(self, reader: PartitionReader) -> bool:
        """Whether the topic of a reader still exists, and was not recreated."""
        name, number = reader.key
        now = topics_now(self._store, [name]).get(name)
        return now is not None and number in now[1] and reader.topic_id in ("", now[0])

    def reset(self, reader: PartitionReader) -> None:
        """Give a reader the position that ``reset`` says."""
        reset, partition = self._options.reset, reader.partition
        if reset == "earliest":
            reader.seek(partition.start_offset)
        elif isinstance(reset, datetime.timedelta):
            now = datetime.datetime.now(datetime.timezone.utc)
            self.seek_to_time(reader, as_time_ms("reset", now - reset))
        else:
            reader.seek(reader.log.readable_end())

    def seek_to_time(self, reader: PartitionReader, timestamp_ms: int) -> None:
        """Move to the first record since a time, or to the end."""
        offset = reader.partition.offset_for_time(timestamp_ms)
        reader.seek(reader.log.readable_end() if offset is None else offset)


def commit_of(
    group: str,
    key: TopicPartition,
    commit: OffsetAndMetadata,
    topic_id: str,
    now_ms: int,
    proof: int | None = None,
) -> OffsetCommit:
    """The record of a committed offset."""
    return OffsetCommit(
        group,
        key.topic,
        key.partition,
        commit.offset,
        commit.leader_epoch,
        commit.metadata,
        now_ms,
        None,
        topic_id or None,
        proof,
    )


def offsets_for_times(
    positions: Positions, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record since a time, of each partition; None: no such record."""
    offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for key, timestamp_ms in times.items():
        partition = positions.partition(key)
        offset = partition.offset_for_time(timestamp_ms)
        offsets[key] = None
        if offset is not None:
            for record in partition.read(offset, limit=1):
                offsets[key] = OffsetAndTimestamp(record.offset, record.timestamp_ms)
    return offsets
