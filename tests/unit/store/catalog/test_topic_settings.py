"""The settings of topics and their file, without a store."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.errors import ConfigError, DiskFullError
from logstore.io import layout
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.directory import Directory
from logstore.store.catalog.deleted_directories import DeletedDirectories
from logstore.store.catalog.known_ids import KnownIds
from logstore.store.catalog.topic_settings import TopicSettings, leading
from support.disk import MemoryDisk

ONE: dict[str, Any] = {"partitions": 1, "id": "0a" * 16}
DELETED = "a-0.0123456789abcdef0123456789abcdef-delete"


@pytest.fixture
def root(disk: MemoryDisk) -> Iterator[Directory]:
    root = Directory.open_root(disk, "/store")
    yield root
    root.close()


@pytest.fixture
def settings(root: Directory) -> TopicSettings:
    """Settings of one topic, persisted."""
    settings = TopicSettings(root, 0, {})
    settings.write("a", ONE)
    return settings


def stored(root: Directory) -> dict[str, dict[str, Any]]:
    """Settings in the file."""
    found = TopicSettings(root, 0, {})
    found.read(lambda action: pytest.fail(str(action)))
    return found.stored


def test_count_of_leading_partitions_ends_at_the_first_gap() -> None:
    cases = {(): 0, (0,): 1, (1, 2): 0, (0, 1, 3): 2}
    assert {numbers: leading(numbers) for numbers in cases} == cases


def test_file_says_what_was_written(root: Directory, settings: TopicSettings) -> None:
    """It is appended to, entries are removed, and it is written whole at the end."""
    settings.write("b", {"partitions": 2})
    assert stored(root) == settings.stored == {"a": ONE, "b": {"partitions": 2}}
    settings.write("b", None)
    settings.confirm()
    assert stored(root) == {"a": ONE}
    settings.close()
    assert stored(root) == {"a": ONE}
    assert root.read_file(layout.TOPICS).count(b"xxh64 ") == 1


def test_failed_write_changes_nothing_and_the_next_one_writes_the_file_whole(
    disk: MemoryDisk, root: Directory, settings: TopicSettings
) -> None:
    disk.fail("write", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        settings.write("b", {"partitions": 2})
    disk.heal()
    assert settings.stored == {"a": ONE}
    settings.write("c", {"partitions": 3})
    assert stored(root) == settings.stored == {"a": ONE, "c": {"partitions": 3}}
    assert root.read_file(layout.TOPICS).count(b"xxh64 ") == 1


def test_write_interrupted_behind_the_file_is_repeated_whole(
    root: Directory, settings: TopicSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory lacks changes that the file may have: the next change decides."""
    append = GrowingFile.append

    def interrupted(file: GrowingFile, text: str) -> bool:
        append(file, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GrowingFile, "append", interrupted)
        settings.write("b", {"partitions": 2})
    assert settings.stored == {"a": ONE}
    settings.write("c", {"partitions": 3})
    assert stored(root) == {"a": ONE, "c": {"partitions": 3}}


def test_number_of_partitions_of_a_store_is_bounded(settings: TopicSettings) -> None:
    before = dict(settings.stored)
    with pytest.raises(ConfigError):
        settings.write("b", {"partitions": 1 << 40})
    assert settings.stored == before


def test_settings_that_opening_has_changed_are_persisted_before_the_first_change(
    root: Directory, settings: TopicSettings
) -> None:
    settings.take_over({"moved": ONE})
    assert stored(root) == {"a": ONE}
    settings.persist_claim()
    assert stored(root) == {"moved": ONE}


def test_damaged_file_is_kept_when_another_one_is_written(root: Directory) -> None:
    root.write_file(layout.TOPICS, b"no settings")
    actions: list[Any] = []
    settings = TopicSettings(root, 0, {})
    settings.read(actions.append)
    assert [action.label for action in actions] == ["state-damaged"]
    settings.write("a", ONE)
    kept = [n for n in root.names() if n.startswith(f"{layout.TOPICS}.damaged-")]
    assert [root.read_file(name) for name in kept] == [b"no settings"]
    assert stored(root) == {"a": ONE}


# ---------------------------------------------------------------- a deletion


def test_full_disk_stops_a_deletion_that_only_the_settings_tell(
    disk: MemoryDisk, root: Directory, settings: TopicSettings
) -> None:
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        settings.write_if_room("a", {**ONE, "deleting": True}, is_needed=True)
    disk.heal()
    assert settings.stored == stored(root) == {"a": ONE}
    assert not settings.is_dirty


def test_emptied_directories_stay_until_the_settings_have_caught_up(
    disk: MemoryDisk,
    root: Directory,
    settings: TopicSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their names prove to an opening that nothing is lost."""
    deleted = DeletedDirectories(root, settings)
    root.make(DELETED)
    disk.fail("write", errno.ENOSPC)
    with caplog.at_level(logging.WARNING, "logstore"):
        settings.write_if_room("a", None)
    assert "the deletion of topic a continues" in caplog.text
    assert settings.is_dirty
    deleted.remove([DELETED])
    assert DELETED in root.names()
    assert deleted.dying == [DELETED]
    disk.heal()
    assert stored(root) == {"a": ONE}
    deleted.remove([DELETED])
    assert DELETED not in root.names()
    assert stored(root) == {}


def test_directory_with_a_foreign_file_is_emptied_of_the_others_and_stays(
    root: Directory, settings: TopicSettings, caplog: pytest.LogCaptureFixture
) -> None:
    root.make(DELETED)
    directory = root.child(DELETED)
    for name in ("00000000000000000000.log", "notes.txt"):
        directory.write_file(name, b"x")
    with caplog.at_level(logging.WARNING, "logstore"):
        assert DeletedDirectories(root, settings).empty([DELETED, "gone-delete"]) == []
    assert directory.names() == ["notes.txt"]
    assert "1 files in it are not of a log ('notes.txt')" in caplog.text


# ---------------------------------------------------------------- ids


def test_id_that_is_made_for_the_first_append_stays_until_another_topic_has_the_name(
    root: Directory, settings: TopicSettings
) -> None:
    ids = KnownIds(root, {"b": (0,)}, settings)
    root.make("b-0")
    assert ids.topic_id("a") == ONE["id"]
    assert ids.topic_id("b") == ""
    made = ids.id_for_appends("b")
    assert len(made) == 32
    assert ids.id_for_appends("b") == made
    ids.forget("b")
    assert ids.id_for_appends("b") != made


def test_new_topic_has_a_new_id_and_a_known_one_its_own(
    root: Directory, settings: TopicSettings
) -> None:
    ids = KnownIds(root, {"a": (0,)}, settings)
    assert ids.with_id("a", {"partitions": 2}) == {"partitions": 2, "id": ONE["id"]}
    made = [ids.with_id("new", {})["id"] for _ in range(2)]
    assert len({ONE["id"], *made}) == 3


def test_settings_are_made_once_until_they_change(settings: TopicSettings) -> None:
    """The defaults are cached, too; invalid settings are refused each time."""
    first = settings.config("a")
    assert settings.config("a") is first
    settings.write("a", {**ONE, "config": {"retention_ms": 7}})
    other = settings.config("a")
    assert (other.retention_ms, settings.config("a")) == (7, other)
    settings.write("a", {**ONE, "config": {"retention_ms": 8}})
    assert settings.config("a").retention_ms == 8
    settings.write("a", ONE)
    assert settings.config("a") == first
    assert settings.config("unknown") == first
    settings.take_over({"a": {**ONE, "config": {"retention_ms": "seven"}}})
    for _ in range(2):
        with pytest.raises(ConfigError, match="not valid"):
            settings.config("a")
