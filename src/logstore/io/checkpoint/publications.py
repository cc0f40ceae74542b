"""What is being published, and what was: the files that say so, and what readers make
of them (docs/format.md, docs/design.md "Publishing").

    .logstore-publication  one is under way: where each log ended before
    .logstore-published    the last sequence number of each identity

The first holds what the second will. As long as it has its name no reader looks past
the ends that it gives, and whoever opens the store for writing takes away what lies
behind them. Renaming it to the second name is the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Marks
from logstore.io.directory import Directory

__all__ = ["Entry", "Publications", "bases_of", "is_of", "remembered"]

TopicPartition = tuple[str, int]

_QUIET: Final = None, None


class Entry(NamedTuple):
    """What is remembered of an identity: its last publication.

    Attributes:
        sequence: its number, and
        records: how many it had, and
        time_ms: when, in Unix milliseconds.
        note: what who published wanted to be kept with it.
    """

    sequence: int
    records: int
    time_ms: int
    note: str = ""


class Publications:
    """The publications of one store, as they can be read. Any thread may call it."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        # What `ceilings` found last, behind the token that it found it for.
        self._found: tuple[object, dict[TopicPartition, int]] = (_QUIET, {})

    def token(self) -> tuple[object, object]:
        """What changes with every publication that begins or ends."""
        return self._root.look(layout.PUBLICATION), self._root.look(layout.PUBLISHED)

    def ceilings(
        self, token: tuple[object, object]
    ) -> dict[TopicPartition, int] | None:
        """Where readers have to stop, by partition, at the time of a token.

        None: the publication of that time is over, and nobody knows how it ended.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read.
        """
        if token[0] is None:
            return {}
        known, found = self._found
        if token != known:
            value = checkpoints.read_state(self._root, layout.PUBLICATION)
            if value is None or self.token() != token:
                return None
            marks = Marks(self._root)
            marks.read_owner(lambda action: None)
            found = bases_of(value) if is_of(value, marks) else {}
            self._found = token, found
        return found

    def published(self) -> dict[str, Entry]:
        """Of each identity: its last publication; who published last comes last.

        Raises:
            CorruptCheckpointError: the file is damaged.
            OSError: it cannot be read.
        """
        value = checkpoints.read_state(self._root, layout.PUBLISHED)
        if value is None:
            return {}
        notes = dict(value.get("notes", ()))
        return {
            identity: Entry(last, count, time, notes.get(identity, ""))
            for identity, last, count, time in value["published"]
        }


def is_of(value: Mapping[str, Any], marks: Marks) -> bool:
    """Whether nobody but logstore has written to the store since a publication."""
    return marks.is_own and value["generation"] == marks.generation


def bases_of(value: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Where the logs of a publication ended before it."""
    return {(topic, number): base for topic, number, base in value["bases"]}


def remembered(published: Mapping[str, Entry]) -> dict[str, Any]:
    """The fields of a state file that hold it. Notes are apart from the rest: earlier
    versions read the file, too."""
    return {
        "published": [[identity, *entry[:3]] for identity, entry in published.items()],
        "notes": [
            [identity, entry.note]
            for identity, entry in published.items()
            if entry.note
        ],
    }
