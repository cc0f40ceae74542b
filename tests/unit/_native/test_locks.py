"""The locks of the engine: order, re-entry, interrupts, deferred calls, forks."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native import _locks
from logstore._native.locks import wait_for_end
from logstore.errors import ReentrantCallError
from logstore.io.parallel import side_by_side


class Interrupt(Exception):
    pass


def held_by_another(mutex: native.Mutex, seconds: float = 0.3) -> threading.Thread:
    begun = threading.Event()

    def hold() -> None:
        with mutex:
            begun.set()
            time.sleep(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    return thread


def is_free(mutex: native.Mutex) -> bool:
    """Whether another thread could take it now."""
    found = []

    def look() -> None:
        with mutex.attempt() as taken:
            found.append(taken)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_mutex_excludes_other_threads() -> None:
    """A thread without the lock waits until it is free."""
    mutex = native.Mutex(3, "a lock")
    thread = held_by_another(mutex)
    begin = time.monotonic()
    with mutex:
        waited = time.monotonic() - begin
    thread.join()
    assert waited > 0.1


def test_mutex_entered_again_by_its_thread_raises() -> None:
    """A second entry would wait for itself."""
    mutex = native.Mutex(3, "the lock of a test")
    with mutex:
        with pytest.raises(ReentrantCallError, match="the lock of a test"), mutex:
            pass
        assert mutex.is_mine
    assert not mutex.is_mine
    assert is_free(mutex)


def test_mutex_of_lower_rank_is_refused() -> None:
    """Waiting for a lower rank could be a circle of waiters, and the holder of a higher
    one is in the middle of something."""
    low, high = native.Mutex(3, "low"), native.Mutex(5, "high")
    with high:
        with pytest.raises(ReentrantCallError, match="low"), low:
            pass
        assert not low.is_mine
        with low.attempt() as taken:
            assert taken
    with low, high:
        pass


def test_mutex_of_the_same_rank_is_tried_and_not_waited_for() -> None:
    """Two threads could hold one each, and want the other."""
    one, other = native.Mutex(3, "one"), native.Mutex(3, "other")
    with one, other:
        assert other.is_mine
    thread = held_by_another(other)
    with one, pytest.raises(ReentrantCallError, match="other"), other:
        pass
    thread.join()


def test_mutex_of_higher_rank_is_waited_for() -> None:
    low, high = native.Mutex(3, "low"), native.Mutex(5, "high")
    thread = held_by_another(high)
    with low, high:
        assert low.top == 5
    assert low.top == -1
    assert not native.held()
    thread.join()


def test_mutex_of_another_group_is_tried_and_not_waited_for() -> None:
    """Ranks order the locks of one store; two stores have no order."""
    here, there = native.Mutex(5, "here", 1), native.Mutex(3, "there", 2)
    with here, there:
        assert (here.top, there.top) == (5, 3)
        with pytest.raises(ReentrantCallError), here:
            pass
    thread = held_by_another(there)
    with here, pytest.raises(ReentrantCallError, match="there"), there:
        pass
    thread.join()
    assert not native.held()


def test_locks_of_many_groups_are_refused_at_last() -> None:
    mutexes = [native.Mutex(3, str(i), i) for i in range(9)]
    with contextlib.ExitStack() as stack:
        for mutex in mutexes[:8]:
            stack.enter_context(mutex)
        with pytest.raises(ReentrantCallError), mutexes[8]:
            pass
    with mutexes[8]:
        pass


def test_attempt_tells_whether_it_has_the_lock() -> None:
    mutex = native.Mutex(3, "a lock")
    with mutex.attempt() as taken:
        assert taken
        assert mutex.is_mine
        with mutex.attempt() as again:
            assert not again
        assert mutex.is_mine
    assert not mutex.is_mine
    thread = held_by_another(mutex)
    with mutex.attempt() as taken:
        assert not taken
    thread.join()


def test_group_takes_all_or_none() -> None:
    """A lock that is not free makes the group release the ones before it."""
    a, b = native.Mutex(3, "a"), native.Mutex(3, "b")
    with native.Group([a, b]):
        assert a.is_mine
        assert b.is_mine
    assert is_free(a)
    with b:
        with pytest.raises(ReentrantCallError), native.Group([a, b]):
            pass
        assert not a.is_mine
        assert is_free(a)


def test_group_waits_for_each() -> None:
    a, b = native.Mutex(3, "a"), native.Mutex(3, "b")
    thread = held_by_another(b)
    with native.Group([a, b]):
        assert b.is_mine
    thread.join()


@pytest.mark.parametrize("kind", ["mutex", "group"])
def test_interrupts_leave_no_lock_behind(kind: str) -> None:
    """An interrupt comes at any line, even during a wait, and the lock is free
    again."""
    mutexes = [native.Mutex(3, str(i)) for i in range(5)]
    guard = native.Group(mutexes) if kind == "group" else mutexes[0]
    stop = threading.Event()

    def compete() -> None:
        while not stop.is_set():
            with mutexes[0]:
                time.sleep(1e-4)

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=compete)
    thread.start()
    interrupts = 0
    try:
        for i in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4 + i % 37 * 1e-5)
                while True:
                    with guard:
                        pass
            except Interrupt:
                interrupts += 1
            assert not native.held()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        stop.set()
        thread.join()
    assert interrupts == 400
    assert all(is_free(mutex) for mutex in mutexes)


def test_deferred_calls_come_when_the_last_lock_is_free() -> None:
    """In order, and at once if no lock is held."""
    a, b = native.Mutex(3, "a"), native.Mutex(5, "b")
    told: list[tuple[str, bool]] = []

    def tell(what: str) -> None:
        told.append((what, native.held()))

    native.defer(tell, "at once")
    with a:
        with b:
            native.defer(tell, "first")
        native.defer(tell, "second")
        assert len(told) == 1
    assert told == [("at once", False), ("first", False), ("second", False)]


def test_deferred_call_may_take_locks_and_defer() -> None:
    mutex, told = native.Mutex(3, "a"), []

    def outer() -> None:
        with mutex:
            native.defer(told.append, "inner")
        told.append("outer")

    with mutex:
        native.defer(outer)
    assert told == ["inner", "outer"]


def test_finalizer_that_comes_while_a_call_is_deferred_loses_none() -> None:
    """The collector may begin at any allocation, also inside of `defer`."""
    told: list[str] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            native.defer(told.append, "of the collector")

    threshold = gc.get_threshold()
    try:
        for allocations in range(60):
            gc.collect()
            told.clear()
            mutex = native.Mutex(3, "a")
            Cycle()
            with mutex:
                gc.set_threshold(gc.get_count()[0] + allocations)
                native.defer(told.append, "of the thread")
                gc.set_threshold(0)
            gc.collect()
            assert sorted(told) == ["of the collector", "of the thread"]
    finally:
        gc.set_threshold(*threshold)


def test_what_is_put_off_in_a_worker_is_done_at_its_end() -> None:
    """A worker counts as holding the locks of the thread that it works for, until it
    ends."""
    told: list[bool] = []

    def work(_: int) -> bool:
        native.defer(lambda: told.append(native.held()))
        return native.held()

    with native.Mutex(3, "a"):
        held = [d.result for d in side_by_side(range(2), work, threads=2) if d]
    until = time.monotonic() + 10
    while len(told) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    assert held == [True, True]
    assert told == [False, False]


def test_deferred_call_that_raises_does_not_keep_others_from_being_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error is reported like that of a finalizer; an interrupt is raised."""
    mutex, told, unraisable = native.Mutex(3, "a"), [], []
    monkeypatch.setattr("sys.unraisablehook", lambda found: unraisable.append(found))

    def fail(error: BaseException) -> None:
        raise error

    with mutex:
        native.defer(fail, ValueError("not told to the caller"))
        native.defer(told.append, 1)
    with pytest.raises(KeyboardInterrupt), mutex:
        native.defer(fail, KeyboardInterrupt())
        native.defer(told.append, 2)
    assert told == [1, 2]
    assert len(unraisable) == 1
    assert not mutex.is_mine


def test_locks_are_free_in_the_child_of_a_fork() -> None:
    """This includes locks held by threads that the child does not have."""
    mutex, mine = native.Mutex(3, "a"), native.Mutex(5, "b")
    thread = held_by_another(mutex)
    with mine:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with mutex.attempt() as taken, mine.attempt() as taken_too:
                    status = 0 if taken and taken_too else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


def test_lock_of_a_thread_that_has_ended_can_be_let_go_of() -> None:
    """The thread got its identifier and never took a lock: it holds nothing."""
    mutex, held = native.Mutex(3, "a"), []

    def let_go() -> None:
        mutex.__exit__(None, None, None)
        held.append((native.held(), native.places(), mutex.top))
        with native.Mutex(3, "b"):
            pass
        held.append((native.held(), native.places(), mutex.top))

    for work in (mutex.__enter__, let_go):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        time.sleep(0.1)  # `join` returns a little before the identifier is free
    assert held == [(False, (), -1)] * 2


# ------------------------------------------------------------ threads without memory

# One arena, or each thread has separate room. The threads wait for plain locks, which
# need no memory; calls are tried while there is no memory.
NO_MEMORY = """
import resource, sys, _thread, time
from logstore import _native as native

THREADS = 20
attempts = [mutex.attempt() for mutex in [native.Mutex(3, "a")] * THREADS]
mutex, group = native.Mutex(4, "b"), native.Group([native.Mutex(5, "c")])
places = ((7, 3),)
told, after = [None] * THREADS, [None] * THREADS
gates = [_thread.allocate_lock(), _thread.allocate_lock()]
for gate in gates:
    gate.acquire()

def enter(manager):
    with manager:
        pass

calls = [(enter, mutex), (enter, group), (native.assume, places)]

def work(number):
    call, argument = calls[number % 4] if number % 4 < 3 else (enter, attempts[number])
    with gates[0]:
        pass
    try:
        call(argument)
        told[number] = "done"
    except MemoryError:
        told[number] = "held" if native.held() or mutex.is_mine else "refused"
    with gates[1]:
        call(argument)
        native.resign()
    after[number] = native.held()

for number in range(THREADS):
    _thread.start_new_thread(work, (number,))
time.sleep(0.2)
with open("/proc/self/statm", encoding="ascii") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
hoard = []
for size in (1 << 20, 1 << 16, 1 << 12, 1024, 600):
    try:
        while True:
            hoard.append(bytearray(size))
    except MemoryError:
        pass
gates[0].release()
while None in told:
    time.sleep(0.01)
hoard.clear()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
gates[1].release()
while None in after:
    time.sleep(0.01)
print(*sorted(set(told)), *set(after))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="the allocator of the address sanitizer has memory of its own left",
)
def test_thread_that_takes_a_lock_without_memory_gets_a_memory_error() -> None:
    """The thread holds nothing, and can take the lock once there is memory again. The C
    library would end the process if it had to allocate memory for a thread's locks."""
    ended = subprocess.run(
        [sys.executable, "-c", NO_MEMORY],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(logstore.__file__).parents[1]),
            "MALLOC_ARENA_MAX": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "refused False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the module is no ELF file")
def test_thread_local_data_are_at_most_16_bytes() -> None:
    """Larger data may not fit into the space of the C library for libraries that are
    loaded later."""
    data = Path(_locks.__file__).read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    order = "<" if data[5] == 1 else ">"
    (first,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    headers = [
        struct.unpack_from(f"{order}IIQQQQQQ", data, first + number * size)
        for number in range(count)
    ]
    assert 1 in {header[0] for header in headers}  # PT_LOAD
    assert sum(header[6] for header in headers if header[0] == 7) <= 16  # PT_TLS


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="rank"):
        native.Mutex(99, "a")
    with pytest.raises(TypeError):
        native.Group([1])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        native.defer(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        type(native.Mutex(3, "a").attempt())()


def test_fork_of_a_handler_in_a_thread_that_waits_goes_on_in_both() -> None:
    """In the child no other thread holds the lock that its thread waits for."""
    mutex = native.Mutex(1, "one")
    children: list[int] = []

    def fork(*_: object) -> None:
        children.append(os.fork())

    before = signal.signal(signal.SIGALRM, fork)
    thread = held_by_another(mutex, 1.0)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with mutex:
            if children == [0]:
                os._exit(0 if mutex.is_mine else 1)
    finally:
        if children == [0]:
            os._exit(2)
        signal.signal(signal.SIGALRM, before)
    thread.join()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(children[0], os.WNOHANG)
        if pid:
            assert status == 0
            return
        time.sleep(0.02)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    pytest.fail("the child waits for a thread that is not there")


def test_interrupt_of_a_wait_for_the_end_of_a_thread_comes_out_as_it_is() -> None:
    """`Thread.join` may find that the thread has released the lock that it wants to
    release itself."""

    class Ending(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            """Raise as `join` does when the thread ends."""
            try:
                raise Interrupt
            except Interrupt:
                raise RuntimeError("release unlocked lock") from None

    with pytest.raises(Interrupt):
        wait_for_end(Ending())


def test_wait_for_the_end_of_the_own_thread_is_an_error() -> None:
    """`Thread.join` raises the same error."""
    with pytest.raises(RuntimeError, match="current thread"):
        wait_for_end(threading.current_thread())


has_sentinel = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="join takes no lock of the thread's"
)


@has_sentinel
def test_end_of_a_thread_is_seen_though_two_interrupts_have_left_its_lock() -> None:
    """The first comes when `join` has taken the lock of a thread that has ended, the
    second before it is released again."""
    # A daemon, as the threads of a store: the interpreter waits for the locks of
    # others.
    thread: Any = threading.Thread(target=int, daemon=True)
    thread.start()
    lock = thread._tstate_lock
    assert lock.acquire(timeout=60)
    assert thread.is_alive()
    wait_for_end(thread)


@has_sentinel
def test_thread_that_an_interrupted_join_takes_for_ended_is_waited_for() -> None:
    """`join` releases the lock that the thread itself holds."""
    go_on, done = threading.Event(), []

    def work() -> None:
        go_on.wait(60)
        done.append(True)

    thread: Any = threading.Thread(target=work, daemon=True)
    thread.start()
    thread._tstate_lock.release()
    thread._stop()
    assert not thread.is_alive()
    threading.Timer(0.05, go_on.set).start()
    wait_for_end(thread)
    assert done
