"""`logstore.report`: its facts and its findings."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.maintenance import facts as collected
from support import golden, reports
from support.damage import FaultyFiles, cut, flip_bit, logs_in, snapshot_of
from support.reports import DAY, HOUR, NOW, SMALL, Checker, filled, kinds

store = reports.store  # a fixture

# ------------------------------------------------------------------ the facts


def test_report_of_a_sound_store_says_what_is_in_it(store: Path) -> None:
    """Counts agree with `verify` and with the partitions, and no finding is
    reported."""
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
    """They can be converted to JSON."""
    facts = logstore.report(store).to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False))["path"] == str(store)


def test_settings_are_those_that_differ_from_the_defaults(store: Path) -> None:
    """A reader sees the chosen ones, not thirty defaults."""
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
    """A compressible codec has a ratio above 1, and its own count of records."""
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
    """Above the limit, records and bytes are estimated, and marked so."""
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


# ------------------------------------------------------------------ paths


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
    """In any state that a broker left: no problem is found, and nothing changes."""
    before = snapshot_of(path)
    report = logstore.report(path)
    page = report.to_html()
    assert snapshot_of(path) == before
    assert report.ok
    facts = report.to_dict()
    assert facts["topics"]
    assert facts["writer"] == "kafka"
    # A broker that was merely killed is no reason for an alarm.
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
    """It may run at any time, and reports that records are not synced yet."""
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
    """The writer appends, rolls, deletes records and makes and deletes topics."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(store: logstore.Store) -> None:
        try:
            number = 0
            while not stop.wait(0.005):  # the report needs some time, too
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
    """It covers that partition alone, however many the store has."""
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
    """It cannot be opened; the findings of `verify` are shown."""
    (store / "orders-1").rename(tmp_path / "rescued")
    report = logstore.report(tmp_path / "rescued")
    assert ("critical", "unreadable") in kinds(report)
    (topic,) = report.to_dict()["topics"]
    assert topic["partitions"][0]["size_bytes"] > 0
    assert topic["partitions"][0]["records"] == 400


def test_report_on_an_empty_store(tmp_path: Path) -> None:
    """Nothing can be drawn, but the page is made."""
    logstore.open(tmp_path / "data").close()
    (tmp_path / "data" / "meta.properties").write_text("version=1\n")
    page = logstore.report(tmp_path / "data").to_html()
    assert "There is no topic" in page
    Checker().check(page)


def test_path_that_is_no_log_directory_is_a_named_error(
    store: Path, tmp_path: Path
) -> None:
    """A missing path, one without a log, and a file."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("hello")
    # The name of a partition is not enough: /etc has dbus-1.
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
    """Its name and the store around it identify it: that is damage, no wrong path."""
    for file in (store / "orders-1").iterdir():
        file.unlink()
    report = logstore.report(store / "orders-1")
    assert not report.ok
    assert report.to_dict()["is_partition"] is True


def test_report_on_a_store_of_a_later_version(store: Path) -> None:
    """Parts that cannot be opened are still listed."""
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
    """The error of the system becomes a named one."""
    files = FaultyFiles()
    files.fail("list")
    with pytest.raises(logstore.StorageError):
        logstore.report(store, _files=files)


def test_partition_that_cannot_be_read_does_not_hide_the_others(store: Path) -> None:
    """Its finding is the first, and the other one is drawn."""
    with logstore.open(store) as opened:
        opened.topic("orders")[1].append_many([b"x" * 100] * 50)
    files = FaultyFiles()
    broken = logs_in(store / "orders-1")[-1].name
    assert broken not in {one.name for one in logs_in(store / "orders-0")}
    files.fail("open", name=broken)
    report = logstore.report(store, _files=files)
    assert report.findings[0].level == "critical"
    facts = report.to_dict()
    by_name = {one["name"]: one for one in facts["topics"][0]["partitions"]}
    assert by_name["orders-0"]["records"] == 400


# ------------------------------------------------------------------ findings


def test_damage_comes_first_with_what_is_lost(store: Path) -> None:
    """A flipped bit in a sealed segment: the partition, the number of offsets, the
    remedy, and the place on the map."""
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
    """Its last batch has 10 records; later segments can be read."""
    log = logs_in(store / "orders-1")[2]
    flip_bit(log, 8 * (log.stat().st_size - 20))
    partition = logstore.report(store).to_dict()["topics"][0]["partitions"][1]
    assert partition["lost_records"] == 10


def test_damage_at_the_end_of_a_closed_log_is_shown_on_the_map(store: Path) -> None:
    """This includes bytes that readers do not see any more."""
    log = logs_in(store / "orders-0")[-1]
    size = log.stat().st_size
    flip_bit(log, 8 * (size - 20))
    partition = logstore.report(store).to_dict()["topics"][0]["partitions"][0]
    last = partition["segments"][-1]
    assert last["damage"]
    assert last["size_bytes"] == size


def test_lost_segment_is_damage(store: Path) -> None:
    """A missing file has no place on the map, and is reported."""
    logs_in(store / "orders-0")[1].unlink()
    report = logstore.report(store)
    assert ("critical", "damage") in kinds(report)
    assert "is gone" in report.findings[0].detail


def test_lost_end_is_damage(store: Path) -> None:
    """Durable bytes are missing."""
    log = logs_in(store / "orders-0")[-1]
    cut(log, log.stat().st_size - 100)
    report = logstore.report(store)
    assert ("critical", "damage") in kinds(report)


def test_damaged_index_is_a_warning(store: Path) -> None:
    """The records are intact, and the map marks it differently."""
    index = logs_in(store / "orders-0")[0].with_suffix(".timeindex")
    flip_bit(index, 70)
    report = logstore.report(store)
    assert kinds(report) == [("warning", "damage")]
    assert report.findings[0].advice.startswith("logstore-dump rebuild-index")
    assert 'class="idx"' in report.to_html()


def test_store_that_was_not_closed_is_told(store: Path, tmp_path: Path) -> None:
    """No process holds it, and it is not clean: the records after the durable point are
    reported as such."""
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
    """Segments that the next check deletes are a warning, those due within a day are
    not."""
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


def test_retention_of_a_damaged_log_is_the_same_for_all(tmp_path: Path) -> None:
    """The last segment stays, since the log accepts no appends: in a report before an
    opening has found the damage, for a writer, for a reader, and in a later report."""
    path = filled(tmp_path / "data", retention_ms=1)
    sound = [len(one["segments"]) for one in partitions_of(path)]
    last = logs_in(path / "orders-0")[-1]
    cut(last, last.stat().st_size - 1)
    before = [one["retention_due_segments"] for one in partitions_of(path)]
    assert before == [sound[0] - 1, sound[1]]
    with logstore.open(path) as opened:
        by_writer = opened.topic("orders").apply_retention(dry_run=True)
        with logstore.open(path, read_only=True) as reading:
            by_reader = reading.topic("orders").apply_retention(dry_run=True)
    assert [one.segment for one in by_reader] == [one.segment for one in by_writer]
    assert [one.partition for one in by_writer] == [0] * before[0] + [1] * before[1]
    assert [one["retention_due_segments"] for one in partitions_of(path)] == before


def partitions_of(path: Path) -> list[dict[str, Any]]:
    (topic,) = logstore.report(path).to_dict()["topics"]
    partitions: list[dict[str, Any]] = topic["partitions"]
    return partitions


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
    """A broker refuses to start because of it."""
    (store / "lost+found").mkdir()
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["level"] == "critical"
    assert "would not start" in broker["verdict"]
    assert any("lost+found" in step["title"] for step in broker["steps"])


def test_broker_cuts_damage_that_it_recovers(store: Path) -> None:
    """Without the marker it reads the segments again, and drops everything after
    damage; with it, it notices nothing."""
    log = logs_in(store / "orders-1")[2]
    flip_bit(log, 8 * 700)
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["recovered_segments"] == 0
    assert any("not notice" in step["detail"] for step in broker["steps"])
    (store / ".kafka_cleanshutdown").unlink()
    (store / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    broker = logstore.report(store).to_dict()["broker"]
    assert broker["recovered_segments"] == sum(
        len(logs_in(store / f"orders-{number}")) for number in range(2)
    )
    assert 400 - int(log.stem) - 10 <= broker["cut_records"] <= 400 - int(log.stem)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_lock_file_that_is_no_file_is_told(store: Path, kind: str) -> None:
    """It blocks no tool: `verify` lists it, and so the report is not good."""
    lock = store / ".lock"
    lock.unlink()
    if kind == "link":
        lock.symlink_to("elsewhere")
    else:
        os.mkfifo(lock)
    (problem,) = logstore.verify(store).problems
    assert (problem.kind, problem.path) == ("not-a-regular-file", str(lock))
    report = logstore.report(store)
    assert not report.ok
    assert any(".lock" in str(one) for one in report.findings)
    checked = logstore.kafka.check_handover(store, from_kafka=False, release="3.9")
    assert any(one.path == str(lock) for one in checked.findings)


def test_lock_file_that_cannot_be_looked_at_is_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown then whether the store has a writer."""

    def refuse(root: Any) -> int | None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(collected, "holder_of", refuse)
    with pytest.raises(logstore.StorageError):
        logstore.report(store)
