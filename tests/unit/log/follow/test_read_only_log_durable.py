"""A follower of durable records: it waits without work, and gets a record once it is
durable."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.read_ways import beside


@pytest.mark.parametrize("where", ["own", "other"])
def test_follower_of_what_is_durable_sleeps_until_it_is(
    tmp_path: Path, where: str
) -> None:
    """It uses no processor time while the only new records are not durable."""
    config = logstore.TopicConfig(flush_ms=3_600_000, flush_messages=1_000_000)
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config)[0]
        p.append(b"durable", durable=True)
        p.append(b"not yet")
        with beside(store, tmp_path, where) as reading:
            reader = reading.topic("orders")[0]
            follower = reader.follow(1, timeout=1, durable_only=True)
            begin = time.thread_time()
            assert list(follower) == []
            assert time.thread_time() - begin < 0.5


def test_follower_of_what_is_durable_gets_it_when_it_is(tmp_path: Path) -> None:
    config = logstore.TopicConfig(flush_ms=3_600_000, flush_messages=1_000_000)
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config)[0]
        p.append(b"x")
        follower = p.follow(p.end_offset, timeout=20, durable_only=True)
        p.append(b"y")
        timer = threading.Timer(0.2, p.flush)
        timer.start()
        assert next(follower).value == b"y"
        timer.join()


def test_offset_that_is_not_durable_yet_is_one_of_the_log(tmp_path: Path) -> None:
    """A read there gives no error and no record so far."""
    config = logstore.TopicConfig(flush_ms=3_600_000, flush_messages=1_000_000)
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config)[0]
        p.append(b"x", durable=True)
        p.append_many([b"y"] * 3)
        for offset in range(1, 5):
            assert list(p.read(offset, durable_only=True)) == []
            assert list(p.read_batches(offset, durable_only=True)) == []
            assert list(p.follow(offset, timeout=0, durable_only=True)) == []
            assert p.fetch(offset, durable_only=True).next_offset == offset
            table = p.read_arrow(offset, durable_only=True).read_all()
            assert table.num_rows == 0
        for call in (p.read, p.read_batches, p.fetch, p.follow, p.read_arrow):
            with pytest.raises(OffsetOutOfRangeError):
                call(5, durable_only=True)
