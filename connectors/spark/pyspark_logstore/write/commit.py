"""`Commit`: publishes what the tasks of a batch have staged, once."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from logstore import Store
from logstore.errors import PublicationConflictError
from logstore.types import Publication, Staged
from pyspark_logstore.write.memory import Memory, Turn

__all__ = ["Commit", "RewoundError"]

logger = logging.getLogger("logstore.spark")

UNNAMED_IDENTITY: Final = "spark-write:"
# Staged files of this age no longer belong to a running batch.
STAGED_AGE_MS_MAX: Final = 7 * 24 * 3600 * 1000


class RewoundError(PublicationConflictError):
    """The sink has published a later batch of the query, or a later version."""

    def __init__(self, error: PublicationConflictError) -> None:
        super().__init__(error.identity, error.sequence, error.last)
        self.args = (
            f"{error}. The checkpoint was set back, or copied from another "
            "query's; or txnVersion is an old one. A new checkpoint, or another "
            "txnAppId, writes these rows; allowRewind=true skips rows up to the "
            "last published batch",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The staged rows of a batch, under one name.

    Attributes:
        staged: of the tasks, in their order.
        bytes: of the keys and values.
        identity: of the query or the application; "" for a batch write without
            txnAppId: a repetition cannot be recognised.
        sequence: the number of the batch.
        run_id: of the query; None for a batch write: the application guarantees that a
            repetition has the same rows.
        allow_rewind: leave out batches before the last published one.
    """

    staged: Sequence[Staged]
    bytes: int
    identity: str
    sequence: int
    run_id: str | None
    allow_rewind: bool

    @property
    def has_rows(self) -> bool:
        """Whether anything is staged."""
        return any(one.logs for one in self.staged)

    @property
    def records(self) -> int:
        """How many rows are staged."""
        return sum(one.records for one in self.staged)

    def publish(self, store: Store) -> None:
        """Publish to a store that is open for writing.

        Raises:
            RewoundError: a later batch was published.
            CopiedCheckpointError: another query has published under the identity.
        """
        # No other process publishes while the store is open for writing.
        last = store.last_publication(self.identity) if self.identity else None
        note = self._note_after(last)
        self._published_by(
            store,
            lambda: store.publish(
                self.staged, identity=self.identity, sequence=self.sequence, note=note
            ),
        )

    def hand_in(self, store: Store, wait_ms: int) -> None:
        """Have it published by the process that has the store. Raises: as `publish`,
        and as `Store.submit`.

        Args:
            wait_ms: how long to wait for that process, in milliseconds.
        """
        # A request needs a name, by which it is published once if owners change.
        name = self.identity or f"{UNNAMED_IDENTITY}{uuid.uuid4()}"
        last = store.last_publication(name)
        note = self._note_after(last)
        published = self._published_by(
            store,
            lambda: store.submit(
                self.staged,
                identity=name,
                sequence=self.sequence,
                note=note,
                timeout_ms=wait_ms,
            ),
        )
        was_known = last is not None and last.sequence == self.sequence
        if published is not None and not published.is_new and not was_known:
            # Either an owner that has died carried out this request; or a query on a
            # copy of the checkpoint was faster. Its note is replaced by this one, so
            # only the number of rows can be compared.
            self._note_after(dataclasses.replace(published, note=""))

    def _note_after(self, last: Publication | None) -> str:
        """Note to store with the rows. Raises: CopiedCheckpointError."""
        if not self.identity:
            return Memory((), self.bytes).to_note()
        turn = Turn(self.identity, self.sequence, self.records, self.bytes, self.run_id)
        return turn.check(last, allow_rewind=self.allow_rewind).to_note()

    def _published_by(
        self, store: Store, publish: Callable[[], Publication]
    ) -> Publication | None:
        """Publish, and remove leftovers of earlier batches; None: left out."""
        published = None
        try:
            published = publish()
        except PublicationConflictError as error:
            if not self.allow_rewind:
                raise RewoundError(error) from error
            logger.warning("allowRewind: the staged rows are skipped: %s", error)
            store.discard_staged(self.staged)
        store.discard_staged(
            identity=self.identity,
            before=self.sequence,
            older_than_ms=STAGED_AGE_MS_MAX,
        )
        return published
