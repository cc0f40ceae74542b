"""Checks what the next owner of a directory will do with it."""

from __future__ import annotations

import os
from typing import Final

from logstore.broker.releases import NEWEST, RELEASES
from logstore.config import StoreConfig
from logstore.errors import ConfigError, storage_errors
from logstore.io.files import Files
from logstore.maintenance.facts import look_at
from logstore.maintenance.handover.broker import Broker
from logstore.maintenance.handover.opening import DirectoryOpening
from logstore.maintenance.handover.report import HandoverFinding, HandoverReport
from logstore.maintenance.verify.paths import no_log_directory, open_given
from logstore.maintenance.verify.report import Progress
from logstore.maintenance.verify.store import examine

__all__ = ["DAYS_7_MS", "check_handover"]

# A broker's default of `log.retention.hours`.
DAYS_7_MS: Final = 7 * 24 * 3600 * 1000


def check_handover(
    path: str | os.PathLike[str],
    *,
    from_kafka: bool | None = None,
    release: str = NEWEST,
    cluster_id: str | None = None,
    node_id: int | None = None,
    retention_ms: int = DAYS_7_MS,
    retention_bytes: int = -1,
    on_progress: Progress | None = None,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> HandoverReport:
    """Check what a Kafka broker would do with a store that is handed over to it, or
    logstore with the directory of a broker: what it refuses, loses or changes.

    Reads all of it, changes nothing, and takes no lock.

    Args:
        path: the store, which is the log directory of a broker.
        from_kafka: the next owner is logstore; False: a broker. None: the one that has
            not written last.
        release: of the broker: ``2.8`` (with ZooKeeper), ``3.9``, ``4.2``, ``4.3`` or
            ``4.4`` (KRaft).
        cluster_id, node_id: of the broker; None: not compared.
        retention_ms, retention_bytes: of the broker, for topics without settings of
            their own there; -1: none. The default is that of Kafka, seven days.
        on_progress: as in `verify`.
        store_config: its ``max_batch_decompressed_bytes`` is used.

    Raises:
        ConfigError: another release; a negative retention other than -1.
        StoreNotFoundError: there is no directory of a store at `path`.
        StorageError: it cannot be read.
    """
    if release not in RELEASES:
        raise ConfigError(
            f"release is {release!r}, not one of {', '.join(RELEASES)}: other "
            "releases were not tested",
            name="release",
            value=release,
        )
    for name, value in (
        ("retention_ms", retention_ms),
        ("retention_bytes", retention_bytes),
    ):
        if value < -1:
            raise ConfigError(
                f"{name} is {value}, below -1 (no limit)", name=name, value=value
            )
    files = _files or Files()
    full = os.path.abspath(os.fspath(path))
    root, _, is_partition = open_given(files, full)
    try:
        with storage_errors("examine", full):
            if is_partition:
                raise no_log_directory(full)
            run = examine(
                full, True, on_progress, store_config=store_config, files=files
            )
            reader = None if from_kafka else store_config or StoreConfig()
            with_formats = from_kafka is not False  # only an opening uses them
            facts = look_at(root, run, reader=reader, with_formats=with_formats)
            to_logstore = not facts.is_own if from_kafka is None else from_kafka
            if to_logstore:
                findings = [*DirectoryOpening(facts).findings()]
            else:
                limits = retention_ms, retention_bytes
                broker = Broker(facts, release, cluster_id, node_id, *limits)
                findings = [*broker.findings()]
    finally:
        root.close()
    owner = "logstore" if to_logstore else "kafka"
    views = (
        HandoverFinding(
            finding.kind,
            finding.severity,
            finding.path,
            finding.message,
            {**finding.values},
        )
        for finding in findings
    )
    return HandoverReport(full, owner, release, tuple(views))
