"""The journal of publications, `.logstore-publication`, for the owner of a store: the
remembered publications, and the ends of the logs that are published to.

A publication appends an entry with the ends of its logs, unless the journal has them;
then the records to the logs; then an entry with the bytes it has put into each log, the
new ends, and what is remembered. The logs and the journal are synced together. The
seal of the entry, which is written then, is the commit for readers. So several
publications to the same partitions cost one entry each. The end of a log stays in the
journal until something else is appended to the log (`release`).

The journal's entries add to `.logstore-published`. When it has grown, and when
the store is closed, that file is written whole (docs/format.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore._native.locks import RANK_JOURNAL, logger
from logstore.errors import LogStoreError, StorageError, storage_errors
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.append_file import SyncedFiles
from logstore.io.checkpoint.entries import FileEnd
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.ledger import Changes, Ledger, LedgerEntry
from logstore.io.checkpoint.log_spans import Spans, has_all, span_rows
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publications import (
    Journal,
    Publications,
    change_rows,
    remembered,
)
from logstore.io.checkpoint.state_fields import JOURNAL_VERSION
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = ["PublicationJournal"]

# Some 4,000 publications. Then the other file is written, if it is not much larger.
_GROWTH_BYTES: Final = 1 << 20
# The journal may have this many times the bytes that are written in its place.
_GROWTH_TIMES: Final = 4
# But no more than this: opening reads it whole.
_LENGTH_MAX: Final = checkpoints.STATE_BYTES_MAX // 4
# After a crash, opening looks at each log that the journal names.
_BASES_MAX: Final = 64


class _State:
    """The content of both files.

    Attributes:
        ledger: the last publication of each identity.
        bases: where logs end.
        changes: what the journal has of the ledger; `.logstore-published` has the rest,
            and perhaps these, too.
    """

    __slots__ = ("bases", "changes", "ledger")

    def __init__(
        self,
        ledger: Ledger,
        bases: dict[TopicPartition, int],
        changes: dict[str, LedgerEntry | None],
    ) -> None:
        self.ledger = ledger
        self.bases = bases
        self.changes = changes

    def apply(
        self, bases: Mapping[TopicPartition, int | None], changes: Changes
    ) -> None:
        for key, base in bases.items():
            # The newest ones are the last ones.
            self.bases.pop(key, None)
            if base is not None:
                self.bases[key] = base
        self.ledger.apply(changes)
        for identity in changes:
            self.changes.pop(identity, None)
            self.changes[identity] = self.ledger.get(identity)


class _Open(NamedTuple):
    """An entry that was begun, and is neither sealed nor taken back.

    Attributes:
        before: where the file ended before it.
        logs: it counts if they are synced.
    """

    before: FileEnd
    logs: SyncedFiles


class PublicationJournal:
    """Writes the journal of one store. Any thread may call it.

    Invariant: while the state is known, it is what the files say. After a failed write
    they are read again.
    """

    def __init__(
        self,
        root: Directory,
        ownership: Ownership,
        publications: Publications,
        lock_group: int,
    ) -> None:
        self._root = root
        self._ownership = ownership
        self._publications = publications
        name = f"the journal of publications of {root.path}"
        self._lock = native.Mutex(RANK_JOURNAL, name, lock_group)
        self._file = GrowingFile(
            root,
            layout.PUBLICATION,
            growth_bytes=checkpoints.STATE_BYTES_MAX,
            is_sealed=True,
            stays_open=True,
        )
        # None: as the files say.
        self._state: _State | None = None
        self._open: _Open | None = None
        # After a failure to fold it, the journal may grow by this much more.
        self._patience_bytes = 0

    def _known(self) -> _State:
        self._end_open()
        if self._state is None:
            journal = self._decided()
            published = self._publications.published_with(journal)
            bases, changes = ({}, {}) if journal is None else journal[1:3]
            self._state = _State(Ledger(published), dict(bases), dict(changes))
        return self._state

    def _decided(self) -> Journal | None:
        """The journal, with its last entry if that counts: if it is not known to have
        been synced, by the bytes of the logs."""
        journal = self._publications.journal()
        if journal is None or journal.pending is None:
            return journal
        counts = has_all(self._root, journal.spans)
        return journal.counted() if counts else journal.without_pending()

    def _end_open(self) -> None:
        """Take back an entry that an interrupt, or an error, has left: unless all of
        its logs are synced, so that it counts.

        Raises:
            OSError: it is not known whether it counts.
        """
        begun = self._open
        if begun is None:
            return
        if not begun.logs.are_synced:
            self._file.cut_to(begun.before)
        self._open = None

    def decide(self) -> Journal | None:
        """The journal as it counts, for the next owner: before anything else of the
        store is changed.

        Raises:
            CorruptCheckpointError, OSError: it is damaged, or cannot be read.
        """
        with self._lock:
            return self._decided()

    def published(self) -> dict[str, LedgerEntry]:
        """The last publication of each identity, which the caller may change; the most
        recent one comes last.

        Raises:
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        return self.ledger().entries()

    def ledger(self) -> Ledger:
        """The ledger itself, no copy: it changes with the next publication. Raises: as
        `published`."""
        with self._lock:
            return self._known().ledger

    def begin(self, bases: Mapping[TopicPartition, int]) -> None:
        """Record durably where logs end, before something is published to them: what
        follows is not committed. Nothing is written if the journal has these ends,
        durably.

        Raises:
            OSError: as the system gives it; nothing may be appended.
        """
        with self._lock:
            known = self._known().bases
            new = {key: base for key, base in bases.items() if known.get(key) != base}
            if new or self._is_doubtful():
                self._write(new, {})

    def commit(self, changes: Changes) -> None:
        """Record durably what is remembered.

        Raises:
            OSError: as the system gives it; it may be in, and is, if it can be read.
        """
        with self._lock:
            self._write({}, changes)

    def publish(
        self,
        spans: Spans,
        changes: Changes,
        logs: SyncedFiles,
        sync_logs: Callable[[], None],
    ) -> None:
        """Commit a publication: record its bytes in the logs, and what is
        remembered; this and the logs are made durable at the same time. All of it is
        one call of the core: no reader sees a part, and no interrupt comes between.

        Args:
            logs: the files of the logs to sync.
            sync_logs: does so if the journal cannot be appended to; may raise.

        Raises:
            BaseException: as `sync_logs`, or OSError; `has_committed` says whether it
                is in. It is not unless the logs are synced; `logs` has each result.
        """
        with self._lock:
            state = self._known()
            bases = self._bases_after(spans)
            released = {key: None for key, base in bases.items() if base is None}
            fields = {"bases": _rows(released), "logs": span_rows(spans)}
            self._state, is_in, end = None, False, self._file.end
            if end is not None:
                self._open = _Open(end, logs)
                try:
                    is_in = self._file.append(_text(fields, changes), logs)
                except BaseException:
                    self._end_open()
                    raise
                # Committed, or not committed at all.
                self._open = None
            if is_in:
                state.apply(bases, changes)
                self._state = state
                return
            sync_logs()
            self._state = state
            self._write(bases, changes)

    def _bases_after(self, spans: Spans) -> dict[TopicPartition, int | None]:
        """Ends of logs after a publication; None: the oldest ones are taken out."""
        older = [key for key in self._known().bases if key not in spans]
        surplus = max(len(older) + len(spans) - _BASES_MAX, 0)
        ends = {key: span.end for key, span in spans.items()}
        return {**ends, **dict.fromkeys([*older, *spans][:surplus])}

    def has_committed(self, bases: Mapping[TopicPartition, int]) -> bool:
        """Whether a publication whose ends `begin` recorded (`bases`) is committed. The
        end of a log that was deleted since is forgotten, and says nothing.

        Raises:
            CorruptCheckpointError, OSError: the journal is damaged, or cannot be read.
        """
        with self._lock:
            known = self._known().bases
            return any(known.get(key, base) != base for key, base in bases.items())

    def is_in_doubt(self) -> bool:
        """Whether an entry that could not be taken back may count."""
        return self._open is not None

    def release(self, key: TopicPartition) -> None:
        """Record durably that other records than published ones may follow in a log.

        Raises:
            LogStoreError: nothing may be appended.
        """
        path = self._root.path_of(layout.PUBLICATION)
        with storage_errors("write", path, "Nothing was appended."), self._lock:
            self._forget([key])

    def forget_ended(self, is_there: Callable[[str], bool]) -> None:
        """Forget the processes that have handed in and have ended.

        Args:
            is_there: whether the process of an identity may make requests.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read or written.
        """
        with self._lock:
            if not self._root.exists(layout.PUBLICATION):
                return
            entries = self._known().ledger.callers()
            gone = [identity for identity in entries if not is_there(identity)]
            if gone:
                self._write({}, dict.fromkeys(gone))

    def forget(self, keys: list[TopicPartition]) -> None:
        """Forget deleted partitions before new ones get their names: a publication
        that could not be undone in the old ones must not be undone in the new ones.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read or written.
        """
        with self._lock:
            self._forget(keys)

    def forget_ends(self, keys: Iterable[TopicPartition]) -> None:
        """Before logs are cut, or deleted: no entry may say that they had more. What
        is remembered of publications goes into the other file.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or written.
        """
        with self._lock:
            if self._root.exists(layout.PUBLICATION):
                self._fold(dict.fromkeys(keys))

    def before_cut(self, key: TopicPartition, offset: int) -> None:
        """Before a log is cut at an offset: as `forget_ends`. Does nothing if the log
        is cut to where the journal says that it ends.

        Raises:
            StorageError: the journal says that the log has more, and cannot be
                written: nothing may be cut.
            CorruptCheckpointError: it cannot be read.
        """
        path, end = self._root.path_of(layout.PUBLICATION), None
        try:
            with storage_errors("write", path, "Nothing was cut."), self._lock:
                if not self._root.exists(layout.PUBLICATION):
                    return
                end = self._known().bases.get(key)
                if end is None or end > offset:
                    self._fold({key: None})
        except StorageError:
            if end is not None:
                raise

    def _forget(self, keys: list[TopicPartition]) -> None:
        known = self._known().bases
        gone = [key for key in keys if key in known]
        if gone or self._is_doubtful():
            self._write(dict.fromkeys(gone), {})

    def confirm(self) -> None:
        """Make durable what `published` has returned, if it may not be.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read or written.
        """
        with self._lock:
            if self._is_doubtful():
                self._write({}, {})

    def fold_if_long(self) -> None:
        """Write `.logstore-published`, and begin a new journal, if it has grown: called
        after a publication. If that fails, it is tried again later."""
        with self._lock:
            end, state = self._file.end, self._state
            if end is None or state is None:
                return
            live = _GROWTH_TIMES * (end.first + state.ledger.file_bytes)
            most = min(max(_GROWTH_BYTES, live), _LENGTH_MAX) + self._patience_bytes
            if end.size <= most:
                return
            try:
                self._fold({})
                self._patience_bytes = 0
            except (LogStoreError, OSError) as error:
                self._patience_bytes += _GROWTH_BYTES
                path = self._root.path_of(layout.PUBLICATION)
                logger.warning("cannot shorten the journal %s: %s", path, error)

    def _is_doubtful(self) -> bool:
        """Whether the disk may have another journal than what is read of it: a write
        of it has failed since it was last written whole. Then nothing may rely on it
        before it is written whole again."""
        return not self._file.is_known and self._root.exists(layout.PUBLICATION)

    def _write(
        self, bases: Mapping[TopicPartition, int | None], changes: Changes
    ) -> None:
        """Append an entry, or write the file whole."""
        state, self._state = self._known(), None
        is_in = self._file.append(_text({"bases": _rows(bases)}, changes))
        state.apply(bases, changes)
        if not is_in:
            self._replace(state.bases, state.changes)
        self._state = state

    def _fold(self, bases: Mapping[TopicPartition, int | None]) -> None:
        """Write `.logstore-published` with all that is remembered, and the journal
        whole, without changes."""
        state, self._state = self._known(), None
        if state.changes:
            if not self._file.is_known:
                # Make the journal durable in the state it was read: an earlier sync may
                # have failed. It must not be found in an older state when the other
                # file has more.
                self._replace(state.bases, state.changes)
            value = remembered(state.ledger.entries())
            checkpoints.write_state(self._root, layout.PUBLISHED, value)
        state.apply(bases, {})
        state.changes = {}
        self._replace(state.bases, {})
        self._state = state

    def _replace(self, bases: Mapping[TopicPartition, int], changes: Changes) -> None:
        """Write the journal whole."""
        fields = {"generation": self._ownership.store_epoch, "bases": _rows(bases)}
        self._file.replace(_text(fields, changes))

    def settle(self, pending: Mapping[TopicPartition, int]) -> None:
        """End the journal, if there is one: all logs are durable up to the ends that it
        has, and nothing follows them, except in the `pending` partitions.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or written.
        """
        with self._lock:
            if not self._root.exists(layout.PUBLICATION):
                return
            state, self._state = self._known(), None
            if pending or (state.changes and not self._file.is_known):
                self._replace(pending, state.changes)
            if not pending:
                if state.changes:
                    value = remembered(state.ledger.entries())
                    checkpoints.write_state(self._root, layout.PUBLISHED, value)
                self._file.forget()
                self._root.unlink(layout.PUBLICATION, missing_ok=True)
                self._root.sync()


def _text(fields: dict[str, Any], changes: Changes) -> str:
    """An entry of the journal; one without text of callers can be read in any case."""
    rows = change_rows(changes)
    value = {"version": JOURNAL_VERSION, **fields, "changes": rows}
    return checkpoints.state_text(value)


def _rows(bases: Mapping[TopicPartition, int | None]) -> list[list[Any]]:
    return [[topic, number, base] for (topic, number), base in sorted(bases.items())]
