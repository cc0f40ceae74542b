"""`logstore-dump`: what each subcommand prints, and its exit status.

`main` is called in this process, but where a pipe or a signal is needed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.arguments import build_parser
from logstore.cli.main import main
from logstore.cli.output import Printer, Progress, escape, quoted, size_text, time_text
from logstore.cli.sources import parse_bound
from support.damage import (
    append_garbage,
    cut,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
)
from support.golden import SLICE
from support.values import (
    FIRST_TIMESTAMP,
    append_one,
    expected,
    key_of,
    new_partition,
    record_of,
    timestamp_of,
    value_of,
    write_store,
)

RECORDS = 60
SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200}
DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
TXN = SLICE / "4.2.0" / "clean" / "txn-0"


class Result:
    """What a run of the command printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `main` with arguments."""

    def call(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """orders-0 of a store that was closed: magic 2, small segments."""
    return write_store(tmp_path / "store", RECORDS, magic=2, **SMALL)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two topics, one of them with two partitions."""
    path = tmp_path / "two"
    with logstore.open(path) as opened:
        for name, count in (("clicks", 2), ("orders", 1)):
            topic = opened.create_topic(name, partitions=count)
            for part in topic:
                for number in range(3):
                    part.append(b"%s-%d/%d" % (name.encode(), part.number, number))
    return path


# ------------------------------------------------------------------ arguments


SUBCOMMANDS = (
    "ls",
    "batches",
    "records",
    "index",
    "verify",
    "rebuild-index",
    "repair",
    "doctor",
    "stat",
    "tail",
    "export",
)


def subparsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands by name."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no subcommands")


def test_the_subcommands_are_those_of_the_page() -> None:
    """A heading for each, in the same order."""
    assert tuple(subparsers()) == SUBCOMMANDS
    headings = re.findall(r"^## `([\w-]+)`$", DOCS.read_text("utf-8"), re.M)
    assert tuple(headings) == SUBCOMMANDS


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_options_of_a_subcommand_are_those_of_the_page(name: str) -> None:
    """Its section of docs/cli.md names each option, and no other; so the examples."""
    parser = subparsers()[name]
    text = DOCS.read_text("utf-8")
    section = text.split(f"## `{name}`\n")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `-")]
    named = {
        option
        for row in rows
        for option in re.findall(r"`(--?[\w-]+)", row.split("|")[1])
    }
    known = {
        option
        for action in parser._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }
    assert named == known
    examples = re.findall(r"^ +(logstore-dump .*)$", parser.epilog or "", re.M)
    assert examples
    for example in examples:
        assert f"    {example}\n" in section + "\n"
        build_parser().parse_args(_words(example)[1:])


def _words(command: str) -> list[str]:
    return [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in SUBCOMMANDS)]
)
def test_help_exits_zero(run: Any, arguments: list[str]) -> None:
    """With the usage on standard output."""
    result = run(*arguments)
    assert result.status == 0
    assert result.out.startswith("usage: logstore-dump")


def test_version_is_the_library_s(run: Any) -> None:
    """And exit status 0."""
    result = run("--version")
    assert (result.status, result.out) == (0, f"logstore-dump {logstore.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["records"],
        ["records", "x", "--limit", "-1"],
        ["records", "x", "--from", "yesterday"],
        ["records", "x", "--grep", "("],
        ["records", "x", "--payload", "xml"],
        ["records", "x", "--format", "xml"],
        ["export", "x"],
        ["tail", "x", "-n", "many"],
    ],
    ids=" ".join,
)
def test_unusable_arguments_exit_two(run: Any, arguments: list[str]) -> None:
    """With the reason on standard error."""
    result = run(*arguments)
    assert result.status == 2
    assert result.err
    assert not result.out


@pytest.mark.parametrize("name", [name for name in SUBCOMMANDS if name != "export"])
def test_a_path_that_is_not_there_exits_two(
    run: Any, tmp_path: Path, name: str
) -> None:
    """Every subcommand names it."""
    result = run(name, tmp_path / "missing")
    assert result.status == 2
    assert "missing" in result.err


@pytest.mark.parametrize("name", ["ls", "records", "batches", "stat", "tail", "verify"])
def test_a_directory_of_something_else_exits_two(
    run: Any, tmp_path: Path, name: str
) -> None:
    """It is not taken for an empty store."""
    (tmp_path / "pictures").mkdir()
    result = run(name, tmp_path)
    assert result.status == 2
    assert "neither a store nor a partition" in result.err


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("0", 0),
        ("123", 123),
        ("1600000000000ms", 1_600_000_000_000),
        ("2020-09-13T12:26:40Z", 1_600_000_000_000),
        ("2020-09-13T14:26:40+02:00", 1_600_000_000_000),
    ],
)
def test_bounds_are_offsets_or_times(text: str, bound: int) -> None:
    """A plain number is an offset, everything else says that it is a time."""
    found = parse_bound(text)
    milliseconds = found if isinstance(found, int) else found.timestamp() * 1000
    assert milliseconds == bound


# ------------------------------------------------------------------ output


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", '"plain"'),
        (b"", '""'),
        ("Zürich 東京".encode(), '"Zürich 東京"'),
        (b"a\nb\tc\rd", r'"a\nb\tc\rd"'),
        (b'say "hi" \\ bye', r'"say \"hi\" \\ bye"'),
        (b"\x1b[2J", r'"\x1b[2J"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        ("\u009b".encode(), r'"\xc2\x9b"'),
        ("\u202e".encode(), r'"\xe2\x80\xae"'),
    ],
)
def test_text_does_nothing_to_a_terminal(data: bytes, shown: str) -> None:
    """Control characters, bytes that are not UTF-8, and what turns text around."""
    assert quoted(data) == shown
    assert escape(shown).isprintable()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    """With one digit behind the point."""
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-1, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_600_000_000_001, "2020-09-13T12:26:40.001Z"),
        (1 << 62, str(1 << 62)),
    ],
)
def test_times_are_in_utc(milliseconds: int, text: str) -> None:
    """None is a dash; what no calendar has is a number."""
    assert time_text(milliseconds) == text


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gone at the end."""
    monkeypatch.setenv("TERM", "xterm")
    for screen in (Terminal(), io.StringIO()):
        with Progress("working", screen) as progress:
            progress(1, 2)
        assert ("50%" in screen.getvalue()) == screen.isatty()
        assert screen.getvalue().strip("\r ").count("\n") == 0


def test_what_an_encoding_lacks_is_escaped() -> None:
    """Standard output in ASCII."""
    raw = io.BytesIO()
    printer = Printer(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    printer.line("Zürich")
    printer.flush()
    assert raw.getvalue() == b"Z\\xfcrich\n"


# ------------------------------------------------------------------ records


def test_records_text_has_a_line_for_each(run: Any, partition: Path) -> None:
    """Partition, offset, time, key and value; null is null."""
    result = run("records", partition)
    assert result.status == 0
    assert len(result.lines) == RECORDS
    for offset, line in enumerate(result.lines):
        time = time_text(timestamp_of(offset))
        assert line.startswith(f"orders-0 {offset} {time} key=")
        key, value = key_of(offset), value_of(offset)
        shown = [quoted(data) if data is not None else "null" for data in (key, value)]
        assert f" key={shown[0]} value={shown[1]}" in line


@pytest.mark.parametrize("payload", ["utf8", "hex", "base64", "json", "none"])
@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_records_payloads(run: Any, partition: Path, payload: str, form: str) -> None:
    """Each way to show a payload gives a line for each record."""
    result = run("records", partition, "--payload", payload, "--format", form)
    assert result.status == 0
    assert len(result.lines) == RECORDS
    assert result.out.replace("\n", "").isprintable()
    if form == "jsonl":
        nulls = [
            line.get("value", line.get("valueSize")) is None for line in result.json
        ]
        assert nulls == [value_of(offset) is None for offset in range(RECORDS)]


def test_records_payload_json_is_parsed(run: Any, tmp_path: Path) -> None:
    """Where it is JSON; else it is text."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store)
        orders.append(b'{"a": [1, null]}')
        orders.append(b"{a}")
    lines = run("records", tmp_path, "--payload", "json", "--format", "jsonl").json
    assert [line["value"] for line in lines] == [{"a": [1, None]}, "{a}"]
    text = run("records", tmp_path, "--payload", "json").lines
    assert text[0].endswith('value={"a": [1, null]}')


@pytest.mark.parametrize("source", ["store", "partition"])
def test_records_between_offsets(run: Any, partition: Path, source: str) -> None:
    """From is in, to is out, also by time."""
    path = partition if source == "partition" else partition.parent

    def offsets(*options: object) -> list[int]:
        return [
            line["offset"]
            for line in run("records", path, "--format", "jsonl", *options).json
        ]

    assert offsets("--from", 10, "--to", 13) == [10, 11, 12]
    assert offsets("--from", 57) == [57, 58, 59]
    assert offsets("--to", 2) == [0, 1]
    assert offsets("--limit", 3) == [0, 1, 2]
    assert offsets("--limit", 0) == []
    moment = timestamp_of(30)
    first = next(o for o in range(RECORDS) if timestamp_of(o) >= moment)
    assert offsets("--from", f"{moment}ms")[0] == first
    assert offsets("--to", f"{moment}ms") == list(range(first))
    assert offsets("--from", f"{FIRST_TIMESTAMP + 10**9}ms") == []


def test_records_from_outside_the_log_exit_two(run: Any, partition: Path) -> None:
    """The message has the range; of a store each partition gives what it has."""
    result = run("records", partition, "--from", RECORDS + 5)
    assert result.status == 2
    assert f"[0, {RECORDS}]" in result.err


def test_records_of_one_file_are_those_in_it(run: Any, partition: Path) -> None:
    """With the same bounds."""
    path = logs_in(partition)[1]
    base = int(path.stem)
    after = int(logs_in(partition)[2].stem)
    lines = run("records", path, "--format", "jsonl").json
    assert [line["offset"] for line in lines] == list(range(base, after))
    assert {(line["topic"], line["partition"]) for line in lines} == {("orders", 0)}
    options = ("--from", base + 2, "--to", base + 4)
    lines = run("records", path, "--format", "jsonl", *options).json
    assert [line["offset"] for line in lines] == [base + 2, base + 3]
    since = f"{timestamp_of(base + 3)}ms"
    lines = run("records", path, "--format", "jsonl", "--from", since).json
    assert lines[0]["timestamp"] >= timestamp_of(base + 3)


def test_records_of_a_file_without_a_partition_have_no_topic(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """A copy somewhere else, under another name; also a directory of such files."""
    copy = tmp_path / "copies" / logs_in(partition)[0].name
    copy.parent.mkdir()
    copy.write_bytes(logs_in(partition)[0].read_bytes())
    other = copy.with_name("old.log")
    other.write_bytes(copy.read_bytes())
    for path in (copy, copy.parent, other):
        line = run("records", path, "--format", "jsonl", "--limit", 1).json[0]
        assert (line["topic"], line["partition"], line["offset"]) == (None, None, 0)


def test_records_grep_searches_key_and_value(run: Any, store: Path) -> None:
    """A regular expression on bytes; the limit counts what is shown."""
    result = run("records", store, "--grep", r"orders-0/[12]$")
    assert [line.split()[1] for line in result.lines] == ["1", "2"]
    result = run("records", store, "--grep", "clicks", "--limit", 4)
    assert len(result.lines) == 4


def test_records_of_a_store_can_be_chosen(run: Any, store: Path) -> None:
    """By topic and partition."""

    def names(*options: object) -> list[str]:
        lines = run("records", store, "--format", "jsonl", *options).json
        return sorted({f"{line['topic']}-{line['partition']}" for line in lines})

    assert names() == ["clicks-0", "clicks-1", "orders-0"]
    assert names("--topic", "clicks") == ["clicks-0", "clicks-1"]
    assert names("--partition", 0) == ["clicks-0", "orders-0"]
    assert names("--topic", "clicks", "--partition", 1) == ["clicks-1"]
    assert run("records", store, "--topic", "none").status == 2
    assert run("records", store, "--topic", "orders", "--partition", 4).status == 2


def test_records_isolation(run: Any) -> None:
    """Aborted transactions are left out when asked."""
    every = run("records", TXN, "--format", "jsonl").json
    committed = run(
        "records", TXN, "--format", "jsonl", "--isolation", "read_committed"
    ).json
    assert 0 < len(committed) < len(every)


def test_records_with_damage_exit_one(run: Any, partition: Path) -> None:
    """A partition: all records before it; a file: those behind it, too."""
    path = logs_in(partition)[0]
    frame = frames(path)[1]
    flip_bit(path, 8 * (frame.pos + frame.size - 1))
    result = run("records", partition)
    assert result.status == 1
    assert len(result.lines) == frame.offset
    assert f"at byte {frame.pos}" in result.err
    result = run("records", path)
    assert result.status == 1
    after = frames(path)[2].offset
    assert [line.split()[1] for line in result.lines][frame.offset] == str(after)
    assert f"at byte {frame.pos}" in result.err


@pytest.mark.parametrize("tail", [5, 17, 18, 30, "zeros"])
def test_a_torn_end_of_a_file_exits_zero(
    run: Any, partition: Path, tail: int | str
) -> None:
    """A part of a batch, or zeros, with a word on standard error."""
    path = logs_in(partition)[-1]
    head = bytes(100) if tail == "zeros" else path.read_bytes()[: int(tail)]
    append_garbage(path, head)
    for name in ("records", "batches", "tail", "stat"):
        result = run(name, path)
        assert result.status == 0
        assert "no whole batch" in result.err
    assert run("records", "--kafka", path).status == 0


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# What no crash leaves: no batch begins so.
NO_BATCHES = {
    "negative-magic": PNG + b"\xff" + b"\0\1\2\3" * 60,
    "least-magic": PNG + b"\x80" + b"\0\1\2\3" * 60,
    "magic-above": PNG + b"\x03" + b"\0\1\2\3" * 60,
    "text": b"this is not a log, and was never meant to be one\n" * 9,
    "negative-offset": b"\xff" * 8 + struct.pack(">i", 1 << 30) + bytes(60),
    "negative-length": bytes(8) + struct.pack(">i", -9) + bytes(4) + b"\2" + PNG * 9,
}


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind-batches"])
@pytest.mark.parametrize("kind", NO_BATCHES)
def test_bytes_that_were_not_read_exit_one(
    run: Any, partition: Path, tmp_path: Path, kind: str, behind: bool
) -> None:
    """And a file that is no log is not called one that a newer version wrote."""
    path = tmp_path / "00000000000000000000.log"
    head = logs_in(partition)[0].read_bytes() if behind else b""
    path.write_bytes(head + NO_BATCHES[kind])
    for name in ("records", "batches", "tail", "stat"):
        result = run(name, path)
        assert result.status == 1, name
        assert f"at byte {len(head)}" in result.err
        assert ("newer version" in result.err) == (kind in ("magic-above", "text"))
    for name in ("records", "batches"):
        assert run(name, "--kafka", path).status == 1
    if not behind and "offset" not in kind:
        assert run("verify", path).status == 1


@pytest.mark.parametrize("payload", ["json", "utf8", "hex"])
@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_value_that_cannot_be_shown_does_not_end_the_listing(
    run: Any, tmp_path: Path, form: str, payload: str
) -> None:
    """And whatever is in it, a line of JSON is JSON that every parser takes."""
    values = [
        b'{"n": 1}',
        b'{"s": "\\ud800"}',
        b'{"\\udc80": 1}',
        b'"\xed\xa0\x80"',
        b'"\\ud83d\\ude00"',
        b"[NaN, -Infinity]",
        b"[1e999]",
        b"9" * 5000,
        b"[" * 100_000,
        b"[" * 900 + b"]" * 900,
        b"\xff\xfe[\x001\x00]\x00",
        b"\xed\xb2\x80",
        b'{"n": 2}',
    ]
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", config=logstore.TopicConfig(message_format=2))
        for value in values:
            topic[0].append(value, value, headers=[("\U0001f600", value)])
    result = run("records", tmp_path, "--payload", payload, "--format", form)
    assert (result.status, len(result.lines)) == (0, len(values)), result.err
    result.out.encode("ascii" if form == "jsonl" else "utf-8")
    if form == "jsonl":
        rows = [strict(line) for line in result.lines]
        if payload == "json":
            assert [rows[0]["value"], rows[-1]["value"]] == [{"n": 1}, {"n": 2}]
            assert rows[1]["value"] == '{"s": "\\ud800"}'
            assert rows[4]["value"] == "\U0001f600"
            assert rows[5]["value"] == "[NaN, -Infinity]"
    for kind in ("jsonl", "csv"):
        target = tmp_path / f"out.{kind}"
        done = run("export", tmp_path, "--to", target, "--payload", payload)
        assert done.status == 0, done.err
        if kind == "jsonl":
            assert len([strict(line) for line in target.open()]) == len(values)


def strict(line: str) -> Any:
    """A line of JSON, without what only Python takes."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {line}")

    value = json.loads(line, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def test_a_name_that_is_no_text_is_escaped(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Any bytes may be the name of the directory that a file lies in."""
    for name in (b"\xff\x1b[31m-0", b"big-99999999999999999999"):
        directory = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(directory)
        path = os.fsdecode(os.path.join(directory, b"0" * 20 + b".log"))
        shutil.copy(logs_in(partition)[0], path)
        for command in ("records", "batches", "tail", "stat", "verify"):
            text = run(command, path)
            assert (text.status, "\x1b" in text.out) == (0, False), text.err
            assert [
                strict(row) for row in run(command, path, "--format", "jsonl").lines
            ]
        for kind in ("jsonl", "csv", "parquet", "arrow"):
            target = tmp_path / f"out.{kind}"
            done = run("export", path, "--to", target, "--force")
            assert done.status == 0, done.err


@pytest.mark.parametrize(
    "options",
    [
        ["--from", "9" * 30],
        ["--to", "9" * 30],
        ["--from", "0001-01-01T00:00:00"],
        ["--to", "9999-12-31T23:59:59-14:00"],
        ["--from", "9" * 5000 + "ms"],
        ["--limit", "9" * 5000],
        ["--partition", "9" * 30],
        ["--max-batch-decompressed-bytes", "9" * 5000],
        ["--max-batch-decompressed-bytes", "1TiB"],
        ["--max-batch-decompressed-bytes", "0"],
    ],
    ids=" ".join,
)
def test_numbers_at_their_extremes_are_named(
    run: Any, partition: Path, options: list[str]
) -> None:
    """A result or a named error, and never a traceback."""
    for path in (partition, partition.parent, logs_in(partition)[0]):
        for name in ("records", "batches"):
            result = run(name, path, *options)
            assert result.status in (0, 2)
    assert run("tail", partition, "-n", "9" * 30).status == 0


def test_the_limit_on_decompression_is_an_option_of_all_that_decompress(
    run: Any, tmp_path: Path
) -> None:
    """With a unit or without; what is beyond it in a single file is left out, and the
    records behind it follow."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        part = new_partition(store, 2, "gzip")
        part.append_many([b"small"])
        part.append_many([bytes(100_000)])
        part.append_many([b"last"])
    log = logs_in(path / "orders-0")[0]
    option = "--max-batch-decompressed-bytes"
    assert part.name == "orders-0"
    for size in ("50KiB", "51200"):
        for name in ("records", "tail"):
            assert run(name, path, option, size).status == 2
            result = run(name, log, option, size)
            assert (result.status, len(result.lines)) == (1, 2)
            assert "max_batch_decompressed_bytes=51200" in result.err
        target = tmp_path / f"{size}.jsonl"
        assert run("export", log, "--to", target, option, size).status == 1
        assert len(target.read_text().splitlines()) == 2
        noted = run("verify", "--deep", path, option, size)
        assert "max_batch_decompressed_bytes=51200" in noted.out
        assert run("repair", path, "--dry-run", option, size).status == 0
    for name in ("records", "batches", "tail", "stat"):
        for place in (path, log):
            assert run(name, place, option, "1MiB").status == 0
    target = tmp_path / "all.jsonl"
    assert run("export", path, "--to", target, option, "2GiB").status == 2
    assert run("export", path, "--to", target, option, "1GiB").status == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_cannot_be_decompressed_in_a_file_is_left_out(
    run: Any, tmp_path: Path, magic: int
) -> None:
    """Under a right checksum: the batches behind it follow, and the status is 1."""
    path = write_store(tmp_path / "store", 30, magic, "gzip", call=10)
    log = logs_in(path)[0]
    frame = frames(log)[1]
    overwrite(log, frame.pos + frame.size - 12, b"\xff" * 8)
    fix_crc(log, frame)
    result = run("records", log)
    assert (result.status, len(result.lines)) == (1, 20)
    assert str(frame.pos) in result.err


# ------------------------------------------------------------------ batches


def test_batches_have_a_line_each(run: Any, partition: Path) -> None:
    """Of a partition, of a store, and of a file."""
    count = sum(len(frames(path)) for path in logs_in(partition))
    assert len(run("batches", partition).lines) == count
    lines = run("batches", partition.parent, "--format", "jsonl").json
    assert len(lines) == count
    assert sum(line["records"] for line in lines) == RECORDS
    path = logs_in(partition)[1]
    lines = run("batches", path, "--format", "jsonl").json
    found = frames(path)
    assert [line["position"] for line in lines] == [frame.pos for frame in found]
    assert [line["baseOffset"] for line in lines] == [frame.offset for frame in found]


def test_batches_between_bounds(run: Any, partition: Path) -> None:
    """The first holds `from`, the last begins before `to`; also of a file."""
    for path in (partition, logs_in(partition)[0]):
        options = ("--format", "jsonl", "--from", 6, "--to", 11)
        lines = run("batches", path, *options).json
        assert lines[0]["baseOffset"] <= 6 <= lines[0]["lastOffset"]
        assert lines[-1]["baseOffset"] < 11 <= lines[-1]["lastOffset"] + 1
        assert len(run("batches", path, "--limit", 2).lines) == 2


def test_batches_tell_of_transactions(run: Any) -> None:
    """Producer, transaction and marker."""
    text = run("batches", TXN).out
    assert "transactional" in text
    assert "control COMMIT" in text
    assert "control ABORT" in text
    assert "producer 5 epoch 0 sequence 0" in text


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafka_text_of_a_directory_is_that_of_its_files(
    run: Any, tmp_path: Path, magic: int, codec: str
) -> None:
    """File after file; a line a batch, and with `records` a line a record."""
    partition = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    logs = logs_in(partition)
    for name in ("batches", "records"):
        result = run(name, "--kafka", partition)
        assert result.status == 0
        each = [run(name, "--kafka", path).out for path in logs]
        assert [line for line in result.lines if line.startswith("Dumping")] == [
            f"Dumping {path}" for path in logs
        ]
        assert result.out == "".join(each)
        assert run(name, "--kafka", partition.parent).out == result.out
    batches = sum(len(frames(path)) for path in logs)
    assert result.out.count(" isvalid: true") == batches
    assert sum(line.startswith("| offset: ") for line in result.lines) == RECORDS


def test_kafka_text_of_a_record(run: Any, tmp_path: Path) -> None:
    """To the letter."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store, 2)
        orders.append(b"v", b"k", timestamp_ms=7, headers=[("a", None), ("b", b"")])
        orders.append(None, timestamp_ms=8)
    path = logs_in(tmp_path / "orders-0")[0]
    lines = run("records", "--kafka", path).lines
    assert lines[1] == "Log starting offset: 0"
    assert re.fullmatch(
        r"baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 lastSequence: -1 "
        r"producerId: -1 producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: "
        r"false isControl: false deleteHorizonMs: OptionalLong.empty position: 0 "
        r"CreateTime: 7 size: \d+ magic: 2 compresscodec: none crc: \d+ isvalid: true",
        lines[2],
    )
    assert lines[3] == (
        "| offset: 0 CreateTime: 7 keySize: 1 valueSize: 1 sequence: -1 "
        "headerKeys: [a,b] key: k payload: v"
    )
    assert lines[5] == (
        "| offset: 1 CreateTime: 8 keySize: -1 valueSize: -1 sequence: -1 "
        "headerKeys: []"
    )


def test_kafka_text_of_damage(run: Any, partition: Path) -> None:
    """A wrong checksum is not valid; what follows the last batch is counted."""
    path = logs_in(partition)[0]
    flip_bit(path, 8 * (frames(path)[0].size - 1))
    append_garbage(path, b"12345")
    result = run("batches", "--kafka", path)
    assert result.status == 1
    assert result.lines[2].endswith("isvalid: false")
    assert result.lines[-1] == f"Found 5 invalid bytes at the end of {path.name}"


# ------------------------------------------------------------------ ls, stat, index


def test_ls_has_a_row_for_each_partition(run: Any, store: Path) -> None:
    """With offsets and sizes; the segments when asked for."""
    result = run("ls", store)
    assert result.status == 0
    assert [line.split()[0] for line in result.lines] == [
        "partition",
        "clicks-0",
        "clicks-1",
        "orders-0",
    ]
    assert result.lines[1].split()[1:5] == ["0", "3", "3", "1"]
    assert f"{0:020d} *" in run("ls", store, "--segments").out
    lines = run("ls", store, "--format", "jsonl", "--topic", "orders").json
    assert [(line["topic"], line["endOffset"]) for line in lines] == [("orders", 3)]


def test_ls_of_a_partition_lists_its_segments(run: Any, partition: Path) -> None:
    """Each with its offsets."""
    text = run("ls", partition).out
    for path in logs_in(partition):
        assert path.stem in text


def test_ls_of_an_empty_store(run: Any, tmp_path: Path) -> None:
    """Is fine."""
    logstore.open(tmp_path).close()
    result = run("ls", tmp_path)
    assert (result.status, result.out) == (0, "no partitions\n")


def test_stat_counts_records_by_magic_and_codec(run: Any, tmp_path: Path) -> None:
    """Of partitions, and of files."""
    partition = write_store(tmp_path / "store", RECORDS, 2, "lz4", call=20, **SMALL)
    [line] = run("stat", partition.parent, "--format", "jsonl").json
    assert line["records"] == RECORDS
    assert line["recordsByMagic"] == {"2": RECORDS}
    assert line["recordsByCodec"] == {"lz4": RECORDS}
    assert (line["startOffset"], line["endOffset"]) == (0, RECORDS)
    assert line["segments"] == len(logs_in(partition))
    assert line["largestTimestamp"] == max(map(timestamp_of, range(RECORDS)))
    text = run("stat", partition).out
    assert f"{RECORDS} of magic 2" in text
    assert f"{RECORDS} lz4" in text
    path = logs_in(partition)[0]
    [line] = run("stat", path, "--format", "jsonl").json
    assert line["size"] == path.stat().st_size


def test_stat_of_damage_exits_one(run: Any, partition: Path) -> None:
    """After what could be counted."""
    flip_bit(logs_in(partition)[1], 8 * 30)
    result = run("stat", partition)
    assert result.status == 1
    assert "records" in result.out
    assert result.err


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_has_a_line_for_each_entry(
    run: Any, partition: Path, suffix: str
) -> None:
    """With whole offsets, also of segments that do not begin at 0."""
    path = logs_in(partition)[1].with_suffix(suffix)
    width = 8 if suffix == ".index" else 12
    lines = run("index", path, "--format", "jsonl").json
    assert len(lines) == path.stat().st_size // width > 1
    assert all(line["offset"] >= int(path.stem) for line in lines)
    assert len(run("index", path, "--limit", 1).lines) == 1


def test_index_shows_small_files(run: Any, partition: Path) -> None:
    """Checkpoints, snapshots, transaction indexes, state."""
    root = partition.parent
    [line] = run("index", root / "recovery-point-offset-checkpoint").lines
    assert line == f"topic orders  partition 0  offset {RECORDS}"
    [line] = run("index", partition / "leader-epoch-checkpoint").lines
    assert line == "epoch 0  start offset 0"
    assert "start_offset: 0" in run("index", partition / ".logstore-state").lines
    txn = next(path for path in sorted(TXN.glob("*.txnindex")) if path.stat().st_size)
    assert run("index", txn, "--format", "jsonl").json[0]["kind"] == "txnindex"
    snapshot = max(TXN.glob("*.snapshot"), key=lambda path: path.stat().st_size)
    assert "producer id 5 " in run("index", snapshot).out


def test_index_of_a_damaged_or_wrong_file(run: Any, partition: Path) -> None:
    """Damage exits 1, a log 2."""
    state = partition / ".logstore-state"
    flip_bit(state, 8 * 50)
    assert run("index", state).status == 1
    result = run("index", logs_in(partition)[0])
    assert result.status == 2
    assert "batches" in result.err


# ------------------------------------------------------------------ verify and index


def test_verify_prints_every_problem(run: Any, partition: Path) -> None:
    """And exits 1; without any it exits 0."""
    assert run("verify", partition.parent).status == 0
    first, second = logs_in(partition)[:2]
    flip_bit(first, 8 * 30)
    cut(second, second.stat().st_size - 1)
    result = run("verify", partition.parent, "--deep")
    assert result.status == 1
    found = [line.split(": ")[1] for line in result.lines if line.startswith("problem")]
    assert {"damaged-batch", "partial-batch", "lost-bytes"} <= set(found)
    lines = run("verify", partition, "--format", "jsonl").json
    assert [line["type"] for line in lines].count("problem") == len(found)
    assert lines[-1]["type"] == "summary"
    assert lines[-1]["problems"] == len(found)


def test_verify_notes_exit_zero(run: Any, tmp_path: Path) -> None:
    """A store in use."""
    with logstore.open(tmp_path) as store:
        append_one(new_partition(store))
        result = run("verify", tmp_path)
    assert result.status == 0
    assert result.lines[0].startswith("note: unclean-stop: ")


def test_rebuild_index_prints_what_it_built(run: Any, partition: Path) -> None:
    """And does nothing in a dry run."""
    index = logs_in(partition)[0].with_suffix(".index")
    before = index.read_bytes()
    index.unlink()
    result = run("rebuild-index", partition, "--dry-run")
    assert result.status == 0
    assert "would build" in result.out
    assert not index.exists()
    lines = run("rebuild-index", partition.parent, "--format", "jsonl").json
    assert len(lines) == len(logs_in(partition))
    assert index.read_bytes() == before


def test_rebuild_index_under_a_writer_exits_two(run: Any, partition: Path) -> None:
    """A damaged log exits 1."""
    with logstore.open(partition.parent):
        result = run("rebuild-index", partition)
    assert result.status == 2
    assert "open for writing" in result.err
    flip_bit(logs_in(partition)[0], 8 * 30)
    assert run("rebuild-index", partition).status == 1


# ------------------------------------------------------------------ tail


@pytest.mark.parametrize("count", [0, 1, 7, RECORDS, 1000])
def test_tail_prints_the_last_records(run: Any, partition: Path, count: int) -> None:
    """Oldest first; of a partition, and of a file."""
    lines = run("tail", partition, "-n", count, "--format", "jsonl").json
    start = max(RECORDS - count, 0)
    assert [line["offset"] for line in lines] == list(range(start, RECORDS))
    path = logs_in(partition)[-1]
    start = max(RECORDS - count, int(path.stem))
    lines = run("tail", path, "-n", count, "--format", "jsonl").json
    assert [line["offset"] for line in lines] == list(range(start, RECORDS))


def test_tail_reaches_over_gaps(run: Any) -> None:
    """Offsets of markers and aborted records are no records."""
    options = ("-n", 40, "--format", "jsonl", "--isolation", "read_committed")
    lines = run("tail", TXN, *options).json
    every = run("records", TXN, "--format", "jsonl", *options[4:]).json
    assert lines == every[-40:]


def test_tail_follow_of_a_file_exits_two(run: Any, partition: Path) -> None:
    """Files are looked at as they are."""
    assert run("tail", "-f", logs_in(partition)[0]).status == 2


def command(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """`logstore-dump` as a process. It hears an interrupt, also where whoever runs the
    tests in the background does not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "logstore.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_tail_follows_a_writer_until_interrupted(tmp_path: Path) -> None:
    """Records that another process appends; then exit status 130."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store)
        append_one(orders)
        process = command("tail", "-f", tmp_path, "--format", "jsonl")
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        for _ in range(3):
            append_one(orders)
        found = [json.loads(process.stdout.readline())["offset"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (first["offset"], found) == (0, [1, 2, 3])
    assert process.returncode == 130
    assert "Traceback" not in error


def test_a_closed_pipe_ends_it_quietly(partition: Path) -> None:
    """As `| head` does."""
    with logstore.open(partition.parent) as store:
        store.topic("orders")[0].append_many([b"x" * 200] * 20_000)
    process = command("records", partition)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("kind", [".parquet", ".arrow"])
@pytest.mark.parametrize("source", ["partition", "file"])
def test_export_to_arrow_has_every_record(
    run: Any, partition: Path, tmp_path: Path, kind: str, source: str
) -> None:
    """The columns of the Kafka source, with headers."""
    pyarrow = pytest.importorskip("pyarrow")
    target = tmp_path / f"out{kind}"
    path = partition if source == "partition" else logs_in(partition)[0]
    result = run("export", path, "--to", target)
    assert result.status == 0, result.err
    if kind == ".parquet":
        table = importlib.import_module("pyarrow.parquet").read_table(target)
    else:
        table = pyarrow.ipc.open_file(target).read_all()
    end = RECORDS if source == "partition" else int(logs_in(partition)[1].stem)
    wanted = expected(2, 0, end)
    assert table["offset"].to_pylist() == [record.offset for record in wanted]
    assert table["value"].to_pylist() == [record.value for record in wanted]
    assert table["key"].to_pylist() == [record.key for record in wanted]
    assert set(table["topic"].to_pylist()) == {"orders"}
    headers = [
        tuple((h["key"], h["value"]) for h in row or ())
        for row in table["headers"].to_pylist()
    ]
    assert headers == [record.headers for record in wanted]


def test_export_to_jsonl_is_what_records_prints(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Between the same bounds."""
    target = tmp_path / "out.jsonl"
    bounds = ("--from", 5, "--until", 9, "--payload", "base64")
    assert run("export", partition, "--to", target, *bounds).status == 0
    options = ("--format", "jsonl", "--from", 5, "--to", 9, "--payload", "base64")
    assert target.read_text() == run("records", partition, *options).out


def test_export_to_csv_has_a_row_for_each_record(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Below a head; headers as JSON."""
    target = tmp_path / "out.csv"
    assert run("export", partition, "--to", target, "--payload", "hex").status == 0
    with target.open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:3] == ["topic", "partition", "offset"]
    for offset, row in enumerate(rows):
        record = record_of(offset, 2)
        assert row[:4] == ["orders", "0", str(offset), str(record.timestamp_ms)]
        assert row[5:7] == [(record.key or b"").hex(), (record.value or b"").hex()]
        assert len(json.loads(row[7] or "[]")) == len(record.headers)
    assert len(rows) == RECORDS


def test_export_refuses_what_it_must(run: Any, partition: Path, tmp_path: Path) -> None:
    """A name of no known kind, and a file that is there (but for --force)."""
    assert run("export", partition, "--to", tmp_path / "out.xml").status == 2
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    result = run("export", partition, "--to", target)
    assert result.status == 2
    assert "--force" in result.err
    assert target.read_text() == "mine"
    assert run("export", partition, "--to", target, "--force").status == 0
    assert len(target.read_text().splitlines()) == RECORDS


def test_export_that_fails_leaves_no_file(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Neither whole nor part of it."""
    flip_bit(logs_in(partition)[1], 8 * 30)
    for kind in (".jsonl", ".csv", ".parquet"):
        target = tmp_path / "out" / f"x{kind}"
        target.parent.mkdir(exist_ok=True)
        result = run("export", partition, "--to", target)
        assert result.status == 1
        assert os.listdir(target.parent) == []


def test_export_without_pyarrow_says_so(
    run: Any, partition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to do; text needs none."""
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    result = run("export", partition, "--to", tmp_path / "out.parquet")
    assert result.status == 2
    assert "pip install 'pylogstore[arrow]'" in result.err
    assert run("export", partition, "--to", tmp_path / "out.csv").status == 0


# ------------------------------------------------------------------ reading only


def test_the_commands_change_nothing(run: Any, partition: Path) -> None:
    """Nor do they open a file of the store for writing."""
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in [partition.parent, *partition.parent.rglob("*")]
    }
    for name in ("ls", "records", "batches", "stat", "tail", "verify"):
        assert run(name, partition.parent).status == 0
        assert run(name, partition).status == 0
    assert before == {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in [partition.parent, *partition.parent.rglob("*")]
    }


# ------------------------------------------------------------------ repair


def damaged(partition: Path) -> Path:
    """One batch of the second segment is damaged."""
    log = logs_in(partition)[1]
    frame = frames(log)[1]
    flip_bit(log, 8 * (frame.pos + frame.size - 2))
    return log


def test_repair_in_a_pipe_needs_yes(run: Any, partition: Path) -> None:
    """It prints the plan, changes nothing, and ends with 2."""
    log = damaged(partition)
    before = log.read_bytes()
    result = run("repair", partition)
    assert result.status == 2
    assert "--yes" in result.err
    assert result.lines[0].startswith("would do: cut: ")
    assert log.read_bytes() == before


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_with_yes_mends(run: Any, partition: Path, mode: str) -> None:
    """Status 0, where it was kept, and nothing to do the next time."""
    damaged(partition)
    looked = run("repair", partition, "--mode", mode, "--dry-run")
    assert looked.status == 1
    result = run("repair", partition, "--mode", mode, "--yes")
    assert result.status == 0
    assert any(".logstore-quarantine-" in line for line in result.lines)
    assert run("verify", "--deep", partition).status == 0
    again = run("repair", partition, "--mode", mode)
    assert (again.status, again.lines) == (
        0,
        ["done: 0 actions, 0 B out of the log, no problems left"],
    )


def test_repair_jsonl_has_actions_and_a_summary(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """One object a line; `--quarantine` is where they are kept."""
    damaged(partition)
    aside = tmp_path / "aside"
    result = run(
        "repair", partition, "--yes", "--quarantine", aside, "--format", "jsonl"
    )
    assert [line["type"] for line in result.json][-1] == "summary"
    assert result.json[0]["label"] == "cut"
    assert result.json[0]["kept_at"].startswith(str(aside))
    assert result.json[-1]["ok"] is True


def test_repair_to_another_directory_asks_nothing(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """The original is only read."""
    log = damaged(partition)
    before = log.read_bytes()
    to = tmp_path / "salvaged"
    assert run("repair", partition.parent, "--mode", "skip", "--to", to).status == 0
    assert log.read_bytes() == before
    assert run("verify", to).status == 0
    assert run("repair", partition, "--to", to, "--dry-run").status == 2


def test_repair_of_what_is_left_alone_exits_one(run: Any, partition: Path) -> None:
    """A magic above 2: the problem is printed and stays."""
    log = logs_in(partition)[0]
    data = bytearray(log.read_bytes())
    data[16] = 3
    log.write_bytes(data)
    result = run("repair", partition, "--yes")
    assert result.status == 1
    assert result.lines[0].startswith("done: left-alone: ")
    assert any(line.startswith("problem: unsupported: ") for line in result.lines)


@pytest.mark.parametrize(("answer", "status"), [("orders-0\n", 0), ("yes\n", 2)])
def test_repair_on_a_terminal_asks_for_the_name(
    run: Any,
    partition: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: int,
) -> None:
    """Only the exact name goes on."""
    log = damaged(partition)
    before = log.read_bytes()
    keyboard = Terminal(answer)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    result = run("repair", partition)
    assert result.status == status
    assert "Type orders-0 to go on: " in result.err
    assert (log.read_bytes() == before) == (status == 2)


def test_verify_threads(run: Any, partition: Path) -> None:
    """The same lines for any number."""
    damaged(partition)
    one = run("verify", partition, "--threads", 1)
    assert one.status == 1
    assert run("verify", partition, "--threads", 3).lines == one.lines
    assert run("verify", partition, "--threads", 0).status == 2
