"""`logstore-dump repair`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli import RECORDS, SMALL, Terminal
from support.damage import (
    flip_bit,
    frames,
    logs_in,
)
from support.values import write_store


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
    result = run("repair", partition, "--mode", "cut")
    assert result.status == 2
    assert "--yes" in result.err
    assert result.lines[0].startswith("would do: cut: ")
    assert log.read_bytes() == before


@pytest.mark.parametrize("options", [[], ["--yes"], ["--to", "x"]], ids=" ".join)
def test_repair_has_no_default_mode(
    run: Any, partition: Path, options: list[str]
) -> None:
    """Without one it shows the loss of each, changes nothing, and names the option."""
    log = damaged(partition)
    before = sorted(partition.parent.rglob("*"))
    frame = frames(log)[1]
    lost = frames(log)[2].offset - frame.offset
    result = run("repair", partition, *options)
    assert result.status == 2
    assert "give --mode cut or --mode skip" in result.err
    rows = {line.split()[0]: line.split() for line in result.lines if line}
    behind = RECORDS - frame.offset
    cut = ["cut", "1", str(behind), "at", "most", f"{behind},", str(behind - lost)]
    assert rows["cut"][:7] == cut
    assert rows["skip"][:7] == ["skip", "1", str(lost), "at", "most", f"{lost},", "0"]
    assert sorted(partition.parent.rglob("*")) == before


def test_repair_without_a_mode_in_a_dry_run_shows_both(
    run: Any, partition: Path
) -> None:
    """Status 1: there is something to do. JSON lines have each plan and its loss."""
    damaged(partition)
    result = run("repair", partition, "--dry-run")
    assert result.status == 1
    assert "cut would do: cut: " in result.out
    assert "skip would do: skipped: " in result.out
    lines = run("repair", partition, "--dry-run", "--format", "jsonl").json
    losses = {line["mode"]: line for line in lines if line["type"] == "loss"}
    assert losses["cut"]["offsets"] > losses["skip"]["offsets"] > 0
    assert losses["cut"]["readable"] > losses["skip"]["readable"] == 0


def test_repair_groups_the_segments_behind_the_damage(run: Any, tmp_path: Path) -> None:
    """One line has their number, offsets and bytes; `--verbose` and JSON lines list
    them."""
    small = {**SMALL, "segment_bytes": 400}
    path = write_store(tmp_path / "store", 120, magic=2, **small)
    first, *behind = logs_in(path)
    flip_bit(first, 8 * (frames(first)[-1].pos + 30))
    begin = int(behind[0].stem)
    result = run("repair", path, "--dry-run")
    removed = [line for line in result.lines if "the first damage" in line]
    assert len(removed) == 1
    assert removed[0].startswith("cut would do: segment-removed: ")
    assert f": {len(behind)} segments of {path}, offsets {begin} to 119, " in removed[0]
    assert removed[0].endswith("are removed as a whole: they follow the first damage")
    verbose = run("repair", path, "--dry-run", "--verbose")
    assert verbose.out.count("it follows the first damage") == len(behind)
    lines = run("repair", path, "--dry-run", "--mode", "cut", "--format", "jsonl").json
    paths = {line.get("path") for line in lines}
    assert {str(log) for log in behind} <= paths
    done = run("repair", path, "--mode", "cut", "--yes")
    at = next(n for n, line in enumerate(done.lines) if "they follow" in line)
    kept = Path(done.lines[at + 1].removeprefix("  kept at "))
    assert {log.name for log in behind} <= {one.name for one in kept.iterdir()}


def test_repair_needs_no_mode_if_nothing_is_lost(run: Any, partition: Path) -> None:
    """An index is made from the log, whatever the mode."""
    flip_bit(logs_in(partition)[0].with_suffix(".index"), 8 * 9)
    assert run("verify", partition).status == 1
    result = run("repair", partition, "--yes")
    assert (result.status, "index-rebuilt" in result.out) == (0, True)
    assert run("verify", partition).status == 0
    assert run("repair", partition).status == 0


@pytest.mark.parametrize(
    ("answer", "status"), [("skip\n", 0), ("cut\n", 0), ("yes\n", 2), ("", 2)]
)
def test_repair_on_a_terminal_asks_for_the_mode(
    run: Any,
    partition: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: int,
) -> None:
    """The typed mode is applied, and asked for once."""
    log = damaged(partition)
    before = log.read_bytes()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    result = run("repair", partition)
    assert result.status == status
    assert "Repair orders-0 with cut or skip?" in result.err
    assert (log.read_bytes() == before) == (status == 2)
    if status == 0:
        assert run("verify", "--deep", partition).status == 0


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_with_yes_mends(run: Any, partition: Path, mode: str) -> None:
    """The status is 0, the output names the kept copy, and the next run has nothing to
    do."""
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
        ["done: no actions, 0 B out of the log, no problems left"],
    )


def test_repair_jsonl_has_actions_and_a_summary(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """One object per line; `--quarantine` sets the directory of the copies."""
    damaged(partition)
    aside = tmp_path / "aside"
    result = run(
        *("repair", partition, "--mode", "cut", "--yes"),
        *("--quarantine", aside, "--format", "jsonl"),
    )
    assert [line["type"] for line in result.json][-1] == "summary"
    assert result.json[0]["label"] == "cut"
    assert result.json[0]["keptAt"].startswith(str(aside))
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
    assert (
        run("repair", partition, "--mode", "cut", "--to", to, "--dry-run").status == 2
    )


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
    """Only the exact name continues."""
    log = damaged(partition)
    before = log.read_bytes()
    keyboard = Terminal(answer)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    result = run("repair", partition, "--mode", "cut")
    assert result.status == status
    assert "Type orders-0 to continue: " in result.err
    assert (log.read_bytes() == before) == (status == 2)
