"""The facts of a report, as plain values.

All of it can be written as JSON (`Report.to_dict`); drawings use nothing else. Times
are Unix milliseconds, -1 for none; sizes are bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from logstore.maintenance.sampling import Codec, HeaderFacts, ProducerData

__all__ = [
    "CRITICAL",
    "INFO",
    "WARNING",
    "BrokerView",
    "BrokerStep",
    "Attention",
    "GroupView",
    "MemberView",
    "PartitionView",
    "SegmentView",
    "Series",
    "StoreView",
    "TopicView",
]

CRITICAL: Final = "critical"
WARNING: Final = "warning"
INFO: Final = "info"


@dataclasses.dataclass(slots=True)
class Attention:
    """Something that needs attention.

    Attributes:
        level: ``critical`` (records are damaged, lost or about to be), ``warning`` (to
            be checked), ``info`` (worth knowing).
        kind: ``damage``, ``group``, ``unsynced``, ``retention``, ``skew``, ``clock``,
            ``environment``, ``unclean``, ``unreadable``, ``transaction``.
        title: in a few words.
        detail: as sentences.
        advice: a command, or another action; "" for nothing.
        where: topic, partition or path it is about.
    """

    level: str
    kind: str
    title: str
    detail: str = ""
    advice: str = ""
    where: str = ""


@dataclasses.dataclass(slots=True)
class SegmentView:
    """A segment of a partition, or a run of them.

    Attributes:
        base_offset, next_offset: half open; `next_offset` is -1 if it is not known.
        size_bytes: of the `.log` file.
        last_time_ms: largest record timestamp; else when the file was changed.
        damage: what `verify` reports about its log; "" for nothing.
        damage_at: its beginning, from 0 to 1; None if there is no position.
        damage_offset: the first offset that cannot be read because of it; -1 unknown.
        index_damage: what `verify` reports about the files next to the log; "" for
            nothing.
        is_active: whether it is the one appended to.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    last_time_ms: int
    damage: str = ""
    damage_at: float | None = None
    damage_offset: int = -1
    index_damage: str = ""
    is_active: bool = False


@dataclasses.dataclass(slots=True)
class Series:
    """Records and bytes over time, in buckets of `step_ms` from `start_ms` on.

    Attributes:
        outside: records with a timestamp before or after the buckets: too few to
            stretch the scale for them.
        untimed: records without a timestamp.
    """

    start_ms: int = -1
    step_ms: int = 0
    records: list[float] = dataclasses.field(default_factory=list)
    bytes: list[float] = dataclasses.field(default_factory=list)
    outside: float = 0
    untimed: float = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class PartitionView(HeaderFacts):
    """One partition, with the sums over its batches.

    Attributes:
        name: ``topic-number``, the name of its directory.
        start_offset, end_offset, durable_offset: -1 if it cannot be opened.
        stable_offset: where read_committed stops, if there are transactions; else -1.
        recovery_point: Kafka's, from its checkpoint; 0 if unknown.
        size_bytes: of `.log` files; `other_bytes`: of all others in the directory.
        problems, notes: what `verify` reports, as (kind, message).
        damage: the messages of those problems that are damage to records.
        lost_records: offsets that cannot be read, if their number is known.
        leftovers: files that will be removed soon, by suffix.
        error: why it cannot be opened; "" if it can.
    """

    topic: str
    number: int
    name: str
    path: str
    start_offset: int = -1
    end_offset: int = -1
    durable_offset: int = -1
    recovery_point: int = 0
    size_bytes: int = 0
    other_bytes: int = 0
    segments: list[SegmentView] = dataclasses.field(default_factory=list)
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    notes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    damage: list[str] = dataclasses.field(default_factory=list)
    lost_records: int = 0
    missing_indexes: int = 0
    leftovers: dict[str, int] = dataclasses.field(default_factory=dict)
    retention_due_bytes: int = 0
    retention_due_segments: int = 0
    retention_soon_bytes: int = 0
    retention_soon_segments: int = 0
    stable_offset: int = -1
    error: str = ""

    @property
    def unsynced(self) -> int:
        """Records that a power failure may remove."""
        if self.end_offset < 0 or self.durable_offset < 0:
            return 0
        return max(self.end_offset - self.durable_offset, 0)


@dataclasses.dataclass(slots=True)
class TopicView:
    """One topic; `settings` have the values that differ from the defaults, None if the
    directory does not have them (a broker keeps them in its cluster's metadata)."""

    name: str
    partitions: list[PartitionView] = dataclasses.field(default_factory=list)
    settings: dict[str, str] | None = None
    series: Series = dataclasses.field(default_factory=Series)

    @property
    def size_bytes(self) -> int:
        """Bytes of its logs."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def records(self) -> float:
        """Records of its partitions together."""
        return sum(partition.records for partition in self.partitions)


@dataclasses.dataclass(slots=True)
class BrokerStep:
    """One thing that a Kafka broker would do with the directory, or a problem for it.

    `level` is ``ok``, ``info``, ``warning`` or ``critical``.
    """

    level: str
    title: str
    detail: str = ""


@dataclasses.dataclass(slots=True)
class BrokerView:
    """How a Kafka broker would treat the directory.

    Attributes:
        verdict: in a sentence.
        level: of the worst step.
        recovered_segments, recovered_bytes: the broker reads them again at its start.
        cut_records: records that it would cut off.
    """

    verdict: str = ""
    level: str = "ok"
    steps: list[BrokerStep] = dataclasses.field(default_factory=list)
    recovered_segments: int = 0
    recovered_bytes: int = 0
    cut_records: int = 0


@dataclasses.dataclass(slots=True)
class MemberView:
    """A member of a group that lives.

    Attributes:
        process: its id; -1 for a client of a broker.
        name: its display name: ``process 123``, or the client and its host.
        has_ended: the process has ended, and a child of it holds its locks.
        stuck_ms: for how long beyond its limit it has not polled; -1: not stuck,
            or is a client of a broker.
        partitions: the names of its partitions.
    """

    process: int
    name: str
    has_ended: bool = False
    stuck_ms: int = -1
    partitions: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class GroupView:
    """A group of consumers.

    Attributes:
        protocol: ``logstore``, or that of a broker's group.
        lags: offsets from the committed one to the end of the log, by the partition's
            name; None: unknown.
    """

    name: str
    protocol: str
    state: str
    members: list[MemberView] = dataclasses.field(default_factory=list)
    lags: dict[str, int | None] = dataclasses.field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Lag of the partitions with a known one together; None: none is known."""
        known = [lag for lag in self.lags.values() if lag is not None]
        return sum(known) if known else None


@dataclasses.dataclass(slots=True)
class StoreView:
    """All facts of a report.

    Attributes:
        path: absolute path that was given; `root` the store's.
        writer: ``logstore``, ``kafka`` (any other program) or ``nobody``.
        is_clean: the last writer stopped cleanly.
        holder: process that has it open for writing; None: none.
        unowned_since: since when no process owns it, as in `LockState`.
        has_marker: Kafka's marker of a clean stop is there.
        has_meta: a broker's `meta.properties` is there.
        root_notes: what `verify` reports of the store's own files; `root_problems`: the
            messages of problems among them; `root_damage`: of the ones about damage
            to records.
        foreign: directories in the store's directory that are not partitions.
        is_sampled: counts by codec, producer, size and time are estimates.
        read_bytes: bytes of logs that were read for these counts.
        batch_sizes: batches by the power of two of their size; `record_sizes`: records
            by that of the average size in their batch.
    """

    path: str
    root: str
    version: str
    made_ms: int
    writer: str = "nobody"
    is_clean: bool = False
    holder: int | None = None
    unowned_since: int | None = None
    has_marker: bool = False
    has_meta: bool = False
    foreign: list[str] = dataclasses.field(default_factory=list)
    is_partition: bool = False
    topics: list[TopicView] = dataclasses.field(default_factory=list)
    codecs: list[Codec] = dataclasses.field(default_factory=list)
    producers: list[ProducerData] = dataclasses.field(default_factory=list)
    producer_count: int = 0
    groups: list[GroupView] = dataclasses.field(default_factory=list)
    batch_sizes: dict[int, float] = dataclasses.field(default_factory=dict)
    record_sizes: dict[int, float] = dataclasses.field(default_factory=dict)
    series: Series = dataclasses.field(default_factory=Series)
    findings: list[Attention] = dataclasses.field(default_factory=list)
    environment: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    broker: BrokerView = dataclasses.field(default_factory=BrokerView)
    root_notes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    root_problems: list[str] = dataclasses.field(default_factory=list)
    root_damage: list[str] = dataclasses.field(default_factory=list)
    free_bytes: int = -1
    is_sampled: bool = False
    read_bytes: int = 0
    verified_bytes: int = 0
    verified_records: int = 0
    seconds: float = 0.0

    @property
    def partitions(self) -> list[PartitionView]:
        """Partitions of all topics, in order."""
        return [p for topic in self.topics for p in topic.partitions]
