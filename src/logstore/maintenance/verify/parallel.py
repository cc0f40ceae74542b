"""Checking in several threads, with findings in the same order as in one thread.

C releases the GIL while it checks a buffer, and the system does while it reads: two
threads keep two cores busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from logstore.errors import ConfigError
from logstore.io.parallel import Task, Workers

THREADS_MAX: Final = 64
# For each thread, jobs that are running, or done and not taken yet: this bounds the
# memory that they hold.
_AHEAD: Final = 4


class CheckJob(NamedTuple):
    """One thing to do.

    Attributes:
        work: may run concurrently with other jobs, in any thread; None: nothing.
        take: processes the result, in the order of the jobs, in the caller's thread.
    """

    work: Callable[[], None] | None
    take: Callable[[], None]


def run_jobs(jobs: Iterable[CheckJob], threads: int, stop: Callable[[], None]) -> None:
    """Do all jobs, the work of up to `threads` of them at a time.

    The caller's thread iterates `jobs` while earlier jobs are running. The first
    exception ends the call: `stop` is called, and running work is waited for.
    """
    if threads == 1:
        for job in jobs:
            if job.work is not None:
                job.work()
            job.take()
        return
    waiting: deque[tuple[Task[None] | None, Callable[[], None]]] = deque()

    def take_first() -> None:
        task, take = waiting.popleft()
        if task is not None:
            workers.wait(task)
            task.result()
        take()

    with Workers(threads, stop) as workers:
        for work, take in jobs:
            waiting.append((None if work is None else workers.submit(work), take))
            if len(waiting) > _AHEAD * threads:
                take_first()
        while waiting:
            take_first()


def check_threads(threads: int | None, cores: int | None) -> int:
    """How many threads to use: as many as requested, else min(cores, 8).

    Raises:
        ConfigError: not a number, or outside 1 to 64.
    """
    if threads is None:
        return max(1, min(cores or 1, 8))
    if type(threads) is not int or not 1 <= threads <= THREADS_MAX:
        raise ConfigError(
            f"threads={threads!r}: it must be a number from 1 to {THREADS_MAX}; "
            "nothing was done",
            name="threads",
            value=threads,
        )
    return threads
