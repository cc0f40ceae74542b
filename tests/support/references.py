"""Leaks of C functions: references to objects, and memory."""

import contextlib
import gc
import sys
import tracemalloc

__all__ = ["ERRORS", "MANY", "counts", "growth"]

MANY = 100_000
ERRORS = (
    *(AttributeError, IndexError, OverflowError),
    *(SystemError, TypeError, ValueError),
)


def counts(*things):
    """Reference counts of objects, each with the same surplus."""
    return [sys.getrefcount(thing) for thing in things]


def growth(call, many=MANY):
    """Bytes that many calls leak: one object for each call would be a megabyte.

    The least of three tries: threads of other stores allocate, too.
    """
    return min(_growth_once(call, many) for _ in range(3))


def _growth_once(call, many):
    def repeat(count):
        for _ in range(count):
            with contextlib.suppress(*ERRORS):
                call()

    tracemalloc.start()
    try:
        repeat(min(many, 3000))
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        repeat(many)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before
