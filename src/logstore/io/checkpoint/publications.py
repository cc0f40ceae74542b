"""Publications: the files that record the present one and the last ones, and how
readers use them (docs/format.md, docs/design.md "Publishing").

    .logstore-published    the last publication of each identity
    .logstore-publication  the journal: what has changed since that file was written,
                           and the ends of the logs that are published to

As long as the journal has the end of a log, no reader reads past it, and a process that
opens the store for writing removes all records after it. The entry of the journal that
moves these ends, and has the publications of identities, is the commit
(`PublicationJournal` writes it): for readers when it has a seal, or another entry
follows. Earlier versions wrote `.logstore-publication` for one
publication, which is not committed as long as the file is there.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import FileEnd
from logstore.io.checkpoint.ledger import PROCESS_IDENTITY, Call, Changes, LedgerEntry
from logstore.io.checkpoint.log_spans import LogSpan, has_all, spans_of
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.state_fields import (
    FIRST_JOURNAL_VERSION,
    JOURNAL_VERSION,
    check_journal,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.lock import writer_of
from logstore.io.stamps import FileStamp

__all__ = [
    "Journal",
    "Outcome",
    "PublicationKey",
    "Publications",
    "change_rows",
    "is_of",
    "record_unknown",
    "remembered",
    "unknown_publications",
]

_QUIET: Final = None, None

# The stamps of the two files: they change when a publication begins or ends.
PublicationKey: TypeAlias = "tuple[FileStamp | None, FileStamp | None]"


class Journal(NamedTuple):
    """The content of `.logstore-publication`.

    Attributes:
        generation: the store epoch in which it was written.
        bases: ends of the logs that are published to.
        changes: to the entries of `.logstore-published`.
        synced: the logs that are durable up to their ends. One that has just got an
            end here may not be: what is published next makes it so, and moves the end.
        pending: the fields of the last entry, if it commits something, and nothing
            shows that it was synced: the rest is without it.
    """

    generation: str
    bases: Mapping[TopicPartition, int]
    changes: Changes
    synced: frozenset[TopicPartition] = frozenset()
    pending: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Journal:
        """Build it from the checked fields of the first entry."""
        empty = cls(value["generation"], {}, {})
        if value["version"] >= FIRST_JOURNAL_VERSION:
            return empty.after([value])
        # Of an earlier version: it commits nothing.
        return empty.after([{**value, "changes": []}])

    @property
    def spans(self) -> dict[TopicPartition, LogSpan]:
        """The span of the pending entry in each log."""
        return spans_of((self.pending or {}).get("logs", ()))

    def counted(self) -> Journal:
        """Count the pending entry: every log has the bytes that it names."""
        return self if self.pending is None else self.after([self.pending])

    def without_pending(self) -> Journal:
        """Drop the pending entry: it does not count."""
        return self._replace(pending=None)

    def after(self, entries: Iterable[Mapping[str, Any]]) -> Journal:
        """Add the fields of further entries, which count."""
        bases, changes = dict(self.bases), dict(self.changes)
        synced = set(self.synced)
        for entry in entries:
            for topic, number, base in checkpoints.journal_rows(entry):
                key = TopicPartition(topic, number)
                if base is None:
                    bases.pop(key, None)
                    synced.discard(key)
                else:
                    if key in bases:
                        synced.add(key)
                    bases[key] = base
            for identity, *fields in entry["changes"]:
                before = changes.pop(identity, None)
                changes[identity] = _entry_of(*fields).after(before) if fields else None
        return Journal(self.generation, bases, changes, frozenset(synced))


def _is_pending(entry: Mapping[str, Any], end: FileEnd) -> bool:
    """Whether the last entry, after the first one, commits something, and has no seal.
    Earlier versions wrote it when the logs were synced."""
    if end.is_sealed or entry["version"] < JOURNAL_VERSION:
        return False
    return bool(entry.get("logs") or entry["changes"])


def _entry_of(
    sequence: int,
    records: int,
    time_ms: int,
    note: str,
    pinned: bool,
    metadata: str,
    calls: Iterable[Any] = (),
) -> LedgerEntry:
    data = base64.b64decode(metadata)
    return LedgerEntry(sequence, records, time_ms, note, pinned, data, _calls_of(calls))


def _calls_of(rows: Iterable[Any]) -> tuple[Call, ...]:
    return tuple([(number, tuple(map(tuple, spans))) for number, spans in rows])


def change_rows(changes: Changes) -> list[list[Any]]:
    """The rows of changes, as the journal has them."""
    return [
        [identity] if entry is None else [identity, *_fields(entry)]
        for identity, entry in changes.items()
    ]


def _fields(entry: LedgerEntry) -> list[Any]:
    fields = [*entry[:5], _text(entry.metadata)]
    return [*fields, entry.calls] if entry.calls else fields


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii") if data else ""


class Outcome(NamedTuple):
    """The outcome of a request.

    Attributes:
        entry: what is remembered of its identity; None: it was not carried out.
        is_known: False if an owner has begun something that may carry it out, or it was
            not the last one of a caller's identity.
    """

    entry: LedgerEntry | None = None
    is_known: bool = True


class _Seen(NamedTuple):
    """The journal when it was last read: its stamp, its end, its content."""

    stamp: FileStamp
    end: FileEnd
    journal: Journal


class Publications:
    """The publications of one store, for readers. Any thread may call the methods."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._seen: _Seen | None = None
        # The last key and the result of `high_watermarks` for it.
        self._cached: tuple[object, Mapping[TopicPartition, int]] = (_QUIET, {})
        # The owner of the store, and what changes with it.
        self._owner: tuple[object, Ownership] | None = None

    def cache_key(self) -> PublicationKey:
        """A value that changes when a publication begins or ends."""
        return self._root.stamp(layout.PUBLICATION), self._root.stamp(layout.PUBLISHED)

    def high_watermarks(
        self, cache_key: PublicationKey
    ) -> Mapping[TopicPartition, int] | None:
        """Where readers have to stop, by partition, at the time of a cache key. A
        journal counts as long as logstore is the writer of the store.

        Returns None if the publications of that time are over, and their outcome is
        unknown.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read.
        """
        if cache_key[0] is None:
            return {}
        key = cache_key, Ownership(self._root).cache_key()
        cached_key, high_watermarks = self._cached
        if key != cached_key:
            ownership = self.owner_now()
            journal, is_decided = self._visible(ownership)
            if journal is None or self.cache_key() != cache_key:
                return None
            high_watermarks = journal.bases if is_of(journal, ownership) else {}
            if is_decided:
                self._cached = key, high_watermarks
        return high_watermarks

    def owner_now(self) -> Ownership:
        """The owner of the store, read again if a file of it has changed."""
        ownership = Ownership(self._root)
        cache_key = ownership.cache_key()
        seen = self._owner
        if seen is not None and seen[0] == cache_key:
            return seen[1]
        ownership.read_owner(lambda action: None)
        self._owner = cache_key, ownership
        return ownership

    def journal(self) -> Journal | None:
        """The content of the journal; None if it does not exist.

        Raises:
            CorruptCheckpointError: the file is damaged.
            OSError: it cannot be read.
        """
        root, seen = self._root, self._seen
        stamp = root.stamp(layout.PUBLICATION)
        if stamp is None:
            return None
        appended_entries = None
        if seen is not None and stamp[0] == seen.stamp[0]:
            # The entries since: each is valid after the same bytes only.
            appended_entries = checkpoints.read_changes(
                root, layout.PUBLICATION, seen.end, stamp[-1], check_journal
            )
        if appended_entries is not None and seen is not None:
            (later, end), before = appended_entries, seen.journal
        else:
            read = checkpoints.read_entries(root, layout.PUBLICATION, check_journal)
            if read is None:
                return None
            (first, *later), end = read
            before = Journal.of(first)
        if later and _is_pending(later[-1], end):
            # It is read again with the entries after it.
            journal = before.after(later[:-1]) if later[:-1] else before
            return journal._replace(pending=later[-1])
        journal = before.after(later) if later else before
        self._seen = _Seen(stamp, end, journal)
        return journal

    def journal_for(self, ownership: Ownership) -> Journal | None:
        """The journal as it counts for readers. Since the machine was
        started again, the entry without a seal may count: a power failure
        takes a seal that was not synced. Then it counts if every log has the bytes that
        it names. Raises: as `journal`."""
        journal = self.journal()
        if journal is None or journal.pending is None or ownership.is_same_boot:
            return journal
        return journal.counted() if has_all(self._root, journal.spans) else journal

    def _visible(self, ownership: Ownership) -> tuple[Journal | None, bool]:
        """(the journal as records count for readers, whether that changes only with the
        file). The entry without a seal also counts if no process has the store open for
        writing, because the owner was killed, or could not write the seal: the next
        owner decides the same. Raises: as `journal`."""
        journal = self.journal_for(ownership)
        if journal is None or journal.pending is None or not ownership.is_same_boot:
            return journal, True
        if writer_of(self._root) is not None:
            return journal, False
        # Only now: it may have taken the entry back before it ended.
        journal = self.journal()
        if journal is None or journal.pending is None:
            return journal, True
        is_whole = has_all(self._root, journal.spans)
        return journal.counted() if is_whole else journal, True

    def durable_ends(self, ownership: Ownership) -> Mapping[TopicPartition, int]:
        """Ends of the logs that were published to: a shorter log has lost
        something. While the machine runs, that also holds of unsynced bytes. Empty
        in a copy, whose files are of different moments. Raises: as `journal`."""
        if ownership.is_clean or ownership.is_copy:
            return {}
        journal = self.journal_for(ownership)
        if journal is None or not is_of(journal, ownership):
            return {}
        if ownership.is_same_boot:
            return journal.bases
        return {key: journal.bases[key] for key in journal.synced}

    def outcome(self, identity: str, sequence: int) -> Outcome:
        """The outcome of a request of a process, or of a publication. Raises: as
        `published`."""
        journal = self.journal()
        pending = None if journal is None else journal.pending
        if pending and any(row[0] == identity for row in pending["changes"]):
            return Outcome(is_known=False)
        entry = self.published().get(identity)
        if entry is None:
            return Outcome()
        if identity.startswith(PROCESS_IDENTITY):
            return Outcome(entry if entry.call(sequence) is not None else None)
        is_last = entry.sequence == sequence
        return Outcome(entry if is_last else None, entry.sequence <= sequence)

    def last_ends(self) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
        """Map each identity in the journal to the sequence of its last publication and
        the ends of the logs that got its records; perhaps of others, too. A log
        that was cut or deleted since is not named. Raises: as `journal`."""
        last_ends: dict[str, tuple[int, dict[TopicPartition, int]]] = {}
        read = checkpoints.read_entries(self._root, layout.PUBLICATION, check_journal)
        entries, end = read or ([], None)
        if end is not None and entries[1:] and _is_pending(entries[-1], end):
            del entries[-1]
        for entry in entries:
            ends = {
                TopicPartition(topic, number): base
                for topic, number, base in checkpoints.journal_rows(entry)
                if base is not None
            }
            for identity, *fields in entry["changes"]:
                before = last_ends.pop(identity, None)
                if fields and before is not None and before[0] == fields[0]:
                    last_ends[identity] = before  # it was pinned, or asked for again
                elif fields:
                    last_ends[identity] = fields[0], ends
        return last_ends

    def published(self) -> dict[str, LedgerEntry]:
        """The last publication of each identity; the most recent one comes last. One
        whose entry may not be synced is left out.

        Raises:
            CorruptCheckpointError: a file is damaged.
            OSError: one cannot be read.
        """
        # First: the other file is written again before a journal ends.
        journal = self.journal()
        if journal is not None and journal.pending is not None:
            journal = self.journal_for(self.owner_now())
        return self.published_with(journal)

    def published_with(self, journal: Journal | None) -> dict[str, LedgerEntry]:
        """The published entries, with the changes of this journal. Raises: as
        `published`."""
        value = checkpoints.read_state(self._root, layout.PUBLISHED)
        entries = {} if value is None else _entries_of(value)
        for identity, entry in journal.changes.items() if journal is not None else ():
            before = entries.pop(identity, None)
            if entry is not None:
                entries[identity] = entry.after(before)
        return entries


def _entries_of(value: Mapping[str, Any]) -> dict[str, LedgerEntry]:
    """The last publication of each identity, from the fields of the file."""
    notes = dict(value.get("notes", ()))
    pinned = frozenset(value.get("pinned", ()))
    metadata = {
        identity: base64.b64decode(text) for identity, text in value.get("metadata", ())
    }
    calls = dict(value.get("calls", ()))
    return {
        identity: LedgerEntry(
            last,
            count,
            time,
            notes.get(identity, ""),
            identity in pinned,
            metadata.get(identity, b""),
            _calls_of(calls.get(identity, ())),
        )
        for identity, last, count, time in value["published"]
    }


def unknown_publications(root: Directory) -> dict[str, int]:
    """Identity -> sequence of the publications of which records may be missing, in a
    copy.

    Raises:
        CorruptCheckpointError, OSError: the file is damaged, or cannot be read.
    """
    value = checkpoints.read_state(root, layout.UNKNOWN)
    return {} if value is None else dict(value["unknown"])


def record_unknown(root: Directory, unknown: Mapping[str, int]) -> None:
    """Record them, durably.

    Raises:
        OSError: as the system gives it.
    """
    rows = [[identity, sequence] for identity, sequence in sorted(unknown.items())]
    checkpoints.write_state(root, layout.UNKNOWN, {"unknown": rows})


def is_of(journal: Journal, ownership: Ownership) -> bool:
    """Whether only logstore has written to the store since publications."""
    return ownership.is_own and journal.generation == ownership.store_epoch


def remembered(published: Mapping[str, LedgerEntry]) -> dict[str, Any]:
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
        [identity, _text(entry.metadata)] for identity, entry in rows if entry.metadata
    ]
    if pinned or metadata:
        value |= {"version": 2, "pinned": pinned, "metadata": metadata}
    calls = [[identity, entry.calls] for identity, entry in rows if entry.calls]
    if calls:
        value |= {"version": 3, "calls": calls}
    return value
