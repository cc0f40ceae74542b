"""The levels of features that are too new for a broker: each statement is compared with
brokers in tests/interop/test_handover_features.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from support.cluster_files import level_record, metadata_log

FIRST = f"{0:020d}-{0:010d}.checkpoint"
LOG = f"{0:020d}.log"
NAME = "metadata.version"
KRAFT = logstore.kafka.RELEASES[1:]


def cluster(path: Path, **levels: int) -> Path:
    """The metadata log of a directory, with levels of features; "_" for "."."""
    (path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    named = [level_record(name.replace("_", "."), n) for name, n in levels.items()]
    metadata_log(path / "__cluster_metadata-0", named, LOG)
    return path


def refusals(path: Path) -> list[str]:
    """The releases that refuse the levels."""
    found = []
    for release in logstore.kafka.RELEASES:
        report = logstore.kafka.check_handover(path, from_kafka=False, release=release)
        effects = [one.effect for one in report.findings if one.kind == "feature-level"]
        assert len(effects) == (release != "2.8")
        found += [release] if effects == ["refuses"] else []
    return found


@pytest.mark.parametrize(
    ("level", "refused"),
    [
        (21, 0), (22, 1), (25, 1), (29, 1), (30, 2), (31, 3), (33, 3), (34, 4),
    ],
)  # fmt: skip
def test_metadata_version_above_that_of_a_release_is_refused(
    tmp_path: Path, level: int, refused: int
) -> None:
    """Each release refuses it up to the first one that knows it."""
    cluster(tmp_path, metadata_version=level)
    assert refusals(tmp_path) == list(KRAFT[:refused])


def test_level_of_another_feature_counts_alone(tmp_path: Path) -> None:
    """A cluster of 4.2 whose share.version a later tool has raised."""
    cluster(tmp_path, metadata_version=29, share_version=2)
    assert refusals(tmp_path) == ["3.9", "4.2", "4.3"]
    cluster(tmp_path, metadata_version=21, share_version=0)
    assert refusals(tmp_path) == []
    cluster(tmp_path, metadata_version=33, unheard_version=1)
    assert refusals(tmp_path) == list(KRAFT)


def test_finding_says_what_is_too_new_and_what_to_do(tmp_path: Path) -> None:
    cluster(tmp_path, metadata_version=33, share_version=2)
    report = logstore.kafka.check_handover(tmp_path, from_kafka=False, release="4.2")
    (one,) = (one for one in report.problems if one.kind == "feature-level")
    levels = {NAME: 33, "share.version": 2}
    assert one.values == {"levels": levels, "release": "4.4"}
    assert one.path == str(tmp_path / "__cluster_metadata-0")
    assert "metadata.version 33, 4.4-IV2 (at most 29), share.version 2" in one.message
    assert "a broker of 4.4 or later" in one.message
    assert "kafka-storage of 4.2" in one.message
    (later,) = logstore.kafka.check_handover(
        cluster(tmp_path, metadata_version=40), from_kafka=False, release="3.9"
    ).problems
    assert "metadata.version 40 (at most 21)" in later.message
    assert "the release that has made it or later" in later.message
    assert later.values["release"] == ""


def test_directory_that_was_only_formatted_is_read_as_each_release_reads_it(
    tmp_path: Path,
) -> None:
    """Release 4.3 ignores the first snapshot; only 3.9 uses bootstrap.checkpoint, once
    the metadata log has levels."""
    cluster(tmp_path)
    log = tmp_path / "__cluster_metadata-0"
    (log / LOG).unlink()
    metadata_log(log, [level_record(NAME, 33)], FIRST)
    report = logstore.kafka.check_handover(tmp_path, from_kafka=False, release="4.3")
    assert "feature-level" not in {one.kind for one in report.findings}
    for release in ("3.9", "4.2"):
        report = logstore.kafka.check_handover(
            tmp_path, from_kafka=False, release=release
        )
        assert [one.kind for one in report.problems] == ["feature-level"]
    (log / FIRST).unlink()
    metadata_log(tmp_path, [level_record(NAME, 30)], "bootstrap.checkpoint")
    assert refusals(tmp_path) == ["3.9", "4.2"]
    metadata_log(log, [level_record(NAME, 21)], LOG)
    assert refusals(tmp_path) == ["3.9"]


def test_directory_without_a_cluster_has_no_levels(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
    report = logstore.kafka.check_handover(tmp_path, from_kafka=False)
    assert "feature-level" not in {one.kind for one in report.findings}
