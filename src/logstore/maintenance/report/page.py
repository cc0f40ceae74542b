"""The report as one HTML page: findings that need attention first, then the details.

The page requests nothing from any host: style, script and drawings are in it, and its
policy (`Content-Security-Policy`) forbids everything else. The script only shows hints
and sorts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore.log.frames.markup import Html, join, raw, tag
from logstore.log.frames.tables import Cell, table
from logstore.log.frames.units import (
    count_text,
    duration_text,
    number_text,
    size_text,
    time_text,
)
from logstore.maintenance.report.charts import icon, pattern, spark, time_chart
from logstore.maintenance.report.model import (
    CRITICAL,
    WARNING,
    Attention,
    StoreView,
    TopicView,
)
from logstore.maintenance.report.sections import (
    broker_section,
    codec_section,
    environment_section,
    group_section,
    producer_section,
    sizes_section,
)
from logstore.maintenance.report.style import SCRIPT, SCRIPT_HASH, STYLE
from logstore.maintenance.report.topics import MapScale, topic_section

__all__ = ["page_of", "title_of"]

_FINDINGS_MAX: Final = 60
_TOPICS_MAX: Final = 200
_NO_SETTINGS: Final = (
    " Settings of topics that are not shown are not in this directory: a broker "
    "keeps them in its cluster's metadata."
)
_WRITERS: Final = {
    "logstore": "logstore wrote it last",
    "kafka": "a Kafka broker wrote it last",
    "nobody": "the last writer is unknown",
}


def title_of(facts: StoreView) -> str:
    """The name of the report's subject: the last part of its path."""
    return facts.path.rstrip("/").rpartition("/")[2] or facts.path


def page_of(facts: StoreView) -> str:
    """The whole page."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src '{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"logstore {facts.version}"),
        tag("title", f"{title_of(facts)} - logstore report"),
        # An empty icon: otherwise a browser requests one from the host.
        raw('<link rel="icon" href="data:,">'),
        tag("style", raw(STYLE)),
    )
    body = tag(
        "body",
        pattern(),
        tag("main", _sections(facts)),
        tag("script", raw(SCRIPT)),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en")


def _sections(facts: StoreView) -> list[Html]:
    return [
        _header(facts),
        _tiles(facts),
        _attention(facts),
        _over_time(facts),
        *_topics(facts),
        sizes_section(facts),
        codec_section(facts),
        producer_section(facts),
        group_section(facts),
        broker_section(facts),
        environment_section(facts),
        _footer(facts),
    ]


def _header(facts: StoreView) -> Html:
    level, text = _verdict(facts)
    what = "partition" if facts.is_partition else "store"
    state = "closed cleanly" if facts.is_clean else "not closed cleanly"
    if facts.holder is not None:
        who = f"process {facts.holder}" if facts.holder else "a process"
        state = f"open for writing in {who}"
    return tag(
        "header",
        tag(
            "div",
            tag("p", f"logstore report on a {what}", cls="eyebrow"),
            tag("h1", title_of(facts)),
            tag("p", facts.path, cls="path"),
            tag(
                "p",
                f"{_WRITERS[facts.writer]}, {state}. Checked on "
                f"{time_text(facts.made_ms)} UTC.",
                cls="small",
                style="margin:4px 0 0",
            ),
        ),
        tag("div", icon(level), text, cls=f"pill {level}", id="verdict"),
        cls="top",
    )


def _verdict(facts: StoreView) -> tuple[str, str]:
    critical = sum(finding.level == CRITICAL for finding in facts.findings)
    warnings = sum(finding.level == WARNING for finding in facts.findings)
    if critical:
        more = f", {count_text(warnings, 'warning')}" if warnings else ""
        return "critical", count_text(critical, "problem") + more
    if warnings:
        return "warning", f"OK, {count_text(warnings, 'warning')}"
    return "ok", "Sound"


def _tiles(facts: StoreView) -> Html:
    partitions = facts.partitions
    records = sum(partition.records for partition in partitions)
    about = (
        "about " if not all(partition.is_counted for partition in partitions) else ""
    )
    first = min((p.first_time_ms for p in partitions if p.first_time_ms >= 0),
                default=-1)  # fmt: skip
    last = max((partition.last_time_ms for partition in partitions), default=-1)
    log = sum(partition.size_bytes for partition in partitions)
    other = sum(partition.other_bytes for partition in partitions)
    rows = [
        (number_text(len(facts.topics)), "topic" + "s" * (len(facts.topics) != 1)),
        (number_text(len(partitions)), "partition" + "s" * (len(partitions) != 1)),
        (
            number_text(sum(len(partition.segments) for partition in partitions)),
            "segments",
        ),
        (about + number_text(records), "records"),
        (size_text(log), f"of logs, {size_text(other)} of other files"),
    ]
    if last >= 0:
        rows.append((duration_text(max(last - first, 0)), "of records, until "
                     + time_text(last, seconds=False)))  # fmt: skip
    if facts.free_bytes >= 0:
        rows.append((size_text(facts.free_bytes), "free on the disk"))
    tiles = [tag("div", tag("b", a), tag("span", b), cls="tile") for a, b in rows]
    return tag("div", tiles, cls="tiles")


def _attention(facts: StoreView) -> Html:
    if not facts.findings:
        items = [
            tag(
                "li",
                icon("ok"),
                tag(
                    "div",
                    tag("b", "Nothing needs attention"),
                    tag(
                        "p",
                        f"All of {size_text(facts.verified_bytes)} were checked: no "
                        f"damage, nothing unsynced, nothing about to be deleted, no "
                        f"skew.",
                    ),
                ),
                cls="ok",
            )
        ]
    else:
        items = [_finding(finding) for finding in facts.findings[:_FINDINGS_MAX]]
    rest = len(facts.findings) - _FINDINGS_MAX
    more = tag("p", f"... and {number_text(rest)} more.", cls="small")
    return join(
        tag("h2", "What needs attention", id="attention"),
        tag("ul", items, cls="list"),
        more if rest > 0 else None,
    )


def _finding(finding: Attention) -> Html:
    return tag(
        "li",
        icon(finding.level),
        tag(
            "div",
            tag("b", finding.title),
            tag("span", finding.level, cls="lvl"),
            tag("p", finding.detail) if finding.detail else None,
            tag("code", finding.advice) if finding.advice else None,
        ),
        cls=finding.level,
    )


def _over_time(facts: StoreView) -> Html:
    series = facts.series
    if not series.records:
        return tag("p", "No record has a timestamp.", cls="lead")
    notes = [f"{duration_text(series.step_ms)} per bar"]
    if series.outside:
        some = count_text(round(series.outside), "record")
        notes.append(f"{some} far before or behind this time not shown")
    if series.untimed:
        some = count_text(round(series.untimed), "record")
        notes.append(f"{some} without a timestamp not shown")
    if facts.is_sampled:
        notes.append("estimated from a sample")
    charts = [
        tag("div", tag("h3", name), time_chart(series, kind), cls="card")
        for name, kind in (("Records", "records"), ("Bytes on disk", "bytes"))
    ]
    return join(
        tag("h2", "Records and bytes over time", id="time"),
        tag("p", "; ".join(notes) + ". By the times of the records, UTC.", cls="lead"),
        tag("div", charts, cls="two"),
    )


def _topics(facts: StoreView) -> list[Html]:
    if not facts.topics:
        return [tag("p", "There is no topic.", cls="lead")]
    scale = MapScale.of(facts)
    shown = _shown(facts.topics)
    parts = []
    if len(facts.topics) > 1:
        parts.append(tag("h2", "Topics", id="topics"))
        parts.append(tag("div", _topic_table(shown), cls="card"))
    parts += [
        tag("h2", "Segments", id="segments"),
        tag(
            "p",
            "One row per partition. The width shows bytes, on one scale per "
            "topic; the colour shows the age of the last record. A tooltip shows "
            "offsets and times.",
            _NO_SETTINGS if any(t.settings is None for t in facts.topics) else None,
            cls="lead",
        ),
        scale.legend(),
    ]
    parts += [topic_section(topic, scale, is_open=index < 12)
        for index, topic in enumerate(sorted(shown, key=_rank))]  # fmt: skip
    rest = len(facts.topics) - len(shown)
    if rest:
        parts.append(
            tag("p", f"{count_text(rest, 'smaller topic')} without a problem "
                f"{'is' if rest == 1 else 'are'} not shown.", cls="small")
        )  # fmt: skip
    return parts


def _shown(topics: Sequence[TopicView]) -> list[TopicView]:
    """The topics that have a place on the page: topics with problems, and the largest,
    in the order of their names."""
    ranked = sorted(topics, key=_rank)
    return sorted(ranked[:_TOPICS_MAX], key=lambda topic: topic.name)


def _rank(topic: TopicView) -> tuple[bool, int]:
    """Topics with problems first, then the largest."""
    has_problems = any(
        partition.problems or partition.error for partition in topic.partitions
    )
    return not has_problems, -topic.size_bytes


def _topic_table(topics: Sequence[TopicView]) -> Html:
    rows = []
    for topic in topics:
        problems = sum(len(p.problems) + bool(p.error) for p in topic.partitions)
        segments = sum(len(p.segments) for p in topic.partitions)
        last = max((p.last_time_ms for p in topic.partitions), default=-1)
        link = tag("a", topic.name, href=f"#topic-{topic.name}")
        rows.append(
            [
                Cell(link, topic.name),
                Cell.number(len(topic.partitions)),
                Cell.number(segments),
                Cell.number(topic.records),
                Cell.size(topic.size_bytes),
                Cell(spark(topic.series)),
                Cell.time(last),
                Cell.number(problems),
            ]
        )
    head = ("Topic", "Partitions", "Segments", "Records", "Size", "Bytes over time",
            "Last record", "Problems")  # fmt: skip
    return table(head, rows)


def _footer(facts: StoreView) -> Html:
    how = "Every batch header was read."
    if facts.is_sampled:
        how = (
            f"Codecs, sizes, producers and times are estimated from "
            f"{size_text(facts.read_bytes)} of the logs; offsets, bytes and damage are "
            f"exact."
        )
    return tag(
        "footer",
        f"Made by logstore {facts.version} in {facts.seconds:.1f} s: "
        f"{size_text(facts.verified_bytes)} with "
        f"{count_text(facts.verified_records, 'record')} verified. {how} Nothing was "
        f"changed. Times are UTC.",
    )
