"""The fields of Kafka's messages, from bytes and into bytes."""

from __future__ import annotations

import pytest

from logstore.broker.fields import GroupRecordError, Reader, Writer, versioned


def reader(data: bytes, *, flexible: bool = True) -> Reader:
    found = Reader(data, "Value")
    found.flexible = flexible
    return found


def test_tagged_fields_are_read_as_they_were_written() -> None:
    writer = Writer(flexible=True)
    writer.tags({300: b"x" * 200, 0: b"", 7: b"seven"})
    read = reader(bytes(writer.data))
    assert read.tags("tags") == {0: b"", 7: b"seven", 300: b"x" * 200}
    read.end()
    plain = reader(b"", flexible=False)
    assert plain.tags("tags") == {}


@pytest.mark.parametrize("tags", [(1, 1), (2, 1), (0, 0), (0, 2, 1)])
def test_tags_rise_and_none_is_there_twice(tags: tuple[int, ...]) -> None:
    data = bytes([len(tags)]) + b"".join(bytes([tag, 1, 65]) for tag in tags)
    with pytest.raises(GroupRecordError, match="is out of order") as caught:
        reader(data).tags("tags")
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
    if value is None:
        with pytest.raises(GroupRecordError):
            reader(data).varint("n")
    else:
        assert reader(data).varint("n") == value
        writer = Writer()
        writer.varint(value)
        assert bytes(writer.data) == data


@pytest.mark.parametrize("flexible", [False, True])
def test_texts_and_bytes_come_back(flexible: bool) -> None:
    writer = Writer(flexible)
    for text in ("", "müll", None):
        writer.string("text", text)
    for blob in (b"", b"\0" * 300, None):
        writer.blob(blob)
    read = reader(bytes(writer.data), flexible=flexible)
    assert [read.nullable_string("t") for _ in range(3)] == ["", "müll", None]
    assert [read.nullable_blob("b") for _ in range(3)] == [b"", b"\0" * 300, None]
    read.end()


def test_length_is_compared_with_the_bytes_that_are_left() -> None:
    """Before anything is made of it."""
    most = b"\x7f\xff\xff\xff"
    with pytest.raises(GroupRecordError, match="left"):
        reader(most, flexible=False).blob("b")
    with pytest.raises(GroupRecordError, match="items are stated"):
        reader(most + b"1", flexible=False).array("a", 1, lambda: 0)
    with pytest.raises(GroupRecordError, match="left over"):
        reader(b"1").end()
    with pytest.raises(GroupRecordError, match="is null"):
        reader(b"\xff\xff", flexible=False).string("s")
    with pytest.raises(GroupRecordError, match="its length is -2"):
        reader(b"\xff\xfe", flexible=False).string("s")


def test_newer_version_is_told_from_damage() -> None:
    found, version = versioned(b"\0\3x", "Value", 3, 2)
    assert (version, found.flexible, found.pos) == (3, True, 2)
    assert not versioned(b"\0\1", "Value", 3, 2)[0].flexible
    for data, is_newer in ((b"\0\4", True), (b"\xff\xff", False)):
        with pytest.raises(GroupRecordError) as caught:
            versioned(data, "Value", 3)
        assert caught.value.is_newer is is_newer
