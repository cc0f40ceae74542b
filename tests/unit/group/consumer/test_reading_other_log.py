"""A live consumer reads one log: if the log is cut, replaced or made again, the
consumer notices, leaves out no record, and commits no position of the former log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.groups import T0, copy_some, store_with

OLD = [b"0:%d" % n for n in range(10)]
NEW = [b"new %d" % n for n in range(5, 15)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store_with(tmp_path / "s", 1, 10)
    return tmp_path / "s"


def cut_and_grow(path: Path) -> None:
    """Cut at offset 5, below the position, and grow past it again."""
    with logstore.open(path) as store:
        store["t"][0].truncate_to(5)
        store["t"][0].append_many(NEW)


def assigned(opened: Callable[..., Any], **given: Any) -> Any:
    one = opened(topics=(), **given)
    one.assign([T0])
    return one


def alone(opened: Callable[..., Any], **given: Any) -> Any:
    return opened(group=None, **given)


def member(opened: Callable[..., Any], **given: Any) -> Any:
    return opened(**given)


KINDS = pytest.mark.parametrize("kind", [member, assigned, alone])


def polled(one: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        records = one.poll(timeout_ms=2000, max_records=count - len(found))
        if not records:
            break
        found += [record.value for some in records.values() for record in some]
    return found


def iterated(one: Any, count: int) -> list[bytes]:
    return [record.value for record in itertools.islice(one, count)]


@KINDS
@pytest.mark.parametrize("take", [polled, iterated])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_consumer_goes_on_where_the_log_was_cut(
    path: Path,
    opened: Callable[..., Any],
    kind: Callable[..., Any],
    take: Callable[[Any, int], list[bytes]],
    reset: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It reads each record of the remaining log once, and warns."""
    one = kind(opened, reset=reset)
    one.poll(timeout_ms=0, max_records=1)
    one.seek_to_beginning()
    assert take(one, 10) == OLD
    one.poll(timeout_ms=0)
    cut_and_grow(path)
    with caplog.at_level(logging.WARNING):
        assert take(one, 10) == NEW
    assert "was truncated to offset 5" in caplog.text
    assert "reset to 5" in caplog.text


@KINDS
def test_consumer_with_reset_error_is_told_of_a_cut_until_a_seek(
    path: Path, opened: Callable[..., Any], kind: Callable[..., Any]
) -> None:
    """The error is raised at each poll."""
    one = kind(opened, reset="error")
    with pytest.raises(logstore.errors.NoOffsetForPartitionError):
        one.poll(timeout_ms=0)
    one.seek(T0, 0)
    assert polled(one, 10) == OLD
    cut_and_grow(path)
    for _ in range(2):
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            one.poll(timeout_ms=1000)
        assert caught.value.cut_to == 5
    one.seek(T0, caught.value.cut_to)
    assert polled(one, 10) == NEW


def test_poll_that_fails_remembers_which_log_it_was(
    path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that arrive between a failure and the next poll belong to the same
    log."""
    one = assigned(opened)
    assert polled(one, 10) == OLD
    append(path, b"more")
    log = one._core.readers[T0].log

    def fails() -> Any:
        log.restart()
        raise logstore.StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(log, "_next_item", lambda position: fails())
        with pytest.raises(logstore.StorageError, match="no"):
            one.poll(timeout_ms=1000)
    cut_and_grow(path)
    assert polled(one, 10) == NEW


def append(path: Path, *values: bytes) -> None:
    with logstore.open(path) as store:
        store["t"][0].append_many(values)


def test_seek_back_in_a_log_that_was_cut_is_told(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Another record has the offset of a record that was read. The next seek refers to
    the current log."""
    one = assigned(opened, reset="error")
    one.seek(T0, 0)
    assert polled(one, 10) == OLD
    cut_and_grow(path)
    one.seek(T0, 7)
    with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated to offset 5"):
        one.poll(timeout_ms=1000)
    one.seek(T0, 7)
    assert polled(one, 8) == NEW[2:]


def test_seek_to_an_end_is_to_the_log_as_it_is(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Earlier cuts have no effect."""
    one = assigned(opened, reset="error")
    one.seek(T0, 0)
    assert polled(one, 10) == OLD
    cut_and_grow(path)
    one.seek_to_end()
    append(path, b"last")
    assert polled(one, 1) == [b"last"]


@pytest.mark.parametrize("kind", [member, assigned])
def test_position_of_a_log_that_was_cut_is_not_committed(
    path: Path, opened: Callable[..., Any], kind: Callable[..., Any]
) -> None:
    """A restart would continue there, past unread records."""
    one = kind(opened)
    assert polled(one, 4) == OLD[:4]
    one.commit()
    assert polled(one, 6) == OLD[4:]
    cut_and_grow(path)
    for offsets in (None, {T0: 8}):
        with pytest.raises(
            logstore.errors.CommitFailedError, match="was truncated to offset 5"
        ):
            one.commit(offsets)
    assert one.committed(T0) == logstore.OffsetAndMetadata(4)
    one.commit({T0: 5})  # a position in the common part
    assert one.committed(T0) == logstore.OffsetAndMetadata(5)
    assert polled(one, 10) == NEW
    one.commit()
    assert one.committed(T0) == logstore.OffsetAndMetadata(15)


def test_commit_by_itself_leaves_out_a_log_that_was_cut(
    path: Path, opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It warns; the same poll continues."""
    one = opened(auto_commit_ms=1)
    assert polled(one, 10) == OLD
    cut_and_grow(path)
    with caplog.at_level(logging.WARNING):
        found = polled(one, 10)
    assert found == NEW
    assert "cannot commit by itself" in caplog.text


def outputs(path: Path) -> list[bytes]:
    with logstore.open(path, read_only=True) as store:
        return [record.value for record in store["out"][0].read()]


def test_transaction_over_a_cut_is_refused_and_done_again(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Outputs of removed records are not published; outputs of the other records
    once."""
    with logstore.open(path) as store:
        store.create_topic("out")
    one = opened()
    with pytest.raises(logstore.errors.CommitFailedError, match="logs were truncated"):
        with one.transaction() as transaction:
            for value in polled(one, 10):
                transaction.append("out", value)
            cut_and_grow(path)
            for value in polled(one, 10):
                transaction.append("out", value)
    with one.transaction() as transaction:
        for value in polled(one, 15):
            transaction.append("out", value)
    assert outputs(path) == OLD[:5] + NEW


def test_transaction_whose_input_was_cut_is_refused(
    path: Path, opened: Callable[..., Any]
) -> None:
    """This holds even if no poll has noticed the cut."""
    with logstore.open(path) as store:
        store.create_topic("out")
    one = opened()
    with pytest.raises(
        logstore.errors.CommitFailedError, match="was truncated to offset 5"
    ):
        with one.transaction() as transaction:
            for value in polled(one, 10):
                transaction.append("out", value)
            cut_and_grow(path)
    with one.transaction() as transaction:
        for value in polled(one, 15):
            transaction.append("out", value)
    assert outputs(path) == OLD[:5] + NEW


def test_aborted_transaction_begins_again_in_its_own_log(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The former position is after the cut, in another log."""
    with logstore.open(path) as store:
        store.create_topic("out")
    one = opened()
    with one.transaction() as transaction:
        for value in polled(one, 8):
            transaction.append("out", value)
    with pytest.raises(KeyError), one.transaction():
        assert polled(one, 2) == OLD[8:]
        raise KeyError
    cut_and_grow(path)
    with one.transaction() as transaction:
        for value in polled(one, 10):
            transaction.append("out", value)
    assert outputs(path) == OLD[:8] + NEW


def test_log_that_was_put_back_is_read_from_what_is_committed_in_it(
    path: Path, opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is the same, and the log another one."""
    with logstore.open(path) as store:
        store["t"][0].roll()
    shutil.copytree(path / "t-0", path.parent / "backup")
    one = opened()
    assert polled(one, 6) == OLD[:6]
    one.commit()
    assert polled(one, 4) == OLD[6:]
    append(path, b"later")
    assert polled(one, 1) == [b"later"]
    os.rename(path / "t-0", path.parent / "away")
    os.rename(path.parent / "backup", path / "t-0")
    with caplog.at_level(logging.WARNING):
        assert polled(one, 4) == OLD[6:]
    assert "t-0" in caplog.text


@pytest.mark.parametrize("is_proven", [True, False])
def test_cut_that_is_reported_too_low_does_not_repeat_what_is_committed(
    path: Path, opened: Callable[..., Any], is_proven: bool
) -> None:
    """The former end may be unknown after a change by another program: the log still
    has the batch below the committed offset, or has not."""
    one = opened()
    assert polled(one, 10) == OLD
    one.commit()
    if not is_proven:
        cut_and_grow(path)
    error = logstore.OffsetOutOfRangeError(10, 0, 10, partition="t-0", cut_to=0)
    reader = one._core.readers[T0]
    one._core.place.positions.go_on(reader, error)
    assert reader.position == (10 if is_proven else 0)
    if not is_proven:
        assert polled(one, 15) == OLD[:5] + NEW


def test_cut_in_the_same_process_is_told(path: Path) -> None:
    """The consumer reads through the store that writes."""
    with logstore.open(path) as store:
        with logstore.Consumer(store, group="g", reset="earliest") as one:
            one.assign([T0])
            assert polled(one, 10) == OLD
            store["t"][0].truncate_to(5)
            store["t"][0].append_many(NEW, durable=True)
            with pytest.raises(
                logstore.errors.CommitFailedError, match="was truncated to offset 5"
            ):
                one.commit()
            assert polled(one, 10) == NEW


@pytest.mark.parametrize("kind", [member, assigned, alone])
def test_topic_made_again_between_two_polls_is_read_from_its_start_or_not_at_all(
    path: Path, opened: Callable[..., Any], kind: Callable[..., Any]
) -> None:
    """The old position is never used; an assigned partition must be assigned again."""
    one = kind(opened)
    assert polled(one, 10) == OLD
    with logstore.open(path) as store:
        store.delete_topic("t")
        store.create_topic("t")[0].append_many([b"again %d" % n for n in range(30)])
    again = [b"again %d" % n for n in range(30)]
    if kind is assigned:
        for _ in range(2):
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                one.poll(timeout_ms=1000)
    else:
        assert polled(one, 30) == again


def test_task_goes_on_where_the_log_was_cut(path: Path) -> None:
    """Reads of a thread do the same."""

    async def run() -> tuple[list[bytes], list[bytes]]:
        async with logstore.aio.Consumer(
            path, group="g", topics=["t"], reset="earliest"
        ) as one:
            old = [(await one.getone()).value or b"" for _ in range(10)]
            cut_and_grow(path)
            new = [(await one.getone()).value or b"" for _ in range(10)]
        return old, new

    assert asyncio.run(run()) == (OLD, NEW)


@pytest.mark.parametrize("kind", [member, assigned])
def test_transactions_over_a_topic_made_again_publish_each_output_once(
    path: Path, opened: Callable[..., Any], kind: Callable[..., Any]
) -> None:
    """The consumer continues at the start of the new topic, or gets an error and
    commits nothing for it; so does the next one."""
    with logstore.open(path) as store:
        store.create_topic("out")
    one = kind(opened)
    while copy_some(one):
        pass
    again = [b"again %d" % n for n in range(5)]
    with logstore.open(path) as store:
        store.delete_topic("t")
        store.create_topic("t")[0].append_many(again)
    errors = logstore.errors
    refused = (errors.PartitionNotFoundError, errors.CommitFailedError)
    for _ in range(3):
        with contextlib.suppress(refused):
            copy_some(one)
    one.close()
    two = member(opened)
    while copy_some(two):
        pass
    assert outputs(path) == OLD + again


def test_broker_that_writes_its_recovery_points_changes_no_topic(path: Path) -> None:
    """A broker has taken the store over and writes to it: consumers keep their
    partitions, and begin at the committed offsets."""
    points = path / "recovery-point-offset-checkpoint"
    (path / ".kafka_cleanshutdown").unlink()
    lost: list[Any] = []
    options: Any = {"topics": ["t"], "reset": "earliest", "durable_only": False}
    with logstore.Consumer(path, group="live", on_lost=lost.append, **options) as live:
        assert polled(live, 10) == OLD
        live.commit()
        for number in range(1, 4):
            points.with_suffix(".tmp").write_text(f"0\n1\nt 0 {number}\n")
            points.with_suffix(".tmp").rename(points)
            with logstore.Consumer(path, group="g", **options) as one:
                if number == 1:
                    assert polled(one, 10) == OLD
                    one.commit()
                assert one.committed(T0) == logstore.OffsetAndMetadata(10)
            # Longer than the time after which it looks at its group.
            assert live.poll(timeout_ms=200) == {}
        assert live.committed(T0) == logstore.OffsetAndMetadata(10)
    assert lost == []
