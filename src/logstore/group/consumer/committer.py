"""Commits the positions of a consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from logstore._native.locks import logger
from logstore.errors import CommitFailedError, FencedError
from logstore.group.consumer.group_place import GroupPlace
from logstore.group.consumer.log_reader import OTHER_LOG
from logstore.group.consumer.options import OffsetAndMetadata, OffsetStore
from logstore.group.consumer.positions import commit_of
from logstore.group.consumer.reading import PartitionReader
from logstore.group.file.state import BY_COMMITS
from logstore.group.member.membership import Membership
from logstore.io.layout import TopicPartition

__all__ = ["Committer"]

_Commits: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class Committer:
    """The commits of one consumer; for one thread at a time.

    When `commit` returns, the reader of each partition knows what was committed. What
    may not be durable yet is by the next durable commit, also by one of nothing.

    Args:
        readers: of the partitions that the consumer has.
    """

    def __init__(
        self, place: GroupPlace, readers: Mapping[TopicPartition, PartitionReader]
    ) -> None:
        self._place = place
        self._readers = readers
        self._files = place.root.files
        self._committed_at = self._files.monotonic()
        # Commits that were made, or may be, and may not be durable.
        self._unsynced: _Commits = {}

    def moved(self, keys: Iterable[TopicPartition]) -> _Commits:
        """The positions that differ from the committed ones."""
        commits = {}
        for key in keys:
            reader = self._readers.get(key)
            if reader is None or reader.position is None:
                continue
            if reader.position != reader.committed or reader.is_disproved:
                commits[key] = OffsetAndMetadata(reader.position)
        return commits

    def commit(self, offsets: _Commits, *, durable: bool) -> None:
        """Commit offsets of partitions that this consumer has.

        Raises: as `Membership.commit`.
        """
        if len(offsets) == 1 and self._commit_at_once(offsets, durable):
            return
        member = self._place.in_group()
        elsewhere = self._place.options.offsets
        if elsewhere is not None:
            self._commit_elsewhere(elsewhere, member, offsets, durable)
        elif offsets:
            self._commit_to_file(member, offsets, durable)
        elif durable and self._unsynced:
            member.group.sync()
            self._unsynced = {}
        for key, commit in offsets.items():
            reader = self._readers.get(key)
            if reader is not None:
                reader.set_committed(commit.offset)
                reader.has_delivered = False

    def _commit_at_once(self, offsets: _Commits, durable: bool) -> bool:
        """Commit the offset of one partition in the group's file, as nearly always,
        with less work, if nothing is in the way. False: nothing was done; `commit` does
        it step by step, or finds out why it cannot.

        Raises: as `commit`.
        """
        place = self._place
        member = place.member
        if (
            member is None
            # It may have to be taken first.
            or place.wanted is None
            or place.options.offsets is not None
        ):
            return False
        ((key, (offset, metadata, leader_epoch)),) = offsets.items()
        reader, group = self._readers.get(key), member.group
        file = group.file
        state = file.state
        if (
            reader is None
            or metadata
            or leader_epoch != -1
            or state.way != BY_COMMITS
            or not member.holder.holds(key, state)
        ):
            return False
        try:
            proof = reader.log.proof_of(offset, reader.position)
        except OTHER_LOG:
            return False
        self._unsynced = {**self._unsynced, **offsets}
        if not file.commit_at_once(
            group.slots, key, offset, reader.topic_id, proof, durable=durable
        ):
            return False
        if durable:
            self._unsynced = {}
        reader.set_committed(offset)
        reader.has_delivered = False
        return True

    def _commit_elsewhere(
        self, store: OffsetStore, member: Membership, offsets: _Commits, durable: bool
    ) -> None:
        """A store of offsets has no way to make an earlier commit durable: it is given
        again, for the partitions that the consumer still has."""
        if durable:
            earlier = self._unsynced.items()
            again = {key: commit for key, commit in earlier if key in self._readers}
            offsets = {**again, **offsets}
        if offsets:
            member.check_holds_now(offsets)
            store.commit(offsets, durable=durable)
            self._unsynced = {} if durable else {**self._unsynced, **offsets}

    def _commit_to_file(
        self, member: Membership, offsets: _Commits, durable: bool
    ) -> None:
        place, readers, positions = self._place, self._readers, self._place.positions
        file = member.group.file
        if not file.state.way and positions.is_published():
            raise CommitFailedError(
                f"group {member.group.id!r:.100} commits by transactions. Nothing was "
                f"committed",
                group=member.group.id,
            )
        if place.wanted is None:
            # Of a subscription, the next look at the group drops such a partition.
            positions.check_same(readers[key] for key in offsets if key in readers)
            place.have_alone([key for key in offsets if key not in member.holder.held])
        now_ms = self._files.now_ms()
        commits = []
        for key, commit in offsets.items():
            reader = readers.get(key) or positions.reader(key)
            proof = positions.proof_of(reader, commit.offset)
            commits.append(
                commit_of(file.group, key, commit, reader.topic_id, now_ms, proof)
            )
        self._unsynced = {**self._unsynced, **offsets}
        try:
            member.commit(commits, durable=durable)
        except FencedError:
            place.check_at = 0.0  # the next call joins again
            raise
        if durable:
            self._unsynced = {}

    def commit_given_up(self, keys: Iterable[TopicPartition]) -> None:
        """Commit the positions of partitions that are given up, durably, if the
        consumer commits by itself."""
        if self._place.options.auto_commit_ms is not None:
            self.commit(self.moved(keys), durable=True)

    def auto_commit(self) -> None:
        """Commit all positions, if the consumer commits by itself and it is time.

        Raises:
            StorageError: the system refuses.
        """
        every_ms = self._place.options.auto_commit_ms
        if every_ms is None:
            return
        now = self._files.monotonic()
        if now - self._committed_at < every_ms / 1000:
            return
        self._committed_at = now
        offsets = self.moved(self._readers)
        if not offsets:
            return
        try:
            self.commit(offsets, durable=False)
        except (CommitFailedError, FencedError) as error:
            logger.warning("cannot commit by itself: %s", error)

    def committed(self, key: TopicPartition) -> OffsetAndMetadata | None:
        """The committed offset of a partition, of any member."""
        self._place.in_group()
        self._place.refresh()
        return self._place.positions.committed([key]).get(key)
