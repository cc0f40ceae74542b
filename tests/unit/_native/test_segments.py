"""Values that Python sets and steps of C rely on."""

from __future__ import annotations

import sys

from logstore import _native as native


def facts_of(**settings: int | bool) -> native.StepFacts:
    facts = native.StepFacts()
    defaults: dict[str, int | bool] = {
        "magic": 2,
        "attributes": 8,
        "max_bytes": 1000,
        "batch_target": 500,
        "flush_messages": 10,
        "is_append_time": True,
        "is_plain": False,
        "needs_keys": True,
    }
    facts.set_topic(**(defaults | settings))  # type: ignore[arg-type]
    return facts


def test_facts_of_a_topic_are_its_settings() -> None:
    """Each number is in the field of its name."""
    raw = facts_of().raw
    assert (raw.magic, raw.attributes, raw.max_bytes) == (2, 8, 1000)
    assert (raw.batch_target, raw.flush_messages) == (500, 10)
    assert (raw.is_append_time, raw.is_plain, raw.needs_keys) == (1, 0, 1)


def test_facts_of_a_segment_are_a_copy_of_its_limits() -> None:
    """A step sets the time in them."""
    facts = native.StepFacts()
    planner = native.Planner(100, native.RollLimits(1, 2, 3, 4, 5, 6))
    facts.set_segment(7, planner)
    planner.limits.segment_bytes = 9
    limits = facts.raw.limits
    assert facts.raw.fd == 7
    assert (limits.segment_bytes, limits.segment_ms, limits.now_ms) == (1, 2, 3)
    assert limits.index_interval_bytes == 4
    assert (limits.index_entries_max, limits.time_entries_max) == (5, 6)


def test_facts_of_the_end_stop_steps_where_a_sync_is_due() -> None:
    """The end is the last possible offset if no sync is ever due."""
    facts, state = facts_of(), native.SegmentState(5)
    facts.set_end(state, 3, 20, 4000, 5000)
    raw = facts.raw
    assert raw.state == state.raw
    assert (raw.leader_epoch, raw.end) == (3, 30)
    assert (raw.steps_end, raw.quiet_size) == (4000, 5000)
    facts = facts_of(flush_messages=native.OFFSET_MAX)
    facts.set_end(state, 3, 20, 4000, 5000)
    assert facts.raw.end == native.OFFSET_MAX


def test_facts_keep_their_state_until_there_is_another_one() -> None:
    """C has only the address of the state."""
    facts, state = facts_of(), native.SegmentState(5)
    before = sys.getrefcount(state)
    facts.set_end(state, 0, 0, 0, 0)
    assert sys.getrefcount(state) == before + 1
    facts.set_end(native.SegmentState(6), 0, 0, 0, 0)
    assert sys.getrefcount(state) == before
    assert facts.raw.state.base_offset == 6
