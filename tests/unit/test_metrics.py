"""The metrics of a store: `Store.metrics`, and the formats of `logstore.metrics`."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import metrics
from logstore.io.files import Files
from logstore.store.opening import open_store
from support import golden
from support.damage import FaultyFiles, crash, flip_bit, snapshot_of

SMALL = logstore.TopicConfig(
    segment_bytes=1000, message_format=2, flush_messages=10**6, flush_ms=10**9
)


METRICS = (
    *metrics.OF_STORE,
    *metrics.OF_PARTITION,
    *metrics.OF_GROUP,
    *metrics.OF_GROUP_PARTITION,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", partitions=2, config=SMALL)
        for number in range(40):
            topic[0].append(b"x" * 100, timestamp_ms=number)
        topic[1].append(b"y", durable=True)
        yield store


def row(found: dict[str, Any], number: int) -> dict[str, Any]:
    return next(row for row in found["partitions"] if row["partition"] == number)


def with_group(store: logstore.Store) -> None:
    """Group "billing" has committed offset 30 of orders-0; no member lives."""
    with logstore.Consumer(store.path, group="billing") as consumer:
        consumer.assign([logstore.TopicPartition("orders", 0)])
        consumer.commit({logstore.TopicPartition("orders", 0): 30})


def test_metrics_of_a_writer_say_what_its_partitions_say(store: logstore.Store) -> None:
    """Offsets, sizes and segments agree with the partitions."""
    found = store.metrics()
    for partition in store.topic("orders"):
        numbers = row(found, partition.number)
        assert numbers["log_start_offset"] == partition.start_offset
        assert numbers["log_end_offset"] == partition.end_offset
        assert numbers["durable_offset"] == partition.durable_offset
        assert numbers["segments"] == len(partition.segments)
        assert numbers["size_bytes"] == sum(s.size_bytes for s in partition.segments)
        assert numbers["is_writable"] is True
    assert row(found, 0)["segments"] > 3
    assert found["partition_count"] == 2
    assert found["topic_count"] == 1
    assert found["size_bytes"] == sum(r["size_bytes"] for r in found["partitions"])
    assert found["free_bytes"] > 0
    assert found["is_clean"] is False


def test_metrics_count_syncs_and_what_is_not_synced(store: logstore.Store) -> None:
    """`flushes` rises with a sync, and `unsynced_records` falls to 0."""
    partition = store.topic("orders")[0]
    partition.append(b"z")
    before = row(store.metrics(), 0)
    assert before["unsynced_records"] > 0
    partition.flush()
    after = row(store.metrics(), 0)
    assert after["unsynced_records"] == 0
    assert after["flushes"] == before["flushes"] + 1
    assert after["flush_seconds"] >= before["flush_seconds"] > 0
    assert 0 < after["flush_seconds_max"] <= after["flush_seconds"]


def test_metrics_are_plain_values(store: logstore.Store) -> None:
    """They can be converted to JSON and back."""
    found = store.metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_documented_keys_are_those_that_there_are(store: logstore.Store) -> None:
    """docs/metrics.md names each key, and no others."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    text = page.read_text()
    found = {**store.metrics(), **metrics.of_directory(store.path)}
    with_group(store)
    (group,) = store.metrics()["consumer_groups"]
    keys = {*found, *found["partitions"][0], *group, *group["partitions"][0]}
    table = set(re.findall(r"^\| `((?!(?:logstore|kafka)_)\w+)` \|", text, re.M))
    assert table == keys


def test_documented_names_are_those_of_prometheus(store: logstore.Store) -> None:
    """docs/metrics.md names each metric, and no others."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    named = set(re.findall(r"`((?:kafka|logstore)_\w+)`", page.read_text()))
    all_of_them = {metric.prometheus for metric in METRICS}
    assert named == {*all_of_them, "logstore_info"}


def test_metrics_of_partitions_that_nobody_used_come_from_their_state(
    store: logstore.Store,
) -> None:
    """A store that was opened again reports the same numbers, and loads no
    partition."""
    before = store.metrics()
    store.close()
    with logstore.open(store.path) as again:
        found = again.metrics()
        assert found["loaded_partitions"] == 0
        assert found["is_clean"] is True
        for number in range(2):
            for key in ("size_bytes", "segments", "log_start_offset", "log_end_offset"):
                assert row(found, number)[key] == row(before, number)[key], key
            assert row(found, number)["unsynced_records"] == 0
            assert row(found, number)["is_writable"] is True
        assert again.metrics()["loaded_partitions"] == 0


def test_metrics_of_partitions_that_wait_for_their_recovery_are_open(
    store: logstore.Store, tmp_path: Path
) -> None:
    """If only the recovery can determine the end of a log, the value is None, not a
    guess."""
    copy = crash(Path(store.path), tmp_path / "copy")
    with logstore.open(copy) as again:
        numbers = row(again.metrics(), 0)
        assert numbers["log_end_offset"] is None
        assert numbers["segments"] > 3
        assert numbers["size_bytes"] > 0
        assert "logendoffset" not in metrics.prometheus(again)
        again.recover()
        assert row(again.metrics(), 0)["log_end_offset"] == 40


def test_metrics_read_each_state_of_an_idle_partition_once(
    store: logstore.Store,
) -> None:
    """A scrape every few seconds reads no files."""
    store.close()
    files = FaultyFiles()
    with logstore.open(store.path, _files=files) as again:
        again.metrics()
        opened = files.count("open")
        again.metrics()
        assert files.count("open") == opened


def test_metrics_wait_for_no_append_and_no_sync(store: logstore.Store) -> None:
    """They come while other threads hold all locks of the partitions; metrics of groups
    come, too."""
    with_group(store)
    writer = store._topics.writers.loaded["orders", 0]
    done = threading.Event()
    found: list[dict[str, Any]] = []

    def look() -> None:
        found.append(store.metrics())
        done.set()

    thread = threading.Thread(target=look)
    with store._context.lock, writer.sync_lock, writer.lock:
        thread.start()
        assert done.wait(20)
    thread.join()
    assert row(found[0], 0)["log_end_offset"] == 40
    assert found[0]["consumer_groups"][0]["partitions"][0]["lag"] == 10


def test_failed_partition_is_not_writable(tmp_path: Path) -> None:
    """A partition that takes no more appends is marked so."""
    files = FaultyFiles()
    with logstore.open(tmp_path / "data", _files=files) as store:
        store.create_topic("a", config=SMALL)[0].append(b"1")
        files.fail("sync")
        with pytest.raises(logstore.errors.SyncFailedError):
            store.topic("a")[0].flush()
        assert row(store.metrics(), 0)["is_writable"] is False
        assert 'logstore_log_writable{topic="a",partition="0"} 0' in (
            metrics.prometheus(store)
        )
        files.heal()


def test_closed_store_has_no_metrics(store: logstore.Store) -> None:
    """The error is the same as of other calls."""
    store.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        store.metrics()


def test_deleted_topic_is_in_no_metrics(store: logstore.Store) -> None:
    """Neither the writer nor a reader that knew it reports it."""
    with logstore.open(store.path, read_only=True) as reader:
        assert reader.metrics()["partition_count"] == 2
        store.delete_topic("orders")
        assert store.metrics()["partitions"] == []
        assert store.metrics()["waiting_bytes"] >= 0
        assert reader.metrics()["partitions"] == []


# ------------------------------------------------------------------ a directory


def test_metrics_of_a_directory_beside_its_writer(store: logstore.Store) -> None:
    """They agree with a read-only store, with the process that has it open."""
    store.topic("orders").flush()
    found = metrics.of_directory(store.path)
    assert found["holder_pid"] == os.getpid()
    assert found["is_held"] is True
    assert row(found, 0)["log_end_offset"] == 40
    assert row(found, 0)["flushes"] is None
    assert row(found, 0)["is_writable"] is False
    text = metrics.text(found)
    assert "logstore_writer_present 1\n" in text
    assert "flush" not in text


def test_metrics_of_a_directory_change_nothing(store: logstore.Store) -> None:
    """Neither bytes nor times of files change."""
    store.close()
    before = snapshot_of(Path(store.path))
    assert metrics.of_directory(store.path)["holder_pid"] is None
    assert snapshot_of(Path(store.path)) == before


@pytest.mark.parametrize("scenario", ["clean", "killed"])
def test_metrics_of_a_directory_of_kafka(scenario: str) -> None:
    """Start and end are as the broker itself reported them."""
    path = golden.SLICE / "3.9.1" / scenario
    offsets = json.loads(
        (path.parent / f"{scenario}.expected/offsets.json").read_text()
    )
    found = metrics.of_directory(path)
    assert found["partitions"]
    for numbers in found["partitions"]:
        name = f"{numbers['topic']}-{numbers['partition']}"
        assert name in offsets
        assert numbers["log_start_offset"] == offsets[name]["logStartOffset"], name
        assert numbers["log_end_offset"] == offsets[name]["logEndOffset"], name


def test_damaged_partition_is_offline_and_the_others_are_there(
    store: logstore.Store,
) -> None:
    """A directory with a partition that cannot be opened still has metrics."""
    store.close()
    state = Path(store.path) / "orders-0"
    flip_bit(state / ".logstore-state", 200)
    found = metrics.of_directory(store.path)
    assert row(found, 1)["log_end_offset"] == 1
    assert found["offline_partitions"] == 1 - row(found, 0)["is_online"]
    assert 'logstore_log_online{topic="orders",partition="1"} 1' in metrics.text(found)


def test_directory_that_is_no_store_is_a_named_error(
    store: logstore.Store, tmp_path: Path
) -> None:
    """A missing path, a directory without a log, a partition's, and a file."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "etc" / "dbus-1").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    store.topic("orders").flush()
    for path, word in (
        (tmp_path / "missing", "no such file"),
        (tmp_path / "empty", "no store"),
        (tmp_path / "etc", "not a store"),
        (Path(store.path) / "orders-0", "parent"),
        (tmp_path / "file", "file"),
    ):
        with pytest.raises(logstore.StoreNotFoundError, match=word):
            metrics.of_directory(path)


# ------------------------------------------------------------------ Prometheus

LINE = re.compile(
    r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})?'
    r" -?[0-9]+(\.[0-9]+(e-?[0-9]+)?)?"
)


def test_prometheus_text_is_what_the_format_says(store: logstore.Store) -> None:
    """Each family has its help and type before its samples, once."""
    text = metrics.prometheus(store)
    assert text.endswith("\n")
    family, seen = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in seen
            seen.add(family)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            assert line.split()[3] in ("gauge", "counter")
        else:
            assert LINE.fullmatch(line), line
            assert re.match(r"\w+", line)[0] == family  # type: ignore[index]
    assert 'kafka_log_log_logendoffset{topic="orders",partition="0"} 40\n' in text


def test_prometheus_own_parser_reads_the_same_numbers(store: logstore.Store) -> None:
    """The parser of Prometheus' client gets each value back."""
    parser = pytest.importorskip("prometheus_client.parser")
    found = store.metrics()
    samples: dict[tuple[str, str, str], float] = {}
    for family in parser.text_string_to_metric_families(metrics.text(found)):
        for sample in family.samples:
            labels = sample.labels
            place = labels.get("topic", ""), labels.get("partition", "")
            # This parser gives each counter the suffix that it has in OpenMetrics.
            name = sample.name.removesuffix("_total")
            samples[(name, *place)] = sample.value
    for metric in metrics.OF_PARTITION:
        for numbers in found["partitions"]:
            place = numbers["topic"], str(numbers["partition"])
            name = metric.prometheus.removesuffix("_total")
            assert samples[(name, *place)] == numbers[metric.key]
    for metric in metrics.OF_STORE:
        if found.get(metric.key) is not None:
            name = metric.prometheus.removesuffix("_total")
            assert samples[(name, "", "")] == found[metric.key]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ('/a"b', '/a\\"b'),
        ("/a\\b", "/a\\\\b"),
        ("/a\\nb", "/a\\\\nb"),
        ("/a\nb", "/a\\nb"),
        ("/a\rb", "/a\\\\rb"),
        ("/a\\xb", "/a\\\\xb"),
        (os.fsdecode(b"/a\xffb"), "/a\\\\xffb"),
        ("/käse", "/käse"),
    ],
)
def test_labels_are_escaped(store: logstore.Store, path: str, shown: str) -> None:
    """Whatever the name of a directory, the text can be parsed."""
    text = metrics.text({**store.metrics(), "path": path})
    line = text.splitlines()[2]
    assert line == f'logstore_info{{path="{shown}"}} 1'
    assert LINE.fullmatch(line)
    text.encode()


# ------------------------------------------------------------------ OpenTelemetry


def collected(reader: Any) -> dict[str, dict[tuple[str, int], float]]:
    """Values by name of the metric, and by topic and partition."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    data = reader.get_metrics_data()
    if data is None:
        return found
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels = point.attributes
                    place = labels.get("topic", ""), labels.get("partition", -1)
                    found.setdefault(metric.name, {})[place] = point.value
    return found


def test_opentelemetry_observes_what_metrics_says(store: logstore.Store) -> None:
    """Each instrument observes at each collection, and nothing once the store is
    closed."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    instruments = metrics.opentelemetry(store, meter)
    assert len(instruments) == len(METRICS)
    found, numbers = collected(reader), store.metrics()
    for metric in metrics.OF_PARTITION:
        for one in numbers["partitions"]:
            place = one["topic"], one["partition"]
            assert found[metric.otel][place] == one[metric.key], metric
    assert found["kafka.partition.count"][("", -1)] == 2
    assert "logstore.writer_present" not in found  # of_directory has it
    store.close()
    assert collected(reader) == {}


class Clock(Files):
    """A clock that a test moves."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def test_opentelemetry_reads_the_store_at_each_collection(tmp_path: Path) -> None:
    """Values are cached for half a second."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader, clock = InMemoryMetricReader(), Clock()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    with open_store(tmp_path, _files=clock) as store:
        partition = store.create_topic("orders")[0]
        metrics.opentelemetry(store, meter)
        for end in range(3):
            found = collected(reader)["kafka.partition.current_offset"]
            assert found == {("orders", 0): end}
            partition.append(b"x")
            clock.ahead_s += 1


def test_opentelemetry_keeps_no_store_open(tmp_path: Path) -> None:
    """Gauges do not keep a forgotten store alive."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    store = logstore.open(tmp_path / "data")
    metrics.opentelemetry(store, meter)
    assert collected(reader)
    alive = weakref.ref(store)
    del store

    def collect() -> None:
        """Collect garbage; the thread of the store may be in its first check, and use
        it."""
        while alive() is not None:
            gc.collect()

    with pytest.warns(ResourceWarning):
        collect()
    assert collected(reader) == {}
    with logstore.open(tmp_path / "data"):
        pass  # its lock was released


def test_missing_opentelemetry_is_a_helpful_error(
    store: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        logstore.errors.UnsupportedError, match=r"pylogstore\[metrics\]"
    ):
        metrics.opentelemetry(store)


def test_module_is_there_without_an_import_of_its_own() -> None:
    """`logstore.metrics` works after `import logstore`, which does not load it."""
    code = (
        "import sys, logstore\n"
        "assert 'logstore.metrics' not in sys.modules\n"
        "assert 'logstore.maintenance.report' not in sys.modules\n"
        "assert callable(logstore.metrics.prometheus)\n"
        "assert callable(logstore.report)\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "from logstore import *\n"
        "assert report is logstore.report\n"
        "assert {'report', 'metrics', 'types'} <= set(dir(logstore))\n"
        "try:\n    logstore.nonsense\nexcept AttributeError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "nonsense" in done.stdout


@pytest.mark.parametrize("page", ["metrics.md", "report.md"])
def test_examples_of_the_page_run_as_they_stand(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All Python blocks, one after the other, in one directory."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if "metrics_server" in names:
        with logstore.open("data") as store:
            served(names["metrics_server"](store, 0))
    else:
        assert (tmp_path / "report.html").stat().st_size > 10_000


def served(server: Any) -> None:
    """The page of the example answers with the metrics."""
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    with server:
        url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
            assert b"kafka_log_log_logendoffset" in answer.read()
        thread.join()
