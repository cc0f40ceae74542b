"""Turns: of several threads that wait for the same work, one does it for all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from logstore import _native as native
from logstore.errors import ReentrantCallError


class Work:
    """Work that threads do for each other, and which can be held up."""

    def __init__(self) -> None:
        self.turns = native.Turns(5, "a turn")
        self.wanted = self.done = self.times = 0
        self.running, self.go_on = threading.Event(), threading.Event()

    def get_done(self, upto: int) -> None:
        while self.done < upto:
            with self.turns.take(upto) as is_mine:
                if is_mine:
                    end = self.wanted
                    self.running.set()
                    assert self.go_on.wait(20)
                    self.times += 1
                    self.done = end
                    self.turns.announce(end)


def start(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


def test_one_thread_works_for_all_that_wait() -> None:
    """One of the threads that came during the work works next; the others find it
    done."""
    work = Work()
    threads = []
    for number in range(1, 9):
        work.wanted = number
        threads.append(start(work.get_done, number))
        assert work.running.wait(20)
    time.sleep(0.01)
    work.go_on.set()
    for thread in threads:
        thread.join(20)
    assert work.done == 8
    assert work.times == 2


def test_many_threads_at_once_all_end() -> None:
    work = Work()
    work.go_on.set()
    ended = []

    def repeat(name: int) -> None:
        for _ in range(200):
            work.wanted += 1
            work.get_done(work.wanted)
        ended.append(name)

    for thread in [start(repeat, name) for name in range(12)]:
        thread.join(60)
    assert sorted(ended) == list(range(12))


def test_work_that_fails_leaves_the_turn_to_others() -> None:
    """Its error is for its caller alone."""
    turns, order = native.Turns(5, "a turn"), []
    entered = threading.Event()

    def fail() -> None:
        with pytest.raises(OSError), turns.take(1) as is_mine:
            entered.set()
            time.sleep(0.02)
            order.append(("fails", is_mine))
            raise OSError

    def succeed() -> None:
        assert entered.wait(20)
        with turns.take(1) as is_mine:
            order.append(("succeeds", is_mine))

    threads = [start(fail), start(succeed)]
    for thread in threads:
        thread.join(20)
    assert order == [("fails", True), ("succeeds", True)]


def test_turns_are_in_the_order_of_waiting() -> None:
    turns, order = native.Turns(5, "a turn"), []
    threads = []

    def wait(name: int) -> None:
        with turns.take(1) as is_mine:
            assert is_mine
            order.append(name)

    with turns.take(1):
        for name in range(5):
            threads.append(start(wait, name))
            time.sleep(0.02)
    for thread in threads:
        thread.join(20)
    assert order == list(range(5))


def test_announcement_wakes_those_that_wait_for_no_more() -> None:
    turns, served = native.Turns(5, "a turn"), []

    def wait(upto: int) -> None:
        with turns.take(upto) as is_mine:
            served.append((upto, is_mine))

    with turns.take(0):
        threads = [start(wait, upto) for upto in (1, 5, 9)]
        time.sleep(0.05)
        turns.announce(5)
        for thread in threads[:2]:
            thread.join(20)
        assert sorted(served) == [(1, False), (5, False)]
        assert threads[2].is_alive()
    threads[2].join(20)
    assert served[2] == (9, True)


def test_thread_in_a_signal_handler_does_not_hold_up_others() -> None:
    """They are woken one after the other; it was the first to wait, and continues when
    its handler ends."""
    turns, ended = native.Turns(5, "a turn"), []
    others = threading.Event()

    def wait(name: str) -> None:
        with turns.take(1) as is_mine:
            ended.append((name, is_mine))
        if len(ended) == 4:
            others.set()

    def work() -> None:
        with turns.take(0):
            working.set()
            deadline = time.monotonic() + 20
            while turns.waiting < 5 and time.monotonic() < deadline:
                if turns.waiting == 1 and not threads:
                    threads.extend(start(wait, f"thread {n}") for n in range(4))
                time.sleep(0.002)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert handling.wait(20)
            turns.announce(1)

    def handle(*_: object) -> None:
        handling.set()
        assert others.wait(20)

    working, handling = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        worker = start(work)
        assert working.wait(20)
        with turns.take(1) as is_mine:
            assert not is_mine
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in [worker, *threads]:
        thread.join(20)
    assert sorted(ended) == [(f"thread {n}", False) for n in range(4)]


def test_handler_that_raises_in_a_served_thread_lets_the_others_go_on() -> None:
    turns, ended = native.Turns(5, "a turn"), []
    working, handling, announced = (threading.Event() for _ in range(3))
    threads: list[threading.Thread] = []

    def wait() -> None:
        with turns.take(1) as is_mine:
            ended.append(is_mine)

    def work() -> None:
        with turns.take(0):
            working.set()
            deadline = time.monotonic() + 20
            while turns.waiting < 4 and time.monotonic() < deadline:
                if turns.waiting == 1 and not threads:
                    threads.extend(start(wait) for _ in range(3))
                time.sleep(0.002)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert handling.wait(20)
            turns.announce(1)
            announced.set()

    def handle(*_: object) -> None:
        handling.set()
        assert announced.wait(20)
        raise OSError

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        worker = start(work)
        assert working.wait(20)
        with pytest.raises(OSError), turns.take(1):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in [worker, *threads]:
        thread.join(20)
    assert ended == [False] * 3
    assert turns.waiting == 0


def test_who_gathers_goes_on_when_all_that_were_served_wait_again() -> None:
    """The gathering also ends when the time is over; without any waiter, it lasts less
    long the next time."""
    turns, seconds = native.Turns(5, "a turn"), []

    def wait(upto: int) -> None:
        with turns.take(upto):
            pass

    with turns.take(0):
        thread = start(wait, 1)
        while not turns.waiting:
            time.sleep(0.001)
        turns.announce(1)  # one is served, and does not come back
        thread.join(20)
    for _ in range(2):
        turn = turns.take(2)
        with turn:
            begun = time.monotonic()
            turn.gather(200_000)
            seconds.append(time.monotonic() - begun)
    assert seconds[0] >= 0.19
    assert seconds[1] >= 0.039
    turn = turns.take(3)
    with turn:
        thread = start(wait, 1)
        while not turns.waiting:
            time.sleep(0.001)
        turn.gather(60_000_000)  # it is there: this does not wait at all
    thread.join(20)


def test_turn_inside_of_a_turn_of_the_same_thread_is_refused() -> None:
    turns = native.Turns(5, "a turn")
    assert turns.may_wait
    with turns.take(1):
        assert not turns.may_wait
        with pytest.raises(ReentrantCallError), turns.take(1):
            pass
        turns.announce(1)
        found: list[bool] = []
        start(lambda: found.append(turns.may_wait)).join(20)
        assert found == [True]
    assert turns.may_wait
    with turns.take(1) as is_mine:
        assert is_mine


def test_turn_is_taken_once() -> None:
    turns = native.Turns(5, "a turn")
    turn = turns.take(1)
    with turn, pytest.raises(RuntimeError), turn:
        pass
    with turn as is_mine:
        assert is_mine


def test_turn_that_is_dropped_is_left() -> None:
    turns = native.Turns(5, "a turn")
    turns.take(1).__enter__()
    with turns.take(1) as is_mine:
        assert is_mine


@pytest.mark.parametrize("upto", ["1", None, 1.5, 1 << 64])
def test_wrong_numbers_raise(upto: Any) -> None:
    turns = native.Turns(5, "a turn")
    with pytest.raises((TypeError, OverflowError)):
        turns.take(upto)
    with pytest.raises((TypeError, OverflowError)):
        turns.announce(upto)
    kind: Any = type(turns.take(1))
    with pytest.raises(TypeError):
        kind()


def test_work_waits_for_those_that_were_served_before() -> None:
    """The work waits until they are back, or the time is over."""
    turns = native.Turns(5, "a turn")
    took, back = [], threading.Event()

    def wait(upto: int) -> None:
        with turns.take(upto):
            pass

    def gather(microseconds: int) -> float:
        turn = turns.take(9)
        with turn as is_mine:
            assert is_mine
            began = time.monotonic()
            turn.gather(microseconds)
            back.set()
            turns.announce(9)
            return time.monotonic() - began

    assert gather(20_000_000) < 10  # no waiter was served
    with turns.take(0):
        threads = [start(wait, 1) for _ in range(3)]
        while not took:
            time.sleep(0.05)
            turns.announce(5)
            took = [t for t in threads if not t.is_alive()]
    for thread in threads:
        thread.join(20)
    with turns.take(0):
        threads = [start(wait, 1) for _ in range(3)]
        time.sleep(0.1)
        turns.announce(5)
    assert gather(30_000) >= 0.029  # none of them is back
    with turns.take(0):
        threads += [start(wait, 1) for _ in range(3)]
        time.sleep(0.1)
        turns.announce(5)
    timers = [threading.Timer(0.05, wait, (1,)) for _ in range(3)]
    for timer in timers:
        timer.start()
    assert gather(20_000_000) < 10  # all of them are
    for thread in [*threads, *timers]:
        thread.join(20)


def test_gathering_outside_of_a_turn_raises() -> None:
    turn = native.Turns(5, "a turn").take(1)
    with pytest.raises(RuntimeError):
        turn.gather(1)
    with turn:
        turn.gather(0)
        turn.gather(-1)
        with pytest.raises(TypeError):
            turn.gather("1")  # type: ignore[arg-type]


# ------------------------------------------------------------------ signals, forks


class Stop(Exception):
    pass


@pytest.fixture
def on_alarm() -> Any:
    before = signal.getsignal(signal.SIGALRM)

    def use(handler: Callable[..., object]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    yield use
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def held(turns: native.Turns, until: threading.Event) -> threading.Thread:
    """A thread that works until an event."""
    entered = threading.Event()

    def hold() -> None:
        with turns.take(0):
            entered.set()
            assert until.wait(20)

    thread = start(hold)
    assert entered.wait(20)
    return thread


def test_handler_that_raises_ends_the_waiting(on_alarm: Any) -> None:
    """It leaves nothing: the next ones work."""
    turns, until = native.Turns(5, "a turn"), threading.Event()
    thread = held(turns, until)

    def stop() -> None:
        raise Stop

    on_alarm(stop)
    with pytest.raises(Stop), turns.take(1):
        raise AssertionError("it was nobody's turn")
    until.set()
    thread.join(20)
    with turns.take(1) as is_mine:
        assert is_mine


def test_handler_that_takes_a_turn_in_a_waiting_thread_gets_one(on_alarm: Any) -> None:
    """It gets one even if the thread below it would have been next."""
    turns, until = native.Turns(5, "a turn"), threading.Event()
    thread = held(turns, until)
    order: list[str] = []

    def inner() -> None:
        until.set()  # the other thread leaves while this handler runs
        thread.join(20)
        with turns.take(2) as is_mine:
            order.append(f"inner {is_mine}")

    on_alarm(inner)
    with turns.take(1) as is_mine:
        order.append(f"outer {is_mine}")
    assert order == ["inner True", "outer True"]


def test_handler_that_waits_is_served(on_alarm: Any) -> None:
    turns, until = native.Turns(5, "a turn"), threading.Event()
    thread = held(turns, until)
    order: list[str] = []

    def inner() -> None:
        timer = threading.Timer(0.05, lambda: turns.announce(5))
        timer.start()
        with turns.take(2) as is_mine:
            order.append(f"inner {is_mine}")

    on_alarm(inner)
    with turns.take(1) as is_mine:
        order.append(f"outer {is_mine}")
    assert order == ["inner False", "outer False"]
    until.set()
    thread.join(20)


def test_child_of_a_fork_waits_for_nobody() -> None:
    turns, until = native.Turns(5, "a turn"), threading.Event()
    thread = held(turns, until)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with turns.take(1) as is_mine:
                status = 0 if is_mine else 2
            with turns.take(1) as is_mine:
                status = status if is_mine else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    until.set()
    thread.join(20)
    with turns.take(1) as is_mine:
        assert is_mine


def test_fork_of_a_handler_in_a_waiting_thread_goes_on_in_both(on_alarm: Any) -> None:
    turns, until = native.Turns(5, "a turn"), threading.Event()
    thread = held(turns, until)
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())
        if children[0]:
            until.set()

    on_alarm(fork)
    with turns.take(1) as is_mine:
        if not children[0]:
            os._exit(0 if is_mine else 2)
        assert is_mine
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    thread.join(20)


# ------------------------------------------------------------------ the order of locks


def test_thread_that_works_holds_a_rank() -> None:
    """A call from inside its work does not wait for a thread that may wait for it."""
    turns, other = native.Turns(5, "a turn"), native.Turns(5, "another turn")
    lower, higher = native.Mutex(1, "a close"), native.Mutex(6, "a sync")
    with turns.take(1) as is_mine:
        assert is_mine
        assert not turns.may_wait
        with pytest.raises(ReentrantCallError), lower:
            pass
        with higher, pytest.raises(ReentrantCallError), other.take(1):
            pass
        with other.take(1) as is_mine:
            assert is_mine  # the lock is free: there is no wait
        assert native.held()
    assert turns.may_wait
    assert not native.held()
    with lower:
        pass


def test_turn_that_another_thread_has_is_not_waited_for_from_inside_another_one() -> (
    None
):
    """A call inside another store is refused, too: the two would wait for each
    other."""
    turns, own = native.Turns(5, "a turn"), native.Turns(5, "its own turn")
    foreign = native.Mutex(1, "another store", 7)
    begun, until = threading.Event(), threading.Event()

    def work() -> None:
        with turns.take(1):
            begun.set()
            assert until.wait(20)

    thread = start(work)
    assert begun.wait(20)
    for held in (own.take(1), foreign):
        with held, pytest.raises(ReentrantCallError, match="a turn"), turns.take(1):
            pass
    until.set()
    thread.join(20)
    with turns.take(1) as is_mine:
        assert is_mine


def test_deferred_work_is_done_when_the_turn_ends() -> None:
    turns, done = native.Turns(5, "a turn"), []
    with turns.take(1):
        native.defer(done.append, 1)
        assert done == []
    assert done == [1]


def test_turns_have_a_rank() -> None:
    with pytest.raises(ValueError, match=r"rank is outside \[0, 31\]"):
        native.Turns(32, "a turn")
    with pytest.raises(TypeError):
        native.Turns()  # type: ignore[call-arg]
