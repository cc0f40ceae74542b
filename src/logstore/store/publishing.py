"""Publications of a store: stage, publish, remember.

`publisher.py` is the writing side, `hand_in/` the way to it from other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.errors import LogStoreError, storage_errors
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Publications
from logstore.io.filesystem import prepare_beside
from logstore.log.write.calls import Creation
from logstore.log.write.staged_files import (
    Staged,
    check_identity,
    check_sequence,
    logs_of,
)
from logstore.log.write.staging import Destination, Stage
from logstore.store.context import StoreContext
from logstore.store.hand_in.owner import HandIn
from logstore.store.partition.partition import Partition
from logstore.store.publication.discarding import (
    discard,
    discard_leftovers,
    discard_older,
)
from logstore.store.publication.publication import (
    Outcome,
    Publication,
    PublicationRequest,
)
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["Publishing"]


class Publishing:
    """The publications of one store. Any thread may call it.

    Attributes:
        publications: the remembered publications, in files of the root.
        publisher: writes them, if the store is open for writing.
        hand_in: publishes with it, for other processes, too.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        publications: Publications,
        journal: PublicationJournal,
        create: Callable[[Creation], object],
    ) -> None:
        self._context = context
        self._topics = topics
        self.publications = publications
        self.publisher = Publisher(context, topics, publications, journal)
        self.hand_in = HandIn(context.root, self.publisher, create)

    def stage(self, identity: str, sequence: int) -> Stage:
        """Same as `Store.stage`, but the identity of a group is allowed, too."""
        context = self._context
        self._topics.begin_call()
        if context.read_only:
            # The only file that is created without the lock: the store's owner has to
            # be able to read it.
            prepare_beside(context.root, context.store_config)
            self._use_formats()
        return Stage(context.root, identity, sequence, self._topic_id_of)

    def _use_formats(self) -> None:
        """Let the partitions of a read-only store know the format of appends."""
        topics = self._topics
        with self._context.lock:
            if not topics.has_stages:
                topics.has_stages = True
                for (topic, _), partition in topics.partitions.items():
                    partition.config = topics.settings_of(topic).append_config(topic)

    def _topic_id_of(self, destination: Destination) -> str:
        """The id of the topic that is the destination of a stage: a `Partition` of a
        writer always belongs to one topic, others to the topic with the name now."""
        # That of `logstore.aio` has one.
        destination = getattr(destination, "blocking", destination)
        if isinstance(destination, Partition) and not self._context.read_only:
            return destination.topic_id
        return self._topics.topic_id(destination.topic)

    def publish(self, request: PublicationRequest) -> Publication:
        """Publish a request, together with requests that others have handed in. The
        store is open for writing."""
        with storage_errors("publish to", self._context.path):
            (outcome,) = self.hand_in.publish([request])
        return _published(outcome)

    def publish_at_once(self, request: PublicationRequest) -> Publication | None:
        """Same as `publish`; None, and nothing was done, if another thread publishes
        now."""
        with storage_errors("publish to", self._context.path):
            outcomes = self.hand_in.publish_at_once([request])
        return _published(outcomes[0]) if outcomes else None

    def last(self, identity: str) -> Publication | None:
        """See `Store.last_publication`."""
        check_identity(identity)
        with storage_errors("read", self._context.path):
            entry = self.publications.published().get(identity)
        return None if entry is None else Publication.known(identity, entry)

    def discard(
        self,
        staged: Staged | Iterable[Staged],
        identity: str,
        before: int,
        older_than_ms: int | None,
    ) -> None:
        """See `Store.discard_staged`."""
        root = self._context.root
        check_identity(identity)
        check_sequence(before, "before")
        if older_than_ms is not None:
            check_sequence(older_than_ms, "older_than_ms")
        discard(root, logs_of(staged))
        if identity and before:
            discard_leftovers(root, identity, before)
        if older_than_ms is not None:
            discard_older(root, root.files.now_ms() - older_than_ms)


def _published(outcome: Outcome) -> Publication:
    """The publication. Raises: the error that the outcome is."""
    if isinstance(outcome, LogStoreError):
        raise outcome
    return outcome
