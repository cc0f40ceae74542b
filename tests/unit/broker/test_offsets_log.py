"""The committed offsets that count: tombstones, old keys, transactions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from logstore.broker.groups import KafkaGroup, KafkaGroups, kafka_groups
from logstore.broker.kafka_records import (
    GroupMetadata,
    OffsetCommit,
    format_group_key,
)
from logstore.broker.lag import GroupPartition
from support.damage import frames, logs_in
from support.offsets_topic import (
    ABORT,
    COMMIT,
    OffsetsTopic,
    commit_of,
    committed,
    described,
    offsets_of,
    removal_of,
    written,
)

TOPIC_ID = "000102030405060708090a0b0c0d0e0f"


def only(groups: KafkaGroups) -> KafkaGroup:
    (group,) = groups
    return group


def test_newest_commit_of_each_partition_counts(tmp_path: Path) -> None:
    """A group has the last offset committed for each partition, and its lag."""
    pairs = [
        commit_of(1),
        commit_of(2, partition=1),
        commit_of(3),
        commit_of(9, "other", "u"),
    ]
    groups = kafka_groups(written(tmp_path, pairs, {"t": (5, 2)}))
    assert [group.group for group in groups] == ["g", "other"]
    assert groups[0].partitions == (
        GroupPartition("t", 0, 3, "", 5, None, -1, 3),
        GroupPartition("t", 1, 2, "", 2, None, -1, 2),
    )
    assert [row.lag for row in groups[0].partitions] == [2, 0]
    assert groups[0].lag == 2
    assert (groups[0].state, groups[0].generation) == ("Empty", -1)
    # Its topic is absent: the end is unknown, not 0.
    (row,) = groups[1].partitions
    assert (row.offset, row.end, row.lag) == (9, None, None)
    assert groups[1].lag is None
    assert groups.problems == ()


def test_all_that_a_commit_says_is_in_its_row(tmp_path: Path) -> None:
    """Metadata, leader epoch, times and the topic's id."""
    old = OffsetCommit("g", "t", 0, 1, -1, "old", 5, 99)
    new = OffsetCommit("g", "u", 0, 2, 7, "new", 6, None, TOPIC_ID)
    groups = kafka_groups(
        written(tmp_path, [committed(old), committed(new)], {"t": (1,)})
    )
    assert only(groups).partitions == (
        GroupPartition("t", 0, 1, "old", 1, None, -1, 5, 99),
        GroupPartition("u", 0, 2, "new", None, None, 7, 6, None, TOPIC_ID),
    )


def test_offset_past_the_end_has_a_negative_lag(tmp_path: Path) -> None:
    """The log was cut, or the topic was made again: the tool of Kafka shows the
    same."""
    groups = kafka_groups(written(tmp_path, [commit_of(7)], {"t": (5,)}))
    assert only(groups).lag == -2


def test_tombstone_removes_an_offset_and_a_group(tmp_path: Path) -> None:
    """A removed offset is gone; a group without offsets and members is not listed."""
    group = described(GroupMetadata("gone"))
    pairs = [
        commit_of(1),
        commit_of(2, partition=1),
        removal_of(),
        commit_of(3, "gone"),
        group,
        removal_of("gone"),
        (format_group_key("gone"), None),
    ]
    groups = kafka_groups(written(tmp_path, pairs, {"t": (5, 5)}))
    assert offsets_of(groups) == {("g", "t", 1): 2}
    assert len(groups) == 1


def test_commit_after_a_tombstone_counts(tmp_path: Path) -> None:
    """A group may come back."""
    groups = kafka_groups(
        written(tmp_path, [commit_of(1), removal_of(), commit_of(2)], {})
    )
    assert offsets_of(groups) == {("g", "t", 0): 2}


def test_old_and_new_key_of_one_partition_are_one(tmp_path: Path) -> None:
    """Kafka 0.8 wrote keys of type 0: the later record counts, whatever its key is."""
    new_key, value = commit_of(5)
    assert new_key is not None
    old_key = b"\0\0" + new_key[2:]
    for pairs, offset in (
        ([(old_key, value), commit_of(4)], 4),
        ([commit_of(4), (old_key, value)], 5),
        ([commit_of(4), (old_key, None)], None),
    ):
        directory = tmp_path / str(offset)
        found = offsets_of(kafka_groups(written(directory, pairs, {})))
        assert found.get(("g", "t", 0)) == offset


# ------------------------------------------------------------------ transactions


def test_transactional_commit_counts_after_its_marker(tmp_path: Path) -> None:
    """The former offset counts while it is open, and after an abort; the new one after
    a commit."""
    for end, offset in ((None, 1), (ABORT, 1), (COMMIT, 2)):
        made = OffsetsTopic(tmp_path / str(end))
        made.put(commit_of(1))
        made.put(commit_of(2), producer=7)
        if end is not None:
            made.end(7, end)
        assert offsets_of(kafka_groups(made.directory)) == {("g", "t", 0): offset}


def test_transactional_commit_is_ordered_by_its_own_offset(tmp_path: Path) -> None:
    """Commits between it and its marker stay the newest."""
    for between, expected in (
        (commit_of(3), {("g", "t", 0): 3}),
        (removal_of(), {}),
        (commit_of(3, partition=1), {("g", "t", 0): 2, ("g", "t", 1): 3}),
    ):
        made = OffsetsTopic(tmp_path / str(len(expected)))
        made.put(commit_of(1))
        made.put(commit_of(2), producer=7)
        made.put(between)
        made.end(7, COMMIT)
        assert offsets_of(kafka_groups(made.directory)) == expected


def test_transactions_of_several_producers_are_independent(tmp_path: Path) -> None:
    """A marker ends only the transaction of its producer."""
    made = OffsetsTopic(tmp_path)
    made.put(commit_of(1), producer=7)
    made.put(commit_of(2, "other"), producer=8)
    made.end(8, ABORT)
    made.end(7, COMMIT)
    made.put(commit_of(5, "third"), producer=8)
    assert offsets_of(kafka_groups(made.directory)) == {("g", "t", 0): 1}


class Replayed:
    """The offsets as a broker replays them: pending ones move at the marker."""

    def __init__(self) -> None:
        self.at = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.pending: dict[int, dict[int, tuple[int, int]]] = {}

    def put(self, partition: int, offset: int, producer: int) -> None:
        if producer < 0:
            self.offsets[partition] = self.at, offset
        else:
            self.pending.setdefault(producer, {})[partition] = self.at, offset
        self.at += 1

    def remove(self, partition: int) -> None:
        self.offsets.pop(partition, None)
        for pending in self.pending.values():
            pending.pop(partition, None)
        self.at += 1

    def end(self, producer: int, kind: int) -> None:
        for partition, entry in self.pending.pop(producer, {}).items():
            known = self.offsets.get(partition)
            if kind == COMMIT and (known is None or entry[0] > known[0]):
                self.offsets[partition] = entry
        self.at += 1


@pytest.mark.parametrize("seed", range(10))
def test_any_history_is_what_a_broker_replays(tmp_path: Path, seed: int) -> None:
    """Commits, removals, transactions that end late, aborted or never, in any order."""
    rng = random.Random(seed)
    made, replayed = OffsetsTopic(tmp_path), Replayed()
    for number in range(200):
        action, partition = rng.random(), rng.randrange(4)
        producer = rng.choice([-1, -1, 7, 8, 9])
        if action < 0.65:
            made.put(commit_of(number, partition=partition), producer=producer)
            replayed.put(partition, number, producer)
        elif action < 0.8:
            made.put(removal_of(partition=partition))
            replayed.remove(partition)
        elif action < 0.97:
            kind = rng.choice([ABORT, COMMIT])
            made.end(max(producer, 7), kind)
            replayed.end(max(producer, 7), kind)
        else:
            made.roll()
    expected = {("g", "t", n): offset for n, (_, offset) in replayed.offsets.items()}
    assert offsets_of(kafka_groups(made.directory)) == expected


class Written(NamedTuple):
    """A record of a history: of a key (its partition), or a marker (-1)."""

    offset: int
    partition: int
    producer: int
    is_tombstone: bool


def clean(directory: Path, history: Sequence[Written], aborted: set[int]) -> None:
    """Clean, like Kafka's cleaner, all segments but the last one, up to the first open
    transaction: the last record of each key that was not aborted stays; a tombstone may
    go, too, markers stay."""
    logs = logs_in(directory / "__consumer_offsets-0")
    markers = {one.offset: one.producer for one in history if one.partition < 0}
    open_since: dict[int, int] = {}
    for one in history:
        if one.offset in markers:
            open_since.pop(one.producer, None)
        elif one.producer >= 0:
            open_since.setdefault(one.producer, one.offset)
    end = min([int(logs[-1].stem), *open_since.values()])
    last = {
        one.partition: one.offset
        for one in history
        if one.offset < end and one.offset not in aborted and one.partition >= 0
    }
    stays = {
        one.offset
        for one in history
        if one.offset >= end
        or one.partition < 0
        or (
            last.get(one.partition) == one.offset
            and not (one.is_tombstone and one.offset % 2)
        )
    }
    for log in logs[:-1]:
        data, kept = log.read_bytes(), b""
        for frame in frames(log):
            if frame.offset in stays:
                kept += data[frame.pos : frame.pos + frame.size]
        log.write_bytes(kept)


@pytest.mark.parametrize("seed", range(10))
def test_compaction_changes_nothing(tmp_path: Path, seed: int) -> None:
    """A cleaned log of any history gives the same offsets, though commits of
    transactions may stand alone with their marker then."""
    rng = random.Random(f"compaction {seed}")
    made = OffsetsTopic(tmp_path)
    history: list[Written] = []
    open_ones: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for offset in range(150):
        partition, producer = rng.randrange(3), rng.choice([-1, -1, 7, 8])
        if producer >= 0 and producer in open_ones and rng.random() < 0.4:
            kind = rng.choice([ABORT, COMMIT])
            ended = open_ones.pop(producer)
            made.end(producer, kind)
            history.append(Written(offset, -1, producer, False))
            if kind == ABORT:
                aborted.update(ended)
        else:
            is_tombstone = producer < 0 and rng.random() < 0.2
            if is_tombstone:
                made.put(removal_of(partition=partition))
            else:
                made.put(commit_of(offset, partition=partition), producer=producer)
            if producer >= 0:
                open_ones.setdefault(producer, []).append(offset)
            history.append(Written(offset, partition, producer, is_tombstone))
        if rng.random() < 0.1:
            made.roll()
    made.roll()
    made.put(commit_of(1, "other"))
    expected = offsets_of(kafka_groups(tmp_path))
    sizes = [log.stat().st_size for log in logs_in(tmp_path / "__consumer_offsets-0")]
    clean(tmp_path, history, aborted)
    groups = kafka_groups(tmp_path)
    assert offsets_of(groups) == expected
    assert groups.problems == ()
    logs = logs_in(tmp_path / "__consumer_offsets-0")
    assert sum(sizes) > 2 * sum(log.stat().st_size for log in logs)
