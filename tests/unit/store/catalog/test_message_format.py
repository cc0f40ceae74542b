"""The format of appends to a topic that has no separate settings."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.catalog import topic_settings
from logstore.store.catalog.message_format import continued_format, last_magic
from support.damage import CountedReads, FaultyFiles


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


def stored(path: Path) -> dict[str, Any]:
    """The persisted settings of the topic."""
    root = Directory.open_root(Files(), str(path))
    try:
        value = checkpoints.read_state(root, layout.TOPICS)
    finally:
        root.close()
    assert value is not None
    settings: dict[str, Any] = value["topics"]["t"]
    return settings


def another_program_writes(path: Path) -> None:
    (path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    points = path / layout.RECOVERY_CHECKPOINT
    points.write_text(points.read_text().replace("t 0 ", "t 0 1"))


def empty_the_logs(path: Path) -> None:
    """Delete all records, and the files that have them."""
    with logstore.open(path) as store:
        for partition in store.topic("t"):
            partition.delete_before(partition.end_offset)
            partition.roll()
    for log in path.glob("t-*/*.log"):
        assert log.stat().st_size == 0


@pytest.mark.parametrize("by", ["append", "other partition", "publication", "shared"])
def test_format_that_was_found_outlives_the_logs_that_have_it(
    tmp_path: Path, by: str
) -> None:
    """The first append persists it, whichever call that is."""
    written(tmp_path, 2, partitions=2)
    with logstore.open(tmp_path, shared=by == "shared") as store:
        partition = store.topic("t")[int(by == "other partition")]
        if by == "publication":
            with store.stage("a", 1) as stage:
                stage.append_many(partition, [b"x"])
                staged = stage.finish()
            store.publish(staged, identity="a", sequence=1)
        else:
            partition.append(b"x")
    assert stored(tmp_path)["message_format"] == 2
    empty_the_logs(tmp_path)
    for number in range(2):
        with logstore.open(tmp_path) as store:
            start = store.topic("t")[number].append(b"y")
        with logstore.open(tmp_path, read_only=True) as store:
            (batch,) = store.topic("t")[number].read_batches(start)
            assert batch.magic == 2


def test_format_outlives_a_visit_of_another_program(tmp_path: Path) -> None:
    """A broker that deletes the logs, too. A topic that it has made again is another
    one, without what was known of the first."""
    with logstore.open(written(tmp_path, 2)) as store:
        store.topic("t")[0].append(b"x")
    empty_the_logs(tmp_path)
    another_program_writes(tmp_path)
    with logstore.open(tmp_path) as store:
        assert store.topic("t").config.message_format == 2
        store.topic("t")[0].append(b"y")
    another_program_writes(tmp_path)
    shutil.rmtree(tmp_path / "t-0")
    (tmp_path / "t-0").mkdir(0o700)
    made_again = b"version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w\n"
    (tmp_path / "t-0" / layout.PARTITION_METADATA).write_bytes(made_again)
    with logstore.open(tmp_path) as store:
        assert store.topic("t").config.message_format == 1


def test_format_found_after_the_first_append_is_persisted_too(tmp_path: Path) -> None:
    """The topic was written to by an earlier release, or before a broker was."""
    with logstore.open(written(tmp_path, 2)) as store:
        store.topic("t")[0].append(b"x")
    earlier = {k: v for k, v in stored(tmp_path).items() if k != "message_format"}
    root = Directory.open_root(Files(), str(tmp_path))
    checkpoints.write_state(root, layout.TOPICS, {"topics": {"t": earlier}})
    root.close()
    with logstore.open(tmp_path) as store:
        store.topic("t")[0].append(b"x")
    assert stored(tmp_path) == {**earlier, "message_format": 2}


@pytest.mark.parametrize("magic", [0, 1])
def test_default_format_is_not_persisted(tmp_path: Path, magic: int) -> None:
    """A broker that writes to the topic later may raise it."""
    with logstore.open(written(tmp_path, magic)) as store:
        store.topic("t")[0].append(b"x")
    assert "message_format" not in stored(tmp_path)


@pytest.mark.parametrize("how", ["configure", "add_partitions"])
def test_settings_replace_the_format_that_was_found(tmp_path: Path, how: str) -> None:
    """It is one of them, then."""
    with logstore.open(written(tmp_path, 2)) as store:
        topic = store.topic("t")
        topic[0].append(b"x")
        if how == "configure":
            topic.configure(dataclasses.replace(topic.config, message_format=0))
        else:
            topic.add_partitions(1)
    assert "message_format" not in stored(tmp_path)
    with logstore.open(tmp_path, read_only=True) as store:
        found = store.topic("t").config.message_format
    assert found == (0 if how == "configure" else 2)


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


def magic_of(path: Path, files: Files | None = None) -> int | None:
    directory = Directory.open_root(files or Files(), path)
    try:
        return last_magic(directory)
    finally:
        directory.close()


def test_look_reads_the_end_of_the_log_and_of_the_index(tmp_path: Path) -> None:
    """A broker that runs has preallocated the index, 10 MB."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=config)[0]
        for _ in range(500):
            partition.append(bytes(4000))
    path = tmp_path / "t-0"
    index, log = (path / f"{0:020}{end}" for end in (".index", ".log"))
    assert log.stat().st_size > 2_000_000
    os.truncate(index, 10 << 20)
    files = CountedReads()
    assert magic_of(path, files) == 2
    assert files.read_bytes < 100_000


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
