"""`logstore-dump verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import RECORDS, SMALL
from support.damage import cut, flip_bit, logs_in
from support.values import append_one, new_partition, write_store


def test_verify_prints_every_problem(run: Any, partition: Path) -> None:
    """The status is 1; without a problem it is 0."""
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
    """The store is in use."""
    with logstore.open(tmp_path) as store:
        append_one(new_partition(store))
        result = run("verify", tmp_path)
    assert result.status == 0
    assert result.lines[0].startswith("note: unclean-stop: ")


def test_verify_threads(run: Any, partition: Path) -> None:
    """The same lines for any number."""
    flip_bit(logs_in(partition)[1], 8 * 30)
    one = run("verify", partition, "--threads", 1)
    assert one.status == 1
    assert run("verify", partition, "--threads", 3).lines == one.lines
    assert run("verify", partition, "--threads", 0).status == 2


def test_verify_prints_problems_last(run: Any, tmp_path: Path) -> None:
    """They follow the notes; the counts follow both."""
    path = write_store(tmp_path / "store", RECORDS, magic=2, **SMALL)
    flip_bit(logs_in(path)[0], 8 * 30)
    with logstore.open(path.parent) as store:
        store.create_topic("other")[0].append(b"x")
        result = run("verify", path.parent)
    kinds = [line.split(":")[0] for line in result.lines]
    assert kinds[0] == "note"
    assert kinds[-2] == "problem"
    assert kinds[:-1] == sorted(kinds[:-1])
    assert result.lines[-1].startswith("checked 4 segments, ")
    assert result.lines[-1].endswith("1 problem, 1 note")


def test_verify_groups_notes(run: Any, tmp_path: Path) -> None:
    """Equal notes about several files share a line; `--verbose` prints one each; JSON
    lines have all."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        for part in store.create_topic("t", partitions=4):
            part.append(b"x" * 100)
    (path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (path / ".logstore-owner").unlink(missing_ok=True)
    for index in path.rglob("*.index"):
        index.write_bytes(index.read_bytes() + bytes(64))
    count = len(list(path.rglob("*.index")))
    lines = run("verify", path, "--format", "jsonl").json
    found = [line for line in lines if line.get("kind") == "zero-tail"]
    assert len(found) == count == 4
    assert {(line["topic"], line["partition"]) for line in found} == {
        ("t", number) for number in range(4)
    }
    text = run("verify", path).out
    assert "note: zero-tail: 4 indexes with zeros after their entries\n" in text
    assert run("verify", path, "--verbose").out.count("note: zero-tail: ") == 4


def test_verify_groups_problems_of_indexes(run: Any, tmp_path: Path) -> None:
    """More than three of a kind are a line; `--verbose` and JSON lines have them all,
    and damage of logs is a line each."""
    small = {**SMALL, "segment_bytes": 400}
    partition = write_store(tmp_path / "store", RECORDS, magic=2, **small)
    logs = logs_in(partition)[:5]
    for log in logs:
        index = log.with_suffix(".timeindex")
        index.write_bytes(index.read_bytes() + b"x")
        flip_bit(log, 8 * 30)
    text = run("verify", partition).lines
    indexes = [line for line in text if line.startswith("problem: time-index: ")]
    assert len(indexes) == 1
    assert indexes[0].endswith(" (and 4 more of this kind, see --verbose)")
    damaged = [line for line in text if line.startswith("problem: damaged-batch: ")]
    assert len(damaged) == 5
    assert run("verify", "-v", partition).out.count("problem: time-index: ") == 5
    lines = run("verify", partition, "--format", "jsonl").json
    assert [line.get("kind") for line in lines].count("time-index") == 5


def test_verify_messages_have_relative_paths(
    run: Any, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths below the working directory are relative; JSON lines have absolute ones."""
    flip_bit(logs_in(partition)[0], 8 * 30)
    monkeypatch.chdir(partition.parent)
    result = run("verify", ".")
    assert f"damaged-batch: orders-0/{logs_in(partition)[0].name} is" in result.out
    assert str(partition) not in result.out
    line = run("verify", ".", "--format", "jsonl").json[0]
    assert line["path"] == str(logs_in(partition)[0])
    assert {"schema", "topic", "partition", "firstOffset", "lastOffset"} <= set(line)


def test_verify_html_is_the_report(
    run: Any, partition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to a file or to standard output; the status is that of the check."""

    class Report:
        def __init__(self, path: str, **_: object) -> None:
            self.path = path
            self.ok = logstore.verify(path).ok

        def to_html(self) -> str:
            return f"<html>{self.path}</html>"

    monkeypatch.setattr(logstore, "report", Report, raising=False)
    html = f"<html>{partition.parent}</html>"
    result = run("verify", partition.parent, "--format", "html")
    assert (result.status, result.out) == (0, html)
    target = tmp_path / "r.html"
    flip_bit(logs_in(partition)[0], 8 * 30)
    result = run("verify", partition.parent, "--format", "html", "-o", target)
    assert (result.status, result.out, target.read_text()) == (1, "", html)
    assert run("verify", partition, "-o", target).status == 2
    assert run("verify", partition, partition, "--format", "html").status == 2


@pytest.mark.parametrize("place", ["store", "partition", "empty", "bare", "other"])
def test_verify_and_the_command_agree_what_a_directory_is(
    run: Any, partition: Path, tmp_path: Path, place: str
) -> None:
    """A store, a partition, one that has lost its files, one without its store, or
    nothing of a log."""
    path = {
        "store": partition.parent,
        "partition": partition,
        "empty": partition.parent / "orders-1",
        "bare": tmp_path / "elsewhere" / "orders-0",
        "other": tmp_path / "elsewhere" / "orders-1",
    }[place]
    if place == "bare":
        path.parent.mkdir()
        partition.rename(path)
    path.mkdir(parents=True, exist_ok=True)
    statuses = {run(name, path).status == 2 for name in ("verify", "stat")}
    assert statuses == {place == "other"} or place == "empty"
    if place == "empty":
        assert run("verify", path).status == 0
