"""Transactions of a consumer: outputs and positions, both or neither, and once."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetAndMetadata
from logstore.group.consumer import transaction as transaction_module
from logstore.group.consumer.transaction import GroupPositions, Positioned, identity_of
from logstore.io.files import Files
from logstore.store.hand_in.requester import Requester
from logstore.store.opening import open_store
from logstore.store.package_access import stage_for_group, submit_for_group
from support import handing_in
from support.groups import (
    T0,
    T1,
    consumer,
    copy_some,
    drain,
    outputs,
    settle,
    store_with,
)
from support.handing_in import DEAF, until

elsewhere = handing_in.elsewhere


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store_with(tmp_path / "s")
    with logstore.open(tmp_path / "s") as store:
        store.create_topic("out", 2)
    return tmp_path / "s"


ALL = sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(10))


def test_outputs_and_positions_are_published_together(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The next member continues after them."""
    one = opened()
    assert copy_some(one, 7) == 7
    assert len(outputs(path)) == 7
    one.close()
    three = opened(reset="error")
    while copy_some(three, 7):
        pass
    assert outputs(path) == ALL
    assert three.committed(T0) == OffsetAndMetadata(10)
    with logstore.open(path, read_only=True) as store:
        last = store.last_publication(identity_of("g"))
        assert last is not None
        assert last.pinned
        sequence, found = GroupPositions(store, "g").read()
    assert sequence == last.sequence
    assert {key: at.offset for key, at in found.items()} == {T0: 10, T1: 10}
    assert three._core.place.member.group.file.commits()[0].offset == 10


def test_error_publishes_nothing_and_input_comes_again(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The input begins at the last commit, or at the consumer's start position."""
    one = opened()
    for _ in range(2):
        with pytest.raises(RuntimeError), one.transaction() as transaction:
            assert len(drain(one)) == 20
            transaction.append("out", b"x")
            raise RuntimeError
    assert outputs(path) == []
    assert copy_some(one, 5) == 5
    with pytest.raises(RuntimeError), one.transaction():
        assert len(drain(one)) == 15
        raise RuntimeError
    while copy_some(one):
        pass
    assert outputs(path) == ALL


def test_abort_and_explicit_commit(path: Path, opened: Callable[..., Any]) -> None:
    """An abort is like leaving the block; an ended transaction accepts nothing."""
    one = opened()
    transaction = one.transaction()
    drain(one)
    transaction.append("out", b"x")
    transaction.abort()
    transaction.abort()
    assert len(drain(one)) == 20
    second = one.transaction()
    second.append("out", b"y", key=b"k", headers=(), timestamp_ms=5, partition=1)
    second.append("out", None, partition=1)
    second.commit()
    for ended in (transaction, second):
        with pytest.raises(logstore.ConfigError, match="cannot take records"):
            ended.append("out", b"z")
        with pytest.raises(logstore.ConfigError, match="cannot be committed"):
            ended.commit()
        with pytest.raises(logstore.ConfigError, match="cannot be entered"):
            ended.__enter__()
    with logstore.open(path, read_only=True) as store:
        found = list(store.topic("out")[1].read())
    assert [(r.key, r.value) for r in found] == [(b"k", b"y"), (None, None)]
    assert found[0].timestamp_ms == 5
    assert one.committed(T1) == OffsetAndMetadata(10)


def test_bad_output_is_refused_when_it_is_given(opened: Callable[..., Any]) -> None:
    """The transaction can continue without it."""
    one = opened()
    with one.transaction() as transaction:
        with pytest.raises(logstore.TopicNotFoundError):
            transaction.append("none", b"x")
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            transaction.append("out", b"x", partition=9)
        with pytest.raises(TypeError):
            transaction.append("out", "text")
        transaction.append("out", b"x")


def test_empty_transaction_publishes_nothing(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Nothing was read and nothing written."""
    one = opened()
    one.poll(0, 1)
    one.seek_to_beginning()
    with one.transaction():
        pass
    with logstore.open(path, read_only=True) as store:
        last = store.last_publication(identity_of("g"))
    assert last is None or last.sequence == 1


def test_the_two_ways_of_committing_are_not_mixed(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The first one counts, also for other members and later, and also if the group's
    file is gone."""
    one = opened()
    copy_some(one)
    with pytest.raises(logstore.errors.CommitFailedError, match="by transactions"):
        one.commit({T0: 1})
    one.close()
    two = opened(group="h")
    drain(two)
    two.commit()
    with pytest.raises(logstore.errors.CommitFailedError, match="by commits"):
        copy_some(two)
    two.close()
    for file in path.glob(".logstore-group-g*"):
        file.unlink()
    three = opened()
    assert three.poll() == {}
    with pytest.raises(logstore.errors.CommitFailedError, match="by transactions"):
        three.commit({T0: 1})


def test_consumer_without_a_group_has_none(opened: Callable[..., Any]) -> None:
    """A consumer that keeps its offsets elsewhere cannot begin one either."""
    with pytest.raises(logstore.ConfigError, match="no group"):
        opened(group=None).transaction()

    class Elsewhere:
        def committed(self, partitions: Any) -> Any:
            return {}

        def commit(self, offsets: Any, *, durable: bool) -> None:
            raise AssertionError

    with pytest.raises(logstore.ConfigError, match="elsewhere"):
        opened(offsets=Elsewhere()).transaction()


def test_two_members_publish_beside_each_other(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Each keeps the published positions of the other."""
    one, two = opened(), opened()
    settle(one, two)
    assert {len(one.assignment()), len(two.assignment())} == {1}
    while copy_some(one, 3) + copy_some(two, 2):
        pass
    assert outputs(path) == ALL
    assert one.committed(T0) == one.committed(T1) == OffsetAndMetadata(10)


def test_member_that_was_thrown_out_publishes_nothing(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Its input was processed by the other one."""
    one = opened(max_poll_interval_ms=10)
    transaction = one.transaction()
    for value in drain(one):
        transaction.append("out", value)
    two = opened(on_stuck="evict", max_poll_interval_ms=1_000_000)
    time.sleep(0.03)
    deadline = time.monotonic() + 60
    while len(two.assignment()) < 2:
        assert time.monotonic() < deadline
        two.poll(timeout_ms=10)
    two.seek_to_beginning()
    while copy_some(two):
        pass
    with pytest.raises(logstore.errors.FencedError):
        transaction.commit()
    assert outputs(path) == ALL


def test_stale_transaction_is_refused_without_any_lock(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused even if all lock checks passed before the process was stopped."""
    one = opened()
    transaction = one.transaction()
    for value in drain(one):
        transaction.append("out", value)
    state = transaction._inputs.begin_commit()
    one._core.place.member.group.slots.leave()  # as if it had been stopped for long
    two = opened()
    settle(two)
    while copy_some(two):
        pass
    monkeypatch.setattr(transaction._inputs, "begin_commit", lambda: state)
    with pytest.raises(logstore.errors.FencedError, match="has processed the input"):
        transaction.commit()
    assert outputs(path) == ALL


def test_partition_given_up_in_a_transaction_fails_it(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Others read its records again; a commit in `on_revoke` comes in time."""
    one = opened()
    transaction = one.transaction()
    for value in drain(one):
        transaction.append("out", value)
    two = opened()
    settle(two, one)
    assert len(one.assignment()) == 1
    with pytest.raises(logstore.errors.CommitFailedError, match="were reassigned"):
        transaction.commit()
    while copy_some(one) + copy_some(two):
        settle(one, two)
    assert outputs(path) == ALL


def test_owner_that_publishes_for_others_is_used(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The process of the writer may have the store open."""
    config = logstore.StoreConfig(publish_for_others=True)
    with logstore.open(path, config=config) as store:
        one = opened()
        copy_some(one, 5)
        two = opened(store=store)
        settle(two, one)
        while copy_some(two, 5) + copy_some(one, 5):
            pass
        one.close()
        two.close()
    assert outputs(path) == ALL


def test_failed_publication_lets_the_input_come_again(
    path: Path, opened: Callable[..., Any]
) -> None:
    """A full disk, for example."""

    class Full(Files):
        is_full = False

        def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
            if self.is_full and "staged" in name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(dir_fd, name, exclusive=exclusive)

    files = Full()
    with open_store(str(path), read_only=True, _files=files) as store:
        one = opened(store=store)
        files.is_full = True
        with pytest.raises(logstore.DiskFullError):
            copy_some(one)
        files.is_full = False
        while copy_some(one):
            pass
        one.close()
    assert outputs(path) == ALL


@pytest.mark.parametrize(
    "error",
    [
        logstore.DiskFullError("no room", path="t-0", action="append to"),
        logstore.TopicNotFoundError("topic out is gone", topic="out"),
    ],
    ids=["full", "gone"],
)
def test_refused_publication_leaves_no_staged_file(
    path: Path,
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: logstore.LogStoreError,
) -> None:
    """Each attempt on a full disk would take more of it."""
    one = opened()

    def refuse(*_: object, **__: object) -> None:
        assert [name for name in os.listdir(path) if "staged" in name]
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(transaction_module, "submit_for_group", refuse)
        with pytest.raises(type(error)):
            copy_some(one)
    assert not [name for name in os.listdir(path) if "staged" in name]
    while copy_some(one):
        pass
    one.close()
    assert outputs(path) == ALL


def test_hung_holder_of_the_turn_is_passed(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn only avoids attempts that would fail."""
    monkeypatch.setattr(transaction_module, "_TURN_WAIT_S", 0.01)
    one, two = opened(), opened()
    settle(one, two)
    assert two._core.place.member.group.slots.take_publish_turn()
    while copy_some(one) + copy_some(two):
        pass
    assert outputs(path) == ALL


def test_too_many_positions_are_refused(path: Path) -> None:
    """Positions are kept in 4,096 bytes."""
    with logstore.open(path, read_only=True) as store:
        positions = GroupPositions(store, "g")
        many = {
            logstore.TopicPartition("t", n): Positioned(1 << 40, "ab" * 16)
            for n in range(300)
        }
        with pytest.raises(logstore.ConfigError, match="300 partitions of 1 topics"):
            positions.format(many)
        few = dict(list(many.items())[:200])
        assert positions._parsed(positions.format(few)) == few
        assert positions.format(few) != positions.format(few)


def positions_in(path: Path) -> dict[tuple[str, int], int]:
    with logstore.open(path, read_only=True) as store:
        return {k: at.offset for k, at in GroupPositions(store, "g").read()[1].items()}


def remake(path: Path, *names: str, again: bool = True) -> None:
    """Delete topics, and make them again with one record."""
    with logstore.open(path) as store:
        for name in names:
            store.delete_topic(name)
            if again:
                store.create_topic(name)[0].append(b"again")


def test_positions_of_deleted_topics_are_dropped(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Any number of topics may have been read over time; a topic that is made again
    begins at its start."""
    store_with(path, 1, 3, "u")
    store_with(path, 1, 3, "v")
    one = opened(topics=["t", "u", "v"])
    while copy_some(one):
        pass
    assert positions_in(path) == {T0: 10, T1: 10, ("u", 0): 3, ("v", 0): 3}
    remake(path, "u", again=False)
    remake(path, "v")
    with one.transaction() as transaction:
        transaction.append("out", b"x")
    assert positions_in(path) == {T0: 10, T1: 10}
    # Nothing was read of them since: their positions do not matter.
    with one.transaction() as transaction:
        transaction.append("out", b"y")
    deadline = time.monotonic() + 60
    while ("v", 0) not in positions_in(path):
        assert time.monotonic() < deadline
        # A commit is refused until the consumer has noticed that this is another topic.
        with contextlib.suppress(logstore.errors.CommitFailedError):
            copy_some(one)
    assert positions_in(path) == {T0: 10, T1: 10, ("v", 0): 1}
    assert outputs(path).count(b"again") == 1


def test_input_of_a_topic_that_was_deleted_meanwhile(
    path: Path, opened: Callable[..., Any]
) -> None:
    """It counts if it is known that no other member has processed it."""
    store_with(path, 1, 3, "u")
    one = opened(topics=["u"])
    assert copy_some(one, 1) == 1
    transaction = one.transaction()
    for value in drain(one):
        transaction.append("out", value)
    state = transaction._inputs.begin_commit()
    remake(path, "u")
    transaction.commit()
    assert outputs(path) == [b"0:0", b"0:1", b"0:2"]
    assert positions_in(path) == {}
    # After a long stop of its member, the position that it needs is unknown.
    with pytest.MonkeyPatch.context() as patch:
        for before in (1, None):
            late = {key: (position, before) for key, (position, _) in state.items()}
            stale = one.transaction()
            patch.setattr(stale._inputs, "begin_commit", lambda late=late: late)
            stale.append("out", b"twice")
            with pytest.raises(logstore.errors.CommitFailedError, match="was deleted"):
                stale.commit()
    deadline = time.monotonic() + 60
    while b"again" not in outputs(path):
        assert time.monotonic() < deadline
        with contextlib.suppress(logstore.errors.CommitFailedError):
            copy_some(one)
    assert outputs(path) == [b"0:0", b"0:1", b"0:2", b"again"]


@pytest.mark.parametrize("is_conflict", [True, False])
def test_attempt_that_another_member_has_beaten_leaves_no_file(
    path: Path,
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    is_conflict: bool,
) -> None:
    """Each attempt stages the records again."""
    one = opened()
    one.poll(0, 1)
    identity = identity_of("g")
    real, fails = GroupPositions.read, [1, 2, 3]

    def read(self: GroupPositions) -> Any:
        """Return the state from before another member has published."""
        found = real(self)
        if fails:
            fails.pop()
            with logstore.open(path) as store:
                for more in range(1, 3 if is_conflict else 2):
                    submit_for_group(
                        store,
                        [],
                        identity=identity,
                        sequence=found[0] + more,
                        metadata=self.format(found[1]),
                        pinned=True,
                        timeout_ms=None,
                    )
        return found

    monkeypatch.setattr(GroupPositions, "read", read)
    with one.transaction() as transaction:
        transaction.append("out", b"x")
    assert not fails
    assert outputs(path) == [b"x"]
    assert not list(path.glob(".logstore-staged-*"))


def test_commit_waits_no_longer_than_it_may(
    path: Path, opened: Callable[..., Any], elsewhere: None
) -> None:
    """The owner does not publish for others. Records are published once: then, or after
    the input was processed again."""
    one = opened()
    assert copy_some(one, 1) == 1
    with (
        logstore.open(path, config=DEAF),
        pytest.raises(logstore.PublicationTimeoutError) as got,
    ):
        values = drain(one)
        with one.transaction(timeout_ms=20) as transaction:
            for value in values:
                transaction.append("out", value)
    assert got.value.timeout_ms == 20
    assert len(values) == 19
    deadline = time.monotonic() + 60
    while outputs(path) != ALL:
        assert time.monotonic() < deadline
        with contextlib.suppress(logstore.errors.FencedError):
            copy_some(one)
    with one.transaction(timeout_ms=0):
        assert drain(one) == []
    assert one.committed(T0) == one.committed(T1) == OffsetAndMetadata(10)


def test_first_commit_that_is_published_after_its_time_is_found(
    path: Path,
    opened: Callable[..., Any],
    elsewhere: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The consumer has seen no commit so far: it continues after this one. An owner
    that is stopped has taken the request."""
    monkeypatch.setattr(Requester, "_withdraw", lambda *_: False)
    one = opened()
    with (
        logstore.open(path, config=DEAF),
        pytest.raises(logstore.PublicationTimeoutError),
    ):
        with one.transaction(timeout_ms=20) as transaction:
            for value in drain(one):
                transaction.append("out", value)
    assert [one.position(key) for key in (T0, T1)] == [0, 0]
    with logstore.open(path):
        until(lambda: outputs(path) == ALL)
    with pytest.raises(logstore.errors.FencedError, match="whose end it does not know"):
        copy_some(one)
    assert copy_some(one) == 0
    assert outputs(path) == ALL
    assert one.committed(T0) == OffsetAndMetadata(10)


def test_commit_that_was_taken_back_is_made_again(
    path: Path, opened: Callable[..., Any], elsewhere: None
) -> None:
    """Nothing of the first try is published later."""
    one = opened()
    with logstore.open(path, config=DEAF):
        with pytest.raises(logstore.PublicationTimeoutError) as caught:
            with one.transaction(timeout_ms=20) as transaction:
                for value in drain(one):
                    transaction.append("out", value)
        assert caught.value.outcome == "not written"
    copy_some(one)
    while copy_some(one):
        pass
    assert outputs(path) == ALL
    assert one.committed(T0) == OffsetAndMetadata(10)


@pytest.mark.parametrize("timeout_ms", [-1, 1.5, "1", True])
def test_bad_timeout_is_refused(opened: Callable[..., Any], timeout_ms: Any) -> None:
    """There is no transaction then."""
    with pytest.raises(logstore.ConfigError, match="timeout_ms"):
        opened().transaction(timeout_ms=timeout_ms)


@pytest.mark.parametrize("metadata", [b"", b"{}", b'{"at":[["t","",[1]]]}', b"\xff"])
def test_other_publisher_of_the_identity_is_a_named_error(
    path: Path, metadata: bytes, opened: Callable[..., Any]
) -> None:
    """Foreign metadata are not taken for positions. Earlier versions have let others
    use the identity."""
    with logstore.open(path) as store:
        with stage_for_group(store, identity_of("g"), 1) as stage:
            stage.append_many(store.topic("out")[0], [b"x"])
            staged = stage.finish()
        submit_for_group(
            store,
            [staged],
            identity=identity_of("g"),
            sequence=1,
            metadata=metadata,
            pinned=True,
            timeout_ms=None,
        )
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match="Another publisher"
    ):
        opened().poll()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(2)
def test_members_that_are_killed_lose_and_repeat_nothing(path: Path, seed: int) -> None:
    """Processes that copy, and are killed at any moment, again and again."""
    rng = random.Random(seed)

    def work() -> None:
        with contextlib.suppress(Exception):
            one = consumer(path)
            while True:
                copy_some(one, 2)

    def child() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(0)
        return pid

    pids = [child() for _ in range(2)]
    for _ in range(10):
        time.sleep(rng.random() * 0.15)
        at = rng.randrange(2)
        os.kill(pids[at], signal.SIGKILL)
        os.waitpid(pids[at], 0)
        pids[at] = child()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    is_done = False
    for _ in range(3):
        # A commit that a killed member has handed in may be carried out before this
        # one's: then the records are copied, and the positions have moved.
        with contextlib.suppress(logstore.errors.FencedError), consumer(path) as one:
            while copy_some(one):
                pass
            is_done = True
            break
    assert is_done
    assert Counter(outputs(path)) == Counter(ALL)


def test_thread_that_commits_excludes_others(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The commit is a call on the consumer."""
    one = opened()
    drain(one)
    transaction = one.transaction()
    with one._entry.call():
        errors: list[BaseException] = []

        def commit() -> None:
            try:
                transaction.commit()
            except logstore.errors.ReentrantCallError as error:
                errors.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        thread.join()
    assert len(errors) == 1
    transaction.commit()
    assert one.committed(T0) == OffsetAndMetadata(10)
