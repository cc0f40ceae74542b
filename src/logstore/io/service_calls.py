"""Whether a thread of logstore's own is inside a call.

The threads that serve a store hold no reference to it while they wait, so a store that
its program forgot is garbage. They hold one while they work: a collection at such a
moment misses the store, and one a moment later does not. So a caller of the collector
for a forgotten store has to know whether it can have missed one.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading

__all__ = ["begin_call", "collect_garbage", "end_call"]

# Threads that are inside a call; and the number of the next call.
_inside: set[int] = set()
_numbers = itertools.count()


def begin_call() -> None:
    """The calling thread may hold references to a store from now on."""
    next(_numbers)
    _inside.add(threading.get_ident())


def end_call() -> None:
    """Note that the thread holds no reference. `begin_call` need not come before."""
    _inside.discard(threading.get_ident())


def collect_garbage() -> bool:
    """Run the garbage collector.

    Returns:
        Whether no call was under way: all unused stores are collected.
    """
    number, is_quiet = next(_numbers), not _inside
    gc.collect()
    return is_quiet and next(_numbers) == number + 1


# In the child of a fork those threads do not exist.
os.register_at_fork(after_in_child=_inside.clear)
