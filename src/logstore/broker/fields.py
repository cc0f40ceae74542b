"""The fields of Kafka's messages: their tables, a reader of bytes by the tables, and a
writer.

The bytes may be anything: each length is compared with the bytes that are there before
anything is made of it, and `MessageError` names the field that does not fit.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from logstore.broker.releases import NEWEST
from logstore.errors import ConfigError

__all__ = [
    "NEVER",
    "NUMBERS",
    "Field",
    "Message",
    "MessageError",
    "Reader",
    "Struct",
    "Writer",
    "uuid_hex",
]

# A version that no message has.
NEVER: Final = 1 << 15
# The types of numbers. uint31 and uint63 are stored as signed numbers; a negative one
# is damage.
NUMBERS: Final = {
    name: struct.Struct(f">{code}")
    for name, code in {
        "int8": "b",
        "int16": "h",
        "int32": "i",
        "int64": "q",
        "uint16": "H",
        "uint31": "i",
        "uint63": "q",
    }.items()
}
_INT8: Final = NUMBERS["int8"]
_INT16: Final = NUMBERS["int16"]
_INT32: Final = NUMBERS["int32"]
_UUID_BYTES: Final = 16
_STRING_BYTES_MAX: Final = (1 << 15) - 1


class MessageError(ValueError):
    """The bytes of a message do not follow its format.

    Attributes:
        field: the wrong field, as ``OffsetCommitValue.metadata``; "": no single one.
        position: first byte of the field in the message.
        is_newer: the version is newer than the known ones; this is not damage.
        java: the words of Kafka's own classes for the same bytes.
    """

    def __init__(
        self,
        reason: str,
        *,
        field: str = "",
        position: int = 0,
        is_newer: bool = False,
        java: str = "",
    ) -> None:
        super().__init__(f"{field} at byte {position}: {reason}" if field else reason)
        self.field = field
        self.position = position
        self.is_newer = is_newer
        self.java = java or reason


# ------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        type: a name of `NUMBERS`, ``uuid``, ``string``, ``bytes``, ``array``, or a
            struct.
        item: the items of an array; None: the field is not an array.
        is_nullable: it may be null.
        since, until: the versions that have it; `until` inclusive.
        tag: of a tagged field; -1: the field is not tagged.
        default: of a tagged field, which Kafka omits if it has this value.
        release: the first release that knows it; "": all do.
    """

    name: str
    type: str | Struct
    item: Field | None = None
    is_nullable: bool = False
    since: int = 0
    until: int = NEVER
    tag: int = -1
    default: Any = None
    release: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """Fields, in the order of JSON, and of the bytes for the ones without a tag."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Message(Struct):
    """A kind of message of Kafka's, as the value of a record.

    Attributes:
        name: the name that Kafka has for it.
        fields: the table of its fields.
        newest: the last known version; the first is 0.
        is_open: later versions only add fields at the end.
        flexible: the first version with compact lengths and tagged fields.
    """

    newest: int = 0
    is_open: bool = False
    flexible: int = NEVER

    def decode(
        self,
        data: bytes,
        version: int | None = None,
        *,
        release: str = NEWEST,
        errors: str = "strict",
    ) -> dict[str, Any]:
        """The values of a message, by the names and in the order of Kafka's JSON. A
        tagged field with its default is left out.

        Args:
            version: the version of bytes that do not begin with one.
            release: leaves out the fields that later releases of Kafka have added.
            errors: how to decode text that is not UTF-8, as for `bytes.decode`. Unless
                it is ``"strict"``, bytes are read as Kafka's own classes read them,
                which accept more: bytes that are left over, tags in any order.

        Raises:
            MessageError: the bytes do not follow the format, or have a newer version.
        """
        return Reader(data, self.name, errors, release).message(self, version)


# ------------------------------------------------------------------ reading

# Reads a field: `_Read(reader, field)`.
_Read: TypeAlias = "Callable[[Any, Field], Any]"


@functools.lru_cache(maxsize=256)
def _uuid_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@functools.lru_cache(maxsize=256)
def uuid_hex(text: str) -> str:
    """The 32 hexadecimal digits of a value of type ``uuid``."""
    return base64.urlsafe_b64decode(f"{text}==").hex()


class Reader:
    """Takes values from bytes, one after the other.

    Attributes:
        pos: where in the bytes the next value begins.
        unknown: the bytes of tagged fields that no table has, by tag.

    Args:
        name: of the message, for errors.
        errors, release: see `Message.decode`.
    """

    __slots__ = (
        "_data",
        "_errors",
        "_is_flexible",
        "_name",
        "_newest",
        "_release",
        "_version",
        "pos",
        "unknown",
    )

    def __init__(
        self,
        data: bytes,
        name: str,
        errors: str = "strict",
        release: str = NEWEST,
    ) -> None:
        self._data = data
        self._name = name
        self._errors = errors
        self._release = release
        self.pos = 0
        self.unknown: dict[int, bytes] = {}

    @property
    def _is_strict(self) -> bool:
        return self._errors == "strict"

    def error(
        self, field: str, reason: str, pos: int | None = None, **more: Any
    ) -> MessageError:
        position = self.pos if pos is None else pos
        return MessageError(
            reason, field=f"{self._name}.{field}", position=position, **more
        )

    def _short(self, field: str, size: int, java: str = "null") -> MessageError:
        # Java's exception for a number that is cut off has no words.
        left = len(self._data) - self.pos
        return self.error(field, f"{size} bytes are stated, {left} are left", java=java)

    def take(self, field: str, size: int) -> bytes:
        begin, end = self.pos, self.pos + size
        if not begin <= end <= len(self._data):
            left = len(self._data) - begin
            java = f"Error reading byte array of {size} byte(s): only {left} byte(s) "
            java = f"{java}available" if size > left else str(size)
            raise self._short(field, size, java)
        self.pos = end
        return self._data[begin:end]

    def number(self, field: str, number: struct.Struct) -> int:
        try:
            value: int = number.unpack_from(self._data, self.pos)[0]
        except struct.error:
            raise self._short(field, number.size) from None
        self.pos += number.size
        return value

    def varint(self, field: str) -> int:
        """Unsigned, below 2**32. Kafka's classes take the low 32 bits, and a sign."""
        data, begin, value = self._data, self.pos, 0
        if begin < len(data) and data[begin] < 0x80:
            self.pos = begin + 1
            return data[begin]
        for shift in range(0, 35, 7):
            if self.pos == len(data):
                raise self._short(field, 1)
            byte = data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        low = value & 0xFFFFFFFF
        if byte >= 0x80 or (self._is_strict and value != low):
            raise self.error(
                field,
                "no length: it has more than 32 bits",
                begin,
                java="Varint is too long, the most significant bit in the 5th byte is "
                f"set, converted value: {low:x}",
            )
        return low if self._is_strict else (low ^ 1 << 31) - (1 << 31)

    def message(self, message: Message, version: int | None = None) -> dict[str, Any]:
        """The values of a message: see `Message.decode`."""
        if version is None:
            version = self._known_version(message)
        self._version, self._newest = version, message.newest
        self._is_flexible = not message.flexible or version >= message.flexible
        values = self._fields(message)
        left = len(self._data) - self.pos
        if left and self._is_strict and not message.is_open:
            raise self.error("end", f"{left} bytes are left over")
        return values

    def _known_version(self, message: Message) -> int:
        begin, newest = self.pos, message.newest
        version = self.number("version", _INT16)
        if 0 <= version <= newest or not self._is_strict:
            return version
        if not message.is_open:
            reason = f"it is {version}; 0 to {newest} are known"
            raise self.error("version", reason, begin, is_newer=version > newest)
        if version < 0:
            raise self.error("version", f"it is {version}", begin)
        return version

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def _plan(
        kind: Struct, version: int, release: str
    ) -> tuple[
        list[tuple[str, _Read, Field]], dict[int, tuple[_Read, Field]], list[str]
    ]:
        """The fields that a version has, each with its reader: the plain ones, and the
        tagged ones by tag. Then the names of all."""
        plain, tagged = [], {}
        for field in kind.fields:
            # As Kafka's classes ask: any version has a field that the first one has.
            is_there = not field.since or field.since <= version <= field.until
            if is_there and field.release <= release:
                name = "struct" if isinstance(field.type, Struct) else field.type
                read = Reader._READS[name]
                if field.tag < 0:
                    plain.append((field.name, read, field))
                else:
                    tagged[field.tag] = read, field
        return plain, tagged, [field.name for field in kind.fields]

    def _fields(self, kind: Struct) -> dict[str, Any]:
        plain, tagged, names = self._plan(kind, self._version, self._release)
        values = {name: read(self, field) for name, read, field in plain}
        if not self._is_flexible:
            return values
        tags = self._tags(tagged)
        if not tags:
            return values
        values |= tags
        return {name: values[name] for name in names if name in values}

    def _tags(self, tagged: dict[int, tuple[_Read, Field]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        last, count, is_strict = -1, self.varint("tags"), self._is_strict
        for _ in range(count):
            begin, tag = self.pos, self.varint("tags")
            if is_strict and tag <= last:
                raise self.error("tags", f"tag {tag} is out of order", begin)
            last, size = tag, self.varint("tags")
            if tag not in tagged:
                self.unknown[tag] = self.take("tags", size)
                continue
            read, field = tagged[tag]
            begin = self.pos
            # Kafka's classes do not look at the size of a tag that they know.
            if is_strict and field.type == "uuid" and size != _UUID_BYTES:
                raise self.error(field.name, f"it has {size} bytes")
            values[field.name] = value = read(self, field)
            if value == field.default:
                del values[field.name]
            if is_strict and self.pos != begin + size:
                raise self.error(field.name, f"it has {size} bytes", begin)
        return values

    # ------------------------------------------------------------- values by type

    def _number(self, field: Field) -> int:
        return self.number(field.name, NUMBERS[str(field.type)])

    def _natural(self, field: Field) -> int:
        begin, value = self.pos, self._number(field)
        if value < 0 and self._is_strict:
            raise self.error(field.name, f"it is {value}", begin)
        return value

    def _length(self, field: Field, fixed: struct.Struct) -> int:
        """Read the length of a text, bytes or an array; -1 for null.

        Raises:
            MessageError: it is null, and must not be.
        """
        begin, name = self.pos, field.name
        length = (
            self.varint(name) - 1 if self._is_flexible else self.number(name, fixed)
        )
        if length >= 0:
            return length
        if length < -1 and self._is_strict:
            raise self.error(name, f"its length is {length}", begin)
        if not field.is_nullable:
            java = f"non-nullable field {name} was serialized as null"
            raise self.error(name, "it is null, and must not be", begin, java=java)
        return -1

    def _string(self, field: Field) -> str | None:
        begin, length = self.pos, self._length(field, _INT16)
        if length < 0:
            return None
        if length > _STRING_BYTES_MAX and not self._is_strict:
            java = f"string field {field.name} had invalid length {length}"
            raise self.error(field.name, f"it has {length} bytes", begin, java=java)
        try:
            return self.take(field.name, length).decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            raise self.error(field.name, f"not UTF-8: {error}", begin) from None

    def _bytes(self, field: Field) -> bytes | None:
        length = self._length(field, _INT32)
        return None if length < 0 else self.take(field.name, length)

    def _uuid(self, field: Field) -> str:
        if len(self._data) - self.pos < _UUID_BYTES:
            raise self._short(field.name, _UUID_BYTES)
        return _uuid_text(self.take(field.name, _UUID_BYTES))

    def _array(self, field: Field) -> list[Any] | None:
        begin, count = self.pos, self._length(field, _INT32)
        if count < 0:
            return None
        item, left = field.item, len(self._data) - self.pos
        assert item is not None
        number = None if isinstance(item.type, Struct) else NUMBERS.get(item.type)
        java = f"Tried to allocate a collection of size {count}, but there are only"
        java = f"{java} {left} bytes remaining." if count > left else "null"
        if number:
            size = count * number.size
            if size > left:
                raise self._short(field.name, size, java)
            data = self.take(field.name, size)
            return list(struct.unpack(f">{count}{number.format[1:]}", data))
        if count > left:
            reason = f"{count} items are stated, {left} bytes are left"
            raise self.error(field.name, reason, begin, java=java)
        if not isinstance(item.type, Struct):
            read = self._READS[item.type]
            return [read(self, item) for _ in range(count)]
        name = self._name
        self._name = f"{name}.{field.name}"
        values = [self._struct(item) for _ in range(count)]
        self._name = name
        return values

    def _struct(self, field: Field) -> dict[str, Any] | None:
        kind, name = field.type, field.name
        assert isinstance(kind, Struct)
        if field.is_nullable:
            is_tagged = field.tag >= 0
            mark = self.varint(name) if is_tagged else self.number(name, _INT8)
            if not mark if is_tagged else mark < 0:
                return None
        if self._version > self._newest and not self._is_strict:
            reason = f"Can't read version {self._version} of {kind.name}"
            raise self.error(name, reason)
        return self._fields(kind)

    _READS: ClassVar[dict[str, _Read]] = {
        **dict.fromkeys(NUMBERS, _number),
        "uint31": _natural,
        "uint63": _natural,
        "array": _array,
        "bytes": _bytes,
        "string": _string,
        "struct": _struct,
        "uuid": _uuid,
    }


# ------------------------------------------------------------------ writing


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
                f"{field} {text[:80]!r} has a surrogate; nothing was written",
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
