"""How a member detects others that are stuck, or do not take their partitions."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from logstore.group.file.slots import SlotInfo
from logstore.group.file.state import AssignmentRow, GroupState, Member
from logstore.group.member.liveness import Liveness
from logstore.io.byte_locks import ProcessId
from logstore.io.layout import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))
STATE = GroupState(
    1,
    members=(
        Member("me", 0, partitions=(A,)),
        Member("one", 1, partitions=(B,)),
        Member("two", 2, partitions=(C,)),
    ),
    rows={A: AssignmentRow(0, ""), B: AssignmentRow(1, ""), C: AssignmentRow(2, "")},
)
INTERVAL_MS = 1000


class Slots:
    """Stands for the lock file, and for the clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.polled = {1: 100.0, 2: 100.0}
        self.alive = {1, 2}
        self.held: set[int] = set()
        self.rows = {0}
        self.files = self

    def monotonic(self) -> float:
        return self.now

    def held_rows(self) -> set[int]:
        return self.held

    def is_alive(self, slot: int) -> bool:
        return slot in self.alive

    def members(self) -> list[int]:
        return sorted(self.alive)

    def info(self, slot: int) -> SlotInfo:
        at_ms = int(self.polled[slot] * 1000)
        return SlotInfo(slot, ProcessId(7, 1, b""), 0, 0, at_ms, INTERVAL_MS)


def made(*, evicts: bool = False) -> tuple[Liveness, Slots]:
    slots = Slots()
    return Liveness(cast(Any, slots), "g", evicts=evicts), slots


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    found = [r for r in caplog.records if "has not polled for" in r.getMessage()]
    caplog.clear()
    return len(found)


def test_member_that_hangs_is_reported_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each time it hangs, one report is made."""
    others, slots = made()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        for _ in range(3):
            slots.now += 2
            slots.polled[2] = slots.now
            assert others.stuck(STATE, "me") == frozenset()
        assert warnings(caplog) == 1
        slots.now += 1
        slots.polled[1] = slots.polled[2] = slots.now
        assert others.stuck(STATE, "me") == frozenset()
        assert warnings(caplog) == 0


def test_member_that_hangs_is_thrown_out_as_long_as_it_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    others, slots = made(evicts=True)
    slots.now += INTERVAL_MS / 1000
    assert others.stuck(STATE, "me") == frozenset()
    slots.now += 0.3
    slots.polled[2] = slots.now
    assert others.stuck(STATE, "me") == {"one"}
    slots.now += 0.1
    assert others.stuck(STATE, "me") == frozenset()  # it looks four times a second
    slots.now += 0.3
    slots.alive.discard(1)
    assert others.stuck(STATE, "me") == frozenset()
    assert warnings(caplog) == 0


def test_member_that_does_not_take_its_partition_is_idle_after_a_second() -> None:
    others, slots = made()
    slots.held = {2}
    assert others.idle(STATE, "me") == frozenset()
    assert 0.9 < others.due_s() < 1.1
    slots.now += 0.9
    assert others.idle(STATE, "me") == frozenset()
    slots.now += 0.2
    assert others.idle(STATE, "me") == {"one"}
    slots.held = {1, 2}
    assert others.idle(STATE, "me") == frozenset()
    slots.held = {2}  # it has given up the partition, and has a second again
    assert others.idle(STATE, "me") == frozenset()
    slots.now += 2
    others.forget_free()
    assert others.idle(STATE, "me") == frozenset()


def test_members_whose_slots_are_free_have_ended() -> None:
    """The own slot is not among the slots of other members."""
    others, slots = made()
    assert others.ended(STATE, "me") == frozenset()
    slots.alive.discard(2)
    assert others.ended(STATE, "me") == {"two"}
    assert others.ended(STATE, "") == {"me", "two"}


def test_member_that_polls_before_it_is_thrown_out_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is checked again with the mutex, and each removed member is logged."""
    others, slots = made(evicts=True)
    slots.now += 2 * INTERVAL_MS / 1000
    stuck = others.stuck(STATE, "me")
    assert stuck == {"one", "two"}
    slots.polled[2] = slots.now
    assert [one.id for one in others.evicted(STATE, stuck)] == ["one"]
    assert warnings(caplog) == 1
