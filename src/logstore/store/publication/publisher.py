"""Publishing: staged records go into any number of partitions at once, or not at all;
those with an identity and a sequence number only once.

`Publisher` is the writing side; the commit is in publication_journal.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Final

from logstore import _native as native
from logstore._native.locks import RANK_PUBLISH, logger
from logstore.config import StoreConfig
from logstore.errors import (
    LogStoreError,
    PublicationConflictError,
    PublicationUnknownError,
    StorageError,
    SyncFailedError,
    TopicNotFoundError,
    error_text,
    is_system_error,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import (
    Changes,
    Entry,
    Publications,
    evict,
    is_of,
    unknown_publications,
)
from logstore.io.checkpoint.requests import requested_sequence
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.log.write.extent import VisibilityBarrier
from logstore.log.write.import_segment import SegmentImport, examine_all, is_worth_it
from logstore.log.write.staged_files import (
    StagedLog,
    check_apart,
    check_files,
    moved_content,
    moved_runs,
    staged_sequence,
)
from logstore.log.write.writer import PartitionWriter
from logstore.store.publication.publication import Outcome, PublicationRequest
from logstore.store.publication.publication_group import Group, Target

__all__ = ["Publisher"]

ROOT_USER: Final = 0
UNKNOWN_USER: Final = -1
# Upper bound of the space that a new segment takes besides its log.
_SEGMENT_BYTES: Final = 64 * 1024


class Publisher:
    """Publishes to one store, and undoes a publication that a crash interrupted.

    Args:
        writer_of: returns the writer of a partition, or raises why there is none.
        topic_id_of: returns the id of the topic that has a name now.
        begin_publishing: before the first record: removes the marks of a clean stop,
            and sees that the store has its owner file.

    Attributes:
        lock: held by the thread that publishes.
        steps: rises whenever readers of this process may begin to see a change.
    """

    def __init__(
        self,
        root: Directory,
        ownership: Ownership,
        publications: Publications,
        journal: PublicationJournal,
        store_config: StoreConfig,
        writer_of: Callable[[TopicPartition], PartitionWriter],
        topic_id_of: Callable[[str], str],
        begin_publishing: Callable[[], None],
        lock_group: int,
    ) -> None:
        self._root = root
        self._store_config = store_config
        self._ownership = ownership
        self._writer_of = writer_of
        self._topic_id_of = topic_id_of
        self._begin_publishing = begin_publishing
        self._publications = publications
        self._journal = journal
        name = f"the publications of {root.path}"
        self.lock = native.Mutex(RANK_PUBLISH, name, lock_group)
        self.steps = 0
        # Of the publication in progress, or of the last one.
        self._barrier = VisibilityBarrier(is_open=True, publisher=self.lock)
        self._targets: Sequence[Target] = ()
        # It was neither committed nor undone, or an earlier one.
        self._is_stuck = False
        # The last one was committed, and its commit may not be durable.
        self._is_in_doubt = False
        # Staged logs of what was published, whose files are not removed yet.
        self._used: list[StagedLog] = []

    # ------------------------------------------------------------ recovery

    def finish(self, drop: Callable[[TopicPartition, int], None]) -> None:
        """Remove what an interrupted publication has put into the logs.

        If another program has written to the store since, the logs are that program's,
        and stay as they are.

        Args:
            drop: called with a partition and the offset at which it has to end; does
                nothing if it already ends there.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or removed.
        """
        journal = self._publications.journal()
        if journal is None:
            if not self._ownership.is_clean and self._root.exists(layout.PUBLISHED):
                # The last rename may be in the page cache only.
                self._root.sync()
            return
        pending: dict[TopicPartition, int] = {}
        is_own = is_of(journal, self._ownership)
        for key, base in journal.bases.items() if is_own else ():
            try:
                drop(key, base)
            except TopicNotFoundError:
                continue
            except LogStoreError as error:
                name = layout.partition_directory(*key)
                logger.error("cannot undo a publication to %s: %s", name, error)
                pending[key] = base
        self._journal.settle(pending)
        self._is_stuck = bool(pending)

    def end(self) -> None:
        """Before the store is closed, when all of its logs are: leave the files as
        earlier versions read them. Not if a publication could not be undone, which the
        next opening does.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or written.
        """
        if not self._has_stuck():
            self._journal.settle({})

    def ledger(self) -> dict[str, Entry]:
        """The last publication of each identity; the caller holds `lock`, so that all
        records of each are in the logs.

        Raises:
            StorageError: an earlier publication was neither committed nor undone.
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        self._end_earlier()
        return self._journal.published()

    def remembered(self) -> dict[str, Entry]:
        """As `ledger`, also if an earlier publication was neither committed nor undone;
        the caller holds `lock`.

        Raises:
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        return self._journal.published()

    def amend(self, changes: Changes) -> None:
        """Record durably what is remembered of identities from now on; the caller holds
        `lock`, and has it from `ledger` or `remembered`.

        Raises:
            StorageError: an earlier publication was neither committed nor undone.
            OSError: as the system gives it.
        """
        self._end_earlier()
        self._journal.commit({}, changes)

    # ------------------------------------------------------------ publishing

    def publish_all(self, requests: Sequence[PublicationRequest]) -> list[Outcome]:
        """Publish several requests, in order, in one commit that shares its syncs; the
        caller holds `lock`, and calls `discard_used` afterwards. One that is refused
        does not stop the others: its outcome is the error.

        If the commit fails, each request is published alone: so each has the outcome
        that it would have had without the others. Not if all were published, and only
        the sync of the commit failed: then each has that error.
        """
        try:
            return self._publish_together(requests)
        except (LogStoreError, OSError) as error:
            if len(requests) < 2:
                return [self._named(error)]
        outcomes: list[Outcome] = []
        for request in requests:
            try:
                outcomes += self._publish_together([request])
            except (LogStoreError, OSError) as error:
                outcomes.append(self._named(error))
        return outcomes

    def _named(self, error: LogStoreError | OSError) -> LogStoreError:
        if isinstance(error, LogStoreError):
            return error
        return storage_error(error, "publish to", self._root.path)

    def _publish_together(
        self, requests: Sequence[PublicationRequest]
    ) -> list[Outcome]:
        """The outcome of each request. If this raises, those that are not refused have
        the error in common."""
        self._end_earlier()
        now_ms = self._root.files.now_ms()
        group = Group(requests, self._journal.published())
        for number, request in enumerate(requests):
            try:
                self._admit(group, number, request, now_ms)
            except LogStoreError as error:
                group.refused[number] = error
        group.forget_oldest()
        if group.targets:
            try:
                self._publish(group)
            except SyncFailedError as error:
                if not self._is_in_doubt:
                    raise
                return [group.refused.get(n, error) for n in range(len(requests))]
        elif group.changes:
            self._journal.commit({}, group.changes)
        self._used += group.logs
        self._used += group.repeated
        return group.outcomes()

    def _admit(
        self, group: Group, number: int, request: PublicationRequest, now_ms: int
    ) -> None:
        """Make a request part of a group.

        Raises:
            LogStoreError: it is refused, and the group is as it was.
        """
        identity, sequence, logs = request.identity, request.sequence, request.logs
        last = group.published.get(identity) if identity else None
        if last is not None and sequence < last.sequence:
            raise PublicationConflictError(identity, sequence, last.sequence)
        if last is not None and sequence == last.sequence:
            if unknown_publications(self._root).get(identity) == sequence:
                raise PublicationUnknownError(identity, sequence)
            # The caller that published it may not have seen it become durable.
            group.remember(number, request.repeated(last), is_new=False)
            group.repeated += logs
            return
        if request.is_remembered:
            check_apart([*group.logs, *logs] if group.has_file_of(logs) else logs)
            contents = check_files(self._root, logs, group.room)
            if logs:
                # First of all: it may give the topics other ids.
                self._begin_publishing()
            group.add(number, self._writers(logs), contents)
        group.remember(number, request.entry(last, now_ms), is_new=True)

    def _publish(self, group: Group) -> None:
        """Publish to the partitions of a group, and remember it."""
        targets = group.in_order()
        imports = self._examined(targets)
        syncs = [target.writer.sync_lock for target in targets]
        appends = [target.writer.lock for target in targets]
        with native.Group([*syncs, *appends]):
            for target in targets:
                target.begin()
            self._publish_held(group, targets, imports)

    def pin(self, identity: str, is_pinned: bool) -> bool:
        """Pin an identity, or no longer; the caller holds `lock`. Returns whether it
        has published anything: else there is nothing to be remembered.

        Raises:
            LogStoreError, OSError: what is remembered cannot be read or written.
        """
        self._end_earlier()
        published = self._journal.published()
        entry = published.get(identity)
        if entry is None:
            return False
        if entry.is_pinned != is_pinned:
            entry = entry._replace(is_pinned=is_pinned)
            published[identity] = entry
            gone = evict(published, {identity})
            self._journal.commit({}, {**dict.fromkeys(gone), identity: entry})
        else:
            # It may have been written before, by a call whose sync failed.
            self._journal.confirm()
        return True

    def _end_earlier(self) -> None:
        """Open the barrier that an earlier publication, interrupted twice, left closed.
        If that publication was committed or undone, all of its partitions show it from
        now on; otherwise only one that is published to again would.

        Raises:
            StorageError: it was neither committed nor undone.
        """
        root = self._root
        if self._has_stuck():
            raise StorageError(
                f"an earlier publication to {root.path} could not be undone; "
                f"nothing was published. Open the store again.",
                path=root.path_of(layout.PUBLICATION),
                action="publish to",
            )
        self._barrier.is_open = True

    def _has_stuck(self) -> bool:
        """Whether a publication was neither committed nor undone."""
        if not (self._barrier.is_open or self._is_stuck):
            targets = self._targets
            self._is_stuck = _is_there(targets) and not self._has_committed(targets)
        return self._is_stuck

    def _has_committed(self, targets: Iterable[Target]) -> bool:
        return self._journal.has_committed({t.key: t.base for t in targets})

    def _writers(
        self, logs: Iterable[StagedLog]
    ) -> dict[TopicPartition, PartitionWriter]:
        """The writers of the partitions of staged logs.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: there is none, or not the one
                that was staged for.
            LogStoreError: the partition takes no appends.
        """
        writers: dict[TopicPartition, PartitionWriter] = {}
        for log in logs:
            key = TopicPartition(log.topic, log.partition)
            if key not in writers:
                writers[key] = self._writer_of(key)
            # After getting the writer, which always belongs to one topic.
            if log.topic_id != self._topic_id_of(log.topic):
                raise TopicNotFoundError(
                    f"topic {log.topic} is not the one that records were staged for: "
                    f"that was deleted, and another has its name; nothing was "
                    f"published. Stage them again",
                    topic=log.topic,
                )
        return writers

    def _examined(self, targets: Iterable[Target]) -> dict[StagedLog, SegmentImport]:
        """The staged logs that will be taken over as segments: not those of another
        user, whose files would keep that owner."""
        worth_it = [
            (log, target.writer)
            for target in targets
            for log in target.parts
            if is_worth_it(log, target.writer.context.config)
        ]
        if not worth_it:
            return {}
        device = self._root.info().device
        user = self._root.files.user()
        may_give = user == ROOT_USER and self._root.access.uid >= 0
        return examine_all(
            self._root,
            {
                log: writer.context.config
                for log, writer in worth_it
                if writer.directory.info().device == device
                and (may_give or self._root.stat(log.file).uid in (user, UNKNOWN_USER))
            },
            self._store_config,
        )

    def _publish_held(
        self,
        group: Group,
        targets: Sequence[Target],
        imports: Mapping[StagedLog, SegmentImport],
    ) -> None:
        """Publish, with the locks of the partitions held: no other thread appends.

        A second interrupt, in the middle of undoing, leaves the barrier closed: then
        each of the partitions refuses appends, and opening the store again undoes the
        publication.
        """
        # Before the first byte: the disk must have room for everything.
        sizes = [
            sum([log.bytes for log in target.parts if log not in imports])
            for target in targets
        ]
        if imports or not all(
            t.log.has_room(size) for t, size in zip(targets, sizes, strict=True)
        ):
            targets[0].log.check_room(sum(sizes) + len(targets) * _SEGMENT_BYTES)
        self._targets, self._is_in_doubt = targets, False
        barrier = self._barrier = VisibilityBarrier(is_open=False, publisher=self.lock)
        is_settled = False
        try:
            self._put_in(group, targets, imports)
            is_settled = True
        except BaseException as error:
            failure = self._failed(targets, error)
            is_settled = True
            if failure is error:
                raise
            raise failure from error
        finally:
            if is_settled and not barrier.is_open:
                self._show(targets)

    def _put_in(
        self,
        group: Group,
        targets: Sequence[Target],
        imports: Mapping[StagedLog, SegmentImport],
    ) -> None:
        """Append, make durable, commit.

        1. record where the logs end, durably, unless that is recorded; 2. append to
        each log; 3. sync each; 4. record where they end now, and what is remembered,
        durably: the commit.
        """
        journal = self._journal
        for target in targets:
            # Before the journal has its end.
            release = functools.partial(journal.release, target.key)
            target.log.raise_barrier(self._barrier, release)
        journal.begin({target.key: target.base for target in targets})
        # All locks are held: no record with a later time is appended before these.
        now_ms = self._root.files.now_ms()
        for target in targets:
            self._append(target, imports, group.contents, now_ms)
        for target in targets:
            target.log.sync()
        if imports:
            # The files that became segments must not have their old names again.
            self._root.sync()
        ends = {target.key: target.writer.end_offset for target in targets}
        journal.commit(ends, group.changes)

    def _failed(self, targets: Sequence[Target], error: BaseException) -> BaseException:
        """Undo what was not committed; returns the error to raise.

        If something cannot be made durable now, the writers end: records appended later
        would be removed together with it.
        """
        root, what = self._root, "publish to"
        try:
            if not (_is_there(targets) and self._has_committed(targets)):
                self._undo(targets)
            else:
                self._show(targets)
                self._end_writers(targets, error)
                for target in targets:
                    # The next opening may cut what was synced behind it.
                    target.log.doubt_from(target.base)
                self._is_in_doubt = True
                return SyncFailedError(
                    f"it was published to {root.path}, and a power cut may take it "
                    f"back: {error_text(error)}. Open the store again and repeat it.",
                    errno=getattr(error, "errno", None),
                    path=root.path,
                    action=what,
                )
        except (LogStoreError, OSError) as failure:
            self._is_stuck = True
            self._end_writers(targets, failure)
        if is_system_error(error):
            return storage_error(error, what, root.path, "Nothing was published.")
        return error

    def _end_writers(self, targets: Iterable[Target], error: BaseException) -> None:
        for target in targets:
            target.writer.fail(error)

    def _show(self, targets: Sequence[Target]) -> None:
        """Let readers see all records again, except in logs that could not be
        restored."""
        for target in targets:
            if target.writer.health.failed is not None:
                target.writer.hide_from(target.base, self.lock)
        self.steps += 1
        self._barrier.is_open = True
        self.steps += 1
        for target in targets:
            target.writer.wake_readers()

    def _append(
        self,
        target: Target,
        imports: Mapping[StagedLog, SegmentImport],
        contents: Mapping[str, bytes],
        now_ms: int,
    ) -> None:
        """All that was staged for one partition, in order."""
        if not imports:
            self._copy(target, target.parts, contents, now_ms)
            return
        config = target.writer.context.config

        def is_import(log: StagedLog) -> bool:
            # If it was examined with other settings, it differs from what an append
            # makes now.
            return log in imports and imports[log].config == config

        for imports_segment, logs in itertools.groupby(target.parts, is_import):
            if imports_segment:
                for log in logs:
                    self._import(target, imports[log].stamped(now_ms), now_ms)
            else:
                self._copy(target, list(logs), contents, now_ms)

    def _import(self, target: Target, staged: SegmentImport, now_ms: int) -> None:
        base = target.writer.end_offset
        try:
            target.log.import_segment(self._root, staged)
        except StorageError as error:
            if error.errno != errno.EXDEV or target.writer.health.failed:
                raise
            # Another mount of the same device, or a separate quota, is between them.
            # The batches already have their offsets.
            self._copy(target, [staged.log._replace(first=base)], {}, now_ms)

    def _copy(
        self,
        target: Target,
        logs: Sequence[StagedLog],
        contents: Mapping[str, bytes],
        now_ms: int,
    ) -> None:
        """Staged logs as one append; small ones that follow one another are written in
        one piece."""
        log, config = target.log, target.writer.context.config
        base = target.writer.end_offset

        def runs() -> Generator[tuple[Any, int]]:
            root, begin, piece = self._root, base, bytearray()
            for one in logs:
                epoch = log.leader_epoch(base) if one.magic == 2 else 0
                content = contents.get(one.file)
                if content is not None:
                    piece += moved_content(
                        root, one, content, begin, epoch, config, now_ms
                    )
                else:
                    if piece:
                        yield native.pointer(piece), len(piece)
                        piece = bytearray()
                    yield from moved_runs(root, one, begin, epoch, config, now_ms)
                begin += one.records
            if piece:
                yield native.pointer(piece), len(piece)

        total = sum([one.bytes for one in logs])
        count = sum([one.records for one in logs])
        # Closed here: a caller that keeps the error of a failed append keeps its
        # frames.
        with contextlib.closing(runs()) as moved:
            log.append_runs(moved, total, count)

    def _undo(self, targets: Sequence[Target]) -> None:
        """Remove the records again: the logs end where the journal says. A log in which
        this fails takes no more appends, and is restored when the store is opened
        again."""
        for target in targets:
            writer, failed = target.writer, target.writer.health.failed
            if failed is None and writer.end_offset == target.base:
                continue
            try:
                if failed is not None:
                    raise failed
                target.log.truncate_to(target.base, target.place)
            except (LogStoreError, OSError) as error:
                name = writer.context.name
                logger.error("cannot undo a publication to %s: %s", name, error)
                writer.fail(error)
                self._is_stuck = True

    # ------------------------------------------------------------ staged files

    def discard_used(self) -> None:
        """Remove the staged files of what was published: not before it was told. The
        caller holds `lock`."""
        used, self._used = self._used, []
        self.discard(used)

    def discard(self, logs: Iterable[StagedLog]) -> None:
        """Remove staged files; one that cannot be removed costs only its space."""
        for name in dict.fromkeys(log.file for log in logs):
            self._remove(name)

    def discard_leftovers(self, identity: str, before: int) -> None:
        """Remove the staged files of an identity with a sequence below `before`, and
        the requests to publish them."""
        with contextlib.suppress(OSError):
            for name in self._root.names():
                sequence = staged_sequence(name, identity)
                if sequence is None:
                    sequence = requested_sequence(name, identity)
                if sequence is not None and sequence < before:
                    self._remove(name)

    def discard_older(self, before_ms: int) -> None:
        """Remove the staged files of all identities that were last written to before a
        time, and the requests: they will not be published any more."""
        prefixes = layout.STAGED_PREFIX, layout.REQUEST_PREFIX, layout.REFUSED_PREFIX
        with contextlib.suppress(OSError):
            for name in self._root.names():
                if not name.startswith(prefixes):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if self._root.stat(name).mtime_ns < before_ms * 1_000_000:
                        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._root.unlink(name, missing_ok=True)
        except OSError as error:
            logger.warning("cannot remove the staged file %s: %s", name, error)


def _is_there(targets: Iterable[Target]) -> bool:
    """Whether logs have any records of their publication."""
    return any(target.writer.end_offset > target.base for target in targets)
