"""Inline SVG: the segment map, bars over time, small bars, icons.

A drawing is stretched to the width of the page (`preserveAspectRatio` none), so it
holds no text; the text is in HTML next to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore.log.frames.markup import Html, join, raw, tag
from logstore.log.frames.units import (
    count_text,
    number_text,
    size_text,
    time_text,
)
from logstore.maintenance.report.model import PartitionView, SegmentView, Series
from logstore.maintenance.report.series import group_of

__all__ = ["blocks_of", "icon", "pattern", "segment_map", "spark", "time_chart"]

_WIDTH: Final = 1000
_MAP_HEIGHT: Final = 30
_CHART_HEIGHT: Final = 120
# A map with more blocks than this has no lines between its segments.
_DENSE: Final = 140
# A mark that is narrower than this is not visible.
_MARK_WIDTH: Final = 3.0

_ICONS: Final = {
    "critical": "M8 1.3 15 14.2H1zM8 6v4M8 11.6v1",
    "warning": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M8 4.8v4M8 10.4v1",
    "info": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M8 7.2v4M8 4.6v1",
    "ok": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M5 8.2l2.1 2.1L11.2 6",
}


def icon(level: str) -> Html:
    """The sign of a level: its shape, not only its colour, shows the level."""
    path = tag(
        "path",
        d=_ICONS[level],
        fill="none",
        stroke="currentColor",
        stroke_width="1.6",
        stroke_linecap="round",
        stroke_linejoin="round",
    )
    return tag("svg", path, cls="icon", viewBox="0 0 16 16", aria_hidden="true")


def pattern() -> Html:
    """The hatching of damaged segments, once for the page."""
    return raw(
        '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
        '<pattern id="hurt" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="8" height="8"/>'
        '<path d="M0 0V8"/></pattern></defs></svg>'
    )


def blocks_of(segments: Sequence[SegmentView], most: int) -> list[list[SegmentView]]:
    """Segments in runs: each by itself if there are at most `most`, else neighbours
    together, but damaged ones by themselves."""
    if len(segments) <= most:
        return [[view] for view in segments]
    share = sum(view.size_bytes for view in segments) / most
    count = -(-len(segments) // most)
    blocks: list[list[SegmentView]] = []
    size = 0
    for segment in segments:
        is_hurt = bool(segment.damage or segment.index_damage)
        if not blocks or is_hurt or size >= share or len(blocks[-1]) >= count * 4:
            blocks.append([])
            size = 0
        blocks[-1].append(segment)
        size = 1 << 62 if is_hurt else size + segment.size_bytes
    return blocks


def segment_map(
    partition: PartitionView, scale_bytes: int, edges: Sequence[int], most: int
) -> Html:
    """A row of the map: a rectangle for each segment, as wide as its bytes.

    Args:
        scale_bytes: the bytes that the whole width represents.
        edges: of the groups of age.
        most: maximum number of rectangles, apart from damaged segments.
    """
    blocks = blocks_of(partition.segments, most)
    scale = _WIDTH / max(scale_bytes, 1)
    parts, pos = [], 0.0
    for block in blocks:
        width = sum(segment.size_bytes for segment in block) * scale
        parts.append(_block(block, pos, width, edges))
        pos += width
    label = (
        f"Segments of {partition.name}: {number_text(len(partition.segments))}, "
        f"{size_text(partition.size_bytes)}"
    )
    dense = " dense" if len(blocks) > _DENSE else ""
    return tag(
        "svg",
        parts,
        cls="map" + dense,
        viewBox=f"0 0 {_WIDTH} {_MAP_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _block(
    block: list[SegmentView], pos: float, width: float, edges: Sequence[int]
) -> Html:
    newest = max(segment.last_time_ms for segment in block)
    first = block[0]
    group = group_of(newest, edges)
    hint = tag("title", _hint(block, newest))
    wide = max(width, 0.4)
    rect = tag(
        "rect", hint, cls=f"a{group}", x=_round(pos), width=_round(wide), height=30
    )
    marks = [rect]
    if first.damage:
        hint = tag("title", f"{_hint(block, newest)}\n{first.damage}")
        wide = max(width, _MARK_WIDTH)
        begin = min(pos, _WIDTH - wide)
        x = begin + (first.damage_at or 0.0) * (wide - _MARK_WIDTH)
        marks = [
            tag("rect", hint, cls="hurt", x=_round(begin), width=_round(wide),
                height=30),
            tag("rect", hint, cls="mark", x=_round(x), width=_MARK_WIDTH, height=30),
            tag("rect", hint, cls="mark", x=_round(begin), width=_round(wide),
                height=4),
        ]  # fmt: skip
    elif first.index_damage:
        hint = tag("title", f"{_hint(block, newest)}\n{first.index_damage}")
        marks.append(
            tag("rect", hint, cls="idx", x=_round(pos), y=25,
                width=_round(max(width, _MARK_WIDTH)), height=5)
        )  # fmt: skip
    return join(marks)


def _hint(block: list[SegmentView], newest: int) -> str:
    first, last = block[0], block[-1]
    what = f"Segment {first.base_offset}"
    if len(block) > 1:
        what = f"{number_text(len(block))} segments from {first.base_offset} on"
    elif first.is_active:
        what += ", active"
    until = "?" if last.next_offset < 0 else number_text(last.next_offset - 1)
    if last.next_offset == first.base_offset:
        offsets = "no offsets"
    else:
        offsets = f"offsets {number_text(first.base_offset)} to {until}"
    size = sum(segment.size_bytes for segment in block)
    return f"{what}\n{offsets}, {size_text(size)}\nuntil {time_text(newest)} UTC"


def _round(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def time_chart(series: Series, kind: str) -> Html:
    """Bars over time of ``records`` or ``bytes``, with their scale in HTML."""
    values = series.records if kind == "records" else series.bytes
    top = _nice(max(values, default=0), binary=kind == "bytes")
    step = _WIDTH / max(len(values), 1)
    # No gap between narrow bars.
    bar = max(step - (2.0 if len(values) < 90 else 0.0), 0.5)
    rects = []
    for index, value in enumerate(values):
        if value <= 0:
            continue
        height = max(value / top * _CHART_HEIGHT, 1.0)
        when = series.start_ms + index * series.step_ms
        amount = (
            size_text(value) if kind == "bytes" else count_text(round(value), "record")
        )
        hint = f"{amount}\nfrom {time_text(when)} UTC on"
        rects.append(
            tag("rect", tag("title", hint), x=_round(index * step), width=_round(bar),
                y=_round(_CHART_HEIGHT - height), height=_round(height))
        )  # fmt: skip
    drawing = tag(
        "svg",
        rects,
        cls="bars" if kind == "records" else "bars second",
        viewBox=f"0 0 {_WIDTH} {_CHART_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{kind} over time",
    )
    show = size_text if kind == "bytes" else number_text
    ticks = [
        tag("div", show(top * part), cls="tick", style=f"top:{(1 - part) * 100:.0f}%")
        for part in (1.0, 0.5)
    ]
    end = series.start_ms + len(values) * series.step_ms
    middle = (series.start_ms + end) // 2
    axis = [
        tag("span", _axis_text(time_ms, series.step_ms))
        for time_ms in (series.start_ms, middle, end)
    ]
    return join(tag("div", drawing, ticks, cls="chart"), tag("div", axis, cls="axis"))


def _axis_text(at_ms: int, step_ms: int) -> str:
    text = time_text(at_ms, seconds=step_ms < 60_000)
    return text[:10] if step_ms >= 12 * 3_600_000 else text


def _nice(value: float, *, binary: bool) -> float:
    """The top of a scale: a round number at or above a value."""
    if value <= 0:
        return 1.0
    unit = 1.0
    base = 1024.0 if binary else 1000.0
    while value / unit >= base:
        unit *= base
    for step in (1, 2, 4, 5, 8, 10, 20, 40, 50, 80, 100, 200, 400, 500, 800, 1000):
        if step * unit >= value:
            return step * unit
    return base * unit


def spark(series: Series) -> Html:
    """The bytes of a topic over time, without a scale."""
    top = max(series.bytes, default=0)
    if not top:
        return tag("span", "-", cls="small")
    step = 120 / len(series.bytes)
    rects = [
        tag("rect", x=_round(index * step), width=_round(max(step - 0.5, 0.5)),
            y=_round(22 - value / top * 22), height=_round(value / top * 22))
        for index, value in enumerate(series.bytes)
        if value > 0
    ]  # fmt: skip
    return tag(
        "svg",
        rects,
        cls="spark",
        viewBox="0 0 120 22",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
