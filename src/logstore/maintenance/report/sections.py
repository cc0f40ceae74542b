"""The sections about a store as a whole: sizes, codecs, producers, broker, disk."""

from __future__ import annotations

from typing import Final

from logstore.log.frames.markup import Html, join, tag
from logstore.log.frames.tables import Cell, table
from logstore.log.frames.units import (
    count_text,
    number_text,
    percent_text,
    size_text,
)
from logstore.maintenance.report.charts import icon
from logstore.maintenance.report.model import StoreView
from logstore.maintenance.sampling import Codec

__all__ = [
    "broker_section",
    "codec_section",
    "environment_section",
    "producer_section",
    "sizes_section",
]

_PRODUCERS_MAX: Final = 40
_GROUPS_MAX: Final = 200
_PARTITIONS_NAMED: Final = 3
_STEPS_MAX: Final = 40


def sizes_section(facts: StoreView) -> Html:
    """Sizes of batches and records."""
    if not facts.batch_sizes:
        return join()
    cards = [
        tag("div", tag("h3", title), _histogram(counts, noun), cls="card")
        for title, counts, noun in (
            ("Batches by size on disk", facts.batch_sizes, "batch"),
            ("Records by size on disk", facts.record_sizes, "record"),
        )
    ]
    return join(
        tag("h2", "Sizes", id="sizes"),
        tag("p", "Each bar covers sizes from half its label up to its label; "
            "records count as the average of their batch, compressed.", cls="lead"),
        tag("div", cards, cls="two"),
    )  # fmt: skip


def _histogram(counts: dict[int, float], noun: str) -> Html:
    low, high = min(counts), max(counts)
    # A single bar as wide as the card says less than one among empty ones.
    low, high = max(min(low, high - 4), 0), max(high, low + 2)
    top = max(counts.values()) or 1.0
    plural = "batches" if noun == "batch" else noun + "s"
    bars, labels = [], []
    for bucket in range(low, high + 1):
        value = counts.get(bucket, 0.0)
        hint = (
            f"{count_text(round(value), noun, plural)} below "
            f"{size_text(1 << bucket)} and not below {size_text((1 << bucket) >> 1)}"
        )
        height = f"height:{value / top * 100:.1f}%"
        if value > 0:
            bars.append(tag("i", style=height, data_tip=hint))
        else:
            bars.append(tag("i", style="visibility:hidden"))
        labels.append(tag("span", _short(1 << bucket)))
    return join(tag("div", bars, cls="hist"), tag("div", labels, cls="hx"))


def _short(size: int) -> str:
    for unit in ("", "K", "M", "G"):
        if size < 1024:
            return f"{size}{unit}"
        size >>= 10
    return f"{size}T"


def codec_section(facts: StoreView) -> Html:
    """The codecs in use, and how well they compress."""
    if not facts.codecs:
        return join()
    total = sum(codec.bytes for codec in facts.codecs)
    rows = [
        [
            Cell(codec.name, codec.name),
            Cell.number(codec.records),
            Cell.number(codec.batches),
            Cell.size(codec.bytes),
            Cell(_meter(codec.bytes, total), codec.bytes, True),
            _ratio(codec),
        ]
        for codec in facts.codecs
    ]
    head = ("Codec", "Records", "Batches", "On disk", "Share of the bytes", "Ratio")
    return join(
        tag("h2", "Codecs", id="codecs"),
        tag("p", "The ratio is the size of decompressed batches divided by their "
            "bytes on disk, in a sample that was decompressed.", cls="lead"),
        tag("div", table(head, rows), cls="card"),
    )  # fmt: skip


def _meter(part: float, whole: float) -> Html:
    width = f"width:{100 * part / whole if whole else 0:.1f}%"
    return tag(
        "div", tag("i", style=width), cls="meter", data_tip=percent_text(part, whole)
    )


def _ratio(codec: Codec) -> Cell:
    if codec.name == "none":
        return Cell("1.0", 1.0, True)
    if codec.ratio is None:
        return Cell("-", 0.0, True)
    return Cell(f"{codec.ratio:.1f}", codec.ratio, True)


def producer_section(facts: StoreView) -> Html:
    """The producers of the data."""
    if not facts.producers:
        return join()
    rows = []
    for producer in facts.producers[:_PRODUCERS_MAX]:
        kind = "transactional" if producer.is_transactional else "idempotent"
        names = producer.partitions[:_PARTITIONS_NAMED]
        rest = len(producer.partitions) - len(names)
        where = ", ".join(names) + (f" and {rest} more" if rest else "")
        is_named = producer.producer_id >= 0
        rows.append(
            [
                Cell(str(producer.producer_id) if is_named else "without an id"),
                Cell(kind if is_named else "plain"),
                Cell.number(producer.epoch),
                Cell.number(producer.records),
                Cell.size(producer.bytes),
                Cell.time(producer.last_time_ms),
                Cell(where),
            ]
        )
    head = ("Producer", "Kind", "Epoch", "Records", "Bytes", "Last record",
            "Partitions")  # fmt: skip
    lead = f"{count_text(facts.producer_count, 'producer id')} in the batches."
    if len(facts.producers) > _PRODUCERS_MAX:
        lead += f" The {_PRODUCERS_MAX} with most records:"
    return join(
        tag("h2", "Producers", id="producers"),
        tag("p", lead, cls="lead"),
        tag("div", table(head, rows), cls="card"),
    )


def group_section(facts: StoreView) -> Html:
    """The groups of consumers: members, lag."""
    if not facts.groups:
        return join()
    rows = []
    for group in facts.groups[:_GROUPS_MAX]:
        stuck = sum(member.stuck_ms >= 0 for member in group.members)
        worst = max(
            ((lag, name) for name, lag in group.lags.items() if lag is not None),
            default=None,
        )
        rows.append(
            [
                Cell(group.name),
                Cell(group.protocol),
                Cell(group.state),
                Cell.number(len(group.members)),
                Cell.number(stuck if group.protocol == "logstore" else -1),
                Cell.number(len(group.lags)),
                Cell.number(-1 if group.lag is None else max(group.lag, 0)),
                Cell("-" if worst is None else f"{worst[1]} ({number_text(worst[0])})"),
            ]
        )
    head = ("Group", "Protocol", "State", "Members", "Stuck", "Partitions", "Lag",
            "Most in")  # fmt: skip
    lead = (
        f"{count_text(len(facts.groups), 'group')} of consumers. The lag is the number "
        f"of offsets from the committed one to the end of the log."
    )
    if len(facts.groups) > _GROUPS_MAX:
        lead += f" The first {_GROUPS_MAX}:"
    return join(
        tag("h2", "Groups", id="groups"),
        tag("p", lead, cls="lead"),
        tag("div", table(head, rows), cls="card"),
    )


def broker_section(facts: StoreView) -> Html:
    """How a Kafka broker would treat the directory."""
    steps = facts.broker.steps
    items = [
        tag(
            "li",
            icon(step.level),
            tag("div", tag("b", step.title), tag("p", step.detail) if step.detail
                else None),
            cls=step.level,
        )
        for step in steps[:_STEPS_MAX]
    ]  # fmt: skip
    rest = len(steps) - _STEPS_MAX
    return join(
        tag("h2", "What a broker would do with this directory", id="broker"),
        tag("p", facts.broker.verdict, cls="lead"),
        tag("ul", items, cls="list"),
        tag("p", f"... and {number_text(rest)} more.", cls="small")
        if rest > 0
        else None,
    )


_LEVELS: Final = {"ok": "ok", "note": "info", "problem": "critical"}


def environment_section(facts: StoreView) -> Html:
    """The store's surroundings, and the notes of `verify` that are not problems."""
    rows = [(_LEVELS[level], kind, text) for kind, level, text in facts.environment]
    notes: dict[str, list[str]] = {}
    for partition in facts.partitions:
        for kind, text in partition.notes:
            notes.setdefault(kind, []).append(text)
    for kind, text in facts.root_notes:
        notes.setdefault(kind, []).append(text)
    for kind, texts in sorted(notes.items()):
        more = f" ... and {number_text(len(texts) - 1)} more." if texts[1:] else ""
        rows.append(("info", f"{kind} ({number_text(len(texts))})", texts[0] + more))
    if not rows:
        return join()
    items = [
        join(tag("dt", icon(level), kind, cls=level), tag("dd", text))
        for level, kind, text in rows
    ]
    return join(
        tag("h2", "Notes and environment", id="environment"),
        tag("div", tag("dl", items, cls="facts"), cls="card"),
    )
