"""The directories of a broker: their partitions, and the ends of these."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.broker.directories import BrokerDirectories
from logstore.io.layout import (
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_CHECKPOINT,
    TopicPartition,
)

ID = "0123456789abcdef0123456789abcdef"


def directory(path: Path, counts: dict[int, int], marks: dict[int, int]) -> Path:
    """A directory with partitions of topic `t`, with the given number of records each,
    and a checkpoint of high watermarks."""
    with logstore.open(path) as store:
        if counts:
            topic = store.create_topic("t", max(counts) + 1)
            for number, count in counts.items():
                topic[number].append_many([b"x"] * count)
    lines = [f"t {number} {offset}" for number, offset in marks.items()]
    (path / HIGH_WATERMARKS).write_text(f"0\n{len(lines)}\n" + "\n".join(lines) + "\n")
    return path


@contextlib.contextmanager
def opened(*paths: Path) -> Iterator[BrokerDirectories]:
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(logstore.open(path, read_only=True)) for path in paths
        ]
        yield BrokerDirectories(stores)


@pytest.mark.parametrize("is_turned", [False, True])
def test_highest_watermark_and_longest_log_of_all_directories_count(
    tmp_path: Path, is_turned: bool
) -> None:
    """A partition may be in two of them: while it is moved from one to the other."""
    paths = [
        directory(tmp_path / "a", {0: 5, 1: 3}, {0: 5, 1: 2}),
        directory(tmp_path / "b", {0: 2, 1: 4}, {0: 1, 1: 4, 7: 9}),
    ]
    with opened(*paths[:: -1 if is_turned else 1]) as found:
        assert [found.high_watermark("t", n) for n in (0, 1, 7, 8)] == [5, 4, 9, 0]
        ends = [found.end_offset(TopicPartition("t", n)) for n in (0, 1, 7)]
        assert ends == [5, 4, None]
        assert found.partition_numbers("t") == [0, 1, 7]
        assert found.partition_count("t") == 8
        assert found.partition_count("other") == 0
        assert found.problems == []


def test_topic_has_the_name_that_its_directory_says(tmp_path: Path) -> None:
    """If it has no name, its id as Kafka writes it."""
    path = directory(tmp_path / "a", {0: 1}, {})
    text = base64.urlsafe_b64encode(bytes.fromhex(ID)).decode().rstrip("=")
    (path / "t-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {text}\n")
    with opened(path) as found:
        assert found.topic_name(ID) == "t"
        assert found.topic_name("0" * 32) == "(AAAAAAAAAAAAAAAAAAAAAA)"


def test_checkpoint_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """The other one, and the directories, still name partitions."""
    path = directory(tmp_path / "a", {0: 1}, {})
    (path / HIGH_WATERMARKS).write_text("7\n")
    (path / RECOVERY_CHECKPOINT).write_text("0\n1\nt 4 1\n")
    with opened(path) as found:
        assert len(found.problems) == 1
        assert HIGH_WATERMARKS in found.problems[0]
        assert found.partition_numbers("t") == [0, 4]
        assert found.high_watermark("t", 0) == 0
