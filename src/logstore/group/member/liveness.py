"""Detects members that have ended, are stuck, or do not take their partitions."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from logstore._native.locks import logger
from logstore.group.file.slots import Slots, clock_ms
from logstore.group.file.state import GroupState, Member
from logstore.io.layout import TopicPartition

__all__ = ["Liveness"]

# A partition that its member leaves free for so long goes to another one.
_IDLE_S: Final = 1.0
# The time between two looks for members that are stuck.
_STUCK_CHECK_S: Final = 0.25


class Liveness:
    """The other members; for one thread at a time.

    Args:
        slots: the member's open lock file.
        group: the id of the group.
        evicts: whether to throw out stuck members.
    """

    def __init__(self, slots: Slots, group: str, *, evicts: bool) -> None:
        self._slots = slots
        self._files = slots.files
        self._group = group
        self._evicts = evicts
        # Their partitions that are free, and since when.
        self._free_since: dict[TopicPartition, float] = {}
        self._stuck_checked = -_STUCK_CHECK_S
        self._reported: set[int] = set()

    def idle(self, state: GroupState, own: str) -> frozenset[str]:
        """The members, but for `own`, that have left an assigned partition free for too
        long."""
        taken = {*self._slots.held_rows(), *self._slots.rows}
        now, since = self._files.monotonic(), self._free_since
        self._free_since = {}
        idle_ids = set()
        for partition, member in state.assigned().items():
            row = state.rows.get(partition)
            if member.id == own or row is None or row.number in taken:
                continue
            began = self._free_since[partition] = since.get(partition, now)
            if now - began >= _IDLE_S and not member.is_idle:
                idle_ids.add(member.id)
        return frozenset(idle_ids)

    def forget_free(self) -> None:
        """Count from now on: a new generation has begun."""
        self._free_since.clear()

    def due_s(self) -> float:
        """The seconds until `idle` may find another member; infinite if nothing is
        free."""
        now = self._files.monotonic()
        ends = [began + _IDLE_S - now for began in self._free_since.values()]
        # One that is over was found already; a wait may end a millisecond early.
        return min((left for left in ends if left > 0), default=math.inf) + 0.001

    def stuck(self, state: GroupState, own: str) -> frozenset[str]:
        """The members, but for `own`, to throw out because they have not polled. If
        this member throws no member out, each that is stuck is logged once, and none is
        returned."""
        now = self._files.monotonic()
        if now - self._stuck_checked < _STUCK_CHECK_S:
            return frozenset()
        self._stuck_checked = now
        at_ms, stuck_ids = clock_ms(self._files), set()
        for member in state.members:
            if member.id == own:
                continue
            info = self._slots.info(member.slot)
            stuck_ms = info.stuck_ms(at_ms)
            if stuck_ms is None:
                self._reported.discard(member.slot)
            elif not self._slots.is_alive(member.slot):
                continue  # it has ended, and the next generation is without it
            elif self._evicts:
                stuck_ids.add(member.id)
            elif member.slot not in self._reported:
                self._reported.add(member.slot)
                logger.warning(
                    "group %s: process %d has not polled for %d ms; it keeps its "
                    "partitions (on_stuck='report')",
                    self._group[:100],
                    info.process.pid,
                    stuck_ms + info.interval_ms,
                )
        return frozenset(stuck_ids)

    def ended(self, state: GroupState, own: str) -> frozenset[str]:
        """The members, but for `own`, that live no more."""
        alive = set(self._slots.members())
        # The slot of one that has ended may be the own one now.
        return frozenset(
            member.id
            for member in state.members
            if member.id != own and member.slot not in alive
        )

    def evicted(self, state: GroupState, stuck: Collection[str]) -> list[Member]:
        """The members of `stuck` that are still stuck, to be thrown out now, with the
        mutex; each is logged."""
        at_ms, evicted_members = clock_ms(self._files), []
        for member in state.members:
            if member.id not in stuck:
                continue
            info = self._slots.info(member.slot)
            stuck_ms = info.stuck_ms(at_ms)
            if stuck_ms is not None:
                evicted_members.append(member)
                logger.warning(
                    "group %s: evicted process %d: it has not polled for %d ms "
                    "(on_stuck='evict')",
                    self._group[:100],
                    info.process.pid,
                    stuck_ms + info.interval_ms,
                )
        return evicted_members
