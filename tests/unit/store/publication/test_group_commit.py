"""Publications that are interrupted: each is complete or absent."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import logstore
from faults.checker import open_quietly
from logstore import Store, Topic
from logstore.errors import StorageError
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.log.write.exclusive import ExclusiveLog
from logstore.log.write.log_bounds import VisibilityBarrier
from logstore.store.opening import open_store
from logstore.store.publication.group_commit import GroupCommit
from support.damage import Unsynced
from support.disk import MemoryDisk
from support.interrupts import InterruptAtCall
from support.levels import stride
from support.staging import stage
from support.values import config_of, expected

MAGIC = 2


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but raised by these tests only."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


def made(store: Store, *names: str) -> list[Topic]:
    return [store.create_topic(name, 1, config_of(MAGIC)) for name in names]


def publish(store: Store, sequence: int, *topics: Topic) -> None:
    """Publish two records to each of these topics."""
    staged = stage(store, {topic[0]: 2 for topic in topics}, sequence)
    store.publish([staged], identity="test", sequence=sequence)


@contextlib.contextmanager
def interrupts(*names: str) -> Iterator[None]:
    """Interrupts at the beginning of each of these methods, which end the call."""
    with contextlib.ExitStack() as stack:
        for name in names:
            owner = GroupCommit if hasattr(GroupCommit, name) else ExclusiveLog
            stack.enter_context(mock.patch.object(owner, name, side_effect=Interrupt))
        with pytest.raises(Interrupt):
            yield


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """The interrupt comes after the commit, before the barrier is opened."""
    put_in = GroupCommit._put_in

    def committed(commit: GroupCommit, *arguments: Any) -> None:
        put_in(commit, *arguments)
        raise Interrupt

    with (
        mock.patch.object(GroupCommit, "_put_in", committed),
        mock.patch.object(GroupCommit, "_failed", side_effect=Interrupt),
    ):
        yield


def ends(topics: list[Topic]) -> list[int]:
    return [topic[0].end_offset for topic in topics]


def check_usable(store: Store, topics: list[Topic], before: list[int]) -> None:
    """Each log ends there, and takes appends; all of them take a publication."""
    for topic, end in zip(topics, before, strict=True):
        assert topic[0].append(b"x") == end
    assert ends(topics) == [end + 1 for end in before]
    publish(store, 9, *topics)
    assert ends(topics) == [end + 3 for end in before]


def test_publication_that_is_interrupted_behind_its_commit_is_seen_at_once(
    store: Store,
) -> None:
    """The store remembers it as published."""
    topics = made(store, "a", "b")
    with interrupts("_show"):
        publish(store, 1, *topics)
    assert store.published("test") == 1
    for topic in topics:
        assert list(topic[0].read()) == expected(MAGIC, 0, 2)
    check_usable(store, topics, [2, 2])


def test_publication_that_was_undone_does_not_stop_its_partitions(store: Store) -> None:
    """Its barrier was left closed by an interrupt."""
    topics = made(store, "a", "b")
    publish(store, 1, *topics)
    with interrupts("begin_sync", "_show"):
        publish(store, 2, *topics)
    assert store.published("test") == 1
    check_usable(store, topics, [2, 2])


@pytest.mark.parametrize("segment_bytes", [1 << 20, 150], ids=["one", "rolls"])
def test_undo_that_is_interrupted_anywhere_is_done_by_the_next_opening(
    tmp_path: Path, segment_bytes: int
) -> None:
    """The first interrupt comes before the commit, the second one while the records are
    removed again. If the publication has begun a segment, the one before it ends where
    the log is cut to before anything is cut."""
    nth, was_interrupted = 1, True
    while was_interrupted:
        path, second = tmp_path / str(nth), InterruptAtCall(nth)

        def first(*_: object, second: InterruptAtCall = second) -> None:
            second.__enter__()
            raise Interrupt

        with open_store(path, _files=Unsynced()) as store:
            config = config_of(MAGIC, segment_bytes=segment_bytes)
            topics = [store.create_topic(name, 1, config) for name in "ab"]
            publish(store, 1, *topics)
            with (
                mock.patch.object(ExclusiveLog, "begin_sync", first),
                pytest.raises((Interrupt, InterruptAtCall.Interrupt, StorageError)),
            ):
                try:
                    publish(store, 2, *topics)
                finally:
                    second.__exit__()
        was_interrupted = second.has_raised
        with open_store(path, _files=Unsynced()) as store:
            assert store.published("test") == 1, nth
            topics = [store.topic(name) for name in "ab"]
            assert ends(topics) == [2, 2], nth
            check_usable(store, topics, [2, 2])
        nth += stride(41)
    assert nth > 1000


@pytest.mark.parametrize("raised", [0, 1, 2])
def test_publication_that_was_not_begun_does_not_stop_its_partitions(
    store: Store, raised: int
) -> None:
    """Some of its logs have its barrier, but the journal has no ends of them."""
    topics = made(store, "a", "b")
    raise_barrier, seen = ExclusiveLog.raise_barrier, list[ExclusiveLog]()

    def raise_some(
        log: ExclusiveLog, barrier: VisibilityBarrier, release: object
    ) -> None:
        if len(seen) == raised:
            raise Interrupt
        seen.append(log)
        raise_barrier(log, barrier, release)  # type: ignore[arg-type]

    begins = mock.patch.object(PublicationJournal, "begin", side_effect=Interrupt)
    with (
        mock.patch.object(ExclusiveLog, "raise_barrier", raise_some),
        begins,
        interrupts("_failed"),
    ):
        publish(store, 1, *topics)
    assert store.published("test") is None
    check_usable(store, topics, [0, 0])


def test_half_of_a_publication_stays_hidden_though_a_topic_of_it_is_deleted(
    tmp_path: Path,
) -> None:
    """The journal drops the end of that topic, and keeps the others. The next opening
    undoes it."""
    with open_store(tmp_path) as store:
        topics = made(store, "a", "b", "c")
        publish(store, 1, *topics)
        with interrupts("begin_sync", "_failed"):
            publish(store, 2, *topics)
        store.delete_topic("b")
        for topic in (topics[0], topics[2]):
            assert topic[0].end_offset == 2
            with pytest.raises(logstore.StorageError, match="could not be undone"):
                publish(store, 3, topic)
            assert list(topic[0].read()) == expected(MAGIC, 0, 2)
    with open_store(tmp_path) as store:
        assert store.published("test") == 1
        for name in ("a", "c"):
            assert list(store.topic(name)[0].read()) == expected(MAGIC, 0, 2)


def test_deletion_of_its_topics_ends_a_publication_in_doubt(store: Store) -> None:
    """Nothing of it remains that could be undone."""
    topics = made(store, "a", "b")
    publish(store, 1, topics[0])
    with interrupts("begin_sync", "_failed"):
        publish(store, 2, topics[0])
    store.delete_topic("a")
    check_usable(store, topics[1:], [0])


def test_commit_that_cannot_be_made_durable_stays_hidden(tmp_path: Path) -> None:
    """The first check cannot make it durable; the next opening shows it."""
    failure = OSError(errno.EIO, "no")
    with open_store(tmp_path) as store:
        topics = made(store, "a", "b")
        with interrupts(), unseen():
            publish(store, 1, *topics)
        with mock.patch.object(PublicationJournal, "confirm", side_effect=failure):
            assert ends(topics) == [0, 0]
        for topic in topics:
            with pytest.raises(
                logstore.errors.SyncFailedError, match="Open the store again"
            ):
                topic[0].append(b"behind")
    with open_store(tmp_path) as store:
        assert ends([store.topic("a"), store.topic("b")]) == [2, 2]


def test_look_from_inside_of_another_call_leaves_a_publication_as_it_is(
    store: Store,
) -> None:
    """The next one ends it."""
    topics = made(store, "a", "b")
    with interrupts(), unseen():
        publish(store, 1, *topics)
    inside = logstore.errors.ReentrantCallError("from inside")
    with mock.patch.object(PublicationJournal, "confirm", side_effect=inside):
        assert ends(topics) == [0, 0]
    check_usable(store, topics, [2, 2])


def test_interrupt_behind_the_commit_puts_nothing_in_doubt(store: Store) -> None:
    """The entry is sealed: its publication is shown, and more can follow at once."""
    topics = made(store, "a", "b")
    publish(store, 1, *topics)
    with (
        mock.patch.object(GrowingFile, "_ended", side_effect=Interrupt),
        pytest.raises(Interrupt),
    ):
        publish(store, 2, *topics)
    assert store.published("test") == 2
    assert ends(topics) == [4, 4]
    assert [topic[0].durable_offset for topic in topics] == [4, 4]
    publish(store, 3, *topics)
    assert [topic[0].append(b"behind") for topic in topics] == [6, 6]


@pytest.mark.parametrize("is_synced", [False, True])
def test_commit_counts_if_its_logs_are_synced(is_synced: bool) -> None:
    """Interrupts have hidden the result of the sync, and have ended the undo. Before it
    is shown, it is made durable; otherwise it is reverted, and stays hidden."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    topics = made(store, "a", "b")
    publish(store, 1, *topics)
    publishes = PublicationJournal.publish

    def committed(journal: PublicationJournal, *arguments: Any) -> None:
        where: tuple[Any, str] = (MemoryDisk, "sync")
        if is_synced:
            where = GrowingFile, "_ended"
        with mock.patch.object(*where, side_effect=Interrupt):
            publishes(journal, *arguments)

    with (
        mock.patch.object(PublicationJournal, "publish", committed),
        interrupts("_failed"),
    ):
        publish(store, 2, *topics)
    end, done = (4, 2) if is_synced else (2, 1)
    assert ends(topics) == [end, end]
    with open_quietly(MemoryDisk(disk.kill().moment().base)) as again:
        assert again.published("test") == done
        assert [again.topic(name)[0].end_offset for name in "ab"] == [end, end]
