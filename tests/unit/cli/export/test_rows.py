"""Records as JSON lines and CSV."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re

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


# One of each class of bytes that UTF-8 distinguishes, and its neighbours.
CLASSES = bytes.fromhex(
    "0041 7f80 8f90 9fa0 bfc0 c1c2 dfe0 e1ec edee eff0 f1f3 f4f5 ff"
)
OFFSETS = (0, 1, 2**31, 2**53 + 1, 2**63 - 1)
STAMPS = (0, 1, -1, -2, 1_600_000_000_123, 2**53, 2**63 - 1, -(2**63))


def random_data(rng: random.Random) -> bytes | None:
    """Null, empty, text, text with control characters, nearly text, or anything."""
    size = rng.choice((0, 1, 7, 60, 64, 66, 300))
    text = "".join(rng.choices('a"\\,\n\r\t\x00\x1b\x7f\x85é東\u2028\ufeff😀', k=size))
    return rng.choice(
        [
            None,
            b"",
            b"x" * size,
            text.encode(),
            text.encode()[:-1],
            text.encode()
            + rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90")),
            rng.randbytes(size),
            rng.randbytes(size),
        ]
    )


def random_records(seed: int, count: int = 400) -> list[logstore.Record]:
    """Records that differ in everything that a line contains."""
    rng = random.Random(seed)
    names = ("", "name", 'a"b', "\x7f", "é\u200b", "\ufffd")
    return [
        logstore.Record(
            rng.choice(OFFSETS),
            rng.choice(STAMPS),
            random_data(rng),
            random_data(rng),
            tuple(
                (rng.choice(names), random_data(rng))
                for _ in range(rng.choice((0, 0, 0, 1, 3)))
            ),
            rng.choice(KINDS),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("place", [("t", 3), (None, None), ("\udcff", None)])
def test_lines_are_those_of_the_schema(
    payload: str, times: str, place: tuple[str | None, int | None]
) -> None:
    """Lines assembled from parts equal lines formatted as a whole by `record_line`."""
    found = rows_of("jsonl", payload, times).encode(*place, RECORDS)
    lines = [dumps(record_line(*place, r, payload, times)) + b"\n" for r in RECORDS]
    assert found == b"".join(lines)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("seed", range(3))
def test_lines_of_random_records_are_those_of_the_schema(
    payload: str, times: str, seed: int
) -> None:
    """Previous records have no effect: encoded alone, in groups, and all at once."""
    records, place = random_records(seed), ("t\x7f", 3)
    coder = rows_of("jsonl", payload, times)
    lines = [dumps(record_line(*place, r, payload, times)) + b"\n" for r in records]
    assert coder.encode(*place, records) == b"".join(lines)
    assert [coder.encode(*place, [r]) for r in records] == lines
    assert coder.encode(*place, []) == b""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"", b"\x80"),
        ("é".encode(), b"\xbf"),
        (b"x" * 62, b""),
        (b"x" * 63, b""),
    ],
)
def test_every_beginning_of_utf8_is_told_from_binary_data(
    before: bytes, after: bytes
) -> None:
    """All sequences of three classes of bytes, after text and after binary data, also
    at the end of the first bytes that are examined."""
    sequences = itertools.product(CLASSES, repeat=3)
    values = [before + bytes(three) + after for three in sequences]
    for other in (b"text", b"\xff"):
        mixed = list(itertools.chain(*((value, other) for value in values)))
        records = [logstore.Record(0, 0, None, value) for value in mixed]
        lines = rows_of("jsonl", "auto", "ms").encode("t", 0, records).splitlines()
        for value, line in zip(mixed, lines, strict=True):
            assert (b'"valueBase64":' in line) == (not is_utf8(value))


def is_utf8(data: bytes) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def cells(line: str) -> list[str | None]:
    """The cells of a row: None for an empty one without quotes."""
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


@pytest.mark.parametrize(
    "records", [RECORDS, random_records(1), random_records(2)], ids=["all", "1", "2"]
)
def test_csv_loses_nothing(records: list[logstore.Record]) -> None:
    """Null, empty, text and bytes are distinct, in key, value and headers; cells have
    no control characters but line ends and tabs."""
    coder = rows_of("csv", "auto", "ms")
    text = (coder.head() + coder.encode("t", 0, records)).decode()
    assert re.sub("[\r\n\t]", "", text).isprintable()
    head, *some = rows(text)
    names = head.split(",")
    assert len(some) == len(records)
    for record, row in zip(records, some, strict=True):
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
        stamp = None if record.timestamp_ms == -1 else str(record.timestamp_ms)
        assert values["timestamp"] == stamp


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if p != "auto"])
def test_csv_with_another_payload_has_no_columns_for_base64(payload: str) -> None:
    """One cell for each name of the head."""
    coder = rows_of("csv", payload, "iso")
    head, *some = rows((coder.head() + coder.encode(None, None, RECORDS)).decode())
    assert "Base64" not in head
    assert len(some) == len(RECORDS)
    assert {len(cells(row)) for row in some} == {len(head.split(","))}
