"""Messages with random values, by the tables that the dump of Kafka's records reads."""

from __future__ import annotations

import random

from logstore.broker.fields import Field, Message, Struct, Writer

__all__ = ["random_message"]

_TEXTS = (
    "",
    "a",
    "topic-1",
    "Zürich",
    "東京",
    'quo"te\\',
    "tab\tend\n",
    "\x01\x1f\x7f",
)
# Number of valid values of fields whose other values make Kafka's tool fail.
_RANGES = {"transactionStatus": 8}
_NEVER_NULL = "transactionPartitions"
_SIZES = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "int64": 64}
# Not negative in logstore; Kafka's tool shows them with either sign.
_SIZES |= {"uint31": 32, "uint63": 64}


def random_message(rng: random.Random, message: Message, version: int) -> bytes:
    """The bytes of a message, which begin with the version. Tagged fields may be left
    out, or have their default; some are unknown ones."""
    writer = Writer(version >= message.flexible)
    writer.put("h", version)
    _fields(rng, writer, message.fields, version)
    return bytes(writer.data)


def _fields(
    rng: random.Random,
    writer: Writer,
    fields: tuple[Field, ...],
    version: int,
    *,
    is_tagged: bool = False,
) -> None:
    tags: dict[int, bytes] = {}
    for field in fields:
        if field.since <= version <= field.until:
            if field.tag < 0:
                _value(rng, writer, field, version)
            elif rng.random() < 0.7:
                inner = Writer(True)
                _value(rng, inner, field, version)
                tags[field.tag] = bytes(inner.data)
    # Kafka does not leave out a default with an unknown field in it.
    if rng.random() < 0.2 and not is_tagged:
        tags[rng.randrange(20, 400)] = rng.randbytes(rng.randrange(4))
    writer.tags(tags)


def _value(rng: random.Random, writer: Writer, field: Field, version: int) -> None:
    kind = field.type
    is_null = field.is_nullable and rng.random() < 0.3 and field.name != _NEVER_NULL
    if field.item is not None:
        count = 0 if is_null else rng.choice((0, 1, 2, 5))
        writer.length(-1 if is_null else count)
        for _ in range(count):
            _value(rng, writer, field.item, version)
    elif isinstance(kind, Struct):
        if field.is_nullable and field.tag < 0:
            writer.put("b", -1 if is_null else 1)
        elif field.is_nullable:
            writer.varint(0 if is_null else 1)
        if not is_null:
            is_tagged = field.tag >= 0
            _fields(rng, writer, kind.fields, version, is_tagged=is_tagged)
    elif kind == "string":
        writer.string(field.name, None if is_null else rng.choice(_TEXTS))
    elif kind == "bytes":
        writer.blob(None if is_null else rng.randbytes(rng.randrange(6)))
    elif kind == "uuid":
        writer.data += rng.choice((bytes(16), rng.randbytes(16)))
    else:
        _number(rng, writer, field)


def _number(rng: random.Random, writer: Writer, field: Field) -> None:
    kind, bits = str(field.type), _SIZES[str(field.type)]
    low = 0 if kind == "uint16" else -(1 << bits - 1)
    high = low + (1 << bits) - 1
    value = rng.choice((0, -1 if low else 1, low, high, rng.randint(low, high)))
    if field.default is not None and rng.random() < 0.4:
        value = field.default
    if field.name in _RANGES:
        value = rng.randrange(_RANGES[field.name])
    writer.data += value.to_bytes(bits // 8, "big", signed=bool(low))
