"""The end of open stores: in the child of a fork, and when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Any

from logstore.io.lock import forget_locks

__all__ = ["open_stores"]

# `Store` objects.
open_stores: weakref.WeakSet[Any] = weakref.WeakSet()


def _mark_forked() -> None:
    """In the child of a fork: no store that was open may be used.

    The lock is the parent's, which continues writing.
    """
    forget_locks()
    for store in list(open_stores):
        store._lifetime.after_fork()


def _close_at_exit() -> None:
    """Close stores that are open when the program ends: appended records are synced."""
    with contextlib.ExitStack() as stack:
        for store in list(open_stores):
            if store._lifetime.is_finished or store._context.is_forked:
                continue
            if not store.read_only:
                # The last one is called first, and if one raises (warnings may be
                # errors), the others are still called.
                stack.callback(store._close_forgotten)
                stack.callback(store._warn_unclosed)


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_close_at_exit)
