"""The format string of `records --template`, as kcat's ``-f``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import click

import logstore

_TOKEN: Final = re.compile(
    rb"%(?P<field>.)?|\\(?P<escape>x[0-9A-Fa-f]{2}|.)|(?P<text>[^%\\]+|\\)", re.DOTALL
)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}

Piece = Callable[[str | None, int | None, "logstore.Record"], bytes]


def _bytes(data: bytes | None) -> bytes:
    return b"" if data is None else bytes(data)


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _headers(record: logstore.Record) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + _bytes(value)
        for name, value in record.headers
    )


_FIELDS: Final[dict[bytes, Piece]] = {
    b"t": lambda topic, _p, _r: (topic or "").encode("utf-8", "surrogateescape"),
    b"p": lambda _t, partition, _r: b"" if partition is None else b"%d" % partition,
    b"o": lambda _t, _p, record: b"%d" % record.offset,
    b"k": lambda _t, _p, record: _bytes(record.key),
    b"s": lambda _t, _p, record: _bytes(record.value),
    b"K": lambda _t, _p, record: _length(record.key),
    b"S": lambda _t, _p, record: _length(record.value),
    b"T": lambda _t, _p, record: b"%d" % record.timestamp_ms,
    b"h": lambda _t, _p, record: _headers(record),
}


def compiled(text: str) -> Piece:
    """A function from (topic, partition number, record) to the bytes to print.

    Raises:
        click.UsageError: an unknown field or escape.
    """
    pieces: list[Piece | bytes] = []
    for match in _TOKEN.finditer(text.encode("utf-8", "surrogateescape")):
        pieces.append(_piece(match, text))

    def rendered(
        topic: str | None, partition: int | None, record: logstore.Record
    ) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else piece(topic, partition, record)
            for piece in pieces
        )

    return rendered


def _piece(match: re.Match[bytes], text: str) -> Piece | bytes:
    if match[0].startswith(b"%"):
        field = match["field"] or b""
        if field == b"%":
            return b"%"
        if field in _FIELDS:
            return _FIELDS[field]
        raise click.UsageError(
            f"--template '{text}' has %{field.decode(errors='replace')}; the fields "
            f"are %{', %'.join(sorted(name.decode() for name in _FIELDS))} and %%"
        )
    escape = match["escape"]
    if escape is None:
        return match["text"]
    if escape.startswith(b"x") and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    raise click.UsageError(
        f"--template '{text}' has \\{escape.decode(errors='replace')}; the escapes are "
        f"\\n, \\t, \\r, \\0, \\xNN and \\\\"
    )
