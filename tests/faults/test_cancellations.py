"""The method `cancellations` has a place for each coroutine of `logstore.aio`."""

import asyncio
import random
from pathlib import Path

import pytest

from faults.cancellation_program import Program, named, public_calls
from faults.cancellations import PROGRAMS


def test_each_public_coroutine_is_cancelled_in_a_program():
    """A new coroutine fails here until a program cancels it."""
    cancelled = set().union(*(program.CALLS for program in PROGRAMS))
    assert cancelled == public_calls()


def test_public_coroutines_are_those_of_each_class():
    names = public_calls()
    of_each = {"Opening.__await__", "Follower.aclose", "AsyncTransaction.__aexit__"}
    assert of_each <= names
    assert len(names) > 60
    assert not [name for name in names if "._" in name and "__" not in name]


def test_call_that_the_program_does_not_name_is_refused(tmp_path: Path):
    """No program cancels a coroutine that its list lacks."""

    class One(Program):
        CALLS = named(Queue="get")

    case = One(tmp_path, random.Random(1))
    with pytest.raises(AssertionError, match="is not in CALLS"):
        asyncio.run(case.call(asyncio.Queue().put, 1))
