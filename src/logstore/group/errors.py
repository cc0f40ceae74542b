"""The errors of consumer groups, with their facts as attributes."""

from __future__ import annotations

from logstore.errors import LogStoreError, with_facts

__all__ = [
    "CommitFailedError",
    "FencedError",
    "GroupError",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "InconsistentAssignorError",
    "MemberIdInUseError",
    "NoOffsetForPartitionError",
    "OffsetMetadataTooLargeError",
]


@with_facts
class GroupError(LogStoreError):
    """A consumer group refuses a call.

    Attributes:
        group: the id of the group; "" for a consumer without one.
    """

    group: str


class CommitFailedError(GroupError):
    """The consumer does not have a partition that it was to commit, the group commits
    in the other way, or another member does not let it. Nothing was committed."""


class FencedError(GroupError):
    """The group has gone on without this consumer, which did not poll for too long, or
    whose lock file was replaced. Nothing was committed; the next poll joins again."""


@with_facts
class GroupNotEmptyError(GroupError):
    """The group has members that live: its offsets are theirs. Nothing was changed.

    Attributes:
        pids: their processes.
    """

    pids: tuple[int, ...]


@with_facts
class GroupNotFoundError(GroupError, LookupError):
    """There is no group of this id, it has committed nothing, or the part of the
    directory that would have it is not here: the message says which.

    Attributes:
        path: the directory.
    """

    path: str


@with_facts
class InconsistentAssignorError(GroupError):
    """The members of the group use another assignor.

    Attributes:
        expected: the name of theirs.
    """

    expected: str


@with_facts
class MemberIdInUseError(GroupError):
    """A static member of this name lives.

    Attributes:
        instance: the name.
        holder_pid: process id of that member.
    """

    instance: str
    holder_pid: int


@with_facts
class NoOffsetForPartitionError(GroupError):
    """The group has no committed offset that counts, and ``reset="error"``.

    Attributes:
        partition: ``topic-number``.
    """

    partition: str


@with_facts
class OffsetMetadataTooLargeError(GroupError, ValueError):
    """The text beside a committed offset is too long; nothing was committed.

    Attributes:
        size, limit: bytes of UTF-8 that it has, and may have.
    """

    size: int
    limit: int
