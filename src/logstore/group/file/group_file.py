"""The file of a consumer group: what is appended to it, and when it is compacted.

It is a log (`logstore.group.file.group_log`) of batches of magic 2, whose records say
what counts (`logstore.group.file.group_records`). When the records that count are a
small part of it, it is rewritten with them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import StorageError
from logstore.group.file.batches import RECORD_BYTES, Batches, Item
from logstore.group.file.group_log import GroupLog
from logstore.group.file.group_records import GroupRecords
from logstore.group.file.slots import Slots
from logstore.group.file.state import GroupState
from logstore.io import layout
from logstore.io.checkpoint.append_file import Point
from logstore.io.directory import Directory
from logstore.io.layout import OFFSET_MAX, TopicPartition

__all__ = ["GroupFile", "record_id"]

# The file is compacted when it has this many bytes, and this many times the bytes of
# the records that count.
_REWRITE_BYTES: Final = 1 << 20
_REWRITE_RATIO: Final = 4

_ID_BYTES_MAX: Final = (1 << 15) - 1
_HEADER_BYTES: Final = 61


def record_id(group: str) -> str:
    """The id of a group as its records have it: it is shortened if it is too long for a
    text of Kafka's."""
    if len(group.encode()) <= _ID_BYTES_MAX:
        return group
    return layout.group_file(group).removeprefix(layout.GROUP_PREFIX)


class GroupFile:
    """The file of one group, for one thread at a time.

    Invariant: its records are as the log has them up to its end; a batch that is
    appended begins with the next offset.

    Attributes:
        name, path: of the file.

    Args:
        group: the id, as the records have it; "": the records say it.
        write: open the file so that it can be appended to.
    """

    def __init__(
        self, root: Directory, name: str, group: str = "", *, write: bool = False
    ) -> None:
        self.name = name
        self.path = root.path_of(name)
        self._records = GroupRecords(self.path, group)
        self._log = GroupLog(root, name, self._records, write=write)
        self._batches = Batches(root.files)
        # The size at which to see whether to compact the file.
        self._rewrite_at = _REWRITE_BYTES

    def close(self) -> None:
        """Close it."""
        self._log.close()

    # ------------------------------------------------------------ reading

    def refresh(self) -> bool:
        """Read what was appended since: see `GroupLog.refresh`."""
        return self._log.refresh()

    def refresh_held(self, slots: Slots) -> None:
        """Read it, with the mutex, before an append: see `GroupLog.refresh_held`."""
        self._log.refresh_held(slots.point)

    def rest_bytes(self) -> int:
        """The number of bytes that are no whole batch: see `GroupLog.rest_bytes`."""
        return self._log.rest_bytes()

    @property
    def group(self) -> str:
        """The id of the group, as its records have it; "": unknown."""
        return self._records.group

    @property
    def state(self) -> GroupState:
        """The members and the table, in the part of the file that was read."""
        return self._records.state

    def committed(self, partition: TopicPartition) -> OffsetCommit | None:
        """The committed offset of a partition, in the part of the file that was read.

        Raises:
            CorruptCheckpointError: that record is malformed.
        """
        return self._records.committed(partition)

    def commits(self) -> list[OffsetCommit]:
        """All that is committed, by topic and partition."""
        return self._records.commits()

    # ------------------------------------------------------------ appending

    def append(
        self,
        slots: Slots,
        commits: Sequence[OffsetCommit] = (),
        removed: Iterable[TopicPartition] = (),
        state: GroupState | None = None,
    ) -> None:
        """Append one batch, with the mutex, after `refresh_held`. It is with the
        operating system then, and durable after `sync`.

        Args:
            commits: offsets.
            removed: partitions without a committed offset from now on.
            state: the group from now on; None: it does not change.

        Raises:
            ConfigError: a text is too long for a record.
            DiskFullError, StorageError: nothing was appended.
        """
        log, items = self._log, self._batches.items(self.group, commits, removed, state)
        log.append(slots, self._batch(items), items, state)
        if log.end_pos >= self._rewrite_at or log.is_doubtful:
            self._rewrite_if_worth(slots)

    def append_at_once(
        self, slots: Slots, commits: Sequence[OffsetCommit], *, durable: bool
    ) -> bool:
        """Take the mutex, append offsets, and sync them, all in one call, if nothing is
        in the way: the file is unchanged, and no member has the mutex. False: nothing
        was done; do it step by step.

        Args:
            durable: as `sync` does it.

        Raises: as `append`, and as `sync` if `durable`.
        """
        items = self._batches.items(self.group, commits)
        data = self._batch(items)
        if self._log.end_pos + len(data) >= self._rewrite_at:
            return False
        return self._log.append_at_once(slots, data, items, durable=durable)

    def commit_at_once(
        self,
        slots: Slots,
        key: TopicPartition,
        offset: int,
        topic_id: str,
        proof: int | None,
        *,
        durable: bool,
    ) -> bool:
        """Append as `append_at_once` one offset without metadata: the same bytes, made
        with less work."""
        log = self._log
        base = log.last_offset + 1
        if base >= OFFSET_MAX:
            return False
        data, item = self._batches.of_offset(
            self._records.group, key, offset, topic_id, proof, base
        )
        if log.end_pos + len(data) >= self._rewrite_at:
            return False
        return log.append_at_once(slots, data, (item,), durable=durable)

    def _batch(self, items: Sequence[Item]) -> bytes:
        """The batch of some records, after the present records."""
        base = self._log.last_offset + 1
        if base > OFFSET_MAX - len(items):
            raise StorageError(
                f"{self.path} has records up to offset {base - 1}, and no "
                f"room for {len(items)} more: that offset cannot be right. Nothing was "
                f"appended",
                path=self.path,
                action="append to",
            )
        return self._batches.batch(items, base)

    @property
    def end(self) -> Point:
        """The end of the last read or append, for `sync`."""
        return self._log.end

    def sync(self, slots: Slots, upto: Point) -> None:
        """Make durable what was appended up to an `end`: see `GroupLog.sync`."""
        self._log.sync(slots, upto)

    # ------------------------------------------------------------ compacting it

    def _rewrite_if_worth(self, slots: Slots) -> None:
        log, items = self._log, self._records.items()
        live = _HEADER_BYTES + sum(
            RECORD_BYTES + len(key) + len(value or b"") + len(header or b"")
            for key, value, header in items
        )
        self._rewrite_at = max(_REWRITE_BYTES, _REWRITE_RATIO * live)
        if log.end_pos < self._rewrite_at and not log.is_doubtful:
            return
        # The append counts already: a failure here does not concern the caller.
        try:
            if not slots.point.take_turn():
                return
            log.rewrite(slots.point, self._batch(items), len(items))
        except (OSError, StorageError) as error:
            logger.warning("cannot compact %s: %s", self.path, error)
            self._rewrite_at = log.end_pos + _REWRITE_BYTES
        finally:
            slots.point.end_turn()
