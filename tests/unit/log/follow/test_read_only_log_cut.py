"""A log that is cut, and has grown again, under a reader: what is left of it is
delivered, then a named error, and never records of two logs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.io import layout
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.read_ways import COUNT, WAYS, append, beside
from support.values import config_of


@pytest.mark.parametrize("where", ["own", "other"])
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_read_never_mixes_a_log_with_what_it_was_before_a_cut(
    tmp_path: Path, way: str, magic: int, where: str
) -> None:
    """Cut below where the read stands, and grown past it, batch over batch."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(magic))[0]
        append(p, b"old", COUNT)
        with beside(store, tmp_path, where) as reading:
            records = WAYS[way](reading.topic("orders")[0])
            found = list(itertools.islice(records, 1000))
            p.truncate_to(500)
            append(p, b"new", COUNT)
            with pytest.raises(
                OffsetOutOfRangeError, match="truncated to offset 500"
            ) as at:
                found += records
            assert at.value.cut_to == 500
        assert {value[:3] for _, value in found} == {b"old"}
        offsets = [offset for offset, _ in found]
        assert offsets == list(range(offsets[0], offsets[0] + len(found)))


@pytest.mark.parametrize("where", ["own", "other"])
@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
def test_read_below_a_cut_goes_on_to_it_and_says_that_the_rest_is_gone(
    tmp_path: Path, way: str, where: str
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", COUNT)
        with beside(store, tmp_path, where) as reading:
            records = WAYS[way](reading.topic("orders")[0])
            found = list(itertools.islice(records, 10))
            p.truncate_to(1900)
            append(p, b"new", COUNT)
            with pytest.raises(OffsetOutOfRangeError):
                for pair in records:
                    found.append(pair)
        assert [offset for offset, _ in found] == list(range(1900))
        assert {value[:3] for _, value in found} == {b"old"}


@pytest.mark.parametrize("where", ["own", "other"])
def test_follower_above_a_cut_is_told_and_one_at_it_goes_on(
    tmp_path: Path, where: str
) -> None:
    """This holds even if the log has grown past the cut again between two of its
    looks."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", 10)
        with beside(store, tmp_path, where) as reading:
            for cut_to in (5, 10):
                follower = reading.topic("orders")[0].follow(timeout=0.3)
                found = [next(follower) for _ in range(10)]
                append(p, b"old", 3)
                p.truncate_to(cut_to)
                append(p, b"new", 20 - cut_to)
                if cut_to < 10:
                    with pytest.raises(OffsetOutOfRangeError):
                        next(follower)
                    p.truncate_to(5)
                    append(p, b"old", 5)
                else:
                    found += follower
                    assert [r.offset for r in found] == list(range(20))
                    assert (found[10].value or b"")[:3] == b"new"


# ---------------------------------------------------------------- one answer

OLD = [b"old.%d" % offset for offset in range(10)]
NEW = [b"new.%d" % offset for offset in range(3)]

# What a call gives: of the log before the cut, and after it.
ANSWERS: dict[str, tuple[Callable[[logstore.Partition], object], int, object, object]]
ANSWERS = {
    "fetch": (lambda p: [r.value for r in p.fetch(0)], 0, OLD, NEW),
    "committed": (
        lambda p: [r.value for r in p.fetch(0, isolation="read_committed")],
        0,
        OLD,
        NEW,
    ),
    "at the end": (
        lambda p: [r.value for r in p.read(5, isolation="read_committed")],
        5,
        OLD[5:],
        NEW,
    ),
    "time": (lambda p: p.offset_for_time(8), 0, 8, 2),
    "stable": (lambda p: p.last_stable_offset(), 5, 10, 8),
}


@pytest.mark.parametrize("way", ANSWERS)
def test_call_across_a_cut_answers_for_the_log_before_or_behind_it(
    tmp_path: Path, way: str
) -> None:
    """Cut to where the call begins, in front of each of its system calls: the end that
    came down with the cut is no end of the log, which has grown again."""
    ask, cut, before, behind = ANSWERS[way]
    with open_store(tmp_path, _files=Unsynced()) as store:
        for at in itertools.count(1):
            p = store.create_topic("orders", config=config_of(2))[0]
            p.append_many(OLD[:5], timestamps_ms=range(5))
            p.append_many(OLD[5:], timestamps_ms=range(5, 10))
            files, calls = FaultyFiles(), itertools.count(1)

            def step(method: str, name: str) -> None:
                if next(calls) == at:  # noqa: B023
                    p.truncate_to(cut)  # noqa: B023
                    p.append_many(NEW, timestamps_ms=[0, 1, 9])  # noqa: B023

            with open_store(tmp_path, read_only=True, _files=files) as reading:
                beside = reading.topic("orders")[0]
                files.before = step
                try:
                    assert ask(beside) in (before, behind)
                except OffsetOutOfRangeError:
                    assert way == "at the end"  # it had begun
                finally:
                    files.before = None
            store.delete_topic("orders")
            if next(calls) <= at:
                break


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("cut_to", [0, 5, 10])
def test_cut_by_the_writer_that_takes_a_log_over_is_seen(
    tmp_path: Path, cut_to: int, rolls: bool
) -> None:
    """The log was another program's when it was read; at its end nothing was lost. Its
    last segment may have been empty, and be so again in between."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1))[0]
        append(p, b"old", 10)
        if rolls:
            p.roll()
    (tmp_path / layout.RECOVERY_CHECKPOINT).write_text("0\n1\nx 0 7\n")
    (tmp_path / layout.CLEAN_SHUTDOWN).unlink()
    with open_store(tmp_path, read_only=True) as reading:
        follower = reading.topic("orders")[0].follow(timeout=0.3, durable_only=False)
        found = [next(follower) for _ in range(10)]
        with open_store(tmp_path, _files=Unsynced()) as store:
            p = store.topic("orders")[0]
            if cut_to < 10:
                p.truncate_to(cut_to)
                append(p, b"new", 10 - cut_to)
                if rolls:
                    p.roll()
            append(p, b"new", 10)
        if cut_to < 10:
            with pytest.raises(OffsetOutOfRangeError) as caught:
                next(follower)
            assert caught.value.cut_to is not None
            assert caught.value.cut_to <= cut_to
        else:
            found += follower
            assert [record.offset for record in found] == list(range(20))
