"""One partition directory as a report shows it: files, segments, their damage."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping

from logstore.errors import storage_error
from logstore.io.directory import Directory
from logstore.io.layout import (
    LOG,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
)
from logstore.maintenance.finding import Finding
from logstore.maintenance.report.model import PartitionFacts, SegmentFacts
from logstore.segment import SegmentInfo
from logstore.store.partition import Partition

__all__ = ["PartitionSnapshot", "take_snapshot", "mark", "segments_of", "union"]


@dataclasses.dataclass(slots=True)
class PartitionSnapshot:
    """The result of one look at a partition's directory.

    Attributes:
        sizes: of its files, by name.
        segments: with the name of their `.log` files.
        partition: as a reader has it; None if it cannot be opened.
    """

    facts: PartitionFacts
    directory: Directory
    sizes: dict[str, int]
    segments: list[tuple[SegmentFacts, str]]
    partition: Partition | None = None


def take_snapshot(
    root: Directory, name: str, points: Mapping[TopicPartition, int]
) -> PartitionSnapshot | None:
    """The files of a partition directory; None if it is not one, or was removed.

    Args:
        points: Kafka's recovery points.
    """
    directory, files = root.child(name), root.files
    topic, number = parse_partition_directory(name) or (name, -1)
    facts = PartitionFacts(topic, number, name, directory.path)
    sizes: dict[str, int] = {}
    try:
        with directory.use() as fd:
            for one in files.list(fd):
                with contextlib.suppress(OSError):
                    info = files.stat_name(fd, one)
                    if info.is_file:
                        sizes[one] = info.size
    except NotADirectoryError:
        return None
    except OSError as error:
        if not root.exists(name):
            return None
        facts.error = str(storage_error(error, "read", directory.path))
    facts.recovery_point = points.get(TopicPartition(topic, number), 0)
    for one in sizes:
        parsed = parse_segment_file(one)
        if parsed is not None and parsed.transition:
            count = facts.leftovers.get(parsed.transition, 0)
            facts.leftovers[parsed.transition] = count + 1
    return PartitionSnapshot(facts, directory, sizes, [])


def segments_of(
    snapshot: PartitionSnapshot, infos: tuple[SegmentInfo, ...]
) -> list[tuple[SegmentFacts, str]]:
    """The segments that readers see, followed by later ones that are only on disk."""
    segments = []
    for info in infos:
        last = info.max_timestamp_ms
        segment = SegmentFacts(
            info.base_offset,
            info.next_offset,
            info.size_bytes,
            info.modified_ms if last < 0 else last,
            is_active=info.is_active,
        )
        segments.append((segment, os.path.basename(info.path)))
    end = infos[-1].base_offset if infos else -1
    others = sorted(
        (parsed.base_offset, name)
        for name in snapshot.sizes
        if (parsed := parse_segment_file(name)) is not None
        if parsed.suffix == LOG and not parsed.transition and parsed.base_offset > end
    )
    for at, (base, name) in enumerate(others):
        after = others[at + 1][0] if at + 1 < len(others) else -1
        modified = -1
        with contextlib.suppress(OSError):
            modified = snapshot.directory.stat(name).mtime_ns // 1_000_000
        segment = SegmentFacts(base, after, snapshot.sizes[name], modified)
        segments.append((segment, name))
    return segments


def mark(snapshot: PartitionSnapshot, problem: Finding, file: str, text: str) -> None:
    """Record a problem at the segment that the file belongs to."""
    parsed = parse_segment_file(file)
    if parsed is None:
        return
    for segment, name in snapshot.segments:
        if segment.base_offset != parsed.base_offset:
            continue
        if parsed.suffix != LOG:
            segment.index_damage = segment.index_damage or text
            return
        # Damage after the end of the log that readers see is shown as well.
        size = max(snapshot.sizes.get(name, 0), segment.size_bytes)
        snapshot.facts.size_bytes += size - segment.size_bytes
        segment.size_bytes = size
        if not segment.damage:
            if problem.position is not None and size:
                segment.damage_at = min(problem.position / size, 1.0)
            if problem.first_offset is not None:
                segment.damage_offset = problem.first_offset
        segment.damage = segment.damage or text
        return


def union(ranges: list[tuple[int, int]]) -> int:
    """Offsets in some ranges (both ends inclusive), each counted once."""
    total, end = 0, -1
    for first, last in sorted(ranges):
        first = max(first, end + 1)
        if last >= first:
            total += last - first + 1
            end = last
    return total
