"""x"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import RECORDS, SMALL, TXN
from support.damage import (
    flip_bit,
    logs_in,
)
from support.values import (
    timestamp_of,
    write_store,
)


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
