"""The facts of a report, from `verify`, `doctor` and `maintenance.facts`, as the values
that it shows. Nothing is changed or locked."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Final

from logstore.broker.releases import NEWEST
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import LogStoreError, StoreNotFoundError, storage_errors
from logstore.io import layout
from logstore.io.files import Files
from logstore.io.filesystem import is_directory, open_root
from logstore.io.layout import parse_segment_file
from logstore.io.segment_info import newest_ms
from logstore.log import retention
from logstore.maintenance.environment import doctor
from logstore.maintenance.facts import PartitionFacts, StoreFacts, look_at
from logstore.maintenance.finding import OFFSETS, Finding
from logstore.maintenance.handover.broker import Broker
from logstore.maintenance.names import foreign_text
from logstore.maintenance.report.broker import broker_facts
from logstore.maintenance.report.groups import groups_in
from logstore.maintenance.report.model import (
    PartitionView,
    SegmentView,
    StoreView,
    TopicView,
)
from logstore.maintenance.report.series import bounds_of, series_of, sum_of
from logstore.maintenance.verify import VerifyReport
from logstore.maintenance.verify.paths import open_given
from logstore.maintenance.verify.store import examine

__all__ = ["SOON_MS", "Progress", "collect"]

Progress = Callable[[int, int], None]

# Segments that retention deletes within this time are deleted "soon".
SOON_MS: Final = 24 * 3600 * 1000
_PRODUCERS_MAX: Final = 200
_OF_THE_DISK: Final = frozenset({"file-system", "mount", "space", "inodes", "limits"})


def collect(
    path: str,
    version: str,
    *,
    deep: bool,
    threads: int | None,
    on_progress: Progress | None,
    config: StoreConfig,
    files: Files,
) -> tuple[StoreView, VerifyReport]:
    """The facts of a store or partition directory. Raises: as `logstore.report`."""
    if not is_directory(files, path):
        raise StoreNotFoundError(
            f"{path} is a file; a report is made of a store or of a partition "
            f"directory. `logstore-dump verify` looks at single files",
            path=path,
        )
    begun = files.monotonic()
    directory, _, is_partition = open_given(files, path)
    only = directory.name if is_partition else None
    directory.close()
    run = examine(
        path, deep, on_progress, threads=threads, store_config=config, files=files
    )
    root = open_root(files, path if only is None else os.path.dirname(path))
    try:
        with storage_errors("examine", root.path):
            facts = look_at(root, run, only, reader=config, with_headers=True)
            view = _view_of(facts, path, version)
            _add_environment(view, files)
            if only is None:
                with contextlib.suppress(LogStoreError):
                    view.groups = list(groups_in(root.path))
    finally:
        root.close()
    verified = run.report()
    view.verified_bytes, view.verified_records = verified.bytes, verified.records
    view.seconds = files.monotonic() - begun
    return view, verified


def _add_environment(view: StoreView, files: Files) -> None:
    """The result of `doctor`; for a partition alone, without other files."""
    with contextlib.suppress(LogStoreError):
        for finding in doctor(view.root, _files=files).findings:
            if finding.kind == "space":
                view.free_bytes = finding.values["free_bytes"]
            if not view.is_partition or finding.kind in _OF_THE_DISK:
                view.environment.append((finding.kind, finding.level, finding.message))


# ---------------------------------------------------------------- the view


def _view_of(facts: StoreFacts, path: str, version: str) -> StoreView:
    """The facts as a report shows them, with the findings of `verify` and a broker."""
    view = StoreView(path, facts.path, version, facts.now_ms)
    view.is_partition = path != facts.path
    if facts.is_own:
        view.writer = "logstore"
    elif facts.meta is not None or facts.points:
        view.writer = "kafka"
    view.has_marker = layout.CLEAN_SHUTDOWN in facts.names
    view.has_meta = facts.meta is not None
    view.is_clean, view.holder = facts.is_closed, facts.holder
    view.unowned_since = facts.unowned_since
    view.foreign = [name for name in facts.directories if foreign_text(name)]
    topics: dict[str, TopicView] = {}
    for partition in sorted(
        (*facts.partitions, *facts.others), key=lambda item: item.key
    ):
        topic = topics.setdefault(partition.key.topic, TopicView(partition.key.topic))
        topic.partitions.append(_partition_view(partition, facts))
    for topic in topics.values():
        topic.settings = _settings_of(facts.settings.get(topic.name))
    view.topics = list(topics.values())
    _add_findings(view, facts)
    _add_sums(view, facts)
    broker = Broker(facts, NEWEST, None, None, -1, -1)
    view.broker = broker_facts(facts, list(broker.findings()), view)
    return view


def _settings_of(config: TopicConfig | None) -> dict[str, str] | None:
    """Settings that differ from the defaults."""
    if config is None:
        return None
    usual = TopicConfig()
    return {
        field.name: str(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(usual, field.name)
    }


def _partition_view(partition: PartitionFacts, facts: StoreFacts) -> PartitionView:
    reader = partition.reader
    segments = [
        SegmentView(
            segment.base_offset,
            segment.next_offset,
            segment.size_bytes,
            newest_ms(segment),
            is_active=segment.is_active,
        )
        for segment in partition.all_segments
    ]
    size = sum(segment.size_bytes for segment in segments)
    view = PartitionView(
        **dataclasses.asdict(reader.headers),
        topic=partition.key.topic,
        number=partition.key.partition,
        name=partition.name,
        path=partition.path,
        start_offset=reader.start_offset,
        end_offset=reader.end_offset,
        durable_offset=reader.durable_offset,
        stable_offset=reader.stable_offset,
        recovery_point=partition.context.recovery_point,
        size_bytes=size,
        other_bytes=max(sum(partition.files.values()) - size, 0),
        segments=segments,
        missing_indexes=sum(
            os.path.basename(segment.path).replace(layout.LOG, layout.INDEX)
            not in partition.files
            for segment in partition.all_segments
        ),
        leftovers=dict(
            Counter(
                parsed.transition
                for name in partition.files
                if (parsed := parse_segment_file(name)) and parsed.transition
            )
        ),
        error=reader.fault,
    )
    if (config := facts.settings.get(partition.key.topic)) is not None:
        due, due_bytes = _due(partition, config, facts.now_ms)
        soon, soon_bytes = _due(partition, config, facts.now_ms + SOON_MS)
        view.retention_due_segments, view.retention_due_bytes = due, due_bytes
        view.retention_soon_segments = soon - due
        view.retention_soon_bytes = soon_bytes - due_bytes
    return view


def _due(
    partition: PartitionFacts, config: TopicConfig, now_ms: int
) -> tuple[int, int]:
    """(segments, bytes) that retention deletes at a time."""
    deletions = retention.plan(
        partition.key.partition,
        partition.reader.segments,
        retention.policies_of(config),
        now_ms,
        0,  # no policy of the settings is about free space
        keeps_active=not partition.takes_appends,
    )
    return len(deletions), sum(each.segment.size_bytes for each in deletions)


def _add_findings(view: StoreView, facts: StoreFacts) -> None:
    """Add the findings of `verify`, each at its partition and segment."""
    partitions = {
        partition_view.name: partition_view for partition_view in view.partitions
    }
    files = {
        partition_facts.name: partition_facts.files
        for partition_facts in (*facts.partitions, *facts.others)
    }
    lost_offsets: dict[str, list[tuple[int, int]]] = {}
    # The page shows the path of the store once.
    prefix = view.root.rstrip(os.sep) + os.sep
    for finding in facts.contents:
        text = finding.message.replace(prefix, "")
        inner = os.path.relpath(finding.path, view.root).split(os.sep)
        partition = partitions.get(inner[0])
        if partition is None:
            view.root_notes.append((finding.kind, text))
            if finding.touches_records:
                view.root_damage.append(text)
            elif finding.is_problem:
                view.root_problems.append(text)
            continue
        if not finding.is_problem:
            partition.notes.append((finding.kind, text))
            continue
        partition.problems.append((finding.kind, text))
        _mark(partition, finding, files[inner[0]].get(inner[-1], 0), text)
        if not finding.touches_records:
            continue
        partition.damage.append(text)
        # Of a fault of order it may be unknown how many offsets it costs.
        is_known = finding.last_offset is not None or finding.kind != OFFSETS
        if finding.first_offset is not None and is_known:
            last = finding.last_offset
            end = partition.end_offset - 1 if last is None else last
            lost_offsets.setdefault(inner[0], []).append((finding.first_offset, end))
    for name, ranges in lost_offsets.items():
        partitions[name].lost_records = _union(ranges)


def _mark(partition: PartitionView, problem: Finding, size: int, text: str) -> None:
    """Record a problem of a file of `size` bytes at the segment that it belongs to."""
    parsed = parse_segment_file(os.path.basename(problem.path))
    if parsed is None:
        return
    for segment in partition.segments:
        if segment.base_offset != parsed.base_offset:
            continue
        if parsed.suffix != layout.LOG:
            segment.index_damage = segment.index_damage or text
            return
        # Damage after the end of the log that readers see is shown as well.
        size = max(size, segment.size_bytes)
        partition.size_bytes += size - segment.size_bytes
        segment.size_bytes = size
        if not segment.damage:
            if problem.position is not None and size:
                segment.damage_at = min(problem.position / size, 1.0)
            if problem.first_offset is not None:
                segment.damage_offset = problem.first_offset
        segment.damage = segment.damage or text
        return


def _union(ranges: list[tuple[int, int]]) -> int:
    """Offsets in some ranges (both ends inclusive), each counted once."""
    total, end = 0, -1
    for first, last in sorted(ranges):
        first = max(first, end + 1)
        if last >= first:
            total += last - first + 1
            end = last
    return total


def _add_sums(view: StoreView, facts: StoreFacts) -> None:
    """Codecs, producers, sizes, and records over time."""
    sums = facts.sums
    view.is_sampled, view.read_bytes = sums.is_sampled, sums.bytes_read
    view.codecs = sorted(sums.codecs.values(), key=lambda codec: -codec.bytes)
    view.producer_count = sum(key >= 0 for key in sums.producers)
    by_records = sorted(sums.producers.values(), key=lambda producer: -producer.records)
    view.producers = by_records[:_PRODUCERS_MAX]
    view.batch_sizes = dict(sorted(sums.batch_sizes.items()))
    view.record_sizes = dict(sorted(sums.record_sizes.items()))
    bounds = bounds_of(
        [interval for rows in sums.intervals.values() for interval in rows]
    )
    for topic in view.topics:
        rows = sums.intervals.get(topic.name, [])
        topic.series = series_of(rows, bounds, topic.records)
    view.series = sum_of([topic.series for topic in view.topics])
