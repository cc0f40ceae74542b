"""The one JSON schema of all subcommands (docs/cli.md, "JSON lines").

Every line is an object that begins with ``schema`` (the number of this schema) and
``type``. Names are in camel case. A partition is always ``topic`` and ``partition``
(its number), both null if no name has them. If the meaning of a name changes, or a name
is removed, the schema gets another number; a new name does not change it.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final

import logstore
from logstore.cli.lazy import orjson, pybase64
from logstore.cli.text import decode, encodable, readable, time_text

SCHEMA_VERSION: Final = 1
PAYLOADS: Final = ("auto", "utf8", "hex", "base64", "json", "none")
TIMES: Final = ("ms", "iso")

_PARTITION: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_PARTITION_MAX: Final = (1 << 31) - 1
# Characters that UTF-8 may hold and a terminal must not get: DEL, the control
# characters after it, line ends of other kinds, and changes of the text direction.
_UNSAFE: Final = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]"
    rb"|\xef\xbb\xbf"
)


def line(kind: str, /, **values: Any) -> dict[str, Any]:
    """An object of the schema."""
    return {"schema": SCHEMA_VERSION, "type": kind, **values}


def finding(kind: str, /, value: dict[str, Any]) -> dict[str, Any]:
    """An object of the schema from a problem, note or action of the library, with the
    partition that contains its path."""
    topic, number = partition_of(value.get("path"))
    values = {camel(name): item for name, item in value.items()}
    return line(kind, topic=topic, partition=number, **values)


def camel(name: str) -> str:
    """``first_offset`` as ``firstOffset``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def partition_of(path: str | None) -> tuple[str | None, int | None]:
    """(topic, number) of the innermost partition directory in a path; (None, None) if
    no directory matches. Undecodable bytes of its name become escapes."""
    parts = [] if path is None else os.path.abspath(path).split(os.sep)
    for part in parts[:-3:-1]:
        parsed = _PARTITION.fullmatch(part)
        if parsed is not None:
            number = int(parsed[2])
            return (
                encodable(parsed[1]),
                number if number <= _PARTITION_MAX else None,
            )
    return None, None


def dumps(value: Any) -> bytes:
    """A value as one line of strict JSON in UTF-8, without its line end."""
    try:
        data: bytes = orjson.dumps(value, default=_plain)
    except (TypeError, ValueError):
        # A name with bytes that are not UTF-8, or an integer above 64 bits.
        data = orjson.dumps(_storable(value), default=_plain)
    return printable(data)


def printable(data: bytes) -> bytes:
    r"""JSON whose strings have no effect on a terminal: control characters that JSON
    allows unescaped become ``\uNNNN``."""
    if data.isascii():
        return data.replace(b"\x7f", b"\\u007f")
    return _UNSAFE.sub(_unicode_escapes, data)


def _unicode_escapes(match: re.Match[bytes]) -> bytes:
    return b"".join(b"\\u%04x" % ord(char) for char in match[0].decode())


class JsonText:
    """JSON text that is inserted into a line unchanged.

    Attributes:
        text: without line ends.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _plain(value: Any) -> Any:
    if isinstance(value, JsonText):
        return orjson.Fragment(value.text.encode())
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        return decode(value)
    return str(value)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(str(k)): _storable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, int) and value.bit_length() > 63:
        return JsonText(str(value))
    if value is None or isinstance(value, int | float | JsonText):
        return value
    return _storable(_plain(value))


# ------------------------------------------------------------------ payloads


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a name twice")
    return members


def parsed_json(data: bytes) -> str | None:
    """Bytes as one line of strict JSON. None if they are not JSON, or JSON that not
    every parser accepts: NaN, an infinity (also 1e999), half a surrogate pair, too deep
    nesting, or an object with two values of one name, of which most parsers drop one.
    Uses the standard parser, since it keeps integers above 64 bits."""
    try:
        value = json.loads(data, parse_constant=_refuse, object_pairs_hook=_unique)
        # Deeper than it is written later, so that the stack suffices then.
        text = json.dumps([[[[[[[[value]]]]]]]], ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        return None
    return text[8:-8]


def payload_value(data: bytes, payload: str) -> Any:
    """A key, value or header value for JSON, for every `payload` except ``auto`` and
    ``none``."""
    if payload == "hex":
        return data.hex()
    if payload == "base64":
        return pybase64.b64encode_as_string(data)
    if payload == "json":
        text = parsed_json(data)
        if text is not None:
            return JsonText(text)
    return readable(data)


def put_payload(
    target: dict[str, Any], name: str, data: bytes | None, payload: str
) -> None:
    """Set a key or value in an object: with ``auto`` under its name if it is UTF-8 or
    null, else as base64 under its name with ``Base64``; with ``none`` its size."""
    if payload == "none":
        target[f"{name}Size"] = None if data is None else len(data)
    elif data is None:
        target[name] = None
    elif payload != "auto":
        target[name] = payload_value(data, payload)
    else:
        try:
            target[name] = str(data, "utf-8")
        except UnicodeDecodeError:
            target[f"{name}Base64"] = pybase64.b64encode_as_string(data)


def headers_value(
    headers: tuple[tuple[str, bytes | None], ...], payload: str
) -> dict[str, Any]:
    """``headers`` as ``[[name, value], ...]``. With ``auto`` and a value that is not
    UTF-8: ``headersBase64`` instead, in which every value is base64."""
    if not headers:
        return {"headers": []}
    if payload == "none":
        return {"headers": [[encodable(name), None] for name, _ in headers]}
    if payload != "auto":
        return {
            "headers": [
                [encodable(name), None if v is None else payload_value(v, payload)]
                for name, v in headers
            ]
        }
    try:
        return {
            "headers": [
                [encodable(name), None if v is None else str(v, "utf-8")]
                for name, v in headers
            ]
        }
    except UnicodeDecodeError:
        return {"headersBase64": headers_value(headers, "base64")["headers"]}


def timestamp_value(timestamp_ms: int, times: str) -> Any:
    """Milliseconds, or with ``iso`` a text in UTC; None for no timestamp then."""
    if times == "ms":
        return timestamp_ms
    return None if timestamp_ms == -1 else time_text(timestamp_ms)


def record_line(
    topic: str | None,
    partition: int | None,
    record: logstore.Record,
    payload: str = "auto",
    times: str = "ms",
) -> dict[str, Any]:
    """A record as an object of the schema."""
    value = line(
        "record",
        topic=topic,
        partition=partition,
        offset=record.offset,
        timestamp=timestamp_value(record.timestamp_ms, times),
        timestampType=record.timestamp_type.kafka_name,
    )
    put_payload(value, "key", record.key, payload)
    put_payload(value, "value", record.value, payload)
    value.update(headers_value(record.headers, payload))
    return value


def batch_line(
    topic: str | None,
    partition: int | None,
    batch: logstore.RecordBatch,
    times: str = "ms",
) -> dict[str, Any]:
    """A batch as an object of the schema."""
    return line(
        "batch",
        topic=topic,
        partition=partition,
        baseOffset=batch.base_offset,
        lastOffset=batch.last_offset,
        position=batch.position,
        size=batch.size_bytes,
        magic=batch.magic,
        codec=batch.compression,
        records=batch.record_count,
        timestampType=batch.timestamp_type.kafka_name,
        maxTimestamp=timestamp_value(batch.max_timestamp_ms, times),
        leaderEpoch=batch.leader_epoch,
        producerId=batch.producer_id,
        producerEpoch=batch.producer_epoch,
        baseSequence=batch.base_sequence,
        isTransactional=batch.is_transactional,
        isControl=batch.is_control,
        deleteHorizonMs=batch.delete_horizon_ms,
        crc=batch.crc,
    )
