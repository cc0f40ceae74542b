"""Cluster data in the files of a KRaft broker: topics, and feature levels."""

from __future__ import annotations

from pathlib import Path

from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.maintenance.cluster import NO_CLUSTER, Cluster, cluster_of
from support.cluster_files import level_record, metadata_log, topic_record

FIRST = f"{0:020d}-{0:010d}.checkpoint"
LATER = f"{7:020d}-{1:010d}.checkpoint"
LOG = f"{0:020d}.log"
NAME = "metadata.version"
TOPIC_ID = bytes(range(16))


def found(path: Path) -> Cluster:
    root = Directory.open_root(Files(), str(path))
    try:
        return cluster_of(root)
    finally:
        root.close()


def test_directory_without_files_of_a_cluster_says_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == NO_CLUSTER


def test_levels_are_kept_by_where_they_are(tmp_path: Path) -> None:
    """Brokers of different releases read different ones of these files."""
    log = tmp_path / "__cluster_metadata-0"
    metadata_log(tmp_path, [level_record(NAME, 21)], "bootstrap.checkpoint")
    assert found(tmp_path) == Cluster(bootstrap={NAME: 21})
    levels = [level_record(NAME, 33), level_record("share.version", 2)]
    metadata_log(log, levels, FIRST)
    formatted = {NAME: 33, "share.version": 2}
    assert found(tmp_path) == Cluster({}, {}, formatted, {NAME: 21})
    metadata_log(log, [level_record(NAME, 30), topic_record("t", TOPIC_ID)], LOG)
    topics = {"t": "AAECAwQFBgcICQoLDA0ODw"}
    assert found(tmp_path) == Cluster(topics, {NAME: 30}, formatted, {NAME: 21})


def test_highest_level_of_the_log_counts_until_a_snapshot(tmp_path: Path) -> None:
    """Brokers of 4.3 refused a log with share.version 2, although 1 followed it."""
    log = tmp_path / "__cluster_metadata-0"
    raised = [level_record("share.version", level) for level in (1, 2, 1)]
    metadata_log(log, raised, LOG)
    assert found(tmp_path).levels == {"share.version": 2}
    metadata_log(log, [level_record("share.version", 1)], LATER)
    assert found(tmp_path) == Cluster({}, {"share.version": 1})


def test_damage_leaves_what_is_before_it(tmp_path: Path) -> None:
    """There are no topics: the current ones are unknown."""
    log = tmp_path / "__cluster_metadata-0"
    metadata_log(log, [topic_record("t", TOPIC_ID), level_record(NAME, 33)], LOG)
    data = (log / LOG).read_bytes()
    (log / LOG).write_bytes(data + data[:20] + bytes(200))
    assert found(tmp_path) == Cluster(None, {NAME: 33})
    metadata_log(tmp_path, [level_record(NAME, 21), b"\xff"], "bootstrap.checkpoint")
    assert found(tmp_path).bootstrap == {NAME: 21}
    (tmp_path / "bootstrap.checkpoint").write_bytes(bytes(61))
    assert found(tmp_path).bootstrap == {}


def test_directory_in_the_place_of_a_file_is_no_bootstrap(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.checkpoint").mkdir()
    assert found(tmp_path) == NO_CLUSTER
