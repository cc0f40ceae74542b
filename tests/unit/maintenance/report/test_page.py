"""The page of a report: well-formed, without requests to a host, and with untrusted
text as text only."""

from __future__ import annotations

import json
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.maintenance.report.charts import blocks_of
from logstore.maintenance.report.model import SegmentView
from support import reports
from support.damage import flip_bit, logs_in
from support.reports import HOUR, NOW, Checker, filled

store = reports.store  # a fixture


def test_page_asks_no_host_for_anything(store: Path) -> None:
    """It contains no address of a host, and its policy forbids the rest."""
    page = logstore.report(store).to_html()
    Checker().check(page)
    assert re.search(r"https?://|//[a-z]", page.replace("</", "<")) is None
    assert "url(" not in page.replace("url(#hurt)", "")
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert page.count("<script") == 1


def test_policy_lets_only_the_script_of_the_page_run(store: Path) -> None:
    """The hash in the policy is the hash of the script in the page."""
    import base64
    import hashlib

    page = logstore.report(store).to_html()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"sha256-{digest}" in page
    assert "'unsafe-eval'" not in page


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "a\"b'c & d",
        "line\nend",
        os.fsdecode(b"bytes \xff\xfe"),
        "\u202eright to left \x1b[31mred",
        "käse 数据 🎉",
    ],
    ids=ascii,
)
def test_path_of_any_characters_is_only_text(tmp_path: Path, name: str) -> None:
    """A directory may have any name."""
    path = tmp_path / name.replace("/", "_")
    filled(path)
    flip_bit(logs_in(path / "orders-0")[1], 8 * 300)
    (path / name.replace("/", "_")).mkdir()  # a foreign directory
    report = logstore.report(path)
    page = report.to_html()
    Checker().check(page)
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert "\u202e" not in page
    assert "\x1b" not in page
    report._repr_html_().encode()
    json.dumps(report.to_dict())
    out = tmp_path / "out.html"
    report.save(out)
    assert out.read_text(encoding="utf-8") == page


def test_page_can_be_saved_in_the_place_of_another(store: Path, tmp_path: Path) -> None:
    """It is saved as UTF-8, whole or not at all; the path is returned."""
    out = tmp_path / "report.html"
    out.write_text("old")
    report = logstore.report(store)
    assert report.save(out) == str(out)
    assert out.read_text(encoding="utf-8") == report.to_html()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "report.html"]


def test_page_that_cannot_be_saved_is_a_named_error(
    store: Path, tmp_path: Path
) -> None:
    """The old file stays, and nothing is left next to it."""
    (tmp_path / "taken").mkdir()
    report = logstore.report(store)
    for path in (tmp_path / "taken", tmp_path / "missing" / "report.html"):
        with pytest.raises(logstore.StorageError, match="cannot write"):
            report.save(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "taken"]


def test_notebook_shows_the_page_in_a_frame(store: Path) -> None:
    """Its style does not touch the notebook, and it may not do more than draw."""

    class Frame(HTMLParser):
        page = ""

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag == "iframe"
            found = dict(attrs)
            assert found["sandbox"] == "allow-scripts"
            self.page = found["srcdoc"]

    report = logstore.report(store)
    frame = Frame()
    frame.feed(report._repr_html_())
    assert frame.page == report.to_html()
    assert str(store) in repr(report)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_report_of_a_thousand_segments_is_quick_and_small(tmp_path: Path) -> None:
    """At most 1 s of work, and 1 MB, with a rectangle for each segment."""
    config = logstore.TopicConfig(
        segment_bytes=4096, message_format=2, flush_messages=10**9, retention_ms=-1
    )
    with logstore.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", partitions=4, config=config)
        value = b"x" * 1000
        for number in range(250):
            for partition in topic:
                partition.append_many(
                    [value] * 4, timestamps_ms=[NOW - (250 - number) * HOUR] * 4
                )
                if number < 249:
                    partition.roll()
    seconds = []
    for _ in range(3):
        # CPU time, without the wait for other programs on the machine.
        begun = time.process_time()
        report = logstore.report(tmp_path / "data")
        page = report.to_html()
        seconds.append(time.process_time() - begun)
    partitions = report.to_dict()["topics"][0]["partitions"]
    assert sum(len(one["segments"]) for one in partitions) == 1000
    assert page.count("<title>Segment ") == 1000
    assert len(page.encode()) <= 1_000_000
    assert min(seconds) <= 1.0


def test_page_stays_small_however_many_segments_there_are() -> None:
    """Beyond the resolution, neighbours share a rectangle; damaged ones never do."""
    segments = [
        SegmentView(number * 10, number * 10 + 10, 1000, NOW) for number in range(9999)
    ]
    segments[5000].damage = "hurt"
    blocks = blocks_of(segments, 500)
    assert len(blocks) <= 510
    assert [one for block in blocks for one in block] == segments
    assert [segments[5000]] in blocks
    assert blocks_of(segments[:500], 500) == [[one] for one in segments[:500]]
