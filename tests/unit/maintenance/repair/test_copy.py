"""The copy of a store, or of one of its partitions, that is repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from support.damage import FaultyFiles
from support.values import append_records, config_of, expected


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with a topic of three partitions that has separate settings."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        config = config_of(2, retention_ms=77)
        for partition in store.create_topic("orders", 3, config):
            append_records(partition, 10)
    return path


@pytest.mark.parametrize("number", [0, 1, 2])
def test_copy_of_one_partition_is_whole_by_itself(
    store: Path, tmp_path: Path, number: int
) -> None:
    """It has its settings only if it is the first one: a topic has no partitions after
    a missing one."""
    to = tmp_path / "copy"
    assert logstore.repair(store / f"orders-{number}", "skip", to=to).ok
    assert logstore.verify(to).ok
    assert (to / layout.TOPICS).exists() is (number == 0)
    with logstore.open(to, read_only=True) as copy:
        topic = copy.topic("orders")
        assert topic.numbers == (number,)
        assert (topic.config.retention_ms == 77) is (number == 0)
        assert list(topic[number].read()) == expected(2, 0, 10)


def test_bytes_that_cannot_be_read_are_zeros_in_the_copy(
    store: Path, tmp_path: Path
) -> None:
    """A whole block is zeros, even if some of it was read before. The report names
    these blocks."""
    log = store / "orders-0" / f"{0:020d}.log"
    data = log.read_bytes()
    log.write_bytes(data + b"x" * 20_000)

    class Unreadable(FaultyFiles):
        def read(self, fd: int, buffer: memoryview, pos: int) -> int:
            end = pos + len(buffer)
            if self.size(fd) > 20_000 and pos < 9000 and end > 8192:
                raise OSError(5, "Input/output error")
            return super().read(fd, buffer, pos)

    to = tmp_path / "copy"
    report = logstore.repair(store, "cut", to=to, _files=Unreadable())
    left_out = [one for one in report.actions if one.label == "left-out"]
    assert [(one.position, one.bytes) for one in left_out] == [(8192, 4096)]
    assert left_out[0].path == str(log)
    with logstore.open(to, read_only=True) as copy:
        assert list(copy.topic("orders")[0].read()) == expected(2, 0, 10)


def test_copy_needs_an_empty_directory(store: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").touch()
    with pytest.raises(logstore.ConfigError, match="is not empty"):
        logstore.repair(store, "cut", to=tmp_path / "copy")
    assert [one.name for one in (tmp_path / "copy").iterdir()] == ["file"]
