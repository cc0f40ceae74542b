"""The errors of consumer groups, with their facts as attributes."""

from __future__ import annotations

from logstore.errors import LogStoreError

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


class GroupError(LogStoreError):
    """A consumer group refuses a call.

    Attributes:
        group: the id of the group; "" for a consumer without one.
    """

    def __init__(self, message: str, *, group: str) -> None:
        super().__init__(message)
        self.group = group


class CommitFailedError(GroupError):
    """The consumer does not have a partition that it was to commit, the group commits
    in the other way, or another member does not let it. Nothing was committed."""


class FencedError(GroupError):
    """The group has gone on without this consumer, which did not poll for too long, or
    whose lock file was replaced. Nothing was committed; the next poll joins again."""


class GroupNotEmptyError(GroupError):
    """The group has members that live: its offsets are theirs. Nothing was changed.

    Attributes:
        pids: their processes.
    """

    def __init__(self, message: str, *, group: str, pids: tuple[int, ...]) -> None:
        super().__init__(message, group=group)
        self.pids = pids


class GroupNotFoundError(GroupError, LookupError):
    """There is no group of this id, it has committed nothing, or the part of the
    directory that would have it is not here: the message says which.

    Attributes:
        path: the directory.
    """

    def __init__(self, message: str, *, group: str, path: str) -> None:
        super().__init__(message, group=group)
        self.path = path


class InconsistentAssignorError(GroupError):
    """The members of the group use another assignor.

    Attributes:
        expected: the name of theirs.
    """

    def __init__(self, message: str, *, group: str, expected: str) -> None:
        super().__init__(message, group=group)
        self.expected = expected


class MemberIdInUseError(GroupError):
    """A static member of this name lives.

    Attributes:
        instance: the name.
        holder_pid: process id of that member.
    """

    def __init__(
        self, message: str, *, group: str, instance: str, holder_pid: int
    ) -> None:
        super().__init__(message, group=group)
        self.instance = instance
        self.holder_pid = holder_pid


class NoOffsetForPartitionError(GroupError):
    """The group has no committed offset that counts, and ``reset="error"``.

    Attributes:
        partition: ``topic-number``.
    """

    def __init__(self, message: str, *, group: str, partition: str) -> None:
        super().__init__(message, group=group)
        self.partition = partition


class OffsetMetadataTooLargeError(GroupError, ValueError):
    """The text beside a committed offset is too long; nothing was committed.

    Attributes:
        size, limit: bytes of UTF-8 that it has, and may have.
    """

    def __init__(self, message: str, *, group: str, size: int, limit: int) -> None:
        super().__init__(message, group=group)
        self.size = size
        self.limit = limit
