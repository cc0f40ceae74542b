"""Whether the garbage collector can have missed objects that a thread of logstore
holds."""

from __future__ import annotations

import gc
import os

import pytest

from logstore.io import service_calls
from logstore.io.service_calls import begin_call, collect_garbage, end_call


def collects() -> bool:
    """Stores of other tests may be at work for a moment."""
    return any(collect_garbage() for _ in range(100))


def test_collection_is_complete_when_no_call_is_under_way() -> None:
    assert collects()


def test_collection_may_miss_what_a_call_holds() -> None:
    begin_call()
    try:
        assert not collect_garbage()
    finally:
        end_call()
    assert collects()


def test_collection_may_miss_what_a_call_that_has_just_ended_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collection began after the look at the calls."""

    def collect() -> None:
        begin_call()
        end_call()

    monkeypatch.setattr(gc, "collect", collect)
    assert not any(collect_garbage() for _ in range(5))


def test_call_of_the_parent_is_none_of_the_child() -> None:
    begin_call()
    try:
        child = os.fork()
        if not child:
            os._exit(len(service_calls._inside))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        end_call()
