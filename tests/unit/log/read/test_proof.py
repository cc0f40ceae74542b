"""The proof of a position: it distinguishes two logs that have the same offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import TopicConfig
from logstore.log.read.proof import ProofFinder
from logstore.segment import Segment
from logstore.store.package_access import views_of
from logstore.store.partition.partition_views import PartitionViews


def filled(path: Path, values: list[bytes], **config: object) -> logstore.Store:
    """A store with one batch for each two of these values."""
    store = logstore.open(path)
    partition = store.create_topic("t", config=TopicConfig(**config))[0]  # type: ignore[arg-type]
    for at in range(0, len(values), 2):
        partition.append_many(values[at : at + 2], keys=[b"k", b"k"])
    return store


def proof_of(views: PartitionViews, at: int) -> int | None:
    """The proof of a position in the current log."""
    return ProofFinder().find(at, None, lambda: views.now(False), is_read=False)


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
    """The log of the proof has the batch; a diverged one has another batch."""
    same = [b"same %d" % n for n in range(6)]
    one = filled(tmp_path / "one", [*same, b"a", b"b"], **config)
    two = filled(tmp_path / "two", [*same, b"c", b"d"], **config)
    with one, two:
        mine, other = views_of(one["t"][0]), views_of(two["t"][0])
        proof = proof_of(mine, 8)
        assert proof is not None
        assert not mine.disproves(8, proof)
        assert other.disproves(8, proof)
        one["t"][0].append(b"more")
        assert not mine.disproves(8, proof)


def test_proof_is_of_a_batch_that_ends_below_the_position(tmp_path: Path) -> None:
    """Positions at the start, inside a batch and above the end have no proof."""
    with filled(tmp_path / "s", [b"0", b"1", b"2", b"3"], message_format=2) as store:
        views = views_of(store["t"][0])
        assert [proof_of(views, at) is not None for at in (0, 1, 2, 3, 4, 5)] == [
            False, False, True, False, True, False,
        ]  # fmt: skip


@pytest.mark.parametrize("message_format", [1, 2])
def test_proof_of_what_was_removed_is_not_asked(
    tmp_path: Path, message_format: int
) -> None:
    """Retention removes batches, and compaction rewrites them: nothing was cut."""
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
        proofs = {at: proof_of(views, at) for at in range(2, 41, 2)}
        partition.roll()
        partition.compact()
        for at, proof in proofs.items():
            assert proof is not None
            assert not views.disproves(at, proof)
    with filled(tmp_path / "d", values, segment_bytes=300) as store:
        partition = store["t"][0]
        proof = proof_of(views_of(partition), 2)
        assert proof is not None
        partition.delete_before(30)
        assert not views_of(partition).disproves(2, proof)


def finds(store: logstore.Store, finder: ProofFinder, at: int) -> int | None:
    """Result of the finder in the current log."""
    views = views_of(store["t"][0])
    return finder.find(at, None, lambda: views.now(False), is_read=False)


@pytest.mark.parametrize("config", WAYS)
@pytest.mark.parametrize("step", [1, 2, 3, 7, -1])
def test_finder_finds_the_same_proofs_wherever_it_was(
    tmp_path: Path, config: dict[str, object], step: int
) -> None:
    """The positions are in one segment and in several, forwards and backwards; also
    outside of the log."""
    values = [b"%d" % n for n in range(40)]
    with filled(tmp_path / "s", values, segment_bytes=400, **config) as store:
        views, finder = views_of(store["t"][0]), ProofFinder()
        expected = [proof_of(views, at) for at in range(43)]
        assert sum(proof is not None for proof in expected) >= 20
        for at in range(43)[::step]:
            assert finds(store, finder, at) == expected[at]
        store["t"][0].delete_before(20)
        assert finds(store, finder, 10) is None


def test_proof_that_a_finder_finds_is_not_disproved_by_compaction(
    tmp_path: Path,
) -> None:
    """Compaction leaves gaps between batches, and the finder knows those before it."""
    values = [b"%d" % n for n in range(40)]
    path, policy = tmp_path / "s", {"cleanup_policy": "compact"}
    with filled(path, values, segment_bytes=1000, **policy) as store:
        partition, finder = store["t"][0], ProofFinder()
        for at in range(12):
            finds(store, finder, at)
        for n in range(20):
            partition.append(b"%d" % n, key=b"k%d" % (n % 3))
        partition.roll()
        partition.compact()
        views = views_of(partition)
        found = dict.fromkeys(range(12, 61))
        for at in found:
            proof = found[at] = finds(store, finder, at)
            assert proof is None or not views.disproves(at, proof)
        finder.forget()
        for at in found:
            assert finds(store, finder, at) == proof_of(views, at)


def test_finder_finds_the_batch_that_is_there_after_a_cut(tmp_path: Path) -> None:
    """The finder asks whether the log was cut since its last search."""
    values = [b"%d" % n for n in range(8)]
    with filled(tmp_path / "s", values) as store:
        partition, finder, other = store["t"][0], ProofFinder(), ProofFinder()
        before = finds(store, finder, 8)
        assert finds(store, other, 8) == before
        partition.truncate_to(4)
        assert finds(store, other, 8) is None
        for n in range(2):
            partition.append_many([b"another %d" % n, b""])
        after = finds(store, finder, 8)
        assert after == proof_of(views_of(partition), 8)
        assert after != before


def test_finder_reads_the_next_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit after each record costs no read, and after each batch it costs one."""
    reads, read = [], Segment.read

    def counted(segment: Segment, view: memoryview, pos: int, *ahead: Any) -> int:
        reads.append(pos)
        return read(segment, view, pos, *ahead)

    values = [b"%d" % n for n in range(40)]
    with filled(tmp_path / "s", values, message_format=2) as store:
        finder = ProofFinder()
        finds(store, finder, 1)
        monkeypatch.setattr(Segment, "read", counted)
        for batches in range(1, 20):
            finds(store, finder, 2 * batches + 1)
            assert finds(store, finder, 2 * batches + 2) is not None
            assert len(reads) == batches


@pytest.mark.parametrize("size", [10, 3000, 20_000])
def test_finder_finds_batches_of_each_size(tmp_path: Path, size: int) -> None:
    """A small batch is found by one read, and a large one needs a larger buffer."""
    values = [b"%d" % n * size for n in range(30)]
    with filled(tmp_path / "s", values, message_format=2) as store:
        views = views_of(store["t"][0])
        for step in (1, 4, 9):
            finder = ProofFinder()
            for at in range(1, 31, step):
                assert finds(store, finder, at) == proof_of(views, at)
