"""`groups list`, `groups describe`: groups of consumers, members, offsets, lag."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import logstore
from logstore.cli import options
from logstore.cli.app import command
from logstore.cli.output import Printer
from logstore.cli.paths import check_store
from logstore.cli.schema import line, timestamp_value
from logstore.cli.tables import Column, names_of, print_table, sorted_by
from logstore.cli.text import counted, grouped

LIST_EXAMPLES: Final = [
    "groups list data",
    "groups list data --topic 'orders*' --sort -lag",
    "groups list data --format jsonl",
]
DESCRIBE_EXAMPLES: Final = [
    "groups describe data",
    "groups describe data --group billing",
    "groups describe data --topic 'orders*' --format jsonl",
]
_PATHS: Final = (
    "a store or a Kafka log directory; several of one broker's are read together"
)
# The protocol of groups of a store.
_OWN: Final = "logstore"
_UNKNOWN: Final = "-"
_FEW: Final = 10
_GLOB: Final = re.compile(r"[*?\[]")


class Member(NamedTuple):
    """A member of a group, of a store or of a broker.

    Attributes:
        client, host: None: it is a process of this machine.
        pid: None: it is a client of a broker.
        is_stuck: it has not polled for too long; None: it is a client of a broker.
    """

    id: str
    instance: str | None
    partitions: int
    client: str | None = None
    host: str | None = None
    pid: int | None = None
    is_stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A group, and its chosen partitions."""

    group: str
    protocol: str
    state: str
    generation: int
    members: Sequence[Member]
    rows: Sequence[logstore.types.GroupPartition]

    @property
    def lag(self) -> int | None:
        known = [row.lag for row in self.rows if row.lag is not None]
        return sum(known) if known else None

    @property
    def stuck(self) -> int | None:
        """How many members are stuck; None: a broker's directory does not say it."""
        if self.protocol != _OWN:
            return None
        return sum(bool(member.is_stuck) for member in self.members)


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else grouped(value)


def _sortable(value: int | None) -> tuple[bool, int]:
    return value is not None, value or 0


def _numeric(name: str, of: Any, spare: int = 0) -> Column:
    """A column of numbers, of which some are not known."""
    return Column(
        name,
        lambda row: _sortable(of(row)),
        lambda value: _number(value[1] if value[0] else None),
        True,
        spare=spare,
    )


COLUMNS: Final = (
    Column("group", lambda one: one.group),
    Column("protocol", lambda one: one.protocol, spare=3),
    Column("state", lambda one: one.state, spare=1),
    _numeric(
        "generation", lambda one: None if one.generation < 0 else one.generation, 4
    ),
    Column("members", lambda one: len(one.members), grouped, True, sum),
    _numeric("stuck", lambda one: one.stuck),
    Column("partitions", lambda one: len(one.rows), grouped, True, sum, 2),
    _numeric("lag", lambda one: one.lag),
)
# Columns of (group, row).
ROW_COLUMNS: Final = (
    Column("group", lambda one: one[0]),
    Column(
        "partition",
        lambda one: (one[1].topic, one[1].partition),
        lambda key: f"{key[0]}-{key[1]}",
    ),
    _numeric("offset", lambda one: one[1].offset),
    _numeric("end", lambda one: one[1].end, 1),
    _numeric("lag", lambda one: one[1].lag),
    Column("member", lambda one: one[1].member or _UNKNOWN, spare=2),
    Column("metadata", lambda one: one[1].metadata, spare=3),
)
# Columns of (group, member).
MEMBER_COLUMNS: Final = (
    Column("group", lambda one: one[0]),
    Column("member", lambda one: one[1].id or _UNKNOWN),
    Column("instance", lambda one: one[1].instance or _UNKNOWN, spare=2),
    Column(
        "client",
        lambda one: one[1].client if one[1].pid is None else f"process {one[1].pid}",
    ),
    Column("host", lambda one: one[1].host or _UNKNOWN, spare=1),
    Column("partitions", lambda one: one[1].partitions, grouped, True),
)


class Found(NamedTuple):
    """The groups of some directories.

    Attributes:
        listed: all of them, groups of stores first.
        own, of_broker: as the library returns them, with errors of unreadable files.
    """

    listed: list[Listed]
    own: list[logstore.types.ConsumerGroups]
    of_broker: logstore.kafka.KafkaGroups

    @property
    def problems(self) -> list[str]:
        own = [text for some in self.own for text in some.problems]
        return [*own, *self.of_broker.problems]


def groups_in(paths: Sequence[str]) -> Found:
    """The groups of stores and of brokers' directories.

    Raises: as `logstore.groups`, `logstore.kafka.groups`.
    """
    own = [logstore.groups(path) for path in paths]
    of_broker = logstore.kafka.groups(*paths)
    return Found([*_own(own), *_of_broker(of_broker)], own, of_broker)


def chosen(
    found: Found,
    groups: Sequence[str] = (),
    topics: Sequence[str] = (),
    sort: str | None = None,
) -> list[Listed]:
    """The groups whose ids and topics patterns choose, in an order."""
    return sorted_by(list(_chosen(found.listed, groups, topics)), COLUMNS, sort)


def print_list(printer: Printer, listed: Sequence[Listed], sort: str | None) -> None:
    """A line for each group."""
    total = counted(len(listed), "group")
    print_table(printer, COLUMNS, listed, total=total, sort=sort)


def warn_about(printer: Printer, found: Found) -> bool:
    """Report members that are stuck, and what could not be read. Whether something
    could not."""
    for note in about_members(found.own):
        printer.warn(note, "note")
    for problem in found.problems:
        printer.warn(problem)
    return bool(found.problems)


@command(
    "groups list",
    "List groups of consumers, of a store or of a broker: state, members, lag.",
    LIST_EXAMPLES,
    path=_PATHS,
)
@options.path(many=True)
@options.group_pattern
@options.topic
@options.sort(names_of(COLUMNS))
@options.output_format()
def list_groups(paths: Sequence[str], **given: Any) -> int:
    """`logstore-dump groups list`."""
    return _show(paths, given, print_list, _object_of_group)


@command(
    "groups describe",
    "Show each partition of groups of consumers, with its offset and lag, and members.",
    DESCRIBE_EXAMPLES,
    path=_PATHS,
)
@options.path(many=True)
@options.group_pattern
@options.topic
@options.sort(names_of(COLUMNS))
@options.output_format()
@options.times
def describe(paths: Sequence[str], **given: Any) -> int:
    """`logstore-dump groups describe`."""
    times = given["times"]
    return _show(paths, given, _print_all, lambda one: _objects(one, times))


def _show(
    paths: Sequence[str],
    given: dict[str, Any],
    print_text: Callable[[Printer, Sequence[Listed], str | None], None],
    objects: Callable[[Listed], Iterable[dict[str, Any]]],
) -> int:
    printer = Printer()
    for path in paths:
        check_store(path)
    found = groups_in(paths)
    listed = chosen(found, given["groups"], given["topics"], given["sort"])
    if given["form"] == "jsonl":
        for value in (value for one in listed for value in objects(one)):
            printer.json(value)
    elif listed:
        print_text(printer, listed, given["sort"])
    else:
        printer.line("no groups")
    printer.flush()
    names = [one.group for one in found.listed]
    for note in _not_here(found.of_broker, names, paths, given["groups"]):
        printer.warn(note, "note")
    return 1 if warn_about(printer, found) else 0


def _own(stores: Iterable[logstore.types.ConsumerGroups]) -> Iterator[Listed]:
    for group in (group for found in stores for group in found):
        members = [
            Member(
                one.member_id,
                one.instance_id,
                len(one.partitions),
                pid=one.pid,
                is_stuck=one.stuck_ms is not None,
            )
            for one in group.members
        ]
        yield Listed(
            group.group, _OWN, group.state, group.generation, members, group.partitions
        )


def _of_broker(found: logstore.kafka.KafkaGroups) -> Iterator[Listed]:
    for group in found:
        members = [
            Member(
                one.member_id,
                one.instance_id,
                len(one.partitions),
                one.client_id,
                one.host,
            )
            for one in group.members
        ]
        yield Listed(
            group.group,
            group.protocol,
            group.state,
            group.generation,
            members,
            group.partitions,
        )


def _chosen(
    found: Iterable[Listed], patterns: Sequence[str], topics: Sequence[str]
) -> Iterator[Listed]:
    for one in found:
        if patterns and not _matches(one.group, patterns):
            continue
        rows = [row for row in one.rows if not topics or _matches(row.topic, topics)]
        if rows or not topics:
            yield replace(one, rows=rows)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _objects(one: Listed, times: str) -> Iterator[dict[str, Any]]:
    """A line for each partition; a group without partitions gets one line, too."""
    members = {member.id: member for member in one.members}
    nobody = Member("", None, 0)
    no_partition = logstore.types.GroupPartition("", -1)
    for row in one.rows or (no_partition,):
        member = nobody if row.member is None else members.get(row.member, nobody)
        yield line(
            "group",
            topic=row.topic or None,
            partition=None if row is no_partition else row.partition,
            group=one.group,
            offset=row.offset,
            metadata=row.metadata,
            end=row.end,
            lag=row.lag,
            member=row.member,
            client=member.client,
            host=member.host,
            pid=member.pid,
            commitTimestamp=None
            if row.commit_ms < 0
            else timestamp_value(row.commit_ms, times),
            protocol=one.protocol,
            state=one.state,
            generation=one.generation,
            members=len(one.members),
        )


def _object_of_group(one: Listed) -> Iterator[dict[str, Any]]:
    yield line(
        "consumerGroup",
        topic=None,
        partition=None,
        group=one.group,
        protocol=one.protocol,
        state=one.state,
        generation=one.generation,
        members=len(one.members),
        stuckMembers=one.stuck,
        partitions=len(one.rows),
        lag=one.lag,
    )


def _print_all(printer: Printer, listed: Sequence[Listed], sort: str | None) -> None:
    print_list(printer, listed, sort)
    for columns, rows in (
        (ROW_COLUMNS, [(one.group, row) for one in listed for row in one.rows]),
        (MEMBER_COLUMNS, [(one.group, m) for one in listed for m in one.members]),
    ):
        if rows:
            printer.line("")
            print_table(printer, columns, rows)


def about_members(stores: Iterable[logstore.types.ConsumerGroups]) -> Iterator[str]:
    """Notes on the members of a store for an operator."""
    for group in (group for found in stores for group in found):
        for member in group.members:
            who = f"group {group.group}: process {member.pid}"
            if member.has_ended:
                yield (
                    f"{who} has ended, but a child of it still holds its locks: end "
                    "that child"
                )
            elif member.stuck_ms is not None:
                late = grouped(member.stuck_ms // 1000)
                yield (
                    f"{who}{_held(group, member)} is stuck: its poll is {late} s "
                    "overdue"
                )


def _held(
    group: logstore.types.ConsumerGroup, member: logstore.types.LiveMember
) -> str:
    """The partitions that a member has, as part of a sentence."""
    names = [
        f"{row.topic}-{row.partition}"
        for row in group.partitions
        if row.member == member.member_id
    ]
    if not names:
        return ""
    more = f" and {grouped(len(names) - _FEW)} more" if len(names) > _FEW else ""
    return f" holds {', '.join(names[:_FEW])}{more} and"


def _not_here(
    found: logstore.kafka.KafkaGroups,
    names: Sequence[str],
    paths: Sequence[str],
    patterns: Sequence[str],
) -> Iterator[str]:
    """Notes on groups and partitions that are not listed, without being a fault."""
    missing = found.missing
    if not found.partition_count and not names:
        yield (
            f"{', '.join(paths)}: no files of groups and no partition of "
            "__consumer_offsets found"
        )
        return
    if missing:
        shown = ", ".join(str(number) for number in missing[:_FEW])
        if len(missing) > _FEW:
            shown += f" and {grouped(len(missing) - _FEW)} more"
        yield (
            f"{counted(len(missing), 'partition')} of __consumer_offsets of "
            f"{found.partition_count} {'are' if len(missing) > 1 else 'is'} missing "
            f"({shown}): groups in them are not listed"
        )
    for pattern in patterns:
        if any(_matches(name, [pattern]) for name in names):
            continue
        if not missing or found.is_here(pattern) or _GLOB.search(pattern):
            yield f"there is no group {pattern}"
        else:
            yield (
                f"group {pattern} would be in "
                f"__consumer_offsets-{found.partition_of(pattern)}, which is missing"
            )
    if found.other_records:
        count = sum(found.other_records.values())
        yield (
            f"{counted(count, 'record')} of other kinds (share and streams groups) "
            f"{'are' if count > 1 else 'is'} not shown"
        )
