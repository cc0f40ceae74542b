"""Interrupts in a group's calls: changes of two steps are undone or continued."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.group.consumer.core import Core
from logstore.group.file import group_file as group_file_module
from logstore.group.file.slots import Slots
from logstore.group.member.membership import Membership
from support.groups import T0, T1, OneMember, consumer, drain, offset_in, store_with
from support.interrupts import InterruptAtCall

_BEHIND_ALL = 1 << 30


def at_each_place(case: Callable[[InterruptAtCall], None], step: int = 1) -> None:
    """Run a case with an interrupt at each place, or at every `step`-th one."""
    all_of_it = InterruptAtCall(_BEHIND_ALL)
    case(all_of_it)
    assert not all_of_it.has_raised
    for place in range(1, all_of_it.seen + 1, step):
        case(InterruptAtCall(place))


def interrupted(call: Callable[[], object], interrupt: InterruptAtCall) -> None:
    with contextlib.suppress(InterruptAtCall.Interrupt), interrupt:
        call()


# ---------------------------------------------------------------- joining


def test_first_call_that_is_interrupted_anywhere_forgets_no_commit(
    tmp_path: Path,
) -> None:
    """A consumer has both its place in the group and the commits of the group, or
    neither."""
    path = store_with(tmp_path / "s")
    with consumer(path, topics=[]) as one:
        one.assign([T0])
        assert len(drain(one, 5)) == 5
        one.commit()
        committed = one.committed(T0)
        assert committed is not None

    def case(interrupt: InterruptAtCall) -> None:
        with consumer(path, topics=[]) as one:
            interrupted(one._core.place.join, interrupt)
            assert one.committed(T0) == committed
            one.assign([T0])
            assert one.position(T0) == committed.offset

    at_each_place(case)


def test_join_that_is_interrupted_anywhere_leaves_nothing_to_the_next_member(
    tmp_path: Path,
) -> None:
    """After an interrupted poll, and another one, the member holds the partitions;
    after its close they are free."""
    path = store_with(tmp_path / "s")

    def case(interrupt: InterruptAtCall) -> None:
        one = consumer(path)
        interrupted(one.poll, interrupt)
        one.poll(timeout_ms=1)
        assert one.assignment() == {T0, T1}
        assert len(one._core.place.member.group.slots.rows) == 2
        one.close()
        with consumer(path) as two:
            two.poll()
            assert two.assignment() == {T0, T1}

    at_each_place(case, step=97)


def test_rows_that_an_interrupted_call_has_taken_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member could take them as long as the member lives."""
    path = store_with(tmp_path / "s")
    take = Slots.take
    with consumer(path) as one:

        def interrupted_behind(slots: Slots, row: int) -> bool:
            take(slots, row)
            raise InterruptAtCall.Interrupt

        with monkeypatch.context() as patch:
            patch.setattr(Slots, "take", interrupted_behind)
            with pytest.raises(InterruptAtCall.Interrupt):
                one.poll()
        member: Membership = one._core.place.member
        assert len(member.group.slots.rows) == 1
        assert not member.holder.held
        member.look()
        assert not member.group.slots.rows
        one.poll(timeout_ms=1)
        assert one.assignment() == {T0, T1}


def test_close_that_is_interrupted_and_made_again_leaves_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even for two interrupts: the second call continues from there."""
    path = store_with(tmp_path / "s")
    one = consumer(path)
    one.poll()
    abandon = Core.abandon

    def interrupt(_: Core) -> None:
        raise InterruptAtCall.Interrupt

    monkeypatch.setattr(Core, "abandon", interrupt)
    with pytest.raises(InterruptAtCall.Interrupt):
        one.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        one.poll()
    monkeypatch.setattr(Core, "abandon", abandon)
    one.close()
    one.close()
    assert one._core.place.member.group.slots.fd < 0


# ---------------------------------------------------------------- a new lock file


def test_member_that_has_ended_is_not_reported_as_stuck(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds even if the lock file was removed meanwhile and lacks the member."""
    path = store_with(tmp_path / "s")
    one = consumer(path)
    one.poll()
    one._core.abandon()  # as a process that is killed
    (path / ".logstore-group-g.lock").unlink()
    with consumer(path) as two:
        two.poll()
        assert two.assignment() == {T0, T1}
    assert "has not polled" not in caplog.text
    one.close()


# ---------------------------------------------------------------- the group's file


@pytest.mark.parametrize("at_once", [False, True], ids=["in steps", "at once"])
@pytest.mark.parametrize("bytes_max", [1 << 20, 500], ids=["", "compacted"])
def test_commit_that_is_interrupted_anywhere_is_known_as_the_file_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
    bytes_max: int,
) -> None:
    """The member knows every commit in the file: otherwise its next compaction of the
    file would drop it."""
    monkeypatch.setattr(OneMember, "at_once", at_once)
    number = 0

    def case(interrupt: InterruptAtCall) -> None:
        nonlocal number
        number += 1
        path = tmp_path / str(number)
        path.mkdir()
        one = OneMember(path)
        for offset in range(4):
            one.commit(offset, durable=True)
        with monkeypatch.context() as patch:
            patch.setattr(group_file_module, "_REWRITE_BYTES", bytes_max)
            patch.setattr(one.file, "_rewrite_at", bytes_max)
            interrupted(lambda: one.commit(9, durable=True), interrupt)
            found = offset_in(path)
            assert found in (3, 9)
            assert one.offset() == found
            for offset in range(20, 30):
                one.commit(offset, T1, durable=True)
            assert one.offset() == offset_in(path) == found
        one.close()

    at_each_place(case, step=4)


# ---------------------------------------------------------------- positions


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_seek_that_is_interrupted_anywhere_is_done_or_undone(tmp_path: Path) -> None:
    """The next records belong to the position, old or new."""
    path = store_with(tmp_path / "s")
    with consumer(path, topics=[], max_poll_records=4) as one:
        one.assign([T0])

        def case(interrupt: InterruptAtCall) -> None:
            one.seek(T0, 0)
            assert one._deliveries.read_ahead(None, 0.1)
            assert one._deliveries.next_read(at_once=False) is not None
            interrupted(lambda: one.seek(T0, 7), interrupt)
            position = one.position(T0)
            assert position in (1, 7)
            assert one.poll(timeout_ms=20_000)[T0][0].offset == position

        at_each_place(case)
