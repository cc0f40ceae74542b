"""A Kafka broker and a directory that it starts on: the findings, in its order.

Each finding was observed with a broker (tests/interop/test_handover.py) that has this
directory alone, most of them with each release (docs/cli.md). A broker with several
directories leaves out one that it refuses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from logstore.config import TopicConfig
from logstore.io import layout
from logstore.io.layout import TopicPartition
from logstore.io.segment_info import newest_ms
from logstore.log import retention
from logstore.maintenance import finding as kinds
from logstore.maintenance.facts import PartitionFacts, StoreFacts
from logstore.maintenance.finding import (
    BROKER,
    CHANGES,
    LOSES,
    OK,
    REFUSES,
    WARNS,
    Finding,
)
from logstore.maintenance.handover.features import feature_findings
from logstore.maintenance.names import (
    broker_partition,
    foreign_text,
    is_refused_file,
    is_refused_name,
)
from logstore.segment import SegmentInfo

__all__ = ["Broker"]

_SHOWN_MAX: Final = 5
_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?")
_SEGMENT_BYTES_MAX: Final = (1 << 31) - 1


class _BrokerAge(retention.RetainAge):
    """Retention by age as in a broker: by the largest timestamp of a segment, even if
    it is in the future; by the file's modification time only without timestamps."""

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterator[SegmentInfo]:
        for segment in segments:
            if now_ms - newest_ms(segment) <= self.retention_ms:
                return
            yield segment


class Broker:
    """The start of a broker of a release."""

    def __init__(
        self,
        facts: StoreFacts,
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

    def findings(self) -> Iterator[Finding]:
        """Everything that there is to say, in the order of the start."""
        for part in (
            self._lock,
            self._meta,
            self._features,
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

    def _lock(self) -> Iterator[Finding]:
        holder, path = self._facts.holder, self._facts.path_of(layout.LOCK)
        if holder is not None:
            who = f"process {holder}" if holder else "a process"
            text = f"{who} has the store open for writing: close it there first"
            yield Finding(BROKER, "lock", REFUSES, path, text, values={"pid": holder})
        else:
            text = "no process has the store open for writing"
            yield Finding(BROKER, "lock", OK, path, text, values={"pid": None})

    def _meta(self) -> Iterator[Finding]:
        meta, path = self._facts.meta, self._facts.path_of(layout.META_PROPERTIES)
        kind = "meta-properties"
        if meta is None:
            if self._has_zookeeper:
                text = "there is no meta.properties: the broker makes one"
                yield Finding(BROKER, kind, CHANGES, path, text)
            else:
                text = (
                    "there is no meta.properties: format the directory first "
                    "(kafka-storage format -t CLUSTER_ID -c SETTINGS), which keeps "
                    "what is in it"
                )
                yield Finding(BROKER, kind, REFUSES, path, text)
            return
        version = meta.get("version", "0")
        if self._has_zookeeper and version != "0":
            text = f"meta.properties has version {version}, of a KRaft cluster; a "
            text += "broker with ZooKeeper has version 0"
            yield Finding(BROKER, kind, REFUSES, path, text, values=meta)
            return
        fault = "" if self._has_zookeeper else _meta_fault(meta)
        if fault:
            text = f"meta.properties {fault}: write it again with kafka-storage format"
            yield Finding(BROKER, kind, REFUSES, path, text, values=meta)
            return
        node = meta.get("node.id", meta.get("broker.id"))
        if self._node_id is not None and node not in (None, str(self._node_id)):
            text = f"meta.properties is of node {node}, the broker is {self._node_id}"
            yield Finding(BROKER, kind, REFUSES, path, text, values=meta)
        cluster = meta.get("cluster.id")
        if self._cluster_id is not None and cluster not in (None, self._cluster_id):
            text = f"meta.properties is of cluster {cluster}, the broker belongs to "
            text += self._cluster_id
            # A broker with KRaft that has the metadata log here, too, goes by it.
            effect = REFUSES if self._has_zookeeper else WARNS
            yield Finding(BROKER, kind, effect, path, text, values=meta)
        else:
            text = f"meta.properties is of node {node}, cluster {cluster}"
            yield Finding(BROKER, kind, OK, path, text, values=meta)

    def _features(self) -> Iterator[Finding]:
        if not self._has_zookeeper:
            yield from feature_findings(self._facts, self._release)

    def _names(self) -> Iterator[Finding]:
        named: dict[TopicPartition, str] = {}
        for name in self._facts.directories:
            path = self._facts.path_of(name)
            key = broker_partition(name)
            # One of a KRaft cluster sets a directory without an id aside before.
            counts = self._has_zookeeper or name in self._facts.identified
            if key is not None and counts and not layout.transition_topic(name):
                if key in named:
                    text = f"{name} and {named[key]} are the same partition for a "
                    text += "broker: move one of them elsewhere"
                    yield Finding(BROKER, "directory-name", REFUSES, path, text)
                    continue
                named[key] = name
            if is_refused_name(name):
                text = f"{name} is named neither topic-number nor as a partition that "
                text += "is about to go: move it elsewhere"
                yield Finding(BROKER, "directory-name", REFUSES, path, text)
            elif name.endswith("-delete"):
                text = f"{name} is removed"
                yield Finding(BROKER, "directory-name", CHANGES, path, text)
            elif text := foreign_text(name):
                yield Finding(BROKER, "directory-name", WARNS, path, f"{name} {text}")
        for partition in self._facts.partitions:
            for name in sorted(filter(is_refused_file, partition.files)):
                path = f"{partition.path}/{name}"
                text = f"{path} is named as a file of a segment, but for its offset: "
                text += "move it elsewhere"
                yield Finding(BROKER, "segment", REFUSES, path, text)

    def _checkpoints(self) -> Iterator[Finding]:
        for name, fault in self._facts.refused.items():
            path = self._facts.path_of(name)
            text = f"{path} cannot be used: {fault}: remove it, or open and close "
            text += "the store, which writes it again"
            yield Finding(BROKER, "checkpoint", REFUSES, path, text)
        for partition in self._facts.partitions:
            bad = {
                layout.LEADER_EPOCHS: partition.has_bad_epochs,
                layout.PARTITION_METADATA: partition.has_bad_metadata,
            }
            for name in (name for name, is_bad in bad.items() if is_bad):
                path = f"{partition.path}/{name}"
                text = f"{path} does not follow its format"
                yield Finding(BROKER, "checkpoint", REFUSES, path, text)

    def _publication(self) -> Iterator[Finding]:
        for note in self._facts.contents:
            if note.kind == kinds.UNPUBLISHED:
                text = (
                    "a publication was interrupted: a broker would serve its "
                    "records that are in the logs, although they were not "
                    "committed. Open and close the store with logstore first: it "
                    "removes them"
                )
                yield Finding(BROKER, "publication", LOSES, note.path, text)

    # ------------------------------------------------------------ the logs

    def _recovery(self) -> Iterator[Finding]:
        facts = self._facts
        if facts.is_clean:
            text = "the last owner stopped cleanly: no segment is read again"
            path = facts.path_of(layout.CLEAN_SHUTDOWN)
            yield Finding(BROKER, "clean-stop", OK, path, text)
            return
        count, size = facts.unflushed
        text = (
            f"the last owner did not stop cleanly: {count} segments with {size} bytes "
            f"are read again, and their indexes built. Open and close the store with "
            f"logstore first: a broker cuts a log at the first batch that it rejects, "
            f"and keeps no copy"
        )
        values = {"segments": count, "bytes": size}
        yield Finding(BROKER, "clean-stop", WARNS, facts.path, text, values=values)

    def _segments(self) -> Iterator[Finding]:
        for partition in self._facts.partitions:
            for segment in partition.segments:
                path, size = segment.path, segment.size_bytes
                if size > _SEGMENT_BYTES_MAX:
                    text = f"{path} has {size} bytes, more than {_SEGMENT_BYTES_MAX}"
                    values = {"bytes": size}
                    yield Finding(BROKER, "segment", REFUSES, path, text, values=values)
            missing = [
                name
                for segment in partition.segments
                for suffix in (layout.INDEX, layout.TIME_INDEX)
                if (name := layout.segment_file(segment.base_offset, suffix))
                not in partition.files
            ]
            if missing:
                text = f"{_shown(missing)} of {partition.path} are missing, and built"
                values = {"count": len(missing)}
                yield Finding(
                    BROKER, "index", CHANGES, partition.path, text, values=values
                )

    def _damage(self) -> Iterator[Finding]:
        seen = set()
        by_path = {facts.path: facts for facts in self._facts.partitions}
        for finding in self._facts.contents:
            partition = by_path.get(finding.path) or by_path.get(
                os.path.dirname(finding.path)
            )
            if finding.touches_records:
                # Of a log the first damage says it: a broker stops there.
                where = finding.path if partition is None else partition.path
                if where not in seen:
                    yield self._broken(partition, finding)
                seen.add(where)
            elif finding.is_problem and finding.kind == kinds.TXN_INDEX_FAULT:
                if self._facts.is_clean:
                    text = f"{finding.message}. Build it with rebuild-index first"
                    yield Finding(
                        BROKER, "transaction-index", LOSES, finding.path, text
                    )
            elif finding.remedy == kinds.CUT:
                text = f"{finding.message}: it is cut"
                yield Finding(BROKER, "torn-tail", CHANGES, finding.path, text)

    def _broken(self, partition: PartitionFacts | None, finding: Finding) -> Finding:
        values: dict[str, Any] = {
            "firstOffset": finding.first_offset,
            "message": finding.message,
        }
        base = layout.parse_segment_file(os.path.basename(finding.path))
        effect = LOSES
        if finding.kind == kinds.NOT_REGULAR:
            effect = WARNS
            text = (
                f"{finding.message}: it was not looked into. A broker follows a link, "
                f"and ignores a directory"
            )
        elif finding.kind == kinds.START_BEYOND_END:
            text = f"{finding.message}. A broker deletes all of them"
        elif partition is None and finding.kind == kinds.LOST_SEGMENT:
            text = f"{finding.message}. A broker serves an empty log in its place"
        elif (
            partition is not None
            and base is not None
            and base.base_offset in partition.unflushed
            and not self._facts.is_clean
        ):
            text = (
                f"{finding.message}. It is read again: the log is cut there, with all "
                "that follows, and no copy is kept. repair first: it keeps what "
                "it removes, and can skip only the damage"
            )
            values["isCut"] = True
        else:
            text = (
                f"{finding.message}. A broker does not notice it before a consumer "
                f"reads there, which gets an error each time. repair first"
            )
        return Finding(
            BROKER,
            "damage",
            effect,
            finding.path,
            text,
            finding.position,
            finding.first_offset,
            finding.last_offset,
            values,
        )

    # ------------------------------------------------------------ the cluster

    def _topics(self) -> Iterator[Finding]:
        known = None if self._has_zookeeper else self._facts.cluster.topics
        by_topic: dict[str, list[PartitionFacts]] = {}
        for partition in self._facts.partitions:
            by_topic.setdefault(partition.key.topic, []).append(partition)
        for topic, some in by_topic.items():
            yield from self._topic(topic, some, known)

    def _topic(
        self, topic: str, some: list[PartitionFacts], known: Mapping[str, str] | None
    ) -> Iterator[Finding]:
        path = some[0].path
        ids = {partition.topic_id for partition in some}
        values: dict[str, Any] = {"topic": topic, "partitions": len(some)}
        if self._has_zookeeper:
            text = f"{topic} is served only if ZooKeeper has it: create it first"
            yield Finding(BROKER, "topic", WARNS, path, text, values=values)
        elif "" in ids:
            text = (
                f"{topic} has no topic id (partition.metadata): its directories are "
                f"set aside (as -stray), and not served. Create it in the cluster, "
                f"with as many partitions, and take the partition.metadata that the "
                f"broker has made"
            )
            yield Finding(BROKER, "topic-id", LOSES, path, text, values=values)
        elif known is None:
            text = (
                f"{topic} is set aside (as -stray) if the cluster does not have it, "
                f"with this id: create it there first, with as many partitions"
            )
            yield Finding(BROKER, "topic", WARNS, path, text, values=values)
        elif topic not in known:
            text = (
                f"the cluster does not have {topic}: its directories are set aside (as "
                f"-stray), and not served. Create it there first, with as many "
                f"partitions"
            )
            yield Finding(BROKER, "topic", LOSES, path, text, values=values)
        elif ids - {known[topic]}:
            text = (
                f"partition.metadata of {topic} has the id {', '.join(sorted(ids))}, "
                f"the cluster has {known[topic]}: its directories are set aside (as "
                f"-stray). Take the partition.metadata that the broker has made"
            )
            yield Finding(BROKER, "topic-id", LOSES, path, text, values=values)
        else:
            text = f"the cluster has {topic}"
            yield Finding(BROKER, "topic", OK, path, text, values=values)

    def _magics(self) -> Iterator[Finding]:
        for partition in self._facts.partitions:
            if min(partition.magics, default=2) < 2:
                which = " and ".join(map(str, partition.magics))
                text = (
                    f"{partition.key} has batches of magic {which}: they are served, "
                    f"and new ones get magic 2"
                )
                values = {"magics": list(partition.magics)}
                yield Finding(BROKER, "magic", OK, partition.path, text, values=values)

    # ------------------------------------------------------------ afterwards

    def _retention(self) -> Iterator[Finding]:
        policies: list[retention.RetentionPolicy] = []
        if self._retention_ms >= 0:
            policies.append(_BrokerAge(self._retention_ms))
        if self._retention_bytes >= 0:
            policies.append(retention.RetainBytes(self._retention_bytes))
        if not policies:
            return
        for partition in self._facts.partitions:
            # The broker's own topics are compacted by it.
            if not partition.key.topic.startswith("__"):
                yield from self._expired(partition, policies)

    def _expired(
        self, partition: PartitionFacts, policies: list[retention.RetentionPolicy]
    ) -> Iterator[Finding]:
        now_ms, segments = self._facts.now_ms, partition.reader.segments
        deletions = retention.plan(
            partition.key.partition, segments, policies, now_ms, 0
        )
        if deletions:
            size = sum(deletion.segment.size_bytes for deletion in deletions)
            end = deletions[-1].segment.next_offset
            text = (
                f"{partition.key}: {len(deletions)} of {len(segments)} segments, "
                f"{size} bytes below offset {end}, are deleted soon after the start "
                f"({deletions[0].reason}): create the topic with its own retention"
            )
            values = {"segments": len(deletions), "bytes": size, "endOffset": end}
            yield Finding(
                BROKER, "retention", LOSES, partition.path, text, values=values
            )
        ahead = [s for s in segments if s.max_timestamp_ms > now_ms]
        if ahead and self._retention_ms >= 0:
            latest = max(segment.max_timestamp_ms for segment in ahead)
            text = (
                f"{partition.key} has records with a time in the future, up to "
                f"{latest} ms: no segment from {ahead[0].base_offset} on is deleted by "
                f"age before that time"
            )
            values = {"segments": len(ahead), "timestamp": latest}
            yield Finding(
                BROKER, "future-time", WARNS, partition.path, text, values=values
            )

    def _groups(self) -> Iterator[Finding]:
        names = layout.group_files(self._facts.names)
        if names:
            groups = sorted(layout.group_of_file(name) for name in names)
            text = (
                f"a broker does not know the groups {_shown(groups)}: commit "
                "their offsets in its directory with groups export"
            )
            path = self._facts.path_of(names[0])
            yield Finding(
                BROKER, "groups", WARNS, path, text, values={"groups": groups}
            )

    def _own_files(self) -> Iterator[Finding]:
        settings = self._settings()
        if settings:
            text = (
                "a broker does not know the topic settings in this store: set "
                f"them there, for example {_shown(settings)}"
            )
            path = self._facts.path_of(layout.TOPICS)
            yield Finding(
                BROKER, "settings", WARNS, path, text, values={"settings": settings}
            )
        own = [n for n in self._facts.names if n.startswith(layout.OWN_PREFIX)]
        if own:
            text = f"{len(own)} files of logstore are ignored, and stay"
            yield Finding(BROKER, "own-files", OK, self._facts.path, text)

    def _settings(self) -> list[str]:
        """Settings of topics that differ from a broker's defaults."""
        usual = TopicConfig().to_dict()
        topics = {partition.key.topic for partition in self._facts.partitions}
        differing_settings = []
        for topic, config in sorted(self._facts.settings.items()):
            if topic in topics:
                differing_settings += [
                    f"{topic}: {name.replace('_', '.')}={value}"
                    for name, value in config.to_dict().items()
                    if name in _KAFKA_SETTINGS and value != usual[name]
                ]
        return differing_settings


def _meta_fault(meta: Mapping[str, str]) -> str:
    """Why a broker of a KRaft cluster refuses its meta.properties; "" if it does not.
    In version 0 nothing has to be there."""
    version = meta.get("version", "0")
    if version not in ("0", "1"):
        return f"has the unknown version {version}"
    if version == "1":
        for name in ("node.id", "cluster.id"):
            if name not in meta:
                return f"has no {name}"
        if re.fullmatch(r"-?[0-9]{1,10}", meta["node.id"]) is None:
            return f"has the node.id {meta['node.id']!r}, which is not a number"
    directory = meta.get("directory.id")
    if directory is not None and _ID.fullmatch(directory) is None:
        return f"has the directory.id {directory!r}, which is not an id"
    return ""


# Settings that a broker also has for topics.
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
