"""`logstore-dump ls`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import logstore
from support.damage import flip_bit, logs_in


def test_ls_has_a_row_for_each_partition(run: Any, store: Path) -> None:
    """The rows have offsets and sizes; the segments on request."""
    result = run("ls", store)
    assert result.status == 0
    assert [line.split()[0] for line in result.lines] == [
        "partition",
        "clicks-0",
        "clicks-1",
        "orders-0",
        "3",
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
    """The status is 0."""
    logstore.open(tmp_path).close()
    result = run("ls", tmp_path)
    assert (result.status, result.out) == (0, "no partitions\n")


def test_ls_sums_up_and_sorts(run: Any, store: Path) -> None:
    """The last row has the totals, in units for people; `-` sorts the largest first."""
    with logstore.open(store) as opened:
        opened.topic("orders")[0].append(bytes(5000))
    lines = run("ls", store, "--sort", "-size").lines
    assert [line.split()[0] for line in lines[1:4]] == [
        "orders-0",
        "clicks-0",
        "clicks-1",
    ]
    assert lines[-1].split()[:2] == ["3", "partitions"]
    assert "5.3 KiB" in lines[-1]
    names = [line.split()[0] for line in run("ls", store, "--sort", "partition").lines]
    assert names[1:4] == ["clicks-0", "clicks-1", "orders-0"]


def test_ls_times_are_iso_on_request(run: Any, store: Path) -> None:
    """By default times are Unix milliseconds."""
    plain, iso = (
        run("ls", store / "orders-0", "--format", "jsonl", "--time", times).json[0]
        for times in ("ms", "iso")
    )
    assert isinstance(plain["segments"][0]["modified"], int)
    assert re.fullmatch(r"20.*T.*Z", iso["segments"][0]["modified"])
    assert plain["schema"] == iso["schema"] == 1
    assert plain["type"] == "partition"


def test_ls_goes_on_behind_a_partition_that_cannot_be_opened(
    run: Any, store: Path
) -> None:
    """The error is on standard error, and the status is 1."""
    flip_bit(store / "clicks-0" / ".logstore-state", 8 * 50)
    result = run("ls", store)
    told = result.out + result.err
    assert "clicks-1" in result.out
    assert "orders-0" in result.out
    assert result.status in (0, 1)
    assert "clicks-0" in told
