"""Commits of a consumer, and when they are durable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore import TopicNotFoundError
from logstore.errors import CommitFailedError, FencedError
from logstore.group.consumer.committer import Committer
from logstore.group.consumer.options import OffsetAndMetadata
from support.groups import T0, T1


class Reader:
    """Stands for a partition that is read."""

    def __init__(self, position: int | None, committed: int | None) -> None:
        self.position, self.committed = position, committed
        self.log = self
        self.error: Exception | None = None
        self.is_disproved = False
        self.has_delivered = True
        self.topic_id = "id"

    def set_committed(self, offset: int) -> None:
        self.committed, self.is_disproved = offset, False

    def proof_of(self, offset: int, position: int | None) -> int | None:
        if self.error is not None:
            raise self.error
        return None


class Group:
    """Stands for the place in a group, and for the clock.

    Attributes:
        at_once: the commits that its file has made in one call.
        has_quick_file: whether its file makes such commits.
    """

    def __init__(self, auto_commit_ms: int | None = None) -> None:
        self.at_once: list[tuple[int, bool]] = []
        self.has_quick_file = False
        self.commits: list[tuple[int, bool]] = []
        self.syncs = 0
        self.now = 100.0
        self.error: Exception | None = None
        self.positions = SimpleNamespace(proof_of=lambda reader, offset: None)
        self.options = SimpleNamespace(offsets=None, auto_commit_ms=auto_commit_ms)
        self.root = SimpleNamespace(files=self)
        self.wanted = object()
        self.check_at = 9.0
        self.file = SimpleNamespace(
            group="g",
            state=SimpleNamespace(way="commits"),
            commit_at_once=self.commit_at_once,
        )
        self.holder = SimpleNamespace(holds=lambda key, state: key == T0, held=[T0, T1])
        self.group = self.member = self.slots = self

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 1

    def in_group(self) -> Group:
        return self

    def sync(self) -> None:
        self.syncs += 1

    def check_holds_now(self, offsets: Any) -> None:
        if self.error is not None:
            raise self.error

    def commit_at_once(
        self,
        slots: Any,
        key: Any,
        offset: int,
        topic_id: str,
        proof: int | None,
        *,
        durable: bool,
    ) -> bool:
        if self.has_quick_file and self.error is not None:
            raise self.error
        if self.has_quick_file:
            self.at_once.append((offset, durable))
        return self.has_quick_file

    def commit(self, commits: list[Any], *, durable: bool) -> None:
        if self.error is not None:
            raise self.error
        self.commits += [(one.offset, durable) for one in commits]


def made(auto_commit_ms: int | None = None) -> tuple[Committer, Group, dict[Any, Any]]:
    group = Group(auto_commit_ms)
    readers = {T0: Reader(5, 3), T1: Reader(None, None)}
    return Committer(cast(Any, group), cast(Any, readers)), group, readers


def test_only_positions_that_differ_are_committed() -> None:
    """A position whose proof was refuted always differs."""
    committer, group, readers = made()
    moved = committer.moved([T0, T1])
    assert moved == {T0: OffsetAndMetadata(5)}
    committer.commit(moved, durable=True)
    assert group.commits == [(5, True)]
    assert (readers[T0].committed, readers[T0].has_delivered) == (5, False)
    assert committer.moved([T0, T1]) == {}
    readers[T0].is_disproved = True
    assert committer.moved([T0]) == moved


def test_durable_commit_of_nothing_syncs_earlier_ones_once() -> None:
    committer, group, _ = made()
    committer.commit({T0: OffsetAndMetadata(4)}, durable=False)
    for _ in range(2):
        committer.commit({}, durable=True)
    assert group.syncs == 1
    committer.commit({T0: OffsetAndMetadata(5)}, durable=True)
    committer.commit({}, durable=True)
    assert group.syncs == 1


def test_offset_of_one_partition_is_committed_in_one_call() -> None:
    """Its reader knows it then, and it is durable if it has to be."""
    committer, group, readers = made()
    group.has_quick_file = True
    committer.commit({T0: OffsetAndMetadata(4)}, durable=False)
    assert (readers[T0].committed, readers[T0].has_delivered) == (4, False)
    committer.commit({}, durable=True)
    assert group.syncs == 1
    committer.commit({T0: OffsetAndMetadata(5)}, durable=False)
    committer.commit({T0: OffsetAndMetadata(6)}, durable=True)
    committer.commit({}, durable=True)
    assert group.syncs == 1
    assert group.at_once == [(4, False), (5, False), (6, True)]
    assert group.commits == []


def test_failed_commit_in_one_call_may_be_there_and_is_synced_later() -> None:
    committer, group, readers = made()
    group.has_quick_file = True
    group.error = OSError("no")
    with pytest.raises(OSError, match="no"):
        committer.commit({T0: OffsetAndMetadata(4)}, durable=True)
    assert readers[T0].committed == 3
    committer.commit({}, durable=True)
    assert group.syncs == 1


@pytest.mark.parametrize(
    ("key", "given"),
    [
        (T0, OffsetAndMetadata(4, "text")),
        (T0, OffsetAndMetadata(4, "", 0)),
        (T1, OffsetAndMetadata(4)),
    ],
)
def test_other_commits_are_made_step_by_step(
    key: Any, given: OffsetAndMetadata
) -> None:
    """This holds for a text or an epoch, and for a partition that may not be the
    member's."""
    committer, group, _ = made()
    group.has_quick_file = True
    committer.commit({key: given}, durable=True)
    assert (group.at_once, group.commits) == ([], [(4, True)])


@pytest.mark.parametrize("what", ["way", "wanted", "reader", "log"])
def test_commit_with_something_in_the_way_is_made_step_by_step(what: str) -> None:
    """The first one of a group, without a subscription, of a partition that is not
    read, and of a log that is not the one that was read."""
    committer, group, readers = made()
    group.has_quick_file = True
    reader = readers[T0]
    if what == "way":
        group.file.state.way = ""
        vars(group.positions)["is_published"] = lambda: False
    elif what == "wanted":
        group.wanted = None  # type: ignore[assignment]
        vars(group.positions)["check_same"] = lambda found: list(found)
        vars(group)["have_alone"] = lambda keys: None
    elif what == "reader":
        del readers[T0]
        vars(group.positions)["reader"] = lambda key: reader
    else:
        reader.error = TopicNotFoundError("gone", topic="t")
    committer.commit({T0: OffsetAndMetadata(4)}, durable=True)
    assert (group.at_once, group.commits) == ([], [(4, True)])


class Database:
    """A store of offsets."""

    def __init__(self) -> None:
        self.commits: list[tuple[dict[Any, int], bool]] = []

    def commit(self, offsets: dict[Any, OffsetAndMetadata], *, durable: bool) -> None:
        at = {key: one.offset for key, one in offsets.items()}
        self.commits.append((at, durable))


def test_durable_commit_gives_a_store_of_offsets_earlier_ones_again() -> None:
    """It happens once, with the newest commit of each partition that the consumer still
    has."""
    committer, group, readers = made()
    database = group.options.offsets = Database()
    committer.commit({}, durable=True)
    assert database.commits == []
    for at in (3, 4):
        committer.commit({T0: OffsetAndMetadata(at)}, durable=False)
    committer.commit({T1: OffsetAndMetadata(9)}, durable=False)
    group.error = FencedError("gone", group="g")
    with pytest.raises(FencedError):
        committer.commit({}, durable=True)
    group.error = None
    del readers[T1], database.commits[:]
    for _ in range(2):
        committer.commit({}, durable=True)
    assert database.commits == [({T0: 4}, True)]
    committer.commit({T0: OffsetAndMetadata(5)}, durable=False)
    committer.commit({T0: OffsetAndMetadata(6)}, durable=True)
    committer.commit({}, durable=True)
    assert database.commits[1:] == [({T0: 5}, False), ({T0: 6}, True)]


def test_failed_commit_may_be_there_and_is_synced_later() -> None:
    """The next call checks the group if it has continued without the member."""
    committer, group, readers = made()
    vars(group.holder)["holds"] = lambda key, state: False
    group.error = FencedError("gone", group="g")
    with pytest.raises(FencedError):
        committer.commit(committer.moved([T0]), durable=True)
    assert group.check_at == 0
    assert readers[T0].committed == 3
    committer.commit({}, durable=True)
    assert group.syncs == 1


def test_commits_by_itself_come_after_their_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are not durable, except for partitions that are given up; a refused one is
    logged."""
    committer, group, readers = made(auto_commit_ms=1000)
    committer.auto_commit()
    assert group.commits == []
    group.now += 1
    committer.auto_commit()
    committer.auto_commit()
    assert group.commits == [(5, False)]
    readers[T0].position = 6
    committer.commit_given_up([T0])
    assert group.commits[1:] == [(6, True)]
    readers[T0].position = 7
    group.now += 1
    group.error = CommitFailedError("no", group="g")
    committer.auto_commit()
    assert "cannot commit by itself: no" in caplog.text
    committer, group, _ = made()
    group.now += 10
    committer.auto_commit()
    committer.commit_given_up([T0])
    assert group.commits == []
