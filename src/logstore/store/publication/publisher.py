"""Admits requests to publish, takes the locks, and commits them together or one by one.

Staged records go into any number of partitions at once, or not at all; records with an
identity and a sequence number are published only once.

`Publisher` is the writing side; the commit is in publication_journal.py.
"""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Sequence,
)
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_PUBLISH, logger
from logstore.errors import (
    LogStoreError,
    PublicationConflictError,
    PublicationUnknownError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
    TopicNotFoundError,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint.ledger import PROCESS_IDENTITY, Changes, LedgerEntry
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Publications, unknown_publications
from logstore.io.layout import TopicPartition
from logstore.log.write.calls import OutdatedChoiceError
from logstore.log.write.import_segment import SegmentImport, examine_all, is_worth_it
from logstore.log.write.staged_files import (
    StagedLog,
    check_apart,
    check_files,
)
from logstore.log.write.writer import PartitionWriter
from logstore.store.context import StoreContext
from logstore.store.publication.discarding import discard
from logstore.store.publication.group_commit import GroupCommit
from logstore.store.publication.publication import Outcome, PublicationRequest
from logstore.store.publication.publication_group import (
    RequestGroup,
    TargetPartition,
    check_fits,
)
from logstore.store.publication.unfinished import end_unfinished
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["Publisher"]

ROOT_USER: Final = 0
UNKNOWN_USER: Final = -1


class Publisher:
    """Publishes to one store, and undoes a publication that a crash interrupted.

    Attributes:
        lock: held by the thread that publishes.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        publications: Publications,
        journal: PublicationJournal,
    ) -> None:
        self._context = context
        self._topics = topics
        self._root = context.root
        self._publications = publications
        self._journal = journal
        name = f"the publications of {context.path}"
        self.lock = native.Mutex(RANK_PUBLISH, name, context.lock_group)
        # The commit in progress, or the last one.
        self._last: GroupCommit | None = None
        # A publication of the last owner could not be undone.
        self._is_pending = False
        # The identities of processes that have ended.
        self._ended: set[str] = set()
        # Staged logs that were published, whose files are not removed yet.
        self._used: list[StagedLog] = []

    # ------------------------------------------------------------ recovery

    def finish(self) -> None:
        """End the publication that was interrupted, if there is one: it counts if every
        log has its bytes; else they are removed again.

        If another program has written to the store since, the logs are that program's,
        and are left unchanged.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or removed.
        """
        pending = end_unfinished(
            self._context, self._topics, self._publications, self._journal
        )
        if pending is not None:
            self._is_pending = bool(pending)
        elif not self._context.state.ownership.is_clean and self._root.exists(
            layout.PUBLISHED
        ):
            # The last rename may be in the page cache only.
            self._root.sync()

    def end(self) -> None:
        """Before the store is closed, when all of its logs are: leave the files as
        earlier versions read them. Not if a publication could not be undone, which the
        next opening does.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or written.
        """
        if not self.has_stuck():
            self._journal.forget_ended(self._is_there)
            self._journal.settle({})

    def _is_there(self, identity: str) -> bool:
        """Whether the process of an identity may make requests."""
        name = layout.PROCESS_PREFIX + identity.removeprefix(PROCESS_IDENTITY)
        return self._root.exists(name)

    def ledger(self) -> dict[str, LedgerEntry]:
        """The last publication of each identity; the caller holds `lock`, so that all
        records of each are in the logs.

        Raises:
            StorageError: an earlier publication was neither committed nor undone.
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        self._end_earlier()
        return self._journal.published()

    def remembered(self) -> dict[str, LedgerEntry]:
        """Same as `ledger`, but works even if an earlier publication was neither
        committed nor undone. The caller holds `lock`.

        Raises:
            CorruptCheckpointError, OSError: a file is damaged, or cannot be read.
        """
        return self._journal.published()

    def amend(self, changes: Changes) -> None:
        """Record durably what is remembered of identities from now on; the caller holds
        `lock`, and has it from `ledger` or `remembered`.

        Raises:
            StorageError: an earlier publication was neither committed nor undone.
            OSError: as raised by the system.
        """
        self._end_earlier()
        self._journal.commit(changes)

    def visible(self) -> object:
        """A value that changes when readers of this process may begin to see records of
        a publication."""
        last = self._last
        return None if last is None else (last.barrier, last.barrier.is_open)

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
            if any(request.expected_offset is not None for request in requests):
                return self._publish_apart(requests)
            return self._publish_together(requests)
        except (LogStoreError, OSError) as error:
            if len(requests) < 2:
                return [self._named(error)]
        return self._publish_apart(requests)

    def _publish_apart(self, requests: Sequence[PublicationRequest]) -> list[Outcome]:
        """The outcome of each request, each in a separate commit."""
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
        """The outcome of each request. If this raises, all requests that are not
        refused have failed with that error."""
        self._end_earlier()
        now_ms = self._root.files.now_ms()
        group = RequestGroup(requests, self._journal.ledger())
        group.forget(self._ended)
        for number, request in enumerate(requests):
            try:
                self._admit(group, number, request, now_ms)
            except LogStoreError as error:
                group.refused[number] = error
        group.forget_oldest()
        if group.targets:
            in_doubt = self._publish(group)
            if in_doubt is not None:
                return [group.refused.get(n, in_doubt) for n in range(len(requests))]
        elif group.changes:
            self._journal.commit(group.changes)
        self._used += group.used
        return group.outcomes()

    def _admit(
        self, group: RequestGroup, number: int, request: PublicationRequest, now_ms: int
    ) -> None:
        """Make a request part of a group.

        Raises:
            LogStoreError: it is refused, and the group is unchanged.
        """
        identity, sequence, logs = request.identity, request.sequence, request.logs
        last = group.last(identity) if identity else None
        if request.is_call:
            spans = None if last is None else last.call(sequence)
            if spans is not None:
                group.remember_call(number, spans)
                return
            last = None
        if last is not None and sequence < last.sequence:
            raise PublicationConflictError(identity, sequence, last.sequence)
        if last is not None and sequence == last.sequence:
            if unknown_publications(self._root).get(identity) == sequence:
                raise PublicationUnknownError(identity, sequence)
            repeated = request.repeated(last)
            group.check_room(number, repeated, is_new=False)
            # The caller that published it may not have seen it become durable.
            group.remember(number, repeated, is_new=False)
            group.used += logs
            return
        for topic, count in request.partitions.items():
            if len(self._topics.catalog.numbers.get(topic, ())) != count:
                raise OutdatedChoiceError(
                    f"topic {topic} does not have {count} partitions"
                )
        entry = request.entry(last, now_ms)
        group.check_room(number, entry, is_new=True)
        if request.is_remembered:
            check_apart([*group.logs, *logs] if group.has_file_of(logs) else logs)
            contents = check_files(self._root, logs, group.room, request.contents)
            if logs:
                # First of all: it may give the topics other ids.
                self._context.state.begin_publishing()
            group.add(number, self._writers(logs), contents)
        group.remember(number, entry, is_new=True)

    def _publish(self, group: RequestGroup) -> SyncFailedError | None:
        """Publish to the partitions of a group, and remember it. Returns and raises: as
        `GroupCommit.publish`."""
        targets = group.in_order()
        imports = self._examined(targets)
        syncs = [target.writer.sync_lock for target in targets]
        appends = [target.writer.lock for target in targets]
        with native.Group([*syncs, *appends]):
            for target in targets:
                target.begin()
            group.check_expected()
            commit = GroupCommit(
                self._root, self._journal, targets, self.lock, self._end_interrupted
            )
            self._last = commit
            return commit.publish(group, imports)

    def pin(self, identity: str, is_pinned: bool) -> bool:
        """Pin an identity, or no longer; the caller holds `lock`. Returns whether it
        has published anything: else there is nothing to be remembered.

        Raises:
            ConfigError: the file of publications has no room for it.
            LogStoreError, OSError: what is remembered cannot be read or written.
        """
        self._end_earlier()
        ledger = self._journal.ledger()
        entry = ledger.get(identity)
        if entry is None:
            return False
        if entry.is_pinned != is_pinned:
            changes = {identity: entry._replace(is_pinned=is_pinned)}
            check_fits(ledger, changes, identity)
            gone = ledger.evicted(changes, changes)
            self._journal.commit({**dict.fromkeys(gone), **changes})
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
        if self.has_stuck():
            raise StorageError(
                f"an earlier publication to {root.path} could not be undone; "
                f"nothing was published. Open the store again.",
                path=root.path_of(layout.PUBLICATION),
                action="publish to",
            )
        if self._last is not None:
            self._last.end_interrupted()

    def _end_interrupted(self) -> None:
        """The same for one of its partitions, whose lock the caller holds: the barrier
        stays closed if it cannot be opened."""
        assert self._last is not None
        try:
            self._last.end_interrupted()
        except ReentrantCallError:
            raise
        except (LogStoreError, OSError) as error:
            logger.error(
                "cannot find out whether a publication to %s was committed: %s",
                self._root.path,
                error,
            )

    def has_stuck(self) -> bool:
        """Whether a publication was neither committed nor undone: nothing is published
        any more until the store is opened again."""
        last = self._last
        return self._is_pending or (last is not None and last.has_stuck())

    def _writers(
        self, logs: Iterable[StagedLog]
    ) -> dict[TopicPartition, PartitionWriter]:
        """The writers of the partitions of staged logs.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: it does not exist, or the topic
                was replaced since staging.
            LogStoreError: the partition takes no appends.
        """
        writers: dict[TopicPartition, PartitionWriter] = {}
        for log in logs:
            key = TopicPartition(log.topic, log.partition)
            if key not in writers:
                writers[key] = self._topics.writer_of(key)
            # After getting the writer, which always belongs to one topic.
            if log.topic_id != self._topics.topic_id(log.topic):
                raise TopicNotFoundError(
                    f"topic {log.topic} was deleted and created again after "
                    "records were staged for it; nothing was published. Stage "
                    "them again",
                    topic=log.topic,
                )
        return writers

    def _examined(
        self, targets: Iterable[TargetPartition]
    ) -> dict[StagedLog, SegmentImport]:
        """The staged logs that will be taken over as segments: not logs of another
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
            self._context.store_config,
        )

    def process_ended(self, identity: str) -> None:
        """Note that a process makes no more requests: it is forgotten with the next
        commit. The caller holds `lock`."""
        self._ended.add(identity)

    def discard_used(self) -> None:
        """Remove the staged files of published records, and shorten the journal. Only
        after the outcome was returned. The caller holds `lock`."""
        used, self._used = self._used, []
        discard(self._root, used)
        self._journal.fold_if_long()
