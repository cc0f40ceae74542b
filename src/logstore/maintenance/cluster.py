"""The topics and feature levels of a KRaft cluster, from the files in a broker's
directory.

A record of the metadata log is: version of the frame, kind, version of the kind
(unsigned varints), then the fields. Three kinds matter here: a topic with its id, its
removal, and the level of a feature. A snapshot (`.checkpoint`) has the records in force
at its offset; `bootstrap.checkpoint` has the records that kafka-storage writes for an
empty log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Final

from logstore.broker.fields import MessageError, Reader
from logstore.broker.schemas import message
from logstore.config import StoreConfig
from logstore.errors import CorruptionError, UnsupportedError
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import (
    CLUSTER_BOOTSTRAP,
    CLUSTER_METADATA,
    LOG,
    parse_segment_file,
)
from logstore.log.read.damage import make_batch
from logstore.segment import Segment

__all__ = ["NO_CLUSTER", "Cluster", "cluster_of"]

_SNAPSHOT: Final = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_TOPIC, _REMOVED, _LEVEL = 2, 9, 12
_RECORDS: Final = {
    _TOPIC: "TopicRecord",
    _REMOVED: "RemoveTopicRecord",
    _LEVEL: "FeatureLevelRecord",
}
_LIMIT: Final = StoreConfig().max_batch_decompressed_bytes
_DAMAGE: Final = (CorruptionError, UnsupportedError, MessageError)


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster according to its files. Levels are feature name -> level.

    Attributes:
        topics: name -> id; None: there is no metadata log, or it cannot be read.
        levels: the highest levels in the newest snapshot of the metadata log and in the
            log after it: a broker reads all of these records, also replaced ones.
        formatted: the levels in a snapshot at offset 0, which kafka-storage writes from
            4.4 on.
        bootstrap: the levels in `bootstrap.checkpoint`.
    """

    topics: Mapping[str, str] | None = None
    levels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    formatted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bootstrap: Mapping[str, int] = dataclasses.field(default_factory=dict)


NO_CLUSTER: Final = Cluster()


class _Records:
    """The records that were read: topics by their ids, and the highest levels."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        self.levels: dict[str, int] = {}

    def apply(self, value: bytes) -> None:
        """Apply the next record.

        Raises:
            MessageError: the record does not follow its format.
        """
        reader = Reader(value, "metadata")
        reader.varint("frame version")
        kind, version = reader.varint("type"), reader.varint("version")
        if kind not in _RECORDS:
            return
        values = reader.message(message(_RECORDS[kind]), version)
        if kind == _TOPIC:
            self.topics[values["topicId"]] = values["name"]
        elif kind == _REMOVED:
            self.topics.pop(values["topicId"], None)
        else:
            name, level = values["name"], values["featureLevel"]
            self.levels[name] = max(self.levels.get(name, 0), level)


def cluster_of(root: Directory) -> Cluster:
    """Read the cluster from the directory of a broker. From a damaged file, reads the
    records before the damage; if the metadata log is damaged, `topics` is None.

    Raises:
        OSError: the system refuses.
    """
    bootstrap = _Records()
    descriptors = Descriptors(root.files, 1)
    try:
        if root.stat(CLUSTER_BOOTSTRAP).is_file:
            with contextlib.suppress(*_DAMAGE):
                for value in _values_of(root, descriptors, CLUSTER_BOOTSTRAP, 0, 0):
                    bootstrap.apply(value)
    except FileNotFoundError:
        pass
    finally:
        descriptors.close()
    cluster = NO_CLUSTER
    if CLUSTER_METADATA in root.directories():
        directory = root.child(CLUSTER_METADATA)
        try:
            cluster = _metadata_log(directory)
        finally:
            directory.close()
    return dataclasses.replace(cluster, bootstrap=bootstrap.levels)


def _metadata_log(directory: Directory) -> Cluster:
    """Read the newest snapshot, and the log from its offset on."""
    names = directory.names()
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    start = int(snapshots[-1][:20]) if snapshots else 0
    descriptors = Descriptors(directory.files, 1)
    formatted, log = _Records(), _Records()
    is_whole = False
    try:
        with contextlib.suppress(*_DAMAGE):
            first = log if start else formatted
            for name in snapshots[-1:]:
                for value in _values_of(directory, descriptors, name, 0, 0):
                    first.apply(value)
            log.topics = first.topics
            for name in sorted(names):
                parsed = parse_segment_file(name)
                if parsed and parsed.suffix == LOG and not parsed.transition:
                    base = parsed.base_offset
                    for value in _values_of(directory, descriptors, name, base, start):
                        log.apply(value)
            is_whole = True
    finally:
        descriptors.close()
    topics = {name: topic_id for topic_id, name in log.topics.items()}
    return Cluster(topics if is_whole else None, log.levels, formatted.levels)


def _values_of(
    directory: Directory, descriptors: Descriptors, name: str, base: int, start: int
) -> Iterator[bytes]:
    """The record values of a file, from an offset on."""
    size = directory.stat(name).size
    segment = Segment.of_file(directory, descriptors, name, base, size)
    for header, buffer, place in segment.headers():
        if header.last_offset < start or header.is_control:
            continue
        for record in make_batch(segment, header, buffer, place, _LIMIT):
            if record.offset >= start and record.value:
                yield record.value
