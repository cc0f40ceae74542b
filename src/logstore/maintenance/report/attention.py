"""Findings that need attention, worst first: each rule looks at the facts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote
from typing import Final

from logstore.log.frames.units import (
    count_text,
    duration_text,
    number_text,
    percent_text,
    size_text,
    time_text,
)
from logstore.maintenance.report.model import (
    CRITICAL,
    INFO,
    WARNING,
    Attention,
    PartitionView,
    StoreView,
    TopicView,
)

__all__ = ["findings_of"]

_ORDER: Final = {CRITICAL: 0, WARNING: 1, INFO: 2}
# A partition is skewed if its share of a topic's bytes is this many times an even one;
# below this size the shares mean nothing.
_SKEW: Final = 2.0
_SKEW_OF_TWO: Final = 0.8
_SKEW_BYTES_MIN: Final = 256 * 1024
# Clocks differ by minutes; a timestamp further ahead than this is wrong.
_AHEAD_MS: Final = 3600 * 1000
_NAMED_MAX: Final = 3


def findings_of(facts: StoreView) -> list[Attention]:
    """All findings, the worst first, in the order of the rules within a level."""
    findings = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(findings, key=lambda finding: _ORDER[finding.level])


def _unreadable(facts: StoreView) -> Iterator[Attention]:
    for partition in facts.partitions:
        if partition.error:
            yield Attention(
                CRITICAL,
                "unreadable",
                f"{partition.name} cannot be opened",
                partition.error,
                where=partition.name,
            )


def _damage(facts: StoreView) -> Iterator[Attention]:
    for partition in facts.partitions:
        log = partition.damage
        if not log:
            continue
        loss = "It is not known which records are lost."
        if partition.lost_records:
            noun = "offset cannot" if partition.lost_records == 1 else "offsets cannot"
            loss = f"{number_text(partition.lost_records)} {noun} be read."
        yield Attention(
            CRITICAL,
            "damage",
            f"{partition.name} is damaged in {count_text(len(log), 'place')}",
            f"{loss} {_first(log)}",
            f"logstore-dump repair {quote(partition.path)}",
            partition.name,
        )


def _lost_directories(facts: StoreView) -> Iterator[Attention]:
    """Damage that no partition on the page has."""
    if facts.root_damage:
        yield Attention(
            CRITICAL,
            "damage",
            f"the store is damaged in {count_text(len(facts.root_damage), 'place')}",
            _first(facts.root_damage),
            f"logstore-dump verify {quote(facts.root)}",
            facts.root,
        )


def _other_problems(facts: StoreView) -> Iterator[Attention]:
    for partition in facts.partitions:
        rest = [t for _, t in partition.problems if t not in partition.damage]
        if not rest:
            continue
        is_index = any("index" in kind for kind, _ in partition.problems)
        advice = "logstore-dump rebuild-index" if is_index else "logstore-dump verify"
        yield Attention(
            WARNING,
            "damage",
            f"{partition.name}: {count_text(len(rest), 'problem')} outside the log",
            f"The records are not affected. {_first(rest)}",
            f"{advice} {quote(partition.path)}",
            partition.name,
        )
    root = facts.root_problems
    if root:
        yield Attention(
            WARNING,
            "damage",
            f"{count_text(len(root), 'problem')} in the store's directory",
            _first(root),
            f"logstore-dump verify {quote(facts.root)}",
            facts.root,
        )


def _unclean(facts: StoreView) -> Iterator[Attention]:
    if facts.is_clean or facts.holder is not None or not facts.topics:
        return
    if facts.is_partition and facts.writer == "nobody":
        return  # taken out of its store: unknown
    torn = sum(kind == "torn-tail" for p in facts.partitions for kind, _ in p.notes)
    tail = (
        f" {count_text(torn, 'log ends', 'logs end')} in a torn batch." if torn else ""
    )
    yield Attention(
        WARNING,
        "unclean",
        "The last writer did not close the store",
        "It died, or the directory is a copy of one in use. The next opening for "
        f"writing recovers the data after the durable points.{tail}",
        where=facts.root,
    )


def _unowned(facts: StoreView) -> Iterator[Attention]:
    if facts.holder is not None and facts.unowned_since is not None:
        yield Attention(
            INFO,
            "unowned",
            f"No owner since {time_text(facts.unowned_since)} UTC",
            "Processes that append to it (shared=True) carry out their own "
            "requests, one after the other. They apply retention, but do not "
            "compact. Start the service that owns the store (logstore.open).",
            where=facts.root,
        )


def _groups(facts: StoreView) -> Iterator[Attention]:
    """Members that keep partitions from the others of their group."""
    for group in facts.groups:
        for member in group.members:
            holds = _named(member.partitions) or "no partition"
            if member.has_ended:
                title = f"A child of {member.name}, which has ended, holds its locks"
                advice = "End that child, too"
            elif member.stuck_ms >= 0:
                title = f"A member of group {group.name} is stuck"
                advice = f"End {member.name}: the others get its partitions at once"
            else:
                continue
            late = (
                f" Its poll is {duration_text(member.stuck_ms)} overdue "
                "(max_poll_interval_ms)."
                if member.stuck_ms >= 0
                else ""
            )
            yield Attention(
                WARNING,
                "group",
                title,
                f"{member.name} has {holds} of group {group.name}: no other "
                f"member reads them.{late}",
                advice,
                where=group.name,
            )


def _unsynced(facts: StoreView) -> Iterator[Attention]:
    partitions = [partition for partition in facts.partitions if partition.unsynced]
    if not partitions:
        return
    partitions.sort(key=lambda partition: -partition.unsynced)
    total = sum(partition.unsynced for partition in partitions)
    named = _named(
        [
            f"{partition.name} ({number_text(partition.unsynced)})"
            for partition in partitions
        ]
    )
    if facts.writer == "kafka":
        level = INFO
        why = (
            "A broker leaves syncs to the system and to its replicas; these "
            "records are after its recovery points."
        )
    elif facts.holder is not None:
        level = INFO
        why = (
            "A writer has the store open. These records survive its death, but "
            "not a power cut, until flush_messages or flush_ms is reached; other "
            "processes see a sync up to flush_checkpoint_ms later."
        )
    else:
        level = WARNING
        why = (
            "No process has the store open, so they will not be synced: open "
            "and close it."
        )
    yield Attention(
        level,
        "unsynced",
        f"{count_text(total, 'record')} not known to be synced in "
        f"{count_text(len(partitions), 'partition')}",
        f"{why} Most in {named}.",
        where=partitions[0].name,
    )


def _retention(facts: StoreView) -> Iterator[Attention]:
    for topic in facts.topics:
        due = sum(partition.retention_due_segments for partition in topic.partitions)
        soon = sum(partition.retention_soon_segments for partition in topic.partitions)
        rule = ", ".join(
            f"{name}={value}"
            for name, value in (topic.settings or {}).items()
            if name.startswith("retention_")
        )
        if due:
            size = sum(partition.retention_due_bytes for partition in topic.partitions)
            yield Attention(
                WARNING,
                "retention",
                f"{topic.name}: {count_text(due, 'segment')} ({size_text(size)}) "
                f"{'is' if due == 1 else 'are'} due for deletion",
                f"The next application of retention deletes "
                f"{'it' if due == 1 else 'them'}{_rule(rule)}.",
                where=topic.name,
            )
        if soon:
            size = sum(partition.retention_soon_bytes for partition in topic.partitions)
            yield Attention(
                INFO,
                "retention",
                f"{topic.name}: {count_text(soon, 'segment')} ({size_text(size)}) "
                f"{'goes' if soon == 1 else 'go'} within a day",
                f"Retention will delete {'it' if soon == 1 else 'them'}{_rule(rule)}, "
                f"if nothing else is appended.",
                where=topic.name,
            )


def _rule(rule: str) -> str:
    return f" ({rule})" if rule else ""


def _skew(facts: StoreView) -> Iterator[Attention]:
    for topic in facts.topics:
        heaviest = _heaviest(topic)
        if heaviest is None:
            continue
        count = len(topic.partitions)
        yield Attention(
            WARNING,
            "skew",
            f"{heaviest.name} holds "
            f"{percent_text(heaviest.size_bytes, topic.size_bytes)} of {topic.name}",
            f"{size_text(heaviest.size_bytes)} of {size_text(topic.size_bytes)}; an "
            f"even share of {count} partitions is {percent_text(1, count)}. One key "
            f"may carry most records.",
            where=heaviest.name,
        )


def _heaviest(topic: TopicView) -> PartitionView | None:
    """The partition that has far more than its share, if one has."""
    count, total = len(topic.partitions), topic.size_bytes
    if count < 2 or total < _SKEW_BYTES_MIN:
        return None
    heaviest = max(topic.partitions, key=lambda partition: partition.size_bytes)
    limit = _SKEW_OF_TWO if count == 2 else min(_SKEW / count, 0.9)
    return heaviest if heaviest.size_bytes > limit * total else None


def _clock(facts: StoreView) -> Iterator[Attention]:
    ahead = [
        partition
        for partition in facts.partitions
        if partition.last_time_ms > facts.made_ms + _AHEAD_MS
    ]
    if not ahead:
        return
    ahead.sort(key=lambda partition: -partition.last_time_ms)
    by = duration_text(ahead[0].last_time_ms - facts.made_ms)
    yield Attention(
        WARNING,
        "clock",
        f"Timestamps are ahead of the clock in {count_text(len(ahead), 'partition')}",
        f"By up to {by}, in {_named([partition.name for partition in ahead])}: a "
        "producer's clock is wrong. Seeks by time find these records late, and "
        "retention by age uses the modification time of their file.",
        where=ahead[0].name,
    )


def _transactions(facts: StoreView) -> Iterator[Attention]:
    for partition in facts.partitions:
        stable = partition.stable_offset
        if not 0 <= stable < partition.end_offset:
            continue
        level = INFO if facts.holder is not None else WARNING
        yield Attention(
            level,
            "transaction",
            f"{partition.name} has an open transaction",
            f"Since offset {number_text(stable)}: readers with read_committed stop "
            f"there, {count_text(partition.end_offset - stable, 'offset')} before the "
            f"end. Last record at {time_text(partition.last_time_ms)} UTC.",
            where=partition.name,
        )


def _environment(facts: StoreView) -> Iterator[Attention]:
    for kind, level, text in facts.environment:
        if level == "problem":
            yield Attention(CRITICAL, "environment", f"Environment: {kind}", text)
        elif kind in ("space", "inodes") and level == "note":
            size = size_text(facts.free_bytes)
            yield Attention(
                WARNING,
                "environment",
                f"Little free space is left: {size}"
                if kind == "space"
                else "Few inodes",
                text,
            )


_RULES: Final[tuple[Callable[[StoreView], Iterator[Attention]], ...]] = (
    _unreadable,
    _damage,
    _lost_directories,
    _other_problems,
    _environment,
    _unclean,
    _unowned,
    _groups,
    _unsynced,
    _retention,
    _skew,
    _transactions,
    _clock,
)


def _first(texts: list[str]) -> str:
    more = len(texts) - 1
    return texts[0] + (f" ... and {number_text(more)} more." if more else "")


def _named(names: list[str]) -> str:
    rest = len(names) - _NAMED_MAX
    shown = ", ".join(names[:_NAMED_MAX])
    return f"{shown} and {rest} more" if rest > 0 else shown
