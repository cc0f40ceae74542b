"""Kafka's high watermarks after logstore has written to a broker's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.io.layout import HIGH_WATERMARKS
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import Unsynced, flip_bit, frames, logs_in
from support.values import append_one, config_of, fill, new_partition

COUNT, CUT = 30, 20
OTHER = "other 3 70"


def of_broker(path: Path) -> Path:
    """A broker's directory with a log of 30 records in batches of 5."""
    with open_store(path, _files=Unsynced()) as store:
        fill(new_partition(store, 2, "gzip"), COUNT, call=5)
    foreign(path)
    note(path, COUNT)
    return path


def note(path: Path, offset: int) -> None:
    lines = ["0", "2", OTHER, f"orders 0 {offset}"]
    (path / HIGH_WATERMARKS).write_text("\n".join(lines) + "\n")


def noted(path: Path) -> int:
    """The high watermark of the log. The entry of a partition elsewhere stays."""
    ours, other = sorted((path / HIGH_WATERMARKS).read_text().splitlines()[2:])
    assert other == OTHER
    assert ours.startswith("orders 0 ")
    return int(ours.split()[2])


def cut_and_grow(path: Path, count: int) -> None:
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert partition.truncate_to(CUT) == CUT
        store.topic("orders").configure(config_of(2, "gzip"))
        fill(store.topic("orders")[0], count, call=count)


@pytest.mark.parametrize("count", [1, 40])
def test_cut_lowers_the_high_watermark(tmp_path: Path, count: int) -> None:
    """This holds even if the log has grown beyond it again: it could be inside a
    batch."""
    cut_and_grow(of_broker(tmp_path), count)
    assert noted(tmp_path) == CUT


def test_log_that_was_not_cut_keeps_its_high_watermark(tmp_path: Path) -> None:
    """The high watermark is the broker's, and the file is not written."""
    before = (of_broker(tmp_path) / HIGH_WATERMARKS).stat()
    with logstore.open(tmp_path) as store:
        append_one(store.topic("orders")[0])
    assert noted(tmp_path) == COUNT
    assert (tmp_path / HIGH_WATERMARKS).stat() == before


def test_cut_before_the_broker_had_the_log_does_not_count(tmp_path: Path) -> None:
    cut_and_grow(of_broker(tmp_path), 30)
    (tmp_path / ".kafka_cleanshutdown").write_text("of a broker")
    note(tmp_path, 50)
    with logstore.open(tmp_path) as store:
        append_one(store.topic("orders")[0])
    assert noted(tmp_path) == 50


def test_high_watermark_above_the_end_is_lowered_to_it(tmp_path: Path) -> None:
    """The broker had acknowledged records that a power failure removed."""
    note(of_broker(tmp_path), COUNT + 9)
    with logstore.open(tmp_path) as store:
        append_one(store.topic("orders")[0])
    assert noted(tmp_path) == COUNT + 1


def test_repair_that_cuts_lowers_the_high_watermark(tmp_path: Path) -> None:
    (log,) = logs_in(of_broker(tmp_path) / "orders-0")
    frame = frames(log)[2]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    logstore.repair(tmp_path, "cut")
    assert noted(tmp_path) == 10


def test_high_watermarks_that_follow_no_format_stay(tmp_path: Path) -> None:
    """The broker has to report them; the cut itself is done, and closing works."""
    (of_broker(tmp_path) / HIGH_WATERMARKS).write_text("what\n")
    cut_and_grow(tmp_path, 1)
    assert (tmp_path / HIGH_WATERMARKS).read_text() == "what\n"
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_store_without_high_watermarks_gets_none(tmp_path: Path) -> None:
    (of_broker(tmp_path) / HIGH_WATERMARKS).unlink()
    cut_and_grow(tmp_path, 1)
    assert not (tmp_path / HIGH_WATERMARKS).exists()


def test_topic_that_is_made_anew_has_no_high_watermark_of_the_one_before(
    tmp_path: Path,
) -> None:
    """It would be above the end of the new log."""
    with logstore.open(of_broker(tmp_path)) as store:
        store.delete_topic("orders")
        store.create_topic("orders")
    lines = (tmp_path / HIGH_WATERMARKS).read_text().splitlines()
    assert set(lines[2:]) <= {OTHER, "orders 0 0"}
