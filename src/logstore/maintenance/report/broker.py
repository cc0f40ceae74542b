"""Predicts how a Kafka broker would treat the directory, if it were started on it.

The rules are those of Kafka's `LogManager` and `LogLoader`, and the observations with
releases up to 4.2 in docs/operations.md ("Handing a store to a Kafka broker").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logstore.io import layout
from logstore.maintenance.report.collect import LOG_KINDS
from logstore.maintenance.report.model import (
    BrokerFacts,
    BrokerStep,
    PartitionFacts,
    SegmentFacts,
    StoreFacts,
)
from logstore.maintenance.report.units import count_text, number_text, size_text

__all__ = ["broker_facts"]

_RANK: Final = {"ok": 0, "info": 1, "warning": 2, "critical": 3}
_NAMED_MAX: Final = 5


def broker_facts(facts: StoreFacts) -> BrokerFacts:
    """The steps of a broker's start."""
    broker = BrokerFacts()
    broker.steps += _start(facts)
    broker.steps += _recovery(facts, broker)
    broker.steps += _logs(facts)
    broker.level = max((step.level for step in broker.steps), key=_rank, default="ok")
    broker.verdict = _verdict(broker)
    return broker


def _rank(level: str) -> int:
    return _RANK[level]


def _verdict(broker: BrokerFacts) -> str:
    if any(step.title.startswith("It refuses") for step in broker.steps):
        return "A Kafka broker would not start on this directory as it is."
    if broker.cut_records:
        return (
            f"A Kafka broker would start, and cut off up to "
            f"{count_text(broker.cut_records, 'record')}: repair with logstore first."
        )
    if broker.level == "critical":
        return "A Kafka broker would start, and its consumers would meet damage."
    if broker.recovered_segments:
        return (
            f"A Kafka broker would start, and read "
            f"{count_text(broker.recovered_segments, 'segment')} "
            f"({size_text(broker.recovered_bytes)}) again first."
        )
    return "A Kafka broker would take the logs as they are."


def _start(facts: StoreFacts) -> Iterator[BrokerStep]:
    if facts.holder is not None:
        who = f"process {facts.holder}" if facts.holder else "a process"
        yield BrokerStep(
            "warning", f"It refuses while {who} holds the lock", "Close that first."
        )
    if facts.foreign:
        yield BrokerStep(
            "critical",
            f"It refuses to start on {_named(facts.foreign)}",
            "A directory in the root that is named neither topic-number nor as one "
            "that is about to go. Move it elsewhere.",
        )
    if not facts.has_meta:
        yield BrokerStep(
            "info",
            "It asks for meta.properties",
            "Format the directory for the cluster with kafka-storage (KRaft). A topic "
            "that the cluster does not know is set aside as -stray: create it first.",
        )


def _recovery(facts: StoreFacts, broker: BrokerFacts) -> Iterator[BrokerStep]:
    if facts.has_marker:
        yield BrokerStep(
            "ok",
            "It finds the marker of a clean stop",
            "No segment is read again; only indexes that are missing are built.",
        )
    else:
        for partition in facts.partitions:
            read = _recovered(partition)
            broker.recovered_segments += len(read)
            broker.recovered_bytes += sum(segment.size_bytes for segment in read)
        yield BrokerStep(
            "info" if broker.recovered_segments else "ok",
            "It finds no marker of a clean stop",
            f"Each log is read from its recovery point on: "
            f"{count_text(broker.recovered_segments, 'segment')}, "
            f"{size_text(broker.recovered_bytes)}; their indexes are built anew.",
        )
    for partition in facts.partitions:
        yield from _damaged(partition, broker, has_marker=facts.has_marker)


def _recovered(partition: PartitionFacts) -> list[SegmentFacts]:
    """The segments from the one with the recovery point on, as Kafka takes them."""
    bases = [segment.base_offset for segment in partition.segments]
    floor = max((b for b in bases if b <= partition.recovery_point), default=0)
    return [one for one in partition.segments if one.base_offset >= floor]


def _damaged(
    partition: PartitionFacts, broker: BrokerFacts, *, has_marker: bool
) -> Iterator[BrokerStep]:
    damaged = [segment for segment in partition.segments if segment.damage]
    if not damaged:
        if any(kind in LOG_KINDS for kind, _ in partition.problems):
            yield BrokerStep(
                "critical",
                f"{partition.name}: it misses what is gone only when it is read",
                "Nothing tells it that bytes or segments are lost.",
            )
        return
    read = [] if has_marker else _recovered(partition)
    first = damaged[0]
    if first not in read:
        yield BrokerStep(
            "critical",
            f"{partition.name}: it does not notice the damage",
            "It starts, and a consumer that comes to the damaged batch gets an error "
            "(CorruptRecordException), time and again.",
        )
        return
    # If the offset is unknown, it is in the first batch of the segment.
    begin = max(first.damage_offset, first.base_offset)
    cut_records = max(partition.end_offset, first.next_offset, begin) - begin
    broker.cut_records += cut_records
    yield BrokerStep(
        "critical",
        f"{partition.name}: it cuts the log at the damage",
        f"All from offset {number_text(begin)} on goes, the intact records after it, "
        f"too: up to {number_text(cut_records)}. logstore-dump repair keeps what it "
        f"cuts, and can skip the damage alone.",
    )


def _logs(facts: StoreFacts) -> Iterator[BrokerStep]:
    missing = sum(one.missing_indexes for one in facts.partitions)
    if missing:
        yield BrokerStep(
            "info", f"It builds {count_text(missing, 'missing index', _INDEXES)}"
        )
    leftovers: dict[str, int] = {}
    for partition in facts.partitions:
        for suffix, count in partition.leftovers.items():
            leftovers[suffix] = leftovers.get(suffix, 0) + count
    for suffix, count in sorted(leftovers.items()):
        yield BrokerStep(
            "info", f"It {_LEFTOVERS[suffix]} {count_text(count, suffix + ' file')}"
        )
    magics: dict[int, float] = {}
    for partition in facts.partitions:
        for magic, records in partition.magics.items():
            magics[magic] = magics.get(magic, 0) + records
    old = [magic for magic in (0, 1) if magics.get(magic)]
    if old:
        which = " and ".join(str(magic) for magic in old)
        yield BrokerStep(
            "info",
            f"It reads messages of magic {which}, and appends batches of magic 2",
            "Kafka 4.2 was seen to serve all of them.",
        )


_INDEXES: Final = "missing indexes"
_LEFTOVERS: Final = {
    layout.DELETED: "deletes",
    layout.CLEANED: "deletes",
    layout.SWAP: "puts in place",
}


def _named(names: list[str]) -> str:
    rest = len(names) - _NAMED_MAX
    shown = ", ".join(names[:_NAMED_MAX])
    return f"{shown} and {rest} more" if rest > 0 else shown
