"""The batches of a group's file: its records, encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from logstore import _native as native
from logstore.broker.kafka_records import (
    OffsetCommit,
    format_group_key,
    format_offset_key,
    format_offset_value,
    offset_value_places,
)
from logstore.config import TopicConfig
from logstore.group.file.state import HEADER, GroupState, format_state
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.record.encoder import Encoder, pack_rows

__all__ = ["BATCH_BYTES_MAX", "RECORD_BYTES", "Batches", "Item"]

# A batch is at most so long: more than any record of a group needs.
BATCH_BYTES_MAX: Final = 32 << 20
# Most bytes of a record besides its key, value and header.
RECORD_BYTES: Final = 24

# Positions in a batch of one record without headers (docs/format.md), and how many
# bytes follow the value.
_OFFSET_END: Final = 8
_CRC_POS: Final = 17
_CRC_END: Final = 21
_TIMES_POS: Final = 27
_TIMES_END: Final = 43
_AFTER_VALUE: Final = 1
# Most keys that are kept, and most bytes of a batch that is kept.
_KEYS_MAX: Final = 4096
_KEPT_BYTES_MAX: Final = 1024

# Key, value (None: the key is removed), and the value of the header (None: none).
Item: TypeAlias = "tuple[bytes, bytes | None, bytes | None]"


class _Plain(NamedTuple):
    """The last commit of a partition: its batch, the key of the record, and where the
    value begins."""

    batch: native.CommitBatch
    key: bytes
    value_pos: int


class Batches:
    """Encodes the records of one group, for one thread at a time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._encoder = Encoder(
            TopicConfig(max_message_bytes=BATCH_BYTES_MAX, message_format=2)
        )
        self._keys: dict[tuple[str, str, int], bytes] = {}
        # By key, the batch of its last commit and the length of the value there.
        self._last: dict[bytes, tuple[bytearray, int]] = {}
        # The same of commits without metadata, by partition, id of the topic, and
        # whether there is a proof.
        self._plain: dict[tuple[TopicPartition, str, bool], _Plain] = {}

    def items(
        self,
        group: str,
        commits: Iterable[OffsetCommit] = (),
        removed: Iterable[TopicPartition] = (),
        state: GroupState | None = None,
    ) -> list[Item]:
        """The records that say so much: see `GroupFile.append`.

        Raises:
            ConfigError: a text is too long for a record.
        """
        items: list[Item] = []
        if state is not None:
            items.append((format_group_key(group), *format_state(group, state)))
        for commit in commits:
            key = self._key(group, commit.topic, commit.partition)
            items.append((key, format_offset_value(commit), None))
        for partition in removed:
            items.append((self._key(group, *partition), None, None))
        return items

    def _key(self, group: str, topic: str, partition: int) -> bytes:
        """The key of the committed offset of a partition."""
        key = self._keys.get((group, topic, partition))
        if key is None:
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            key = format_offset_key(group, topic, partition)
            self._keys[group, topic, partition] = key
        return key

    def batch(self, items: Sequence[Item], offset: int) -> bytes:
        """One batch of some records; the first gets `offset`."""
        now_ms = self._files.now_ms()
        if len(items) == 1 and items[0][2] is None:
            key, value, _ = items[0]
            if value is not None:
                return self._of_one(key, value, offset, now_ms)
        has_headers = any(header is not None for _, _, header in items)
        headers = [
            () if header is None else ((HEADER, header),) for _, _, header in items
        ]
        rows = pack_rows(
            [value for _, value, _ in items],
            [key for key, _, _ in items],
            None,
            headers if has_headers else None,
            now_ms=now_ms,
            magic=2,
        )
        self._encoder.measure(rows)
        return self._encoded(rows, offset, now_ms)

    def of_offset(
        self,
        group: str,
        key: TopicPartition,
        offset: int,
        topic_id: str,
        proof: int | None,
        base: int,
    ) -> tuple[bytes, Item]:
        """The batch of the commit of an offset without metadata, made now, and its
        record: the same as `items` and `batch` make of it.

        Args:
            base: the offset of the record.

        Raises: as `items`.
        """
        name, now_ms = (key, topic_id, proof is None), self._files.now_ms()
        plain = self._plain.get(name)
        if plain is None:
            plain = self._plain_of(group, key, topic_id, proof)
            if len(self._plain) >= _KEYS_MAX:
                self._plain.clear()
            self._plain[name] = plain
        batch, record_key, value_pos = plain
        data = batch.renumbered(base, now_ms, offset, proof or 0)
        return data, (record_key, data[value_pos:-_AFTER_VALUE], None)

    def _plain_of(
        self, group: str, key: TopicPartition, topic_id: str, proof: int | None
    ) -> _Plain:
        commit = OffsetCommit(
            group, *key, 0, commit_ms=0, topic_id=topic_id or None, proof=proof
        )
        ((record_key, value, _),) = self.items(group, [commit])
        assert value is not None
        rows = self._encoder.rows_of_one(value, record_key, 0)
        data = self._encoded(rows, 0, 0)
        begin = len(data) - _AFTER_VALUE - len(value)
        offset_at, time_at, proof_at = offset_value_places(commit)
        batch = native.CommitBatch(
            data,
            begin + offset_at,
            begin + time_at,
            0 if proof_at is None else begin + proof_at,
        )
        return _Plain(batch, record_key, begin)

    def _encoded(self, rows: native.EncodedColumns, offset: int, now_ms: int) -> bytes:
        parts = [
            bytes(native.buffer_of(data, size))
            for data, size in self._encoder.encode(rows, offset, now_ms, 0)
        ]
        return b"".join(parts)

    def _of_one(self, key: bytes, value: bytes, offset: int, now_ms: int) -> bytes:
        """The batch of the commit of one partition, as nearly always. Most have another
        one before them, and differ from it in numbers only."""
        last = self._last.get(key)
        if last is None or last[1] != len(value):
            rows = self._encoder.rows_of_one(value, key, now_ms)
            data = self._encoded(rows, offset, now_ms)
            if len(self._last) >= _KEYS_MAX:
                self._last.clear()
            if len(data) <= _KEPT_BYTES_MAX:
                self._last[key] = bytearray(data), len(value)
            return data
        before = last[0]
        time = now_ms.to_bytes(8, "big", signed=True)
        before[:_OFFSET_END] = offset.to_bytes(8, "big")
        before[_TIMES_POS:_TIMES_END] = time + time
        before[-_AFTER_VALUE - len(value) : -_AFTER_VALUE] = value
        rest = bytes(before[_CRC_END:])
        before[_CRC_POS:_CRC_END] = native.crc32c(rest).to_bytes(4, "big")
        return bytes(before)
