"""`logstore-dump index`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.cli import RECORDS, TXN
from support.damage import flip_bit, logs_in


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_has_a_line_for_each_entry(
    run: Any, partition: Path, suffix: str
) -> None:
    """Offsets are absolute, even in segments that do not begin at 0."""
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


def test_index_lines_have_their_partition(run: Any, partition: Path) -> None:
    """All lines have the fields of the schema; a line of a checkpoint has the partition
    of its entry."""
    path = logs_in(partition)[1].with_suffix(".timeindex")
    line = run("index", path, "--format", "jsonl", "--skip", 1, "--time", "iso").json[0]
    assert (line["schema"], line["type"], line["kind"]) == (1, "entry", "timeindex")
    assert (line["topic"], line["partition"]) == ("orders", 0)
    assert re.fullmatch(r"20.*Z", line["timestamp"])
    root = partition.parent / "recovery-point-offset-checkpoint"
    [line] = run("index", root, "--format", "jsonl").json
    assert (line["topic"], line["partition"], line["offset"]) == ("orders", 0, RECORDS)
