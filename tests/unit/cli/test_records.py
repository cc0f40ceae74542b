"""`logstore-dump records` and `tail`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.text import quoted, time_text
from support.cli import RECORDS, TXN, command, strict
from support.damage import (
    append_garbage,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
)
from support.values import (
    FIRST_TIMESTAMP,
    append_one,
    key_of,
    new_partition,
    timestamp_of,
    value_of,
    write_store,
)


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
    """A value that is no JSON is text."""
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
    """The lower bound is included, the upper one is not, also by time."""
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
    """The message has the range; for a store each partition prints its records in
    it."""
    result = run("records", partition, "--from", RECORDS + 5)
    assert result.status == 2
    assert f"[0, {RECORDS}]" in result.err


def test_records_of_one_file_are_those_in_it(run: Any, partition: Path) -> None:
    """The bounds apply as well."""
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
    """A regular expression on bytes; the limit counts printed records."""
    result = run("records", store, "--grep", r"orders-0/[12]$")
    assert [line.split()[1] for line in result.lines] == ["1", "2"]
    result = run("records", store, "--grep", "clicks", "--limit", 4)
    assert len(result.lines) == 4


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 500])
def test_records_grep_of_no_expression_is_a_usage_error(
    run: Any, store: Path, pattern: str
) -> None:
    """An expression that is too large for Python is one, too."""
    result = run("records", store, "--grep", pattern)
    assert result.status == 2
    assert "is not a regular expression" in result.err
    assert "Traceback" not in result.err


def test_records_of_a_store_can_be_chosen(run: Any, store: Path) -> None:
    """They are chosen by topic and partition."""

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
    """A partition: all records before it; a file: those after it, too."""
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
        assert "incomplete batch" in result.err
    assert run("records", "--kafka", path).status == 0


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# No crash leaves such bytes: no batch begins with them.
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
    """A file that is no log is not called one of a newer version."""
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


def test_partition_whose_directory_is_gone_exits_one(run: Any, tmp_path: Path) -> None:
    """The other partitions are read."""
    with logstore.open(tmp_path / "store") as store:
        topic = store.create_topic("orders", 2)
        topic[0].append(b"lost")
        topic[1].append(b"kept")
    shutil.rmtree(tmp_path / "store" / "orders-0")
    result = run("records", tmp_path / "store")
    assert result.status == 1
    assert "kept" in result.out
    assert "the directory of partition orders-0 is gone" in result.err


@pytest.mark.parametrize("payload", ["json", "utf8", "hex"])
@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_value_that_cannot_be_shown_does_not_end_the_listing(
    run: Any, tmp_path: Path, form: str, payload: str
) -> None:
    """A line of JSON is accepted by every parser, whatever the value."""
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
        b'[{"a": 1, "b": 2, "a": 3}]',
        b'{"n": 2}',
    ]
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", config=logstore.TopicConfig(message_format=2))
        for value in values:
            topic[0].append(value, value, headers=[("\U0001f600", value)])
    result = run("records", tmp_path, "--payload", payload, "--format", form)
    assert (result.status, len(result.lines)) == (0, len(values)), result.err
    result.out.encode("utf-8")
    if form == "jsonl":
        rows = [strict(line) for line in result.lines]
        if payload == "json":
            assert [rows[0]["value"], rows[-1]["value"]] == [{"n": 1}, {"n": 2}]
            assert rows[1]["value"] == '{"s": "\\ud800"}'
            assert rows[4]["value"] == "\U0001f600"
            assert rows[5]["value"] == "[NaN, -Infinity]"
            assert rows[-2]["value"] == '[{"a": 1, "b": 2, "a": 3}]'
    for kind in ("jsonl", "csv"):
        target = tmp_path / f"out.{kind}"
        done = run("export", tmp_path, "--to", target, "--payload", payload)
        assert done.status == 0, done.err
        if kind == "jsonl":
            assert len([strict(line) for line in target.open()]) == len(values)


@pytest.mark.parametrize("name", ["records", "batches", "export"])
@pytest.mark.parametrize(
    ("start", "stop"),
    [
        ("20", "10"),
        ("-5", "-10"),
        ("2024-05-02", "2024-05-01"),
        ("1714564800000ms", "2024-01-01T00:00:00Z"),
    ],
)
def test_bounds_in_the_wrong_order_are_a_usage_error(
    run: Any, partition: Path, name: str, start: str, stop: str
) -> None:
    """Nothing can lie between them, whatever the log."""
    target = ("-o", "-") if name == "export" else ()
    bounds = ("--from", start, "--until", stop)
    result = run(name, partition, *bounds, *target)
    assert (result.status, result.out) == (2, "")
    assert "there is nothing between them" in result.err
    for same in ("10", "-5", "2024-05-02"):
        bounds = ("--from", same, "--until", same)
        result = run(name, partition, *bounds, *target)
        assert (result.status, result.out, result.err) == (0, "", "")


def test_a_name_that_is_no_text_is_escaped(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Any bytes may be the name of the directory that a file lies in."""
    for name in (b"\xff\x1b[31m-0", b"big-99999999999999999999"):
        directory = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(directory)
        path = os.fsdecode(os.path.join(directory, b"0" * 20 + b".log"))
        shutil.copy(logs_in(partition)[0], path)
        for name_of in ("records", "batches", "tail", "stat", "verify"):
            text = run(name_of, path)
            assert (text.status, "\x1b" in text.out) == (0, False), text.err
            assert [
                strict(row) for row in run(name_of, path, "--format", "jsonl").lines
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
    """It may have a unit; larger batches of a single file are left out, and the records
    after them follow."""
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
            assert f"51200 bytes; {option} raises that limit" in result.err
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
    """The checksum is right: the batches after it follow, and the status is 1."""
    path = write_store(tmp_path / "store", 30, magic, "gzip", call=10)
    log = logs_in(path)[0]
    frame = frames(log)[1]
    overwrite(log, frame.pos + frame.size - 12, b"\xff" * 8)
    fix_crc(log, frame)
    result = run("records", log)
    assert (result.status, len(result.lines)) == (1, 20)
    assert str(frame.pos) in result.err


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
    """Files are not followed."""
    assert run("tail", "-f", logs_in(partition)[0]).status == 2


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


# ------------------------------------------------------------------ selection


@pytest.fixture
def shelves(tmp_path: Path) -> Path:
    """Topics a, ab and b, of two partitions with ten records each."""
    path = tmp_path / "shelves"
    with logstore.open(path) as opened:
        for name in ("a", "ab", "b"):
            for part in opened.create_topic(name, partitions=2):
                for number in range(10):
                    part.append(b"%d" % number)
    return path


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--topic", "a"], {"a-0", "a-1"}),
        (["--topic", "a*"], {"a-0", "a-1", "ab-0", "ab-1"}),
        (["--topic", "a", "--topic", "b"], {"a-0", "a-1", "b-0", "b-1"}),
        (["--topic", "?b", "--partition", 1], {"ab-1"}),
        (["--topic", "b", "--partition", 1, "--partition", 0], {"b-0", "b-1"}),
    ],
)
@pytest.mark.parametrize("name", ["records", "batches", "tail", "ls", "stat"])
def test_topics_are_chosen_by_patterns(
    run: Any, shelves: Path, name: str, options: list[object], names: set[str]
) -> None:
    """Every subcommand that reads partitions has patterns; both options may be
    repeated."""
    result = run(name, shelves, "--format", "jsonl", *options)
    assert result.status == 0
    assert {f"{x['topic']}-{x['partition']}" for x in result.json} == names


def test_a_pattern_that_chooses_nothing_exits_two(run: Any, shelves: Path) -> None:
    """The message has a suggestion, or the existing names."""
    result = run("records", shelves, "--topic", "x*")
    assert (result.status, "it has a, ab, b" in result.err) == (2, True)
    assert run("records", shelves, "--partition", 7).status == 2


def test_the_last_records_are_counted_from_the_end(run: Any, shelves: Path) -> None:
    """They are counted in each partition; `--until -N` ends before them."""

    def offsets(*options: object) -> list[tuple[str, int]]:
        lines = run("records", shelves, "--format", "jsonl", *options).json
        return [(line["topic"], line["offset"]) for line in lines]

    some = ("--topic", "ab", "--partition", 0)
    assert offsets(*some, "--from", -3) == [("ab", 7), ("ab", 8), ("ab", 9)]
    assert offsets(*some, "--until", -8) == [("ab", 0), ("ab", 1)]
    assert offsets(*some, "--from", -4, "--until", -2) == [("ab", 6), ("ab", 7)]
    assert len(offsets("--from", -2)) == 12
    assert len(offsets("--from", -1000)) == 60
    assert offsets("--from", "-0") == []


def test_the_last_records_are_records(run: Any) -> None:
    """Markers of transactions do not count, nor aborted records if these are
    excluded."""
    for isolation in ("read_uncommitted", "read_committed"):
        options = ("--format", "jsonl", "--isolation", isolation)
        every = run("records", TXN, *options).json
        assert run("records", TXN, *options, "--from", -7).json == every[-7:]


def test_the_last_records_of_a_file(run: Any, partition: Path) -> None:
    """A file gives the same as a partition."""
    log = logs_in(partition)[0]
    every = run("records", log, "--format", "jsonl").json
    assert run("records", log, "--format", "jsonl", "--from", -4).json == every[-4:]
    assert run("records", log, "--format", "jsonl", "--until", -4).json == every[:-4]


@pytest.mark.parametrize("name", ["records", "batches"])
def test_skip_comes_before_limit(run: Any, shelves: Path, name: str) -> None:
    """Both count records that would be printed."""
    every = run(name, shelves).lines
    assert run(name, shelves, "--skip", 5, "--limit", 10).lines == every[5:15]
    assert run(name, shelves, "--skip", 1000).lines == []
    huge = "9" * 30
    assert run(name, shelves, "--skip", huge, "--limit", huge).lines == []
    if name == "records":
        options = ("--grep", "^[5-9]$", "--skip", 3, "--limit", 1)
        assert [line.split()[1] for line in run(name, shelves, *options).lines] == ["8"]
