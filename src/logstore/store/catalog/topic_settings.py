"""The settings of the topics of a store, and their file.

`.logstore-topics` (docs/format.md) also records how many partitions each topic must
have, and whether its creation or deletion is in progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from logstore import _native as native
from logstore._native.locks import RANK_JOURNAL, logger
from logstore.config import TopicConfig, from_stored
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import FileEnd
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.recovery_report import STATE_DAMAGED, RecoveryAction
from logstore.io.checkpoint.state_fields import check_partition_count
from logstore.io.directory import Directory
from logstore.store.catalog.message_format import continued_format

__all__ = ["BegunCreation", "TopicSettings", "leading"]


def leading(numbers: Sequence[int]) -> int:
    """How many partitions there are from 0 on without a gap (`numbers` are sorted). A
    broker's log directory may hold any subset of a topic's."""
    for expected, number in enumerate(numbers):
        if number != expected:
            return expected
    return len(numbers)


def _partitions(settings: Mapping[str, Any] | None) -> int:
    """How many partitions the settings of a topic name."""
    return 0 if settings is None else int(settings["partitions"])


def _noted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a topic that `identify` has found out."""
    return {key: settings[key] for key in ("identified", "kafka_id") if key in settings}


def _text_of(topics: Mapping[str, Any]) -> str:
    """The topics file, or an entry of it: None for a topic that is removed."""
    return checkpoints.state_text({"topics": topics})


class BegunCreation(NamedTuple):
    """A creation whose first entry is in the topics file.

    Attributes:
        settings: of the topic before; None: it had no settings.
        before, after: where the file ended before that entry, and after it.
        changes: how many changes were persisted then.
    """

    name: str
    settings: dict[str, Any] | None
    before: FileEnd | None
    after: FileEnd | None
    changes: int


class TopicSettings:
    """The settings of topics. The store's lock guards them, and a separate lock guards
    the file: the first append to a partition may write there (`KnownIds.identify`).

    Args:
        numbers: topic -> the partitions whose directories there are.

    Attributes:
        stored: topic -> {"partitions", "config"?, "message_format"?, "id"?,
            "kafka_id"?, "identified"?, "creating"?, "deleting"?}.
        is_dirty: they are not persisted, since the disk is full.

    Invariant: the file says the same, unless they are dirty, or opening has changed
    them (`take_over`). After a change that was interrupted, the next one writes the
    file whole.
    """

    def __init__(
        self,
        root: Directory,
        lock_group: int,
        numbers: Mapping[str, Sequence[int]],
    ) -> None:
        self._root = root
        self._numbers = numbers
        self._lock = native.Mutex(RANK_JOURNAL, "the topics of a store", lock_group)
        self.stored: dict[str, dict[str, Any]] = {}
        self.is_dirty = False
        self._file = GrowingFile(root, layout.TOPICS)
        self._is_damaged = False
        # A change was interrupted: the file may have it, and `stored` not.
        self._is_in_doubt = False
        # Of all partitions in `stored`.
        self._count = 0
        # How many changes were persisted.
        self._changes = 0
        # Whether opening has changed them.
        self._is_taken_over = False
        # Topic -> the settings made, and the stored value they are made of, which is
        # never changed.
        self._configs: dict[str, tuple[object, TopicConfig]] = {}
        # The same of topics without settings, with the format of appends.
        self._continued: dict[str, TopicConfig] = {}

    def read(self, report: Callable[[RecoveryAction], None]) -> None:
        """Read the settings of topics."""
        try:
            value = checkpoints.read_state(self._root, layout.TOPICS)
        except CorruptCheckpointError as error:
            path = self._root.path_of(layout.TOPICS)
            text = f"{error}; topics use default settings"
            report(RecoveryAction(STATE_DAMAGED, "", -1, path, -1, 0, -1, None, text))
            self._is_damaged = True
            return
        self.stored = dict(value["topics"]) if value else {}
        self._count = sum(map(_partitions, self.stored.values()))

    def of(self, topic: str) -> Mapping[str, Any]:
        """The settings of a topic; empty if it has no settings."""
        return self.stored.get(topic, {})

    def config(self, topic: str) -> TopicConfig:
        """The settings of a topic; the defaults if none were persisted, for all but
        appends (`append_config`). Raises `ConfigError` if the stored settings are not
        valid."""
        settings = self.of(topic).get("config")
        known = self._configs.get(topic)
        if known is not None and known[0] is settings:
            return known[1]
        try:
            config = TopicConfig() if settings is None else from_stored(settings)
        except (ConfigError, TypeError) as error:
            raise ConfigError(
                f"the stored settings of topic {topic} are not valid: {error}. "
                f"Configure it and open the store again, or delete it"
            ) from error
        self._configs[topic] = settings, config
        return config

    def has_config(self, topic: str) -> bool:
        """Whether settings of the topic were persisted."""
        return self.of(topic).get("config") is not None

    def append_config(self, topic: str) -> TopicConfig:
        """Return `config`, with the format in which the logs are continued. The logs of
        a topic without settings are read once, until the format is persisted
        (`continued`): a reader does not need it.

        Raises:
            ConfigError: as `config`.
            StorageError: as `continued_format`.
        """
        config = self.config(topic)
        if self.has_config(topic):
            return config
        continued_config = self._continued.get(topic)
        if continued_config is None:
            magic = self.of(topic).get("message_format")
            if magic is None:
                numbers = self._numbers.get(topic, ())
                magic = continued_format(self._root, topic, numbers)
            continued_config = dataclasses.replace(config, message_format=magic)
            self._continued[topic] = continued_config
        return continued_config

    def continued(self, topic: str) -> dict[str, int]:
        """Return what the first append persists of a topic without settings: the format
        in which it is continued, if that is not the default. The logs that end with it
        may be deleted later.

        Raises:
            StorageError: as `continued_format`.
        """
        if self.has_config(topic):
            return {}
        magic = self.append_config(topic).message_format
        is_default = magic == TopicConfig().message_format
        return {} if is_default else {"message_format": magic}

    def is_identified(self, topic: str) -> bool:
        """Whether the settings say that a partition of the topic was written to, and
        what `continued` returns. Raises: as that."""
        settings = self.of(topic)
        is_written = bool(settings.get("identified"))
        return is_written and self.continued(topic).items() <= settings.items()

    def take_over(self, stored: dict[str, dict[str, Any]]) -> None:
        """Use the settings that opening has found out. Memory only: `persist_claim`
        follows."""
        self._is_taken_over |= stored != self.stored
        self.stored = stored
        self._count = sum(map(_partitions, stored.values()))

    def persist_claim(self) -> None:
        """Persist settings found at opening (`take_over`), before the first change."""
        if self._is_taken_over:
            checkpoints.check_state(self._root, layout.TOPICS, {"topics": self.stored})
            with self._lock:
                self._replace(self.stored)
            self._is_taken_over = False

    def begin_creation(self, name: str, value: dict[str, Any]) -> BegunCreation:
        """Persist the settings of a topic that is being created, as `write`, so that
        they can be taken back on a full disk, too.

        Raises:
            OSError: as raised by the system; nothing was begun.
        """
        with self._lock:
            if self._is_in_doubt or not self._file.is_known:
                self._rewrite()
            before = dict(self.of(name)) or None, self._file.end
            self._persist(name, {**value, "creating": True})
            return BegunCreation(name, *before, self._file.end, self._changes)

    def keep_begun(self, begun: BegunCreation) -> bool:
        """After a failure: the file says of the topic that it is being created, and
        nothing else. Returns False if that is not possible without room.

        Raises:
            OSError: as the system gives it.
        """
        with self._lock:
            is_cut = self._has_cut_to(begun.after, begun)
            if is_cut:
                self._is_in_doubt = False
            return is_cut

    def _has_cut_to(self, end: FileEnd | None, begun: BegunCreation) -> bool:
        """Cut off the entries after an end, if no other change has followed since
        the creation was begun; False: nothing was cut."""
        if end is None or self._changes != begun.changes:
            return False
        return self._file.cut_to(end)

    def write(self, name: str, value: dict[str, Any] | None) -> None:
        """Persist the settings of a topic, or remove them.

        The file says afterwards what it said before if one bit of the last entry is
        damaged and the store was not closed. If that was not the topic's creation or
        deletion, which opening finishes in any case, `confirm` must follow.
        """
        with self._lock:
            self._persist(name, value)

    def confirm(self) -> None:
        """The last `write` is not the last entry of the file any more."""
        if self._file.has_entries and not self._is_in_doubt:
            with contextlib.suppress(OSError), self._lock:
                if not self._file.append(_text_of({})):
                    self._replace(self.stored)

    def _persist(self, name: str, value: dict[str, Any] | None) -> None:
        """Disk first, memory after: append an entry, or write the file whole."""
        before, known = self.of(name), self._count
        if value is not None and before.get("id", "") == value.get("id"):
            # Found out by the first append, perhaps since `value` was made.
            value = {**_noted(before), **value}
        if self._is_in_doubt:
            known = sum(map(_partitions, self.stored.values()))
        count = known + _partitions(value) - _partitions(self.stored.get(name))
        check_partition_count(count)
        if value is not None:
            checkpoints.check_state(
                self._root, layout.TOPICS, {"topics": {name: value}}
            )
        is_whole = self.is_dirty or self._is_damaged or self._is_in_doubt
        # Until memory has it, too: after an interrupt the file is written whole.
        self._is_in_doubt = True
        if is_whole or not self._file.append(_text_of({name: value})):
            stored = dict(self.stored)
            checkpoints.merge_topics(stored, {name: value})
            self._replace(stored)
        self._count = count
        self._changes += 1
        checkpoints.merge_topics(self.stored, {name: value})
        self.is_dirty = self._is_in_doubt = False

    def _rewrite(self) -> None:
        """Make the file equal to the settings in memory."""
        self._replace(self.stored)
        self.is_dirty = self._is_in_doubt = False

    def _replace(self, stored: dict[str, dict[str, Any]]) -> None:
        """Write the file whole."""
        if self._is_damaged:
            # The unreadable file is kept: it has the settings of other topics.
            kept = f"{layout.TOPICS}.damaged-{self._root.files.now_ms()}"
            self._root.rename(layout.TOPICS, kept)
            self._is_damaged = False
        self._file.replace(_text_of(stored))

    def write_if_room(
        self, name: str, value: dict[str, Any] | None, *, is_needed: bool = False
    ) -> None:
        """Same as `write`, but a full disk does not stop a deletion: `catch_up` then
        writes them. Until then the names of the renamed directories say that it was
        begun.

        Args:
            is_needed: those names do not say it: a full disk stops the deletion.
        """
        try:
            with self._lock:
                self._persist(name, value)
        except OSError as error:
            failed = storage_error(error, "write the settings in", self._root.path)
            if is_needed or not isinstance(failed, DiskFullError):
                raise failed from error
            logger.warning("the deletion of topic %s continues: %s", name, failed)
            self._keep(name, value)

    def take_back(self, begun: BegunCreation) -> None:
        """Restore the settings after a creation was undone (after `keep_begun`): cut
        the file back. If that fails, write them; if there is no room, `catch_up` does
        it later."""
        with self._lock:
            with contextlib.suppress(OSError):
                if self._has_cut_to(begun.before, begun):
                    self._set(begun.name, begun.settings)
                    return
            try:
                self._persist(begun.name, begun.settings)
            except OSError:
                self._keep(begun.name, begun.settings)

    def _keep(self, name: str, value: dict[str, Any] | None) -> None:
        """Change the settings in memory, until `catch_up`."""
        self._set(name, value)
        self.is_dirty = True

    def _set(self, name: str, value: dict[str, Any] | None) -> None:
        self._count += _partitions(value) - _partitions(self.stored.get(name))
        checkpoints.merge_topics(self.stored, {name: value})

    def catch_up(self) -> None:
        """Persist the settings for which there was no room."""
        if self.is_dirty:
            with contextlib.suppress(OSError), self._lock:
                self._rewrite()

    def close(self) -> None:
        """Write the file whole, for the next opening; if that fails, it has entries."""
        self.catch_up()
        if self._file.has_entries and not self._is_in_doubt:
            with contextlib.suppress(OSError), self._lock:
                self._replace(self.stored)
