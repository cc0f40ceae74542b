"""Records as JSON lines and CSV, a chunk at a time, without losing anything.

The text of a row is joined from parts: the part that is the same for all rows of a
partition is made once, and only keys, values and headers of a record are processed one
by one. `logstore.cli.schema.record_line` defines a line of JSON; a test checks that the
two agree.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import logstore
from logstore.cli.lazy import import_package
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
_NO_HEADERS: Final = b'"headers":[]'


class Rows(Protocol):
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


def rows_of(kind: str, payload: str, times: str) -> Rows:
    """For ``jsonl`` or ``csv``."""
    return CsvRows(payload, times) if kind == "csv" else JsonRows(payload, times)


class JsonRows:
    """Lines of the schema's ``record``."""

    def __init__(self, payload: str, times: str) -> None:
        self._payload = payload
        self._times = times
        self._dumps: Callable[[Any], bytes] = import_package("orjson").dumps

    def head(self) -> bytes:
        return b""

    def encode(
        self,
        topic: str | None,
        partition: int | None,
        records: Sequence[logstore.Record],
    ) -> bytes:
        front = b'{"schema":1,"type":"record","topic":%b,"partition":%b,"offset":' % (
            dumps(topic),
            dumps(partition),
        )
        kinds = {
            kind: b',"timestampType":"%b",' % kind.kafka_name.encode()
            for kind in logstore.TimestampType
        }
        part, headers = self._part_of(), self._headers
        stamp = self._stamp
        lines = [
            b'%b%d,"timestamp":%b%b%b,%b,%b}\n'
            % (
                front,
                record.offset,
                stamp(record.timestamp_ms),
                kinds[record.timestamp_type],
                part(b"key", record.key),
                part(b"value", record.value),
                headers(record.headers) if record.headers else _NO_HEADERS,
            )
            for record in records
        ]
        return printable(b"".join(lines))

    def _stamp(self, timestamp_ms: int) -> bytes:
        if self._times == "ms":
            return b"%d" % timestamp_ms
        return self._dumps(timestamp_value(timestamp_ms, self._times))

    def _part_of(self) -> Callable[[bytes, bytes | None], bytes]:
        return self._auto if self._payload == "auto" else self._other

    def _auto(self, name: bytes, data: bytes | None) -> bytes:
        """``"key":"text"``, or ``"keyBase64":"..."``."""
        if data is None:
            return b'"%b":null' % name
        try:
            return b'"%b":%b' % (name, self._dumps(str(data, "utf-8")))
        except UnicodeDecodeError:
            coded = binascii.b2a_base64(data, newline=False)
            return b'"%bBase64":"%b"' % (name, coded)

    def _other(self, name: bytes, data: bytes | None) -> bytes:
        value: dict[str, Any] = {}
        put_payload(value, name.decode(), data, self._payload)
        return dumps(value)[1:-1]

    def _headers(self, headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
        return dumps(headers_value(headers, self._payload))[1:-1]


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
        if record.timestamp_type < 0:
            return b""
        if self._times == "ms":
            return b"%d" % record.timestamp_ms
        return (timestamp_value(record.timestamp_ms, self._times) or "").encode()

    def _auto(self, record: logstore.Record) -> bytes:
        key, key64 = _auto_cells(record.key)
        value, value64 = _auto_cells(record.value)
        headers = headers64 = b""
        if record.headers:
            found = headers_value(record.headers, "auto")
            headers = _json_cell(found.get("headers"))
            headers64 = _json_cell(found.get("headersBase64"))
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
        found = headers_value(record.headers, self._payload)["headers"]
        cells.append(_json_cell(found) if record.headers else b"")
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
        return b"", binascii.b2a_base64(data, newline=False)
    if text.isprintable() or _UNSAFE.search(text) is None:
        return _quoted(data), b""
    return b"", binascii.b2a_base64(data, newline=False)


def _quoted(data: bytes) -> bytes:
    return b'"%b"' % data.replace(b'"', b'""')


def _cell(text: str | None) -> bytes:
    """A quoted text; null is an empty cell."""
    return b"" if text is None else _quoted(encodable(text).encode())


def _json_cell(value: Any) -> bytes:
    return b"" if value is None else _quoted(dumps(value))


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())
