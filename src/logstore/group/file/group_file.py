"""What the file of a consumer group says: its committed offsets, and its members.

It is a log (`logstore.group.file.group_log`) of batches of magic 2 whose records are
Kafka's about groups; of the records with one key the last counts. When those that count
are a small part of it, it is written anew with them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from logstore._native.locks import logger
from logstore.broker.kafka_records import (
    GroupKey,
    MessageError,
    OffsetCommit,
    OffsetKey,
    format_group_key,
    format_offset_key,
    parse_key,
    parse_offset_value,
)
from logstore.errors import StorageError
from logstore.group.file.batches import RECORD_BYTES, Batches, Item
from logstore.group.file.group_log import GroupLog
from logstore.group.file.slots import Slots
from logstore.group.file.state import HEADER, GroupState, LaterVersionError, parse_state
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.layout import OFFSET_MAX, TopicPartition
from logstore.record.record import Record

__all__ = ["GroupFile", "record_id"]

# The file is compacted when it has so many bytes, and so many times those of the
# records that count.
_REWRITE_BYTES: Final = 1 << 20
_REWRITE_RATIO: Final = 4

_ID_BYTES_MAX: Final = (1 << 15) - 1
_HEADER_BYTES: Final = 61
_OFFSET_TYPES: Final = (b"\0\0", b"\0\1")
_GROUP_TYPE: Final = b"\0\2"


def record_id(group: str) -> str:
    """The id of a group as its records have it: it is shortened if it is too long for a
    text of Kafka's."""
    if len(group.encode()) <= _ID_BYTES_MAX:
        return group
    return layout.group_file(group).removeprefix(layout.GROUP_PREFIX)


class GroupFile(GroupLog):
    """The file of one group, for one thread at a time.

    Attributes:
        group: the id, as its records have it.
        state: the members and the table, as far as the file was read.

    Args:
        group: "": it is not known, and read from the records.
        write: open it so that it can be appended to.
    """

    def __init__(
        self, root: Directory, name: str, group: str = "", *, write: bool = False
    ) -> None:
        self.group = group
        self.state = GroupState()
        self._batches = Batches(root.files)
        # The size at which to see whether to compact the file.
        self._rewrite_at = _REWRITE_BYTES
        super().__init__(root, name, write=write)

    # ------------------------------------------------------------ reading

    def _forget_records(self) -> None:
        self._offsets: dict[bytes, bytes] = {}
        self._group_record: tuple[bytes, bytes | None] | None = None
        # The newest one, if it was not parsed yet: those before it do not count.
        self._unparsed: tuple[bytes, bytes | None] | None = None
        self._others = 0  # how many records of other groups it has
        self._has_own = self._has_strange = False  # records of this group, of none

    def _take_in_record(self, record: Record) -> None:
        key = record.key or b""
        if key[:2] in _OFFSET_TYPES:
            if key[2:] not in self._offsets and not self._is_own(key):
                self._others += 1
            elif record.value is None:
                self._offsets.pop(key[2:], None)
            else:
                self._offsets[key[2:]] = record.value
        elif key[:2] != _GROUP_TYPE:
            self._has_strange = True
        else:
            if not self._is_own(key):
                self._others += 1
                return
            if record.value is None:
                self._parse_state()
                self.state = GroupState(self.state.generation, way=self.state.way)
                self._group_record = None
            else:
                self._unparsed = record.value, dict(record.headers).get(HEADER)

    def _parse_state(self) -> None:
        if self._unparsed is None:
            return
        (value, header), self._unparsed = self._unparsed, None
        try:
            self.state = parse_state(self.group, value, header)
        except LaterVersionError as error:
            raise self._later(str(error)) from error
        except ValueError as error:
            raise self._damaged(self._end, f"a record is malformed: {error}") from error
        self._group_record = value, header

    def _is_own(self, key: bytes) -> bool:
        """Whether a key is of this group. The first one says which group it is, for a
        caller that does not know."""
        try:
            found = parse_key(key)
        except MessageError as error:
            raise self._damaged(self._end, f"a record is malformed: {error}") from error
        assert isinstance(found, OffsetKey | GroupKey)
        self.group = self.group or found.group
        is_own = found.group == self.group
        self._has_own |= is_own
        return is_own

    def _check_records(self) -> None:
        self._parse_state()
        if self._others and not self._offsets and self._group_record is None:
            raise self._damaged(0, "its records are those of other groups")
        if self._has_strange and not self._has_own:
            raise self._damaged(0, "it has no record of a group")

    # ------------------------------------------------------------ what it has

    def committed(self, one: TopicPartition) -> OffsetCommit | None:
        """The committed offset of a partition, as far as the file was read.

        Raises:
            CorruptCheckpointError: that record is malformed.
        """
        key = format_offset_key(self.group, *one)
        value = self._offsets.get(key[2:])
        if value is None:
            return None
        return self._commit(OffsetKey(self.group, *one), value)

    def commits(self) -> list[OffsetCommit]:
        """All that is committed, by topic and partition."""
        found = []
        for key, value in sorted(self._offsets.items()):
            parsed = parse_key(_OFFSET_TYPES[1] + key)
            assert isinstance(parsed, OffsetKey)
            found.append(self._commit(parsed, value))
        return sorted(found, key=lambda commit: (commit.topic, commit.partition))

    def _commit(self, key: OffsetKey, value: bytes) -> OffsetCommit:
        try:
            return parse_offset_value(key, value)
        except MessageError as error:
            if error.is_newer:
                raise self._later(str(error)) from error
            raise self._damaged(-1, f"a record is malformed: {error}") from error

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
            state: the group from now on; None: as it is.

        Raises:
            ConfigError: a text is too long for a record.
            DiskFullError, StorageError: nothing was appended.
        """
        items = self._batches.items(self.group, commits, removed, state)
        data = self._batches.batch(items, self._base_for(items))
        self._append(slots, data, len(items), lambda: self._note(items, state))
        if self._end >= self._rewrite_at or self._is_doubtful:
            self._rewrite_if_worth(slots)

    def _base_for(self, items: Sequence[Item]) -> int:
        """The offset of the first of these records, behind those that are there."""
        base = self._last_offset + 1
        if base > OFFSET_MAX - len(items):
            raise StorageError(
                f"{self.path} has records up to offset {self._last_offset}, and no "
                f"room for {len(items)} more: that offset cannot be right. Nothing was "
                f"appended",
                path=self.path,
                action="append to",
            )
        return base

    def _note(self, items: Sequence[Item], state: GroupState | None = None) -> None:
        """Note records that were appended: offsets, and the state of the first one."""
        self._has_own = True
        for key, value, _ in items:
            if value is None:
                self._offsets.pop(key[2:], None)
            elif key[:2] != _GROUP_TYPE:
                self._offsets[key[2:]] = value
        if state is not None:
            _, value, header = items[0]
            assert value is not None
            self.state, self._group_record = state, (value, header)

    def append_at_once(
        self, slots: Slots, commits: Sequence[OffsetCommit], *, durable: bool
    ) -> bool:
        """Take the mutex, append offsets, and sync them, all in one call, if nothing is
        in the way: the file is as it was read, and nobody has the mutex. False: nothing
        was done; do it step by step.

        Args:
            durable: as `sync` does it.

        Raises: as `append`, and as `sync` if `durable`.
        """
        items = self._batches.items(self.group, commits)
        data = self._batches.batch(items, self._base_for(items))
        if self._end + len(data) >= self._rewrite_at:
            return False
        made = self._append_at_once(
            slots, data, len(items), lambda: self._note(items), durable=durable
        )
        if made is None:
            return False
        self._finish(slots, made, durable=durable)
        return made.is_appended

    # ------------------------------------------------------------ compacting it

    def _live_items(self) -> list[Item]:
        items: list[Item] = []
        if self._group_record is not None:
            value, header = self._group_record
            items.append((format_group_key(self.group), value, header))
        items += [
            (_OFFSET_TYPES[1] + key, value, None)
            for key, value in self._offsets.items()
        ]
        return items

    def _rewrite_if_worth(self, slots: Slots) -> None:
        items = self._live_items()
        live = _HEADER_BYTES + sum(
            RECORD_BYTES + len(key) + len(value or b"") + len(header or b"")
            for key, value, header in items
        )
        self._rewrite_at = max(_REWRITE_BYTES, _REWRITE_RATIO * live)
        if self._end < self._rewrite_at and not self._is_doubtful:
            return
        # The append counts already: a failure here is none of the caller's.
        try:
            if not slots.point.take_turn():
                return
            data = self._batches.batch(items, self._base_for(items))
            self._rewrite(slots, data, len(items))
        except (OSError, StorageError) as error:
            logger.warning("cannot compact %s: %s", self.path, error)
            self._rewrite_at = self._end + _REWRITE_BYTES
        finally:
            slots.point.end_turn()
