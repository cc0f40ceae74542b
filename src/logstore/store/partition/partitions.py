"""The writers of a store's partitions. Loading one recovers its partition. They are
loaded when first used, or all at once.

A store that was closed cleanly opens without examining its partitions; after a crash,
the partition that is used first is repaired first. `PartitionWriters.recover` does the
rest, several partitions at a time.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Final, NamedTuple

from logstore import _native as native
from logstore._native.locks import RANK_LEAF, logger
from logstore.config import worker_threads
from logstore.errors import (
    CorruptCheckpointError,
    LogStoreError,
    StorageError,
    TopicNotFoundError,
    UnsupportedError,
    again,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.checkpoint.recovery_report import (
    FOREIGN_PARTITION,
    ID_RENEWED,
    STATE_DAMAGED,
    UNPUBLISHED,
    UNREADABLE,
    UNSUPPORTED,
    RecoveryAction,
    RecoveryReport,
)
from logstore.io.checkpoint.topic_identity import TopicIdentity, has_own_files
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.parallel import side_by_side
from logstore.log.recover import RecoveredLog, RecoveryContext, load, record_damage
from logstore.log.write.writer import PartitionWriter
from logstore.store.catalog.identifying import IdentityFacts, cuts_after, decide
from logstore.store.catalog.topics import Catalog
from logstore.store.context import StoreContext

__all__ = ["PartitionWriters", "RecoveryProgress"]

# How often progress is reported while nothing is finished.
_PROGRESS_S: Final = 0.2


class RecoveryProgress(NamedTuple):
    """The progress of a recovery.

    Attributes:
        partitions_done, partitions_total: examined so far, and in total.
        bytes_checked: of log, so far.
    """

    partitions_done: int
    partitions_total: int
    bytes_checked: int


class _Stopped(Exception):
    """The thread that waits for a recovery was interrupted."""


class _Count:
    """Counts the bytes that threads have checked; ends them if no thread waits any
    more."""

    def __init__(self) -> None:
        self._lock = native.Mutex(RANK_LEAF, "a count")
        self._is_stopped = False
        self.bytes = 0

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size
        if self._is_stopped:
            raise _Stopped

    def stop(self) -> None:
        self._is_stopped = True


class PartitionWriters:
    """The writers of one store. The store's lock guards it.

    Attributes:
        catalog: the topics of the store.
        loaded: writers of partitions that were used or recovered.
        broken: partitions that cannot be used at all, and why.
        unpublished: where logs must end, and why they could not be cut there: they may
            have a part of an unfinished publication.
        unwritten: partitions whose damage could not be recorded.
        published: where logs ended, by the journal of publications that the last
            writer has left.
        actions: findings and repairs so far.
    """

    def __init__(self, context: StoreContext, catalog: Catalog) -> None:
        self._context = context
        self._root = context.root
        self._state = context.state
        self.catalog = catalog
        self.loaded: dict[TopicPartition, PartitionWriter] = {}
        self.broken: dict[TopicPartition, LogStoreError] = {}
        self.unpublished: dict[TopicPartition, tuple[int, BaseException]] = {}
        self.unwritten: set[TopicPartition] = set()
        self.published: dict[TopicPartition, int] = {}
        self.actions: list[RecoveryAction] = []
        self.on_recovery: Callable[[RecoveryAction], None] | None = None
        # The newest cut of each log that the last writer has taken note of.
        self._begun_at: dict[TopicPartition, int] = {}
        # As the last writer has left it; None: not read yet.
        self._compacted: dict[TopicPartition, int] | None = None

    def record(self, action: RecoveryAction) -> None:
        """Record an action: a finding or a repair."""
        self.actions.append(action)
        if action.label == UNPUBLISHED:  # it costs nothing that anyone was promised
            logger.info("recovery: %s: %s", action.label, action.message)
        else:
            logger.warning("recovery: %s: %s", action.label, action.message)
        if self.on_recovery is not None:
            self.on_recovery(action)

    def report(self) -> RecoveryReport:
        """The actions so far, by topic and partition."""
        key = operator.attrgetter("topic", "partition")
        return RecoveryReport(tuple(sorted(self.actions, key=key)))

    def usual(self, key: TopicPartition) -> PartitionWriter | None:
        """The writer of a partition that is loaded, and neither broken nor deleted;
        else None: `get` finds out."""
        is_there = key.topic in self.catalog.numbers and key not in self.broken
        return self.loaded.get(key) if is_there else None

    def get(self, key: TopicPartition) -> PartitionWriter:
        """The writer of an existing partition.

        If the system has refused to load it (no descriptor, no permission), this is
        tried again.

        Raises:
            LogStoreError: why it cannot be used.
        """
        broken = self.broken.get(key)
        if isinstance(broken, StorageError):
            loaded = self._load(key, _Count())
            if isinstance(loaded, LogStoreError):
                self.broken[key] = loaded
            else:
                del self.broken[key]
                self._take(key, loaded)
                self.actions = [
                    action
                    for action in self.actions
                    if (action.topic, action.partition) != key
                    or action.label != UNREADABLE
                ]
        elif key not in self.loaded and broken is None:
            self._take(key, self._load(key, _Count()))
        if key in self.broken:
            raise again(self.broken[key])
        return self.loaded[key]

    def suspend(self, key: TopicPartition, going: TopicNotFoundError) -> None:
        """Suspend a partition before its topic is deleted: it takes no appends if it is
        loaded, and is not loaded otherwise. Callers get `going`, until `resume`."""
        writer = self.loaded.get(key)
        if writer is not None:
            writer.suspend(going)
        elif isinstance(self.broken.get(key, going), TopicNotFoundError):
            self.broken[key] = going

    def resume(self, key: TopicPartition) -> None:
        """The topic was not deleted: undo `suspend`."""
        writer = self.loaded.get(key)
        if writer is not None:
            writer.resume()
        elif isinstance(self.broken.get(key), TopicNotFoundError):
            del self.broken[key]

    def forget(self, key: TopicPartition) -> PartitionWriter | None:
        """Release a partition before it is deleted; returns its writer, if it is
        loaded."""
        self.broken.pop(key, None)
        self.unpublished.pop(key, None)
        self._begun_at.pop(key, None)
        self.unwritten.discard(key)
        self.published.pop(key, None)
        return self.loaded.pop(key, None)

    def hide_from(self, key: TopicPartition, base: int, error: BaseException) -> None:
        """A part of an unfinished publication could not be removed from a log: it shows
        nothing from `base` on and takes no appends, also if it is loaded later."""
        self.unpublished[key] = base, error
        writer = self.loaded.get(key)
        if writer is not None:
            _hide(writer, base, error)

    def pending(self) -> list[TopicPartition]:
        """The partitions that were not examined yet."""
        known = (self.loaded, self.broken)
        return [
            key for key in self.all_keys() if not any(key in keys for keys in known)
        ]

    def all_keys(self) -> list[TopicPartition]:
        """All partitions."""
        return [
            TopicPartition(topic, number)
            for topic, numbers in list(self.catalog.numbers.items())
            for number in numbers
        ]

    def may_have_tail(self, key: TopicPartition) -> bool:
        """Whether the log of a partition may have more than its state records: by names
        and sizes, without examining it."""
        directory = self._directory(key)
        published = self.published.get(key, -1)
        try:
            files = [layout.parse_segment_file(name) for name in directory.names()]
            logs = [f.base_offset for f in files if f and f[1:] == (layout.LOG, "")]
            if not logs:
                return False
            state = self._state.ownership.metadata(directory, key, published).state
            if state is None or state.active["base_offset"] != max(logs):
                return True
            name = layout.segment_file(max(logs), layout.LOG)
            return directory.stat(name).size != state.active["size"]
        except (LogStoreError, OSError):
            return True  # examining it says what is wrong

    def recover(
        self, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> None:
        """Load all pending partitions, several at a time.

        Callbacks run in the thread of the caller.
        """
        pending = self.pending()
        if not pending:
            return
        done, count = 0, _Count()

        def report_progress() -> None:
            if on_progress is not None:
                on_progress(RecoveryProgress(done, len(pending), count.bytes))

        report_progress()
        threads = min(worker_threads(self._context.store_config), len(pending))
        if threads == 1 and on_progress is None:
            for key in pending:
                self._take(key, self._load(key, count))
            return
        results = side_by_side(
            pending,
            lambda key: self._load(key, count),
            threads,
            poll_s=_PROGRESS_S,
            stop=count.stop,
        )
        with contextlib.closing(results):
            for outcome in results:
                if outcome is not None:
                    self._take(outcome.item, outcome.result)
                    done += 1
                report_progress()

    def _load(self, key: TopicPartition, count: _Count) -> RecoveredLog | LogStoreError:
        """Examine and repair a partition. Any thread may do it, since nothing is
        shared."""
        directory = self._directory(key)
        try:
            context = self._recovery_context(key, directory, count)
            loaded = load(context)
            self._identify(key, directory, loaded, context.metadata.stale)
            if self._state.ownership.is_copied and loaded.is_recorded:
                self._cut_copy(loaded)
            if context.metadata.clean:
                self._begun_at[key] = loaded.cuts.serial
            return loaded
        except LogStoreError as error:
            return error
        except OSError as error:
            return storage_error(error, "open", directory.path)

    def _recovery_context(
        self, key: TopicPartition, directory: Directory, count: _Count
    ) -> RecoveryContext:
        return RecoveryContext(
            directory,
            self._context.descriptors,
            *key,
            self.catalog.settings.config(key.topic),
            self._state.ownership.metadata(directory, key, self.published.get(key, -1)),
            writable=True,
            on_checked=count.add,
        )

    def record_damage(self) -> LogStoreError | None:
        """Try again to record the damage that could not be recorded: the marks of a
        clean stop, from which it was known, are about to go.

        Returns the error if that is still not possible.
        """
        for key in sorted(self.unwritten):
            directory = self._directory(key)
            try:
                failed = record_damage(self._recovery_context(key, directory, _Count()))
            except OSError as error:
                failed = storage_error(error, "examine", directory.path)
            except LogStoreError as error:
                failed = error
            if failed is not None:
                return failed
            self.unwritten.discard(key)
        return None

    def _identify(
        self,
        key: TopicPartition,
        directory: Directory,
        loaded: RecoveredLog,
        stale: PartitionState | None,
    ) -> None:
        """Find the ids of a log.

        Args:
            stale: its state, if that does not count.
        """
        catalog = self.catalog
        identity: TopicIdentity | None = None
        try:
            identity = TopicIdentity.read(directory)
        except CorruptCheckpointError as error:
            text = f"{error}; the first append writes it again"
            loaded.actions.append(_action(STATE_DAMAGED, key, directory, text))
        is_new_id = not catalog.ids.topic_id(key.topic)
        facts = IdentityFacts(
            key,
            catalog.ids.id_for_appends(key.topic),
            is_new_id=is_new_id,
            has_settings=key.topic in catalog.settings.stored,
            is_noted=catalog.settings.is_identified(key.topic),
            found=identity,
            is_own=self._state.ownership.is_own,
            # Only asked if the id is new: it lists the directory.
            has_own_files=is_new_id and has_own_files(directory),
            recorded=loaded.log_id if loaded.is_recorded else None,
            earlier=None if stale is None else stale.log_id,
        )
        decided = decide(facts)
        if decided.is_foreign:
            assert identity is not None
            refusal = _foreign_error(key, directory, identity.topic_id, facts.topic_id)
            loaded.damage = loaded.damage or refusal
            text = str(refusal)
            loaded.actions.append(_action(FOREIGN_PARTITION, key, directory, text))
        if decided.is_renewed:
            text = (
                f"the id of topic {key.topic} is lost; it has the new id "
                f"{facts.topic_id}, so offsets that were committed for it are "
                "ignored"
            )
            loaded.actions.append(_action(ID_RENEWED, key, directory, text))
        if decided.is_cut:
            loaded.cuts = cuts_after(
                directory,
                stale,
                loaded.start_offset,
                loaded.end_offset,
                self._root.files.now_ms(),
            )
            # This cut removes nothing: a broker's high watermark stays.
            self._begun_at[key] = loaded.cuts.serial
        loaded.is_renamed = loaded.log_id not in ("", decided.log_id)
        loaded.log_id = decided.log_id
        loaded.is_identified = decided.is_identified

    def _cut_copy(self, loaded: RecoveredLog) -> None:
        """Record a cut at the end of a copy's log, for readers that have read more of
        the original. It is written to disk before the first append, and at the latest
        when the store is closed."""
        now_ms = self._root.files.now_ms()
        loaded.cuts = loaded.cuts.after(loaded.end_offset, now_ms)
        loaded.is_recorded, loaded.is_truncating = False, True

    def _take(self, key: TopicPartition, loaded: RecoveredLog | LogStoreError) -> None:
        """Take over what `_load` returned."""
        directory = self._directory(key)
        if isinstance(loaded, RecoveredLog):
            try:
                self._lower_compacted(key, loaded.end_offset)
            except StorageError as refusal:
                loaded = refusal
        if isinstance(loaded, LogStoreError):
            # One partition that cannot be read does not prevent the others from
            # opening.
            self.broken[key] = loaded
            label = UNREADABLE
            if isinstance(loaded, UnsupportedError):
                label = UNSUPPORTED
            path, text = directory.path, str(loaded)
            self.record(RecoveryAction(label, *key, path, -1, 0, -1, None, text))
            return
        if loaded.segments:
            # One object for all segments: a deletion of the topic sets its new name.
            directory = loaded.segments[0].file.directory
        writer = PartitionWriter(
            self._context,
            directory,
            *key,
            self.catalog.settings.append_config(key.topic),
            loaded,
        )
        if key in self.unpublished:
            base, error = self.unpublished[key]
            _hide(writer, base, error)
        self.loaded[key] = writer
        if loaded.unwritten is not None:
            self.unwritten.add(key)
        for action in loaded.actions:
            self.record(action)

    def _lower_compacted(self, key: TopicPartition, end: int) -> None:
        """Lower the compaction checkpoint if it lies above the end of a log: the log
        was cut, or put back from a backup, without this store. Records appended now are
        not compacted yet.

        Raises:
            StorageError: the checkpoint cannot be read or written.
        """
        if self._compacted is None:
            self._compacted = self._state.compacted.all()
        if self._compacted.get(key, end) > end:
            self._state.compacted.lower(key, end)

    def _directory(self, key: TopicPartition) -> Directory:
        return self._root.child(layout.partition_directory(*key))

    # ------------------------------------------------------------ for checkpoints

    def starts(self) -> dict[TopicPartition, int]:
        """The start offsets that lie inside a segment; of a log that is not loaded,
        the last writer's value."""
        known = self._state.ownership.starts
        starts = self._of_pending(known)
        starts.update((key, known[key]) for key in list(self.broken) if key in known)
        for key, writer in list(self.loaded.items()):
            segments = writer.segments
            if segments and writer.start_offset > segments[0].base_offset:
                starts[key] = writer.start_offset
        return starts

    def kept(self) -> dict[TopicPartition, int]:
        """Below these offsets, loaded logs have what the last writer left in them."""
        return {
            key: min(
                writer.end_offset,
                writer.cuts.lowest_since(self._begun_at.get(key, 0)),
            )
            for key, writer in list(self.loaded.items())
        }

    def ends(self) -> dict[TopicPartition, int] | None:
        """The end offsets of all logs; None if one is not known to be intact, or its
        end is not recorded."""
        loaded = self.loaded.copy()
        if self.broken or not all(
            writer.health.is_intact and writer.is_end_recorded
            for writer in loaded.values()
        ):
            return None
        ends = self._of_pending(self._state.ownership.points)
        ends.update((key, writer.end_offset) for key, writer in loaded.items())
        return ends

    def leave_marks(self) -> None:
        """When all writers are closed: leave the marks of a clean stop, if it is one.
        Without them the next opening examines every partition again.

        Raises:
            OSError: as raised by the system.
        """
        self.catalog.settings.close()
        ends, ownership = self.ends(), self._state.ownership
        if ends is None:
            ownership.write_starts(self.starts())
        else:
            ownership.lower_high_watermarks(self.kept())
            ownership.end(ends, self.starts())

    @property
    def are_recorded(self) -> bool:
        """Whether the ends of all logs are recorded, and the cuts of damaged ones."""
        recorded = all(w.is_end_recorded for w in list(self.loaded.values()))
        return recorded and not (self.broken or self.pending())

    def _of_pending(
        self, offsets: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The last writer's values for the partitions that were not examined yet."""
        return {key: offsets[key] for key in self.pending() if key in offsets}


def _hide(writer: PartitionWriter, base: int, error: BaseException) -> None:
    writer.hide_from(base)
    writer.fail(error)


def _action(
    label: str, key: TopicPartition, directory: Directory, text: str
) -> RecoveryAction:
    """An action for the report, about the identity of a partition."""
    path = directory.path_of(layout.TOPIC_IDENTITY)
    return RecoveryAction(label, *key, path, -1, 0, -1, None, text)


def _foreign_error(
    key: TopicPartition, directory: Directory, stated_id: str, topic_id: str
) -> CorruptCheckpointError:
    """A partition was put back from an earlier topic of the same name."""
    path = directory.path_of(layout.TOPIC_IDENTITY)
    return CorruptCheckpointError(
        f"partition {key} is of another topic than {key.topic}: {path} says "
        f"{stated_id}, and the topic has the id {topic_id}. It can be read, takes no "
        "appends, and offsets that were committed for the topic are ignored in "
        "it. Put the right directory back; if this is the right one, remove the "
        "file, and the next opening takes it for the topic's",
        path=path,
        reason=f"it has the id {stated_id}, its topic {topic_id}",
    )
