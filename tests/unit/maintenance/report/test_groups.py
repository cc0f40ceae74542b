"""Groups of consumers in a report: lag, members, and stuck members."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.maintenance.report import groups as shown_groups
from support.groups import consumer, drain, settle, store_with
from support.offsets_topic import OffsetsTopic, commit_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Group "<g>" has read three of ten records."""
    path = store_with(tmp_path / "shop", partitions=1)
    with consumer(path, group="<g>") as one:
        settle(one)
        assert len(drain(one, 3)) == 3
        one.commit()
    return path


def test_report_shows_the_lag_of_each_group(store: Path) -> None:
    """It is in the plain values, and on the page with an escaped name."""
    report = logstore.report(store)
    (group,) = report.to_dict()["groups"]
    assert group == {
        "name": "<g>",
        "protocol": "logstore",
        "state": "Empty",
        "members": [],
        "lags": {"t-0": 7},
    }
    page = report.to_html()
    assert "t-0 (7)" in page
    assert "&lt;g&gt;" in page
    assert "<g>" not in page
    assert not [one for one in report.findings if one.kind == "group"]
    partition = logstore.report(store / "t-0")
    assert partition.to_dict()["groups"] == []
    assert 'id="groups"' not in partition.to_html()


@pytest.mark.parametrize(
    ("changed", "title", "detail"),
    [
        (
            {"stuck_ms": 61_000},
            "A member of group <g> is stuck",
            "Its poll is 1 minute overdue (max_poll_interval_ms).",
        ),
        ({"has_ended": True}, "which has ended, holds its locks", "has t-0 of group"),
        ({}, "", ""),
    ],
)
def test_member_that_keeps_its_partitions_needs_attention(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    title: str,
    detail: str,
) -> None:
    """The warning names its process; a member that polls gets none."""
    with consumer(store, group="<g>") as one:
        settle(one)
        (group,) = logstore.groups(store)
        members = (dataclasses.replace(group.members[0], **changed),)
        found = logstore.types.ConsumerGroups(
            [dataclasses.replace(group, members=members)]
        )
        monkeypatch.setattr(shown_groups, "groups", lambda path: found)
        report = logstore.report(store)
    findings = [one for one in report.findings if one.kind == "group"]
    assert len(findings) == (1 if title else 0)
    for finding in findings:
        assert finding.level == "warning"
        assert title in finding.title
        assert detail in finding.detail
        assert str(group.members[0].pid) in finding.title + finding.advice


def test_groups_of_a_broker_are_shown_from_its_directory(tmp_path: Path) -> None:
    """Whether its members are stuck is not known."""
    made = OffsetsTopic(tmp_path / "kafka", partitions=1)
    made.put(commit_of(7, "old", "orders"))
    (group,) = logstore.report(made.directory).to_dict()["groups"]
    assert (group["name"], group["protocol"]) == ("old", "classic")
    assert list(group["lags"].values()) == [None]


def test_group_that_cannot_be_read_is_a_problem_of_verify(store: Path) -> None:
    """The report is made nevertheless."""
    (file,) = (one for one in store.glob(".logstore-group-*") if one.suffix != ".lock")
    file.write_bytes(b"no group")
    report = logstore.report(store)
    assert not report.ok
    assert report.to_dict()["groups"] == []
