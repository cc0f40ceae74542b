"""The topics of an open store, and how a read-only store refreshes them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.directory import Directory
from logstore.store.catalog.topics import Catalog
from logstore.store.topic.open_topics import OpenTopics
from support.values import config_of


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each reload of all topics."""
    counted: list[int] = []
    real = OpenTopics.load

    def load(self: OpenTopics, *arguments: Any) -> Any:
        counted.append(1)
        return real(self, *arguments)

    monkeypatch.setattr(OpenTopics, "load", load)
    return counted


def test_files_that_come_and_go_are_no_change_of_topics(
    tmp_path: Path, loads: list[int]
) -> None:
    """Files of publications do so: each of them changes the time of the directory."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", 2, config_of(2))[0]
        partition.append(b"x")
        with logstore.open(tmp_path, read_only=True) as reader:
            assert reader.topics() == ["a"]
            loads.clear()
            for number in range(20):
                with store.stage("x", number) as stage:
                    stage.append_many(partition, [b"y"])
                    store.publish([stage.finish()], identity="x", sequence=number)
                assert len(reader.topic("a")) == 2
                assert reader.topic("a")[0].end_offset == 2 + number
            assert loads == []


def test_topics_are_found_once_while_files_come_all_the_time(
    tmp_path: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes may hand in to the owner."""
    real, finds, now = Directory.directories, [], itertools.count(10**18, 10**9)

    def directories(root: Directory) -> list[str]:
        names = real(root)
        os.utime(tmp_path, ns=(0, next(now)))
        return names

    find = Catalog.find
    monkeypatch.setattr(Catalog, "find", lambda c: (finds.append(1), find(c))[1])
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 2, config_of(2))
        monkeypatch.setattr(Directory, "directories", directories)
        loads.clear(), finds.clear()
        with logstore.open(tmp_path, read_only=True) as reader:
            assert (len(loads), len(finds)) == (1, 1)
            for _ in range(5):
                assert len(reader.topic("a")) == 2
            assert (len(loads), len(finds)) == (1, 1)
            # The same while a topic is made.
            store.create_topic("b")
            assert reader.topics() == ["a", "b"]
            assert (len(loads), len(finds)) == (2, 2)


def test_topics_that_come_and_go_are_found(tmp_path: Path, loads: list[int]) -> None:
    """This includes a topic that only its directory shows, and one whose settings
    change."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1, config_of(2))[0].append(b"x")
        with logstore.open(tmp_path, read_only=True) as reader:
            for number in range(3):
                store.create_topic(f"b{number}")
                assert f"b{number}" in reader.topics()
                (tmp_path / f"c{number}-0").mkdir()
                assert f"c{number}" in reader.topics()
                store.topic("a").add_partitions(1)
                assert len(reader.topic("a")) == number + 2
                store.delete_topic(f"b{number}")
                assert f"b{number}" not in reader.topics()
                (tmp_path / f"c{number}-0").rmdir()
                assert f"c{number}" not in reader.topics()
            assert loads


def test_directory_that_has_another_name_is_found(tmp_path: Path) -> None:
    """The number of directories is the same."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1, config_of(2))[0].append(b"x")
        with logstore.open(tmp_path, read_only=True) as reader:
            (tmp_path / "one-0").mkdir()
            assert reader.topics() == ["a", "one"]
            (tmp_path / "one-0").rename(tmp_path / "two-0")
            assert reader.topics() == ["a", "two"]
