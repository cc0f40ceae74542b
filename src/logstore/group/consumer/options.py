"""The settings of a consumer, checked, and the values that it takes and gives."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from logstore.config import check_int
from logstore.errors import ConfigError, OffsetMetadataTooLargeError
from logstore.group.member.assignors import Assignor, assignor_of
from logstore.group.member.next_generation import MemberSubscription
from logstore.io import layout
from logstore.io.layout import OFFSET_MAX, TopicPartition
from logstore.log.read.corruption import DamagePolicy, OnCorruption
from logstore.record.arguments import (
    ISOLATIONS,
    as_integer,
    as_items,
    check_choice,
)

__all__ = [
    "Callbacks",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetStore",
    "Options",
    "as_commits",
    "as_partition",
    "as_partitions",
    "as_subscription",
]

METADATA_BYTES_MAX: Final = 4096
_INTERVAL_MS_MAX: Final = (1 << 31) - 1
_RESETS: Final = ("earliest", "latest", "error")
_ON_STUCK: Final = ("report", "evict")

# Called with the partitions that were assigned, will be given up, or are lost.
Callback: TypeAlias = "Callable[[Sequence[TopicPartition]], object]"
Reset: TypeAlias = "str | datetime.timedelta"


class Callbacks(NamedTuple):
    """The callbacks of a consumer; None: none.

    Attributes:
        assign: with partitions that it has got, before their first record.
        revoke: with partitions that it is to give up, before others may have them.
        lost: with partitions that others have already; None: `revoke` is called.
    """

    assign: Callback | None = None
    revoke: Callback | None = None
    lost: Callback | None = None


class OffsetAndMetadata(NamedTuple):
    """A committed offset.

    Attributes:
        offset: the next one to be read.
        metadata: any text, at most 4,096 bytes of UTF-8.
        leader_epoch: of the record before it; -1: unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The result of `Consumer.offsets_for_times`: the first record since a time."""

    offset: int
    timestamp: int


class OffsetStore(Protocol):
    """Keeps committed offsets in another place than the group's file: a database, for
    example, in the same transaction as the results."""

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of some partitions, if there are any."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, durable: bool
    ) -> None:
        """Keep offsets. They are durable when it returns, if `durable`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `Consumer` that are no topics and no callbacks.

    Raises:
        ConfigError, TypeError: one cannot be used.
    """

    group: str | None
    assignor: Assignor
    reset: Reset
    offsets: OffsetStore | None
    auto_commit_ms: int | None
    isolation: str
    durable_only: bool
    max_poll_records: int
    max_poll_interval_ms: int
    on_stuck: str
    instance: str | None
    on_corruption: OnCorruption = "raise"

    @classmethod
    def of(cls, **options: Any) -> Options:
        """Checked; `assignor` may be a name."""
        return cls(**{**options, "assignor": assignor_of(options["assignor"])})

    def __post_init__(self) -> None:
        if self.group is not None:
            layout.group_file(self.group)
        if isinstance(self.reset, datetime.timedelta):
            if self.reset < datetime.timedelta(0):
                raise _bad("reset", self.reset, "a time span that is not negative")
        elif self.reset not in _RESETS:
            raise _bad("reset", self.reset, f"{', '.join(_RESETS)} or a timedelta")
        check_choice("isolation", self.isolation, ISOLATIONS)
        check_choice("on_stuck", self.on_stuck, _ON_STUCK)
        DamagePolicy(self.on_corruption)
        check_int("max_poll_records", self.max_poll_records, 1, _INTERVAL_MS_MAX)
        check_int(
            "max_poll_interval_ms", self.max_poll_interval_ms, 10, _INTERVAL_MS_MAX
        )
        if self.auto_commit_ms is not None:
            check_int("auto_commit_ms", self.auto_commit_ms, 0, _INTERVAL_MS_MAX)
            if self.group is None:
                raise _bad("auto_commit_ms", self.auto_commit_ms, "with a group")
        if self.offsets is not None and self.group is None:
            raise _bad("offsets", self.offsets, "with a group")
        instance = self.instance
        if instance is not None:
            value: object = instance
            if not isinstance(value, str) or not 1 <= len(instance) <= 255:
                raise _bad("instance", instance, "1 to 255 characters (str)")
            if "\0" in instance or self.group is None:
                raise _bad("instance", instance, "text without NUL, with a group")
            as_text("instance", instance)


def _bad(name: str, value: object, rule: str) -> ConfigError:
    return ConfigError(f"{name}={value!r:.100} is not {rule}", name=name, value=value)


def as_text(name: str, text: str) -> bytes:
    """The UTF-8 of a text.

    Raises:
        ConfigError: it has half of a surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _bad(name, text, "text that UTF-8 can encode") from None


def as_subscription(topics: Any, pattern: Any) -> MemberSubscription:
    """The topics that a consumer asks for.

    Raises:
        ConfigError: a name is not a name of a topic, or the pattern is not a regular
            expression.
        TypeError: `topics` is not a sequence of names.
    """
    names = tuple(dict.fromkeys(as_items("topics", topics, of="names of topics")))
    for name in names:
        layout.check_topic_name(name)
    if pattern is not None:
        if not isinstance(pattern, str):
            raise TypeError(f"pattern is {type(pattern).__name__}, not str")
        try:
            re.compile(pattern)
        except re.error as error:
            raise _bad("pattern", pattern, f"a regular expression: {error}") from None
        as_text("pattern", pattern)
    return MemberSubscription(names, pattern)


def as_partition(value: Any) -> TopicPartition:
    """A partition from a pair.

    Raises:
        TypeError: it is not a pair of a name and a number.
    """
    if type(value) is TopicPartition and (type(value[0]), type(value[1])) == (str, int):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return TopicPartition(
            value[0], as_integer("partition", value[1], "the number of a partition")
        )
    raise TypeError(f"{value!r:.100} is not a TopicPartition")


def as_partitions(values: Iterable[Any]) -> list[TopicPartition]:
    """Partitions, each once. Raises: TypeError."""
    items = as_items("partitions", values, of="TopicPartition")
    return list(dict.fromkeys(as_partition(value) for value in items))


def as_commits(
    group: str, offsets: Mapping[Any, Any]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to be committed; each an int or an `OffsetAndMetadata`.

    Raises:
        OffsetMetadataTooLargeError: a text is too long.
        ConfigError: an offset is negative or too large.
        TypeError: something is of another type.
    """
    if type(offsets) is not dict and not isinstance(offsets, Mapping):
        raise TypeError(f"offsets is {type(offsets).__name__}, not a mapping")
    commits = {}
    for key, value in offsets.items():
        if type(value) is int and 0 <= value <= OFFSET_MAX:
            # Most are of this kind: the calls of Python for it are few.
            partition = key
            if not (
                type(key) is TopicPartition
                and type(key[0]) is str
                and type(key[1]) is int
            ):
                partition = as_partition(key)
            commits[partition] = tuple.__new__(OffsetAndMetadata, (value, "", -1))
            continue
        parts = value if isinstance(value, tuple) else (value,)
        if not 1 <= len(parts) <= 3 or not isinstance(
            parts[1] if parts[1:] else "", str
        ):
            raise TypeError(
                f"{value!r:.100} is neither an offset nor an OffsetAndMetadata"
            )
        number = as_integer("offset", parts[0], "an offset (int)")
        if not 0 <= number <= OFFSET_MAX:
            raise _bad("offset", number, f"in [0, {OFFSET_MAX}]")
        commit = OffsetAndMetadata(number, *parts[1:])
        check_int("leader_epoch", commit.leader_epoch, -1, _INTERVAL_MS_MAX)
        size = len(as_text("metadata", commit.metadata))
        if size > METADATA_BYTES_MAX:
            raise OffsetMetadataTooLargeError(
                f"the metadata of {as_partition(key)} has {size} bytes, more than "
                f"{METADATA_BYTES_MAX}; nothing was committed",
                group=group,
                size=size,
                limit=METADATA_BYTES_MAX,
            )
        commits[as_partition(key)] = commit
    return commits
