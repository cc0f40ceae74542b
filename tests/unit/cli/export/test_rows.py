"""Records as JSON lines and CSV."""

from __future__ import annotations

import base64
import json

import pytest

import logstore
from logstore.cli.export.rows import rows_of
from logstore.cli.schema import PAYLOADS, TIMES, dumps, record_line

KINDS = list(logstore.TimestampType)
BYTES = [None, b"", b"text", b"\xff", b"a,b\n\"c'", b"\x1b[2J", '東"'.encode(), b"[1]"]
RECORDS = [
    logstore.Record(
        offset,
        -1 if KINDS[offset % 3] < 0 else 1_600_000_000_000 + offset,
        BYTES[offset % len(BYTES)],
        BYTES[offset // len(BYTES)],
        (("name", BYTES[offset % 5]), ("", b"x")) if offset % 7 else (),
        KINDS[offset % 3],
    )
    for offset in range(len(BYTES) ** 2)
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("place", [("t", 3), (None, None), ("\udcff", None)])
def test_lines_are_those_of_the_schema(
    payload: str, times: str, place: tuple[str | None, int | None]
) -> None:
    """What is put together in parts is what `record_line` makes as a whole."""
    found = rows_of("jsonl", payload, times).encode(*place, RECORDS)
    lines = [dumps(record_line(*place, r, payload, times)) + b"\n" for r in RECORDS]
    assert found == b"".join(lines)


def cells(line: str) -> list[str | None]:
    """The cells of a row: None for one that is not quoted and empty."""
    found: list[str | None] = []
    while line:
        if line.startswith('"'):
            end = 1
            while line[end : end + 2] == '""' or line[end] != '"':
                end += 2 if line[end : end + 2] == '""' else 1
            found.append(line[1:end].replace('""', '"'))
            comma, line = line[end + 1 : end + 2], line[end + 2 :]
            if comma and not line:
                found.append(None)
            continue
        cell, comma, line = line.partition(",")
        found.append(cell or None)
        if comma and not line:
            found.append(None)
    return found


def rows(text: str) -> list[str]:
    """The rows of a text: a line end in a quoted cell does not end one."""
    found, row = [], ""
    for line in text.split("\n")[:-1]:
        row += line
        if row.count('"') % 2 == 0:
            found.append(row)
            row = ""
        else:
            row += "\n"
    return found


def test_csv_loses_nothing() -> None:
    """Null, empty, text and bytes are told apart, in key, value and headers; and no
    cell has control characters but line ends and tabs."""
    coder = rows_of("csv", "auto", "ms")
    text = (coder.head() + coder.encode("t", 0, RECORDS)).decode()
    assert text.replace("\n", "").isprintable()
    head, *some = rows(text)
    names = head.split(",")
    assert len(some) == len(RECORDS)
    for record, row in zip(RECORDS, some, strict=True):
        values = dict(zip(names, cells(row), strict=True))
        for name, data in (("key", record.key), ("value", record.value)):
            plain, coded = values[name], values[f"{name}Base64"]
            if data is None:
                assert plain is coded is None
            elif coded is not None:
                assert (base64.b64decode(coded), plain) == (data, None)
            else:
                assert plain is not None
                assert plain.encode() == data
        if values.get("headersBase64"):
            pairs = json.loads(values["headersBase64"])
            found = [(k, None if v is None else base64.b64decode(v)) for k, v in pairs]
        else:
            pairs = json.loads(values["headers"] or "[]")
            found = [(k, None if v is None else v.encode()) for k, v in pairs]
        assert tuple(found) == record.headers
        assert values["offset"] == str(record.offset)
        stamp = None if record.timestamp_type < 0 else str(record.timestamp_ms)
        assert values["timestamp"] == stamp


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if p != "auto"])
def test_csv_with_another_payload_has_no_columns_for_base64(payload: str) -> None:
    """One cell for each name of the head."""
    coder = rows_of("csv", payload, "iso")
    head, *some = rows((coder.head() + coder.encode(None, None, RECORDS)).decode())
    assert "Base64" not in head
    assert len(some) == len(RECORDS)
    assert {len(cells(row)) for row in some} == {len(head.split(","))}
