"""Consumer groups in `Store.metrics`, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import metrics
from support.groups import consumer, settle, store_with

HANGS = """\
import os, signal, sys
import logstore
one = logstore.Consumer(sys.argv[1], group="g", topics=["t"], reset="earliest",
                        max_poll_interval_ms=100)
while not one.assignment():
    one.poll(100)
one.commit()
print("joined", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Topic "t", two partitions of ten records."""
    return store_with(tmp_path / "store")


def group_of(numbers: dict[str, Any]) -> dict[str, Any]:
    (group,) = numbers["consumer_groups"]
    found: dict[str, Any] = group
    return found


def commit(path: Path, group: str, offset: int) -> None:
    key = logstore.TopicPartition("t", 0)
    with logstore.Consumer(path, group=group) as one:
        one.assign([key])
        one.commit({key: offset})


def test_store_without_groups_has_none(path: Path) -> None:
    numbers = metrics.of_directory(path)
    assert (numbers["consumer_groups"], numbers["unreadable_groups"]) == ([], 0)
    assert "consumergroup" not in metrics.text(numbers)


def test_lag_is_from_the_committed_offset_to_the_end(path: Path) -> None:
    """The owner shows it, whether it has used the partition or not, and so does any
    other process; it grows with each append, and the members are counted."""
    commit(path, "g", 4)
    row = {"topic": "t", "partition": 0, "current_offset": 4, "lag": 6}
    assert group_of(metrics.of_directory(path))["partitions"] == [row]
    with logstore.open(path) as store:
        assert store.metrics()["loaded_partitions"] == 0
        assert group_of(store.metrics())["partitions"] == [row]
        assert store.metrics()["loaded_partitions"] == 0
        store.topic("t")[0].append(b"x")
        assert group_of(store.metrics())["partitions"] == [{**row, "lag": 7}]
        assert group_of(metrics.of_directory(path))["partitions"][0]["lag"] == 7
        assert group_of(store.metrics())["members"] == 0
        with consumer(path) as one:
            settle(one)
            found = group_of(store.metrics())
            assert (found["members"], found["stuck_members"]) == (1, 0)
            assert found["state"] == "Stable"


def test_offset_that_does_not_count_any_more_has_no_lag(path: Path) -> None:
    """The topic was deleted and made again."""
    commit(path, "g", 4)
    with logstore.open(path) as store:
        store.delete_topic("t")
        store.create_topic("t")[0].append_many([b"x"] * 3)
        assert group_of(store.metrics())["partitions"][0]["lag"] is None
    text = metrics.text(metrics.of_directory(path))
    assert "kafka_consumergroup_current_offset{" in text
    assert "kafka_consumergroup_lag{" not in text


def test_prometheus_has_the_names_and_labels_of_kafka_exporter(path: Path) -> None:
    """The labels have the order of kafka_exporter; values of a group are escaped."""
    commit(path, 'a"b', 4)
    lines = metrics.text(metrics.of_directory(path)).splitlines()
    labels = 'consumergroup="a\\"b",topic="t",partition="0"'
    assert f"kafka_consumergroup_current_offset{{{labels}}} 4" in lines
    assert f"kafka_consumergroup_lag{{{labels}}} 6" in lines
    assert 'kafka_consumergroup_members{consumergroup="a\\"b"} 0' in lines
    assert 'logstore_consumergroup_stuck_members{consumergroup="a\\"b"} 0' in lines
    assert "logstore_unreadable_groups 0" in lines


def test_damaged_group_is_counted_and_the_others_are_there(path: Path) -> None:
    """Monitoring must not take it for a deleted group."""
    commit(path, "g", 4)
    commit(path, "h", 5)
    file = path / ".logstore-group-g"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data) * 2)
    numbers = metrics.of_directory(path)
    assert numbers["unreadable_groups"] == 1
    assert group_of(numbers)["group"] == "h"


@pytest.fixture
def hung(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A member that has been stopped, and holds both partitions."""
    words = [sys.executable, "-c", HANGS, str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        yield process
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.communicate()


def test_member_that_does_not_poll_is_counted_as_stuck(
    path: Path, hung: subprocess.Popen[str]
) -> None:
    """It lives, and no other member gets its partitions."""
    for _ in range(200):
        found = group_of(metrics.of_directory(path))
        if found["stuck_members"]:
            break
        time.sleep(0.05)
    assert (found["members"], found["stuck_members"]) == (1, 1)


def test_opentelemetry_has_the_names_of_its_kafka_receiver(path: Path) -> None:
    """Group, topic and partition as attributes."""
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    commit(path, "g", 4)
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    with logstore.open(path, read_only=True) as store:
        metrics.opentelemetry(store, provider.get_meter("test"))
        data = reader.get_metrics_data()
    provider.shutdown()
    points = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (lag,) = points["kafka.consumer_group.lag"]
    assert lag.value == 6
    at = {"logstore.path": str(path), "group": "g", "topic": "t", "partition": 0}
    assert dict(lag.attributes) == at
    (members,) = points["kafka.consumer_group.members"]
    assert dict(members.attributes) == {"logstore.path": str(path), "group": "g"}
