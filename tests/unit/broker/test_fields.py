"""Fields of Kafka's messages: damage, in both ways of reading, and its error texts.
Kafka's own bytes are in test_kafka_records.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.fields import (
    Field,
    Message,
    MessageError,
    Reader,
    Struct,
    Writer,
)

ROW = Struct("Row", (Field("a", "int8"), Field("b", "string")))
ITEM = Field("x element", "string")


def message_of(field: Field, flexible: int = 1 << 15) -> Message:
    return Message("M", (field,), flexible=flexible)


def array_of(item: str | Struct, *, is_nullable: bool = False) -> Field:
    return Field("x", "array", Field("x element", item), is_nullable)


# Fixed lengths, compact ones; the bytes after the version; the error, in our words and
# in Java's ("": Java reads it).
FIXED, COMPACT = 1 << 15, 0
DAMAGE: dict[str, tuple[Field, int, str, str, str]] = {
    "number": (
        Field("x", "int64"), FIXED, "00",
        "M.x at byte 2: 8 bytes are stated, 1 are left", "null",
    ),
    "uuid": (
        Field("x", "uuid"), FIXED, "00" * 9,
        "M.x at byte 2: 16 bytes are stated, 9 are left", "null",
    ),
    "text": (
        Field("x", "string"), FIXED, "000561",
        "M.x at byte 4: 5 bytes are stated, 1 are left",
        "Error reading byte array of 5 byte(s): only 1 byte(s) available",
    ),
    "length": (
        Field("x", "bytes"), COMPACT, "",
        "M.x at byte 2: 1 bytes are stated, 0 are left", "null",
    ),
    "null": (
        Field("x", "string"), FIXED, "ffff",
        "M.x at byte 2: it is null, and must not be",
        "non-nullable field x was serialized as null",
    ),
    "less-than-null": (
        Field("x", "bytes", is_nullable=True), FIXED, "fffffffe",
        "M.x at byte 2: its length is -2", "",
    ),
    "null-item": (
        array_of("string"), FIXED, "00000001ffff",
        "M.x element at byte 6: it is null, and must not be",
        "non-nullable field x element was serialized as null",
    ),
    "items": (
        array_of(ROW), FIXED, "0000000900",
        "M.x at byte 2: 9 items are stated, 1 bytes are left",
        "Tried to allocate a collection of size 9, but there are only 1 bytes "
        "remaining.",
    ),
    "numbers": (
        array_of("int32"), FIXED, "0000000900",
        "M.x at byte 6: 36 bytes are stated, 1 are left",
        "Tried to allocate a collection of size 9, but there are only 1 bytes "
        "remaining.",
    ),
    "few-numbers": (
        array_of("int32"), FIXED, "000000020000",
        "M.x at byte 6: 8 bytes are stated, 2 are left", "null",
    ),
    "in-an-item": (
        array_of(ROW), FIXED, "000000020100000200" "0500",
        "M.x.b at byte 12: 5 bytes are stated, 1 are left",
        "Error reading byte array of 5 byte(s): only 1 byte(s) available",
    ),
    "no-utf-8": (
        Field("x", "string"), FIXED, "0002c328",
        "M.x at byte 2: not UTF-8: 'utf-8' codec can't decode byte 0xc3 in position 0: "
        "invalid continuation byte", "",
    ),
    "long-number": (
        Field("x", "string"), COMPACT, "ffffffffff",
        "M.x at byte 2: no length: it has more than 32 bits",
        "Varint is too long, the most significant bit in the 5th byte is set, "
        "converted value: ffffffff",
    ),
    "more-than-32-bits": (
        Field("x", "string", is_nullable=True), COMPACT, "ffffffff7f00",
        "M.x at byte 2: no length: it has more than 32 bits", "",
    ),
    "negative": (
        Field("x", "uint63"), FIXED, "ff" * 8,
        "M.x at byte 2: it is -1", "",
    ),
    "left-over": (
        Field("x", "int8"), FIXED, "0000",
        "M.end at byte 3: 1 bytes are left over", "",
    ),
    "tags-out-of-order": (
        Field("x", "int8"), COMPACT, "000207000700",
        "M.tags at byte 6: tag 7 is out of order", "",
    ),
    "size-of-a-tag": (
        Field("x", "int8", tag=3, default=0), COMPACT, "01030201",
        "M.x at byte 5: it has 2 bytes", "",
    ),
    "size-of-an-id": (
        Field("x", "uuid", tag=3, default=""), COMPACT, "010303" + "00" * 16,
        "M.x at byte 5: it has 3 bytes", "",
    ),
    "negative-size": (
        Field("x", "int8"), COMPACT, "000107ffffffff0f",
        "M.tags at byte 10: 4294967295 bytes are stated, 0 are left", "-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_has_a_place_and_the_words_of_kafka(name: str) -> None:
    """Strict reading names field and byte; the other way has Java's words, or reads."""
    field, flexible, data, text, java = DAMAGE[name]
    message, damaged = message_of(field, flexible), bytes(2) + bytes.fromhex(data)
    with pytest.raises(MessageError) as caught:
        message.decode(damaged)
    assert str(caught.value) == text
    assert text.startswith(f"{caught.value.field} at byte {caught.value.position}: ")
    if java:
        with pytest.raises(MessageError) as caught:
            message.decode(damaged, errors="replace")
        assert caught.value.java == java
    else:
        message.decode(damaged, errors="replace")


def test_long_text_is_none_to_kafka() -> None:
    """Compact lengths have room for more; its classes refuse it."""
    message, text = message_of(Field("x", "string"), COMPACT), b"a" * 32768
    data = b"\0\0" + b"\x81\x80\x02" + text + b"\0"
    assert message.decode(data) == {"x": text.decode()}
    with pytest.raises(MessageError) as caught:
        message.decode(data, errors="replace")
    assert caught.value.java == "string field x had invalid length 32768"


def test_struct_of_a_later_version_is_none_to_kafka() -> None:
    """Its classes refuse structs of unknown versions."""
    message = Message("M", (array_of(ROW),), is_open=True)
    data = b"\0\1" + bytes.fromhex("00000001070000") + b"more"
    assert message.decode(data) == {"x": [{"a": 7, "b": ""}]}
    with pytest.raises(MessageError) as caught:
        message.decode(data, errors="replace")
    assert caught.value.java == "Can't read version 1 of Row"


@pytest.mark.parametrize(
    ("field", "data", "value"),
    [
        (Field("x", ROW, is_nullable=True), "ff00", None),
        (Field("x", ROW, is_nullable=True), "01070100" "00", {"a": 7, "b": ""}),
        (array_of("string", is_nullable=True), "0000", None),
        (array_of("int16"), "03fffe000500", [-2, 5]),
        (Field("x", "uint16"), "ffff00", 65535),
    ],
)  # fmt: skip
def test_values_of_each_type(field: Field, data: str, value: Any) -> None:
    """Structs and arrays that may be null, and numbers of each kind."""
    message = message_of(field, COMPACT)
    assert message.decode(bytes(2) + bytes.fromhex(data)) == {"x": value}


def test_tagged_fields_have_the_place_of_their_table() -> None:
    """The fields are in JSON; a field with its default is left out, and null is not the
    default."""
    fields = (
        Field("a", "int8", tag=1, default=5),
        Field("b", "int8"),
        Field("c", ROW, is_nullable=True, tag=0, default={"a": 0, "b": ""}),
    )
    message = Message("M", fields, flexible=0)
    found = message.decode(bytes.fromhex("00000802000100010106"))
    assert list(found.items()) == [("a", 6), ("b", 8), ("c", None)]
    found = message.decode(bytes.fromhex("00000802000401000100010105"))
    assert list(found) == ["b"]


# ------------------------------------------------------------------ round trips


def test_tagged_fields_are_read_as_they_were_written() -> None:
    """Unknown ones are kept as bytes."""
    writer = Writer(flexible=True)
    writer.tags({300: b"x" * 200, 0: b"", 7: b"seven"})
    reader = Reader(bytes(writer.data), "Value")
    assert reader.message(Message("Value", (), flexible=COMPACT), 0) == {}
    assert reader.unknown == {0: b"", 7: b"seven", 300: b"x" * 200}
    plain = Reader(b"", "Value")
    assert plain.message(Message("Value", ()), 0) == plain.unknown == {}


@pytest.mark.parametrize("tags", [(1, 1), (2, 1), (0, 0), (0, 2, 1)])
def test_tags_rise_and_none_is_there_twice(tags: tuple[int, ...]) -> None:
    """Kafka writes tags in this way."""
    data = bytes([len(tags)]) + b"".join(bytes([tag, 1, 65]) for tag in tags)
    with pytest.raises(MessageError, match="is out of order") as caught:
        Message("Value", (), flexible=COMPACT).decode(data, 0)
    assert caught.value.field == "Value.tags"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\0", 0),
        (b"\x7f", 127),
        (b"\x80\1", 128),
        (b"\xff\xff\xff\xff\x0f", (1 << 32) - 1),
        (b"\xff\xff\xff\xff\x1f", None),
        (b"\x80\x80\x80\x80\x80\0", None),
        (b"\x80", None),
        (b"", None),
    ],
)
def test_varint_has_32_bits(data: bytes, value: int | None) -> None:
    """Unsigned, in at most five bytes."""
    if value is None:
        with pytest.raises(MessageError):
            Reader(data, "Value").varint("n")
    else:
        assert Reader(data, "Value").varint("n") == value
        writer = Writer()
        writer.varint(value)
        assert bytes(writer.data) == data


@pytest.mark.parametrize("flexible", [False, True])
def test_texts_and_bytes_come_back(flexible: bool) -> None:
    """Empty ones, long ones, and null."""
    texts, blobs = ["", "müll", None], [b"", b"\0" * 300, None]
    writer = Writer(flexible)
    for text in texts:
        writer.string("text", text)
    for blob in blobs:
        writer.blob(blob)
    writer.tags()
    kinds = ["string"] * 3 + ["bytes"] * 3
    fields = tuple(Field(f"{i}", kind, None, True) for i, kind in enumerate(kinds))
    message = Message("Value", fields, flexible=COMPACT if flexible else FIXED)
    assert list(message.decode(bytes(writer.data), 0).values()) == texts + blobs


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("bytes", b"\x7f\xff\xff\xff", "left"),
        ("array", b"\x7f\xff\xff\xff1", "items are stated"),
        ("struct", b"1", "left over"),
        ("string", b"\xff\xff", "is null"),
        ("string", b"\xff\xfe", "its length is -2"),
    ],
)
def test_length_is_compared_with_the_bytes_that_are_left(
    kind: str, data: bytes, reason: str
) -> None:
    """The check comes before anything is allocated."""
    field = array_of("string") if kind == "array" else Field("x", kind)
    message = Message("Value", () if kind == "struct" else (field,))
    with pytest.raises(MessageError, match=reason):
        message.decode(data, 0)


def test_newer_version_is_told_from_damage() -> None:
    """Flexible from its version on; negative and later versions are errors."""
    message = Message("Value", (Field("x", "string"),), newest=3, flexible=2)
    assert message.decode(b"\0\3\2a\0") == {"x": "a"}
    assert message.decode(b"\0\1\0\1a") == {"x": "a"}
    for data, is_newer in ((b"\0\4", True), (b"\xff\xff", False)):
        with pytest.raises(MessageError) as caught:
            message.decode(data)
        assert caught.value.is_newer is is_newer
