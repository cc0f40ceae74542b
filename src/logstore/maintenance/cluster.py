"""The topics that a KRaft cluster knows, from the metadata log in a broker's directory.

A record of the log is: version of the frame, kind, version of the kind (unsigned
varints), then the fields. Two kinds matter here: a topic with its id, and its removal.
A snapshot (`.checkpoint`) has the records that are in force at its offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from logstore.broker.fields import MessageError, Reader
from logstore.broker.schemas import message
from logstore.config import StoreConfig
from logstore.errors import CorruptionError, UnsupportedError
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import CLUSTER_METADATA, LOG, parse_segment_file
from logstore.log.read.damage import make_batch
from logstore.segment import Segment

__all__ = ["cluster_topics"]

_SNAPSHOT: Final = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_TOPIC: Final = 2
_RECORDS: Final = {_TOPIC: "TopicRecord", 9: "RemoveTopicRecord"}
_LIMIT: Final = StoreConfig().max_batch_decompressed_bytes


def cluster_topics(root: Directory) -> dict[str, str] | None:
    """The ids of the topics that the cluster has, by name. None: the directory has no
    metadata log, or it cannot be read.

    Raises:
        OSError: the system refuses.
    """
    if CLUSTER_METADATA not in root.directories():
        return None
    directory = root.child(CLUSTER_METADATA)
    descriptors = Descriptors(directory.files, 1)
    topics: dict[str, str] = {}
    try:
        for value in _values(directory, descriptors):
            _apply(value, topics)
    except (CorruptionError, UnsupportedError, MessageError):
        return None
    finally:
        descriptors.close()
        directory.close()
    return {name: topic_id for topic_id, name in topics.items()}


def _values(directory: Directory, descriptors: Descriptors) -> Iterator[bytes]:
    """The values of the newest snapshot, and of the log from there on."""
    names = directory.names()
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    start = 0
    if snapshots:
        start = int(snapshots[-1][:20])
        yield from _values_of(directory, descriptors, snapshots[-1], 0, 0)
    for name in sorted(names):
        parsed = parse_segment_file(name)
        if parsed and parsed.suffix == LOG and not parsed.transition:
            base = parsed.base_offset
            yield from _values_of(directory, descriptors, name, base, start)


def _values_of(
    directory: Directory, descriptors: Descriptors, name: str, base: int, start: int
) -> Iterator[bytes]:
    size = directory.stat(name).size
    segment = Segment.of_file(directory, descriptors, name, base, size)
    for header, buffer, place in segment.headers():
        if header.last_offset < start or header.is_control:
            continue
        for record in make_batch(segment, header, buffer, place, _LIMIT):
            if record.offset >= start and record.value:
                yield record.value


def _apply(value: bytes, topics: dict[str, str]) -> None:
    reader = Reader(value, "metadata")
    reader.varint("frame version")
    kind, version = reader.varint("type"), reader.varint("version")
    if kind in _RECORDS:
        values = reader.message(message(_RECORDS[kind]), version)
        if kind == _TOPIC:
            topics[values["topicId"]] = values["name"]
        else:
            topics.pop(values["topicId"], None)
