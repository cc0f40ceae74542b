"""`groups`: the consumer groups of a store, seen by other processes without a lock."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from logstore.group.consumer.inputs import ConsumerInputs
from logstore.group.overview import Group, Groups, groups
from logstore.io import layout
from support.damage import snapshot_of
from support.groups import T0, T1, OneMember, consumer, drain, settle, store_with

MEMBER = """\
import sys, time
import logstore
with logstore.Consumer(sys.argv[1], group="g", topics=["t"], reset="earliest") as one:
    while not one.assignment():
        one.poll(100)
    one.commit()
    print("joined", flush=True)
    sys.stdin.read()
"""

FORKS = """\
import ctypes, os, sys, time
import logstore
one = logstore.Consumer(sys.argv[1], group="g", topics=["t"], reset="earliest")
while not one.assignment():
    one.poll(100)
child = ctypes.CDLL(None).fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def only(found: Groups) -> Group:
    assert found.problems == ()
    (group,) = found
    return group


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Topic "t", two partitions of ten records."""
    return store_with(tmp_path / "store")


def test_store_without_groups_has_none(store: Path, tmp_path: Path) -> None:
    """A directory that is no store is refused."""
    assert list(groups(store)) == []
    assert groups(store).problems == ()
    with pytest.raises(logstore.StoreNotFoundError):
        groups(tmp_path / "none")


def test_members_partitions_offsets_and_lag_are_shown(store: Path) -> None:
    """Two members of this process are shown."""
    with consumer(store, instance="first") as one, consumer(store) as two:
        settle(one, two)
        assert len(drain(one)) == 10
        one.commit()
        group = only(groups(store))
        assert (group.group, group.state, group.way) == ("g", "Stable", "commits")
        assert group.assignor == "cooperative-sticky"
        assert group.generation >= 1
        first, second = group.members
        assert (first.instance_id, second.instance_id) == ("first", None)
        assert first.member_id != second.member_id
        assert {first.pid, second.pid} == {os.getpid()}
        assert not first.has_ended
        assert first.stuck_ms is None
        assert first.topics == ("t",)
        assert sorted([*first.partitions, *second.partitions]) == [T0, T1]
        holders = {row.partition: row.member for row in group.partitions}
        assert holders == {
            first.partitions[0].partition: first.member_id,
            second.partitions[0].partition: second.member_id,
        }
        lags = {row.member: (row.offset, row.end, row.lag) for row in group.partitions}
        assert lags[first.member_id] == (10, 10, 0)
        assert lags[second.member_id] == (None, 10, None)
        assert group.lag == 0
        assert list(group.offsets.values()) == [10]
        assert sorted(group.assignment.values()) == sorted(
            [first.member_id, second.member_id]
        )
        assert group.offsets.keys() < group.assignment.keys()
    group = only(groups(store))
    assert (group.state, group.members) == ("Empty", ())
    assert {row.member for row in group.partitions} == {None}


def test_partitions_that_were_not_taken_yet_are_a_rebalance(store: Path) -> None:
    """One member has to wait for another one."""
    with consumer(store) as one:
        settle(one)
        with consumer(store) as two:
            two._core.look_now()
            two._core.partitions.coordinate()
            group = only(groups(store))
            assert group.state == "Rebalancing"
            assert len(group.members) == 2
            settle(one, two)
            assert only(groups(store)).state == "Stable"


def test_member_that_was_assigned_by_its_program_is_shown(store: Path) -> None:
    """It takes part in no assignment, but it lives, and has the partitions that it
    commits."""
    with consumer(store, topics=()) as one:
        one.assign([T1])
        one.poll(0)
        one.commit({T1: 4})
        group = only(groups(store))
        (member,) = group.members
        assert (member.member_id, member.partitions) == ("", ())
        (row,) = group.partitions
        assert (row.partition, row.offset, row.lag) == (1, 4, 6)
        assert row.member == f"slot {member.slot}"


def test_process_that_was_killed_is_no_member(store: Path) -> None:
    """It disappears at once; its offsets stay."""
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        (member,) = only(groups(store)).members
        assert member.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        group = only(groups(store))
        assert (group.state, group.members) == ("Empty", ())


def test_lock_that_outlives_its_process_is_named(store: Path) -> None:
    """After a fork from C, which Python does not notice, the child holds the lock of
    the member: the group names the process that had joined, and reports that it has
    ended."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            (member,) = only(groups(store)).members
            assert (member.pid, member.has_ended) == (process.pid, False)
            process.kill()
            process.wait()
            (member,) = only(groups(store)).members
            assert (member.pid, member.has_ended) == (process.pid, True)
        finally:
            os.kill(child, signal.SIGKILL)
            # It is no child of this process: the end of its output is its end.
            assert process.stdout.read() == b""
    assert only(groups(store)).members == ()


def test_offset_of_a_topic_that_was_made_again_has_no_lag(store: Path) -> None:
    """The number would fit, but the log is another one."""
    with consumer(store) as one:
        settle(one)
        drain(one)
        one.commit()
    with logstore.open(store) as opened:
        opened.delete_topic("t")
        opened.create_topic("t", 2)[0].append_many([b"new"] * 20)
    rows = only(groups(store)).partitions
    assert [(row.offset, row.end, row.lag) for row in rows] == [(10, None, None)] * 2
    with logstore.open(store) as opened:
        opened.delete_topic("t")
    rows = only(groups(store)).partitions
    assert [(row.offset, row.end) for row in rows] == [(10, None)] * 2


@pytest.mark.parametrize("group", ["g", "x" * 300, "x" * 10_000])
def test_positions_of_transactions_are_those_that_were_published(
    store: Path, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy in the group's file is not used: after a crash it may be older."""
    with logstore.open(store) as opened:
        opened.create_topic("out", 1)
    with consumer(store, group=group) as one:
        settle(one)
        assert len(drain(one, 4)) == 4
        with one.transaction() as transaction:
            transaction.append("out", b"first")
        first = only(groups(store))
        assert (first.way, sum(row.offset or 0 for row in first.partitions)) == (
            "transactions",
            4,
        )
        assert all(row.commit_ms > 0 for row in first.partitions if row.offset)
        assert len(drain(one, 3)) == 3
        # As if it were killed between the publication and the copy of it.
        monkeypatch.setattr(ConsumerInputs, "published", lambda *_: None)
        with one.transaction() as transaction:
            transaction.append("out", b"second")
    found = only(groups(store))
    assert sum(row.offset or 0 for row in found.partitions) == 7
    lags = [row.lag for row in found.partitions]
    assert None not in lags
    assert found.lag == 20 - 7


def test_copy_of_a_store_has_no_members(store: Path, tmp_path: Path) -> None:
    """Locks belong to one machine, and to one file."""
    with consumer(store) as one:
        settle(one)
        drain(one)
        one.commit()
        shutil.copytree(store, tmp_path / "copy")
        group = only(groups(tmp_path / "copy"))
        assert (group.state, group.members) == ("Empty", ())
        assert [row.offset for row in group.partitions] == [10, 10]


@pytest.mark.parametrize("group", ["a/b", "a%2Fb", "grün", "x" * 300, "🙂" * 100])
def test_any_id_is_the_name_of_its_group(store: Path, group: str) -> None:
    """The name of the file does not matter."""
    with consumer(store, group=group) as one:
        settle(one)
        drain(one)
        one.commit()
    assert only(groups(store)).group == group


def test_group_without_a_record_has_the_name_of_its_file(store: Path) -> None:
    """An empty file is new; a member may live already."""
    name = layout.group_file("a b")
    (store / name).touch()
    assert list(groups(store)) == []
    one = OneMember(store, "a b")
    try:
        one.slots.locked(lambda: one.slots.join(1000), 10)
        group = only(groups(store))
        assert (group.group, group.state) == ("a b", "Stable")
        assert len(group.members) == 1
    finally:
        one.close()


def committed_groups(store: Path, *names: str) -> None:
    """Groups that have read everything and left."""
    for name in names:
        with consumer(store, group=name) as one:
            settle(one)
            drain(one)
            one.commit()


def test_damaged_group_is_a_problem_and_hides_no_other(store: Path) -> None:
    """A group with damage is not shown; a group with a torn append is, up to the
    tear."""
    committed_groups(store, "good", "bad")
    file = store / layout.group_file("bad")
    whole = file.read_bytes()
    for data, shown, said in (
        (b"x" * 100, False, "is damaged at byte 0"),
        (whole[:-1], True, "are an incomplete batch"),
        (whole + b"x", False, "no append began there"),
    ):
        file.write_bytes(data)
        before = snapshot_of(store)
        found = groups(store)
        assert ("bad" in {group.group for group in found}) == shown
        assert "good" in {group.group for group in found}
        (problem,) = found.problems
        assert str(file) in problem
        assert said in problem
        assert snapshot_of(store) == before
    file.write_bytes(whole)
    assert groups(store).problems == ()


def test_file_of_another_group_is_a_problem(store: Path) -> None:
    """A copy under another name is not that group."""
    committed_groups(store, "good")
    file = store / layout.group_file("good")
    copy = store / layout.group_file("other")
    copy.write_bytes(file.read_bytes())
    found = groups(store)
    assert [group.group for group in found] == ["good"]
    (problem,) = found.problems
    assert f"{copy} contains records of group 'good'" in problem


def test_nothing_is_written_and_no_lock_taken(store: Path) -> None:
    """A member holds the mutex at that time."""
    with consumer(store) as one:
        settle(one)
        drain(one)
        one.commit()
        before = snapshot_of(store)
        member = one._core.place.member
        assert (
            only(member.group.slots.locked(lambda: groups(store), 10)).state == "Stable"
        )
        assert snapshot_of(store) == before


def test_position_that_was_published_since_has_no_time_of_an_older_commit(
    tmp_path: Path,
) -> None:
    """The group's file has a copy of the position, which may be old after a crash."""
    path = store_with(tmp_path / "s")
    file, copies, seen = path / ".logstore-group-g", [], []
    with consumer(path) as one:
        for _ in range(2):
            with one.transaction() as transaction:
                assert one.poll(10_000, max_records=5)
                transaction.append("t", b"output", partition=1)
            copies.append(file.read_bytes())
            (group,) = logstore.groups(path)
            seen.append({p.partition: p for p in group.partitions if p.offset})
    file.write_bytes(copies[0])
    (group,) = logstore.groups(path)
    now = {p.partition: p for p in group.partitions if p.offset}
    assert {n: p.offset for n, p in now.items()} == {
        n: p.offset for n, p in seen[1].items()
    }
    moved = [n for n in now if n not in seen[0] or seen[0][n].offset != now[n].offset]
    assert moved
    for number, row in now.items():
        assert seen[1][number].commit_ms > 0
        expected = -1 if number in moved else seen[0][number].commit_ms
        assert row.commit_ms == expected
