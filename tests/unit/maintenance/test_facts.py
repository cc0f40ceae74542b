"""The facts about a store, as they are collected, also of what cannot be read."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import logstore
from logstore.config import StoreConfig
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.maintenance.facts import StoreFacts, look_at
from logstore.maintenance.verify.report import Run
from support import reports
from support.damage import FaultyFiles, logs_in

store = reports.store  # a fixture


def facts_of(
    path: Path, files: Files | None = None, only: str | None = None
) -> StoreFacts:
    """The facts include what a reader sees."""
    root = Directory.open_root(files or Files(), str(path))
    try:
        run = Run(root.files, False, None)
        return look_at(root, run, only, reader=StoreConfig(), with_headers=True)
    finally:
        root.close()


def test_partition_has_its_files_and_what_a_reader_sees(store: Path) -> None:
    one, _ = facts_of(store).partitions
    assert (one.key, one.name) == (TopicPartition("orders", 0), "orders-0")
    names = {path.name: path.stat().st_size for path in (store / "orders-0").iterdir()}
    assert dict(one.files) == names
    assert [Path(segment.path) for segment in one.segments] == logs_in(store / one.name)
    bases = [segment.base_offset for segment in one.segments]
    assert [segment.next_offset for segment in one.segments] == [*bases[1:], -1]
    assert one.reader.end_offset == one.reader.headers.records == 400
    assert one.all_segments == list(one.reader.segments)
    assert (one.takes_appends, one.is_listed, one.reader.fault) == (True, True, "")


def test_segments_behind_those_of_a_reader_are_shown(store: Path) -> None:
    """No reader gets to them."""
    far = store / "orders-0" / f"{1 << 40:020d}.log"
    far.write_bytes(b"\xff" * 100)
    one, _ = facts_of(store).partitions
    assert one.all_segments[-1].path == str(far)
    assert far.name in one.files


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint"])
def test_small_file_that_cannot_be_read_is_refused_by_a_broker(
    store: Path, name: str
) -> None:
    """The partition is among the facts all the same, with all that is known of it."""
    (store / "orders-0" / name).write_text("version: 0\ntopic_id: " + "A" * 21 + "g")
    files = FaultyFiles()
    files.fail("open", errno.EACCES, name=name)
    one, _ = facts_of(store, files).partitions
    assert len(one.segments) == len(logs_in(store / "orders-0"))
    assert one.has_bad_metadata is (name == "partition.metadata")
    assert one.has_bad_epochs is (name == "leader-epoch-checkpoint")
    report = logstore.check_handover(store, from_kafka=False, files=files)
    refused = {one.path for one in report.problems if one.effect == "refuses"}
    assert f"{store}/orders-0/{name}" in refused


def test_directory_that_cannot_be_listed_is_no_partition_for_a_broker(
    store: Path,
) -> None:
    """The report shows it, with the reason."""
    files = FaultyFiles()
    files.fail("list", errno.EACCES, name="orders-1")
    facts = facts_of(store, files)
    assert [one.name for one in facts.partitions] == ["orders-0"]
    (other,) = facts.others
    assert (other.name, other.is_listed) == ("orders-1", False)
    assert "orders-1" in other.reader.fault


def test_directory_of_another_name_is_looked_at_if_it_is_asked_for(
    store: Path,
) -> None:
    """It has segments, and no topic and number."""
    shutil.copytree(store / "orders-0", store / "copy")
    assert [one.name for one in facts_of(store).others] == []
    facts = facts_of(store, only="copy")
    assert facts.partitions == ()
    (other,) = facts.others
    assert (other.key, other.name) == (TopicPartition("copy", -1), "copy")
    assert "not named as a partition" in other.reader.fault
    assert len(other.all_segments) == len(logs_in(store / "copy"))


def test_partition_that_goes_away_meanwhile_is_no_longer_a_fact(store: Path) -> None:
    """It was listed in the store, and is not there to be opened."""
    files = FaultyFiles()

    def remove(method: str, name: str) -> None:
        if (method, name) == ("open_directory", "orders-1"):
            shutil.rmtree(store / "orders-1", ignore_errors=True)

    files.before = remove
    facts = facts_of(store, files)
    assert [one.name for one in facts.partitions] == ["orders-0"]
    assert facts.others == ()


def test_store_that_cannot_be_opened_has_its_reason_at_each_partition(
    store: Path,
) -> None:
    """The walk over the files on disk needs no store."""
    files = FaultyFiles()
    files.fail("open", errno.EACCES, name=".logstore-topics")
    facts = facts_of(store, files)
    assert {bool(one.reader.fault) for one in facts.partitions} == {True}
    assert [one.reader.end_offset for one in facts.partitions] == [-1, -1]
    assert facts.partitions[0].reader.headers.records == 400


def test_log_that_takes_no_appends_is_known_from_the_run(store: Path) -> None:
    """It was decided when the directory was verified."""
    root = Directory.open_root(Files(), str(store))
    run = Run(root.files, False, None)
    run.refusing.add(f"{store}/orders-1")
    facts = look_at(root, run)
    root.close()
    assert [one.takes_appends for one in facts.partitions] == [True, False]
