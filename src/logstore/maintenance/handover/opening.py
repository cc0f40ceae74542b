"""The findings about logstore, which opens the directory of a broker for writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logstore.io import layout
from logstore.maintenance.handover.facts import Facts
from logstore.maintenance.handover.report import (
    CHANGES,
    LOSES,
    OK,
    REFUSES,
    WARNS,
    HandoverFinding,
)
from logstore.maintenance.verify import report as kinds

__all__ = ["Opening"]

_REMOTE: Final = "remote-log-index-cache"
_TRANSACTIONS: Final = "__transaction_state"
_OFFSETS: Final = "__consumer_offsets"
_ENDS: Final = {
    "delete": "is removed when its delay is over",
    "future": "is a copy of a partition that was being moved: it is ignored, and kept",
    "stray": "was set aside by the broker: it is ignored, and kept",
}


class Opening:
    """The opening of a directory that a broker has written to."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def findings(self) -> Iterator[HandoverFinding]:
        """Everything that there is to say, in the order of the opening."""
        for part in (
            self._lock,
            self._recovery,
            self._damage,
            self._directories,
            self._remote,
            self._topics,
            self._internal,
        ):
            yield from part()

    def _lock(self) -> Iterator[HandoverFinding]:
        holder, path = self._facts.holder, self._facts.path_of(layout.LOCK)
        if holder is None:
            text = "no process has the directory open for writing"
            yield HandoverFinding("lock", OK, path, text, {"pid": None})
            return
        who = f"process {holder}" if holder else "a process"
        text = f"{who} has the directory open for writing, as a broker that runs: stop "
        text += "it, or open the directory with read_only=True"
        yield HandoverFinding("lock", REFUSES, path, text, {"pid": holder})

    def _recovery(self) -> Iterator[HandoverFinding]:
        facts = self._facts
        if facts.is_clean:
            text = "the broker stopped cleanly: the last segment of each log is read"
            path = facts.path_of(layout.CLEAN_SHUTDOWN)
            yield HandoverFinding("clean-stop", OK, path, text, {})
            return
        count, size = facts.unflushed
        text = (
            f"the broker did not stop cleanly: {count} segments with {size} bytes are "
            f"checked; a torn tail is cut, and a copy of it kept; transaction indexes "
            f"are finished"
        )
        values = {"segments": count, "bytes": size}
        yield HandoverFinding("clean-stop", WARNS, facts.path, text, values)

    def _damage(self) -> Iterator[HandoverFinding]:
        for problem in self._facts.damage.problems:
            text = f"{problem.message}. Nothing is cut; repair it first"
            yield HandoverFinding(problem.kind, LOSES, problem.path, text, {})
        for note in self._facts.damage.notes:
            if note.kind in (kinds.TORN_TAIL, kinds.ZERO_TAIL):
                text = f"{note.message}: it is cut, and a copy is kept"
                yield HandoverFinding("torn-tail", CHANGES, note.path, text, {})

    def _directories(self) -> Iterator[HandoverFinding]:
        for name in self._facts.directories:
            found = layout.transition_topic(name)
            if found is not None:
                effect = CHANGES if found[2] == "delete" else OK
                text = f"{name} {_ENDS[found[2]]}"
                path = self._facts.path_of(name)
                yield HandoverFinding("directory-name", effect, path, text, {})

    def _remote(self) -> Iterator[HandoverFinding]:
        if _REMOTE in self._facts.directories:
            text = (
                "the broker has tiered storage: logstore reads what is in the "
                "directory, and nothing of the segments that are in the remote storage "
                "alone"
            )
            path = self._facts.path_of(_REMOTE)
            yield HandoverFinding("remote-storage", LOSES, path, text, {})

    def _topics(self) -> Iterator[HandoverFinding]:
        topics = sorted({one.key.topic for one in self._facts.partitions})
        named = [topic for topic in topics if not topic.startswith("__")]
        if named and layout.TOPICS not in self._facts.names:
            text = (
                f"{len(named)} topics have logstore's default settings until they get "
                f"others (Topic.configure), among them message_format=1: appends are "
                f"of magic 1, behind batches of magic 2"
            )
            values = {"topics": named}
            yield HandoverFinding("settings", CHANGES, self._facts.path, text, values)

    def _internal(self) -> Iterator[HandoverFinding]:
        topics = {one.key.topic for one in self._facts.partitions}
        if _TRANSACTIONS in topics:
            text = (
                "transactions that are open stay open: only a broker with this "
                "directory ends them, and readers of committed records stop there"
            )
            yield HandoverFinding("transactions", WARNS, self._facts.path, text, {})
        if _OFFSETS in topics:
            text = (
                "the groups of the broker are read by kafka_groups, and do not become "
                "groups of the store"
            )
            yield HandoverFinding("groups", WARNS, self._facts.path, text, {})
        if layout.CLUSTER_METADATA in self._facts.directories:
            path = self._facts.path_of(layout.CLUSTER_METADATA)
            text = "the log of the cluster's metadata is no topic, and stays as it is"
            yield HandoverFinding("metadata-log", OK, path, text, {})
