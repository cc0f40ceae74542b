"""How thorough the tests are: quick enough for a commit, or everything.

`make test` runs the commit level, `make test-all` everything. A test that looks at each
call, line, bit or length of something looks at some of them at the commit level: always
the same ones, which the name of the test and its parameters choose. So tests that do
the same to several formats look at different ones.

- `some`: a few of a sequence.
- `Steps`: a few of the steps of a run, whose number is known after the first run.
- `stride`: each n-th step of a run that ends at a step not known before.
- ``@pytest.mark.sampled(n)``: a few of a test's parameters.
- ``@pytest.mark.thorough``: a test, or a parameter, that the commit level leaves out.
- `mostly_thorough`: parameters of an expensive fixture, of which the commit level runs
  one.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

__all__ = ["IS_ALL", "LEVEL", "Steps", "chosen", "mostly_thorough", "some", "stride"]

LEVEL = os.environ.get("LOGSTORE_TEST_LEVEL", "commit")
if LEVEL not in ("commit", "all"):
    raise ValueError(f"LOGSTORE_TEST_LEVEL is {LEVEL!r}, not 'commit' or 'all'")
IS_ALL = LEVEL == "all"

_T = TypeVar("_T")
_NEVER = 1 << 60


def _rng(salt: str) -> random.Random:
    name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return random.Random(zlib.crc32(f"{name}/{salt}".encode()))


def some(items: Sequence[_T], count: int, salt: str = "") -> list[_T]:
    """The first, the last and others, `count` in all and in their order; at the level
    ``all``, each.

    Args:
        salt: another value chooses others, for a test that calls this more than once.
    """
    if IS_ALL or len(items) <= count:
        return list(items)
    inner = _rng(salt).sample(range(1, len(items) - 1), max(count - 2, 0))
    return [items[at] for at in sorted({0, *inner, len(items) - 1})]


class Steps:
    """Numbers of the steps at which a run is disturbed: 1, 2, ..., up to one past the
    last; at the commit level `count` of these.

    Attributes:
        total: number of steps of the last round, set by each round.
    """

    def __init__(self, count: int = 5) -> None:
        self._count = count
        self.total = 0

    def __iter__(self) -> Iterator[int]:
        if not IS_ALL:
            # An undisturbed run first: a disturbance may change the number of steps.
            yield _NEVER
            yield from some(range(1, self.total + 1), self._count - 1)
            return
        nth = 0
        while nth <= self.total:
            nth += 1
            yield nth


def stride(length: int) -> int:
    """Distance between the disturbed steps of a run whose number of steps is known only
    at its end: `length`, or 1 at the level ``all``."""
    return 1 if IS_ALL else length


def mostly_thorough(items: Iterable[_T], kept: _T) -> list[Any]:
    """Parameters of which the commit level runs only `kept`."""
    return [
        item if item == kept else pytest.param(item, marks=pytest.mark.thorough)
        for item in items
    ]


def chosen(names: Sequence[str], count: int) -> set[str]:
    """`count` of some names, always the same ones."""
    return set(sorted(names, key=lambda name: zlib.crc32(name.encode()))[:count])
