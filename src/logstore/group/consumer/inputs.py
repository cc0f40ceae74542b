"""The positions of a consumer for its transactions.

`begin_transaction` is called inside a call on the consumer, and so is everything that a
transaction calls here. The consumer keeps the `TransactionState`, and no reference to
the transaction: it is closed with its last reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from logstore._native.locks import logger
from logstore.errors import CommitFailedError, ConfigError, LogStoreError
from logstore.group.consumer.core import Core
from logstore.group.consumer.options import OffsetAndMetadata
from logstore.group.consumer.positions import commit_of
from logstore.group.consumer.transaction import (
    ConsumerTransaction,
    GroupPositions,
    Positioned,
    TransactionState,
)
from logstore.group.file.state import BY_TRANSACTIONS
from logstore.io.layout import TopicPartition

__all__ = ["ConsumerInputs", "begin_transaction"]


def begin_transaction(
    core: Core,
    call: Callable[[], AbstractContextManager[object]],
    timeout_ms: int | None,
) -> ConsumerTransaction:
    """Begin a transaction: see `Consumer.transaction` and `ConsumerTransaction`.

    Raises:
        CommitFailedError: the last one was left without an end; now it is aborted.
        ConfigError: the consumer cannot have transactions.
    """
    member = core.place.in_group()
    last = core.transaction_state
    if last is not None and last.is_used:
        last.ended = last.ended or "left"
        core.settle()
        raise CommitFailedError(
            "the last transaction of this consumer was neither committed nor "
            "aborted: it was aborted now, and the next poll delivers its records "
            "again. Begin another one",
            group=member.group.id,
        )
    if core.place.options.offsets is not None:
        raise ConfigError(
            "a consumer that stores its offsets elsewhere has no transactions: "
            "store the results there, too",
            name="offsets",
        )
    state = TransactionState()
    made = ConsumerTransaction(
        core.place.store,
        GroupPositions(core.place.store, member.group.id),
        member.group.slots,
        ConsumerInputs(core),
        call,
        state,
        timeout_ms,
    )
    core.transaction_state = state
    return made


class ConsumerInputs:
    """Implements `logstore.group.consumer.transaction.Inputs`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def begin_commit(self) -> dict[TopicPartition, tuple[Positioned, int | None]]:
        """Check that the consumer may commit; its positions: see `Inputs`."""
        member = self._core.place.in_group()
        if self._core.partitions.given_up:
            names = ", ".join(map(str, sorted(self._core.partitions.given_up)))
            raise CommitFailedError(
                f"partitions {names} were reassigned, or their logs were "
                "truncated, after their records were delivered. Nothing was "
                "published; commit in `on_revoke`, or read again",
                group=member.group.id,
            )
        readers = [r for r in self._core.readers.values() if r.position is not None]
        if self._core.place.wanted is None:
            self._core.place.have_alone(
                [r.key for r in readers if r.key not in member.holder.held]
            )
        member.begin_transaction([reader.key for reader in readers])
        return {
            reader.key: (
                Positioned(
                    reader.position or 0,
                    reader.topic_id,
                    self._core.place.positions.proof_of(reader, reader.position or 0),
                ),
                reader.committed,
            )
            for reader in readers
        }

    def published(self, positions: Mapping[TopicPartition, Positioned]) -> None:
        """Note the positions that were published: see `Inputs`."""
        member = self._core.place.in_group()
        for key, position in positions.items():
            self._core.readers[key].set_committed(position.offset)
        for reader in self._core.readers.values():
            reader.has_delivered = False
        # Only to be looked at: the publication is what counts.
        now_ms = self._core.place.root.files.now_ms()
        commits = [
            commit_of(
                member.group.file.group,
                key,
                OffsetAndMetadata(published_position.offset),
                published_position.topic_id,
                now_ms,
                published_position.proof,
            )
            for key, published_position in positions.items()
        ]
        try:
            member.commit(commits, durable=False, way=BY_TRANSACTIONS)
        except LogStoreError as error:
            logger.warning(
                "group %s: its positions are published, but its file could not "
                "be updated: %s",
                member.group.id[:100],
                error,
            )

    def settle(self) -> None:
        self._core.settle()
