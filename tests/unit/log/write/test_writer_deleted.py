"""Objects of a topic that was deleted write nothing, nor into its successor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from support.values import fill, new_partition, read_all

STALE: dict[str, Callable[[logstore.Topic, logstore.Partition], object]] = {
    "append": lambda t, p: p.append(b"x"),
    "append_many": lambda t, p: p.append_many([b"x"]),
    "topic.append": lambda t, p: t.append(b"x"),
    "flush": lambda t, p: (p.append(b"x"), p.flush()),
    "roll": lambda t, p: p.roll(),
    "delete_before": lambda t, p: p.delete_before(1),
    "truncate_to": lambda t, p: p.truncate_to(0),
    "add_partitions": lambda t, p: t.add_partitions(1),
    "index": lambda t, p: t[0],
}


@pytest.mark.parametrize("use", STALE)
def test_deleted_topic_takes_nothing_more(tmp_path: Path, use: str) -> None:
    """Objects of a deleted topic raise a LookupError and write nothing."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        topic = store.topic("orders")
        fill(partition, 3)
        store.delete_topic("orders")
        with pytest.raises(logstore.LogStoreError) as caught:
            STALE[use](topic, partition)
        assert isinstance(caught.value, LookupError)
        assert store.topics() == []


@pytest.mark.parametrize("use", ["append", "append_many", "roll", "truncate_to"])
def test_partition_of_a_deleted_topic_does_not_write_into_its_successor(
    tmp_path: Path, use: str
) -> None:
    """A topic that is created again under the name is another one."""
    with logstore.open(tmp_path) as store:
        old = new_partition(store)
        topic = store.topic("orders")
        old.append(b"old")
        store.delete_topic("orders")
        new = new_partition(store)
        new.append(b"new")
        with pytest.raises(logstore.LogStoreError):
            STALE[use](topic, old)
        new.append(b"newer")
        assert [r.value for r in new.read()] == [b"new", b"newer"]
    assert [r.value for r in read_all(tmp_path)] == [b"new", b"newer"]
