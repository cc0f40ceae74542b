"""The records of several partitions as one stream."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import logstore
from logstore.store.topic.merging import per_partition


@pytest.mark.parametrize("read_only", [False, True])
def test_follower_ends_after_a_time_in_which_nothing_came(
    tmp_path: Path, read_only: bool
) -> None:
    """Each record restarts that time, in whatever partition it is."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        reader = logstore.open(tmp_path, read_only=True) if read_only else store

        def work() -> None:
            for number in range(8):
                time.sleep(0.15)
                topic[number % 2].append(b"%d" % number)

        thread = threading.Thread(target=work)
        thread.start()
        # Longer than the pauses of the writer, shorter than all of them.
        followed = reader.topic("orders").follow(timeout=0.9)
        values = [record.value for record in followed]
        thread.join()
        assert values == [b"%d" % number for number in range(8)]
        if read_only:
            reader.close()


def test_records_of_one_time_come_in_the_order_of_their_partitions(
    tmp_path: Path,
) -> None:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 3)
        for number, times in ((2, (5, 9)), (0, (5, 7)), (1, (4, 7))):
            for time_ms in times:
                topic[number].append(b"x", timestamp_ms=time_ms)
        by_time = [(r.timestamp_ms, r.partition) for r in topic.read()]
        assert by_time == [(4, 1), (5, 0), (5, 2), (7, 0), (7, 1), (9, 2)]
        in_turn = [(r.partition, r.offset) for r in topic.read(order="partition")]
        assert in_turn == [(p, o) for p in range(3) for o in range(2)]


def test_argument_of_a_partition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        partitions = store.create_topic("orders", 2).partitions
        assert per_partition("start", 5, partitions) == {0: 5, 1: 5}
        assert per_partition("start", {1: 5}, partitions) == {0: None, 1: 5}
        with pytest.raises(
            logstore.errors.PartitionNotFoundError, match="names partition 2"
        ):
            per_partition("start", {2: 5}, partitions)
