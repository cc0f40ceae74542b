"""What a store does with publications: stage, publish, hand in, remember.

`Store` inherits it. `publisher.py` is the writing side, `hand_in.py` the way to it from
other processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from logstore.config import INT64_MAX, StoreConfig, check_int
from logstore.errors import ConfigError, LogStoreError, storage_errors
from logstore.io.checkpoint.publications import Publications
from logstore.io.filesystem import prepare_beside
from logstore.log.write.staged_files import (
    Staged,
    check_identity,
    check_sequence,
    logs_of,
)
from logstore.log.write.staging import Destination, Stage
from logstore.store.context import StoreContext
from logstore.store.partition.partition import Partition
from logstore.store.publication.discarding import (
    discard,
    discard_leftovers,
    discard_older,
)
from logstore.store.publication.hand_in import HandIn, OwnerWatch, hand_in
from logstore.store.publication.publication import (
    Publication,
    PublicationRequest,
    check_own_identity,
    request_of,
)
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["PublishingStore"]


class PublishingStore:
    """The publications of a store. See `Store`."""

    path: str
    read_only: bool
    config: StoreConfig
    _context: StoreContext
    _topics: OpenTopics
    _publications: Publications
    _publisher: Publisher
    _hand_in: HandIn
    _watches: deque[OwnerWatch]

    def stage(self, identity: str = "", sequence: int = 0) -> Stage:
        """A file for records that are to be published together, in any number of
        topics and partitions. A read-only store can do it, too: it takes no lock.

        Args:
            identity, sequence: as they will be given to `publish`.

        Raises:
            ConfigError: they are invalid; or opening the store for writing would need
                a setting. Nothing was created.
        """
        check_own_identity(identity)
        return self._stage(identity, sequence)

    def _stage(self, identity: str, sequence: int) -> Stage:
        self._topics.begin_call()
        if self.read_only:
            # The only file that is created without the lock: the store's owner has to
            # be able to read it.
            prepare_beside(self._context.root, self.config)
        return Stage(self._context.root, identity, sequence, self._topic_id_of)

    def _topic_id_of(self, destination: Destination) -> str:
        """The id of the topic that is staged for: a `Partition` of a writer always
        belongs to one topic, others belong to the topic that has the name now."""
        # That of `logstore.aio` has one.
        destination = getattr(destination, "blocking", destination)
        if isinstance(destination, Partition) and not self.read_only:
            return destination.topic_id
        return self._topics.topic_id(destination.topic)

    def publish(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str = "",
        sequence: int = 0,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
    ) -> Publication:
        """Append staged records durably: all of them or none.

        No reader in any process sees part of it, and a crash leaves all of it or
        nothing. The records of one partition keep the order of `staged`. The staged
        files are removed, or become segments. If the call fails, they may also be gone:
        stage again.

        Args:
            staged: what `Stage.finish` returned, of one stage or of several.
            identity: names the publisher, 1 to 1000 characters. Publishing again with
                the same identity and sequence number does nothing. The last 10,000
                identities are remembered, and the pinned ones. Those that begin with
                "group:" are taken by consumer groups. "": no identity.
            sequence: rises with each publication of the identity.
            note: kept with the identity until its next publication, for the publisher
                to read (`last_publication`): up to 1000 characters. It is also replaced
                if this was published before.
            metadata: up to 4096 bytes, committed together with the records, also if
                there are none. `last_publication` returns them until the next
                publication of the identity. They stay if this was published before.
            pinned: True: remember the identity, however many others publish; False: no
                longer; None: as before. To unpin one, repeat its last publication.

        Raises:
            PublicationConflictError: the identity has published a later one.
            DiskFullError, StorageError: nothing was published.
            SyncFailedError: nothing was published, unless the message says so, and a
                partition takes no more appends.
            CorruptRecordError: a staged file has changed; nothing was published.
            RecordTooLargeError: a batch is larger than the current
                ``max_message_bytes``.
            ConfigError: a field of `staged`, the identity or the sequence is invalid.
            TopicNotFoundError: there is none, or not the one that was staged for.
            PartitionNotFoundError, ReadOnlyError.
        """
        self._topics.check_writable("publish")
        check_own_identity(identity)
        request = request_of(
            logs_of(staged), identity, sequence, note, metadata, pinned
        )
        return self._published(request)

    def _published(
        self, request: PublicationRequest, *, is_last: bool = False
    ) -> Publication:
        """Publish, together with what others have handed in.

        Args:
            is_last: this store is closed afterwards.
        """
        publish = self._hand_in.publish_as_last if is_last else self._hand_in.publish
        with storage_errors("publish to", self.path):
            (outcome,) = publish([request])
        if isinstance(outcome, LogStoreError):
            raise outcome
        return outcome

    def submit(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str,
        sequence: int,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
        timeout_ms: int | None = None,
    ) -> Publication:
        """Publish from any process, also if another one has the store open for writing.

        A read-only store takes the writer's lock if it is free, publishes, and releases
        it. Else it hands a request in to the owner, and waits: an owner with
        ``StoreConfig(publish_for_others=True)`` publishes it; if the owner ends, this
        call, or another one that waits, takes the lock. A store that is open for
        writing publishes as `publish` does.

        Whatever ends first, the process or the owner: a request that was handed in is
        published once or not at all, and the same call, made again, tells. It may be
        published after the process that handed it in has ended.

        Args:
            staged, sequence, note, metadata, pinned: as in `publish`.
            identity: names the publisher, as in `publish`, 1 to 1000 characters.
            timeout_ms: how long to wait for another process, in milliseconds; None: no
                limit. An owner that does not publish for others, or a Kafka broker,
                lets the call wait until it ends.

        Returns:
            As `publish`. The offsets are empty, too, if its publisher has died after
            the commit.

        Raises:
            PublicationTimeoutError: it is unknown whether it will be published; ask
                `published`, or submit the same again.
            ConfigError: as `publish`, and for an empty identity. Also if this process
                may not open the store for writing, and its lock is free.
            StorageError: as `publish`; or the request cannot be written (a read-only
                file system, a full disk): nothing was handed in, unless the message
                says that it was before.
            CorruptCheckpointError: the request was damaged; nothing was published.
            PublicationConflictError, SyncFailedError, CorruptRecordError,
                RecordTooLargeError, TopicNotFoundError, PartitionNotFoundError: as
                `publish`; the error of the process that published.
            StoreClosedError, ForkedError.
        """
        self._context.check_open()
        if timeout_ms is not None:
            check_int("timeout_ms", timeout_ms, 0, INT64_MAX)
        check_own_identity(identity)
        request = request_of(
            logs_of(staged), identity, sequence, note, metadata, pinned
        )
        return self._submitted(request, timeout_ms)

    def _submitted(
        self, request: PublicationRequest, timeout_ms: int | None
    ) -> Publication:
        identity = request.identity
        if not identity:
            raise ConfigError(
                "a publication that is handed in needs an identity, by which it is "
                "known whether it was published; nothing was done",
                name="identity",
                value=identity,
            )
        if not self.read_only:
            self._topics.check_writable("publish")
            return self._published(request)
        root = self._context.root
        prepare_beside(root, self.config)
        with storage_errors("hand in a publication to", self.path):
            return hand_in(
                root, request, timeout_ms, self._publish_as_owner, self._watches
            )

    def _publish_as_owner(self, request: PublicationRequest) -> Publication:
        """Open the store for writing, publish, and close it.

        Raises:
            StoreLockedError: another one has it.
        """
        raise NotImplementedError

    def published(self, identity: str) -> int | None:
        """The last sequence number that an identity has published; None: none.

        Raises:
            ConfigError: the identity is invalid.
            CorruptCheckpointError: the file that records it is damaged.
        """
        last = self.last_publication(identity)
        return None if last is None else last.sequence

    def last_publication(self, identity: str) -> Publication | None:
        """The last publication of an identity, without its offsets, which are not kept;
        None: none. Raises: as `published`."""
        self._context.check_open()
        check_identity(identity)
        with storage_errors("read", self.path):
            entry = self._publications.published().get(identity)
        return None if entry is None else Publication.known(identity, entry)

    def discard_staged(
        self,
        staged: Staged | Iterable[Staged] = (),
        *,
        identity: str = "",
        before: int = 0,
        older_than_ms: int | None = None,
    ) -> None:
        """Remove staged files that will not be published: these, all of an identity
        with a sequence below `before`, and those of any identity that were not written
        to for `older_than_ms`; of the latter two also the requests that were handed in.

        Raises:
            ConfigError: an argument is invalid; nothing was removed.
        """
        self._context.check_open()
        root = self._context.root
        check_identity(identity)
        check_sequence(before, "before")
        if older_than_ms is not None:
            check_sequence(older_than_ms, "older_than_ms")
        discard(root, logs_of(staged))
        if identity and before:
            discard_leftovers(root, identity, before)
        if older_than_ms is not None:
            discard_older(root, self._context.files.now_ms() - older_than_ms)
