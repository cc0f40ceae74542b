"""How a process waits for the answers to its requests: its checks, and the events that
wake it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import logstore
from faults.tracing import PENDING, make_pending
from logstore import Store
from logstore.io import layout
from logstore.io.checkpoint import process_requests
from logstore.io.checkpoint.process_requests import ProcessFile
from logstore.io.wakeups import Wakeups
from logstore.store.hand_in import requester, sharing
from logstore.store.partition import shared_appends
from logstore.store.publication.group_commit import GroupCommit
from support import handing_in
from support.handing_in import (
    SERVING,
    Later,
    hold_back,
    processes_in,
    staged_by,
    submit,
    until,
    waiting_in,
)

# Fixtures.
path, owner, reader = handing_in.path, handing_in.owner, handing_in.reader
elsewhere = handing_in.elsewhere

OWNER = """
import sys
import logstore
config = logstore.StoreConfig(publish_for_others=True)
with logstore.open(sys.argv[1], config=config):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each check of the record of the lock; checks by time do not
    happen."""
    found: list[None] = []
    real = requester.state_of

    def state_of(*arguments: Any) -> Any:
        found.append(None)
        return real(*arguments)

    monkeypatch.setattr(requester, "state_of", state_of)
    monkeypatch.setattr(sharing, "state_of", state_of)
    monkeypatch.setattr(requester, "_LOOK_S", handing_in.LONG_MS / 1000)
    return found


def test_owner_that_was_seen_is_not_looked_for_again(
    path: str, looks: list[None]
) -> None:
    """Appends and staged batches do not check again."""
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        for number in range(20):
            assert shared.topic("a")[0].append(b"v") == number
        for sequence in range(1, 5):
            assert submit(shared, staged_by(shared, 1, sequence), sequence).is_new
        assert owner.topic("a")[0].end_offset == 24
    assert len(looks) == 1


def test_end_of_an_owner_is_seen_by_its_report(path: str, looks: list[None]) -> None:
    """The end is noticed before a request, and during its wait; the next one is looked
    for."""
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        for number in range(0, 6, 2):
            with logstore.open(path, config=SERVING):
                assert partition.append(b"v") == number
                assert shared._sharing._requester.has_owner()  # type: ignore
            before = len(looks)
            assert partition.append(b"v") == number + 1
            assert len(looks) > before


def test_request_that_a_killed_owner_has_is_served(path: str) -> None:
    """The owner was seen before, and is stopped meanwhile."""
    with (
        subprocess.Popen(
            [sys.executable, "-c", OWNER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        logstore.open(path, shared=True) as shared,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        partition = shared.topic("a")[0]
        assert partition.append(b"0") == 0
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        call = Later(lambda: partition.append(b"1"))
        until(lambda: waiting_in(path))
        process.kill()
        assert call.get() == 1


def test_free_lock_is_taken_at_once_though_an_owner_was_seen(
    path: str, reader: Store
) -> None:
    """This holds for any time limit."""
    with logstore.open(path, config=SERVING):
        assert submit(reader, staged_by(reader), 1).is_new
    assert submit(reader, staged_by(reader, 1, 2), 2, timeout_ms=0).is_new


def test_reports_that_an_interrupt_has_lost_may_have_been_of_the_end_of_the_owner(
    path: str, owner: Store, looks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Wakeups.taken_within
    with logstore.open(path, shared=True) as shared:
        mine = shared._sharing._requester  # type: ignore[union-attr]
        partition = shared.topic("a")[0]
        assert not mine.has_owner()
        assert partition.append(b"0") == 0
        assert mine.has_owner()

        def taken_within(self: Wakeups, seconds: float) -> Any:
            real(self, seconds)
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(Wakeups, "taken_within", taken_within)
            with pytest.raises(KeyboardInterrupt):
                partition.append(b"1")
        assert not mine.has_owner()
        before = len(looks)
        assert partition.append(b"2") in (1, 2)
        assert len(looks) == before + 1
    assert owner.topic("a")[0].end_offset in (2, 3)


def test_reports_that_the_system_has_dropped_may_be_of_the_end_of_the_owner(
    path: str, owner: Store, looks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Wakeups.taken_within
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        assert partition.append(b"0") == 0

        def taken_within(self: Wakeups, seconds: float) -> Any:
            real(self, seconds)

        monkeypatch.setattr(Wakeups, "taken_within", taken_within)
        assert partition.append(b"1") == 1
        before = len(looks)
        assert partition.append(b"2") == 2
        assert len(looks) == before + 1


def test_every_thread_is_woken_by_its_answer(
    path: str, looks: list[None], elsewhere: None
) -> None:
    """This includes threads that wait for a slot: there are more than slots. None waits
    until its own check by time."""
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        partition = shared.topic("a")[0]
        assert partition.append(b"first") == 0
        for _ in range(3):
            begun = time.monotonic()
            with owner._publishing.publisher.lock:
                calls = [Later(lambda: partition.append(b"v")) for _ in range(80)]
                until(lambda: len(waiting_in(path)) == 64)
            offsets = [call.get() for call in calls]
            assert len(set(offsets)) == 80
            assert time.monotonic() - begun < requester._LOOK_S / 2
        assert owner.topic("a")[0].end_offset == 241


def test_look_for_an_owner_wakes_those_whose_answers_it_finds(
    path: str, looks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check takes the report while no thread waits for one."""
    hold_back(monkeypatch)
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        mine = shared._sharing._requester  # type: ignore[union-attr]
        hand_in = owner._publishing.hand_in
        with mine._reading:
            call = Later(lambda: shared.topic("a")[0].append(b"v"))
            until(lambda: waiting_in(path))
            until(lambda: mine._seen is mine._era)
            hand_in.serve()
        assert mine.has_owner()
        assert call.get() == 0


@pytest.mark.parametrize("kind", ["process", "answers"])
def test_files_that_somebody_has_removed_are_made_anew(
    path: str, owner: Store, kind: str
) -> None:
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        assert partition.append(b"0") == 0
        (before,) = processes_in(path)
        Path(path, f".logstore-{kind}-{before}").unlink()
        assert partition.append(b"1") == 1
        assert before not in processes_in(path) or kind == "answers"
        assert partition.append(b"2") == 2
    until(lambda: not processes_in(path))


def test_request_in_removed_files_does_not_end_another_of_its_number(
    path: str, elsewhere: None
) -> None:
    """The owner still has them open, and answers both."""
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        mine = shared._sharing._requester  # type: ignore[union-attr]
        partition = shared.topic("a")[0]
        assert partition.append(b"v") == 0
        with owner._publishing.publisher.lock:
            calls = [Later(lambda: partition.append(b"v"))]
            until(lambda: waiting_in(path) == [2])
            (before,) = processes_in(path)
            Path(path, layout.PROCESS_PREFIX + before).unlink()
            for count in (1, 2):
                calls.append(Later(lambda: partition.append(b"v")))
                until(lambda n=count: len(waiting_in(path)) == n)
        assert {call.get() for call in calls} == {1, 2, 3}
        assert not mine._pending


def test_files_that_cannot_be_made_anew_are_an_error_of_this_call(
    path: str, owner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        assert partition.append(b"0") == 0
        (before,) = processes_in(path)
        Path(path, layout.PROCESS_PREFIX + before).unlink()
        with monkeypatch.context() as during:
            during.setattr(ProcessFile, "__init__", refuse)
            with pytest.raises(logstore.DiskFullError, match="handed in"):
                partition.append(b"1")
        assert partition.append(b"2") == 1


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but raised by these tests only."""


def test_interrupt_at_any_instruction_of_an_append_leaves_the_next_one_whole(
    path: str, owner: Store
) -> None:
    """The interrupted append is there once, or not at all, and not at all if the error
    says so. The interrupt has the names for a query, unless it came before the request,
    or after the answer. No lock is held, no number is reused, and the files stay in
    use."""
    files = (requester.__file__, process_requests.__file__, shared_appends.__file__)
    outcomes: dict[bytes, str] = {}
    # Places of interrupts without these names.
    nameless: dict[bytes, str] = {}
    seen = at = 0

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename in files:
            raise Interrupt

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if event == "opcode" and seen == at:
            make_pending()
        return trace

    handler = signal.signal(PENDING, handle)
    try:
        with logstore.open(path, shared=True) as shared:
            partition = shared.topic("a")[0]
            partition.append(b"first")
            mine = shared._sharing._requester  # type: ignore[union-attr]
            while seen >= at:
                at, seen = at + 1, 0
                value = b"%d" % at
                sys.settrace(trace)
                try:
                    partition.append(value)
                    outcomes[value] = "written"
                except Interrupt as error:
                    outcomes[value] = vars(error).get("outcome", "unknown")
                    if "identity" not in vars(error):
                        frames = traceback.extract_tb(error.__traceback__)
                        nameless[value] = next(
                            one.filename
                            for one in reversed(frames)
                            if one.filename in files
                        )
                finally:
                    sys.settrace(None)
                if at % 20 == 0:
                    assert Later(lambda: partition.append(b"other")).get()
            assert len(processes_in(path)) == 1
            partition.append(b"last")
            # A call interrupted after its request ends with its answer.
            assert not mine._pending
            found = [record.value for record in partition.read()]
    finally:
        signal.signal(PENDING, handler)
    assert at > 300
    assert "not written" in outcomes.values() or "unknown" in outcomes.values()
    for value, outcome in outcomes.items():
        count = found.count(value)
        assert count <= 1
        assert (outcome == "written") <= count
        assert not (outcome == "not written" and count)
        assert not count or nameless.get(value) in (None, shared_appends.__file__)


def test_time_of_a_call_is_over_while_its_own_process_publishes(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be at a commit that takes long. Nothing of it is written,
    until it is made again."""
    assert submit(reader, staged_by(reader)).is_new  # the lock is kept from now on
    begun, ends = threading.Event(), threading.Event()
    real = GroupCommit._commit

    def commit(self: GroupCommit, *arguments: Any) -> None:
        begun.set()
        assert ends.wait(handing_in.LONG_MS / 1000)
        real(self, *arguments)

    monkeypatch.setattr(GroupCommit, "_commit", commit)
    first, second = staged_by(reader, 1, 2), staged_by(reader, 1, 3)
    call = Later(lambda: submit(reader, first, 2, timeout_ms=None))
    assert begun.wait(handing_in.LONG_MS / 1000)
    for timeout_ms in (0, 20):
        with pytest.raises(logstore.PublicationTimeoutError) as caught:
            submit(reader, second, 3, timeout_ms=timeout_ms)
        assert caught.value.outcome == "not written"
    ends.set()
    assert call.get().is_new
    assert reader.published("x") == 2
    assert submit(reader, second, 3).is_new
    assert len(list(reader.topic("a")[0].read())) == 4


def test_call_inside_a_publication_of_its_thread_says_so(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may make it: it must not wait for itself."""
    assert submit(reader, staged_by(reader)).is_new
    real, errors = GroupCommit._commit, list[BaseException]()
    inner = staged_by(reader, 1, 3)

    def commit(self: GroupCommit, *arguments: Any) -> None:
        try:
            submit(reader, inner, 3)
        except logstore.errors.ReentrantCallError as error:
            errors.append(error)
        real(self, *arguments)

    monkeypatch.setattr(GroupCommit, "_commit", commit)
    assert submit(reader, staged_by(reader, 1, 2), 2).is_new
    assert len(errors) == 1
    assert reader.published("x") == 2
