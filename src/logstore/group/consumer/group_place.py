"""The place of a consumer in its group, and the positions at which it begins."""

from __future__ import annotations

from collections.abc import Sequence

from logstore.errors import ConfigError
from logstore.group.consumer.options import Options
from logstore.group.consumer.positions import Positions
from logstore.group.member.membership import Membership
from logstore.group.member.next_generation import MemberSubscription
from logstore.group.member.open_group import OpenGroup
from logstore.io import layout
from logstore.io.layout import TopicPartition
from logstore.store.package_access import files_directory, root_of, topics_now
from logstore.store.store import Store

__all__ = ["GroupPlace"]


class GroupPlace:
    """The place of one consumer in its group.

    Without `member` the positions know no commits; with it they read the file of its
    group. So an interrupted `join` leaves both or neither.

    Attributes:
        store: that the consumer reads.
        options: of the consumer.
        root: the directory of the store.
        member: None: there is no group, or it was not joined yet.
        positions: where the consumer begins to read.
        wanted: the topics that it has subscribed to; None: it has not.
        check_at: when the group is looked at next, monotonic seconds; 0: in the next
            call.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self.store = store
        self.options = options
        # A consumer without a group makes no files.
        self.root = root_of(store) if options.group is None else files_directory(store)
        self.member: Membership | None = None
        self.positions = Positions(store, options, None)
        self.wanted: MemberSubscription | None = None
        self.check_at = 0.0

    def join(self) -> Membership | None:
        """The member, whose files are opened at the first call; None: the consumer has
        no group.

        Raises:
            StorageError: the system refuses.
        """
        options, store = self.options, self.store
        if self.member is None and options.group is not None:
            name = layout.group_file(options.group)
            group = OpenGroup(files_directory(store), name, options.group)
            member = Membership(
                group,
                lambda: topics_now(store),
                options.assignor,
                instance=options.instance,
                interval_ms=options.max_poll_interval_ms,
                evicts=options.on_stuck == "evict",
            )
            positions = Positions(store, options, group.file)
            # Together, with no call in between that could be interrupted: without the
            # group's file a consumer knows no committed offsets.
            self.member, self.positions = member, positions
        return self.member

    def in_group(self) -> Membership:
        """The member: see `join`.

        Raises:
            ConfigError: the consumer has no group.
        """
        member = self.join()
        if member is None:
            raise ConfigError(
                "this consumer has no group, and so it cannot commit", name="group"
            )
        return member

    def have_alone(self, keys: Sequence[TopicPartition]) -> None:
        """Take partitions in the group without a subscription, if they are free."""
        member = self.join()
        if member is not None and keys:
            topics = topics_now(self.store, {key.topic for key in keys})
            member.take_alone([key for key in keys if key.topic in topics], topics)

    def refresh(self) -> None:
        """Read what others have committed."""
        if self.member is not None and self.options.offsets is None:
            self.member.group.file.refresh()
