"""An exception from outside (Ctrl-C, a signal handler) at any line of a call.

A trace function raises at the k-th line that the engine executes, for every k. In each
case the call is whole or absent, the partition is usable or ended until it is reopened,
and the log holds exactly the records that the offsets claim.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

import logstore
from logstore import _native as native
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.log.write.durable_point import DurablePointWriter
from logstore.log.write.exclusive import ExclusiveLog
from logstore.store.catalog.topics import Catalog
from logstore.store.opening import open_store
from logstore.store.publication.group_commit import GroupCommit
from support.damage import Unsynced
from support.levels import stride
from support.values import (
    append_one,
    append_records,
    expected,
    fill,
    new_partition,
    read_all,
)

ENGINE = ("writer.py", "segment.py", "partition.py", "index.py", "encoder.py")


@functools.cache
def with_lines(path: str) -> frozenset[int]:
    """The lines of `with` and `try` statements. At the end of a `with` block the
    interpreter comes back to its line, and a trace function could raise there before
    `__exit__` is called; the line of a `try` in such a block is not under its guard,
    either. A signal handler cannot raise there: Python looks for signals at calls and
    at the ends of loops."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    return frozenset(
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.With | ast.Try)
        for line in range(node.lineno, node.body[0].lineno)
    )


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, and is raised only by these tests."""


def interrupted_at(
    line: int,
    call: Callable[[logstore.Partition], object],
    partition: logstore.Partition,
    engine: tuple[str, ...] = ENGINE,
) -> bool:
    """Run `call` in a thread and raise `Interrupt` at the n-th line of the engine.

    Returns whether there were that many lines. Other errors of `call` are raised. It
    runs in a new thread because a trace function that raises inside an exception
    handler leaves that exception as the thread's current one.
    """
    count = 0
    source = str(Path(logstore.__file__).parent)
    raised: list[BaseException] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if not name.startswith(source) or not name.endswith(engine):
            return None
        if frame.f_code.co_name == "__del__":
            return None  # what is raised there goes nowhere
        if event == "line" and frame.f_lineno not in with_lines(name):
            count += 1
            if count == line:
                raise Interrupt
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            call(partition)
        except BaseException as error:
            raised.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    if raised and not isinstance(raised[0], Interrupt):
        raise raised[0].with_traceback(None)
    return count >= line


CALLS: dict[str, Callable[[logstore.Partition], object]] = {
    "append": append_one,
    "append_many": lambda p: append_records(p, 3),
    "append_many-rolls": lambda p: append_records(p, 20),
    "append-durable": lambda p: append_one(p, durable=True),
}
ADDED = {"append": 1, "append_many": 3, "append_many-rolls": 20, "append-durable": 1}


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_append_interrupted_at_any_line_is_whole_or_absent(
    tmp_path: Path, magic: int, call: str
) -> None:
    """The end offset shows which; the next append gets that offset."""
    config = logstore.StoreConfig(flush_checkpoint_ms=1 << 40)
    # The long call: every other line with magic 1, the rest with magic 2.
    step = 2 if "rolls" in call else 1
    line, interrupted = magic if step == 2 else 1, True
    number = 0
    while interrupted:
        number += 1
        path = tmp_path / str(number)
        with open_store(path, config=config, _files=Unsynced()) as store:
            partition = new_partition(
                store, magic, segment_bytes=500, index_interval_bytes=100
            )
            fill(partition, 4, call=1)
            for _ in range(12):
                end = partition.end_offset
                try:
                    interrupted = interrupted_at(line, CALLS[call], partition)
                except logstore.errors.SyncFailedError:
                    break
                now = partition.end_offset
                where = f"line {line}, end {end}, then {now}"
                assert now in (end, end + ADDED[call]), where
                assert list(partition.read()) == expected(magic, 0, now), where
                try:
                    assert append_one(partition) == now, where
                except logstore.errors.SyncFailedError:
                    break
                assert partition.end_offset == now + 1, where
                assert list(partition.read()) == expected(magic, 0, now + 1), where
                if not interrupted:
                    break
                line += step
            else:
                partition = None
        found = read_all(path)
        assert found == expected(magic, 0, len(found)), line
        with logstore.open(path) as store:
            assert list(store.topic("orders")[0].read()) == found
        line += step * (partition is not None)


@pytest.mark.parametrize("what", ["roll", "delete_before", "truncate_to", "flush"])
def test_other_calls_interrupted_at_any_line_lose_nothing(
    tmp_path: Path, what: str
) -> None:
    """Interrupted before its commit, such a call has not happened; after it, it has.
    In both cases the log reads right, here and after a reopening."""
    calls: dict[str, Callable[[logstore.Partition], object]] = {
        "roll": lambda p: p.roll(),
        "delete_before": lambda p: p.delete_before(14),
        "truncate_to": lambda p: p.truncate_to(14),
        "flush": lambda p: p.flush(),
    }
    line, interrupted = 1, True
    while interrupted:
        path = tmp_path / str(line)
        with open_store(path, _files=Unsynced()) as store:
            partition = new_partition(store, segment_bytes=500)
            fill(partition, 20, call=1)
            interrupted = interrupted_at(line, calls[what], partition)
            start, end = partition.start_offset, partition.end_offset
            assert start in ((0, 14) if what == "delete_before" else (0,)), line
            assert end in ((20, 14) if what == "truncate_to" else (20,)), line
            assert list(partition.read()) == expected(1, start, end), line
            try:
                assert append_one(partition) == end, line
                end += 1
            except logstore.errors.SyncFailedError:
                pass
            assert list(partition.read()) == expected(1, start, end), line
        found = read_all(path)
        first = found[0].offset if found else end
        assert found == expected(1, first, first + len(found)), line
        assert first in (start, 14 if what == "delete_before" else start), line
        assert first + len(found) >= min(end, 14), line
        line += stride(9)


def check_indexes(path: Path, where: object) -> None:
    """Check that the index files match the logs."""
    assert logstore.verify(path).problems == (), where
    names = sorted(path.glob("orders-0/*.*index"))
    before = [name.read_bytes() for name in names]
    logstore.rebuild_index(path / "orders-0")
    assert [name.read_bytes() for name in names] == before, where


def test_roll_whose_undoing_is_interrupted_at_any_line_leaves_sound_indexes(
    tmp_path: Path,
) -> None:
    """The undo starts again from its beginning, with files that the first try has
    shortened."""
    line, interrupted = 1, True
    while interrupted:
        path = tmp_path / str(line)
        with open_store(path, _files=Unsynced()) as store:
            partition = new_partition(store, index_interval_bytes=100)
            fill(partition, 12, call=1)
            with mock.patch.object(
                DurablePointWriter, "record", side_effect=[Interrupt, None, None]
            ):
                interrupted = interrupted_at(line, lambda p: p.roll(), partition)
            with contextlib.suppress(logstore.errors.SyncFailedError):
                assert append_one(partition) == 12, line
            end = partition.end_offset
        assert read_all(path) == expected(1, 0, end), line
        check_indexes(path, line)
        line += stride(4)


def test_append_interrupted_twice_behind_its_commit_leaves_sound_indexes(
    tmp_path: Path,
) -> None:
    """The first interrupt strikes at the end of the call that commits, the second one
    when the undo examines the state: the next call undoes it."""
    commit, size = native.Planner.commit, native.SegmentState.size.fget
    is_commit = False

    def committed(planner: native.Planner, state: native.SegmentState) -> None:
        nonlocal is_commit
        commit(planner, state)
        is_commit = True
        raise Interrupt

    def looked(state: native.SegmentState) -> int:
        if is_commit:
            raise Interrupt
        return int(size(state))

    with open_store(tmp_path, _files=Unsynced()) as store:
        # C makes no steps of compressed messages.
        partition = new_partition(store, codec="gzip", index_interval_bytes=100)
        for number in range(6):
            with (
                mock.patch.object(native.Planner, "commit", committed),
                mock.patch.object(native.SegmentState, "size", property(looked)),
                pytest.raises(Interrupt),
            ):
                append_one(partition)
            is_commit = False
            assert partition.end_offset == number
            assert append_one(partition) == number
    assert read_all(tmp_path) == expected(1, 0, 6)
    check_indexes(tmp_path, "")


def test_close_interrupted_at_any_line_and_closed_again_leaves_sound_indexes(
    tmp_path: Path,
) -> None:
    line, interrupted = 1, True
    while interrupted:
        path = tmp_path / str(line)
        store = open_store(path, _files=Unsynced())
        partition = new_partition(store, index_interval_bytes=300)
        fill(partition, 20, call=1)
        interrupted = interrupted_at(line, lambda p, s=store: s.close(), partition)
        store.close()
        assert read_all(path) == expected(1, 0, 20), line
        check_indexes(path, line)
        line += 1


def test_publication_interrupted_twice_takes_no_appends_that_would_be_lost(
    tmp_path: Path,
) -> None:
    """Opening the store undoes it, with all that follows it."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("a", 2)
        for partition in topic:
            partition.append(b"before")
        with store.stage() as stage:
            for partition in topic:
                stage.append_many(partition, [b"published"])
            staged = stage.finish()
        with (
            mock.patch.object(ExclusiveLog, "begin_sync", side_effect=Interrupt),
            mock.patch.object(GroupCommit, "_failed", side_effect=Interrupt),
            pytest.raises(Interrupt),
        ):
            store.publish([staged])
        for partition in topic:
            assert [r.value for r in partition.read()] == [b"before"]
            with pytest.raises(
                logstore.errors.SyncFailedError, match="Open the store again"
            ):
                partition.append(b"behind")
    with logstore.open(tmp_path) as store:
        for partition in store.topic("a"):
            assert partition.append(b"behind") == 1
            assert [r.value for r in partition.read()] == [b"before", b"behind"]


@pytest.mark.parametrize(
    ("then", "ends"), [("look", [1, 1]), ("append", [1, 2]), ("publish", [1, 2])]
)
def test_publication_interrupted_twice_behind_its_commit_is_shown_as_a_whole(
    tmp_path: Path, then: str, ends: list[int]
) -> None:
    """Even if only one of its partitions is read, appended or published to next."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("a", 2)

        def staged(*numbers: int) -> logstore.types.Staged:
            with store.stage() as stage:
                for number in numbers:
                    stage.append_many(topic[number], [b"published"])
                return stage.finish()

        append = GrowingFile.append

        def sealed(file: GrowingFile, text: str, *logs: Any) -> bool:
            is_in = append(file, text, *logs)
            if logs:
                raise Interrupt
            return is_in

        with (
            mock.patch.object(GroupCommit, "_failed", side_effect=Interrupt),
            mock.patch.object(GrowingFile, "append", sealed),
            pytest.raises(Interrupt),
        ):
            store.publish([staged(0, 1)], identity="test", sequence=1)
        assert store.published("test") == 1
        if then == "publish":
            store.publish([staged(1)], identity="test", sequence=2)
        elif then == "append":
            assert topic[1].append(b"behind") == 1
        for number in (1, 0):
            assert len(list(topic[number].read())) == ends[number]
    with logstore.open(tmp_path) as store:
        assert [partition.end_offset for partition in store.topic("a")] == ends


TOPIC_CALLS: dict[str, Callable[[logstore.Store], object]] = {
    "create": lambda store: store.create_topic("b", 3),
    "grow": lambda store: store.topic("a").add_partitions(2),
    "delete": lambda store: store.delete_topic("a"),
}


def test_topic_is_deleted_with_what_an_interrupted_add_partitions_made(
    tmp_path: Path,
) -> None:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("a", 1)
        with (
            mock.patch.object(Catalog, "add", side_effect=Interrupt),
            pytest.raises(Interrupt),
        ):
            topic.add_partitions(2)
        store.delete_topic("a")
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


@pytest.mark.parametrize("what", TOPIC_CALLS)
def test_topics_are_whole_or_absent_where_a_call_is_interrupted_at_any_line(
    tmp_path: Path, what: str
) -> None:
    """Afterwards topics can be created, also of the same name: if the new one has fewer
    partitions, the next opening finds no other partition of the interrupted one."""
    engine = (
        "store.py", "topics.py", "topic_changes.py", "topic_settings.py",
        "known_ids.py", "deleted_directories.py", "partitions.py",
    )  # fmt: skip
    line, interrupted = 1, True
    while interrupted:
        path = tmp_path / str(line)
        with open_store(path, _files=Unsynced()) as store:
            first = store.create_topic("a", 1)[0]
            first.append(b"x")
            interrupted = interrupted_at(
                line, lambda _, s=store: TOPIC_CALLS[what](s), first, engine
            )
            store.create_topic("c", 1)
            wanted = {"a": {1, 3}, "b": {1, 3}, "c": {1}}
            for name in ("a", "b"):
                try:
                    there = len(store.topic(name).partitions)
                    assert there in wanted[name], (line, name)
                    if there == 3 or what != "grow":  # which the next opening finishes
                        wanted[name] = {there}
                except logstore.TopicNotFoundError:
                    pass
                if name not in store.topics():
                    assert len(store.create_topic(name, 1)) == 1, line
                    wanted[name] = {1}
        with open_store(path, _files=Unsynced()) as store:
            assert store.recovery_report.actions == (), line
            for name, counts in wanted.items():
                try:
                    assert len(store.topic(name)) in counts, (line, name)
                except logstore.TopicNotFoundError:
                    # Its deletion was interrupted after its commit, and is over now.
                    assert (what, name) == ("delete", "a"), line
        line += 1
