"""Stores for reports, and a check of the page that a report makes."""

from __future__ import annotations

import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import logstore

NOW = int(time.time() * 1000)
HOUR = 3_600_000
DAY = 24 * HOUR
SMALL = logstore.TopicConfig(
    segment_bytes=4000,
    message_format=2,
    retention_ms=-1,
    flush_messages=10**6,
    flush_ms=10**9,
)


def filled(path: Path, **options: Any) -> Path:
    """A closed store with 2 partitions of several segments each, 40 hours long."""
    config = logstore.TopicConfig(**{**SMALL.to_dict(), **options})
    with logstore.open(path) as store:
        topic = store.create_topic("orders", partitions=2, config=config)
        for hour in range(40):
            for partition in topic:
                partition.append_many(
                    [b"value %d" % number * 20 for number in range(10)],
                    timestamps_ms=[NOW - (40 - hour) * HOUR + n for n in range(10)],
                )
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return filled(tmp_path / "data")


def kinds(report: logstore.types.Report) -> list[tuple[str, str]]:
    return [(one.level, one.kind) for one in report.findings]


# ------------------------------------------------------------------ the page


class Checker(HTMLParser):
    """Checks that a page is well-formed, fetches nothing and runs no script."""

    VOID = frozenset({"meta", "link", "br", "hr"})

    def check(self, page: str) -> None:
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == [], self.stack
        assert len(self.ids) == len(set(self.ids))
        page.encode("utf-8")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data", "xlink:href"):
                assert value is not None
                assert value.startswith(("#", "data:")), (tag, name, value)
            if name == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag
