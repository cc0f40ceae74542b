"""Targets of an export: kinds, compression, standard output, one file per topic."""

from __future__ import annotations

import gzip
import importlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

import logstore
from logstore.cli.export.rows import rows_of
from logstore.cli.export.targets import kind_of_name
from logstore.cli.main import main
from logstore.cli.schema import dumps, record_line
from support.cli import command


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("a.jsonl", None, ("jsonl", "")),
        ("a.csv.gz", None, ("csv", ".gz")),
        ("A.JSONL.ZST", None, ("jsonl", ".zst")),
        ("a.parquet", None, ("parquet", "")),
        ("a.b", "arrow", ("arrow", "")),
        ("a.gz", "csv", ("csv", ".gz")),
        ("-", None, ("jsonl", "")),
        ("-", "csv", ("csv", "")),
    ],
)
def test_the_name_tells_the_kind(
    name: str, kind: str | None, found: tuple[str, str]
) -> None:
    """`--format` overrides it."""
    assert kind_of_name(name, kind) == found


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "a.parquet.gz", "a.arrow.zst"])
def test_a_name_that_tells_nothing_is_refused(name: str) -> None:
    """Parquet and Arrow files are compressed inside."""
    with pytest.raises(logstore.ConfigError):
        kind_of_name(name, None)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_compressed_files_hold_what_plain_ones_hold(
    run: Any, store: Path, tmp_path: Path, kind: str
) -> None:
    """The end of the name selects the compression."""
    plain, packed, quick = (
        tmp_path / f"x.{kind}{suffix}" for suffix in ("", ".gz", ".zst")
    )
    for target in (plain, packed, quick):
        assert run("export", store, "-o", target).status == 0
    data = plain.read_bytes()
    assert len(data.splitlines()) >= 9
    assert gzip.decompress(packed.read_bytes()) == data
    assert zstandard.ZstdDecompressor().stream_reader(quick.read_bytes()).read() == data


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "zstd")],
)
def test_every_target_gets_the_lines_of_all_records(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The size of records decides how many are written at a time, and changes
    nothing."""
    rng = random.Random(magic)
    sizes = [0, 7, 100] * 400 + [1000, 300_000, 70_000, 1] * 4 + [8] * 2000
    config = logstore.TopicConfig(message_format=magic, compression_type=codec)
    with logstore.open(tmp_path / "store") as opened:
        part = opened.create_topic("t", partitions=1, config=config)[0]
        for size in sizes:
            value = rng.choice((None, rng.randbytes(size), b"\x7f" * size))
            key = rng.choice((None, rng.randbytes(8), b"key"))
            headers = [("é\x7f", value)] if magic == 2 and size == 7 else []
            part.append(value, key, headers=headers)
        records = list(part.read())
    expected = {
        "jsonl": b"".join(dumps(record_line("t", 0, r)) + b"\n" for r in records),
        "csv": rows_of("csv", "auto", "ms").encode("t", 0, records),
    }
    expected["csv"] = rows_of("csv", "auto", "ms").head() + expected["csv"]
    for kind, data in expected.items():
        plain, packed, quick = (
            tmp_path / f"x.{kind}{suffix}" for suffix in ("", ".gz", ".zst")
        )
        for target in (plain, packed, quick):
            assert main(["export", str(tmp_path / "store"), "-o", str(target)]) == 0
        assert plain.read_bytes() == data
        assert gzip.decompress(packed.read_bytes()) == data
        reader = zstandard.ZstdDecompressor().stream_reader(quick.read_bytes())
        assert reader.read() == data
        words = ["export", str(tmp_path / "store"), "-o", "-", "--format", kind]
        done = subprocess.run(
            [sys.executable, "-m", "logstore", *words], capture_output=True, check=True
        )
        assert (done.stdout, done.stderr) == (data, b"")


def test_standard_output_gets_the_rows_and_nothing_else(
    run: Any, store: Path, tmp_path: Path
) -> None:
    """The rows are JSON lines, or in the format of `--format`."""
    for kind in ("jsonl", "csv"):
        target = tmp_path / f"x.{kind}"
        assert run("export", store, "-o", target).status == 0
        result = run("export", store, "-o", "-", "--format", kind)
        assert (result.status, result.err) == (0, "")
        assert result.out == target.read_text("utf-8")
    assert run("export", store, "-o", "-").out.startswith('{"schema":1,')


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_column_files_go_to_a_pipe(store: Path, tmp_path: Path, kind: str) -> None:
    """Byte for byte a file of that kind."""
    pyarrow = importlib.import_module("pyarrow")
    target = tmp_path / "out"
    with target.open("wb") as file:
        words = command("export", store, "-o", "-", "--format", kind).args
        assert isinstance(words, list)
        subprocess.run(words, stdout=file, check=True)
    if kind == "parquet":
        table = importlib.import_module("pyarrow.parquet").read_table(target)
    else:
        table = pyarrow.ipc.open_file(target).read_all()
    assert table.num_rows == 9


def test_one_file_a_topic(run: Any, store: Path, tmp_path: Path) -> None:
    """The name has a pattern, or is a directory; each file has its own records."""
    pattern = tmp_path / "of-{topic}.jsonl"
    result = run("export", store, "--per-topic", "-o", pattern)
    assert result.status == 0
    assert len(result.lines) == 2
    directory = tmp_path / "files"
    directory.mkdir()
    options = ("--per-topic", "--format", "csv", "-o", directory)
    assert run("export", store, *options).status == 0
    for topic, count in (("clicks", 6), ("orders", 3)):
        lines = (tmp_path / f"of-{topic}.jsonl").read_text().splitlines()
        assert len(lines) == count
        assert all(f'"topic":"{topic}"' in line for line in lines)
        assert len((directory / f"{topic}.csv").read_text().splitlines()) == count + 1
    # Nothing is written if one of the files is there.
    (tmp_path / "of-clicks.jsonl").unlink()
    assert run("export", store, "--per-topic", "-o", pattern).status == 2
    assert not (tmp_path / "of-clicks.jsonl").exists()


@pytest.mark.parametrize("output", ["one.jsonl", "-"])
def test_one_file_a_topic_needs_a_place_for_its_name(
    run: Any, store: Path, tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name without `{topic}` would be overwritten for each topic."""
    monkeypatch.chdir(tmp_path)
    assert run("export", store, "--per-topic", "-o", output).status == 2
    assert not (tmp_path / "one.jsonl").exists()


def test_a_full_disk_leaves_no_part(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part stays, of a plain or of a compressed file."""
    target = importlib.import_module("logstore.cli.export.rows")

    def refuse(*_: Any) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target.JsonRows, "encode", refuse)
    for name in ("x.jsonl", "x.jsonl.gz", "x.jsonl.zst"):
        result = run("export", store, "-o", tmp_path / name)
        assert (result.status, "No space left" in result.err) == (2, True)
    assert not list(tmp_path.glob("x*"))
