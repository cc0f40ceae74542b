"""Stores whose files are hard links, as `cp -al` makes them: the original and the
copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import logstore


def _linked(path: Path, to: Path) -> None:
    """Link the files like `cp -al`."""
    shutil.copytree(path, to, copy_function=os.link)


def _contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        # Lock files are about live processes.
        if file.is_file()
        and not file.match(".logstore-group-*.lock")
        and file.name != ".logstore-lock"
    }


def _stored(path: Path) -> None:
    """A closed store: two segments, a group, a publication, a named producer."""
    config = logstore.TopicConfig(segment_bytes=4096, message_format=2)
    with logstore.open(path) as store:
        topic = store.create_topic("t", config=config)
        for number in range(40):
            topic.append(b"%03d" % number * 60, key=b"k")
        with store.stage("spark", 1) as stage:
            stage.append_many(topic[0], [b"published"])
            staged = stage.finish()
        store.publish(staged, identity="spark", sequence=1)
        store.producer("p").append(topic[0], b"once", sequence=0)
        with logstore.Consumer(store, topics=["t"], group="g", reset="earliest") as c:
            c.poll(timeout_ms=1000)
            c.commit()


def _changed(path: Path) -> None:
    """Change everything that can be changed in a store."""
    with logstore.open(path) as store:
        topic = store.topic("t")
        for number in range(20):
            topic.append(b"%03d" % number * 60, durable=True)
        with store.stage("spark", 2) as stage:
            stage.append_many(topic[0], [b"more"])
            staged = stage.finish()
        store.publish(staged, identity="spark", sequence=2)
        with logstore.Consumer(store, topics=["t"], group="g", reset="earliest") as c:
            c.poll(timeout_ms=1000)
            c.commit()
        topic[0].truncate_to(10)


@pytest.mark.parametrize("changed", ["copy", "original"])
def test_linked_copy_after_changes_of_the_other_is_as_it_was(
    tmp_path: Path, changed: str
) -> None:
    """Two directories that share their files do not see each other's changes."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)
    _linked(original, copy)
    before = _contents(original)
    _changed(tmp_path / changed)
    other = original if changed == "copy" else copy
    assert _contents(other) == before
    assert logstore.verify(original).ok
    assert logstore.verify(copy).ok


def test_linked_copy_of_an_open_store_can_be_opened_for_writing(
    tmp_path: Path,
) -> None:
    """The lock of the original is not the lock of its copy, in one process and in
    two."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)
    with logstore.open(original) as store:
        store.topic("t").append(b"more")
        _linked(original, copy)
        with logstore.open(copy) as other:
            other.topic("t").append(b"of the copy")
            with pytest.raises(logstore.StoreLockedError):
                logstore.open(copy)
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(original)
        shutil.rmtree(copy)
        _linked(original, copy)
        text = "import sys, logstore; logstore.open(sys.argv[1]).close()"
        done = [
            subprocess.run([sys.executable, "-c", text, path], check=False).returncode
            for path in (copy, original)
        ]
        assert done == [0, 1]


# The pid of the process that has the lock of a broker, as another process sees it.
_HOLDER = """
import sys
from logstore.io.files import Files
files = Files()
with open(sys.argv[1], "rb+") as file:
    print(files.lock_holder(file.fileno()))
"""


def test_opening_a_linked_copy_drops_no_lock_of_the_original(tmp_path: Path) -> None:
    """The system drops the lock of a broker when its process closes any descriptor of
    the file, and a linked copy begins with the same file."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)

    def holder() -> str:
        command = [sys.executable, "-c", _HOLDER, str(original / ".lock")]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    with logstore.open(original):
        _linked(original, copy)
        with logstore.open(copy) as other:
            other.topic("t").append(b"of the copy")
            assert holder() == str(os.getpid())
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(original)
        assert holder() == str(os.getpid())
        assert not os.path.samefile(original / ".lock", copy / ".lock")


def test_members_of_an_original_go_on_when_its_linked_copy_gets_members(
    tmp_path: Path,
) -> None:
    """A group of the copy is another group than that of the original."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)
    with (
        logstore.open(original) as store,
        logstore.Consumer(store, topics=["t"], group="g", reset="earliest") as mine,
    ):
        mine.poll(timeout_ms=1000)
        store.topic("t").append(b"x")
        _linked(original, copy)
        with (
            logstore.open(copy, read_only=True) as other,
            logstore.Consumer(other, topics=["t"], group="g", reset="error") as its,
        ):
            its.poll(timeout_ms=1000)
            assert its.assignment() == mine.assignment()
            its.seek(logstore.TopicPartition("t", 0), 5)
            its.commit()
        assert mine.poll(timeout_ms=20_000)
        mine.commit()
        key = logstore.TopicPartition("t", 0)
        assert mine.committed(key).offset == 43


def test_follower_of_an_original_goes_on_when_its_files_are_replaced(
    tmp_path: Path,
) -> None:
    """A reader of another process sees the same log in the copy of a file."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)
    with logstore.open(original, read_only=True) as reader:
        follower = reader.topic("t")[0].follow(timeout=1)
        seen = [next(follower).offset for _ in range(42)]
        _linked(original, copy)
        with logstore.open(original) as store:
            store.topic("t").append(b"later", durable=True)
            seen.append(next(follower).offset)
        assert seen == list(range(43))


def test_own_copy_without_space_leaves_the_file(tmp_path: Path) -> None:
    """If there is no room for a copy, nothing is written, and the error says so."""
    from logstore.io.files import Files

    class Full(Files):
        is_full = False

        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            if self.is_full:
                raise OSError(28, os.strerror(28))
            super().write(fd, data, pos)

    original, copy = tmp_path / "original", tmp_path / "copy"
    _stored(original)
    _linked(original, copy)
    before = _contents(original)
    files = Full()
    from logstore.store.opening import open_store

    with open_store(copy, _files=files) as store:
        topic = store.topic("t")
        files.is_full = True
        with pytest.raises(logstore.DiskFullError):
            topic.append(b"x")
        files.is_full = False
        topic.append(b"x")
    assert _contents(original) == before
    assert not [n for n in _contents(copy) if ".logstore-own-" in n]
