"""x"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import logstore
from support.damage import (
    cut,
    flip_bit,
    logs_in,
)
from support.values import (
    append_one,
    new_partition,
)


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
