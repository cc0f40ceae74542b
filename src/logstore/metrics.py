"""Metrics of a store for monitoring: Prometheus text, OpenTelemetry, or plain values.

    text = logstore.metrics.prometheus(store)       # the content of a /metrics page
    logstore.metrics.opentelemetry(store)           # gauges, read at each collection
    logstore.metrics.of_directory("data")           # a store open in another process

Metrics that Kafka also has keep the names that jmx_exporter makes of Kafka's MBeans
(``kafka.log:type=Log,name=Size`` is ``kafka_log_log_size``), so dashboards and alerts
for brokers work on a store unchanged; metrics of consumer groups have the names and
labels of kafka_exporter. Metrics that neither has are called ``logstore_...``.
docs/metrics.md lists all of them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.config import StoreConfig
from logstore.errors import (
    LogStoreError,
    StoreNotFoundError,
    UnsupportedError,
    storage_errors,
)
from logstore.io.files import Files
from logstore.io.filesystem import check_is_store, is_directory, is_store, open_root
from logstore.io.lock import holder_of
from logstore.io.lock_record import state_of
from logstore.store.opening import open_store
from logstore.store.store import Store

__all__ = ["CONTENT_TYPE", "of_directory", "opentelemetry", "prometheus", "text"]

# The content type of a page with the result of `prometheus` or `text`.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
# How long the gauges of one collection share the same values of the store.
_SHARED_S: Final = 0.5


class Metric(NamedTuple):
    """One metric with its names.

    Attributes:
        key: in the dictionary of `Store.metrics`, in each of its ``partitions`` or
            ``consumer_groups``, or in each of the ``partitions`` of one of those.
        prometheus, otel: its names; Prometheus' name may contain a unit, as its rules
            require.
        kind: gauge or counter.
        unit: of OpenTelemetry.
        help: a short description.
    """

    key: str
    prometheus: str
    otel: str
    kind: str
    unit: str
    help: str


OF_PARTITION: Final = (
    Metric("size_bytes", "kafka_log_log_size", "kafka.log.size", GAUGE, "By",
           "Bytes of the .log files of a partition"),
    Metric("segments", "kafka_log_log_numlogsegments", "kafka.log.segments", GAUGE,
           "{segment}", "Segments of a partition"),
    Metric("log_start_offset", "kafka_log_log_logstartoffset",
           "kafka.partition.oldest_offset", GAUGE, "{offset}",
           "First offset that can be read"),
    Metric("log_end_offset", "kafka_log_log_logendoffset",
           "kafka.partition.current_offset", GAUGE, "{offset}",
           "Next offset to be assigned"),
    Metric("durable_offset", "logstore_log_durable_offset",
           "logstore.log.durable_offset", GAUGE, "{offset}",
           "Everything below this offset is on stable storage"),
    Metric("unsynced_records", "logstore_log_unsynced_records",
           "logstore.log.unsynced_records", GAUGE, "{record}",
           "Offsets that a power cut may lose"),
    Metric("is_online", "logstore_log_online", "logstore.log.online", GAUGE, "1",
           "1 if the partition can be read, else 0"),
    Metric("is_writable", "logstore_log_writable", "logstore.log.writable", GAUGE, "1",
           "1 if this process can append to the partition, else 0"),
    Metric("flushes", "logstore_log_flushes_total", "logstore.log.flushes", COUNTER,
           "{flush}", "Syncs of a partition since the store was opened"),
    Metric("flush_seconds", "logstore_log_flush_seconds_total",
           "logstore.log.flush.time", COUNTER, "s",
           "Time that syncs of a partition took since the store was opened"),
    Metric("flush_seconds_max", "logstore_log_flush_seconds_max",
           "logstore.log.flush.time.max", GAUGE, "s",
           "Longest sync of a partition since the store was opened"),
)  # fmt: skip

OF_STORE: Final = (
    Metric("flushes", "kafka_log_logflushstats_logflushrateandtimems_count",
           "kafka.logs.flush.time.count", COUNTER, "{flush}",
           "Syncs of all logs since the store was opened"),
    Metric("partition_count", "kafka_server_replicamanager_partitioncount",
           "kafka.partition.count", GAUGE, "{partition}", "Partitions of the store"),
    Metric("offline_partitions", "kafka_server_replicamanager_offlinereplicacount",
           "kafka.partition.offline", GAUGE, "{partition}",
           "Partitions that cannot be opened"),
    Metric("topic_count", "logstore_topics", "logstore.topics", GAUGE, "{topic}",
           "Topics of the store"),
    Metric("loaded_partitions", "logstore_loaded_partitions",
           "logstore.partitions.loaded", GAUGE, "{partition}",
           "Partitions that were used, or recovered, since the store was opened"),
    Metric("flush_seconds", "logstore_flush_seconds_total", "logstore.flush.time",
           COUNTER, "s", "Time that all syncs took since the store was opened"),
    Metric("is_clean", "logstore_clean", "logstore.clean", GAUGE, "1",
           "1 if the directory is marked as closed cleanly, else 0"),
    Metric("free_bytes", "logstore_free_bytes", "logstore.free", GAUGE, "By",
           "Bytes free on the file system"),
    Metric("waiting_bytes", "logstore_deletion_pending_bytes",
           "logstore.deletion_pending", GAUGE, "By",
           "Bytes of deleted files that wait for file_delete_delay_ms"),
    Metric("open_files", "logstore_open_files", "logstore.open_files", GAUGE, "{file}",
           "Files of segments that are open in this process"),
    Metric("is_held", "logstore_writer_present", "logstore.writer_present", GAUGE, "1",
           "1 if a process has the store open for writing, else 0"),
    Metric("unowned_since_ms", "logstore_unowned_since_ms", "logstore.unowned_since",
           GAUGE, "ms", "Time since which no process owns the store, in Unix ms"),
    Metric("unreadable_groups", "logstore_unreadable_groups",
           "logstore.groups.unreadable", GAUGE, "{group}",
           "Files of consumer groups that cannot be read"),
)  # fmt: skip

OF_GROUP: Final = (
    Metric("members", "kafka_consumergroup_members", "kafka.consumer_group.members",
           GAUGE, "{member}", "Live members of a consumer group"),
    Metric("stuck_members", "logstore_consumergroup_stuck_members",
           "logstore.consumer_group.stuck_members", GAUGE, "{member}",
           "Members that hold their partitions, but have not polled for too long"),
)  # fmt: skip

OF_GROUP_PARTITION: Final = (
    Metric("current_offset", "kafka_consumergroup_current_offset",
           "kafka.consumer_group.offset", GAUGE, "{offset}",
           "Offset that a consumer group has committed"),
    Metric("lag", "kafka_consumergroup_lag", "kafka.consumer_group.lag", GAUGE,
           "{offset}", "Offsets from the committed one to the end of the log"),
)  # fmt: skip


def of_directory(
    path: str | os.PathLike[str],
    *,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> dict[str, Any]:
    """The metrics of a store that another process may have open for writing:
    `Store.metrics` of a read-only one, with ``holder_pid`` (of the writer; 0 if it is
    unknown, None without a writer), ``is_held``, and ``unowned_since_ms``: since when
    no process owns the store, in Unix milliseconds (a process may still hold the lock
    for a moment, to carry out handed-in requests); None: it is owned, or unknown.

    Changes and locks nothing. Values known only to the writer (``flushes``): None.

    Raises:
        StoreNotFoundError: the path does not exist, or is not a store.
        StorageError: it cannot be read.
    """
    files = _files or Files()
    full = os.path.abspath(os.fspath(path))
    holder, unowned_since = _holder(files, full)
    with open_store(full, read_only=True, config=store_config, _files=files) as store:
        values = store.metrics()
    return {
        **values,
        "holder_pid": holder,
        "is_held": holder is not None,
        "unowned_since_ms": unowned_since,
    }


def _holder(files: Files, path: str) -> tuple[int | None, int | None]:
    """(the writer of the store at a path, since when no process owns it); raises if
    there is no store."""
    if not is_directory(files, path):
        raise StoreNotFoundError(f"{path} is a file, not a store", path=path)
    root = open_root(files, path)
    try:
        with storage_errors("examine", path), contextlib.suppress(FileNotFoundError):
            check_is_store(root, must_exist=True)
            if not is_store(root, root.names()):
                raise StoreNotFoundError(
                    f"{path} is not a store: it has no log", path=path
                )
            return holder_of(root), state_of(root).unowned_since
        return None, None
    finally:
        root.close()


# ------------------------------------------------------------------ Prometheus


def prometheus(store: Store) -> str:
    """The metrics of an open store in Prometheus' text format, version 0.0.4.

    Raises: as `Store.metrics`.
    """
    return text(store.metrics())


def text(metrics: Mapping[str, Any]) -> str:
    """The result of `Store.metrics` or `of_directory` in Prometheus' text format."""
    lines = [
        "# HELP logstore_info The store that the other metrics are of",
        "# TYPE logstore_info gauge",
        f"logstore_info{_labels({'path': metrics['path']})} 1",
    ]
    for metric in OF_STORE:
        lines += _family(metric, [({}, metrics.get(metric.key))])
    for metrics_of, rows in (
        (OF_PARTITION, _partitions(metrics)),
        (OF_GROUP, _groups(metrics)),
        (OF_GROUP_PARTITION, _group_partitions(metrics)),
    ):
        for metric in metrics_of:
            lines += _family(
                metric, [(labels, row.get(metric.key)) for labels, row in rows]
            )
    return "\n".join(lines) + "\n"


# The labels of a row of numbers, and the row.
_Labelled: TypeAlias = "list[tuple[dict[str, str], Mapping[str, Any]]]"
_RowsOf: TypeAlias = "Callable[[Mapping[str, Any]], _Labelled]"


def _partitions(metrics: Mapping[str, Any]) -> _Labelled:
    return [(_place(row), row) for row in metrics["partitions"]]


def _groups(metrics: Mapping[str, Any]) -> _Labelled:
    groups = metrics["consumer_groups"]
    return [({"consumergroup": group["group"]}, group) for group in groups]


def _group_partitions(metrics: Mapping[str, Any]) -> _Labelled:
    return [
        ({**labels, **_place(row)}, row)
        for labels, group in _groups(metrics)
        for row in group["partitions"]
    ]


def _place(row: Mapping[str, Any]) -> dict[str, str]:
    return {"topic": row["topic"], "partition": str(row["partition"])}


def _family(
    metric: Metric, values: Iterable[tuple[dict[str, str], Any]]
) -> Iterator[str]:
    rows = [
        f"{metric.prometheus}{_labels(labels)} {_number(value)}"
        for labels, value in values
        if value is not None
    ]
    if rows:
        yield f"# HELP {metric.prometheus} {metric.help}"
        yield f"# TYPE {metric.prometheus} {metric.kind}"
        yield from rows


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    parts = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(parts) + "}"


def _escaped(value: str) -> str:
    r"""A label's value: ``\``, ``"`` and line ends escaped, and bytes that are not
    UTF-8 (in the name of a directory) as ``\xNN``."""
    data = value.encode("utf-8", "surrogateescape")
    said = data.decode("utf-8", "backslashreplace").replace("\r", "\\r")
    return said.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ------------------------------------------------------------------ OpenTelemetry


class _Shared:
    """The values of a store that the gauges of one collection share; None if the store
    was closed or garbage-collected: no gauge keeps it open."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._files = store._context.files
        self._until = 0.0
        self._values: dict[str, Any] | None = None

    def now(self) -> dict[str, Any] | None:
        store = self._store()
        if store is None:
            return None
        now = self._files.monotonic()
        try:
            store._context.check_open()
            if self._values is None or now >= self._until:
                self._values = store.metrics()
                self._until = now + _SHARED_S
        except LogStoreError:
            self._values = None
        return self._values


def opentelemetry(store: Store, meter: Any = None) -> tuple[Any, ...]:
    """Register observable gauges and counters for an open store.

    Each collection reads the store once. The instruments observe nothing after the
    store is closed, and do not keep it open.

    Args:
        meter: of OpenTelemetry; None: that of the global provider, called "logstore".

    Returns the instruments.

    Raises:
        UnsupportedError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        raise UnsupportedError(
            "OpenTelemetry metrics need its API; install it with "
            "`pip install pylogstore[metrics]`"
        ) from error
    if meter is None:
        meter = api.get_meter("logstore")
    shared = _Shared(store)
    path = store.path

    def of_store(key: str) -> Callable[[Any], Iterator[Any]]:
        def observe(options: Any) -> Iterator[Any]:
            values = shared.now()
            value = None if values is None else values.get(key)
            if value is not None:
                yield api.Observation(_plain(value), {"logstore.path": path})

        return observe

    def of_rows(key: str, rows_of: _RowsOf) -> Callable[[Any], Iterator[Any]]:
        def observe(options: Any) -> Iterator[Any]:
            values = shared.now()
            for labels, row in rows_of(values) if values is not None else ():
                if row.get(key) is not None:
                    attributes = {"logstore.path": path, **_attributes(labels)}
                    yield api.Observation(_plain(row[key]), attributes)

        return observe

    return (
        *(_instrument(meter, metric, of_store(metric.key)) for metric in OF_STORE),
        *(
            _instrument(meter, metric, of_rows(metric.key, rows_of))
            for metrics, rows_of in (
                (OF_PARTITION, _partitions),
                (OF_GROUP, _groups),
                (OF_GROUP_PARTITION, _group_partitions),
            )
            for metric in metrics
        ),
    )


def _attributes(labels: Mapping[str, str]) -> dict[str, str | int]:
    """Labels as OpenTelemetry's Kafka receivers name them."""
    names = {"consumergroup": "group"}
    return {
        names.get(name, name): int(value) if name == "partition" else value
        for name, value in labels.items()
    }


def _plain(value: Any) -> int | float:
    return int(value) if isinstance(value, bool) else value


def _instrument(meter: Any, metric: Metric, callback: Callable[[Any], Any]) -> Any:
    make = meter.create_observable_gauge
    if metric.kind == COUNTER:
        make = meter.create_observable_counter
    return make(
        metric.otel, callbacks=[callback], unit=metric.unit, description=metric.help
    )
