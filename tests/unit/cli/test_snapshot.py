"""`logstore-dump snapshot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore


def _values(path: Path) -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [record.value for record in store.topic("t")[0].read()]


def test_snapshot_is_made_with_and_without_an_owner(run: Any, tmp_path: Path) -> None:
    """The copy has all records; the output has the counts."""
    data = tmp_path / "data"
    with logstore.open(data) as store:
        store.create_topic("t").append(b"one")
        result = run("snapshot", data, tmp_path / "a")
        assert result.status == 0
        assert "1 topic, 1 partition, 1 segment, no groups" in result.out
    line = run("snapshot", data, tmp_path / "b", "--no-links", "--format", "jsonl").json
    assert line[0]["type"] == "snapshot"
    assert (line[0]["partitions"], line[0]["bytesLinked"]) == (1, 0)
    assert _values(tmp_path / "a") == _values(tmp_path / "b") == [b"one"]


def test_snapshot_over_something_exits_two(run: Any, tmp_path: Path) -> None:
    """Nothing is written."""
    data = tmp_path / "data"
    with logstore.open(data) as store:
        store.create_topic("t").append(b"one")
    (tmp_path / "there" / "x").mkdir(parents=True)
    result = run("snapshot", data, tmp_path / "there")
    assert result.status == 2
    assert "it is not empty" in result.err


def test_snapshot_of_a_damaged_store_exits_one(run: Any, tmp_path: Path) -> None:
    """The copy is made, and the damage is named."""
    data = tmp_path / "data"
    with logstore.open(data) as store:
        store.create_topic("t").append_many([b"one", b"two"])
    (log,) = data.rglob("*.log")
    log.write_bytes(log.read_bytes()[:-1])
    result = run("snapshot", data, tmp_path / "copy")
    assert result.status == 1
    assert "t-0 is damaged" in result.out


@pytest.mark.parametrize("no_links", [False, True])
def test_sealed_segments_are_links_unless_they_must_not_be(
    run: Any, tmp_path: Path, no_links: bool
) -> None:
    """Links need one file system. The output has the bytes in them."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    config = logstore.TopicConfig(segment_bytes=200)
    with logstore.open(data) as store:
        store.create_topic("t", config=config)[0].append_many([b"x" * 50] * 10)
    options = ["--no-links"] * no_links
    line = run("snapshot", data, copy, *options, "--format", "jsonl").json[0]
    logs = sorted(copy.glob("t-0/*.log"))
    assert len(logs) > 2
    linked = [log for log in logs if log.stat().st_nlink > 1]
    assert linked == ([] if no_links else logs[:-1])
    assert (line["bytesLinked"] == 0) is no_links
    assert _values(copy) == [b"x" * 50] * 10
