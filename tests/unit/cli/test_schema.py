"""The JSON schema: nothing is lost, and every line of every subcommand follows it."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.schema import (
    SCHEMA_VERSION,
    camel,
    dumps,
    partition_of,
    printable,
    record_line,
)
from support.cli import TXN, strict
from support.damage import flip_bit, logs_in
from support.values import new_partition

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
# Bytes that a lossy listing confuses with one another.
TRICKY = [
    b"\xaf",
    rb"\xaf",
    b"",
    b"null",
    b'"',
    b"\\",
    b"\\n",
    b"\n",
    b"\x1b[2J",
    b"\x7f",
    "\u009b\u202e\u2028".encode(),
    "Zürich 東京 \U0001f600".encode(),
    b"\xed\xa0\x80",
    b"\xc3",
    bytes(range(256)),
    b"aGVsbG8=",
]


@pytest.fixture
def tricky(tmp_path: Path) -> Path:
    """A store with a record for each, as key, value and header."""
    path = tmp_path / "tricky"
    with logstore.open(path) as store:
        part = new_partition(store, 2)
        for value in TRICKY:
            part.append(value, value, headers=[("h", value), ("n", None)])
        part.append(None)
    return path


def bytes_of(line: dict[str, Any], name: str) -> bytes | None:
    """The original key or value, decoded by the rules of docs/cli.md."""
    if f"{name}Base64" in line:
        assert name not in line
        return base64.b64decode(line[f"{name}Base64"], validate=True)
    value = line[name]
    return None if value is None else value.encode()


def headers_of(line: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    if "headersBase64" in line:
        assert "headers" not in line
        pairs = line["headersBase64"]
        return [(k, None if v is None else base64.b64decode(v)) for k, v in pairs]
    return [(k, None if v is None else v.encode()) for k, v in line["headers"]]


@pytest.mark.parametrize("how", ["records", "export", "stdout"])
def test_json_lines_lose_nothing(run: Any, tricky: Path, how: str) -> None:
    """Every key, value and header can be recovered."""
    if how == "records":
        lines = run("records", tricky, "--format", "jsonl").json
    elif how == "stdout":
        lines = run("export", tricky, "-o", "-").json
    else:
        target = tricky.parent / "out.jsonl"
        assert run("export", tricky, "-o", target).status == 0
        text = target.read_text("utf-8")
        lines = [strict(line) for line in text.split("\n") if line]
    assert [bytes_of(line, "value") for line in lines] == [*TRICKY, None]
    assert [bytes_of(line, "key") for line in lines] == [*TRICKY, None]
    assert [headers_of(line) for line in lines[:-1]] == [
        [("h", value), ("n", None)] for value in TRICKY
    ]


def test_text_is_text_and_the_rest_is_base64(run: Any, tricky: Path) -> None:
    """The byte AF and the text backslash-x-a-f are not the same."""
    first, second, *_ = run("records", tricky, "--format", "jsonl").json
    assert first["valueBase64"] == "rw=="
    assert second["value"] == r"\xaf"


@pytest.mark.parametrize("payload", ["auto", "utf8", "hex", "base64", "json", "none"])
@pytest.mark.parametrize("times", ["ms", "iso"])
def test_export_writes_what_records_print(
    run: Any, tricky: Path, payload: str, times: str
) -> None:
    """Line for line, for all options."""
    target = tricky.parent / "out.jsonl"
    options = ("--payload", payload, "--time", times)
    assert run("export", tricky, "-o", target, *options).status == 0
    printed = run("records", tricky, "--format", "jsonl", *options).out
    assert target.read_text("utf-8") == printed


def test_export_of_transactions_writes_what_records_print(run: Any) -> None:
    """They have producers, headers and several timestamps, from Kafka itself."""
    printed = run("records", TXN, "--format", "jsonl").out
    assert run("export", TXN, "-o", "-").out == printed != ""


def test_times_are_iso_on_request(run: Any, tricky: Path) -> None:
    """The times are in UTC, with milliseconds; a record without a timestamp has
    null."""
    line = run("records", tricky, "--format", "jsonl", "--time", "iso").json[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    record = logstore.Record(0, -1, None, None, (), logstore.TimestampType.NO_TIMESTAMP)
    assert record_line("t", 0, record, times="iso")["timestamp"] is None
    assert record_line("t", 0, record)["timestamp"] == -1


def every_line(run: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of every subcommand that prints JSON about a damaged store."""
    part = path / "orders-0"
    index = logs_in(part)[0].with_suffix(".index")
    return {
        name: run(name, *rest, "--format", "jsonl").json
        for name, *rest in (
            ("ls", path),
            ("stat", path),
            ("records", path, "--on-corruption", "skip"),
            ("batches", path, "--on-corruption", "skip"),
            ("tail", path),
            ("index", index),
            ("verify", path),
            ("doctor", path),
            ("handover check", path),
            ("repair", path, "--dry-run"),
            ("rebuild-index", path, "--dry-run"),
            ("export", path, "-o", "-", "--on-corruption", "skip"),
        )
    }


def test_every_line_of_every_subcommand_has_the_schema(
    run: Any, partition: Path
) -> None:
    """Its number and a type that the page lists, in front; topic and partition number;
    names in camel case."""
    flip_bit(logs_in(partition)[1], 8 * 40)
    table = DOCS.read_text("utf-8").split("## JSON lines\n")[1].split("\n## ")[0]
    rows = {
        name: row.split("|")[3]
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    lines = every_line(run, partition.parent)
    lines["rebuild-index"] = lines["rebuild-index"] or [
        {"schema": 1, "type": "index", "topic": None, "partition": None}
    ]
    seen = set()
    for name, some in lines.items():
        assert some, name
        for line in some:
            assert list(line)[:2] == ["schema", "type"]
            assert line["schema"] == SCHEMA_VERSION
            seen.add(line["type"])
            for key in line:
                assert re.fullmatch(r"[a-z][A-Za-z0-9]*", key), (name, key)
            if line["type"] not in ("summary",):
                assert line["topic"] is None or isinstance(line["topic"], str)
                assert line["partition"] is None or type(line["partition"]) is int
            if line["type"] in rows and name not in ("rebuild-index", "index"):
                named = set(re.findall(r"`(\w+)`", rows[line["type"]]))
                rest = set(line) - {"schema", "type", "topic", "partition"}
                assert rest <= named, (line["type"], rest - named)
    assert seen <= set(rows)
    assert len(seen) >= 11


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/orders-0/00000000000000000000.log", ("orders", 0)),
        ("/data/a-b-12", ("a-b", 12)),
        ("/data/orders-0/.logstore-quarantine-x/f", (None, None)),
        ("/data/x-99999999999999999999/f.log", ("x", None)),
        ("/data", (None, None)),
        (None, (None, None)),
    ],
)
def test_the_partition_of_a_path(path: str | None, found: tuple[Any, Any]) -> None:
    """The name of the directory has it."""
    assert partition_of(path) == found


def test_names_are_in_camel_case() -> None:
    """The names in the library are not."""
    assert [camel(n) for n in ("kept_at", "path", "a_b_c")] == ["keptAt", "path", "aBC"]


@pytest.mark.parametrize(
    "value",
    [1 << 70, "\ud800", {"a\udc80": ("x", b"y")}, [None, 1.5, True], {"n": {1: 2}}],
    ids=repr,
)
def test_whatever_is_in_a_line_it_is_strict_json(value: Any) -> None:
    """This includes values that orjson refuses."""
    strict(dumps({"value": value}).decode())


def test_control_characters_are_escapes() -> None:
    """JSON may contain some of them unescaped, a terminal must not get them."""
    text = "a\x7fb\u009bc\u202ed\u2028e"
    data = dumps(text)
    assert data.decode().isprintable()
    assert strict(data.decode()) == text
    assert printable(b'"plain"') == b'"plain"'
