"""The partitions that a consumer has: gets them, and gives them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import TopicNotFoundError
from logstore.group.consumer.committer import Committer
from logstore.group.consumer.group_place import GroupPlace
from logstore.group.consumer.options import Callback, Callbacks
from logstore.group.consumer.reading import PartitionReader
from logstore.group.member.next_generation import MemberSubscription
from logstore.io.layout import TopicPartition
from logstore.store.package_access import topics_now

__all__ = ["AssignedPartitions"]

# The group is looked at once in this time while records come.
_CHECK_S: Final = 0.1


class AssignedPartitions:
    """The partitions of one consumer; for one thread at a time.

    A partition that the group assigns has a reader, and `callbacks.assign` was called
    for it, before its first record is delivered. It has one until `callbacks.revoke`
    has returned, and no other member has the partition before that.

    Attributes:
        readers: of the partitions, in the order in which they came.
        callbacks: of the subscription.
        given_up: partitions that were given up with records that were not committed.

    Args:
        readers: empty; they come and go here.
        calls: of the user that are under way: a callback may make others.
    """

    def __init__(
        self,
        place: GroupPlace,
        committer: Committer,
        readers: dict[TopicPartition, PartitionReader],
        calls: native.Calls,
    ) -> None:
        self.readers = readers
        self.callbacks = Callbacks()
        self.given_up: set[TopicPartition] = set()
        self._place = place
        self._committer = committer
        self._calls = calls
        # Topics that were looked for: a missing one is logged once.
        self._unknown: set[str] = set()
        # Partitions for which the callback was called, and partitions for which it
        # has not returned: it is called again, before their first record.
        self._told: set[TopicPartition] = set()
        self._untold: set[TopicPartition] = set()

    def coordinate(self, *, at_once: bool = False) -> bool:
        """Look at the group, if it is time: give up partitions, then take others.
        Returns whether anything was given up or taken."""
        place = self._place
        if place.wanted is None:
            if place.member is not None and place.member.group.slots.slot is not None:
                place.member.group.slots.polled()
            return False
        now = place.root.files.monotonic()
        if now < place.check_at and not at_once:
            return False
        place.check_at = 0.0  # again in the next call, if this one fails
        member = place.join()
        if member is None:
            is_changed = self._have_all(place.wanted)
            place.check_at = now + _CHECK_S
            return is_changed
        member.subscribe(place.wanted)
        member.look()
        held = member.holder.held
        # Whatever fails from here on: no record of those is delivered any more.
        gone = [key for key in self.readers if key not in held]
        self._lose(gone)
        member.check()
        revoked, lost = member.surplus()
        self._lose(lost)
        self.give_up(revoked)
        member.take()
        # Also partitions that a failed call has taken before it came here.
        taken = [key for key in held if key not in self.readers]
        is_told = self._get(taken)
        self._warn_unknown(place.wanted)
        place.check_at = now + _CHECK_S
        return bool(gone or lost or revoked or taken or is_told)

    def _have_all(self, wanted: MemberSubscription) -> bool:
        """Take all partitions of the topics, without a group."""
        topics = topics_now(self._place.store)
        keys = {
            TopicPartition(name, number)
            for name in sorted(wanted.of(topics))
            for number in topics[name][1]
        }
        ids = {key: topics[key.topic][0] for key in keys}
        lost = [
            key
            for key, reader in self.readers.items()
            if ids.get(key) != reader.topic_id
        ]
        self._lose(lost)
        is_told = self._get(sorted(keys - self.readers.keys()))
        self._warn_unknown(wanted)
        return bool(lost or is_told)

    def _warn_unknown(self, wanted: MemberSubscription) -> None:
        unknown = {name for name in wanted.topics if name not in self._unknown}
        if not unknown:
            return
        store = self._place.store
        unknown -= set(topics_now(store, wanted.topics))
        for name in sorted(unknown):
            logger.warning(
                "%s has no topic %s yet; the consumer waits for it", store.path, name
            )
        # Each is looked for once: one that is deleted later is not news.
        self._unknown.update(wanted.topics)

    def _get(self, keys: Sequence[TopicPartition]) -> bool:
        """Take partitions. Returns whether the callback was called."""
        for key in keys:
            try:
                self.readers[key] = self._place.positions.reader(key)
            except TopicNotFoundError:
                continue  # deleted just now; the next look at the group sees it
        news = [
            key for key in self.readers if key not in self._told or key in self._untold
        ]
        if news:
            self._untold.update(news)
            self._told.update(news)
            self.call(self.callbacks.assign, news)
            self._untold.clear()
        return bool(news)

    def give_up(self, keys: Sequence[TopicPartition], *, commits: bool = True) -> None:
        """Call the callback, commit, and then give partitions up.

        Args:
            commits: whether to commit, if the consumer does it by itself.
        """
        if not keys:
            return
        try:
            told = [key for key in keys if key in self._told]
            self.call(self.callbacks.revoke, told)
            if commits:
                self._committer.commit_given_up(keys)
        finally:
            self._drop(keys)

    def _lose(self, keys: Sequence[TopicPartition]) -> None:
        if not keys:
            return
        told = [key for key in keys if key in self._told]
        self._drop(keys)
        self.call(self.callbacks.lost or self.callbacks.revoke, told)

    def _drop(self, keys: Sequence[TopicPartition]) -> None:
        self._told.difference_update(keys)
        self._untold.difference_update(keys)
        for key in keys:
            reader = self.readers.get(key)
            if reader is None:
                continue
            # In this order: records read ahead are not delivered, also after an
            # interrupt.
            reader.back_to(reader.position)
            if reader.has_delivered:
                self.given_up.add(key)
            del self.readers[key]
        if self._place.member is not None:
            self._place.member.holder.release(keys)

    def call(self, callback: Callback | None, keys: Sequence[TopicPartition]) -> None:
        """Run code of the user, which may call the consumer."""
        if callback is None or not keys:
            return
        self._calls.is_open = True
        try:
            callback(list(keys))
        finally:
            self._calls.is_open = False

    def assign(self, keys: Sequence[TopicPartition]) -> None:
        """Take these partitions, and no others, without a subscription."""
        self.unsubscribe()
        readers = {key: self._place.positions.reader(key) for key in keys}
        self._place.have_alone(keys)
        # The positions come from the file, which was read with the mutex.
        self.readers.update(readers)

    def unsubscribe(self, *, commits: bool = True) -> None:
        """Give up all partitions, and leave the group."""
        place = self._place
        try:
            # Partitions given by `assign` are not passed to the callback.
            self.give_up(list(self.readers), commits=commits)
        finally:
            place.wanted = None
            place.check_at = 0.0
            if place.member is not None:
                place.member.leave()
