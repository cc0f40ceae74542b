"""`logstore-dump rebuild-index`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import RECORDS
from support.damage import append_garbage, flip_bit, logs_in


def test_rebuild_index_prints_what_it_built(run: Any, partition: Path) -> None:
    """A dry run does nothing."""
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


def test_rebuild_index_prints_what_it_built_beside_a_damaged_log(
    run: Any, partition: Path, store: Path
) -> None:
    """Each path is done, and the damage comes last, with its offsets."""
    first, *others = logs_in(partition)
    flip_bit(first, 8 * 30)
    missing = partition / "missing"
    result = run("rebuild-index", partition, missing, store)
    assert result.status == 2
    for log in others:
        assert str(log) in result.out
    assert str(first) not in result.out
    for name in ("clicks-0", "clicks-1", "orders-0"):
        assert str(store / name) in result.out
    damaged, absent = result.err.splitlines()
    assert f"{first} at byte 0" in damaged
    assert "cannot be read here, reading can continue at offset" in damaged
    assert str(missing) in absent
    assert run("rebuild-index", partition, store).status == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_rebuild_index_and_verify_agree_about_a_torn_tail(
    run: Any, partition: Path, dry_run: bool
) -> None:
    """Neither reports damage; the new index covers the log before the tail."""
    path = logs_in(partition)[-1]
    index = path.with_suffix(".index")
    before = index.read_bytes()
    for name in (".kafka_cleanshutdown", ".logstore-owner"):
        (partition.parent / name).unlink(missing_ok=True)
    append_garbage(path, path.read_bytes()[:30])
    index.unlink()
    noted = run("verify", partition.parent)
    assert (noted.status, "torn-tail" in noted.out) == (0, True)
    options = ["--dry-run"] if dry_run else []
    result = run("rebuild-index", partition.parent, *options)
    assert result.status == 0, result.err
    assert path.name in result.out
    assert index.exists() != dry_run
    if not dry_run:
        assert index.read_bytes() == before
        assert run("verify", partition.parent).status == 0
    with logstore.open(partition.parent) as store:
        assert store.topic("orders")[0].end_offset == RECORDS


def test_rebuild_index_in_a_directory_of_copies_writes_nothing(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """Its name is not that of a partition, so that it is in no store to be locked."""
    copies = tmp_path / "x" / "copies"
    copies.mkdir(parents=True)
    (copies / logs_in(partition)[0].name).write_bytes(
        logs_in(partition)[0].read_bytes()
    )
    before = sorted((tmp_path / "x").rglob("*"))
    assert run("rebuild-index", copies).status == 2
    assert sorted((tmp_path / "x").rglob("*")) == before
