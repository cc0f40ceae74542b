"""Gathering the facts of a report: `verify`, `doctor`, a read-only store, and a walk
over batch headers. Nothing is changed or locked."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Final

from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    LogStoreError,
    StoreNotFoundError,
    TopicNotFoundError,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import RecoveryAction
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import is_directory, is_partition, is_store, open_root
from logstore.io.layout import LOG, parse_partition_directory
from logstore.log import retention
from logstore.maintenance.environment import doctor
from logstore.maintenance.facts import Facts, look_at
from logstore.maintenance.finding import OFFSETS
from logstore.maintenance.handover.broker import Broker
from logstore.maintenance.names import foreign_text
from logstore.maintenance.report.broker import broker_facts
from logstore.maintenance.report.model import PartitionFacts, StoreFacts, TopicFacts
from logstore.maintenance.report.sampling import Interval, Sampler
from logstore.maintenance.report.series import bounds_of, series_of, sum_of
from logstore.maintenance.report.snapshots import (
    PartitionSnapshot,
    mark,
    segments_of,
    take_snapshot,
    union,
)
from logstore.maintenance.report.units import size_text
from logstore.maintenance.verify import VerifyReport
from logstore.maintenance.verify.paths import no_log_directory
from logstore.maintenance.verify.store import examine
from logstore.segment import SegmentInfo
from logstore.store.store import Store, open_store

__all__ = ["SOON_MS", "Progress", "collect"]

Progress = Callable[[int, int], None]

# Segments that retention deletes within this time are deleted "soon".
SOON_MS: Final = 24 * 3600 * 1000
_PRODUCERS_MAX: Final = 200
# Attempts to find a partition whose topic is created or deleted meanwhile.
_TRIES: Final = 5


def collect(
    path: str,
    version: str,
    *,
    deep: bool,
    threads: int | None,
    on_progress: Progress | None,
    config: StoreConfig,
    files: Files,
) -> tuple[StoreFacts, VerifyReport]:
    """The facts of a store or partition directory. Raises: as `logstore.report`."""
    if not is_directory(files, path):
        raise StoreNotFoundError(
            f"{path} is a file; a report is made of a store or of a partition "
            f"directory. `logstore-dump verify` looks at single files",
            path=path,
        )
    begun = files.monotonic()
    only = _partition_of(files, path)
    run = examine(
        path, deep, on_progress, threads=threads, store_config=config, files=files
    )
    root_path = path if only is None else os.path.dirname(path)
    root = open_root(files, root_path)
    try:
        with storage_errors("look at", root_path):
            facts = StoreFacts(path, root_path, version, files.now_ms())
            facts.is_partition = only is not None
            seen = look_at(root, tuple(dict.fromkeys(run.findings)), only)
            _Collector(root, facts, seen, config).run(only)
            broker = Broker(seen, "4.2", None, None, -1, -1)
            facts.broker = broker_facts(seen, list(broker.findings()), facts)
    finally:
        root.close()
    verified = run.report()
    facts.verified_bytes, facts.verified_records = verified.bytes, verified.records
    facts.seconds = files.monotonic() - begun
    return facts, verified


def _partition_of(files: Files, path: str) -> str | None:
    """The name of the directory if it is a partition's, None if it is a store.

    Raises:
        StoreNotFoundError: it is neither.
    """
    directory = open_root(files, path)
    try:
        with storage_errors("read", path):
            names = directory.names()
            is_one = is_partition(directory, names)
            if not is_one and not is_store(directory, names):
                raise no_log_directory(path)
            return directory.name if is_one else None
    finally:
        directory.close()


class _Collector:
    """Fills the facts of one store."""

    def __init__(
        self,
        root: Directory,
        facts: StoreFacts,
        seen: Facts,
        config: StoreConfig,
    ) -> None:
        self.root = root
        self.files = root.files
        self.facts = facts
        self.seen = seen
        self.config = config
        self.descriptors = Descriptors(root.files, 16)

    def run(self, only: str | None) -> None:
        """Collect everything; with `only`, from that partition directory alone."""
        self._ownership()
        self._environment(only)
        points = self.seen.points
        names = [only] if only is not None else self.root.names()
        self.facts.foreign = [n for n in self.seen.directories if foreign_text(n)]
        snapshots = [
            snapshot
            for name in names
            if only is not None or parse_partition_directory(name) is not None
            if (snapshot := take_snapshot(self.root, name, points)) is not None
        ]
        store, reason = self._open_store()
        with store or contextlib.nullcontext():
            snapshots = self._open(store, snapshots, reason)
            by_name = {snapshot.facts.name: snapshot for snapshot in snapshots}
            self._findings(by_name)
            self._sample(snapshots)
            self._transactions(snapshots)
        self.descriptors.close()

    # -- the root

    def _ownership(self) -> None:
        seen = self.seen
        if seen.is_own:
            self.facts.writer = "logstore"
        elif seen.meta is not None or seen.points:
            self.facts.writer = "kafka"
        self.facts.has_marker = layout.CLEAN_SHUTDOWN in seen.names
        self.facts.has_meta = seen.meta is not None
        self.facts.is_clean = seen.is_closed
        self.facts.holder = seen.holder

    def _environment(self, only: str | None) -> None:
        """The result of `doctor`; for a partition alone, without other files."""
        with contextlib.suppress(LogStoreError):
            for seen in doctor(self.root.path, files=self.files).findings:
                text = seen.message
                if seen.kind == "space":
                    free, total = seen.values["free_bytes"], seen.values["bytes"]
                    self.facts.free_bytes = free
                    text = f"{size_text(free)} of {size_text(total)} are free"
                if only is None or seen.kind in _OF_THE_DISK:
                    row = seen.kind, seen.level, text
                    self.facts.environment.append(row)

    # -- partitions

    def _open_store(self) -> tuple[Store | None, str]:
        """The store for reading, or why there is none."""
        root, config = self.root.path, self.config
        try:
            store = open_store(root, read_only=True, config=config, files=self.files)
        except LogStoreError as error:
            return None, str(error)
        return store, ""

    def _open(
        self, store: Store | None, snapshots: list[PartitionSnapshot], reason: str
    ) -> list[PartitionSnapshot]:
        """Look at the partitions as a reader; returns those that still exist."""
        topics: dict[str, TopicFacts] = {}
        kept = []
        for snapshot in snapshots:
            facts = snapshot.facts
            if not self._open_one(store, snapshot, facts.error or reason):
                continue  # its topic is being created or deleted
            topic = topics.get(facts.topic)
            if topic is None:
                topic = topics[facts.topic] = TopicFacts(facts.topic)
                topic.settings = self._settings_of(facts.topic)
            topic.partitions.append(facts)
            kept.append(snapshot)
        for topic in topics.values():
            topic.partitions.sort(key=lambda one: one.number)
        self.facts.topics = [topics[name] for name in sorted(topics)]
        return kept

    def _settings_of(self, topic: str) -> dict[str, str] | None:
        config, usual = self.seen.settings.get(topic), TopicConfig()
        if config is None:
            return None
        return {
            field.name: str(getattr(config, field.name))
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != getattr(usual, field.name)
        }

    def _open_one(
        self, store: Store | None, snapshot: PartitionSnapshot, reason: str
    ) -> bool:
        """Look at a partition as a reader does; False if it does not exist any more,
        or not yet."""
        facts = snapshot.facts
        infos: tuple[SegmentInfo, ...] = ()
        if facts.number < 0:
            facts.error = f"{facts.name} is not named as a partition: topic-number"
        elif store is None or reason:
            facts.error = reason
        else:
            for _ in range(_TRIES):
                try:
                    infos = self._bounds(store, snapshot)
                    facts.error = ""
                    break
                except TopicNotFoundError as error:
                    facts.error = f"it is not part of the store: {error}"
                    if not self.root.exists(facts.name):
                        return False
                except LogStoreError as error:
                    facts.error = str(error)
                    break
            else:
                if self.facts.holder is not None:
                    return False
        snapshot.segments = segments_of(snapshot, infos)
        facts.segments = [segment for segment, _ in snapshot.segments]
        facts.size_bytes = sum(segment.size_bytes for segment in facts.segments)
        facts.missing_indexes = sum(
            name.replace(LOG, layout.INDEX) not in snapshot.sizes
            for _, name in snapshot.segments
        )
        facts.other_bytes = max(sum(snapshot.sizes.values()) - facts.size_bytes, 0)
        return True

    def _bounds(
        self, store: Store, snapshot: PartitionSnapshot
    ) -> tuple[SegmentInfo, ...]:
        facts = snapshot.facts
        partition = snapshot.partition = store.topic(facts.topic)[facts.number]
        infos = partition.segments
        facts.start_offset = partition.start_offset
        facts.end_offset = partition.end_offset
        facts.durable_offset = min(partition.durable_offset, facts.end_offset)
        if facts.topic in self.seen.settings:
            self._retention(self.seen.settings[facts.topic], infos, facts)
        return infos

    def _retention(
        self,
        config: TopicConfig,
        infos: tuple[SegmentInfo, ...],
        facts: PartitionFacts,
    ) -> None:
        """Segments that retention would delete now, and those within `SOON_MS`."""
        policies = retention.policies_of(config)
        if not policies:
            return
        now, free = self.facts.made_ms, max(self.facts.free_bytes, 0)
        due = retention.plan(facts.number, infos, policies, now, free)
        soon = retention.plan(facts.number, infos, policies, now + SOON_MS, free)
        facts.retention_due_segments = len(due)
        facts.retention_due_bytes = sum(one.segment.size_bytes for one in due)
        facts.retention_soon_segments = len(soon) - len(due)
        facts.retention_soon_bytes = (
            sum(one.segment.size_bytes for one in soon) - facts.retention_due_bytes
        )

    def _transactions(self, snapshots: list[PartitionSnapshot]) -> None:
        """The last stable offsets, if there are transactions: this may take a walk."""
        for snapshot in snapshots:
            if snapshot.facts.has_transactions and snapshot.partition is not None:
                with contextlib.suppress(LogStoreError):
                    snapshot.facts.stable_offset = (
                        snapshot.partition.last_stable_offset()
                    )

    # -- the findings of verify

    def _findings(self, snapshots: dict[str, PartitionSnapshot]) -> None:
        lost_offsets: dict[str, list[tuple[int, int]]] = {}
        # The page shows the path of the store once.
        prefix = self.root.path.rstrip(os.sep) + os.sep
        for one in self.seen.contents:
            text = one.message.replace(prefix, "")
            inner = os.path.relpath(one.path, self.root.path).split(os.sep)
            snapshot = snapshots.get(inner[0])
            if snapshot is None:
                self.facts.root_notes.append((one.kind, text))
                if one.touches_records:
                    self.facts.root_damage.append(text)
                elif one.is_problem:
                    self.facts.root_problems.append(text)
                continue
            if not one.is_problem:
                snapshot.facts.notes.append((one.kind, text))
                continue
            snapshot.facts.problems.append((one.kind, text))
            mark(snapshot, one, inner[-1], text)
            if not one.touches_records:
                continue
            snapshot.facts.damage.append(text)
            # Of a fault of order it may be unknown how many offsets it costs.
            is_known = one.last_offset is not None or one.kind != OFFSETS
            if one.first_offset is not None and is_known:
                last = one.last_offset
                end = snapshot.facts.end_offset - 1 if last is None else last
                lost_offsets.setdefault(inner[0], []).append((one.first_offset, end))
        for name, ranges in lost_offsets.items():
            snapshots[name].facts.lost_records = union(ranges)

    # -- headers

    def _sample(self, snapshots: list[PartitionSnapshot]) -> None:
        facts = self.facts
        segments = [
            segment for snapshot in snapshots for segment in snapshot.facts.segments
        ]
        sampler = Sampler(
            self.descriptors,
            sum(segment.size_bytes for segment in segments),
            len(segments),
            self.config.max_batch_decompressed_bytes,
        )
        intervals: dict[str, list[Interval]] = {}
        for snapshot in snapshots:
            rows = sampler.walk(snapshot.directory, snapshot.facts, snapshot.segments)
            intervals.setdefault(snapshot.facts.topic, []).extend(rows)
        sums = sampler.sums
        facts.is_sampled, facts.read_bytes = sums.is_sampled, sums.read_bytes
        facts.codecs = sorted(sums.codecs.values(), key=lambda one: -one.bytes)
        facts.producer_count = sum(key >= 0 for key in sums.producers)
        by_records = sorted(sums.producers.values(), key=lambda one: -one.records)
        facts.producers = by_records[:_PRODUCERS_MAX]
        facts.batch_sizes = dict(sorted(sums.batch_sizes.items()))
        facts.record_sizes = dict(sorted(sums.record_sizes.items()))
        everything = [one for rows in intervals.values() for one in rows]
        bounds = bounds_of(everything)
        for topic in facts.topics:
            rows = intervals.get(topic.name, [])
            topic.series = series_of(rows, bounds, topic.records)
        facts.series = sum_of([topic.series for topic in facts.topics])


_OF_THE_DISK: Final = frozenset({"file-system", "mount", "space", "inodes", "limits"})


def _ignore(action: RecoveryAction) -> None:
    """Do nothing: `verify` reports the same."""
