"""A store that is open without its lock: its requests, and the lock that it takes for
them.

Publications (`Store.submit`), and if it is open for sharing also appends and new
topics, are handed in to the process that has the lock (`requester`); if no process has
it, this process takes the lock for a moment (`keeper`).
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

from logstore.config import TopicConfig
from logstore.errors import StorageError
from logstore.io import layout
from logstore.io.checkpoint.answers import Answer
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.filesystem import prepare_beside
from logstore.io.lock import writer_of
from logstore.io.lock_record import state_of
from logstore.log.write.calls import Append, Asked, Creation, Submission
from logstore.log.write.staging import Stage
from logstore.store.context import StoreContext
from logstore.store.hand_in.keeper import Keeper, KeptStore
from logstore.store.hand_in.requester import Requester
from logstore.store.partition.shared_appends import HandInCalls
from logstore.store.publication.discarding import discard
from logstore.store.publication.publication import Publication, PublicationRequest

__all__ = ["Sharing"]


class Sharing:
    """Hands in requests of a store without its lock. Any thread may call it.

    Args:
        timeout_ms: how long an append waits for the owner, in milliseconds.
        stage: makes a stage.
        open_keeper: opens the store for writing, to carry out handed-in requests.
        takes_over: also a directory that another program has written to last.

    Attributes:
        hand_in: appends.
    """

    def __init__(
        self,
        context: StoreContext,
        publications: Publications,
        timeout_ms: int,
        stage: Callable[[], Stage],
        open_keeper: Callable[[], KeptStore],
        *,
        takes_over: bool,
    ) -> None:
        self._context = context
        self._timeout_ms = timeout_ms

        def open_own() -> KeptStore:
            if not takes_over:
                _check_own(context)
            return open_keeper()

        self._keeper = Keeper(context.root, open_own)
        self._requester = Requester(context.root, self._keeper.begin, publications)
        self._is_prepared = False
        self.hand_in = HandInCalls(
            self._append,
            self._begin_append,
            stage,
            functools.partial(discard, context.root),
            context.files.now_ms,
        )

    def _append(self, asked: Append) -> Answer:
        return self._ask(asked, self._timeout_ms)

    def _begin_append(self, asked: Append, since: float) -> Callable[[], Answer]:
        self._check()
        return self._requester.begin(asked, self._timeout_ms, since)

    def _ask(self, asked: Asked, timeout_ms: int | None) -> Answer:
        self._check()
        return self._requester.ask(asked, timeout_ms)

    def _check(self) -> None:
        """Raise unless the store is open, and files may be made in its directory."""
        context = self._context
        context.check_open()
        if not self._is_prepared:
            # The owner has to be able to write the answers.
            prepare_beside(context.root, context.store_config)
            self._is_prepared = True

    def create_topic(
        self, name: str, partitions: int, config: TopicConfig | None, exist_ok: bool
    ) -> None:
        """See `Store.create_topic`. Without settings, this store's defaults apply if it
        has any, else the owner's."""
        defaults = self._context.store_config.topic_defaults
        if config is None and defaults != TopicConfig():
            config = defaults
        new_id = uuid.uuid4().hex
        creation = Creation(name, partitions, config, exist_ok, new_id)
        self._ask(creation, self._timeout_ms)

    def submit(
        self, request: PublicationRequest, timeout_ms: int | None
    ) -> Publication:
        """Same as `Store.submit`, but the identity of a group is allowed, too."""
        self._check()
        published = self._keeper.publish(request, timeout_ms)
        is_owned = published is not None or self._requester.has_owner()
        if not is_owned and _is_free(self._context.root):
            # No other process has the lock: there is no wait, even if timeout_ms is 0.
            self._keeper.take()
            published = self._keeper.publish(request, timeout_ms)
        if published is not None:
            return published
        identity, sequence = request.identity, request.sequence
        answer = self._ask(Submission(*request[:6]), timeout_ms)
        return Publication(
            identity,
            sequence,
            answer.records,
            dict(answer.offsets),
            answer.is_new,
            answer.note,
            answer.metadata,
            answer.pinned,
        )

    def close(self) -> None:
        """Hand in no more, and give the lock back."""
        self._requester.close()
        self._keeper.stop()

    def after_fork(self) -> None:
        """Called in the child of a fork, which has separate requests and locks."""
        self._requester.after_fork()
        self._keeper.after_fork()


def _is_free(root: Directory) -> bool:
    """Whether no process has the lock of a store, takes it, or waits for it."""
    state = state_of(root)
    if state.holder is not None or state.is_changing or state.is_awaited:
        return False
    try:
        return writer_of(root) is None
    except OSError:
        return False  # what cannot be seen may be there


def _check_own(context: StoreContext) -> None:
    """Raise unless logstore was the last to write to the store: a process that hands in
    takes over no directory of another program."""
    ownership = Ownership(context.root)
    ownership.read_owner(lambda action: None)
    kafkas = layout.KAFKA_STORE_FILES - {layout.LOCK}
    is_used = any(
        name in kafkas or layout.parse_partition_directory(name) is not None
        for name in context.root.names()
    )
    if is_used and not ownership.is_own:
        raise StorageError(
            f"another program than logstore has written to {context.path} last; "
            f"nothing was written. Open it for writing once (logstore.open), which "
            f"takes it over",
            path=context.path,
            action="hand in to",
        )
