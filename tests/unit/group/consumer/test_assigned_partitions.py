"""Steps of a consumer before it gives up a partition, and after it got one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.group.consumer.assigned_partitions import AssignedPartitions
from logstore.group.consumer.options import Callbacks
from logstore.group.member.next_generation import MemberSubscription
from support.groups import T0, T1


class Reader:
    """Stands for a partition that is read."""

    def __init__(self) -> None:
        self.position = 3
        self.has_delivered = False
        self.was_put_back = False

    def back_to(self, position: int) -> None:
        self.was_put_back = position == self.position


class Group:
    """Stands for the place in a group and for the commits, and logs their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.held: list[Any] = [T0, T1]
        self.revoked: list[Any] = []
        self.lost: list[Any] = []
        member = SimpleNamespace(
            holder=SimpleNamespace(held=self.held, release=self._release),
            subscribe=lambda wanted: None,
            look=lambda: None,
            check=lambda: None,
            surplus=lambda: (self.revoked, self.lost),
            take=lambda: None,
            leave=lambda: self.calls.append("leave"),
        )
        self.place: Any = SimpleNamespace(
            member=member,
            join=lambda: member,
            positions=SimpleNamespace(reader=lambda key: Reader()),
            root=SimpleNamespace(files=SimpleNamespace(monotonic=lambda: 5.0)),
            wanted=MemberSubscription(),
            check_at=0.0,
        )

    def _release(self, keys: Sequence[Any]) -> None:
        self.calls.append(("release", *keys))
        for key in keys:
            self.held.remove(key)

    def commit_given_up(self, keys: Sequence[Any]) -> None:
        self.calls.append(("commit", *keys))

    def told(self, what: str) -> Callable[[Sequence[Any]], None]:
        return lambda keys: self.calls.append((what, *keys))


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def one(group: Group) -> AssignedPartitions:
    calls = cast(Any, SimpleNamespace(is_open=False))
    made = AssignedPartitions(group.place, cast(Any, group), {}, calls)
    made.callbacks = Callbacks(*map(group.told, ("assign", "revoke", "lost")))
    return made


def test_partitions_are_told_once_and_given_up_after_the_callback_and_the_commit(
    one: AssignedPartitions, group: Group
) -> None:
    assert one.coordinate()
    assert group.calls == [("assign", T0, T1)]
    assert not one.coordinate()  # it is not time
    assert not one.coordinate(at_once=True)
    group.revoked = [T1]
    assert one.coordinate(at_once=True)
    assert group.calls[1:] == [("revoke", T1), ("commit", T1), ("release", T1)]
    assert list(one.readers) == [T0]


def test_lost_partition_is_told_after_it_is_gone(
    one: AssignedPartitions, group: Group
) -> None:
    """Nothing is committed for it; without `lost`, `revoke` is called."""
    one.coordinate()
    group.lost = [T0]
    one.coordinate(at_once=True)
    assert group.calls[1:] == [("release", T0), ("lost", T0)]
    one.callbacks = one.callbacks._replace(lost=None)
    group.lost = [T1]
    one.coordinate(at_once=True)
    assert group.calls[3:] == [("release", T1), ("revoke", T1)]


def test_reader_of_a_partition_that_was_dropped_delivers_nothing(
    one: AssignedPartitions, group: Group
) -> None:
    """Records that were read ahead are put back; delivered ones are remembered."""
    one.coordinate()
    readers: Any = dict(one.readers)
    readers[T1].has_delivered = True
    one.unsubscribe(commits=False)
    assert all(reader.was_put_back for reader in readers.values())
    assert one.given_up == {T1}
    assert one.readers == {}
    assert group.calls[1:] == [("revoke", T0, T1), ("release", T0, T1), "leave"]
    assert group.place.wanted is None


def test_callback_that_has_raised_is_called_again(
    one: AssignedPartitions, group: Group
) -> None:
    """It runs before the first record of its partitions; then the group is checked
    again."""

    def fails(keys: Sequence[Any]) -> None:
        raise KeyError(*keys)

    one.callbacks = Callbacks(assign=fails)
    with pytest.raises(KeyError):
        one.coordinate()
    assert group.place.check_at == 0
    one.callbacks = Callbacks(assign=group.told("assign"), revoke=fails)
    assert one.coordinate()
    assert group.calls == [("assign", T0, T1)]
    group.revoked = [T0]
    with pytest.raises(KeyError):
        one.coordinate(at_once=True)
    assert group.calls[1:] == [("release", T0)]
    assert list(one.readers) == [T1]
