"""The journal of publications, `.logstore-publication`, for the owner of a store: what
is remembered of publications, and where the logs end that are published to.

A publication appends an entry with the ends of its logs, unless the journal has them,
then the records to the logs, then an entry with the new ends and what is remembered:
the commit. So several publications to the same partitions cost one entry each. The end
of a log stays in the journal until something else is to be appended to it (`release`).

What the journal says comes on top of `.logstore-published`. When it has grown, and when
the store is closed, that file is written whole (docs/format.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from logstore import _native as native
from logstore._native.locks import RANK_JOURNAL
from logstore.errors import StorageError, storage_errors
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publications import (
    Changes,
    Entry,
    Publications,
    change_rows,
    remembered,
)
from logstore.io.checkpoint.state_fields import JOURNAL_VERSION
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = ["PublicationJournal"]

# Some 4,000 publications. Then the other file is written, which may have a megabyte.
_GROWTH_BYTES: Final = 1 << 20
# After a crash, opening looks at each log that the journal names.
_BASES_MAX: Final = 64


class _State:
    """What the files say.

    Attributes:
        entries: the last publication of each identity.
        bases: where logs end.
        is_folded: `.logstore-published` has all of the entries.
    """

    __slots__ = ("bases", "entries", "is_folded")

    def __init__(
        self,
        entries: dict[str, Entry],
        bases: dict[TopicPartition, int],
        *,
        is_folded: bool,
    ) -> None:
        self.entries = entries
        self.bases = bases
        self.is_folded = is_folded

    def apply(
        self, bases: Mapping[TopicPartition, int | None], changes: Changes
    ) -> None:
        for key, base in bases.items():
            # The newest ones are the last ones.
            self.bases.pop(key, None)
            if base is not None:
                self.bases[key] = base
        for identity, entry in changes.items():
            self.entries.pop(identity, None)
            if entry is not None:
                self.entries[identity] = entry
        self.is_folded = self.is_folded and not changes


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
            growth_bytes=_GROWTH_BYTES,
            is_sealed=True,
            stays_open=True,
        )
        # None: as the files say.
        self._state: _State | None = None

    def _known(self) -> _State:
        if self._state is None:
            journal = self._publications.journal()
            self._state = _State(
                self._publications.published(),
                {} if journal is None else dict(journal.bases),
                is_folded=journal is None or not journal.changes,
            )
        return self._state

    def published(self) -> dict[str, Entry]:
        """The last publication of each identity, which the caller may change; the most
        recent one comes last.

        Raises:
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        with self._lock:
            return self._known().entries.copy()

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

    def commit(self, ends: Mapping[TopicPartition, int], changes: Changes) -> None:
        """Record durably where logs end after a publication, and what is remembered.

        Raises:
            OSError: as the system gives it; `has_committed` tells whether it is in.
        """
        with self._lock:
            known = self._known().bases
            older = [key for key in known if key not in ends]
            surplus = len(older) + len(ends) - _BASES_MAX
            released = [*older, *ends][: max(surplus, 0)]
            self._write({**ends, **dict.fromkeys(released)}, changes)

    def has_committed(self, bases: Mapping[TopicPartition, int]) -> bool:
        """Whether a publication is committed, of which `begin` has recorded these. The
        end of a log that was deleted since is forgotten, and says nothing.

        Raises:
            CorruptCheckpointError, OSError: the journal is damaged, or cannot be read.
        """
        with self._lock:
            known = self._known().bases
            return any(known.get(key, base) != base for key, base in bases.items())

    def release(self, key: TopicPartition) -> None:
        """Record durably that other records than published ones may follow in a log.

        Raises:
            LogStoreError: nothing may be appended.
        """
        path = self._root.path_of(layout.PUBLICATION)
        with storage_errors("write", path, "Nothing was appended."), self._lock:
            self._forget([key])

    def forget(self, keys: list[TopicPartition]) -> None:
        """Before there are new partitions with the names of deleted ones: a publication
        to those that could not be undone must not be undone in the new ones.

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
                self._write(dict.fromkeys(keys), {}, is_whole=True)

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
                    self._write({key: None}, {}, is_whole=True)
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

    def _is_doubtful(self) -> bool:
        """Whether the disk may have another journal than what is read of it: a write
        of it has failed since it was last written whole. Then nothing may rely on it
        before it is written whole again."""
        return not self._file.is_known and self._root.exists(layout.PUBLICATION)

    def _write(
        self,
        bases: Mapping[TopicPartition, int | None],
        changes: Changes,
        *,
        is_whole: bool = False,
    ) -> None:
        """Append an entry, or write the file whole."""
        state, self._state = self._known(), None
        is_known = self._file.is_known
        text = _text({"bases": _rows(bases)}, changes)
        if is_whole or not self._file.append(text):
            if not (is_known or state.is_folded):
                self._renew(state.bases)
            self._fold(state)
            merged = {**state.bases, **bases}
            self._replace({k: b for k, b in merged.items() if b is not None}, changes)
        state.apply(bases, changes)
        self._state = state

    def _renew(self, bases: Mapping[TopicPartition, int]) -> None:
        """Make durable what was read of the journal: an earlier sync of it may have
        failed. It must not be found as it was before when the other file has more."""
        journal = self._publications.journal()
        assert journal is not None
        self._replace(bases, journal.changes)

    def _fold(self, state: _State) -> None:
        """Write `.logstore-published`, if the journal has more."""
        if not state.is_folded:
            value = remembered(state.entries)
            checkpoints.write_state(self._root, layout.PUBLISHED, value)
            state.is_folded = True

    def _replace(self, bases: Mapping[TopicPartition, int], changes: Changes) -> None:
        """Write the journal whole."""
        generation = self._ownership.store_epoch
        value = {"generation": generation, "bases": _rows(bases)}
        self._file.replace(_text(value, changes))

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
            if pending or not (self._file.is_known or state.is_folded):
                self._renew(pending)
            if not pending:
                self._fold(state)
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
