"""The one instance of inotify of a process, and the threads that wait for its
reports."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from faults.tracing import PENDING, make_pending
from logstore import _native as native
from logstore.io import reports as module
from logstore.io.directory import Directory
from logstore.io.files import Files, Report
from logstore.io.reports import Inbox, Reports
from logstore.io.wakeups import Wakeups, Watch
from support.handing_in import Later
from support.notifications import instances, watches

LONG_S = 10.0


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but raised by these tests only."""


@pytest.fixture
def root(tmp_path: Path) -> Directory:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return Directory.open_root(Files(), str(tmp_path))


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Reports of the process, as if nothing else waited in it: other tests may have
    left stores open."""
    gc.collect()
    monkeypatch.delitem(module._shared, "", raising=False)
    return module.reports_of(Files())


class Waiter(threading.Thread):
    """A thread that notes the reports that wake it."""

    def __init__(self, root: Directory, *names: str) -> None:
        super().__init__(daemon=True)
        self.wakeups = Wakeups(root.files, [root.child(name) for name in names])
        self.directories = [Path(root.path, name) for name in names]
        self.found: list[str] = []
        self.looks = 0
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            self.wakeups.wait(LONG_S)
            changes = self.wakeups.take()
            if changes is None:
                self.looks += 1
                self.found += [name for d in self.directories for name in os.listdir(d)]
            else:
                self.found += [name for _, name in changes]

    def has_found(self, name: str) -> bool:
        return name in self.found

    def end(self) -> None:
        self.is_over = True
        self.wakeups.wake()
        self.join(LONG_S)
        assert not self.is_alive()


def until(condition: Callable[[], object], seconds: float = LONG_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def touch(root: Directory, *path: str) -> None:
    Path(root.path, *path).touch()


# ------------------------------------------------------------------ one instance


def test_all_that_wait_share_one_instance(root: Directory, shared: Reports) -> None:
    """Any number of waiters share it; their watches end with them."""
    before, watched = instances(), watches()
    many = [Wakeups(root.files, [root.child("a"), root]) for _ in range(300)]
    assert instances() == before
    assert watches() == watched + 2
    while many:
        many.pop()
        assert watches() == watched + (2 if many else 0)
    assert shared._numbers == {}


def test_each_has_the_reports_of_its_own_watches(root: Directory) -> None:
    """Any of them may read them."""
    a, b = Wakeups(root.files, [root.child("a")]), Wakeups(root.files)
    number = b.add(Watch(root.child("b")))
    touch(root, "b", "x")
    assert not a.wait(0.01)
    assert a.take() == []
    assert b.has_changes
    assert b.take() == [(number, "x")]
    touch(root, "a", "y")
    assert not b.wait(0)
    assert [name for _, name in a.take() or ()] == ["y"]


def test_two_watches_of_one_directory_report_to_each_what_it_has_asked_for(
    root: Directory,
) -> None:
    """The system has one watch for both, with the changes that either of them needs."""
    renames = Wakeups(root.files, watches=[Watch(root, native.WATCH_RENAMES)])
    entries, again = Wakeups(root.files, [root]), Wakeups(root.files, [root])
    touch(root, "x")
    assert renames.take() == []
    assert entries.take()
    Path(root.path, "x").rename(Path(root.path, "y"))
    assert [name for _, name in renames.take() or ()] == ["y"]
    assert again.take()
    entries.take()
    entries.close()
    touch(root, "z")
    assert again.take()
    again.close()
    Path(root.path, "y").rename(Path(root.path, "x"))
    assert [name for _, name in renames.take() or ()] == ["x"]


def test_end_of_a_watched_file_is_reported_once_to_each(root: Directory) -> None:
    """Its number is forgotten, and another file gets another one."""
    path = Path(root.path, "file")
    path.touch()
    with path.open() as file:
        watch = Watch(file.fileno(), native.WATCH_WRITES)
        one, two = (Wakeups(root.files) for _ in range(2))
        numbers = {each.add(watch) for each in (one, two)}
        path.unlink()
    (number,) = numbers
    for each in (one, two):
        assert each.take() == [(number, "")]
        assert each.take() == []
    path.touch()
    with path.open() as file:
        assert one.add(Watch(file.fileno(), native.WATCH_WRITES)) not in numbers
    assert number is not None
    one.remove(number)
    two.close()


def test_inbox_that_is_not_emptied_holds_no_more_than_a_number(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full inbox means that anything may have changed."""
    monkeypatch.setattr(module, "_CHANGES_MAX", 10)
    idle, other = Wakeups(root.files, [root]), Wakeups(root.files, [root])
    for number in range(12):
        touch(root, str(number))
        other.take()
    assert len(idle._inbox._changes) <= 10
    assert idle.take() is None
    touch(root, "x")
    assert [name for _, name in idle.take() or ()][:1] == ["x"]


def test_limit_of_instances_lets_who_waits_look_by_time(root: Directory) -> None:
    """Waiters look by time until an instance is free."""
    code = """if True:
        import errno, os, sys
        from logstore.io.files import Files
        from logstore.io.directory import Directory
        from logstore.io.wakeups import Wakeups
        from logstore import _native as native
        real = native.new_watch
        def refuse():
            raise OSError(errno.EMFILE, "too many")
        native.new_watch = refuse
        root = Directory.open_root(Files(), sys.argv[1])
        wakeups = Wakeups(root.files, [root])
        assert not wakeups.is_reporting
        assert wakeups.wait(60)
        assert wakeups.take() is None
        native.new_watch = real
        wakeups = Wakeups(root.files, [root])
        assert wakeups.is_reporting
        assert not wakeups.wait(0)
    """
    subprocess.run([sys.executable, "-c", code, root.path], check=True)


# ------------------------------------------------------------------ --- reading


def test_thread_that_sleeps_is_woken_by_the_one_that_reads(
    root: Directory, shared: Reports
) -> None:
    """It reads when the reading thread has ended its wait."""
    one, two = Waiter(root, "a"), Waiter(root, "b")
    one.start()
    until(lambda: shared._turn)
    two.start()
    until(lambda: shared._asleep)
    touch(root, "b", "x")
    until(lambda: two.found)
    touch(root, "a", "y")
    until(lambda: one.found)
    one.end()
    touch(root, "b", "z")
    until(lambda: "z" in two.found)
    two.end()
    assert not shared._turn
    assert not shared._asleep


def test_reports_that_another_call_has_read_wake_the_reader(
    root: Directory, shared: Reports
) -> None:
    """The reader waits for the descriptor, which is not readable any more."""
    one, other = Waiter(root, "a"), Wakeups(root.files, [root])
    one.start()
    until(lambda: one.wakeups._inbox.end_read)
    number = next(iter(shared._numbers[one.wakeups._reference]))
    shared._put([(number, 0x100, "x")])
    until(lambda: one.found)
    assert other.take() == []
    one.end()


def test_wake_ends_the_wait_of_the_reader_and_of_others(root: Directory) -> None:
    """A later wait ends, too."""
    for count in (1, 3):
        many = [Waiter(root, "a") for _ in range(count)]
        for one in many:
            one.wakeups.wake()
            assert one.wakeups.wait(LONG_S)
            one.start()
        for one in many:
            one.end()


def test_no_wakeup_is_lost(root: Directory) -> None:
    """Several threads wait, with and without a limit, while others read, add and end
    watches: each created file wakes its waiters at once."""
    rng = random.Random(5)
    names = [str(number) for number in range(6)]
    for name in names:
        Path(root.path, name).mkdir()
    many = [Waiter(root, name) for name in names for _ in range(2)]
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.is_set():
            one = Wakeups(root.files, [root.child(rng.choice(names)), root])
            one.wait(rng.choice((0, 0.0002, 0.002)))
            one.take()
            if rng.random() < 0.5:
                one.close()

    disturbing = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in (*many, *disturbing):
        thread.start()
    slowest = 0.0
    for number in range(400):
        name, file = rng.choice(names), f"file{number}"
        begun = time.monotonic()
        touch(root, name, file)
        for one in many[2 * int(name) : 2 * int(name) + 2]:
            until(partial(one.has_found, file))
        slowest = max(slowest, time.monotonic() - begun)
    is_over.set()
    for thread in disturbing:
        thread.join(LONG_S)
    for one in many:
        one.end()
    assert slowest < module._SLEEP_S_MAX / 2  # not by the look once a second


# ------------------------------------------------------------------ what is lost


class Lossy(Files):
    """Reports that are lost, or whose read fails or is interrupted, once."""

    failure: BaseException | None = None
    is_lost = False


def lossy(monkeypatch: pytest.MonkeyPatch) -> Lossy:
    """The calls of `Files`, which fail as the result says."""
    plan = Lossy()
    reports, within = Files.reports, Files.reports_within

    def spoiled(call: Callable[..., Any], *arguments: Any) -> Any:
        found = call(*arguments)
        failure, plan.failure = plan.failure, None
        if failure is not None:
            raise failure
        is_lost, plan.is_lost = plan.is_lost, False
        return None if is_lost else found

    monkeypatch.setattr(Files, "reports", lambda *more: spoiled(reports, *more))
    monkeypatch.setattr(Files, "reports_within", lambda *more: spoiled(within, *more))
    return plan


@pytest.mark.parametrize("seconds", [0, LONG_S])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_interrupt_after_a_read_lets_everyone_look(
    root: Directory, monkeypatch: pytest.MonkeyPatch, kind: Any, seconds: float
) -> None:
    """The reports are gone from the system, and are in no inbox."""
    one, two = (Wakeups(root.files, [root.child(name)]) for name in "ab")
    plan = lossy(monkeypatch)
    touch(root, "a", "x")
    touch(root, "b", "x")
    plan.failure = kind(errno.EIO, "interrupted")
    if kind is OSError:
        one.wait(seconds)
    else:
        with pytest.raises(KeyboardInterrupt):
            one.wait(seconds)
    for each in (one, two):
        assert each.wait(0)
        assert each.take() is None
        assert each.take() == []


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_read_that_was_interrupted_twice_lets_everyone_look(
    root: Directory, shared: Reports, seconds: float
) -> None:
    """The second one came before all were informed: the next reader informs them."""
    one, two = (Wakeups(root.files, [root.child(name)]) for name in "ab")
    shared._unfinished |= {module._TURN: 0.0, object(): 0.0}
    assert one.wait(seconds)
    assert two.take() is None
    assert one.take() is None
    assert one.take() == []


def test_queue_of_the_system_that_runs_over_lets_everyone_look(
    root: Directory,
) -> None:
    """No more than a number of reports are kept without a reader."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    one, two = (Wakeups(root.files, [root.child(name)]) for name in "ab")
    files = [os.open(Path(root.path, "a", n), os.O_CREAT | os.O_RDWR) for n in "ab"]
    for _ in range(limit // 2 + 2):
        for file in files:
            os.write(file, b"x")
    for file in files:
        os.close(file)
    assert two.wait(LONG_S) or two.wait(0)
    two.read()
    assert two.take() is None
    assert one.take() is None


@pytest.mark.parametrize("is_asleep", [False, True])
def test_wait_that_is_interrupted_at_any_instruction_keeps_nobody_from_reading(
    root: Directory, shared: Reports, monkeypatch: pytest.MonkeyPatch, is_asleep: bool
) -> None:
    """The interrupt comes while it reads, or sleeps while another one reads; the
    interrupted waiter may live on, and not wait again."""
    monkeypatch.setattr(module, "_SLEEP_S_MAX", LONG_S)
    seen = at = interrupted = 0

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == module.__file__:
            raise Interrupt

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal seen
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if event == "opcode" and seen == at:
            make_pending()
        return trace

    handler = signal.signal(PENDING, handle)
    one, other = (Wakeups(root.files, [root.child(name)]) for name in "ab")
    reader = Waiter(root, "b")
    if is_asleep:
        reader.start()
        until(lambda: shared._turn)
    try:
        while seen >= at:
            at, seen = at + 1, 0
            touch(root, "a", f"file{at}")
            sys.settrace(trace)
            try:
                one.wait(LONG_S)
            except Interrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            assert Later(partial(has_report, other, root, f"file{at}")).get()
            one.take()
    finally:
        signal.signal(PENDING, handler)
        if is_asleep:
            reader.end()
    assert interrupted > 50
    assert not shared._turn
    assert not shared._asleep


def has_report(wakeups: Wakeups, root: Directory, name: str) -> bool:
    """Whether a wait in this thread ends with a report of the file that it makes
    now."""
    wakeups.take()
    touch(root, "b", name)
    wakeups.wait(LONG_S / 2)
    changes = wakeups.take()
    return changes is None or name in [each for _, each in changes]


def test_reader_that_puts_nothing_into_inboxes_delays_others_for_a_second(
    root: Directory, shared: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others look by themselves."""
    monkeypatch.setattr(module, "_SLEEP_S_MAX", 0.01)
    stuck = module._Wait(Inbox())
    stuck.thread = -1
    shared._turn[module._TURN] = weakref.ref(stuck)
    assert has_report(Wakeups(root.files, [root.child("b")]), root, "x")


def test_signal_handler_may_wait_inside_a_wait(root: Directory) -> None:
    """The handler reads, too, and the other wait of its thread ends."""
    outer, inner = (Wakeups(root.files, [root.child(name)]) for name in "ab")
    within, calls = Files.reports_within, []

    def reports_within(self: Files, *more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            touch(root, "a", "x")
            touch(root, "b", "y")
            assert inner.wait(LONG_S)
            assert inner.take() is None  # the other read is not finished
        return within(self, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Files, "reports_within", reports_within)
        assert outer.wait(LONG_S)
    assert outer.has_changes


# ------------------------------------------------------------------ watches


def test_report_that_comes_before_its_watch_is_noted_is_not_missed(
    root: Directory, shared: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads at that moment."""
    watch = Files.watch

    def reported(self: Files, *more: Any) -> int:
        number = watch(self, *more)
        touch(root, "a", "x")
        shared.read()
        return number

    monkeypatch.setattr(Files, "watch", reported)
    wakeups = Wakeups(root.files, [root.child("a")])
    assert wakeups.take() is None


def test_watch_whose_addition_was_interrupted_ends_with_its_first_report(
    root: Directory, shared: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No user will have it."""
    watch, before = Files.watch, watches()

    def interrupted(self: Files, *more: Any) -> int:
        watch(self, *more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Files, "watch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Wakeups(root.files, [root.child("a")])
    assert watches() == before + 1
    touch(root, "a", "x")
    Wakeups(root.files, [root]).take()
    Wakeups(root.files, [root]).close()
    assert watches() == before


def test_watch_is_not_added_while_one_is_removed(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would give the new watch the number of the old one, which then
    ends."""
    old = Wakeups(root.files, [root.child("a")])
    unwatch, found = Files.unwatch, []

    def slow(self: Files, *more: Any) -> None:
        thread = threading.Thread(
            target=lambda: found.append(Wakeups(root.files, [root.child("a")]))
        )
        thread.start()
        thread.join(0.02)
        assert not found
        unwatch(self, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "unwatch", slow)
        old.close()
    until(lambda: found)
    touch(root, "a", "x")
    assert found[0].take()


def test_watch_is_refused_inside_the_addition_of_another(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer or a signal handler must not wait for a call of its thread."""
    watch, found = Files.watch, list[Wakeups]()

    def nested(self: Files, *more: Any) -> int:
        if not found:
            found.append(Wakeups(root.files))
            assert found[0].add(Watch(root.child("b"))) is None
            found[0].close()
        return watch(self, *more)

    monkeypatch.setattr(Files, "watch", nested)
    assert Wakeups(root.files, [root.child("a")]).is_reporting


# ------------------------------------------------------------------ forks


def test_child_of_a_fork_takes_no_reports_of_its_parent(root: Directory) -> None:
    """A waiter of the parent looks by time; a new one has another instance."""
    wakeups = Wakeups(root.files, [root.child("a")])
    asleep = Waiter(root, "b")
    asleep.start()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            touch(root, "a", "x")
            assert wakeups.is_inherited
            assert not wakeups.is_reporting
            assert wakeups.fd == -1
            assert wakeups.wait(LONG_S)
            assert wakeups.take() is None
            wakeups.close()
            assert instances() == 0
            mine = Wakeups(root.files, [root.child("a")])
            assert instances() == 1
            touch(root, "a", "y")
            assert mine.wait(LONG_S)
            assert [name for _, name in mine.take() or ()][:1] == ["y"]
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert wakeups.wait(LONG_S)
    assert {name for _, name in wakeups.take() or ()} == {"x", "y"}
    touch(root, "b", "z")
    until(lambda: "z" in asleep.found)
    asleep.end()


def test_reports_of_replaced_calls_are_their_own(root: Directory) -> None:
    """So tests see each call of the stores that they open, and no other."""

    class Replaced(Files):
        def reports(self, fd: int) -> list[Report]:
            return [*(super().reports(fd) or ())]

    shared = module.reports_of(Files())
    assert module.reports_of(Files()) is shared
    assert module.reports_of(Replaced()) is not shared
