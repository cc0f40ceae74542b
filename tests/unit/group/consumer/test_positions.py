"""Start positions of a consumer: a position counts in the log that it belongs to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker.kafka_records import (
    OffsetCommit,
    OffsetKey,
    format_offset_value,
    parse_offset_value,
)
from logstore.group.consumer.transaction import GroupPositions, Positioned
from logstore.log.read.proof import ProofFinder
from logstore.store.package_access import views_of
from support.groups import T0, consumer, drain, store_with


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store_with(tmp_path / "s", 1, 10)
    return tmp_path / "s"


def by_commit(path: Path) -> None:
    with consumer(path) as one:
        drain(one)
        one.commit()


def by_transaction(path: Path) -> None:
    with consumer(path) as one, one.transaction() as transaction:
        for value in drain(one):
            transaction.append("out", value)


@pytest.fixture(params=[by_commit, by_transaction])
def commit(request: pytest.FixtureRequest, path: Path) -> Any:
    with logstore.open(path) as store:
        store.create_topic("out", exist_ok=True)
    return request.param


def rolled_back(path: Path, values: list[bytes]) -> None:
    """Restore the log of the partition to an earlier state, and let it grow
    differently. The positions of the group are from the later state."""
    with logstore.open(path) as store:
        store["t"][0].truncate_to(4)
        store["t"][0].append_many(values)


def proof_of(store: logstore.Store, offset: int) -> int | None:
    """The proof of a position in the current log."""
    views = views_of(store["t"][0])
    return ProofFinder().find(offset, None, lambda: views.now(False), is_read=False)


def append(path: Path, *values: bytes) -> None:
    with logstore.open(path) as store:
        store["t"][0].append_many(values)


def test_position_goes_on_in_its_own_log(path: Path, commit: Any) -> None:
    """Records appended since then are delivered."""
    commit(path)
    append(path, b"new")
    with consumer(path) as one:
        assert drain(one) == [b"new"]


def test_position_in_a_log_with_another_batch_below_does_not_count(
    path: Path, commit: Any
) -> None:
    """The offset is in the log, but the records below it were never read."""
    commit(path)
    rolled_back(path, [b"other %d" % n for n in range(20)])
    with consumer(path, reset="error") as one:
        with pytest.raises(
            logstore.OffsetOutOfRangeError, match="was truncated to offset 9"
        ):
            one.poll(timeout_ms=1000)
        one.seek(T0, 4)
        assert len(drain(one)) == 20
    with consumer(path, reset="earliest") as one:
        assert len(drain(one)) == 24
        commit_again = one.commit if commit is by_commit else None
        if commit_again is not None:
            commit_again()
            assert one.committed(T0) == logstore.OffsetAndMetadata(24)


def test_position_whose_batch_was_removed_counts(path: Path, commit: Any) -> None:
    """Retention does not make it another log."""
    commit(path)
    append(path, b"new")
    with logstore.open(path) as store:
        store["t"][0].roll()
        store["t"][0].delete_before(10)
    with consumer(path, reset="error") as one:
        assert drain(one) == [b"new"]


def test_commit_keeps_its_proof() -> None:
    """The proof is a tagged field, which a broker leaves alone."""
    key = OffsetKey("g", "t", 0)
    for proof in (None, 0, 0xFFFFFFFF):
        for topic_id in (None, "1" * 32):
            given = OffsetCommit(*key, 7, topic_id=topic_id, proof=proof)
            assert parse_offset_value(key, format_offset_value(given)) == given


def test_published_positions_keep_their_proofs_if_there_is_room(path: Path) -> None:
    """A position without a proof is better than no position."""
    with logstore.open(path) as store:
        positions = GroupPositions(store, "g")
        for count, is_kept in ((2, True), (200, True), (300, False)):
            given = {
                logstore.TopicPartition("t", n): Positioned(n, "1" * 32, 0xF0000000 + n)
                for n in range(count)
            }
            given[T0] = Positioned(5, "1" * 32)
            found = positions._parsed(positions.format(given))
            if not is_kept:
                given = {key: at._replace(proof=None) for key, at in given.items()}
            assert found == given


def test_assigned_partition_of_a_topic_made_again_is_not_committed(path: Path) -> None:
    """Records of the earlier topic say nothing about this one."""
    with consumer(path) as one:
        one.assign([T0])
        drain(one)
        one.commit()
        with logstore.open(path) as store:
            store.delete_topic("t")
            store.create_topic("t")[0].append(b"again")
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            one.poll(timeout_ms=1000)
        with pytest.raises(logstore.errors.CommitFailedError, match="created again"):
            one.commit({T0: logstore.OffsetAndMetadata(1)})
        assert one.committed(T0) is None
        one.assign([T0])
        assert drain(one) == [b"again"]
        one.commit()
        assert one.committed(T0) == logstore.OffsetAndMetadata(1)


def test_position_does_not_count_in_a_partition_of_another_topic(path: Path) -> None:
    """A partition directory was restored from an earlier topic of the name."""
    shutil.copytree(path / "t-0", path.parent / "kept")
    with logstore.open(path) as store:
        store.delete_topic("t")
        topic = store.create_topic("t", 2)
        topic[0].append_many([b"x"] * 10)
        topic[1].append(b"x")
    by_commit(path)
    shutil.rmtree(path / "t-0")
    shutil.copytree(path.parent / "kept", path / "t-0")
    with consumer(path) as one:
        assert one.committed(T0) is None
        assert one.committed(logstore.TopicPartition("t", 1)) is not None


def test_position_is_committed_again_at_the_same_offset_of_another_log(
    path: Path, commit: Any
) -> None:
    """The proof differs: otherwise records of this log would be delivered twice."""
    commit(path)
    rolled_back(path, [b"other %d" % n for n in range(6)])
    commit(path)
    with consumer(path, reset="error") as one:
        assert one.committed(T0) == logstore.OffsetAndMetadata(10)
        assert drain(one) == []


def test_position_above_the_end_is_committed_again_when_the_log_has_grown(
    path: Path,
) -> None:
    """Another process may have lowered it meanwhile without the consumer's
    knowledge."""
    with consumer(path, reset="earliest") as one:
        drain(one)
        one.commit()
        with logstore.open(path) as store:
            store["t"][0].truncate_to(4)
    with consumer(path, reset="earliest") as one:
        assert len(drain(one)) == 4
        reader = one._core.readers[T0]
        assert (reader.committed, reader.is_disproved) == (10, True)
        append(path, *(b"new %d" % n for n in range(6)))
        drain(one)
        assert one._core.committer.moved([T0]) == {T0: logstore.OffsetAndMetadata(10)}
        one.commit()
        assert one._core.committer.moved([T0]) == {}


def test_commit_has_the_proof_of_the_log_wherever_the_consumer_was(path: Path) -> None:
    """Commits follow each record, earlier and later positions, and a `seek`."""
    append(path, *[b"%d" % n for n in range(10)])
    with logstore.open(path) as store, consumer(store) as one:

        def is_proved(offset: int) -> bool:
            commit = one._core.place.in_group().group.file.committed(T0)
            assert commit is not None
            assert commit.offset == offset
            assert commit.proof == proof_of(store, offset)
            return commit.proof is not None

        proved = 0
        for offset in range(1, 21):
            assert one.poll(0, 1)
            one.commit(durable=False)
            proved += is_proved(offset)
        assert proved
        for offset in (20, 3, 10, 11, 20, 0):
            one.commit({T0: offset}, durable=False)
            is_proved(offset)
        one.seek(T0, 4)
        one.poll(0, 6)
        one.commit(durable=False)
        is_proved(10)


def test_commit_after_a_seek_has_the_proof_of_the_log_as_it_is_then(path: Path) -> None:
    """The proof from before the cut is dropped with the position."""
    with logstore.open(path) as store, consumer(store) as one:
        drain(one)
        one.commit(durable=False)
        store["t"][0].truncate_to(4)
        store["t"][0].append_many([b"another"] * 6, durable=True)
        one.seek(T0, 4)
        assert one.poll(0, 6)
        one.commit({T0: 10}, durable=False)
        commit = one._core.place.in_group().group.file.committed(T0)
        assert commit is not None
        assert commit.proof == proof_of(store, 10)


def test_offset_that_was_reset_counts_in_its_own_log(path: Path) -> None:
    """It has a proof, like a commit of a consumer."""
    logstore.reset_offsets(path, "g", to=10, topics=["t"], dry_run=False)
    with consumer(path, reset="error") as one:
        assert drain(one) == []
    rolled_back(path, [b"other %d" % n for n in range(20)])
    with consumer(path, reset="error") as one:
        with pytest.raises(
            logstore.OffsetOutOfRangeError, match="was truncated to offset 9"
        ):
            one.poll(timeout_ms=1000)


def test_position_in_a_log_with_another_batch_below_is_not_shown_or_handed_over(
    path: Path, commit: Any
) -> None:
    """It has no lag, is no base of a shift, and a broker does not get it."""
    commit(path)
    (row,) = logstore.groups(path)[0].partitions
    assert (row.offset, row.lag) == (10, 0)
    rolled_back(path, [b"other %d" % n for n in range(20)])
    (row,) = logstore.groups(path)[0].partitions
    assert (row.offset, row.end, row.lag) == (10, None, None)
    with pytest.raises(logstore.errors.GroupNotFoundError):
        logstore.kafka.export_group(path, "g", to=path.parent / "broker", dry_run=True)
    if commit is by_commit:
        assert logstore.reset_offsets(path, "g", shift=-1, dry_run=True) == []
        (change,) = logstore.reset_offsets(path, "g", to="earliest", dry_run=True)
        assert change.before is None
