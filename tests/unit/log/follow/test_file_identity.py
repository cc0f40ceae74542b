"""Checks whether the files of a log are still the ones that were read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import logstore
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import open_root
from logstore.log.follow.file_identity import last_batch_at
from logstore.segment import Segment
from support.damage import Unsynced, logs_in


@pytest.mark.parametrize("magic", [1, 2])
def test_last_batch_is_found_without_an_index(tmp_path: Path, magic: int) -> None:
    """The batch is after several buffers of batches, and before a damaged one."""
    with logstore.open(tmp_path / "s") as store:
        config = logstore.TopicConfig(message_format=magic)
        partition = store.create_topic("t", 1, config=config)[0]
        for _ in range(3000):
            partition.append(bytes(200))
        path = Path(partition.path)
    logs_in(path)[0].with_suffix(".index").unlink()
    directory = open_root(Files(), str(path))
    size = logs_in(path)[0].stat().st_size
    segment = Segment(directory, Descriptors(directory.files, 4), 0, size, 3000)
    places = [at for *_, at in segment.headers(checks=0)]
    assert len(places) == 3000
    assert last_batch_at(segment) == places[-1]
    data = bytearray(logs_in(path)[0].read_bytes())
    data[places[2500] + 16] = 0x7F
    logs_in(path)[0].write_bytes(data)
    assert last_batch_at(segment) == places[2499]
    directory.close()


def test_file_that_is_written_over_with_its_old_time_is_another(tmp_path: Path) -> None:
    """A copy may keep times: inode, size and time are the same."""
    (tmp_path / "file").write_bytes(b"old")
    directory = Directory.open_root(Unsynced(), str(tmp_path))
    before, info = directory.stamp("file"), (tmp_path / "file").stat()
    time.sleep(0.05)
    (tmp_path / "file").write_bytes(b"new")
    os.utime(tmp_path / "file", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert directory.stamp("file") != before
    directory.close()
