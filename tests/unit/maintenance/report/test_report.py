"""`logstore.report`: its facts, its findings, and its page as text."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.maintenance.report.charts import blocks_of
from logstore.maintenance.report.markup import Html, join, printable, tag
from logstore.maintenance.report.model import SegmentFacts
from logstore.maintenance.report.sampling import Interval
from logstore.maintenance.report.series import (
    bounds_of,
    group_of,
    quantile_edges,
    series_of,
    step_of,
)
from logstore.maintenance.report.style import AGES, STYLE
from logstore.maintenance.report.units import (
    count_text,
    duration_text,
    percent_text,
    size_text,
    time_text,
)
from support import golden
from support.damage import FaultyFiles, cut, flip_bit, logs_in, snapshot_of

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


def kinds(report: logstore.Report) -> list[tuple[str, str]]:
    return [(one.level, one.kind) for one in report.findings]


# ------------------------------------------------------------------ the facts


def test_report_of_a_sound_store_says_what_is_in_it(store: Path) -> None:
    """Counts are those of `verify` and of the partitions, and nothing needs care."""
    report = logstore.report(store)
    assert report.ok
    assert report.findings == ()
    facts = report.to_dict()
    assert facts["ok"] is True
    assert facts["schema_version"] == 1
    (topic,) = facts["topics"]
    with logstore.open(store, read_only=True) as opened:
        for known, partition in zip(
            opened.topic("orders"), topic["partitions"], strict=True
        ):
            assert partition["start_offset"] == 0
            assert partition["end_offset"] == partition["records"] == 400
            assert partition["is_counted"] is True
            assert partition["batches"] == 40
            assert partition["size_bytes"] == sum(s.size_bytes for s in known.segments)
            bases = [one["base_offset"] for one in partition["segments"]]
            assert bases == [one.base_offset for one in known.segments]
            assert partition["first_time_ms"] == NOW - 40 * HOUR + 9
            assert partition["last_time_ms"] == NOW - HOUR + 9
    assert facts["verified_records"] == 800
    assert facts["is_sampled"] is False


def test_facts_are_plain_values(store: Path) -> None:
    """They go through JSON."""
    facts = logstore.report(store).to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False))["path"] == str(store)


def test_settings_are_those_that_differ_from_the_defaults(store: Path) -> None:
    """A reader sees what was chosen, not thirty defaults."""
    (topic,) = logstore.report(store).to_dict()["topics"]
    assert topic["settings"]["segment_bytes"] == "4000"
    assert "index_interval_bytes" not in topic["settings"]


def test_series_has_each_record_once(store: Path) -> None:
    """The buckets add up to all records and bytes."""
    facts = logstore.report(store).to_dict()
    series = facts["series"]
    assert sum(series["records"]) == 800
    assert sum(series["bytes"]) == pytest.approx(facts["verified_bytes"])
    assert len(series["records"]) <= 73
    assert series["step_ms"] == HOUR
    assert facts["topics"][0]["series"]["records"] == series["records"]


def test_codecs_have_their_share_and_ratio(tmp_path: Path) -> None:
    """What compresses well has a ratio above 1, and the records of a codec are its."""
    path = filled(tmp_path / "data", compression_type="zstd")
    with logstore.open(path) as store:
        plain = store.create_topic("plain", config=SMALL)
        plain[0].append(b"x" * 50)
    codecs = {one["name"]: one for one in logstore.report(path).to_dict()["codecs"]}
    assert codecs["zstd"]["records"] == 800
    assert codecs["zstd"]["ratio"] > 3
    assert codecs["none"]["records"] == 1
    assert codecs["none"]["ratio"] is None


def test_large_segments_are_sampled_and_the_estimate_is_near(tmp_path: Path) -> None:
    """Beyond what is read whole, records and bytes are estimated, and it is said."""
    config = logstore.TopicConfig(
        segment_bytes=8 << 20, message_format=2, flush_messages=10**9
    )
    value = os.urandom(1000)
    with logstore.open(tmp_path / "data") as store:
        topic = store.create_topic("big", config=config)
        for number in range(32):
            when = NOW - (32 - number) * HOUR
            for _ in range(50):
                topic[0].append_many([value] * 20, timestamps_ms=[when] * 20)
    report = logstore.report(tmp_path / "data")
    facts = report.to_dict()
    assert facts["is_sampled"] is True
    assert facts["read_bytes"] < facts["verified_bytes"] / 2
    partition = facts["topics"][0]["partitions"][0]
    assert partition["is_counted"] is False
    assert partition["end_offset"] == 32_000
    assert partition["records"] == pytest.approx(32_000, rel=0.02)
    assert sum(facts["series"]["records"]) == pytest.approx(32_000, rel=0.02)
    assert max(facts["series"]["records"]) < 4000  # spread over all of the time
    assert "estimated" in report.to_html()


def test_producers_are_counted_by_their_id() -> None:
    """A broker's directory with idempotent and transactional producers."""
    facts = logstore.report(golden.SLICE / "2.8.2" / "clean").to_dict()
    by_id = {one["producer_id"]: one for one in facts["producers"]}
    assert facts["producer_count"] == sum(key >= 0 for key in by_id) > 0
    assert all(one["partitions"] for one in by_id.values())


# ------------------------------------------------------------------ what it works on


@pytest.mark.parametrize(
    "path",
    sorted(
        one
        for one in golden.SLICE.glob("*/*")
        if one.is_dir() and not one.name.endswith(".expected")
    ),
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_directory_of_a_broker_is_reported_on_and_left_as_it_is(path: Path) -> None:
    """Whatever state a broker left it in: no problem is found, and nothing changed."""
    before = snapshot_of(path)
    report = logstore.report(path)
    page = report.to_html()
    assert snapshot_of(path) == before
    assert report.ok
    facts = report.to_dict()
    assert facts["topics"]
    assert facts["writer"] == "kafka"
    # One that was merely killed is no reason for an alarm.
    assert all(one.level != "critical" for one in report.findings)
    Checker().check(page)
    is_marked = (path / ".kafka_cleanshutdown").exists()
    assert facts["has_marker"] is is_marked
    assert (facts["broker"]["recovered_segments"] == 0) is is_marked


def test_broker_offsets_are_those_that_it_reported() -> None:
    """Start and end, after the recovery that a broker would do."""
    path = golden.SLICE / "4.2.0" / "killed"
    offsets = json.loads((path.parent / "killed.expected/offsets.json").read_text())
    found = {
        one["name"]: one
        for topic in logstore.report(path).to_dict()["topics"]
        for one in topic["partitions"]
    }
    for name, known in offsets.items():
        if name in found:
            assert found[name]["start_offset"] == known["logStartOffset"], name
            assert found[name]["end_offset"] == known["logEndOffset"], name


def test_report_beside_a_writer_tells_who_has_the_store(tmp_path: Path) -> None:
    """It may run at any time, and says that records are not synced yet."""
    with logstore.open(tmp_path / "data") as store:
        partition = store.create_topic("orders", config=SMALL)[0]
        partition.append(b"1", durable=True)
        partition.append_many([b"2"] * 9)
        report = logstore.report(tmp_path / "data")
        facts = report.to_dict()
        assert facts["holder"] == os.getpid()
        assert ("info", "unsynced") in kinds(report)
        assert all(one.level == "info" for one in report.findings)
        partition.append(b"still the writer")


def test_report_beside_a_busy_writer_finds_no_damage(tmp_path: Path) -> None:
    """While it appends, rolls, deletes records and makes and deletes topics."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(store: logstore.Store) -> None:
        try:
            number = 0
            while not stop.is_set():
                name = f"brief-{number % 3}"
                topic = store.create_topic(name, config=SMALL, exist_ok=True)
                topic[0].append_many([b"x" * 100] * 50)
                keep = store.topic("keep")[0]
                keep.append_many([b"y" * 200] * 50, durable=number % 2 == 0)
                if keep.end_offset > 2000:
                    keep.delete_before(keep.end_offset - 1000)
                if number % 3 == 2:
                    store.delete_topic(name)
                number += 1
        except BaseException as error:
            failures.append(error)

    with logstore.open(tmp_path / "data") as store:
        store.create_topic("keep", config=SMALL)
        thread = threading.Thread(target=write, args=(store,))
        thread.start()
        try:
            for _ in range(25):
                report = logstore.report(tmp_path / "data")
                assert report.verified.problems == ()
                assert all(one.level == "info" for one in report.findings), kinds(
                    report
                )
                assert "keep" in report.to_html()
        finally:
            stop.set()
            thread.join()
    assert failures == []


def test_report_on_one_partition_directory(store: Path) -> None:
    """Of that partition alone, however many there are beside it."""
    report = logstore.report(store / "orders-1")
    facts = report.to_dict()
    (topic,) = facts["topics"]
    assert [one["name"] for one in topic["partitions"]] == ["orders-1"]
    assert facts["is_partition"] is True
    assert facts["verified_records"] == 400
    assert "report on a partition" in report.to_html()


def test_report_on_a_partition_directory_of_another_name(
    store: Path, tmp_path: Path
) -> None:
    """It cannot be opened, and what `verify` sees of it is shown."""
    (store / "orders-1").rename(tmp_path / "rescued")
    report = logstore.report(tmp_path / "rescued")
    assert ("critical", "unreadable") in kinds(report)
    (topic,) = report.to_dict()["topics"]
    assert topic["partitions"][0]["size_bytes"] > 0
    assert topic["partitions"][0]["records"] == 400


def test_report_on_an_empty_store(tmp_path: Path) -> None:
    """There is nothing to draw, and a page all the same."""
    logstore.open(tmp_path / "data").close()
    (tmp_path / "data" / "meta.properties").write_text("version=1\n")
    page = logstore.report(tmp_path / "data").to_html()
    assert "There is no topic" in page
    Checker().check(page)


def test_path_that_is_no_log_directory_is_a_named_error(
    store: Path, tmp_path: Path
) -> None:
    """One that is not there, one without a log, and a file."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("hello")
    # What has a partition's name is none for that: /etc has dbus-1.
    (tmp_path / "etc" / "dbus-1").mkdir(parents=True)
    (tmp_path / "etc" / "dbus-1" / "session.conf").write_text("")
    (tmp_path / "etc" / ".lock").write_text("")
    for path in (
        tmp_path / "missing",
        tmp_path / "plain",
        tmp_path / "etc",
        tmp_path / "etc" / "dbus-1",
        logs_in(store / "orders-0")[0],
    ):
        with pytest.raises(logstore.StoreNotFoundError):
            logstore.report(path)


def test_partition_that_has_lost_all_its_files_is_still_one(store: Path) -> None:
    """Its name and the store around it say so: that is damage, no wrong path."""
    for file in (store / "orders-1").iterdir():
        file.unlink()
    report = logstore.report(store / "orders-1")
    assert not report.ok
    assert report.to_dict()["is_partition"] is True


def test_report_on_a_store_of_a_later_version(store: Path) -> None:
    """What cannot be opened is still listed."""
    with logstore.open(store) as opened:
        opened.topic("orders").flush()
    owner = store / ".logstore-owner"
    owner.write_bytes(b"nonsense")
    report = logstore.report(store)
    assert not report.ok
    assert ("warning", "damage") in kinds(report)
    assert report.to_dict()["verified_records"] == 800


def test_report_on_a_directory_that_cannot_be_read_is_a_named_error(
    store: Path,
) -> None:
    """The system's refusal has its name."""
    files = FaultyFiles()
    files.fail("list")
    with pytest.raises(logstore.StorageError):
        logstore.report(store, files=files)


def test_partition_that_cannot_be_read_does_not_hide_the_others(store: Path) -> None:
    """It is told first, and the other one is drawn."""
    with logstore.open(store) as opened:
        opened.topic("orders")[1].append_many([b"x" * 100] * 50)
    files = FaultyFiles()
    broken = logs_in(store / "orders-1")[-1].name
    assert broken not in {one.name for one in logs_in(store / "orders-0")}
    files.fail("open", name=broken)
    report = logstore.report(store, files=files)
    assert report.findings[0].level == "critical"
    facts = report.to_dict()
    by_name = {one["name"]: one for one in facts["topics"][0]["partitions"]}
    assert by_name["orders-0"]["records"] == 400


# ------------------------------------------------------------------ what needs care


def test_damage_comes_first_with_what_is_lost(store: Path) -> None:
    """A flipped bit in a sealed segment: which partition, how many offsets, what to
    do, and where on the map."""
    log = logs_in(store / "orders-1")[2]
    flip_bit(log, 8 * 700)
    report = logstore.report(store)
    assert not report.ok
    first = report.findings[0]
    assert (first.level, first.kind, first.where) == ("critical", "damage", "orders-1")
    assert first.advice == f"logstore-dump repair {store}/orders-1"
    partition = report.to_dict()["topics"][0]["partitions"][1]
    assert partition["lost_records"] == 10
    hurt = [one for one in partition["segments"] if one["damage"]]
    assert [one["base_offset"] for one in hurt] == [int(log.stem)]
    assert 0 <= hurt[0]["damage_at"] < 1
    assert 'class="hurt"' in report.to_html()
    assert str(store) not in hurt[0]["damage"]  # paths are relative to the store


def test_damage_at_the_end_of_a_sealed_segment_loses_no_more(store: Path) -> None:
    """Its last batch has 10 records; those of the segments behind it can be read."""
    log = logs_in(store / "orders-1")[2]
    flip_bit(log, 8 * (log.stat().st_size - 20))
    partition = logstore.report(store).to_dict()["topics"][0]["partitions"][1]
    assert partition["lost_records"] == 10


def test_damage_at_the_end_of_a_closed_log_is_shown_on_the_map(store: Path) -> None:
    """Also what readers do not see any more."""
    log = logs_in(store / "orders-0")[-1]
    size = log.stat().st_size
    flip_bit(log, 8 * (size - 20))
    partition = logstore.report(store).to_dict()["topics"][0]["partitions"][0]
    last = partition["segments"][-1]
    assert last["damage"]
    assert last["size_bytes"] == size


def test_lost_segment_is_damage(store: Path) -> None:
    """A file that is gone has no place on the map, and is told."""
    logs_in(store / "orders-0")[1].unlink()
    report = logstore.report(store)
    assert ("critical", "damage") in kinds(report)
    assert "is gone" in report.findings[0].detail


def test_lost_end_is_damage(store: Path) -> None:
    """Bytes that were durable are missing."""
    log = logs_in(store / "orders-0")[-1]
    cut(log, log.stat().st_size - 100)
    report = logstore.report(store)
    assert ("critical", "damage") in kinds(report)


def test_damaged_index_is_a_warning(store: Path) -> None:
    """The records are not concerned, and the map marks it in another way."""
    index = logs_in(store / "orders-0")[0].with_suffix(".timeindex")
    flip_bit(index, 70)
    report = logstore.report(store)
    assert kinds(report) == [("warning", "damage")]
    assert report.findings[0].advice.startswith("logstore-dump rebuild-index")
    assert 'class="idx"' in report.to_html()


def test_store_that_was_not_closed_is_told(store: Path, tmp_path: Path) -> None:
    """Nobody holds it, and it is not clean: the records behind the durable point are
    named as such."""
    with logstore.open(store) as opened:
        opened.topic("orders")[0].append_many([b"x"] * 5)
        os.system(f"cp -a {store} {tmp_path / 'copy'}")
    report = logstore.report(tmp_path / "copy")
    assert ("warning", "unclean") in kinds(report)
    assert ("warning", "unsynced") in kinds(report)
    assert "5 records" in next(
        one.title for one in report.findings if one.kind == "unsynced"
    )


def test_retention_that_is_due_or_soon_is_told(tmp_path: Path) -> None:
    """What the next check deletes is a warning, what goes within a day is not."""
    path = filled(tmp_path / "data", retention_ms=30 * HOUR)
    report = logstore.report(path)
    assert kinds(report) == [("warning", "retention"), ("info", "retention")]
    due, soon = report.findings
    assert "due for deletion" in due.title
    assert "within a day" in soon.title
    assert "retention_ms=108000000" in due.detail
    with logstore.open(path) as opened:
        deleted = opened.topic("orders").apply_retention()
    partitions = report.to_dict()["topics"][0]["partitions"]
    assert sum(p["retention_due_segments"] for p in partitions) == len(deleted)


def test_retention_of_a_broker_is_unknown_and_not_guessed() -> None:
    """Its settings are in the cluster: three-year-old records are no finding."""
    report = logstore.report(golden.SLICE / "3.9.1" / "clean")
    assert all(one.kind != "retention" for one in report.findings)
    assert all(t["settings"] is None for t in report.to_dict()["topics"])


def test_skew_names_the_heavy_partition(store: Path) -> None:
    """A partition with far more than its share."""
    with logstore.open(store) as opened:
        opened.topic("orders").add_partitions(2)
        opened.topic("orders")[3].append_many([os.urandom(1000)] * 600)
    report = logstore.report(store)
    assert ("warning", "skew") in kinds(report)
    (skew,) = [one for one in report.findings if one.kind == "skew"]
    assert skew.where == "orders-3"
    assert "25 %" in skew.detail


def test_timestamps_ahead_of_the_clock_are_told(store: Path) -> None:
    """A producer's clock is wrong."""
    with logstore.open(store) as opened:
        opened.topic("orders")[0].append(b"x", timestamp_ms=NOW + 3 * DAY)
    report = logstore.report(store)
    assert kinds(report) == [("warning", "clock")]
    assert "3 days" in report.findings[0].detail


def test_open_transaction_is_told() -> None:
    """Readers with read_committed stop there."""
    path = golden.SLICE / "4.2.0" / "killed"
    if not (path / "open-txn-0").exists():
        path = golden.SLICE.parent / "data" / "2.8.2" / "killed"
    report = logstore.report(path)
    (found,) = [one for one in report.findings if one.kind == "transaction"]
    assert found.where.startswith("open-txn")


def test_foreign_directory_keeps_a_broker_from_starting(store: Path) -> None:
    """It is the first thing that a broker does not like."""
    (store / "lost+found").mkdir()
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["level"] == "critical"
    assert "would not start" in broker["verdict"]
    assert any("lost+found" in step["title"] for step in broker["steps"])


def test_broker_cuts_damage_that_it_recovers(store: Path) -> None:
    """Without the marker it reads the segments again, and drops all behind damage;
    with it, it notices nothing."""
    log = logs_in(store / "orders-1")[2]
    flip_bit(log, 8 * 700)
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["recovered_segments"] == 0
    assert any("not notice" in step["title"] for step in broker["steps"])
    (store / ".kafka_cleanshutdown").unlink()
    (store / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["recovered_segments"] == sum(
        len(logs_in(store / f"orders-{number}")) for number in range(2)
    )
    assert 400 - int(log.stem) - 10 <= broker["cut_records"] <= 400 - int(log.stem)


# ------------------------------------------------------------------ the page


class Checker(HTMLParser):
    """Well-formed, nothing fetched, no attribute that runs anything."""

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


def test_page_asks_no_host_for_anything(store: Path) -> None:
    """No address of a host is in it, and its policy forbids the rest."""
    page = logstore.report(store).to_html()
    Checker().check(page)
    assert re.search(r"https?://|//[a-z]", page.replace("</", "<")) is None
    assert "url(" not in page.replace("url(#hurt)", "")
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert page.count("<script") == 1


def test_policy_lets_only_the_script_of_the_page_run(store: Path) -> None:
    """Its hash is that of what stands in the page."""
    import base64
    import hashlib

    page = logstore.report(store).to_html()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"sha256-{digest}" in page
    assert "'unsafe-eval'" not in page


EVIL = "<img src=x onerror=alert(1)>\"'&\n\t\x1b[31m\u202e"


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
    """A directory may be called anything."""
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
    """As UTF-8, whole or not at all; the path is returned."""
    out = tmp_path / "report.html"
    out.write_text("old")
    report = logstore.report(store)
    assert report.save(out) == str(out)
    assert out.read_text(encoding="utf-8") == report.to_html()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "report.html"]


def test_page_that_cannot_be_saved_is_a_named_error(
    store: Path, tmp_path: Path
) -> None:
    """What was there stays, and nothing is left beside it."""
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
        # The work, not the wait for other programs on the machine.
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
    """Beyond what can be seen, neighbours share a rectangle; damage never does."""
    segments = [
        SegmentFacts(number * 10, number * 10 + 10, 1000, NOW) for number in range(9999)
    ]
    segments[5000].damage = "hurt"
    blocks = blocks_of(segments, 500)
    assert len(blocks) <= 510
    assert [one for block in blocks for one in block] == segments
    assert [segments[5000]] in blocks
    assert blocks_of(segments[:500], 500) == [[one] for one in segments[:500]]


# ------------------------------------------------------------------ the parts


def test_markup_escapes_whatever_is_no_markup() -> None:
    """Text as a child, in a list, and as an attribute."""
    found = tag("p", EVIL, [EVIL, tag("b", 1)], title=EVIL)
    text = Html.__str__(found)
    assert "<img" not in text
    assert "<b>1</b>" in text
    assert text.count("&lt;img") == 3
    assert join("<", None, 2) == "&lt;2"
    assert tag("rect", x=1, hidden=True, y=None) == '<rect x="1" hidden/>'


def test_printable_shows_what_would_not_be_seen() -> None:
    """Control characters, bytes that are no UTF-8, halves of surrogate pairs."""
    assert printable("plain käse") == "plain käse"
    assert printable("a\n\x00\u202eb") == "a\\n\\x00\\xe2\\x80\\xaeb"
    assert printable("\udcff") == "\\xff"
    assert printable("\ud800") == "\\xed\\xa0\\x80"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"),
     ((1 << 20) - 1, "1.0 MiB"), (5 << 60, "5.0 EiB"), (1 << 72, "4096.0 EiB")],
)  # fmt: skip
def test_sizes_are_for_people(value: int, text: str) -> None:
    """In binary units."""
    assert size_text(value) == text


def test_counts_times_and_shares_are_for_people() -> None:
    """Plurals, separators, and no calendar beyond its end."""
    assert count_text(1, "batch", "batches") == "1 batch"
    assert count_text(1234, "segment") == "1,234 segments"
    assert duration_text(90_000) == "2 minutes"
    assert duration_text(1000) == "1 second"
    assert duration_text(3) == "3 ms"
    assert percent_text(1, 1000) == "<1 %"
    assert percent_text(999, 1000) == ">99 %"
    assert percent_text(0, 0) == "0 %"
    assert time_text(0) == "1970-01-01 00:00:00"
    assert time_text(-1) == "-"
    assert time_text(1 << 62) == str(1 << 62)


def test_buckets_are_round_and_few() -> None:
    """For any span from nothing to the ages of the universe."""
    for span in (0, 1, 71, 72, 10_000, DAY, 400 * DAY, 1 << 50, (1 << 63) - 1):
        step = step_of(span)
        assert span // step < 73


def test_few_records_far_off_do_not_flatten_the_chart() -> None:
    """They are counted as outside."""
    rows = [Interval(NOW + n, NOW + n, 10, 100) for n in range(1000)]
    rows.append(Interval(0, 0, 1, 10))
    bounds = bounds_of(rows)
    assert bounds is not None
    assert bounds[0] >= NOW
    series = series_of(rows, bounds, 10_004)
    # Half a percent at each end.
    assert 1 <= series.outside <= 101
    assert series.untimed == 3
    inside = sum(series.records) + series.outside
    assert inside == pytest.approx(10_001)


def test_intervals_are_spread_over_their_buckets() -> None:
    """In proportion to the time in each."""
    rows = [Interval(0, 720_000, 720, 7200)]
    series = series_of(rows, bounds_of(rows), 720)
    assert sum(series.records) == pytest.approx(720)
    full = series.records[1:-1]
    assert max(full) == pytest.approx(min(full))


def test_series_without_a_time_is_empty() -> None:
    """All records are untimed."""
    assert bounds_of([]) is None
    assert series_of([], None, 5).untimed == 5


def test_ages_are_in_groups_of_about_one_size() -> None:
    """One old segment does not put all others into one group."""
    values = [0, *range(1000, 1060)]
    edges = quantile_edges(values, 6)
    groups = [group_of(value, edges) for value in values]
    assert sorted(set(groups)) == list(range(6))
    assert max(groups.count(group) for group in range(6)) <= 12
    assert quantile_edges([5, 5, 5], 6) == []


# ------------------------------------------------------------------ colours


def schemes() -> list[dict[str, tuple[int, int, int]]]:
    """The colours by name, of the light and of the dark scheme."""
    light, _, dark = STYLE.partition("prefers-color-scheme:dark")
    found = []
    for text in (light, dark):
        pairs = re.findall(r"--([a-z0-9-]+):#([0-9a-f]{3,6})\b", text)
        found.append({name: _rgb(value) for name, value in pairs})
    return found


def _rgb(text: str) -> tuple[int, int, int]:
    if len(text) == 3:
        text = "".join(char * 2 for char in text)
    red, green, blue = bytes.fromhex(text)
    return red, green, blue


def luminance(colour: tuple[int, int, int]) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    parts = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in (channel / 255 for channel in colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_text_can_be_read_in_both_schemes(
    scheme: dict[str, tuple[int, int, int]],
) -> None:
    """Each colour of text has a contrast of 4.5 at least to what is behind it."""
    for name in ("ink", "soft", "link", "bad", "warn", "info", "ok"):
        for ground in ("bg", "card"):
            assert contrast(scheme[name], scheme[ground]) >= 4.5, (name, ground)
    for name in ("bad", "warn", "info", "ok"):
        assert contrast(scheme[name], scheme[f"{name}-bg"]) >= 4.5, name


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_ages_differ_in_lightness_alone(
    scheme: dict[str, tuple[int, int, int]],
) -> None:
    """Whoever sees no colours sees which segment is older."""
    ages = [luminance(scheme[f"a{group}"]) for group in range(AGES)]
    assert ages == sorted(ages, reverse=ages[0] > ages[-1])
    for older, newer in pairwise(range(AGES)):
        assert contrast(scheme[f"a{older}"], scheme[f"a{newer}"]) >= 1.2


def test_picture_of_the_documentation_is_small() -> None:
    """docs/make_screenshots.py makes it."""
    images = Path(__file__).parents[4] / "docs" / "images"
    for name in ("report.png", "report-dark.png"):
        assert 20_000 < (images / name).stat().st_size <= 200_000


def test_legend_tells_its_ages_apart(tmp_path: Path) -> None:
    """By days, by minutes or by seconds, whatever it takes."""
    for step, sample in ((DAY, r"^\d{4}-\d\d-\d\d$"), (60_000, r":\d\d$")):
        path = tmp_path / f"data-{step}"
        with logstore.open(path) as store:
            partition = store.create_topic("t", config=SMALL)[0]
            for number in range(12):
                when = NOW - (40 - number) * step
                partition.append(b"x" * 100, timestamp_ms=when)
                partition.roll()
        page = logstore.report(path).to_html()
        (legend,) = re.findall(r'<div class="legend">(.*?)</div>', page)
        shown = re.findall(r"from ([0-9: -]+)<", legend)
        assert len(shown) == len(set(shown)) == AGES
        assert all(re.search(sample, text) for text in shown)
