"""Partitioners: Kafka's numbers, fair turns, and keys that keep their partition."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

import logstore
from logstore import ConsistentHashPartitioner, KafkaPartitioner

# From Kafka's own UtilsTest.testMurmur2.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", MURMUR2, ids=repr)
def test_keyed_records_go_where_kafka_puts_them(key: bytes) -> None:
    """(murmur2 & 0x7fffffff) % partitions, as the Java client computes it."""
    partitioner = KafkaPartitioner()
    for partitions in (1, 2, 3, 7, 12, 1000):
        want = (MURMUR2[key] & 0x7FFFFFFF) % partitions
        assert partitioner.partition(key, 1, partitions) == want


def test_empty_key_is_a_key() -> None:
    """An empty key always goes to the same partition, unlike a missing key."""
    partitioner = KafkaPartitioner()
    assert len({partitioner.partition(b"", 40_000, 50) for _ in range(20)}) == 1
    assert len({partitioner.partition(None, 40_000, 50) for _ in range(20)}) > 1


def test_records_without_a_key_take_turns_in_batches() -> None:
    """Some records in a row go to one partition, and all have the same share."""
    partitioner = KafkaPartitioner()
    chosen = [partitioner.partition(None, 1000, 4) for _ in range(4000)]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(chosen))
    assert runs < 500
    counts = Counter(chosen)
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) - min(counts.values()) <= 20


def test_topic_append_uses_the_partitioner(tmp_path: Path) -> None:
    """Keys decide; a partition that is given overrides them."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 7)
        for key in MURMUR2:
            want = (MURMUR2[key] & 0x7FFFFFFF) % 7
            assert topic.append(b"v", key=key).partition == want
            assert topic.append(b"v", key=bytearray(key)).partition == want
            assert topic.append(b"v", key=memoryview(key)).partition == want
            assert (
                topic.append(b"v", key=key, partition=(want + 1) % 7).partition != want
            )


def test_topic_takes_another_partitioner(tmp_path: Path) -> None:
    """Any object with a `partition` method is accepted."""

    class Last:
        def partition(self, key: bytes | None, size: int, partitions: int) -> int:
            assert (key, size) == (b"key", 8)
            return partitions - 1

    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 3)
        topic = store.topic("orders", partitioner=Last())
        assert topic.append(b"value", key=b"key").partition == 2


@pytest.mark.parametrize("kind", ["binary", "large_binary", "string"])
def test_partitions_of_an_array_are_those_of_its_keys(kind: str) -> None:
    """Slices work, too; null gives -1."""
    pa = pytest.importorskip("pyarrow")
    keys = [None if n % 7 == 3 else f"key-{n}" for n in range(100)]
    array = pa.array(keys).cast(getattr(pa, kind)()).slice(11, 80)
    partitioner = KafkaPartitioner()
    expected = [
        -1 if key is None else partitioner.partition(key.encode(), 1, 5)
        for key in keys[11:91]
    ]
    assert partitioner.partitions_of(array, 5).to_pylist() == expected
    assert partitioner.partitions_of(array.slice(0, 0), 5).to_pylist() == []


def test_consistent_hash_is_balanced_and_stable() -> None:
    """Each partition has about its share, and the same key keeps its partition."""
    keys = [b"key-%d" % i for i in range(20_000)]
    one, two = ConsistentHashPartitioner(), ConsistentHashPartitioner()
    chosen = [one.partition(k, 1, 8) for k in keys]
    assert chosen == [two.partition(k, 1, 8) for k in keys]
    counts = Counter(chosen)
    assert set(counts) == set(range(8))
    assert all(0.6 < n / 2500 < 1.5 for n in counts.values())


def test_consistent_hash_moves_keys_only_to_the_new_partition() -> None:
    """A new partition takes its share from all others; no other key moves."""
    keys = [b"key-%d" % i for i in range(20_000)]
    partitioner = ConsistentHashPartitioner()
    before = [partitioner.partition(k, 1, 8) for k in keys]
    after = [partitioner.partition(k, 1, 9) for k in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {8}
    assert 0.5 < len(moved) / (len(keys) / 9) < 1.7


def test_consistent_hash_follows_weights() -> None:
    """A partition of twice the weight has about twice the keys; weight 0 has no
    keys."""
    keys = [b"key-%d" % i for i in range(20_000)]
    partitioner = ConsistentHashPartitioner({0: 2.0, 1: 0})
    counts = Counter(partitioner.partition(k, 1, 4) for k in keys)
    assert 1 not in counts
    assert 1.3 < counts[0] / counts[2] < 3.0


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), 1e7])
def test_consistent_hash_with_a_bad_weight_raises_config_error(weight: float) -> None:
    """A weight is a number from 0 on."""
    with pytest.raises(logstore.ConfigError) as caught:
        ConsistentHashPartitioner({0: weight})
    assert caught.value.name == "weights"


def test_consistent_hash_of_weights_all_zero_raises_config_error() -> None:
    """Some partition has to take the records."""
    with pytest.raises(logstore.ConfigError):
        ConsistentHashPartitioner({0: 0, 1: 0}).partition(b"k", 1, 2)


def test_records_without_keys_are_spread_as_they_are_chosen_one_by_one() -> None:
    """Whichever calls come between, and with any sizes."""
    rng = random.Random(5)
    one, many = KafkaPartitioner(), KafkaPartitioner()
    for _ in range(200):
        sizes = [rng.choice((0, 100, 5000, 40_000)) for _ in range(rng.randrange(9))]
        count = rng.randrange(1, 5)
        expected = [one.partition(None, size, count) for size in sizes]
        assert many.spread(sizes, count) == expected
        assert one.partition(None, 9, 4) == many.partition(None, 9, 4)
