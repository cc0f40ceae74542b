"""The last batch that a state vouches for."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.directory import Directory
from support.damage import cut, frames, overwrite
from support.killed import the_log
from support.values import every_magic, write_store


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a partition in the directory of the test."""
    return tmp_path / f"{0:020d}.log"


def fill(log: Path, magic: int) -> None:
    store = log.parent / "store"
    write_store(store, 12, magic=magic)
    log.write_bytes(the_log(store).read_bytes())


@every_magic
def test_last_batch_is_found_from_any_one_before(
    root: Directory, log: Path, magic: int
) -> None:
    fill(log, magic)
    batches = frames(log)
    size = log.stat().st_size
    tails = {LogTail.find(root, 0, batch.pos, size) for batch in batches}
    (tail,) = tails
    assert tail is not None
    assert (tail.last_offset, tail.position) == (11, batches[-1].pos)
    assert tail.stands(root, 0)
    # For a part of the log, it is the last batch of that part.
    end = batches[-1].pos
    before = LogTail.find(root, 0, 0, end)
    assert before is not None
    assert before.position == batches[-2].pos
    assert LogTail.find(root, 0, 0, size - 1) is None
    assert LogTail.find(root, 0, 1, size) is None


@every_magic
def test_last_batch_stands_as_long_as_it_is_whole_and_the_same(
    root: Directory, log: Path, magic: int
) -> None:
    fill(log, magic)
    size, last = log.stat().st_size, frames(log)[-1]
    tail = LogTail.find(root, 0, 0, size)
    assert tail is not None
    data = log.read_bytes()
    log.write_bytes(data + data[last.pos :])
    assert tail.stands(root, 0)  # there may be more after it
    cut(log, size - 1)
    assert not tail.stands(root, 0)
    log.write_bytes(data)
    assert tail.stands(root, 0)
    overwrite(log, last.pos + 7, b"\x63")  # another offset
    assert not tail.stands(root, 0)
    log.unlink()
    assert not tail.stands(root, 0)
    assert LogTail.find(root, 0, 0, size) is None
