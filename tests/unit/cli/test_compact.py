"""`logstore-dump compact`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import TopicConfig
from support.damage import flip_bit, logs_in

CONFIG = TopicConfig(cleanup_policy="compact", message_format=2, segment_bytes=500)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with logstore.open(path) as opened:
        partition = opened.create_topic("states", config=CONFIG)[0]
        opened.create_topic("events")[0].append(b"no key")
        for number in range(40):
            partition.append(b"%d" % number, b"k%d" % (number % 5))
        partition.roll()
    return path


def values(store: Path) -> list[bytes | None]:
    with logstore.open(store, read_only=True) as opened:
        return [record.value for record in opened.topic("states")[0].read()]


def test_compact_prints_what_it_removed(run: Any, store: Path) -> None:
    """It prints the compacted topics; a dry run changes nothing."""
    result = run("compact", store, "--dry-run")
    assert result.status == 0
    assert "states-0: would remove 35 records (no tombstones)" in result.out
    assert len(values(store)) == 40
    (line,) = run("compact", store, "--format", "jsonl").json
    assert (line["type"], line["topic"], line["partition"]) == (
        "compaction",
        "states",
        0,
    )
    assert (line["removed"], line["dirtyRatio"], line["dryRun"]) == (35, 1.0, False)
    assert line["after"] < line["before"]
    assert values(store) == [b"%d" % number for number in range(35, 40)]
    assert "removed no records" in run("compact", store, "--all").out


def test_compact_of_a_damaged_log_exits_one(run: Any, store: Path) -> None:
    """The error names the damaged log, which is unchanged."""
    flip_bit(logs_in(store / "states-0")[1], 8 * 70)
    result = run("compact", store)
    assert result.status == 1
    assert "states-0" in result.err
    assert len(list((store / "states-0").glob("*.log"))) > 3


def test_partition_that_is_gone_does_not_stop_the_others(run: Any, store: Path) -> None:
    with logstore.open(store) as opened:
        for name in ("a", "z"):
            for partition in opened.create_topic(name, 2, CONFIG):
                partition.append(b"1", b"k")
                partition.append(b"2", b"k")
                partition.roll()
    shutil.rmtree(store / "a-0")
    result = run("compact", store)
    assert result.status == 1
    assert "a-0 is gone" in result.err
    for name in ("a-1", "states-0", "z-0", "z-1"):
        assert f"{name}: removed" in result.out


def test_compact_under_a_writer_exits_two(run: Any, store: Path) -> None:
    """It needs the writer's lock."""
    with logstore.open(store):
        result = run("compact", store)
        planned = run("compact", store, "--dry-run")
    assert result.status == 2
    assert "would remove 35 records" in planned.out


@pytest.mark.parametrize("options", [("--max-memory", "1"), ("--max-bytes-per-s", "0")])
def test_bad_number_is_refused(run: Any, store: Path, options: tuple[str]) -> None:
    """The store is not opened."""
    assert run("compact", store, *options).status == 2
    assert len(values(store)) == 40
