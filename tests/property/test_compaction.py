"""Random logs of all magics, codecs and transactions, compacted: the last record of
each key stays, in the order of offsets, with its value and its timestamp."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore import Partition, TopicConfig
from support.compacting import Item, RandomLog

CONFIG = TopicConfig(
    cleanup_policy="compact",
    message_format=2,
    segment_bytes=4000,
    index_interval_bytes=150,
    file_delete_delay_ms=0,
    min_cleanable_dirty_ratio=0.0,
)


def records(partition: Partition) -> list[Item]:
    found = partition.read(isolation="read_committed")
    return [Item(r.offset, r.key, r.value, r.timestamp_ms) for r in found]


def expected(items: list[Item], magics: dict[int, int]) -> list[Item]:
    """Items in the form that a read returns: magic 0 has no timestamps."""
    return [i if magics[i.offset] else i._replace(time_ms=-1) for i in items]


def magics_of(log: RandomLog) -> dict[int, int]:
    return {i.offset: b.data[16] for b in log.batches for i in b.items}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(80))
def test_compaction_of_random_log_leaves_the_last_record_of_each_key(
    tmp_path: Path, seed: int
) -> None:
    """A map for a few keys only causes several passes; a second compaction changes
    nothing."""
    log = RandomLog(seed, keyless=seed % 3 == 0)
    log.write(tmp_path / "t-0")
    wanted = expected(log.survivors(), magics_of(log))
    with logstore.open(tmp_path) as store:
        topic = store.topic("t")
        topic.configure(CONFIG)
        partition = topic[0]
        before = expected(log.items(), magics_of(log))
        assert records(partition) == before
        planned = partition.compact(dry_run=True)
        assert records(partition) == before
        report = partition.compact()
        assert records(partition) == wanted
        sealed = [i for b in log.batches for i in b.items if i.offset < log.active_base]
        kept = [i for i in wanted if i.offset < log.active_base]
        assert report.removed == len(sealed) - len(kept)
        assert (planned.removed, planned.tombstones) == (
            report.removed,
            report.tombstones,
        )
        assert report.after == sum(s.size_bytes for s in partition.segments)
        for item in wanted:
            assert partition.get(item.offset).value == item.value
        partition.compact(force=True)
        assert records(partition) == wanted
    check = logstore.verify(tmp_path, deep=True)
    assert not check.problems
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert records(store.topic("t")[0]) == wanted
