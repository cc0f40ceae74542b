"""The last sequences of named producers, which are kept for good."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import logstore

CONFIG = logstore.TopicConfig(
    message_format=2, cleanup_policy="compact", file_delete_delay_ms=0
)


@pytest.mark.parametrize("is_kept", [True, False])
def test_cut_of_a_compacted_log_leaves_the_sequence_before_it(
    tmp_path: Path, is_kept: bool
) -> None:
    """All records of the producer before the cut may have been compacted away, or all
    but the first."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=CONFIG)[0]
        mover = store.producer("mover")
        for n in range(10):
            key = b"own" if is_kept and not n else b"k"
            mover.append(partition, b"%d" % n, key, sequence=n)
        partition.append(b"newer than 1 to 9", b"k")
        cut = partition.end_offset
        for n in range(10, 20):
            mover.append(partition, b"%d" % n, b"j", sequence=n)
        partition.append(b"newer than 10 to 19", b"j")
        mover.append(partition, b"20", b"l", sequence=20)
        partition.roll()
        partition.compact(force=True)
        partition.truncate_to(cut)
        assert mover.last_sequence(partition) == 9
    with logstore.open(tmp_path) as store:
        assert store.producer("mover").last_sequence(store.topic("t")[0]) == 9


@pytest.mark.parametrize("seed", range(10))
def test_last_sequences_are_those_of_the_log_as_it_was(
    tmp_path: Path, seed: int
) -> None:
    """The log may be compacted, deleted, cut, closed and opened in between."""
    rng = random.Random(seed)
    names = ["one", "two", "three"][: rng.randrange(1, 4)]
    # (offset, producer, sequence) of the records that were not taken back.
    sent: list[tuple[int, str, int]] = []
    store = logstore.open(tmp_path)
    partition = store.create_topic("t", config=CONFIG)[0]

    def last(name: str) -> int | None:
        return max((row[2] for row in sent if row[1] == name), default=None)

    for _ in range(60):
        step = rng.random()
        if step < 0.6:
            name = rng.choice(names)
            for _ in range(rng.randrange(1, 6)):
                before = last(name)
                sequence = 0 if before is None else before + 1
                key = b"%d" % rng.randrange(4)
                count = rng.randrange(1, 4)
                offsets = store.producer(name).append_many(
                    partition, [b"v"] * count, [key] * count, sequence=sequence
                )
                sent += [(offsets[n], name, sequence + n) for n in range(count)]
        elif step < 0.7:
            partition.append(b"other", b"%d" % rng.randrange(4))
        elif step < 0.85:
            partition.roll()
            partition.compact(force=True)
        elif step < 0.95:
            bases = [b.base_offset for b in partition.read_batches()]
            cut = rng.choice(bases or [partition.end_offset])
            partition.truncate_to(cut)
            sent = [row for row in sent if row[0] < cut]
        elif step < 0.97:
            bases = [segment.base_offset for segment in partition.segments]
            partition.delete_before(rng.choice(bases or [partition.start_offset]))
        else:
            store.close()
            store = logstore.open(tmp_path)
            partition = store.topic("t")[0]
        for name in names:
            assert store.producer(name).last_sequence(partition) == last(name), name
    store.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_cut_below_an_earlier_one_leaves_the_sequence_before_it(
    tmp_path: Path, is_reopened: bool
) -> None:
    """The first cut has removed the batch with the sequences of the batches before it,
    which had been compacted: its snapshot has them, even if others have appended
    first."""
    store = logstore.open(tmp_path)
    partition = store.create_topic("t", config=CONFIG)[0]
    mover, other = store.producer("mover"), store.producer("other")
    for n in range(10):
        mover.append(partition, b"%d" % n, b"k", sequence=n)
    partition.append(b"newer", b"k")
    partition.roll()
    partition.compact(force=True)
    assert [b.base_offset for b in partition.read_batches()] == [9, 10]
    for cut in (7, 3, 1):
        partition.truncate_to(cut)
        assert mover.last_sequence(partition) == cut - 1
        for n in range(8):
            sequence = (other.last_sequence(partition) or -1) + 1
            other.append(partition, b"%d" % n, b"o", sequence=sequence)
            mover.append(partition, b"%d" % n, b"m", sequence=cut + n)
        assert mover.last_sequence(partition) == cut + 7
        if is_reopened:
            store.close()
            store = logstore.open(tmp_path)
            partition = store.topic("t")[0]
            mover, other = store.producer("mover"), store.producer("other")
    store.close()


def test_cut_to_an_offset_of_a_gap_at_the_end_is_done(tmp_path: Path) -> None:
    """An earlier cut to an offset without a record has left the gap."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=CONFIG)[0]
        for n in range(10):
            partition.append(b"%d" % n, b"k" if n else b"first")
        partition.roll()
        partition.compact(force=True)
        for cut in (7, 5, 2):
            assert partition.truncate_to(cut) == cut == partition.end_offset
        assert partition.append(b"x", b"x") == 2
    with logstore.open(tmp_path) as store:
        assert [r.offset for r in store.topic("t")[0].read()] == [0, 2]
        assert logstore.verify(tmp_path).ok
