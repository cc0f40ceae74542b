"""Retention policies: which segments may be deleted.

A policy examines segments from the oldest on and selects those to be deleted; the
engine deletes the leading run of the selected segments, never a segment after one that
stays. Deletion itself is copy-on-write (`logstore.log.write.deletion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logstore.config import TopicConfig
from logstore.io.segment_info import SegmentInfo, newest_ms

__all__ = [
    "SegmentDeletion",
    "RetainAge",
    "RetainBytes",
    "RetainFreeSpace",
    "RetentionPolicy",
    "may_be_due",
    "plan",
    "policies_of",
]


class SegmentDeletion(NamedTuple):
    """A segment that retention deletes (or would, with ``dry_run``).

    Attributes:
        partition: number of the partition.
        segment: the deleted segment.
        reason: why, as the policy reports it.
    """

    partition: int
    segment: SegmentInfo
    reason: str


class RetentionPolicy:
    """Base of retention policies. Subclass it and override `select`."""

    @property
    def reason(self) -> str:
        """Why a selected segment is deleted; the class name unless overridden."""
        return type(self).__name__

    def observe(self, free_bytes: int) -> None:
        """Called before each `select` with the bytes free on the file system, including
        the bytes of files that wait for their deletion."""

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterable[SegmentInfo]:
        """The segments that may be deleted.

        Args:
            segments: all segments of one partition, oldest first; the last is active.
            now_ms: wall clock, Unix milliseconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override select()")


def _age_base(segment: SegmentInfo, now_ms: int) -> int:
    """The time a segment's age counts from: its largest record timestamp, else the time
    its file was changed. If the timestamp is in the future, the latter is used, so that
    a wrong clock cannot keep a segment for ever."""
    newest = newest_ms(segment)
    return newest if newest <= now_ms else min(segment.modified_ms, now_ms)


class RetainAge(RetentionPolicy):
    """Selects segments whose largest timestamp is older than `retention_ms` (Kafka's
    ``retention.ms``)."""

    def __init__(self, retention_ms: int) -> None:
        self.retention_ms = retention_ms

    @property
    def reason(self) -> str:
        return f"older than retention_ms={self.retention_ms}"

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterable[SegmentInfo]:
        for segment in segments:
            if now_ms - _age_base(segment, now_ms) <= self.retention_ms:
                return
            yield segment


class RetainBytes(RetentionPolicy):
    """Selects the oldest segments while the log stays at or above `retention_bytes`
    without them (Kafka's ``retention.bytes``)."""

    def __init__(self, retention_bytes: int) -> None:
        self.retention_bytes = retention_bytes

    @property
    def reason(self) -> str:
        return f"the log is larger than retention_bytes={self.retention_bytes}"

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterable[SegmentInfo]:
        excess = sum(s.size_bytes for s in segments) - self.retention_bytes
        for segment in segments:
            if excess < segment.size_bytes or excess <= 0:
                return
            excess -= segment.size_bytes
            yield segment


class RetainFreeSpace(RetentionPolicy):
    """Selects the oldest sealed segments until the file system has `min_free_bytes`
    free.

    Deleted files take their space until ``file_delete_delay_ms`` is over; it is counted
    as free already, so that no more segments are deleted than necessary.
    """

    def __init__(self, min_free_bytes: int) -> None:
        self.min_free_bytes = min_free_bytes
        self._free_bytes = min_free_bytes

    @property
    def reason(self) -> str:
        return f"fewer than min_free_bytes={self.min_free_bytes} are free"

    def observe(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterable[SegmentInfo]:
        missing = self.min_free_bytes - self._free_bytes
        for segment in segments[:-1]:
            if missing <= 0:
                return
            missing -= segment.size_bytes
            yield segment


def policies_of(config: TopicConfig) -> list[RetentionPolicy]:
    """The policies that a topic's settings ask for."""
    policies: list[RetentionPolicy] = []
    if not config.deletes:
        return policies
    if config.retention_bytes >= 0:
        policies.append(RetainBytes(config.retention_bytes))
    if config.retention_ms >= 0:
        policies.append(RetainAge(config.retention_ms))
    return policies


def may_be_due(
    config: TopicConfig, oldest: SegmentInfo, size_bytes: int, now_ms: int
) -> bool:
    """Whether the settings may allow deleting the oldest segment: if not, none is
    deleted.

    Args:
        size_bytes: of all segments.
    """
    is_large = 0 <= config.retention_bytes <= size_bytes - oldest.size_bytes
    age_ms = now_ms - _age_base(oldest, now_ms)
    return is_large or 0 <= config.retention_ms < age_ms


def plan(
    partition: int,
    segments: Sequence[SegmentInfo],
    policies: Sequence[RetentionPolicy],
    now_ms: int,
    free_bytes: int,
    *,
    keeps_active: bool = False,
) -> list[SegmentDeletion]:
    """The leading run of segments that some policy selects, with its reason.

    An empty active segment is never among them.

    Args:
        keeps_active: nor is any active segment: the log is damaged, and gets no new
            one.
    """
    reasons: dict[int, str] = {}
    for policy in policies:
        policy.observe(free_bytes)
        for segment in policy.select(tuple(segments), now_ms):
            reasons.setdefault(segment.base_offset, policy.reason)
    deletions: list[SegmentDeletion] = []
    for segment in segments:
        reason = reasons.get(segment.base_offset)
        is_kept = segment.is_active and (keeps_active or segment.size_bytes == 0)
        if reason is None or is_kept:
            break
        deletions.append(SegmentDeletion(partition, segment, reason))
    return deletions


# Pickles of 0.1 have these names, until 0.2.
Deletion = SegmentDeletion
