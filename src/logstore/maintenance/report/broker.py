"""How a Kafka broker would treat the directory: the findings of the hand-over, as the
report shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from logstore.log.frames.units import count_text, size_text
from logstore.maintenance.facts import StoreFacts
from logstore.maintenance.finding import (
    CHANGES,
    LOSES,
    NOTE,
    OK,
    REFUSES,
    WARNS,
    Finding,
)
from logstore.maintenance.report.model import BrokerStep, BrokerView, StoreView

__all__ = ["broker_facts"]

_LEVELS: Final = {
    OK: "ok",
    NOTE: "info",
    CHANGES: "info",
    WARNS: "info",
    LOSES: "critical",
    REFUSES: "critical",
}
_RANK: Final = ("ok", "info", "warning", "critical")
# Preparations before a hand-over, not faults of the directory.
_PREPARED: Final = frozenset(("topic", "topic-id"))


def broker_facts(
    seen: StoreFacts, findings: Iterable[Finding], facts: StoreView
) -> BrokerView:
    """The steps of a broker's start."""
    broker = BrokerView()
    if not seen.is_clean:
        broker.recovered_segments, broker.recovered_bytes = seen.unflushed
    prefix = f"{facts.root.rstrip('/')}/"
    ends = {partition.path: partition.end_offset for partition in facts.partitions}
    for finding in findings:
        level = _LEVELS[finding.severity]
        if finding.kind in _PREPARED or (
            finding.kind == "meta-properties" and not seen.meta
        ):
            level = "info"
        if finding.kind == "lock" and seen.holder is not None:
            level = "warning"
        text = finding.message.replace(prefix, "")
        title, _, detail = text.partition(". ")
        broker.steps.append(BrokerStep(level, title, detail))
        if finding.values.get("isCut"):
            directory = finding.path.rpartition("/")[0]
            first = finding.first_offset or 0
            broker.cut_records += max(ends.get(directory, first) - first, 0)
    broker.level = max((step.level for step in broker.steps), key=_RANK.index)
    refused = [refusal for refusal in findings if refusal.severity == REFUSES]
    broker.verdict = _verdict(
        broker, [refusal for refusal in refused if refusal.kind != "lock"]
    )
    return broker


def _verdict(broker: BrokerView, refused: list[Finding]) -> str:
    if any(refusal.kind != "meta-properties" or refusal.values for refusal in refused):
        return "A Kafka broker would not start on this directory as it is."
    if broker.cut_records:
        return (
            f"A Kafka broker would start, and cut off up to "
            f"{count_text(broker.cut_records, 'record')}: repair with logstore first."
        )
    if broker.level == "critical":
        return "A Kafka broker would start, and records would be lost or not served."
    if broker.recovered_segments:
        return (
            f"A Kafka broker would start, and read "
            f"{count_text(broker.recovered_segments, 'segment')} "
            f"({size_text(broker.recovered_bytes)}) again first."
        )
    return "A Kafka broker would use the logs unchanged."
