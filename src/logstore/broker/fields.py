"""The fields of Kafka's messages: one after the other from bytes, and into bytes.

The bytes may be anything: each length is compared with the bytes that are there before
anything is made of it, and `GroupRecordError` names the field that does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from logstore.errors import ConfigError

__all__ = ["GroupRecordError", "Reader", "Writer", "versioned"]

_STRING_BYTES_MAX: Final = (1 << 15) - 1

_Item = TypeVar("_Item")


class GroupRecordError(ValueError):
    """The bytes of a key or of a value do not follow its format.

    Attributes:
        field: what is wrong, as ``OffsetCommitValue.metadata``.
        position: byte in the key or value where that begins.
        is_newer: the version is newer than the ones known here: no damage.
    """

    def __init__(
        self, reason: str, *, field: str, position: int, is_newer: bool = False
    ) -> None:
        super().__init__(f"{field} at byte {position}: {reason}")
        self.field = field
        self.position = position
        self.is_newer = is_newer


class Reader:
    """Takes fields from bytes, one after the other. `flexible`: compact lengths."""

    __slots__ = ("_name", "data", "flexible", "pos")

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.pos = 0
        self.flexible = False
        self._name = name

    def error(
        self, field: str, reason: str, pos: int | None = None, *, is_newer: bool = False
    ) -> GroupRecordError:
        return GroupRecordError(
            reason,
            field=f"{self._name}.{field}",
            position=self.pos if pos is None else pos,
            is_newer=is_newer,
        )

    def _take(self, field: str, size: int) -> bytes:
        left = len(self.data) - self.pos
        if size > left:
            raise self.error(field, f"{size} bytes are stated, {left} are left")
        begin = self.pos
        self.pos += size
        return self.data[begin : self.pos]

    def _integer(self, field: str, size: int) -> int:
        return int.from_bytes(self._take(field, size), "big", signed=True)

    def int8(self, field: str) -> int:
        return self._integer(field, 1)

    def int16(self, field: str) -> int:
        return self._integer(field, 2)

    def int32(self, field: str) -> int:
        return self._integer(field, 4)

    def int64(self, field: str) -> int:
        return self._integer(field, 8)

    def varint(self, field: str) -> int:
        """Unsigned, below 2**32."""
        begin, value = self.pos, 0
        for shift in range(0, 35, 7):
            byte = self._take(field, 1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                return value
        raise self.error(field, "no length: it has more than 32 bits", begin)

    def _length(self, field: str, fixed: Callable[[str], int]) -> int:
        """Of a text, bytes or array; -1 for null."""
        begin = self.pos
        length = self.varint(field) - 1 if self.flexible else fixed(field)
        if length < -1:
            raise self.error(field, f"its length is {length}", begin)
        return length

    def nullable_string(self, field: str) -> str | None:
        begin, length = self.pos, self._length(field, self.int16)
        if length < 0:
            return None
        try:
            return self._take(field, length).decode()
        except UnicodeDecodeError as error:
            raise self.error(field, f"no UTF-8: {error}", begin) from None

    def string(self, field: str) -> str:
        begin, text = self.pos, self.nullable_string(field)
        if text is None:
            raise self.error(field, "it is null, and must not be", begin)
        return text

    def nullable_blob(self, field: str) -> bytes | None:
        length = self._length(field, self.int32)
        return None if length < 0 else self._take(field, length)

    def blob(self, field: str) -> bytes:
        begin, value = self.pos, self.nullable_blob(field)
        if value is None:
            raise self.error(field, "it is null, and must not be", begin)
        return value

    def uuid(self, field: str) -> str:
        return self._take(field, 16).hex()

    def array(
        self, field: str, size_min: int, item: Callable[[], _Item]
    ) -> tuple[_Item, ...]:
        """`size_min`: bytes of the smallest item, which bound what is believed."""
        begin, count = self.pos, self._length(field, self.int32)
        left = len(self.data) - self.pos
        if count < 0:
            raise self.error(field, "it is null, and must not be", begin)
        if count * size_min > left:
            raise self.error(
                field, f"{count} items are stated, {left} bytes are left", begin
            )
        return tuple(item() for _ in range(count))

    def numbers(self, field: str) -> tuple[int, ...]:
        """An array of int32."""
        begin, count = self.pos, self._length(field, self.int32)
        if count < 0:
            raise self.error(field, "it is null, and must not be", begin)
        return struct.unpack(f">{count}i", self._take(field, 4 * count))

    def tags(self, field: str) -> dict[int, bytes]:
        """Tagged fields; {} before they exist. Unknown ones are left to the caller."""
        if not self.flexible:
            return {}
        found: dict[int, bytes] = {}
        last = -1
        for _ in range(self.varint(field)):
            begin, tag = self.pos, self.varint(field)
            if tag <= last:
                raise self.error(field, f"tag {tag} is out of order", begin)
            last = tag
            found[tag] = self._take(field, self.varint(field))
        return found

    def end(self, field: str = "end") -> None:
        left = len(self.data) - self.pos
        if left:
            raise self.error(field, f"{left} bytes are left over")


class Writer:
    """Appends fields to bytes. `flexible`: compact lengths."""

    __slots__ = ("data", "flexible")

    def __init__(self, flexible: bool = False) -> None:
        self.data = bytearray()
        self.flexible = flexible

    def put(self, format: str, *values: int) -> None:
        self.data += struct.pack(f">{format}", *values)

    def varint(self, value: int) -> None:
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def length(self, length: int, fixed: str = "i") -> None:
        if self.flexible:
            self.varint(length + 1)
        else:
            self.put(fixed, length)

    def string(self, field: str, text: str | None) -> None:
        if text is None:
            self.length(-1, "h")
            return
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{field} {text[:80]!r} has a surrogate, which is no character; "
                f"nothing was written",
                name=field,
                value=text,
            ) from None
        if len(data) > _STRING_BYTES_MAX and not self.flexible:
            raise ConfigError(
                f"{field} {text[:40]!r}... has {len(data)} bytes as UTF-8; a record of "
                f"Kafka's takes {_STRING_BYTES_MAX}; nothing was written",
                name=field,
                value=text,
            )
        self.length(len(data), "h")
        self.data += data

    def blob(self, data: bytes | None) -> None:
        self.length(-1 if data is None else len(data))
        self.data += data or b""

    def tags(self, fields: dict[int, bytes] | None = None) -> None:
        if self.flexible:
            self.varint(len(fields or ()))
            for tag, data in sorted((fields or {}).items()):
                self.varint(tag)
                self.varint(len(data))
                self.data += data


def versioned(
    data: bytes, name: str, newest: int, flexible: int = 1 << 15
) -> tuple[Reader, int]:
    """A reader after the version of a value."""
    reader = Reader(data, name)
    version = reader.int16("version")
    if not 0 <= version <= newest:
        raise reader.error(
            "version",
            f"it is {version}; 0 to {newest} are known",
            0,
            is_newer=version > newest,
        )
    reader.flexible = version >= flexible
    return reader, version
