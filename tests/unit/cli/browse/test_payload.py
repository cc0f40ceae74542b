"""A record as a whole: its facts, key, headers, value, batch, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import logstore
from logstore.cli.browse.payload import MODES, Document, document_of, whole_of
from support.browsing import HOSTILE

NO_JSON = "text, since it is not a JSON object or list"


def shown(document: Document) -> list[str]:
    return [document.line(at)[0] for at in range(len(document))]


def one(path: Path, value: bytes | None, mode: str = "auto", **more: Any) -> list[str]:
    config = logstore.TopicConfig(message_format=2, max_message_bytes=1 << 25)
    with logstore.open(path) as store:
        partition = store.create_topic("t", 1, config, exist_ok=True)[0]
        offset = partition.append(value, timestamp_ms=1_700_000_000_000, **more)
        return shown(document_of(whole_of(partition, offset), mode, 76))


def test_a_record_is_shown_as_a_whole(tmp_path: Path) -> None:
    """Its place, both payloads, each header, and its batch."""
    headers = [("trace", b"abc"), ("trace", None), ("bin", b"\xff\x00")]
    lines = one(tmp_path, b"line 1\nline 2", key=b"k", headers=headers)
    batch = lines.index("batch")
    assert lines[:batch] == [
        "t-0  offset 0  2023-11-14T22:13:20.000Z (CreateTime)",
        "key: 1 byte, text",
        "k",
        "value: 13 bytes, text",
        "line 1",
        "line 2",
        "headers: 3",
        "  trace: 3 bytes, text",
        "abc",
        "  trace: null",
        "  bin: 2 bytes, hex",
        f"0000: {'ff00':39}  ..",
    ]
    text = "".join(lines[batch + 1 :])
    assert text.startswith("0..0  at 0  ")
    assert "magic 2  none  1 record" in text


def test_null_and_empty_are_told_apart(tmp_path: Path) -> None:
    """Keys and values show the difference."""
    lines = one(tmp_path, None, key=b"")
    assert lines[1:4] == ["key: no bytes", "", "value: null"]


@pytest.mark.parametrize(
    ("value", "mode", "lines"),
    [
        (b'{"b":[1,2]}', "auto", ["value: 11 bytes, JSON", "{", '  "b": [', "    1,"]),
        (b'{"b":[1,2]}', "text", ["value: 11 bytes, text", '{"b":[1,2]}']),
        (b'{"n": NaN}', "auto", ["value: 10 bytes, text", '{"n": NaN}']),
        (b'{"a":1,"a":2}', "json", [f"value: 13 bytes, {NO_JSON}"]),
        (b"[" * 5000, "auto", ["value: 5,000 bytes, text"]),
        (b"17", "auto", ["value: 2 bytes, text", "17"]),
        (b"apple\x00", "auto", ["value: 6 bytes, hex"]),
        (b"ABC", "hex", ["value: 3 bytes, hex", f"0000: {'4142 43':39}  ABC"]),
        (b"\xff", "text", ["value: 1 byte, text", r"\xff"]),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_what_it_is(
    tmp_path: Path, value: bytes, mode: str, lines: list[str]
) -> None:
    """The default is the best form; JSON is used only if every parser takes it."""
    found = one(tmp_path, value, mode)
    at = next(n for n, text in enumerate(found) if text.startswith("value"))
    assert found[at : at + len(lines)] == lines


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", HOSTILE)
def test_no_line_has_an_effect_or_is_too_wide(
    tmp_path: Path, value: bytes, mode: str
) -> None:
    """This holds for keys, values, headers and their names."""
    name = value[:200].decode("utf-8", "replace")
    for line in one(tmp_path, value, mode, key=value[:900], headers=[(name, value)]):
        assert line.isprintable()
        assert cell_len(line) <= 78


def test_large_json_is_pretty_only_if_asked_for(tmp_path: Path) -> None:
    """It would have a line for each of its numbers."""
    value = b'{"a": [' + b"1," * 600_000 + b"1]}"
    assert len(one(tmp_path, value)) < 20_000
    assert len(one(tmp_path, value, "json")) > 600_000


@pytest.mark.parametrize("mode", ["auto", "json"])
def test_deep_json_is_text(tmp_path: Path, mode: str) -> None:
    """Its indentation would be 500 times as large as itself; a number in 100 levels is
    shown as JSON."""
    deep = b"[" * 500 + b"1," * 60_000 + b"1" + b"]" * 500
    lines = one(tmp_path, deep, mode)
    assert "value: 121,001 bytes, text, since it is nested deeply" in lines
    assert sum(map(len, lines)) < 2 * len(deep)
    lines = one(tmp_path, b"[" * 100 + b"1" + b"]" * 100, mode)
    assert "value: 201 bytes, JSON" in lines


def test_json_too_deep_to_be_written_is_text(tmp_path: Path, monkeypatch: Any) -> None:
    """The parser may take more levels than the formatter."""

    write = json.JSONEncoder.iterencode

    def deep(self: Any, value: Any, _one_shot: bool = False) -> Any:
        if _one_shot:
            return write(self, value, _one_shot)
        raise RecursionError

    monkeypatch.setattr(json.JSONEncoder, "iterencode", deep)
    assert "value: 3 bytes, text, since it is nested deeply" in one(tmp_path, b"[1]")


def test_hex_of_a_large_value_is_made_when_it_is_shown(tmp_path: Path) -> None:
    """10 MB have 625,000 lines, and the document none of them."""
    config = logstore.TopicConfig(message_format=2, max_message_bytes=1 << 25)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", 1, config)[0]
        partition.append(bytes(10_000_000))
        document = document_of(whole_of(partition, 0), "hex", 76)
    assert len(document) > 625_000
    text, style = document.line(600_000)
    assert text.startswith("0092")
    assert text.endswith("................")
    assert style == ""
    assert document.line(len(document)) == ("", "")
    assert document.line(-1) == ("", "")
