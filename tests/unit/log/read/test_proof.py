"""The proof of a position: what tells two logs apart that have the same offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore import TopicConfig
from logstore.store.inside import views_of


def filled(path: Path, values: list[bytes], **config: object) -> logstore.Store:
    """A store with one batch for each two of these values."""
    store = logstore.open(path)
    partition = store.create_topic("t", config=TopicConfig(**config))[0]  # type: ignore[arg-type]
    for at in range(0, len(values), 2):
        partition.append_many(values[at : at + 2], keys=[b"k", b"k"])
    return store


WAYS = [
    {"message_format": 0},
    {"message_format": 1},
    {"message_format": 2},
    {"message_format": 1, "compression_type": "gzip"},
    {"message_format": 2, "compression_type": "gzip"},
]


@pytest.mark.parametrize("config", WAYS)
def test_proof_of_a_position_is_disproved_by_another_log_alone(
    tmp_path: Path, config: dict[str, object]
) -> None:
    """The log that it is of has the batch; a diverged one has another one."""
    same = [b"same %d" % n for n in range(6)]
    one = filled(tmp_path / "one", [*same, b"a", b"b"], **config)
    two = filled(tmp_path / "two", [*same, b"c", b"d"], **config)
    with one, two:
        mine, other = views_of(one["t"][0]), views_of(two["t"][0])
        proof = mine.proof_of(8)
        assert proof is not None
        assert not mine.disproves(8, proof)
        assert other.disproves(8, proof)
        one["t"][0].append(b"more")
        assert not mine.disproves(8, proof)


def test_proof_is_of_a_batch_that_ends_below_the_position(tmp_path: Path) -> None:
    """At the start, inside of a batch and above the end there is none."""
    with filled(tmp_path / "s", [b"0", b"1", b"2", b"3"], message_format=2) as store:
        views = views_of(store["t"][0])
        assert [views.proof_of(at) is not None for at in (0, 1, 2, 3, 4, 5)] == [
            False, False, True, False, True, False,
        ]  # fmt: skip


@pytest.mark.parametrize("message_format", [1, 2])
def test_proof_of_what_was_removed_is_not_asked(
    tmp_path: Path, message_format: int
) -> None:
    """Retention removes batches, and compaction writes them anew: nothing was cut."""
    values = [b"%d" % n for n in range(40)]
    with filled(
        tmp_path / "s",
        values,
        message_format=message_format,
        cleanup_policy="compact",
        segment_bytes=300,
    ) as store:
        partition = store["t"][0]
        views = views_of(partition)
        proofs = {at: views.proof_of(at) for at in range(2, 41, 2)}
        partition.roll()
        partition.compact()
        for at, proof in proofs.items():
            assert proof is not None
            assert not views.disproves(at, proof)
    with filled(tmp_path / "d", values, segment_bytes=300) as store:
        partition = store["t"][0]
        proof = views_of(partition).proof_of(2)
        assert proof is not None
        partition.delete_before(30)
        assert not views_of(partition).disproves(2, proof)
