"""The remembered publications, in memory: the last one of each identity, which
of them are forgotten when there are too many, and how many bytes they take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping
from json.encoder import encode_basestring
from typing import Final, NamedTuple, TypeAlias

from logstore.io.layout import TopicPartition

__all__ = ["Call", "Changes", "LedgerEntry", "Ledger"]

# How many identities are remembered besides the pinned ones: the last to publish.
IDENTITIES_MAX: Final = 10_000
# Fewer of them, if all entries together would take more than this in the file, which
# must stay readable (`STATE_BYTES_MAX`); the rest is for the ends of logs.
LEDGER_BYTES_MAX: Final = 60 << 20
# Most bytes of the pinned ones; the rest is for identities that publish now.
PINNED_BYTES_MAX: Final = 56 << 20
# Most bytes of an entry, besides its texts.
_ENTRY_BYTES: Final = 100


# A request of a process that was carried out: its number, and (topic, partition, first
# offset, end) of its records.
Call: TypeAlias = "tuple[int, tuple[tuple[str, int, int, int], ...]]"
# Most calls of a process that are remembered: it has no more waiting requests.
CALLS_MAX: Final = 64
# The identities of processes that hand in begin so.
PROCESS_IDENTITY: Final = "process:"
_CALL_BYTES: Final = 30
# With the name of a topic, at most.
_SPAN_BYTES: Final = 330


class LedgerEntry(NamedTuple):
    """The last publication of an identity.

    Attributes:
        sequence: its number.
        records: number of its records.
        time_ms: its time, in Unix milliseconds.
        note: text that the publisher wanted to be kept with it.
        is_pinned: it is remembered, however many others publish.
        metadata: bytes that were committed with its records.
        calls: of a process: the last requests that were carried out, in their order; in
            a change, the new ones.
    """

    sequence: int
    records: int
    time_ms: int
    note: str = ""
    is_pinned: bool = False
    metadata: bytes = b""
    calls: tuple[Call, ...] = ()

    def call(self, number: int) -> dict[TopicPartition, range] | None:
        """The offsets of a request of the process; None: it was not carried out, or is
        not remembered."""
        if number > self.sequence:
            return None
        for sequence, spans in self.calls:
            if sequence == number:
                return {
                    TopicPartition(topic, partition): range(first, end)
                    for topic, partition, first, end in spans
                }
        return None

    def after(self, before: LedgerEntry | None) -> LedgerEntry:
        """The entry that is remembered when this change follows another entry."""
        if before is None or not (self.calls and before.calls):
            return self
        calls = before.calls + self.calls
        if before.calls[-1][0] >= self.calls[0][0] or len(self.calls) > 1:
            calls = tuple(sorted(dict(calls).items()))
        return self._replace(
            sequence=max(self.sequence, before.sequence), calls=calls[-CALLS_MAX:]
        )


# The last publications of identities that have changed; None: it is forgotten.
Changes: TypeAlias = "Mapping[str, LedgerEntry | None]"


class Ledger:
    """The last publication of each identity. A publication's look-ups cost the same,
    however many there are. For one thread at a time.

    Args:
        entries: of each identity; the one that published last comes last.
    """

    def __init__(self, entries: Mapping[str, LedgerEntry] | None = None) -> None:
        self._entries: dict[str, LedgerEntry] = {}
        # How many bytes each takes.
        self._sizes: dict[str, int] = {}
        # Identities that may be forgotten, in their order.
        self._others: OrderedDict[str, None] = OrderedDict()
        self._callers: set[str] = set()
        self._bytes = self._pinned_bytes = 0
        self.apply(entries or {})

    def get(self, identity: str) -> LedgerEntry | None:
        """The last publication of an identity; None: it has published nothing, or that
        is not remembered."""
        return self._entries.get(identity)

    def entries(self) -> dict[str, LedgerEntry]:
        """A copy of all; the one that published last comes last."""
        return self._entries.copy()

    def callers(self) -> list[str]:
        """The identities of processes that have handed in."""
        return list(self._callers)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file that has all of them, at most."""
        return self._bytes

    def apply(self, changes: Changes) -> None:
        """Remember what has changed."""
        for identity, entry in changes.items():
            before = self._entries.pop(identity, None)
            if before is not None:
                self._others.pop(identity, None)
                self._callers.discard(identity)
                self._count(before, -self._sizes.pop(identity))
            if entry is not None:
                entry = self._entries[identity] = entry.after(before)
                # The requests of a process are forgotten with the process.
                if not (entry.is_pinned or entry.calls):
                    self._others[identity] = None
                elif entry.calls:
                    self._callers.add(identity)
                size = self._sizes[identity] = entry_bytes(identity, entry)
                self._count(entry, size)

    def _count(self, entry: LedgerEntry, size: int) -> None:
        self._bytes += size
        if entry.is_pinned:
            self._pinned_bytes += size

    def evicted(self, changes: Changes, kept: Container[str] = ()) -> list[str]:
        """The identities to forget when `changes` are remembered, as far
        as the limits demand: the ones that published longest ago; never a pinned one,
        nor one in `kept`."""
        count, size = len(self._others), self._bytes
        for identity, entry in changes.items():
            before = self._entries.get(identity)
            if before is not None:
                count -= identity in self._others
                size -= self._sizes[identity]
            if entry is not None:
                count += not (entry.is_pinned or entry.calls)
                size += entry_bytes(identity, entry)
        gone: list[str] = []
        if count > IDENTITIES_MAX or size > LEDGER_BYTES_MAX:
            for identity in self._others:
                if count <= IDENTITIES_MAX and size <= LEDGER_BYTES_MAX:
                    break
                if identity not in changes and identity not in kept:
                    gone.append(identity)
                    count -= 1
                    size -= self._sizes[identity]
        return gone

    def has_room(self, changes: Mapping[str, LedgerEntry]) -> bool:
        """Whether the file can hold these besides all that is pinned: it is true for
        what makes it no longer, whatever is there."""
        growth = pinned = own = 0
        for identity, entry in changes.items():
            before = self._entries.get(identity)
            was_pinned = before is not None and before.is_pinned
            size = entry_bytes(identity, entry)
            old = self._sizes.get(identity, 0)
            growth += size - (old if was_pinned else 0)
            pinned -= old if was_pinned else 0
            pinned += size if entry.is_pinned else 0
            own += 0 if entry.is_pinned else size
        pinned_after = self._pinned_bytes + pinned
        if growth <= 0:
            return True
        return (
            pinned <= 0 or pinned_after <= PINNED_BYTES_MAX
        ) and pinned_after + own <= LEDGER_BYTES_MAX


def entry_bytes(identity: str, entry: LedgerEntry) -> int:
    """How many bytes an entry takes in the file at most: its identity is there once,
    and again for its note, its pin and its metadata."""
    times = 1 + bool(entry.note) + entry.is_pinned + bool(entry.metadata)
    texts = times * _text_bytes(identity) + _text_bytes(entry.note)
    calls = len(entry.calls) * _CALL_BYTES
    calls += _SPAN_BYTES * sum([len(spans) for _, spans in entry.calls])
    return _ENTRY_BYTES + texts + (len(entry.metadata) + 2) // 3 * 4 + calls


def _text_bytes(text: str) -> int:
    return len(encode_basestring(text).encode("utf-8", "surrogatepass"))
