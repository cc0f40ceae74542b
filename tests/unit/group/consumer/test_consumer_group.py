"""Several consumers of one group: the holders of partitions, and the meaning of
commits."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetAndMetadata, TopicPartition
from logstore.group.consumer.assigned_partitions import AssignedPartitions
from logstore.group.member import liveness as liveness_module
from logstore.group.member import open_group as open_group_module
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.groups import T0, T1, consumer, drain, partitions_of, settle, store_with


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "s", partitions=4)


class Child:
    """A process that runs a function with a consumer, and then waits."""

    def __init__(self, path: Path, work: Callable[[Any], object], **given: Any) -> None:
        ready, begin = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready)
            try:
                one = consumer(path, **given)
                work(one)
                os.write(begin, b".")
                time.sleep(600)
            finally:
                os._exit(1)
        os.close(begin)
        assert os.read(ready, 1) == b".", "the child has failed"
        os.close(ready)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGCONT)
        os.waitpid(self.pid, 0)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def numbers(consumers: Sequence[Any]) -> list[int]:
    """Numbers of all partitions assigned to some consumers."""
    return sorted(n for some in partitions_of(consumers) for n in some)


def until(done: Callable[[], bool], *consumers: Any) -> None:
    """Poll until a condition holds; a test that never gets there fails by its limit."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        for one in consumers:
            one.poll(timeout_ms=10)


# ------------------------------------------------------------------ joining, leaving


def test_partitions_are_shared(opened: Callable[..., Any]) -> None:
    """Two members share them, then three, then two again; each partition has one
    holder."""
    one, two = opened(), opened()
    settle(one, two)
    assert sorted(map(len, partitions_of([one, two]))) == [2, 2]
    three = opened()
    settle(one, two, three)
    assert sorted(map(len, partitions_of([one, two, three]))) == [1, 1, 2]
    assert numbers([one, two, three]) == [0, 1, 2, 3]
    two.close()
    settle(one, three)
    assert numbers([one, three]) == [0, 1, 2, 3]


def test_partition_that_stays_is_not_given_up(opened: Callable[..., Any]) -> None:
    """Rebalances are cooperative: other partitions continue."""
    calls: list[Any] = []
    one = opened(on_revoke=lambda keys: calls.append(keys))
    settle(one)
    one.poll(max_records=3)
    before = {key: one.position(key) for key in one.assignment()}
    two = opened()
    settle(one, two)
    ((*revoked,),) = calls
    assert len(revoked) == 2
    assert {key: one.position(key) for key in one.assignment()} == {
        key: at for key, at in before.items() if key not in revoked
    }


def test_generation_rises_with_each_change(opened: Callable[..., Any]) -> None:
    """Changes of members and of topics raise it."""
    one = opened()
    settle(one)
    first = one.group_metadata()
    two = opened()
    settle(one, two)
    second = one.group_metadata()
    assert second == two.group_metadata()[:2] + second[2:]
    two.close()
    settle(one)
    third = one.group_metadata()
    assert first[1] < second[1] < third[1]
    assert first[2] == second[2] == third[2]


def test_next_holder_begins_where_the_last_has_committed(
    opened: Callable[..., Any],
) -> None:
    """The commit in `on_revoke` counts: it comes before the partition is free."""
    one = opened(on_revoke=lambda keys: one.commit())
    assert len(drain(one)) == 40
    two = opened(reset="error")
    settle(two, one, two)
    assert len(two.assignment()) == 2
    assert two.poll() == {}
    assert {two.position(key) for key in two.assignment()} == {10}


def delivered_twice(opened: Callable[..., Any]) -> list[bytes]:
    """Records that the second of two members gets although the first has processed and
    committed them."""
    two: list[Any] = []
    found: list[bytes] = []

    def on_revoke(keys: Sequence[TopicPartition]) -> None:
        # While the first still finishes its work, the second looks for partitions.
        settle(two[0])
        found.extend(drain(two[0]))
        one.commit()

    one = opened(on_revoke=on_revoke)
    drain(one)
    two.append(opened())
    settle(two[0], one, two[0])
    return found + drain(two[0])


def test_partition_is_not_free_before_its_callback_returns(
    opened: Callable[..., Any],
) -> None:
    """Finished work is committed, and not done again."""
    assert delivered_twice(opened) == []


def test_unlock_before_revoke_is_found(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the test above can fail."""
    call = AssignedPartitions.call

    def unlock_first(self: Any, callback: Any, keys: Any) -> None:
        if callback is not None and callback is self.callbacks.revoke:
            for key in keys:
                self._place.member.group.slots.release(
                    self._place.member.holder.held[key].number
                )
        call(self, callback, keys)

    monkeypatch.setattr(AssignedPartitions, "call", unlock_first)
    assert delivered_twice(opened) != []


def test_members_may_ask_for_different_topics(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Each member gets only partitions of its topics."""
    with logstore.open(path) as store:
        store.create_topic("u", 2)[0].append(b"x", durable=True)
    one, two = opened(topics=["t", "u"]), opened(topics=["t"])
    settle(one, two)
    assert {key.topic for key in two.assignment()} == {"t"}
    assert one.assignment() | two.assignment() == {
        *(TopicPartition("t", n) for n in range(4)),
        *(TopicPartition("u", n) for n in range(2)),
    }
    one.subscribe(["u"])
    settle(one, two)
    assert {key.topic for key in one.assignment()} == {"u"}
    assert len(two.assignment()) == 4
    one.unsubscribe()
    assert (one.subscription(), one.assignment()) == (set(), set())


def test_partitions_and_topics_that_come_and_go_are_seen(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Partitions are added, topics deleted and made again."""
    lost: list[Any] = []
    one = opened(topics=["t"], on_lost=lost.extend, durable_only=False)
    settle(one)
    drain(one)
    one.commit()
    with logstore.open(path) as store:
        store.topic("t").add_partitions(1)
        store.topic("t")[4].append(b"new", durable=True)
        until(lambda: len(one.assignment()) == 5, one)
        assert lost == []
        store.delete_topic("t")
        until(lambda: not one.assignment(), one)
        assert len(lost) == 5
        store.create_topic("t", 2)[1].append(b"again", durable=True)
        settle(one)
        assert one.assignment() == {T0, T1}
        found: list[bytes] = []
        until(lambda: found.extend(drain(one)) or found == [b"again"], one)
        one.commit()
        assert one.committed(T1) == OffsetAndMetadata(1)


def test_more_partitions_than_a_group_may_have_wait_for_rows(
    path: Path,
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The members continue with the other partitions, and log once which ones are not
    read. These are read after a topic is deleted, also if it is made again at once."""
    from logstore.group.member import next_generation

    monkeypatch.setattr(next_generation, "ROWS_MAX", 6)
    one, two = opened(topics=(), pattern=".*"), opened(topics=(), pattern=".*")
    settle(one, two)
    generation = one.group_metadata()[1]
    with logstore.open(path) as store:
        store.create_topic("u", 3)[0].append(b"u", durable=True)
        settle(one, two)
        both = one.assignment() | two.assignment()
        assert len(one.assignment()) + len(two.assignment()) == len(both) == 6
        assert {T0, T1, ("u", 0)} <= both
        assert generation + 1 == one.group_metadata()[1]
        settle(one, two)
        texts = {record.getMessage() for record in caplog.records}
        assert len(texts) == 1
        assert "partitions more than its limit of 6" in min(texts)
        assert "and others" in min(texts)
        store.delete_topic("t")
        store.create_topic("t", 2)
        until(lambda: len(one.assignment() | two.assignment()) == 5, one, two)
        settle(one, two)
    assert len(one.assignment()) + len(two.assignment()) == 5


def test_more_members_than_a_group_may_have_are_refused(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that leaves makes room."""
    from logstore.group.file import slots

    monkeypatch.setattr(slots, "MEMBERS_MAX", 1)
    one, two = opened(), opened()
    one.poll()
    with pytest.raises(logstore.errors.GroupError, match="members") as caught:
        two.poll()
    assert caught.value.group == "g"
    one.close()
    two.poll()


# ------------------------------------------------------------------ static members


def test_two_static_members_of_one_name_cannot_live(
    path: Path, opened: Callable[..., Any]
) -> None:
    """They are in one process or two; after the first has left, the second may join."""
    child = Child(path, lambda one: one.poll(), instance="a")
    two = opened(instance="a")
    with pytest.raises(logstore.errors.MemberIdInUseError) as caught:
        two.poll()
    assert (caught.value.instance, caught.value.holder_pid) == ("a", child.pid)
    assert caught.value.group == "g"
    other = opened(instance="b")
    settle(other)
    child.kill()
    two.poll()
    assert two.group_metadata()[2].startswith("a-")
    with pytest.raises(logstore.errors.MemberIdInUseError):
        opened(instance="a").poll()


def test_other_assignor_is_refused_as_long_as_members_live(
    opened: Callable[..., Any],
) -> None:
    """The error names the one in use."""
    one, two = opened(assignor="range"), opened(assignor="roundrobin")
    one.poll()
    with pytest.raises(logstore.errors.InconsistentAssignorError) as caught:
        two.poll()
    assert (caught.value.expected, caught.value.group) == ("range", "g")
    one.close()
    two.poll()
    assert len(two.assignment()) == 4


class Nothing:
    name = "nothing"

    def assign(self, members: Any, partitions: Any) -> Any:
        return {members[0].member: [("t", 0)]}


def test_own_assignor_is_asked(opened: Callable[..., Any]) -> None:
    """It may leave partitions unassigned; the group becomes stable nevertheless."""
    one = opened(assignor=Nothing())
    settle(one)
    generation = one.group_metadata()[1]
    settle(one)
    assert (one.assignment(), one.group_metadata()[1]) == ({T0}, generation)


# ------------------------------------------------------------------ death


def test_partitions_of_a_killed_process_move(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Uncommitted records come again, committed ones do not."""

    def work(one: Any) -> None:
        drain(one)
        one.commit({TopicPartition("t", n): 7 for n in range(4)})

    child = Child(path, work)
    two = opened()
    settle(two)
    assert two.assignment() == set()
    child.kill()
    until(lambda: len(two.assignment()) == 4, two)
    two.seek_to_committed()
    assert len(drain(two)) == 4 * 3


def test_waiting_member_is_woken_by_a_death(
    path: Path, opened: Callable[..., Any]
) -> None:
    """It does not wait for its next check."""
    child = Child(path, lambda one: one.poll())
    two = opened()
    settle(two)
    two.poll(timeout_ms=30)
    if os.fork() == 0:
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
        os._exit(0)
    found = two.poll(timeout_ms=60_000)
    assert found
    os.waitpid(child.pid, 0)
    os.wait()


def test_slot_of_a_dead_member_stays_free_as_long_as_the_group_has_it(
    path: Path, opened: Callable[..., Any]
) -> None:
    """No member takes it."""
    child = Child(path, lambda one: one.poll())
    child.kill()
    two = opened()
    settle(two)
    _, generation, member = two.group_metadata()
    assert (generation, member[:11]) == (2, "consumer-1-")
    assert len(two.assignment()) == 4
    three = opened()
    settle(two, three)
    assert three.group_metadata()[2][:11] == "consumer-0-"


def test_member_that_assigns_itself_is_not_taken_for_a_dead_one(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The static member may come back, and its partitions are shared again."""
    child = Child(path, lambda one: one.poll(), instance="a")
    child.kill()
    alone = opened(topics=())
    alone.assign([T0])
    alone.poll()
    two = opened(instance="a")
    two.poll()
    assert two.group_metadata()[2].startswith("a-")
    assert len(two.assignment()) == 3  # the other one has T0


def test_room_is_made_in_a_group_whose_members_are_all_dead(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots belong to dead members."""
    from logstore.group.file import slots

    child = Child(path, lambda one: one.poll(), instance="a", assignor="roundrobin")
    child.kill()
    monkeypatch.setattr(slots, "MEMBERS_MAX", 1)
    alone = opened(topics=())
    alone.assign([T0])
    assert alone.poll(timeout_ms=10)
    alone.close()
    two = opened(instance="a")
    two.poll()
    assert len(two.assignment()) == 4


# ------------------------------------------------------------------ stuck


def test_stuck_member_keeps_its_partitions(
    path: Path, opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported; when it continues, its commit counts."""
    one = opened(max_poll_interval_ms=10, auto_commit_ms=None)
    settle(one)
    drain(one)
    two = opened()
    time.sleep(0.03)
    until(lambda: "has not polled" in caplog.text, two)
    assert f"process {os.getpid()}" in caplog.text
    assert (len(one.assignment()), two.assignment()) == (4, set())
    one.commit()
    assert one.committed(T0) == OffsetAndMetadata(10)


def test_stuck_member_is_thrown_out(
    path: Path, opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its partitions get new rows: its locks guard nothing. Its commit is refused; its
    next poll joins again."""
    lost: list[Any] = []
    one = opened(max_poll_interval_ms=10, on_lost=lost.extend)
    settle(one)
    drain(one)
    two = opened(on_stuck="evict", max_poll_interval_ms=1_000_000)
    time.sleep(0.03)
    until(lambda: len(two.assignment()) == 4, two)
    assert "evicted process" in caplog.text
    two.commit({T0: 3})
    with pytest.raises(logstore.errors.FencedError, match="evicted") as caught:
        one.commit()
    assert caught.value.group == "g"
    assert two.committed(T0) == OffsetAndMetadata(3)
    member = one.group_metadata()[2]
    one.poll()
    assert len(lost) == 4
    assert one.group_metadata()[2] != member


def test_stopped_process_is_thrown_out_and_may_come_back(
    path: Path, opened: Callable[..., Any]
) -> None:
    """SIGSTOP: it holds its locks, and does nothing."""
    child = Child(path, lambda one: drain(one), max_poll_interval_ms=20)
    child.stop()
    two = opened(on_stuck="evict")
    until(lambda: len(two.assignment()) == 4, two)
    drain(two)
    two.commit()
    child.go_on()
    child.kill()
    until(lambda: len(two.assignment()) == 4, two)
    assert two.poll() == {}


def test_member_that_does_not_take_a_free_partition_loses_it(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its share again when it has polled."""
    monkeypatch.setattr(liveness_module, "_IDLE_S", 0.05)
    one, two = opened(), opened()
    settle(one, two)
    three = opened()
    settle(three)  # its partition is held now it is free, and another one, too
    one.close()  # now it is free, and another one, too
    until(lambda: len(two.assignment()) == 4, two)
    settle(three, two, three)
    assert sorted(map(len, partitions_of([two, three]))) == [2, 2]


def test_wait_ends_when_a_free_partition_is_due(opened: Callable[..., Any]) -> None:
    """A member that waits for records checks the group then, and not all the time."""
    one = opened()
    drain(one)
    liveness = one._core.place.member.liveness
    assert liveness.due_s() > 1e9
    now = time.monotonic()
    liveness._free_since = {T0: now - 100, T1: now}
    assert 0 < liveness.due_s() <= liveness_module._IDLE_S + 0.001
    liveness._free_since = {T0: now - 100}  # the last check found it already
    assert liveness.due_s() > 1e9


def test_hung_holder_of_the_mutex_is_a_named_error(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit does not wait for ever; a poll continues without the group."""
    monkeypatch.setattr(open_group_module, "_WAIT_S", 0.02)
    one = opened()
    drain(one)

    def hold(other: Any) -> None:
        other.poll()
        other._core.place.member.group.slots._take_mutex(10)

    child = Child(path, hold)
    with pytest.raises(logstore.errors.CommitFailedError, match=str(child.pid)):
        one.commit()
    assert one.poll(timeout_ms=20) == {}
    child.kill()
    one.commit()
    assert one.committed(T0) == OffsetAndMetadata(10)


def test_member_that_cannot_leave_says_why_and_is_gone(
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its locks end, so the others get its partitions."""
    monkeypatch.setattr(open_group_module, "_WAIT_S", 0.02)
    one, two = opened(), opened()
    settle(one, two)
    one._core.place.member.group.slots.locked(two.close, 10)
    assert "cannot leave it: the mutex of group 'g' was not free" in caplog.text
    until(lambda: len(one.assignment()) == 4, one)


# ------------------------------------------------------------------ failures


def test_child_of_a_fork_is_refused(path: Path, opened: Callable[..., Any]) -> None:
    """The child does not keep the locks of its parent."""
    one = opened()
    drain(one)
    ready, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = b"wrong"
        try:
            one.poll()
        except logstore.errors.ForkedError:
            outcome = b"right"
        one.close()
        os.write(begin, outcome)
        os._exit(0)
    assert os.read(ready, 5) == b"right"
    os.waitpid(pid, 0)
    one.commit()
    assert one.committed(T0) == OffsetAndMetadata(10)


def test_full_disk_fails_the_commit_alone(path: Path) -> None:
    """Nothing is committed, and the next commit with room works."""

    class Full(Files):
        is_full = False

        def write(self, fd: int, data: Any, pos: int) -> None:
            if self.is_full and pos > 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, pos)

    files = Full()
    with open_store(str(path), read_only=True, _files=files) as store:
        one = consumer(store)
        drain(one)
        one.commit({T0: 2})
        files.is_full = True
        with pytest.raises(logstore.DiskFullError):
            one.commit()
        assert one.committed(T0) == OffsetAndMetadata(2)
        files.is_full = False
        one.commit()
        assert one.committed(T0) == OffsetAndMetadata(10)
        one.close()


def test_read_only_file_system_is_a_named_error(path: Path) -> None:
    """A group needs to write its files; reading without one works."""

    class ReadOnly(Files):
        def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with open_store(str(path), read_only=True, _files=ReadOnly()) as store:
        with consumer(store) as one:
            with pytest.raises(logstore.StorageError, match="Read-only") as caught:
                one.poll()
            assert caught.value.errno == errno.EROFS
        with consumer(store, group=None) as two:
            assert len(drain(two)) == 40


def test_damaged_group_file_is_a_named_error(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The file stays, and nothing is discarded silently."""
    one = opened()
    drain(one)
    one.commit()
    one.close()
    file = path / ".logstore-group-g"
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        opened().poll()
    assert file.read_bytes() == data


def test_removed_lock_file_fences_its_members(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Two files would be two groups."""
    one = opened()
    drain(one)
    (path / ".logstore-group-g.lock").unlink()
    with pytest.raises(logstore.errors.FencedError, match="removed or replaced"):
        one.commit()


def test_members_work_without_reports_of_changes(path: Path) -> None:
    """A process may have no watches left: the members poll."""

    class NoWatch(Files):
        def new_watch(self) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with open_store(str(path), read_only=True, _files=NoWatch()) as store:
        one, two = consumer(store), consumer(store)
        with one:
            drain(one)
            two.poll(timeout_ms=20)
        with two:
            until(lambda: len(two.assignment()) == 4, two)
