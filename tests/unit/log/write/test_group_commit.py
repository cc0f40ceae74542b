"""Group commit, without a log."""

from __future__ import annotations

import threading
import time

import pytest

from logstore import _native as native
from logstore._native.locks import RANK_SYNC
from logstore.log.write.group_commit import GroupCommit


def test_one_thread_syncs_for_all_that_wait() -> None:
    """Of those that came during a sync, one syncs next, and the others find it done."""
    commits = GroupCommit(native.Mutex(RANK_SYNC, "a sync"))
    appended, durable, syncs = 0, 0, 0
    running, go_on = threading.Event(), threading.Event()

    def sync() -> bool:
        nonlocal durable, syncs
        upto = appended
        running.set()
        assert go_on.wait(20)
        syncs += 1
        durable = upto
        return True

    def wait_for(offset: int) -> None:
        commits.run(lambda: durable >= offset, sync)

    threads = []
    for offset in range(1, 9):
        appended = offset
        threads.append(threading.Thread(target=wait_for, args=(offset,)))
        threads[-1].start()
        assert running.wait(20)
    time.sleep(0.01)
    go_on.set()
    for thread in threads:
        thread.join()
    assert durable == 8
    assert syncs == 2


def test_sync_that_fails_leaves_the_turn_to_others() -> None:
    """Its error is for its caller alone."""
    commits = GroupCommit(native.Mutex(RANK_SYNC, "a sync"))
    done: list[int] = []

    def fail() -> bool:
        raise OSError

    with pytest.raises(OSError):
        commits.run(lambda: bool(done), fail)
    commits.run(lambda: bool(done), lambda: not done.append(1))  # type: ignore[func-returns-value]
    assert done == [1]


def test_sync_with_nothing_to_wait_for_ends() -> None:
    """The log was cut meanwhile."""
    commits = GroupCommit(native.Mutex(RANK_SYNC, "a sync"))
    commits.run(lambda: False, lambda: False)
