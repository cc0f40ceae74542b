"""Kafka's messages as the values that its own converters to JSON give, read by tables
of their fields. Damage is a `MessageError` with the words that Kafka's
classes have for it.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Any, Final

from logstore.cli.kafka.java import decoded

__all__ = ["Array", "Field", "Message", "MessageError", "Reader", "Struct"]

_INTEGERS: Final = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_STRING_MAX: Final = 0x7FFF


class MessageError(ValueError):
    """Bytes do not follow the format of their message.

    Attributes:
        java: the words that Kafka's classes have for it.
    """

    def __init__(self, java: str, reason: str = "") -> None:
        super().__init__(reason or java)
        self.java = java


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of one type."""

    item: str | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        name: in JSON.
        type: ``int8`` to ``int64``, ``uint16``, ``uuid``, ``string``, ``bytes``, an
            array or a struct.
        since, until: the versions that have it; `until` inclusive.
        is_nullable: it may be null.
        tag: of a tagged field; -1: it is none.
        default: of a tagged field, which JSON leaves out.
        release: the first release that knows it; "": all do.
    """

    name: str
    type: str | Array | Struct
    since: int = 0
    until: int = 1 << 15
    is_nullable: bool = False
    tag: int = -1
    default: Any = None
    release: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields in the order of JSON; those without a tag are so in the bytes, too."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        flexible: the first version with compact lengths and tags.
        newest: the last version that is known.
    """

    name: str
    fields: tuple[Field, ...]
    flexible: int = 1 << 15
    newest: int = 0

    def read(self, reader: Reader, version: int, release: str) -> dict[str, Any]:
        """Its values by the names of the fields.

        Raises:
            MessageError: the bytes do not follow it.
        """
        reader.is_flexible = not self.flexible or version >= self.flexible
        return _Reading(reader, version, self.newest, release).struct(self.fields)


class Reader:
    """Takes values from bytes, one after the other."""

    __slots__ = ("_data", "_pos", "is_flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0
        self.is_flexible = False

    @property
    def left(self) -> int:
        return len(self._data) - self._pos

    def _number(self, size: int, *, signed: bool = True) -> int:
        if size > self.left:
            # A BufferUnderflowException has no words.
            raise MessageError("null", "it ends in the middle of a field")
        self._pos += size
        data = self._data[self._pos - size : self._pos]
        return int.from_bytes(data, "big", signed=signed)

    def number(self, kind: str) -> int:
        if kind == "uint16":
            return self._number(2, signed=False)
        return self._number(_INTEGERS[kind])

    def varint(self) -> int:
        """32 bits, as Java has them: signed."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self._number(1, signed=False)
            value |= (byte if shift == 28 else byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise MessageError(
                "Varint is too long, the most significant bit in the 5th byte is set, "
                f"converted value: {value & 0xFFFFFFFF:x}"
            )
        value &= 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value

    def length(self, kind: str) -> int:
        """Of text, bytes or an array; negative: null."""
        return self.varint() - 1 if self.is_flexible else self.number(kind)

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise MessageError(
                f"Error reading byte array of {size} byte(s): only {self.left} "
                f"byte(s) available"
            )
        if size < 0:
            raise MessageError(str(size))
        self._pos += size
        return self._data[self._pos - size : self._pos]


class _Reading:
    """The reading of one message."""

    __slots__ = ("_newest", "_reader", "_release", "_version")

    def __init__(self, reader: Reader, version: int, newest: int, release: str) -> None:
        self._reader = reader
        self._version = version
        self._newest = newest
        self._release = release

    def _is_there(self, field: Field) -> bool:
        if field.release > self._release:
            return False
        # As Kafka's classes ask: any version has a field that the first one has.
        return not field.since or field.since <= self._version <= field.until

    def struct(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        reader = self._reader
        known = [field for field in fields if self._is_there(field)]
        values = {f.name: self._value(f) for f in known if f.tag < 0}
        if reader.is_flexible:
            by_tag = {field.tag: field for field in known if field.tag >= 0}
            for _ in range(reader.varint()):
                tag, size = reader.varint(), reader.varint()
                if tag in by_tag:
                    values[by_tag[tag].name] = self._value(by_tag[tag])
                else:
                    reader.take(size)
        return {
            field.name: values[field.name]
            for field in known
            if field.tag < 0 or values.get(field.name, field.default) != field.default
        }

    def _value(self, field: Field) -> Any:
        reader, kind = self._reader, field.type
        if isinstance(kind, Array):
            return self._array(field, kind)
        if isinstance(kind, Struct):
            return self._inner(field, kind)
        if kind == "string":
            length = reader.length("int16")
            if length < 0:
                return _null(field)
            if length > _STRING_MAX:
                raise MessageError(
                    f"string field {field.name} had invalid length {length}"
                )
            return decoded(reader.take(length))
        if kind == "bytes":
            length = reader.length("int32")
            if length < 0:
                return _null(field)
            return reader.take(length)
        if kind == "uuid":
            data = struct.pack(">qq", reader.number("int64"), reader.number("int64"))
            return base64.urlsafe_b64encode(data).decode().rstrip("=")
        return reader.number(kind)

    def _array(self, field: Field, kind: Array) -> list[Any] | None:
        reader = self._reader
        count = reader.length("int32")
        if count < 0:
            _null(field)
            return None
        if count > reader.left:
            raise MessageError(
                f"Tried to allocate a collection of size {count}, but there are only "
                f"{reader.left} bytes remaining."
            )
        item = Field(f"{field.name} element", kind.item)
        return [self._value(item) for _ in range(count)]

    def _inner(self, field: Field, kind: Struct) -> dict[str, Any] | None:
        reader = self._reader
        if field.is_nullable:
            is_there = reader.number("int8") >= 0 if field.tag < 0 else reader.varint()
            if not is_there:
                return None
        if self._version > self._newest:
            raise MessageError(f"Can't read version {self._version} of {kind.name}")
        return self.struct(kind.fields)


def _null(field: Field) -> Any:
    """Null, which not every field may be."""
    if field.is_nullable:
        return None
    raise MessageError(f"non-nullable field {field.name} was serialized as null")
