"""The view of the consumer groups of an open store."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.log.read.options import ReadOptions
from logstore.store.package_access import files_directory, topics_now, views_of
from logstore.store.partition.partition_views import Latest, Turn


@pytest.mark.parametrize("read_only", [False, True])
def test_topics_are_those_that_exist_now(tmp_path: Path, read_only: bool) -> None:
    """They have their ids, which change if a topic is created again."""
    with logstore.open(tmp_path) as writer:
        writer.create_topic("a", 2)
        reader = logstore.open(tmp_path, read_only=True) if read_only else writer
        first = topics_now(reader)
        writer.create_topic("b")
        assert topics_now(reader)["b"][1] == (0,)
        assert topics_now(reader, ["a", "x"]) == {"a": first["a"]}
        writer.delete_topic("a")
        assert list(topics_now(reader)) == ["b"]
        writer.create_topic("a", 1)
        again = topics_now(reader)["a"]
        assert (again[0] != first["a"][0], again[1]) == (True, (0,))
        reader.close()
        with pytest.raises(logstore.errors.StoreClosedError):
            topics_now(reader)


def test_files_of_a_read_only_store_can_be_read_by_its_owner(tmp_path: Path) -> None:
    """They belong to the group of the owner's own files."""
    with logstore.open(tmp_path, config=logstore.StoreConfig()):
        with logstore.open(tmp_path, read_only=True) as reader:
            root = files_directory(reader)
            root.files.close(root.create("x"))
            assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
        with pytest.raises(logstore.errors.StoreClosedError):
            files_directory(reader)


def test_topic_turns_are_turns_with_topic_records(tmp_path: Path) -> None:
    """Both return the same records, and the next position."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        partition = store.create_topic("t", 2, config)[1]
        headers: list[list[tuple[str, bytes | None]]] = [
            [("h", b"x")],
            [],
            [("h", None), ("i", b"")],
        ]
        partition.append_many([b"a", None, b"c"], [None, b"k", b""], headers=headers)
        views = views_of(partition)
        plain = views.turns(0, ReadOptions())
        with_topic = views.topic_turns(0, ReadOptions(is_committed=True), Latest())
        found: list[logstore.TopicRecord] = []
        for item in with_topic:
            if isinstance(item, Turn):
                assert (item.has_moved, item.offset) == (True, 3)
                break
            found += item
        first = next(plain)
        assert not isinstance(first, Turn)
        expected = list(first)
        assert {type(record) for record in found} == {logstore.TopicRecord}
        assert [tuple(r) for r in found] == [("t", 1, *record) for record in expected]
