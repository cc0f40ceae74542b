"""Effects of a hand-over: the findings about a broker, each compared with one in
tests/interop/test_handover.py, and those about logstore, compared with its actions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.maintenance import finding as kinds
from logstore.maintenance.facts import look_at
from logstore.maintenance.handover.broker import Broker
from logstore.maintenance.handover.opening import DirectoryOpening
from logstore.maintenance.verify.report import Run
from support.broker import foreign
from support.cluster_files import metadata_log, topic_record
from support.damage import FaultyFiles
from support.golden import SLICE

DAY_MS = 24 * 3600 * 1000
ID = "AAECAwQFBgcICQoLDA0ODw"


def store_at(path: Path, **settings: Any) -> Path:
    config = logstore.TopicConfig(message_format=2, **settings)
    with logstore.open(path) as store:
        store.create_topic("orders", config=config)[0].append_many([b"x"] * 10)
    return path


def findings(
    path: Path, kind: str, **options: Any
) -> list[logstore.kafka.HandoverFinding]:
    report = logstore.kafka.check_handover(path, **options)
    return [one for one in report.findings if one.kind == kind]


def effects(path: Path, kind: str, **options: Any) -> list[str]:
    return [one.effect for one in findings(path, kind, **options)]


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(one.relative_to(path)): (one.read_bytes(), one.stat().st_mtime_ns)
        for one in path.rglob("*")
        if one.is_file()
    }


# ------------------------------------------------------------ in general


def test_check_changes_nothing_and_knows_the_direction(tmp_path: Path) -> None:
    """The next owner is the one that was not the last writer."""
    store_at(tmp_path)
    before = tree(tmp_path)
    assert logstore.kafka.check_handover(tmp_path).to == "kafka"
    assert logstore.kafka.check_handover(tmp_path, from_kafka=True).to == "logstore"
    assert tree(tmp_path) == before
    foreign(tmp_path)
    assert logstore.kafka.check_handover(tmp_path).to == "logstore"
    assert logstore.kafka.check_handover(tmp_path, from_kafka=False).to == "kafka"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"release": "3.0"}, "release is '3.0', not one of 2.8, 3.9, 4.2, 4.3, 4.4"),
        ({"retention_ms": -2}, "retention_ms is -2"),
        ({"retention_bytes": -5}, "retention_bytes is -5"),
    ],
)
def test_bad_argument_is_a_named_error(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    store_at(tmp_path)
    with pytest.raises(logstore.ConfigError, match=text):
        logstore.kafka.check_handover(tmp_path, **options)


def test_what_is_no_store_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.kafka.check_handover(tmp_path / "nothing")
    with pytest.raises(logstore.StoreNotFoundError, match="not a log directory"):
        logstore.kafka.check_handover(tmp_path)


def test_directory_that_the_system_refuses_is_a_named_error(tmp_path: Path) -> None:
    store_at(tmp_path)
    files = FaultyFiles()
    files.fail("list", name="")
    with pytest.raises(logstore.StorageError):
        logstore.kafka.check_handover(tmp_path, _files=files)


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_command_prints_the_findings_and_ends_with_their_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    store_at(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    command = ["handover", "check", str(tmp_path), "--format", form]
    metadata = f"version: 0\ntopic_id: {ID}"
    (tmp_path / "orders-0" / "partition.metadata").write_text(metadata)
    assert main(command) == 0
    out = capsys.readouterr().out
    (tmp_path / "backup").mkdir()
    assert main(command) == 1
    worse = capsys.readouterr().out
    if form == "text":
        assert "refuses" not in out
        assert "refuses: directory-name: backup is named neither" in worse
        assert worse.splitlines()[-1].startswith("to Kafka 4.4: 1 problem, ")
    else:
        lines = [json.loads(line) for line in worse.splitlines()]
        assert [one["type"] for one in lines[:-1]] == ["handover"] * (len(lines) - 1)
        (bad,) = (one for one in lines if one.get("effect") == "refuses")
        assert bad["path"] == str(tmp_path / "backup")
        assert lines[-1]["problems"] == 1
        assert lines[-1]["to"] == "kafka"
    assert main(["handover", "check", str(tmp_path / "nothing")]) == 2


# ------------------------------------------------------------ to a broker


def test_broker_with_zookeeper_makes_properties_and_one_with_kraft_refuses(
    tmp_path: Path,
) -> None:
    store_at(tmp_path)
    assert effects(tmp_path, "meta-properties", release="2.8") == ["changes"]
    for release in ("3.9", "4.2", "4.3", "4.4"):
        assert effects(tmp_path, "meta-properties", release=release) == ["refuses"]
    path = tmp_path / "meta.properties"
    path.write_text("#x\nversion=1\ncluster.id=c\\=d\nnode.id=4\n")
    assert effects(tmp_path, "meta-properties", release="2.8") == ["refuses"]
    assert effects(tmp_path, "meta-properties", cluster_id="c=d", node_id=4) == ["ok"]
    assert effects(tmp_path, "meta-properties", node_id=5) == ["refuses", "ok"]
    assert effects(tmp_path, "meta-properties", cluster_id="e") == ["warns"]
    path.write_text("version=0\ncluster.id=c\nbroker.id=4\n")
    given = {"release": "2.8", "cluster_id": "e"}
    assert effects(tmp_path, "meta-properties", **given) == ["refuses"]


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("version=1\ncluster.id=c\nnode.id=4\n", "ok"),
        ("version=0\nbroker.id=4\n", "ok"),
        ("version=1\ncluster.id=c\n", "refuses"),
        ("version=1\nnode.id=4\n", "refuses"),
        ("version=1\ncluster.id=c\nnode.id=four\n", "refuses"),
        ("version=7\ncluster.id=c\nnode.id=4\n", "refuses"),
        ("version=1\ncluster.id=c\nnode.id=4\ndirectory.id=%%%\n", "refuses"),
    ],
)
def test_properties_that_a_broker_with_kraft_refuses(
    tmp_path: Path, text: str, effect: str
) -> None:
    """Required properties are missing, or have an unknown version."""
    store_at(tmp_path)
    (tmp_path / "meta.properties").write_text(text)
    assert effects(tmp_path, "meta-properties", release="3.9") == [effect]


def test_what_a_broker_takes_for_one_partition_twice_is_refused(tmp_path: Path) -> None:
    """If both have an id: one without an id is set aside before, if a cluster knows
    ids."""
    partition = store_at(tmp_path) / "orders-0"
    twin = tmp_path / "orders-00"
    twin.mkdir()
    assert effects(tmp_path, "directory-name", release="2.8") == ["refuses"]
    assert effects(tmp_path, "directory-name", release="3.9") == ["warns"]
    for one in (partition, twin):
        (one / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}")
    (found,) = findings(tmp_path, "directory-name", release="3.9")
    assert (found.effect, found.path) == ("refuses", str(twin))


def test_file_without_an_offset_is_refused_and_a_directory_is_not(
    tmp_path: Path,
) -> None:
    """A broker ignores a directory with the name of a segment, and follows a link."""
    partition = store_at(tmp_path) / "orders-0"
    (partition / f"{500:020d}.log").mkdir()
    assert effects(tmp_path, "segment") == []
    assert effects(tmp_path, "damage") == ["warns"]
    (partition / "abc.index").touch()
    assert effects(tmp_path, "segment") == ["refuses"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zz-9999999999/partition.metadata", f"version: 0\ntopic_id: {ID}"),
        ("orders-0/abc.log", ""),
        ("orders-0/abc.snapshot", ""),
        ("cleaner-offset-checkpoint", "garbage\n"),
        ("cleaner-offset-checkpoint", "1\n1\norders 0 5\n"),
    ],
)
def test_file_with_which_a_broker_does_not_start_is_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    """The number of a partition has 32 bits, the names of the files of a log are
    offsets, and a checkpoint has version 0."""
    path = store_at(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    report = logstore.kafka.check_handover(
        tmp_path, from_kafka=False, release="2.8", retention_ms=-1
    )
    (refused,) = (one for one in report.findings if one.effect == "refuses")
    assert str(refused.path).startswith(str(tmp_path / Path(name).parts[0]))


def test_checkpoint_with_a_number_below_0_is_not_refused(tmp_path: Path) -> None:
    """A broker reads it; an unreadable checkpoint of the cleaner ends it."""
    store_at(tmp_path)
    name = "recovery-point-offset-checkpoint"
    (tmp_path / name).write_text("0\n1\norders 0 -5\n")
    assert effects(tmp_path, "checkpoint", from_kafka=False) == []
    (tmp_path / "cleaner-offset-checkpoint").write_text("1\n0\n")
    assert effects(tmp_path, "checkpoint", from_kafka=False) == ["refuses"]


def test_records_that_a_broker_deletes_at_once_are_told(tmp_path: Path) -> None:
    """The limit is a time, which counts from the record, or a size."""
    config = logstore.TopicConfig(message_format=2)
    now_ms = time.time_ns() // 1_000_000
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config)[0]
        for days in (30, 20, 0):
            partition.append(b"x" * 100, timestamp_ms=now_ms - days * DAY_MS)
            partition.roll()
        partition.append(b"x", timestamp_ms=now_ms + DAY_MS)
    (one,) = findings(tmp_path, "retention")
    assert (one.effect, one.values["segments"], one.values["endOffset"]) == (
        "loses", 2, 2,
    )  # fmt: skip
    assert effects(tmp_path, "retention", retention_ms=-1) == []
    assert effects(tmp_path, "retention", retention_ms=40 * DAY_MS) == []
    (one,) = findings(tmp_path, "retention", retention_ms=-1, retention_bytes=200)
    assert one.values["segments"] >= 1
    (ahead,) = findings(tmp_path, "future-time")
    assert (ahead.effect, ahead.values["timestamp"]) == ("warns", now_ms + DAY_MS)


def test_time_in_the_future_holds_retention_whatever_the_time_of_the_file(
    tmp_path: Path,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config)[0]
        partition.append(b"x", timestamp_ms=now_ms + DAY_MS)
    old = now_ms / 1000 - 30 * DAY_MS / 1000
    os.utime(tmp_path / "orders-0" / f"{0:020d}.log", (old, old))
    assert effects(tmp_path, "retention") == []
    assert effects(tmp_path, "future-time") == ["warns"]


def test_settings_groups_and_old_formats_are_told(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=1, segment_bytes=5000)
        store.create_topic("orders", config=config)[0].append(b"x")
    with logstore.Consumer(tmp_path, group="billing") as consumer:
        consumer.assign([("orders", 0)])
        consumer.commit({logstore.TopicPartition("orders", 0): 1})
    (one,) = findings(tmp_path, "settings")
    assert one.values["settings"] == ["orders: segment.bytes=5000"]
    (one,) = findings(tmp_path, "groups")
    assert one.values["groups"] == ["billing"]
    (one,) = findings(tmp_path, "magic")
    assert one.values["magics"] == [1]


def test_damage_and_files_that_a_broker_refuses_are_told(tmp_path: Path) -> None:
    partition = store_at(tmp_path) / "orders-0"
    (partition / f"{0:020d}.index").unlink()
    assert effects(tmp_path, "index") == ["changes"]
    (partition / "leader-epoch-checkpoint").write_text("x")
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: short")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("x")
    assert effects(tmp_path, "checkpoint", from_kafka=False) == ["refuses"] * 3
    log = partition / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    (one,) = findings(tmp_path, "damage", from_kafka=False)
    assert one.effect == "loses"
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (clean,) = findings(tmp_path, "clean-stop", from_kafka=False)
    assert (clean.effect, clean.values) == (
        "warns", {"segments": 1, "bytes": len(data)},
    )  # fmt: skip


def test_topics_of_the_cluster_are_compared(tmp_path: Path) -> None:
    """The metadata log of the directory, from its newest snapshot on, lists the
    existing topics and their ids."""
    store_at(tmp_path)
    ids = {name: bytes([number]) * 16 for number, name in enumerate(("a", "orders"))}

    def topic(name: str) -> bytes:
        return topic_record(name, ids[name])

    log = tmp_path / "__cluster_metadata-0"
    metadata = tmp_path / "orders-0" / "partition.metadata"
    assert effects(tmp_path, "topic-id") == ["loses"]
    metadata.write_text("version: 0\ntopic_id: " + "AQEBAQEBAQEBAQEBAQEBAQ")
    assert effects(tmp_path, "topic") == ["warns"]
    metadata_log(log, [topic("a"), topic("orders")], f"{0:020d}.log")
    assert effects(tmp_path, "topic") == ["ok"]
    metadata.write_text(f"version: 0\ntopic_id: {ID}")
    assert effects(tmp_path, "topic-id") == ["loses"]
    metadata.write_text("version: 0\ntopic_id: " + "AQEBAQEBAQEBAQEBAQEBAQ")
    assert effects(tmp_path, "topic") == ["ok"]
    removed = topic_record("orders", ids["orders"], is_removed=True)
    metadata_log(log, [topic("a"), topic("orders"), removed], f"{0:020d}.log")
    assert effects(tmp_path, "topic") == ["loses"]
    # A snapshot after the log overrides it.
    metadata_log(log, [topic("orders")], f"{7:020d}-{1:010d}.checkpoint")
    assert effects(tmp_path, "topic") == ["ok"]
    # A number without an end, and damage.
    metadata_log(log, [b"\xff" * 1_000_000], f"{7:020d}-{1:010d}.checkpoint")
    assert effects(tmp_path, "topic") == ["warns"]
    (log / f"{7:020d}-{1:010d}.checkpoint").write_bytes(b"\1" * 80)
    assert effects(tmp_path, "topic") == ["warns"]
    with_zookeeper = {"release": "2.8"}
    assert effects(tmp_path, "topic", **with_zookeeper) == ["warns"]


# ------------------------------------------------------------ from a broker


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The directory of a real broker that was stopped."""
    return Path(shutil.copytree(SLICE / "4.2.0" / "clean", tmp_path / "theirs"))


def test_lock_of_a_broker_refuses_the_opening(theirs: Path) -> None:
    (theirs / ".lock").touch()
    assert effects(theirs, "lock") == ["ok"]
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX)"
        "; print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(theirs / ".lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        (one,) = findings(theirs, "lock")
        assert (one.effect, one.values["pid"]) == ("refuses", process.pid)
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(theirs)
        process.communicate(b"")


def test_unclean_stop_is_told_with_what_opening_reads(theirs: Path) -> None:
    assert effects(theirs, "clean-stop") == ["ok"]
    (theirs / ".kafka_cleanshutdown").unlink()
    (theirs / "recovery-point-offset-checkpoint").unlink()
    (one,) = findings(theirs, "clean-stop")
    sizes = [log.stat().st_size for log in theirs.glob("*/*.log")]
    assert one.values == {"segments": len(sizes), "bytes": sum(sizes)}
    with logstore.open(theirs) as store:
        store.recover()


def test_directories_that_are_no_partitions_are_told(theirs: Path) -> None:
    """Directories that wait for their deletion are removed, the others stay."""
    for ending in ("delete", "future", "stray"):
        (theirs / f"gone-0.{'0' * 32}-{ending}").mkdir()
    (theirs / "remote-log-index-cache").mkdir()
    (theirs / "__cluster_metadata-0").mkdir()
    assert effects(theirs, "directory-name") == ["changes", "ok", "ok"]
    assert effects(theirs, "remote-storage") == ["loses"]
    assert effects(theirs, "metadata-log") == ["ok"]
    with logstore.open(theirs) as store:
        assert "gone" not in store.topics()
        assert "__cluster_metadata" not in store.topics()
    for name in ("future", "stray"):
        assert (theirs / f"gone-0.{'0' * 32}-{name}").exists()


def test_topics_get_default_settings(theirs: Path) -> None:
    """The format of appends is the reported one."""
    (one,) = findings(theirs, "settings")
    with logstore.open(theirs) as store:
        topics = [store.topic(name) for name in store.topics() if name[:2] != "__"]
        assert one.values["topics"] == [topic.name for topic in topics]
        formats = {topic.name: topic.config.message_format for topic in topics}
        assert one.values["formats"] == formats
        for topic in topics:
            magic = formats[topic.name]
            assert topic.config == logstore.TopicConfig(message_format=magic)
            (number, *_) = topic.numbers
            offset = topic[number].append(b"x", b"key")
            *_, last = topic[number].read_batches(start=offset)
            assert last.magic == magic
    assert formats.pop("empty") == 1
    assert set(formats.values()) == {2}
    assert f"appends to {len(formats)} of them continue in magic 2" in one.message


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ((2,), "1 topic has .*; appends continue in magic 2, as its log ends"),
        ((1, 1), "2 topics have .*; appends are of magic 1"),
        (
            (1, 2, 2),
            "3 topics have .*; appends to 2 of them .* in magic 2, .* in magic 1",
        ),
    ],
)
def test_format_of_appends_is_told(
    tmp_path: Path, formats: tuple[int, ...], expected: str
) -> None:
    with logstore.open(tmp_path) as store:
        for number, magic in enumerate(formats):
            config = logstore.TopicConfig(message_format=magic)
            store.create_topic(f"t{number}", config=config)[0].append(b"x")
    (tmp_path / layout.TOPICS).unlink()
    (one,) = findings(tmp_path, "settings", from_kafka=True)
    assert re.search(expected, one.message)


def test_format_that_was_persisted_is_told(tmp_path: Path) -> None:
    """The logs that ended with it are empty."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        store.create_topic("t", config=config)[0].append(b"x")
    (tmp_path / layout.TOPICS).unlink()
    with logstore.open(tmp_path) as store:
        partition = store["t"][0]
        partition.delete_before(partition.append(b"y") + 1)
        partition.roll()
    (one,) = findings(tmp_path, "settings", from_kafka=True)
    assert one.values["formats"] == {"t": 2}


def test_damage_is_told_and_nothing_is_cut(theirs: Path) -> None:
    log = max(theirs.glob("txn-0/*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    assert "loses" in effects(theirs, "damaged-batch")
    with logstore.open(theirs) as store:
        store.recover()
    assert log.read_bytes() == bytes(data)


def test_partition_whose_directory_is_gone_is_a_loss(tmp_path: Path) -> None:
    """This holds in both directions: a broker would serve an empty log in its place."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 2)[0].append(b"x")
    shutil.rmtree(tmp_path / "orders-0")
    (one,) = findings(tmp_path, "damage", from_kafka=False)
    assert (one.effect, one.path) == ("loses", str(tmp_path / "orders-0"))
    assert effects(tmp_path, "lost-segment", from_kafka=True) == ["loses"]


def test_end_that_is_cut_is_told_of_a_log_and_of_an_index(tmp_path: Path) -> None:
    """A torn tail, and zeros after the entries of an index."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append(b"v")
    root = Directory.open_root(Files(), str(tmp_path))
    run = Run(root.files, False, None)
    for kind in (kinds.TORN_TAIL, kinds.ZERO_TAIL):
        run.note(kind, f"{tmp_path}/orders-0/x", f"{kind} of x")
    facts = look_at(root, run)
    root.close()
    for judge in (DirectoryOpening(facts), Broker(facts, "4.2", None, None, -1, -1)):
        told = [one for one in judge.findings() if one.kind == "torn-tail"]
        assert [one.severity for one in told] == ["changes", "changes"]
        assert all("it is cut" in one.message for one in told)
