"""The format of appends to a topic that has no separate settings."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.catalog import topic_settings
from logstore.store.catalog.message_format import continued_format, last_magic
from support.damage import FaultyFiles


def written(path: Path, *magics: int, partitions: int = 1) -> Path:
    """A store with a topic whose first log has a batch of each of these formats,
    without settings, as after a broker."""
    config = logstore.TopicConfig(message_format=magics[0] if magics else 1)
    with logstore.open(path) as store:
        store.create_topic("t", partitions, config)
    # An open partition keeps the settings of its opening.
    for magic in magics:
        with logstore.open(path) as store:
            topic = store.topic("t")
            topic.configure(dataclasses.replace(config, message_format=magic))
        with logstore.open(path) as store:
            store.topic("t")[0].append(b"%d" % magic)
    (path / layout.TOPICS).unlink()
    return path


def magics_in(path: Path, number: int = 0) -> list[int]:
    with logstore.open(path, read_only=True) as store:
        return [one.magic for one in store.topic("t")[number].read_batches()]


@pytest.mark.parametrize(
    ("magics", "expected"),
    [((), 1), ((0,), 1), ((1,), 1), ((2,), 2), ((1, 2), 2), ((2, 1), 1)],
)
def test_log_is_continued_in_the_format_that_it_ends_with(
    tmp_path: Path, magics: tuple[int, ...], expected: int
) -> None:
    with logstore.open(written(tmp_path, *magics)) as store:
        topic = store.topic("t")
        assert topic.config == logstore.TopicConfig(message_format=expected)
        topic[0].append(b"x", headers=[("a", b"b")] if expected == 2 else ())
    assert magics_in(tmp_path) == [*magics, expected]


def test_empty_partition_follows_the_others(tmp_path: Path) -> None:
    with logstore.open(written(tmp_path, 2, partitions=3)) as store:
        store.topic("t")[2].append(b"x")
    assert magics_in(tmp_path, 2) == [2]


def test_other_processes_append_in_the_same_format(tmp_path: Path) -> None:
    """A store that is shared, and one that only reads."""
    with logstore.open(written(tmp_path, 2), shared=True) as store:
        store.topic("t").append(b"x", headers=[("a", b"b")])
    with logstore.open(tmp_path, read_only=True) as store:
        assert store.topic("t").config.message_format == 2
    assert magics_in(tmp_path) == [2, 2]


def test_records_are_staged_in_the_same_format(tmp_path: Path) -> None:
    """A read-only store stages them, also for a partition that was read before."""
    written(tmp_path, 2)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        assert len(list(partition.read())) == 1
        with store.stage("a", 1) as stage:
            stage.append_many(partition, [b"x"], headers=[[("a", b"b")]])
            staged = stage.finish()
        store.submit(staged, identity="a", sequence=1)
    assert magics_in(tmp_path) == [2, 2]


def test_reading_does_not_look_for_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another read of each log would be needed."""
    asked: list[str] = []

    def counted(root: Directory, topic: str, numbers: Iterable[int]) -> int:
        asked.append(topic)
        return continued_format(root, topic, numbers)

    monkeypatch.setattr(topic_settings, "continued_format", counted)
    with logstore.open(written(tmp_path, 2), read_only=True) as store:
        assert len(list(store.topic("t")[0].read())) == 1
        assert asked == []
        for _ in range(2):
            assert store.topic("t").config.message_format == 2
    assert asked == ["t"]


@pytest.mark.parametrize("is_created", [False, True])
def test_format_that_was_given_is_used(tmp_path: Path, is_created: bool) -> None:
    """It is used in later openings, too."""
    config = logstore.TopicConfig(message_format=1)
    with logstore.open(written(tmp_path, 2)) as store:
        if is_created:
            store.create_topic("t", 1, config, exist_ok=True)
        else:
            store.topic("t").configure(config)
    with logstore.open(tmp_path) as store:
        store.topic("t")[0].append(b"x")
    assert magics_in(tmp_path) == [2, 1]


def test_other_settings_keep_the_format(tmp_path: Path) -> None:
    """`exist_ok` without settings changes none; changed settings include the format."""
    with logstore.open(written(tmp_path, 2)) as store:
        topic = store.create_topic("t", 1, exist_ok=True)
        assert topic.config.message_format == 2
        topic.configure(dataclasses.replace(topic.config, retention_bytes=1 << 30))
    with logstore.open(tmp_path) as store:
        store.topic("t")[0].append(b"x")
    assert magics_in(tmp_path) == [2, 2]


def test_last_intact_batch_counts(tmp_path: Path) -> None:
    """A torn batch, an empty segment after it, and a wrong index do not count."""
    path = written(tmp_path, 1, 2) / "t-0"
    log = path / layout.segment_file(0, layout.LOG)
    with log.open("ab") as file:
        file.write(log.read_bytes()[:20])
    (path / layout.segment_file(2, layout.LOG)).touch()
    (path / layout.segment_file(0, layout.INDEX)).write_bytes(b"\0\0\0\1\0\0\0\3")
    assert magic_of(path) == 2


def magic_of(path: Path) -> int | None:
    directory = Directory.open_root(Files(), path)
    try:
        return last_magic(directory)
    finally:
        directory.close()


@pytest.mark.parametrize("call", ["list", "open", "read"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_passing_error_chooses_no_format(tmp_path: Path, call: str, error: int) -> None:
    """Otherwise magic 1 would follow magic 2, until the next opening. A permanent error
    is an error of the partition."""
    written(tmp_path, 2)
    files = FaultyFiles()
    root = Directory.open_root(files, tmp_path)
    files.fail(call, error)
    if error == errno.EACCES:
        assert continued_format(root, "t", [0]) == 1
    else:
        with pytest.raises(logstore.StorageError, match="Too many open files"):
            continued_format(root, "t", [0])
    root.close()


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """Opening the partition raises the error."""
    path = written(tmp_path, 2)
    (path / "t-0" / layout.segment_file(0, layout.LOG)).write_bytes(bytes(100))
    assert magic_of(path / "t-0") is None
    root = Directory.open_root(Files(), path)
    assert continued_format(root, "t", [0, 7]) == 1
    root.close()
