"""Records as JSON lines and CSV, a chunk at a time, without losing anything.

The text of a row is joined from parts: the part that is the same for all rows of a
partition is made once, and only keys, values and headers of a record are processed one
by one. `logstore.cli.schema.record_line` defines a line of JSON; a test checks that the
two agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import logstore
from logstore.cli.lazy import orjson, pybase64
from logstore.cli.schema import (
    JsonText,
    dumps,
    headers_value,
    payload_value,
    printable,
    put_payload,
    timestamp_value,
)
from logstore.cli.text import encodable

# A text in CSV with one of these becomes base64, since CSV has no escapes.
_UNSAFE: Final = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff]"
)
_NO_HEADERS: Final = b',"headers":[]}\n'
# Finds what UTF-8 excludes: a byte that it never has, a sequence without its first byte
# or without its second. Not all of it: data without a match may be invalid, too.
_NOT_UTF8: Final = re.compile(
    rb"\A[\x80-\xbf]|[\xc0\xc1\xf5-\xff]|[\xc2-\xf4][\0-\x7f\xc0-\xff]"
    rb"|[\0-\x7f][\x80-\xbf]"
)
_PROBE_BYTES: Final = 64

# Bytes that are joined, of one key or value.
_Parts: TypeAlias = tuple[bytes, ...]


class RowFormat(Protocol):
    """Turns records of one partition into bytes of a text file."""

    def head(self) -> bytes:
        """The first bytes of the file."""
        ...

    def encode(
        self,
        topic: str | None,
        partition: int | None,
        records: Sequence[logstore.Record],
    ) -> bytes:
        """The rows of some records."""
        ...


def rows_of(kind: str, payload: str, times: str) -> RowFormat:
    """Row writer for ``jsonl`` or ``csv``."""
    return CsvRows(payload, times) if kind == "csv" else JsonRows(payload, times)


class JsonRows:
    """Lines of the schema's ``record``."""

    def __init__(self, payload: str, times: str) -> None:
        self._payload = payload
        self._times = times
        self._dumps: Callable[[Any], bytes] = orjson.dumps
        self._code: Callable[[bytes], bytes] = pybase64.b64encode

    def head(self) -> bytes:
        return b""

    def encode(
        self,
        topic: str | None,
        partition: int | None,
        records: Sequence[logstore.Record],
    ) -> bytes:
        front = (
            f'{{"schema":1,"type":"record","topic":{dumps(topic).decode()},'
            f'"partition":{dumps(partition).decode()},"offset":'
        )
        kinds = {
            kind: f',"timestampType":"{kind.kafka_name}",'
            for kind in logstore.TimestampType
        }
        stamp = str if self._times == "ms" else self._stamp
        parts_of = self._auto if self._payload == "auto" else self._other
        keys = parts_of("key", [record.key for record in records])
        values = parts_of("value", [record.value for record in records])
        parts: list[bytes] = []
        for record, key, value in zip(records, keys, values, strict=True):
            offset, timestamp_ms, _, _, headers, kind = record
            line = f'{front}{offset},"timestamp":{stamp(timestamp_ms)}{kinds[kind]}'
            end = self._headers(headers) if headers else _NO_HEADERS
            parts += (line.encode(), *key, b",", *value, end)
        return _joined(parts)

    def _stamp(self, timestamp_ms: int) -> str:
        return dumps(timestamp_value(timestamp_ms, self._times)).decode()

    def _auto(self, name: str, column: list[bytes | None]) -> list[_Parts]:
        """``"key":"text"``, or ``"keyBase64":"..."``, of each record."""
        null = (f'"{name}":null'.encode(),)
        plain, coded = f'"{name}":'.encode(), f'"{name}Base64":"'.encode()
        encode, code, is_invalid = self._dumps, self._code, _NOT_UTF8.search
        # An exception takes three times as long as a look at the first bytes, which
        # finds nearly all binary data. Text needs neither: only what follows binary
        # data is looked at.
        is_binary = False
        parts: list[_Parts] = []
        for data in column:
            if data is None:
                parts.append(null)
                continue
            if not (is_binary and is_invalid(data, 0, _PROBE_BYTES)):
                try:
                    parts.append((plain, encode(str(data, "utf-8"))))
                    is_binary = False
                    continue
                except UnicodeDecodeError:
                    is_binary = True
            parts.append((coded, code(data), b'"'))
        return parts

    def _other(self, name: str, column: list[bytes | None]) -> list[_Parts]:
        parts: list[_Parts] = []
        for data in column:
            value: dict[str, Any] = {}
            put_payload(value, name, data, self._payload)
            parts.append((dumps(value)[1:-1],))
        return parts

    def _headers(self, headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
        return b",%b}\n" % dumps(headers_value(headers, self._payload))[1:-1]


def _joined(parts: list[bytes]) -> bytes:
    """`printable` of lines of JSON, in parts: each value is copied once, and only parts
    that are not ASCII are searched."""
    data = b"".join(parts)
    if not data.isascii():
        data = b"".join([p if p.isascii() else printable(p) for p in parts])
    return data.replace(b"\x7f", b"\\u007f")


class CsvRows:
    """Rows of comma-separated values (RFC 4180, but with ``\\n``).

    Text is quoted; null is an empty cell, an empty text is ``""``. With ``auto`` there
    are three more columns at the end, for data that is not text, or has control
    characters.
    """

    def __init__(self, payload: str, times: str) -> None:
        self._payload = payload
        self._times = times

    def head(self) -> bytes:
        names = ["topic", "partition", "offset", "timestamp", "timestampType"]
        if self._payload == "none":
            names += ["keySize", "valueSize", "headers"]
        else:
            names += ["key", "value", "headers"]
        if self._payload == "auto":
            names += ["keyBase64", "valueBase64", "headersBase64"]
        return ",".join(names).encode() + b"\n"

    def encode(
        self,
        topic: str | None,
        partition: int | None,
        records: Sequence[logstore.Record],
    ) -> bytes:
        number = b"" if partition is None else b"%d" % partition
        front = b"%b,%b," % (_cell(topic), number)
        kinds = {kind: kind.kafka_name.encode() for kind in logstore.TimestampType}
        row = self._auto if self._payload == "auto" else self._other
        return b"".join(
            [
                b"%b%d,%b,%b,%b\n"
                % (
                    front,
                    record.offset,
                    self._stamp(record),
                    kinds[record.timestamp_type],
                    row(record),
                )
                for record in records
            ]
        )

    def _stamp(self, record: logstore.Record) -> bytes:
        if record.timestamp_ms == -1:
            return b""
        if self._times == "ms":
            return b"%d" % record.timestamp_ms
        return (timestamp_value(record.timestamp_ms, self._times) or "").encode()

    def _auto(self, record: logstore.Record) -> bytes:
        key, key64 = _auto_cells(record.key)
        value, value64 = _auto_cells(record.value)
        headers = headers64 = b""
        if record.headers:
            fields = headers_value(record.headers, "auto")
            headers = _json_cell(fields.get("headers"))
            headers64 = _json_cell(fields.get("headersBase64"))
        return b"%b,%b,%b,%b,%b,%b" % (
            key,
            value,
            headers,
            key64,
            value64,
            headers64,
        )

    def _other(self, record: logstore.Record) -> bytes:
        cells = [self._payload_cell(data) for data in (record.key, record.value)]
        headers = headers_value(record.headers, self._payload)["headers"]
        cells.append(_json_cell(headers) if record.headers else b"")
        return b",".join(cells)

    def _payload_cell(self, data: bytes | None) -> bytes:
        if data is None:
            return b""
        if self._payload == "none":
            return b"%d" % len(data)
        value = payload_value(data, self._payload)
        if isinstance(value, JsonText):
            value = value.text
        return _cell(_UNSAFE.sub(_escaped, value))


def _auto_cells(data: bytes | None) -> tuple[bytes, bytes]:
    """(cell of the text, cell of the base64): one of them, or none for null."""
    if data is None:
        return b"", b""
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return b"", pybase64.b64encode(data)
    if text.isprintable() or _UNSAFE.search(text) is None:
        return _quoted(data), b""
    return b"", pybase64.b64encode(data)


def _quoted(data: bytes) -> bytes:
    return b'"%b"' % data.replace(b'"', b'""')


def _cell(text: str | None) -> bytes:
    """A quoted text; null is an empty cell."""
    return b"" if text is None else _quoted(encodable(text).encode())


def _json_cell(value: Any) -> bytes:
    return b"" if value is None else _quoted(dumps(value))


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())
