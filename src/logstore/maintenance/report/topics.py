"""The section of one topic: its settings, the map of its segments, its partitions."""

from __future__ import annotations

import dataclasses
from typing import Final

from logstore.log.frames.markup import Html, join, tag
from logstore.log.frames.tables import Cell, table
from logstore.log.frames.units import (
    count_text,
    number_text,
    size_text,
    time_text,
)
from logstore.maintenance.report.charts import segment_map
from logstore.maintenance.report.model import PartitionView, StoreView, TopicView
from logstore.maintenance.report.series import quantile_edges
from logstore.maintenance.report.style import AGES

__all__ = ["MapScale", "topic_section"]

# Rectangles of all maps together, about: 250 bytes of the page each.
_BLOCKS_MAX: Final = 1500
_BLOCKS_OF_ROW_MIN: Final = 6
_ROWS_MAX: Final = 240
_PROBLEMS_MAX: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class MapScale:
    """The meaning of the colours of all maps, and how fine they are drawn.

    Attributes:
        edges: rising times that divide the groups of age.
        oldest_ms, newest_ms: of all segments.
        most: maximum number of rectangles in a row.
        rows: partitions of a topic that are drawn.
    """

    edges: tuple[int, ...]
    oldest_ms: int
    newest_ms: int
    most: int
    rows: int

    @classmethod
    def of(cls, facts: StoreView) -> MapScale:
        """The scale for a store."""
        segments = [segment for p in facts.partitions for segment in p.segments]
        times = [
            segment.last_time_ms for segment in segments if segment.size_bytes
        ] or [-1]
        edges = tuple(quantile_edges(times, AGES))
        # Use the newest colours: with few ages, segments do not look old.
        shift = AGES - 1 - len(edges)
        rows = min(max(len(facts.partitions), 1), _ROWS_MAX)
        most = max(_BLOCKS_MAX // rows, _BLOCKS_OF_ROW_MIN)
        if len(segments) <= _BLOCKS_MAX:
            most = _BLOCKS_MAX
        padded = (-(1 << 63),) * shift + edges
        return cls(padded, min(times), max(times), most, _ROWS_MAX)

    def legend(self) -> Html:
        """The meaning of the colours."""
        shift = sum(edge == -(1 << 63) for edge in self.edges)
        edges = self.edges[shift:]
        starts = (self.oldest_ms, *edges)
        parts = []
        for index, text in enumerate(_distinct(starts)):
            if len(starts) > 1:
                text = f"oldest, from {text}" if index == 0 else f"from {text}"
            swatch = tag("i", style=f"background:var(--a{shift + index})")
            parts.append(tag("span", swatch, text))
        parts.append(tag("span", tag("i", cls="hurt"), "damaged"))
        parts.append(tag("span", tag("i", cls="idx"), "index damaged"))
        return tag("div", parts, cls="legend")


def _distinct(times: tuple[int, ...]) -> list[str]:
    """Times as the shortest texts that differ: days, minutes, seconds."""
    whole = [time_text(when) for when in times]
    for length in (10, 16):
        short = [text[:length] for text in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return whole


def topic_section(topic: TopicView, scale: MapScale, *, is_open: bool) -> Html:
    """One topic; a click opens one that is closed."""
    partitions = topic.partitions
    problems = sum(
        len(partition.problems) + bool(partition.error) for partition in partitions
    )
    segments = sum(len(partition.segments) for partition in partitions)
    facts = [
        count_text(len(partitions), "partition"),
        count_text(segments, "segment"),
        size_text(topic.size_bytes),
    ]
    if problems:
        facts.append(count_text(problems, "problem"))
    summary = tag("summary", topic.name, tag("span", " · ".join(facts), cls="small"))
    shown = _shown(partitions, scale.rows)
    widest = max((partition.size_bytes for partition in partitions), default=0)
    rows = [_row(partition, widest, scale) for partition in shown]
    rest = len(partitions) - len(shown)
    more = f"{count_text(rest, 'more partition')} without a problem, not drawn."
    body = tag(
        "div",
        _settings(topic),
        tag("div", rows),
        tag("p", more, cls="small") if rest else None,
        _problems(partitions),
        tag(
            "details",
            tag("summary", "Partitions in numbers", cls="small"),
            _partition_table(shown),
        ),
        cls="body",
    )
    return tag(
        "details",
        summary,
        body,
        cls="topic card",
        id=f"topic-{topic.name}",
        open=is_open or bool(problems),
    )


def _shown(partitions: list[PartitionView], most: int) -> list[PartitionView]:
    if len(partitions) <= most:
        return partitions
    ranked = sorted(
        partitions,
        key=lambda partition: (
            not (partition.problems or partition.error),
            -partition.size_bytes,
        ),
    )
    return sorted(ranked[:most], key=lambda partition: partition.number)


def _settings(topic: TopicView) -> Html:
    if topic.settings is None:
        return join()  # the page shows it once
    if not topic.settings:
        return tag("p", "All settings are the defaults.", cls="small",
                   style="margin-top:0")  # fmt: skip
    parts = [
        join(tag("code", f"{name}={value}"), " ")
        for name, value in topic.settings.items()
    ]
    return tag("p", parts, cls="small", style="margin-top:0")


def _row(partition: PartitionView, widest: int, scale: MapScale) -> Html:
    if partition.segments:
        drawing = segment_map(partition, widest, scale.edges, scale.most)
    else:
        drawing = tag("span", "no segments", cls="small")
    return tag(
        "div",
        tag("div", partition.name, cls="name", data_tip=partition.name),
        tag("div", drawing, cls="bar"),
        tag("div", size_text(partition.size_bytes), cls="size"),
        cls="row",
    )


def _problems(partitions: list[PartitionView]) -> Html:
    problems = [
        (partition.name, text)
        for partition in partitions
        for _, text in partition.problems
    ]
    problems += [
        (partition.name, partition.error) for partition in partitions if partition.error
    ]
    if not problems:
        return join()
    rows = [
        tag("li", tag("b", name), " ", text) for name, text in problems[:_PROBLEMS_MAX]
    ]
    rest = len(problems) - _PROBLEMS_MAX
    if rest > 0:
        rows.append(tag("li", f"{number_text(rest)} more: run logstore-dump verify"))
    return tag(
        "details",
        tag(
            "summary", f"{count_text(len(problems), 'problem')} in detail", cls="small"
        ),
        tag("ul", rows, cls="small"),
    )


def _partition_table(partitions: list[PartitionView]) -> Html:
    rows = [
        [
            Cell.number(partition.number),
            Cell.number(partition.start_offset),
            Cell.number(partition.end_offset),
            Cell.number(partition.durable_offset),
            Cell.number(partition.records),
            Cell.number(len(partition.segments)),
            Cell.size(partition.size_bytes),
            Cell.size(partition.other_bytes),
            Cell.time(partition.first_time_ms),
            Cell.time(partition.last_time_ms),
            Cell.number(len(partition.problems)),
        ]
        for partition in partitions
    ]
    head = ("Partition", "Start", "End", "Durable", "Records", "Segments", "Log",
            "Other files", "First record", "Last record", "Problems")  # fmt: skip
    return table(head, rows)
