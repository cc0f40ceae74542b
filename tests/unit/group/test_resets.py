"""Setting a group's offsets: targets, partitions, and refusals."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker.lag import OffsetChange
from logstore.group import resets
from logstore.group.overview import groups
from logstore.group.resets import reset_offsets
from logstore.io import layout
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from support.damage import snapshot_of
from support.groups import T0, T1, OneMember, consumer, drain, offset_in, settle

T = datetime.timezone.utc


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Topic "t": records at the seconds 0 to 9 and 0 to 19; the first two of partition
    0 were deleted; "u" has one partition."""
    path = tmp_path / "store"
    with logstore.open(path) as opened:
        topic = opened.create_topic("t", 2)
        for partition, count in zip(topic, (10, 20), strict=True):
            partition.append_many(
                [b"x"] * count, timestamps_ms=[1000 * n for n in range(count)]
            )
        topic[0].delete_before(2)
        opened.create_topic("u", 1)[0].append_many([b"y"] * 5)
    return path


def commit(store: Path, *offsets: tuple[TopicPartition, int], group: str = "g") -> None:
    """Commits of a consumer that has left."""
    with consumer(store, group=group, topics=()) as one:
        one.assign([key for key, _ in offsets])
        one.commit(dict(offsets))


def offsets(store: Path, group: str = "g") -> dict[tuple[str, int], int | None]:
    return {
        (row.topic, row.partition): row.offset
        for one in groups(store)
        if one.group == group
        for row in one.partitions
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"to": "earliest"}, (2, 0)),
        ({"to": "latest"}, (10, 20)),
        ({"to": 7}, (7, 7)),
        ({"to": 0}, (2, 0)),
        ({"to": 15}, (10, 15)),
        ({"to": datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=T)}, (5, 5)),
        ({"to": "1970-01-01T00:00:12Z"}, (10, 12)),
        ({"to": datetime.date(2100, 1, 1)}, (10, 20)),
        ({"shift": 3}, (8, 12)),
        ({"shift": -4}, (2, 5)),
        ({"shift": 100}, (10, 20)),
        ({"shift": -(1 << 62)}, (2, 0)),
    ],
)
def test_offsets_are_set_where_they_are_meant(
    store: Path, given: dict[str, Any], expected: tuple[int, int]
) -> None:
    """Each partition of the group is set, within its log; durable, without metadata."""
    commit(store, (T0, 5), (T1, 9))
    changes = [
        OffsetChange("t", 0, 5, expected[0]),
        OffsetChange("t", 1, 9, expected[1]),
    ]
    before = snapshot_of(store)
    assert reset_offsets(store, "g", **given, dry_run=True) == changes
    assert snapshot_of(store) == before
    assert reset_offsets(store, "g", **given, dry_run=False) == changes
    assert offsets(store) == {("t", 0): expected[0], ("t", 1): expected[1]}


def test_consumer_begins_where_the_group_was_reset_to(store: Path) -> None:
    """It begins at the offset; no record is lost or repeated."""
    commit(store, (T0, 5), (T1, 9))
    reset_offsets(store, "g", to=8, dry_run=False)
    with consumer(store) as one:
        settle(one)
        assert len(drain(one)) == 2 + 12


def test_other_partitions_and_groups_stay(store: Path) -> None:
    """Only the partitions of the named topics are changed."""
    commit(store, (T0, 5), (TopicPartition("u", 0), 3))
    commit(store, (T0, 6), group="h")
    reset_offsets(store, "g", to="earliest", topics=["u"], dry_run=False)
    assert offsets(store) == {("t", 0): 5, ("u", 0): 0}
    assert offsets(store, "h") == {("t", 0): 6}


def test_topics_name_partitions_without_an_offset_too(store: Path) -> None:
    """A group can get its first offsets before it exists."""
    changes = reset_offsets(store, "new", to="latest", topics=["t"], dry_run=False)
    assert [(one.before, one.after) for one in changes] == [(None, 10), (None, 20)]
    with consumer(store, group="new", reset="error") as one:
        settle(one)
        assert drain(one) == []
    commit(store, (T0, 5))
    assert reset_offsets(store, "g", shift=1, topics=["t"], dry_run=True) == [
        OffsetChange("t", 0, 5, 6)
    ]


def test_group_without_offsets_needs_topics(store: Path) -> None:
    """No group is made."""
    before = snapshot_of(store)
    for dry_run in (True, False):
        with pytest.raises(logstore.errors.GroupNotFoundError, match="name its topics"):
            reset_offsets(store, "none", to="earliest", dry_run=dry_run)
    assert snapshot_of(store) == before


def test_group_with_members_is_refused(store: Path) -> None:
    """Their positions belong to them; the error names the processes."""
    commit(store, (T0, 5))
    with consumer(store) as one:
        settle(one)
        for dry_run in (True, False):
            with pytest.raises(
                logstore.errors.GroupNotEmptyError, match="close them"
            ) as caught:
                reset_offsets(store, "g", to=7, dry_run=dry_run)
            assert caught.value.pids == (os.getpid(),)
    assert offset_in(store) == 5
    reset_offsets(store, "g", to=7, dry_run=False)
    assert offset_in(store) == 7


def test_group_that_commits_by_transactions_is_refused(store: Path) -> None:
    """Its offsets are not in its file: a removed file makes no difference."""
    with consumer(store) as one:
        settle(one)
        drain(one)
        with one.transaction() as transaction:
            transaction.append("u", b"out")
    for _ in range(2):
        for dry_run in (True, False):
            with pytest.raises(
                logstore.errors.CommitFailedError, match="by transactions"
            ):
                reset_offsets(store, "g", to=7, topics=["t"], dry_run=dry_run)
        (store / layout.group_file("g")).unlink(missing_ok=True)


def test_mutex_that_another_process_keeps_is_a_named_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes after some seconds, and nothing was changed."""
    commit(store, (T0, 5))
    monkeypatch.setattr(resets, "_WAIT_S", 0.05)
    one = OneMember(store)

    def work() -> None:
        with pytest.raises(logstore.errors.CommitFailedError, match="mutex"):
            reset_offsets(store, "g", to=7, dry_run=False)

    try:
        one.slots.locked(work, 10)
    finally:
        one.close()
    assert offset_in(store) == 5


def test_state_is_read_again_under_the_mutex(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of other members in between are `before`."""
    commit(store, (T0, 5))
    locked = resets.Slots.locked
    done: list[bool] = []

    def late(self: Any, work: Callable[[], Any], wait_s: float) -> Any:
        if not done:
            done.append(True)
            commit(store, (T0, 6), (T1, 7))
        return locked(self, work, wait_s)

    monkeypatch.setattr(resets.Slots, "locked", late)
    changes = reset_offsets(store, "g", shift=1, dry_run=False)
    assert [(one.before, one.after) for one in changes] == [(6, 7), (7, 8)]


def test_offset_of_a_topic_that_was_made_again_does_not_count(store: Path) -> None:
    """The offset belongs to another log."""
    commit(store, (T0, 5))
    with logstore.open(store) as opened:
        opened.delete_topic("t")
        opened.create_topic("t", 1)[0].append_many([b"z"] * 3)
    assert reset_offsets(store, "g", shift=1, dry_run=True) == []
    (change,) = reset_offsets(store, "g", to="latest", dry_run=False)
    assert (change.before, change.after) == (None, 3)
    (row,) = next(iter(groups(store))).partitions
    assert (row.offset, row.end) == (3, 3)


def test_offset_does_not_count_in_a_directory_without_an_identity(store: Path) -> None:
    """Another program may have made the topic again: a consumer, the list of groups and
    a reset agree."""
    key = TopicPartition("u", 0)
    commit(store, (key, 5))
    for file in (store / "u-0").iterdir():
        file.unlink()
    (store / layout.RECOVERY_CHECKPOINT).write_text("0\n1\nx 0 1\n")
    with consumer(store, topics=()) as one:
        assert one.committed(key) is None
    assert reset_offsets(store, "g", shift=-2, dry_run=True) == []
    (change,) = reset_offsets(store, "g", to="latest", dry_run=True)
    assert (change.before, change.after) == (None, 0)
    (row,) = next(iter(groups(store))).partitions
    assert (row.offset, row.end) == (5, None)


def test_topic_that_is_not_there_is_a_named_error(store: Path) -> None:
    """A topic that was named, and one that the group has read."""
    commit(store, (T0, 5), (TopicPartition("u", 0), 3))
    with pytest.raises(logstore.TopicNotFoundError):
        reset_offsets(store, "g", to="earliest", topics=["none"], dry_run=True)
    with logstore.open(store) as opened:
        opened.delete_topic("u")
    with pytest.raises(logstore.TopicNotFoundError, match="name the topics"):
        reset_offsets(store, "g", to="earliest", dry_run=True)
    assert (
        len(reset_offsets(store, "g", to="earliest", topics=["t"], dry_run=True)) == 2
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"to": 1, "shift": 1},
        {"to": "yesterday"},
        {"to": 1, "group": ""},
        {"to": 1, "group": "a\0b"},
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    store: Path, given: dict[str, Any]
) -> None:
    """Ambiguous arguments are not guessed."""
    commit(store, (T0, 5))
    with pytest.raises(logstore.ConfigError):
        reset_offsets(store, **{"group": "g", **given}, dry_run=False)
    assert offset_in(store) == 5


@pytest.mark.parametrize("given", [{"to": 1.5}, {"shift": "1"}, {"to": [1]}])
def test_arguments_of_another_type_are_refused(
    store: Path, given: dict[str, Any]
) -> None:
    """They raise TypeError, as everywhere."""
    commit(store, (T0, 5))
    with pytest.raises(TypeError):
        reset_offsets(store, "g", **given, dry_run=False)


def test_damaged_file_is_left_as_it_is(store: Path) -> None:
    """The error is named, and nothing is cut."""
    commit(store, (T0, 5))
    commit(store, (T0, 6))
    file = store / layout.group_file("g")
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        (logstore.errors.CorruptCheckpointError, logstore.errors.GroupNotFoundError)
    ):
        reset_offsets(store, "g", to=7, dry_run=False)
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        reset_offsets(store, "g", to=7, topics=["t"], dry_run=False)
    assert file.read_bytes() == bytes(data)


def test_full_disk_leaves_the_former_offsets(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is named."""
    commit(store, (T0, 5))
    write = Files.write

    def full(self: Files, fd: int, data: bytes, pos: int) -> None:
        if len(data) > 64:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, fd, data, pos)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", full)
        with pytest.raises(logstore.DiskFullError):
            reset_offsets(store, "g", to=7, dry_run=False)
    assert offset_in(store) == 5
    reset_offsets(store, "g", to=7, dry_run=False)
    assert offset_in(store) == 7


def test_store_with_an_owner_can_be_reset(store: Path) -> None:
    """The owner has the store's lock, which groups do not need."""
    commit(store, (T0, 5))
    with logstore.open(store) as opened:
        opened.topic("t")[0].append(b"more")
        (change,) = reset_offsets(store, "g", to="latest", dry_run=False)
    assert change.after == 11
