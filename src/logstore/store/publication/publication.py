"""Publications as values: requests and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from logstore.errors import ConfigError, LogStoreError
from logstore.io.checkpoint.ledger import PROCESS_IDENTITY, LedgerEntry
from logstore.io.checkpoint.state_fields import METADATA_BYTES_MAX
from logstore.io.layout import TopicPartition
from logstore.log.write.staged_files import (
    Staged,
    StagedLog,
    check_identity,
    check_sequence,
    logs_of,
)

__all__ = [
    "GROUP_IDENTITY",
    "Outcome",
    "Publication",
    "PublicationRequest",
    "check_is_named",
    "check_own_identity",
    "own_request",
    "request_of",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """The result of a publication.

    Attributes:
        identity, sequence: as given to `Store.publish`.
        records: how many, in all partitions.
        offsets: the offsets of the records, by (topic, partition); empty if they were
            published before.
        is_new: False if it was published before, and nothing was done.
        note: as given to `Store.publish`.
        metadata: the bytes that were committed with it.
        pinned: whether its identity is remembered permanently.
    """

    identity: str
    sequence: int
    records: int
    offsets: Mapping[TopicPartition, range]
    is_new: bool = True
    note: str = ""
    metadata: bytes = b""
    pinned: bool = False

    @classmethod
    def known(
        cls,
        identity: str,
        entry: LedgerEntry,
        offsets: Mapping[TopicPartition, range] | None = None,
        is_new: bool = False,
    ) -> Publication:
        """The last publication of an identity, made of its remembered entry."""
        return cls(
            identity,
            entry.sequence,
            entry.records,
            {} if offsets is None else offsets,
            is_new,
            entry.note,
            entry.metadata,
            entry.is_pinned,
        )


def _always() -> bool:
    return True


class PublicationRequest(NamedTuple):
    """Records to publish together under one identity.

    Attributes:
        logs: the staged records; the records of a partition are in order.
        identity, sequence, note, metadata: as in `Store.publish`; checked.
        pinned: whether to pin the identity; None: as before.
        contents: by name, the contents of staged logs that are no files: a process has
            handed them in.
        partitions: how many partitions topics had when the records' partitions were
            chosen.
        expected_offset: of the first record; None: any.
        is_wanted: returns whether the process that handed it in is still alive.
    """

    logs: tuple[StagedLog, ...]
    identity: str
    sequence: int
    note: str = ""
    metadata: bytes = b""
    pinned: bool | None = None
    contents: Mapping[str, bytes] = MappingProxyType({})
    partitions: Mapping[str, int] = MappingProxyType({})
    expected_offset: int | None = None
    is_wanted: Callable[[], bool] = _always

    @property
    def is_call(self) -> bool:
        """Whether a process has handed it in by its file of requests."""
        return self.identity.startswith(PROCESS_IDENTITY)

    @property
    def records(self) -> int:
        """How many there are."""
        return sum([log.records for log in self.logs])

    @property
    def is_remembered(self) -> bool:
        """Whether there is anything to commit, be it without a record."""
        has_facts = bool(self.metadata) or self.pinned is not None
        return bool(self.logs) or (bool(self.identity) and has_facts)

    def entry(self, before: LedgerEntry | None, now_ms: int) -> LedgerEntry:
        """The entry to remember for this request, in place of the entry `before`."""
        is_pinned = self.pinned
        if is_pinned is None:
            is_pinned = before is not None and before.is_pinned
        return LedgerEntry(
            self.sequence, self.records, now_ms, self.note, is_pinned, self.metadata
        )

    def repeated(self, before: LedgerEntry) -> LedgerEntry:
        """The same if it was published before: its note and its pin may be others, and
        what was committed with its records stays."""
        is_pinned = before.is_pinned if self.pinned is None else self.pinned
        return before._replace(note=self.note, is_pinned=is_pinned)


# Prefix of the identities of consumer groups.
GROUP_IDENTITY: Final = "group:"


def check_own_identity(identity: object) -> None:
    """Raise `ConfigError` if an identity is not for callers: their publications would
    replace logstore's own publications."""
    # Anything but a text is refused later.
    reserved = GROUP_IDENTITY, PROCESS_IDENTITY
    if isinstance(identity, str) and identity.startswith(reserved):
        raise ConfigError(
            f"identity {identity[:100]!r} is reserved: identities that begin with "
            f"{GROUP_IDENTITY!r} are for the positions of consumer groups, and "
            f"identities that begin with {PROCESS_IDENTITY!r} for shared appends. "
            f"Nothing was done; use another identity",
            name="identity",
            value=identity,
        )


# The outcome of one request among several.
Outcome: TypeAlias = Publication | LogStoreError


def request_of(
    logs: list[StagedLog],
    identity: str,
    sequence: int,
    note: str = "",
    metadata: bytes = b"",
    pinned: bool | None = None,
) -> PublicationRequest:
    """A request of a caller, checked; `logs` are of `logs_of`.

    Raises:
        ConfigError: an argument is invalid; nothing was done.
    """
    check_sequence(sequence)
    check_identity(identity)
    check_identity(note, "note")
    value: object = metadata
    if not isinstance(value, bytes) or len(value) > METADATA_BYTES_MAX:
        what = f"{len(value)} bytes" if isinstance(value, bytes) else type(value)
        raise ConfigError(
            f"metadata is {what}, not at most {METADATA_BYTES_MAX} bytes; nothing was "
            f"done",
            name="metadata",
        )
    if not (pinned is None or pinned is True or pinned is False):
        raise ConfigError(
            f"pinned={pinned!r} is not True, False or None; nothing was done",
            name="pinned",
            value=pinned,
        )
    if not identity and (metadata or pinned is not None):
        raise ConfigError(
            "metadata and pins belong to an identity, and none was given; nothing was "
            "done",
            name="identity",
            value=identity,
        )
    return PublicationRequest(tuple(logs), identity, sequence, note, metadata, pinned)


def check_is_named(request: PublicationRequest) -> None:
    """Raise `ConfigError` unless a request has an identity to look it up by."""
    if not request.identity:
        raise ConfigError(
            "a publication through another process needs an identity, to find "
            "out whether it was published; nothing was done",
            name="identity",
            value=request.identity,
        )


def own_request(
    staged: Staged | Iterable[Staged],
    identity: str,
    sequence: int,
    note: str,
    metadata: bytes,
    pinned: bool | None,
) -> PublicationRequest:
    """Same as `request_of`, but the identity must be one for callers."""
    check_own_identity(identity)
    return request_of(logs_of(staged), identity, sequence, note, metadata, pinned)
