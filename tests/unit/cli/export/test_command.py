"""`logstore-dump export`."""

from __future__ import annotations

import csv
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.cli import RECORDS
from support.damage import (
    flip_bit,
    logs_in,
)
from support.values import (
    expected,
    record_of,
)


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
    """The bounds are the same."""
    target = tmp_path / "out.jsonl"
    bounds = ("--from", 5, "--until", 9, "--payload", "base64")
    assert run("export", partition, "--to", target, *bounds).status == 0
    options = ("--format", "jsonl", "--from", 5, "--to", 9, "--payload", "base64")
    assert target.read_text() == run("records", partition, *options).out


def test_export_to_csv_has_a_row_for_each_record(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """The rows follow a head; headers are JSON."""
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
    """An unknown kind, and an existing file (without --force)."""
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
    """No file stays, neither whole nor partial."""
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
    """The error has the remedy; text needs no pyarrow."""
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


def test_the_commands_change_nothing(run: Any, partition: Path) -> None:
    """No file of the store is opened for writing."""
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


def rows_in(path: Path) -> int:
    """The number of records in an exported file."""
    if path.suffix == ".jsonl":
        return len(path.read_text().splitlines())
    if path.suffix == ".csv":
        return len(path.read_text().splitlines()) - 1
    if path.suffix == ".parquet":
        return int(pytest.importorskip("pyarrow.parquet").read_table(path).num_rows)
    with path.open("rb") as file:
        return int(
            pytest.importorskip("pyarrow").ipc.open_file(file).read_all().num_rows
        )


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("skip", "limit", "count"),
    [(0, 0, 0), (0, 4, 4), (2, 4, 4), (8, 4, 1), (9, 4, 0), (4, None, 5), (0, 99, 9)],
)
def test_export_writes_what_skip_and_limit_leave(
    run: Any,
    store: Path,
    tmp_path: Path,
    kind: str,
    skip: int,
    limit: int | None,
    count: int,
) -> None:
    """`--limit` counts all partitions together; `--format` overrides the name of the
    file."""
    target = tmp_path / f"out.{kind}"
    options = ["--skip", skip] + ([] if limit is None else ["--limit", limit])
    assert run("export", store, "-o", target, *options).status == 0
    assert rows_in(target) == count
    other = tmp_path / "out"
    assert run("export", store, "-o", other, "--format", kind, *options).status == 0
    assert other.read_bytes() == target.read_bytes()
    if kind == "jsonl":
        words = ("records", store, "--format", "jsonl", *options)
        assert target.read_text() == run(*words).out
    file = logs_in(store / "orders-0")[0]
    few = run("export", file, "-o", tmp_path / f"one.{kind}", "--skip", 1, "--limit", 1)
    assert few.status == 0
    assert rows_in(tmp_path / f"one.{kind}") == 1


def test_export_with_a_limit_reads_no_further(
    run: Any, store: Path, tmp_path: Path
) -> None:
    """Damage after the limit is ignored; each topic has a separate limit."""
    flip_bit(logs_in(store / "orders-0")[0], 8 * 30)
    for kind in ("jsonl", "parquet"):
        target = tmp_path / f"x.{kind}"
        result = run("export", store, "-o", target, "--limit", 5)
        assert (result.status, result.err) == (0, "")
        assert rows_in(target) == 5
    directory = f"{tmp_path}{os.sep}"
    topics = "--topic", "clicks"
    words = ("export", store, "--per-topic", "-o", directory, "--limit", 2)
    assert run(*words, *topics).status == 0
    assert rows_in(tmp_path / "clicks.jsonl") == 2


def test_export_refuses_a_format_that_is_none(run: Any, store: Path) -> None:
    """`text` is not one: `records` prints that."""
    result = run("export", store, "-o", "-", "--format", "text")
    assert (result.status, "jsonl" in result.err) == (2, True)
    assert "did you mean --format?" in run("export", store, "--kind", "csv").err
