"""A Kafka broker and a directory that it starts on: the findings, in its order.

Each of these was seen with a broker of the release (tests/interop/test_handover.py),
which has this directory alone. A broker with several leaves out one that it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from logstore.config import TopicConfig
from logstore.errors import CorruptCheckpointError, LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.log import retention
from logstore.maintenance.handover.facts import Facts, PartitionFacts
from logstore.maintenance.handover.metadata_log import cluster_topics
from logstore.maintenance.handover.report import (
    CHANGES,
    LOSES,
    OK,
    REFUSES,
    WARNS,
    HandoverFinding,
)
from logstore.maintenance.verify import report as kinds
from logstore.segment import SegmentInfo
from logstore.store.store import open_store

__all__ = ["Broker", "is_refused_name"]

_SHOWN_MAX: Final = 5
_RENAMED: Final = re.compile(r"\S+-\S+\.\S+-(delete|future|stray)")
_ENDINGS: Final = ("-delete", "-future", "-stray")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_SEGMENT_BYTES_MAX: Final = (1 << 31) - 1
_CHECKPOINTS: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    layout.HIGH_WATERMARKS,
)
# Damage inside a log, where a broker that reads it stops.
_IN_LOG: Final = (
    kinds.DAMAGED_BATCH,
    kinds.OFFSETS,
    kinds.EXTRA_BYTES,
    kinds.LOST_BYTES,
    kinds.LOST_SEGMENT,
)


def is_refused_name(name: str) -> bool:
    """Whether a broker refuses to start while a directory in its log directory has this
    name."""
    if name in layout.NOT_PARTITIONS:
        return False
    if name.endswith(_ENDINGS):
        return _RENAMED.fullmatch(name) is None
    topic, dash, number = name.rpartition("-")
    return not (dash and topic and _NUMBER.fullmatch(number))


class _BrokerAge(retention.RetainAge):
    """The age as a broker has it: by the largest timestamp of a segment, also by one in
    the future; by the time of the file only if there is none."""

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterator[SegmentInfo]:
        for segment in segments:
            largest = segment.max_timestamp_ms
            base = segment.modified_ms if largest < 0 else largest
            if now_ms - base <= self.retention_ms:
                return
            yield segment


class Broker:
    """The start of a broker of a release."""

    def __init__(
        self,
        facts: Facts,
        release: str,
        cluster_id: str | None,
        node_id: int | None,
        retention_ms: int,
        retention_bytes: int,
    ) -> None:
        self._facts = facts
        self._release = release
        self._has_zookeeper = release == "2.8"
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes

    def findings(self) -> Iterator[HandoverFinding]:
        """Everything that there is to say, in the order of the start."""
        for part in (
            self._lock,
            self._meta,
            self._names,
            self._checkpoints,
            self._publication,
            self._recovery,
            self._segments,
            self._damage,
            self._topics,
            self._magics,
            self._retention,
            self._groups,
            self._own_files,
        ):
            yield from part()

    # ------------------------------------------------------------ the directory

    def _lock(self) -> Iterator[HandoverFinding]:
        holder, path = self._facts.holder, self._facts.path_of(layout.LOCK)
        if holder is not None:
            who = f"process {holder}" if holder else "a process"
            text = f"{who} has the store open for writing: close it there first"
            yield HandoverFinding("lock", REFUSES, path, text, {"pid": holder})
        else:
            text = "no process has the store open for writing"
            yield HandoverFinding("lock", OK, path, text, {"pid": None})

    def _meta(self) -> Iterator[HandoverFinding]:
        meta, path = self._facts.meta, self._facts.path_of(layout.META_PROPERTIES)
        kind = "meta-properties"
        if meta is None:
            if self._has_zookeeper:
                text = "there is no meta.properties: the broker makes one"
                yield HandoverFinding(kind, CHANGES, path, text, {})
            else:
                text = (
                    "there is no meta.properties: format the directory first "
                    "(kafka-storage format -t CLUSTER_ID -c SETTINGS), which keeps "
                    "what is in it"
                )
                yield HandoverFinding(kind, REFUSES, path, text, {})
            return
        version = meta.get("version", "0")
        if self._has_zookeeper and version != "0":
            text = f"meta.properties has version {version}, of a KRaft cluster; a "
            text += "broker with ZooKeeper has version 0"
            yield HandoverFinding(kind, REFUSES, path, text, meta)
            return
        node = meta.get("node.id", meta.get("broker.id"))
        if self._node_id is not None and node not in (None, str(self._node_id)):
            text = f"meta.properties is of node {node}, the broker is {self._node_id}"
            yield HandoverFinding(kind, REFUSES, path, text, meta)
        cluster = meta.get("cluster.id")
        if self._cluster_id is not None and cluster not in (None, self._cluster_id):
            text = f"meta.properties is of cluster {cluster}, the broker belongs to "
            text += self._cluster_id
            # A broker with KRaft that has the metadata log here, too, goes by it.
            effect = REFUSES if self._has_zookeeper else WARNS
            yield HandoverFinding(kind, effect, path, text, meta)
        else:
            text = f"meta.properties is of node {node}, cluster {cluster}"
            yield HandoverFinding(kind, OK, path, text, meta)

    def _names(self) -> Iterator[HandoverFinding]:
        for name in self._facts.directories:
            path = self._facts.path_of(name)
            if is_refused_name(name):
                text = f"{name} is named neither topic-number nor as a partition that "
                text += "is about to go: move it elsewhere"
                yield HandoverFinding("directory-name", REFUSES, path, text, {})
            elif name.endswith("-delete"):
                text = f"{name} is removed"
                yield HandoverFinding("directory-name", CHANGES, path, text, {})

    def _checkpoints(self) -> Iterator[HandoverFinding]:
        root = self._facts.root
        for name in _CHECKPOINTS:
            try:
                checkpoints.read_offsets(root, name)
            except CorruptCheckpointError as error:
                text = f"{error}: remove it, or write it anew by opening and closing "
                text += "the store"
                path = self._facts.path_of(name)
                yield HandoverFinding("checkpoint", REFUSES, path, text, {})
        for one in self._facts.partitions:
            bad = {
                layout.LEADER_EPOCHS: one.has_bad_epochs,
                layout.PARTITION_METADATA: one.has_bad_metadata,
            }
            for name in (name for name, is_bad in bad.items() if is_bad):
                path = f"{one.path}/{name}"
                text = f"{path} does not follow its format"
                yield HandoverFinding("checkpoint", REFUSES, path, text, {})

    def _publication(self) -> Iterator[HandoverFinding]:
        for note in self._facts.damage.notes:
            if note.kind == kinds.UNPUBLISHED:
                text = (
                    "a publication was interrupted: a broker serves the records of it "
                    "that are in the logs, which belong to no commit. Open and close "
                    "the store with logstore first: it removes them"
                )
                yield HandoverFinding("publication", LOSES, note.path, text, {})

    # ------------------------------------------------------------ the logs

    def _recovery(self) -> Iterator[HandoverFinding]:
        facts = self._facts
        if facts.is_clean:
            text = "the last owner stopped cleanly: no segment is read again"
            path = facts.path_of(layout.CLEAN_SHUTDOWN)
            yield HandoverFinding("clean-stop", OK, path, text, {})
            return
        count, size = facts.unflushed
        text = (
            f"the last owner did not stop cleanly: {count} segments with {size} bytes "
            f"are read again, and their indexes built. Open and close the store with "
            f"logstore first: a broker cuts a log at the first batch that it rejects, "
            f"and keeps no copy"
        )
        values = {"segments": count, "bytes": size}
        yield HandoverFinding("clean-stop", WARNS, facts.path, text, values)

    def _segments(self) -> Iterator[HandoverFinding]:
        for one in self._facts.partitions:
            for base, size in one.sizes.items():
                path = f"{one.path}/{layout.segment_file(base, layout.LOG)}"
                if size > _SEGMENT_BYTES_MAX:
                    text = f"{path} has {size} bytes, more than {_SEGMENT_BYTES_MAX}"
                    values = {"bytes": size}
                    yield HandoverFinding("segment", REFUSES, path, text, values)
            missing = [
                name
                for base in one.sizes
                for suffix in (layout.INDEX, layout.TIME_INDEX)
                if (name := layout.segment_file(base, suffix)) not in one.names
            ]
            if missing:
                text = f"{_shown(missing)} of {one.path} are missing, and built"
                values = {"count": len(missing)}
                yield HandoverFinding("index", CHANGES, one.path, text, values)

    def _damage(self) -> Iterator[HandoverFinding]:
        damage = self._facts.damage
        for one in self._facts.partitions:
            inside = [p for p in damage.problems if p.path.startswith(f"{one.path}/")]
            inside += [p for p in damage.problems if p.path == one.path]
            broken = [p for p in inside if p.kind in _IN_LOG]
            if broken:
                yield self._broken(one, broken[0])
            for problem in inside:
                if problem.kind == kinds.TXN_INDEX_FAULT and self._facts.is_clean:
                    text = f"{problem.message}. Build it with rebuild-index first"
                    yield HandoverFinding(
                        "transaction-index", LOSES, problem.path, text, {}
                    )
            for note in damage.notes:
                is_here = note.path.startswith(f"{one.path}/")
                if is_here and note.kind in (kinds.TORN_TAIL, kinds.ZERO_TAIL):
                    text = f"{note.message}: it is cut"
                    yield HandoverFinding("torn-tail", CHANGES, note.path, text, {})
        there = {one.path for one in self._facts.partitions}
        for problem in damage.problems:
            name = problem.path.rpartition("/")[2]
            is_partition = layout.parse_partition_directory(name) is not None
            if is_partition and problem.kind == kinds.LOST_SEGMENT:
                if problem.path in there:
                    continue
                text = f"{problem.message}. A broker serves an empty log in its place"
                values = {"firstOffset": None, "message": problem.message}
                yield HandoverFinding("damage", LOSES, problem.path, text, values)

    def _broken(self, one: PartitionFacts, problem: kinds.Problem) -> HandoverFinding:
        values = {"firstOffset": problem.first_offset, "message": problem.message}
        base = layout.parse_segment_file(problem.path.rpartition("/")[2])
        is_read = base is not None and base.base_offset in one.unflushed
        if is_read and not self._facts.is_clean:
            text = (
                f"{problem.message}. It is read again: the log is cut there, with all "
                f"that follows, and no copy is kept. repair first: it keeps what it "
                f"takes out, and can skip the damage alone"
            )
        else:
            text = (
                f"{problem.message}. A broker does not notice it before a consumer "
                f"reads there, which gets an error each time. repair first"
            )
        return HandoverFinding("damage", LOSES, problem.path, text, values)

    # ------------------------------------------------------------ the cluster

    def _topics(self) -> Iterator[HandoverFinding]:
        known = None if self._has_zookeeper else cluster_topics(self._facts.root)
        by_topic: dict[str, list[PartitionFacts]] = {}
        for one in self._facts.partitions:
            by_topic.setdefault(one.key.topic, []).append(one)
        for topic, some in by_topic.items():
            yield from self._topic(topic, some, known)

    def _topic(
        self, topic: str, some: list[PartitionFacts], known: dict[str, str] | None
    ) -> Iterator[HandoverFinding]:
        path = some[0].path
        ids = {one.topic_id for one in some}
        values: dict[str, Any] = {"topic": topic, "partitions": len(some)}
        if self._has_zookeeper:
            text = f"{topic} is served only if ZooKeeper has it: create it first"
            yield HandoverFinding("topic", WARNS, path, text, values)
        elif "" in ids:
            text = (
                f"{topic} has no topic id (partition.metadata): its directories are "
                f"set aside (as -stray), and not served. Create it in the cluster, "
                f"with as many partitions, and take the partition.metadata that the "
                f"broker has made"
            )
            yield HandoverFinding("topic-id", LOSES, path, text, values)
        elif known is None:
            text = (
                f"{topic} is set aside (as -stray) if the cluster does not have it, "
                f"with this id: create it there first, with as many partitions"
            )
            yield HandoverFinding("topic", WARNS, path, text, values)
        elif topic not in known:
            text = (
                f"the cluster does not have {topic}: its directories are set aside (as "
                f"-stray), and not served. Create it there first, with as many "
                f"partitions"
            )
            yield HandoverFinding("topic", LOSES, path, text, values)
        elif ids - {known[topic]}:
            text = (
                f"partition.metadata of {topic} has the id {', '.join(sorted(ids))}, "
                f"the cluster has {known[topic]}: its directories are set aside (as "
                f"-stray). Take the partition.metadata that the broker has made"
            )
            yield HandoverFinding("topic-id", LOSES, path, text, values)
        else:
            text = f"the cluster has {topic}"
            yield HandoverFinding("topic", OK, path, text, values)

    def _magics(self) -> Iterator[HandoverFinding]:
        for one in self._facts.partitions:
            magics = self._magics_of(one)
            if min(magics, default=2) < 2:
                which = " and ".join(str(magic) for magic in sorted(magics))
                text = f"{one.key} has batches of magic {which}: they are served, and "
                text += "new ones get magic 2"
                values = {"magics": sorted(magics)}
                yield HandoverFinding("magic", OK, one.path, text, values)

    def _magics_of(self, one: PartitionFacts) -> set[int]:
        """Those that the segments begin and the log ends with."""
        found = set()
        for base in one.sizes:
            directory = self._facts.root.child(str(one.key))
            try:
                with directory.opened(layout.segment_file(base, layout.LOG)) as fd:
                    head = bytearray(17)
                    if directory.files.read(fd, head, 0) == len(head):
                        found.add(head[16])
            finally:
                directory.close()
        return found

    # ------------------------------------------------------------ afterwards

    def _retention(self) -> Iterator[HandoverFinding]:
        policies: list[retention.RetentionPolicy] = []
        if self._retention_ms >= 0:
            policies.append(_BrokerAge(self._retention_ms))
        if self._retention_bytes >= 0:
            policies.append(retention.RetainBytes(self._retention_bytes))
        if not policies:
            return
        facts = self._facts
        try:
            store = open_store(facts.path, read_only=True, files=facts.root.files)
        except LogStoreError:
            return  # what is wrong is found above
        with store:
            for one in facts.partitions:
                if one.key.topic.startswith("__"):
                    continue  # the broker's own, which it compacts
                yield from self._expired(store, one, policies)

    def _expired(
        self, store: Any, one: PartitionFacts, policies: list[retention.RetentionPolicy]
    ) -> Iterator[HandoverFinding]:
        try:
            partition = store.topic(one.key.topic)[one.key.partition]
            deletions = partition.apply_retention(dry_run=True, policies=policies)
            segments = partition.segments
        except LogStoreError:
            return
        if deletions:
            size = sum(deletion.segment.size_bytes for deletion in deletions)
            end = deletions[-1].segment.next_offset
            text = (
                f"{one.key}: {len(deletions)} of {len(segments)} segments, {size} "
                f"bytes below offset {end}, are deleted soon after the start "
                f"({deletions[0].reason}): create the topic with a retention of its own"
            )
            values = {"segments": len(deletions), "bytes": size, "endOffset": end}
            yield HandoverFinding("retention", LOSES, one.path, text, values)
        now_ms = self._facts.now_ms
        ahead = [s for s in segments if s.max_timestamp_ms > now_ms]
        if ahead and self._retention_ms >= 0:
            latest = max(segment.max_timestamp_ms for segment in ahead)
            text = (
                f"{one.key} has records with a time in the future, up to {latest} ms: "
                f"no segment from {ahead[0].base_offset} on is deleted by age before "
                f"that time"
            )
            values = {"segments": len(ahead), "timestamp": latest}
            yield HandoverFinding("future-time", WARNS, one.path, text, values)

    def _groups(self) -> Iterator[HandoverFinding]:
        names = layout.group_files(self._facts.names)
        if names:
            groups = sorted(layout.group_of_file(name) for name in names)
            text = (
                f"a broker knows nothing of the groups {_shown(groups)}: commit their "
                f"offsets in its directory with groups export"
            )
            path = self._facts.path_of(names[0])
            yield HandoverFinding("groups", WARNS, path, text, {"groups": groups})

    def _own_files(self) -> Iterator[HandoverFinding]:
        settings = self._settings()
        if settings:
            text = (
                f"a broker does not know the settings of topics here: give them to it, "
                f"for example {_shown(settings)}"
            )
            path = self._facts.path_of(layout.TOPICS)
            yield HandoverFinding("settings", WARNS, path, text, {"settings": settings})
        own = [n for n in self._facts.names if n.startswith(layout.OWN_PREFIX)]
        if own:
            text = f"{len(own)} files of logstore's are ignored, and stay"
            yield HandoverFinding("own-files", OK, self._facts.path, text, {})

    def _settings(self) -> list[str]:
        """Settings of topics that differ from a broker's defaults."""
        try:
            store = open_store(
                self._facts.path, read_only=True, files=self._facts.root.files
            )
        except LogStoreError:
            return []
        found = []
        with store:
            for topic in store.topics():
                try:
                    config = store.topic(topic).config.to_dict()
                except LogStoreError:
                    continue
                for name, value in TopicConfig().to_dict().items():
                    if name in _KAFKA_SETTINGS and config[name] != value:
                        kafka = name.replace("_", ".")
                        found.append(f"{topic}: {kafka}={config[name]}")
        return found


# Those that a broker has for topics, too.
_KAFKA_SETTINGS: Final = frozenset(
    (
        "cleanup_policy", "compression_type", "file_delete_delay_ms",
        "index_interval_bytes", "max_message_bytes", "message_timestamp_type",
        "retention_bytes", "retention_ms", "segment_bytes", "segment_index_bytes",
        "segment_jitter_ms", "segment_ms",
    )
)  # fmt: skip


def _shown(names: Iterable[str]) -> str:
    known = list(names)
    rest = len(known) - _SHOWN_MAX
    shown = ", ".join(known[:_SHOWN_MAX])
    return f"{shown} and {rest} more" if rest > 0 else shown
