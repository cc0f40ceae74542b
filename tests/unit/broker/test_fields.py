"""The fields of Kafka's messages, from bytes and into bytes."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.fields import Field, Message, MessageError, Struct, Writer

INNER = Struct("Inner", (Field("n", "int16"),))
# Version 0 is not flexible; 1 is, and has tagged fields.
KIND = Message(
    "Value",
    (
        Field("text", "string", is_nullable=True),
        Field("blob", "bytes", is_nullable=True),
        Field("numbers", "array", item=Field("number", "int32")),
        Field("later", "int8", since=1),
        Field("one", "string", tag=1, since=1, default=""),
        Field("inner", INNER, is_nullable=True, tag=7, since=1),
    ),
    newest=1,
    flexible=1,
)


def value(
    version: int,
    text: str | None = "müll",
    blob: bytes | None = b"\0\xff",
    tags: bytes | None = None,
) -> bytes:
    """A value with two numbers; `tags` are the bytes of the tagged fields."""
    writer = Writer(flexible=version > 0)
    writer.put("h", version)
    writer.string("text", text)
    writer.blob(blob)
    writer.length(2)
    writer.put("ii", 5, -6)
    if version > 0:
        writer.put("b", 9)
        writer.data += b"\0" if tags is None else tags
    return bytes(writer.data)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("text", "blob"), [("", b""), ("müll", b"\0" * 300), (None, None)]
)
def test_value_is_read_as_it_was_written(
    version: int, text: str | None, blob: bytes | None
) -> None:
    found = KIND.decode(value(version, text, blob))
    expected: dict[str, Any] = {"text": text, "blob": blob, "numbers": [5, -6]}
    assert found == expected | ({"later": 9} if version else {})


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (b"\0", {}),
        (b"\1\1\2\2x", {"one": "x"}),
        (b"\1\1\1\1", {}),  # its default
        (b"\1\7\3\1\0\5\0", None),  # one byte too many in it is said below
        (b"\2\1\2\2x\x64\3abc", {"one": "x"}),  # no table has the second one
    ],
)
def test_tagged_fields_are_those_that_the_table_has(
    tags: bytes, expected: dict[str, Any] | None
) -> None:
    data = value(1, tags=tags)
    if expected is None:
        with pytest.raises(MessageError):
            KIND.decode(data)
    else:
        found = KIND.decode(data)
        assert {k: v for k, v in found.items() if k in ("one", "inner")} == expected


@pytest.mark.parametrize("order", [(1, 1), (100, 1), (100, 100), (5, 100, 9)])
def test_tags_rise_and_none_is_there_twice(order: tuple[int, ...]) -> None:
    """Kafka's own classes do not look at it."""
    fields = {1: b"\1\2\2x"}
    tags = bytes([len(order)])
    tags += b"".join(fields.get(tag, bytes([tag, 1, 65])) for tag in order)
    data = value(1, tags=tags)
    with pytest.raises(MessageError, match="is out of order") as caught:
        KIND.decode(data)
    assert caught.value.field == "Value.tags"
    assert KIND.decode(data, errors="replace")["later"] == 9


def test_value_that_is_cut_anywhere_is_a_named_error() -> None:
    for version in (0, 1):
        data = value(version)
        for size in range(len(data)):
            with pytest.raises(MessageError) as caught:
                KIND.decode(data[:size])
            assert caught.value.field.startswith("Value.")
        with pytest.raises(MessageError, match="1 bytes are left over"):
            KIND.decode(data + b"\0")


def test_length_is_compared_with_the_bytes_that_are_left() -> None:
    """Before anything is made of it."""
    most = b"\x7f\xff\xff\xff"
    with pytest.raises(MessageError, match="bytes are stated"):
        KIND.decode(b"\0\0\0\0" + most + bytes(9))
    with pytest.raises(MessageError, match="bytes are stated"):
        KIND.decode(b"\0\0\0\0\0\0\0\0" + most + bytes(9))
    with pytest.raises(MessageError, match="its length is -2"):
        KIND.decode(b"\0\0\xff\xfe")
    with pytest.raises(MessageError, match="it is null"):
        KIND.decode(b"\0\0\0\0\0\0\0\0\xff\xff\xff\xff")


def test_newer_version_is_told_from_damage() -> None:
    for version, is_newer in ((2, True), (-1, False)):
        data = version.to_bytes(2, "big", signed=True) + value(0)[2:]
        with pytest.raises(MessageError, match=f"it is {version}") as caught:
            KIND.decode(data)
        assert caught.value.is_newer is is_newer


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\1"),
        ((1 << 32) - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_varint_has_seven_bits_in_a_byte(number: int, data: bytes) -> None:
    writer = Writer(flexible=True)
    writer.varint(number)
    assert bytes(writer.data) == data
