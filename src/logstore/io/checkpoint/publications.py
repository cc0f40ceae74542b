"""Publications: the files that record the present one and the last ones, and how
readers use them (docs/format.md, docs/design.md "Publishing").

    .logstore-publication  one is under way: where each log ended before
    .logstore-published    the last sequence number of each identity

The first file already holds the content of the second. As long as it has its name, no
reader reads past the ends that it gives, and a process that opens the store for writing
removes all records after them. Renaming it to the second name is the commit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = [
    "Entry",
    "Publications",
    "bases_of",
    "evict",
    "forget",
    "is_of",
    "remembered",
]

# How many identities are remembered besides the pinned ones: those that published last.
IDENTITIES_MAX: Final = 10_000
# Fewer of them, if all entries together would take more than this in the file, which
# must stay readable (`STATE_BYTES_MAX`); the rest is for the ends of logs.
LEDGER_BYTES_MAX: Final = 60 << 20
# An entry takes at most so many bytes besides its texts, and a character at most six.
_ENTRY_BYTES: Final = 100
_CHARACTER_BYTES: Final = 6
# So many entries fit in any case.
_ENTRIES_FIT: Final = 1000
_QUIET: Final = None, None


class Entry(NamedTuple):
    """The last publication of an identity.

    Attributes:
        sequence: its number.
        records: number of its records.
        time_ms: its time, in Unix milliseconds.
        note: text that the publisher wanted to be kept with it.
        is_pinned: it is remembered, however many others publish.
        metadata: bytes that were committed with its records.
    """

    sequence: int
    records: int
    time_ms: int
    note: str = ""
    is_pinned: bool = False
    metadata: bytes = b""


class Publications:
    """The publications of one store, for readers. Any thread may call the methods."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        # The last key and the result of `high_watermarks` for it.
        self._cached: tuple[object, dict[TopicPartition, int]] = (_QUIET, {})

    def cache_key(self) -> tuple[object, object]:
        """A value that changes when a publication begins or ends."""
        return self._root.stamp(layout.PUBLICATION), self._root.stamp(layout.PUBLISHED)

    def high_watermarks(
        self, cache_key: tuple[object, object]
    ) -> dict[TopicPartition, int] | None:
        """Where readers have to stop, by partition, at the time of a cache key.

        Returns None if the publication of that time is over and its outcome is unknown.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read.
        """
        if cache_key[0] is None:
            return {}
        cached_key, high_watermarks = self._cached
        if cache_key != cached_key:
            value = checkpoints.read_state(self._root, layout.PUBLICATION)
            if value is None or self.cache_key() != cache_key:
                return None
            ownership = Ownership(self._root)
            ownership.read_owner(lambda action: None)
            high_watermarks = bases_of(value) if is_of(value, ownership) else {}
            self._cached = cache_key, high_watermarks
        return high_watermarks

    def published(self) -> dict[str, Entry]:
        """The last publication of each identity; the most recent one comes last.

        Raises:
            CorruptCheckpointError: the file is damaged.
            OSError: it cannot be read.
        """
        value = checkpoints.read_state(self._root, layout.PUBLISHED)
        if value is None:
            return {}
        notes = dict(value.get("notes", ()))
        pinned = frozenset(value.get("pinned", ()))
        metadata = {
            identity: base64.b64decode(text)
            for identity, text in value.get("metadata", ())
        }
        return {
            identity: Entry(
                last,
                count,
                time,
                notes.get(identity, ""),
                identity in pinned,
                metadata.get(identity, b""),
            )
            for identity, last, count, time in value["published"]
        }


def is_of(value: Mapping[str, Any], ownership: Ownership) -> bool:
    """Whether only logstore has written to the store since a publication."""
    return ownership.is_own and value["generation"] == ownership.store_epoch


def bases_of(value: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Where the logs of a publication ended before it began."""
    return {
        TopicPartition(topic, number): base for topic, number, base in value["bases"]
    }


def forget(root: Directory, keys: Container[TopicPartition]) -> None:
    """Before there are new partitions with the names of deleted ones: a publication to
    those that could not be undone must not be undone in the new ones.

    Raises:
        CorruptCheckpointError, OSError: the file cannot be read or written.
    """
    value = checkpoints.read_state(root, layout.PUBLICATION)
    rows = [] if value is None else value["bases"]
    remaining = [row for row in rows if TopicPartition(row[0], row[1]) not in keys]
    if value is None or len(remaining) == len(rows):
        return
    if remaining:
        checkpoints.write_state(root, layout.PUBLICATION, {**value, "bases": remaining})
    else:
        root.unlink(layout.PUBLICATION, missing_ok=True)
        root.sync()


def evict(published: dict[str, Entry], kept: Container[str] = ()) -> None:
    """Forget the identities that published longest ago, as far as the limits demand;
    never a pinned one, nor one that is to be kept."""
    others = [
        identity
        for identity, entry in published.items()
        if not entry.is_pinned and identity not in kept
    ]
    pinned = sum(entry.is_pinned for entry in published.values())
    surplus = len(published) - pinned - IDENTITIES_MAX
    for identity in others[: max(surplus, 0)]:
        del published[identity]
    if len(published) <= _ENTRIES_FIT or _fit(published):
        return
    sizes = {identity: _size(identity, entry) for identity, entry in published.items()}
    size = sum(sizes.values())
    for identity in others[max(surplus, 0) :]:
        if size <= LEDGER_BYTES_MAX:
            break
        del published[identity]
        size -= sizes[identity]


def _fit(published: Mapping[str, Entry]) -> bool:
    """Whether entries fit for certain: the usual case, which costs little to see."""
    characters = sum(
        4 * len(identity) + len(entry.note) + len(entry.metadata)
        for identity, entry in published.items()
    )
    size = len(published) * _ENTRY_BYTES + characters * _CHARACTER_BYTES
    return size <= LEDGER_BYTES_MAX


def _size(identity: str, entry: Entry) -> int:
    """How many bytes an entry takes in the file: its identity is there once, and again
    for its note, its pin and its metadata."""
    times = 1 + bool(entry.note) + entry.is_pinned + bool(entry.metadata)
    texts = times * _text_bytes(identity) + _text_bytes(entry.note)
    return _ENTRY_BYTES + texts + (len(entry.metadata) + 2) // 3 * 4


def _text_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def remembered(published: Mapping[str, Entry]) -> dict[str, Any]:
    """The fields of a state file that hold it. Notes are apart from the rest because
    earlier versions read the file, too. They would lose pins and metadata when they
    write it, so a file that has some is of a version that they refuse."""
    rows = published.items()
    value: dict[str, Any] = {
        "published": [[identity, *entry[:3]] for identity, entry in rows],
        "notes": [[identity, entry.note] for identity, entry in rows if entry.note],
    }
    pinned = [identity for identity, entry in rows if entry.is_pinned]
    metadata = [
        [identity, base64.b64encode(entry.metadata).decode("ascii")]
        for identity, entry in rows
        if entry.metadata
    ]
    if pinned or metadata:
        value |= {"version": 2, "pinned": pinned, "metadata": metadata}
    return value
