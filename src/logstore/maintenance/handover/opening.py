"""The findings about logstore, which opens the directory of a broker for writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logstore.io import layout
from logstore.maintenance import finding as kinds
from logstore.maintenance.facts import StoreFacts
from logstore.maintenance.finding import (
    CHANGES,
    LOSES,
    OK,
    OPENING,
    REFUSES,
    WARNS,
    Finding,
)

__all__ = ["DirectoryOpening"]

_REMOTE: Final = "remote-log-index-cache"
_TRANSACTIONS: Final = "__transaction_state"
_OFFSETS: Final = "__consumer_offsets"
_BATCHES: Final = 2
_ENDS: Final = {
    "delete": "is removed when its delay is over",
    "future": "is a copy of a partition that was being moved: it is ignored, and kept",
    "stray": "was set aside by the broker: it is ignored, and kept",
}


class DirectoryOpening:
    """The opening of a directory that a broker has written to."""

    def __init__(self, facts: StoreFacts) -> None:
        self._facts = facts

    def findings(self) -> Iterator[Finding]:
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

    def _lock(self) -> Iterator[Finding]:
        holder, path = self._facts.holder, self._facts.path_of(layout.LOCK)
        if holder is None:
            text = "no process has the directory open for writing"
            yield Finding(OPENING, "lock", OK, path, text, values={"pid": None})
            return
        who = f"process {holder}" if holder else "a process"
        text = f"{who} has the directory open for writing, like a running broker: stop "
        text += "it, or open the directory with read_only=True"
        yield Finding(OPENING, "lock", REFUSES, path, text, values={"pid": holder})

    def _recovery(self) -> Iterator[Finding]:
        facts = self._facts
        if facts.is_clean:
            text = "the broker stopped cleanly: the last segment of each log is read"
            path = facts.path_of(layout.CLEAN_SHUTDOWN)
            yield Finding(OPENING, "clean-stop", OK, path, text)
            return
        count, size = facts.unflushed
        text = (
            f"the broker did not stop cleanly: {count} segments with {size} bytes are "
            f"checked; a torn tail is cut, and a copy of it kept; transaction indexes "
            f"are finished"
        )
        values = {"segments": count, "bytes": size}
        yield Finding(OPENING, "clean-stop", WARNS, facts.path, text, values=values)

    def _damage(self) -> Iterator[Finding]:
        for finding in self._facts.contents:
            if finding.is_problem:
                advice = "" if finding.kind == kinds.GROUP else "; repair it first"
                text = f"{finding.message}. Nothing is cut{advice}"
                yield Finding(OPENING, finding.kind, LOSES, finding.path, text)
            elif finding.remedy == kinds.CUT:
                text = f"{finding.message}: it is cut, and a copy is kept"
                yield Finding(OPENING, "torn-tail", CHANGES, finding.path, text)

    def _directories(self) -> Iterator[Finding]:
        for name in self._facts.directories:
            transition = layout.transition_topic(name)
            if transition is not None:
                effect = CHANGES if transition[2] == "delete" else OK
                text = f"{name} {_ENDS[transition[2]]}"
                path = self._facts.path_of(name)
                yield Finding(OPENING, "directory-name", effect, path, text)

    def _remote(self) -> Iterator[Finding]:
        if _REMOTE in self._facts.directories:
            text = (
                "the broker has tiered storage: logstore reads the directory, "
                "but not segments that are only in remote storage"
            )
            path = self._facts.path_of(_REMOTE)
            yield Finding(OPENING, "remote-storage", LOSES, path, text)

    def _topics(self) -> Iterator[Finding]:
        formats = {
            topic: magic
            for topic, magic in sorted(self._facts.formats.items())
            if not topic.startswith("__")
        }
        if formats:
            count, wholes = len(formats), list(formats.values()).count(_BATCHES)
            who = "1 topic has" if count == 1 else f"{count} topics have"
            if wholes == count:
                end = "its log ends" if count == 1 else "their logs end"
                what = f"appends continue in magic 2, as {end} or ended"
            elif wholes:
                what = (
                    f"appends to {wholes} of them continue in magic 2, as their logs "
                    f"end or ended, to the others in magic 1"
                )
            else:
                what = "appends are of magic 1"
            text = (
                f"{who} logstore's default settings until others are given "
                f"(Topic.configure); {what}"
            )
            values = {"topics": list(formats), "formats": formats}
            yield Finding(
                OPENING, "settings", CHANGES, self._facts.path, text, values=values
            )

    def _internal(self) -> Iterator[Finding]:
        topics = {partition.key.topic for partition in self._facts.partitions}
        if _TRANSACTIONS in topics:
            text = (
                "transactions that are open stay open: only a broker with this "
                "directory ends them, and readers of committed records stop there"
            )
            yield Finding(OPENING, "transactions", WARNS, self._facts.path, text)
        if _OFFSETS in topics:
            text = (
                "the groups of the broker are read by kafka.groups, and do not become "
                "groups of the store"
            )
            yield Finding(OPENING, "groups", WARNS, self._facts.path, text)
        if layout.CLUSTER_METADATA in self._facts.directories:
            path = self._facts.path_of(layout.CLUSTER_METADATA)
            text = (
                "the log of the cluster's metadata is not a topic, and stays unchanged"
            )
            yield Finding(OPENING, "metadata-log", OK, path, text)
