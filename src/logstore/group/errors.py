"""The errors of consumer groups under the name of 0.1: pickles have it until 0.2."""

from __future__ import annotations

from logstore.errors import (
    CommitFailedError,
    FencedError,
    GroupError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentAssignorError,
    MemberIdInUseError,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
)

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
