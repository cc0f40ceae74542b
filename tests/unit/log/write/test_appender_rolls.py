"""Calls that begin a segment: which batches are in which segment, and the files after a
kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, crash, logs_in
from support.producing import sent
from support.values import config_of

SEGMENT_MS = 1000


class Unhurried(FaultyFiles):
    """Syncs nothing, and keeps a copy of the store before each write."""

    def __init__(self, store: Path, copies: Path) -> None:
        super().__init__()
        self._store, self._copies = store, copies
        self.kept: list[Path] = []
        self.keeps = False

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, dir_fd: int) -> None:
        """Do nothing."""

    def write(self, fd: int, data: object, pos: int) -> None:
        super().write(fd, data, pos)
        if self.keeps:
            name = f"after-{len(self.kept)}"
            self.kept.append(crash(self._store, self._copies / name))


def opened(path: Path, files: FaultyFiles | None = None) -> logstore.Store:
    return open_store(path, _files=files)


def bases(path: Path) -> list[int]:
    return [int(log.name[:20]) for log in logs_in(path / "orders-0")]


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("gap", [SEGMENT_MS, SEGMENT_MS + 1])
def test_records_of_one_call_go_into_one_segment_by_the_latest_of_them(
    tmp_path: Path, magic: int, gap: int
) -> None:
    """Kafka does the same: the time of a segment is over for all of them, or for none;
    and none of them is too late for the new segment."""
    settings = config_of(magic, segment_ms=SEGMENT_MS)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=settings)[0]
        partition.append(b"first", timestamp_ms=0)
        partition.append_many([b"x"] * 3, timestamps_ms=[1, gap, 2])
        assert bases(tmp_path) == ([0, 1] if gap > SEGMENT_MS else [0])
        partition.append_many([b"x"] * 3, timestamps_ms=[9000, 99_000, 9001])
        assert bases(tmp_path)[-1] == 4
        partition.append_many([b"x"] * 2, timestamps_ms=[1, 2])
        assert bases(tmp_path)[-1] == 4


@pytest.mark.parametrize("size", [100, 3000])
def test_call_that_begins_a_segment_by_time_is_all_there_after_a_kill_or_not_at_all(
    tmp_path: Path, size: int
) -> None:
    """Any of its writes may be the last, and it may need any number."""
    (tmp_path / "copies").mkdir()
    files = Unhurried(tmp_path / "store", tmp_path / "copies")
    settings = config_of(1, segment_ms=SEGMENT_MS)
    with opened(tmp_path / "store", files) as store:
        partition = store.create_topic("orders", config=settings)[0]
        partition.append(b"first", timestamp_ms=0)
        files.keeps = True
        partition.append_many([bytes(size)] * 200, timestamps_ms=[5000] * 200)
        files.keeps = False
        assert bases(tmp_path / "store") == [0, 1]
    found = set()
    for copy in files.kept:
        with logstore.open(copy, read_only=True) as reader:
            before = len(list(reader.topic("orders")[0].read()))
        with opened(copy) as store:
            after = len(list(store.topic("orders")[0].read()))
        found |= {before, after}
        shutil.rmtree(copy)
    assert found == {1, 201}


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batch_larger_than_a_segment_has_one_for_itself(
    tmp_path: Path, magic: int
) -> None:
    """A broker refuses it; here `max_message_bytes` is the limit."""
    settings = config_of(magic, segment_bytes=200)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=settings)[0]
        for size in (10, 1000, 10):
            partition.append(bytes(size))
        assert [len(record.value) for record in partition.read()] == [10, 1000, 10]
    assert bases(tmp_path) == [0, 1, 2]


def test_batch_of_records_with_the_time_of_the_append_has_no_other_time(
    tmp_path: Path,
) -> None:
    """A producer's batch keeps its base timestamp as well, as in a broker."""
    settings = config_of(2, message_timestamp_type="LogAppendTime")
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=settings)[0]
        partition.append_many([b"x"], timestamps_ms=[5])
        partition.append_batches(sent(-1, -1, 0, timestamp_ms=5))
        own, theirs = (bytes(batch.buffer) for batch in partition.read_batches())
    assert own[27:35] == own[35:43] != bytes(7) + b"\5"
    assert theirs[27:35] == bytes(7) + b"\5" != theirs[35:43]
