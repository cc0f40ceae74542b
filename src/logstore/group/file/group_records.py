"""The records of a consumer group: its committed offsets, and its members.

They are Kafka's records about groups. Of the records with one key the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
from logstore.group.file.batches import Item
from logstore.group.file.damage import damaged, written_later
from logstore.group.file.state import HEADER, GroupState, LaterVersionError, parse_state
from logstore.io.layout import TopicPartition
from logstore.record.record import Record

__all__ = ["GroupRecords"]

_OFFSET_TYPES: Final = (b"\0\0", b"\0\1")
_GROUP_TYPE: Final = b"\0\2"


class GroupRecords:
    """The records that count among all that were read or appended; for one thread at a
    time.

    Invariant: of the records with one key, the last one counts; whether it was read or
    appended makes no difference.

    Attributes:
        group: the id, as the records have it.
        state: the members and the table.

    Args:
        path: of the file, for errors.
        group: "": the first record says which group it is.
    """

    def __init__(self, path: str, group: str) -> None:
        self.group = group
        self.state = GroupState()
        self._path = path
        self.forget()

    def forget(self) -> None:
        """Begin at the first record of another file. The group and its state remain
        until a record says otherwise."""
        self._offsets: dict[bytes, bytes] = {}
        self._group_record: tuple[bytes, bytes | None] | None = None
        # The newest one, if it was not parsed yet: those before it do not count.
        self._unparsed: tuple[bytes, bytes | None] | None = None
        self._others = 0  # how many records of other groups it has
        self._has_own = self._has_strange = False  # records of this group, of none

    # ------------------------------------------------------------ reading

    def take_in(self, records: Iterable[Record], position: int) -> None:
        """Take in the next records.

        Args:
            position: of their first batch in the file, for errors.

        Raises:
            CorruptCheckpointError: a record is malformed.
            UnsupportedError: a later version has written it.
        """
        for record in records:
            key = record.key or b""
            if key[:2] in _OFFSET_TYPES:
                if key[2:] not in self._offsets and not self._is_own(key, position):
                    self._others += 1
                elif record.value is None:
                    self._offsets.pop(key[2:], None)
                else:
                    self._offsets[key[2:]] = record.value
            elif key[:2] != _GROUP_TYPE:
                self._has_strange = True
            elif not self._is_own(key, position):
                self._others += 1
            elif record.value is None:
                self._parse_state(position)
                self.state = GroupState(self.state.generation, way=self.state.way)
                self._group_record = None
            else:
                self._unparsed = record.value, dict(record.headers).get(HEADER)

    def _parse_state(self, position: int) -> None:
        if self._unparsed is None:
            return
        (value, header), self._unparsed = self._unparsed, None
        try:
            self.state = parse_state(self.group, value, header)
        except LaterVersionError as error:
            raise written_later(self._path, position, str(error)) from error
        except ValueError as error:
            raise self._malformed(position, error) from error
        self._group_record = value, header

    def _is_own(self, key: bytes, position: int) -> bool:
        """Whether a key is of this group. The first one says which group it is, for a
        caller that does not know."""
        try:
            parsed_key = parse_key(key)
        except MessageError as error:
            raise self._malformed(position, error) from error
        assert isinstance(parsed_key, OffsetKey | GroupKey)
        self.group = self.group or parsed_key.group
        is_own = parsed_key.group == self.group
        self._has_own |= is_own
        return is_own

    def _malformed(self, position: int, error: ValueError) -> Exception:
        return damaged(self._path, position, f"a record is malformed: {error}")

    def check(self, position: int) -> None:
        """Parse the newest state, and check that the records are the group's.

        Args:
            position: the end of the read records, for errors.

        Raises:
            CorruptCheckpointError: they are another group's, or the state is malformed.
            UnsupportedError: a later version has written the state.
        """
        self._parse_state(position)
        if self._others and not self._offsets and self._group_record is None:
            raise damaged(self._path, 0, "its records are those of other groups")
        if self._has_strange and not self._has_own:
            raise damaged(self._path, 0, "it has no record of a group")

    # ------------------------------------------------------------ what counts

    def committed(self, partition: TopicPartition) -> OffsetCommit | None:
        """The committed offset of a partition.

        Raises:
            CorruptCheckpointError: that record is malformed.
        """
        key = format_offset_key(self.group, *partition)
        value = self._offsets.get(key[2:])
        if value is None:
            return None
        return self._commit(OffsetKey(self.group, *partition), value)

    def commits(self) -> list[OffsetCommit]:
        """All that is committed, by topic and partition."""
        commits = []
        for key, value in sorted(self._offsets.items()):
            parsed = parse_key(_OFFSET_TYPES[1] + key)
            assert isinstance(parsed, OffsetKey)
            commits.append(self._commit(parsed, value))
        return sorted(commits, key=lambda commit: (commit.topic, commit.partition))

    def _commit(self, key: OffsetKey, value: bytes) -> OffsetCommit:
        try:
            return parse_offset_value(key, value)
        except MessageError as error:
            if error.is_newer:
                raise written_later(self._path, None, str(error)) from error
            raise self._malformed(-1, error) from error

    def items(self) -> list[Item]:
        """The records that count, the one of the state first."""
        items: list[Item] = []
        if self._group_record is not None:
            items.append((format_group_key(self.group), *self._group_record))
        items += [
            (_OFFSET_TYPES[1] + key, value, None)
            for key, value in self._offsets.items()
        ]
        return items

    def note(self, items: Sequence[Item], state: GroupState | None) -> None:
        """Take in records that were appended: offsets, and the state of the first
        one."""
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
