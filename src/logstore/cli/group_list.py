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


class ListedMember(NamedTuple):
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
class ListedGroup:
    """A group, and its chosen partitions."""

    group: str
    protocol: str
    state: str
    generation: int
    members: Sequence[ListedMember]
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
    Column("group", lambda group: group.group),
    Column("protocol", lambda group: group.protocol, spare=3),
    Column("state", lambda group: group.state, spare=1),
    _numeric(
        "generation",
        lambda group: None if group.generation < 0 else group.generation,
        4,
    ),
    Column("members", lambda group: len(group.members), grouped, True, sum),
    _numeric("stuck", lambda group: group.stuck),
    Column("partitions", lambda group: len(group.rows), grouped, True, sum, 2),
    _numeric("lag", lambda group: group.lag),
)
# Columns of (group, row).
ROW_COLUMNS: Final = (
    Column("group", lambda row: row[0]),
    Column(
        "partition",
        lambda row: (row[1].topic, row[1].partition),
        lambda key: f"{key[0]}-{key[1]}",
    ),
    _numeric("offset", lambda row: row[1].offset),
    _numeric("end", lambda row: row[1].end, 1),
    _numeric("lag", lambda row: row[1].lag),
    Column("member", lambda row: row[1].member or _UNKNOWN, spare=2),
    Column("metadata", lambda row: row[1].metadata, spare=3),
)
# Columns of (group, member).
MEMBER_COLUMNS: Final = (
    Column("group", lambda row: row[0]),
    Column("member", lambda row: row[1].id or _UNKNOWN),
    Column("instance", lambda row: row[1].instance or _UNKNOWN, spare=2),
    Column(
        "client",
        lambda row: row[1].client if row[1].pid is None else f"process {row[1].pid}",
    ),
    Column("host", lambda row: row[1].host or _UNKNOWN, spare=1),
    Column("partitions", lambda row: row[1].partitions, grouped, True),
)


class FoundGroups(NamedTuple):
    """The groups of some directories.

    Attributes:
        listed: all of them, groups of stores first.
        own, of_broker: as the library returns them, with errors of unreadable files.
    """

    listed: list[ListedGroup]
    own: list[logstore.types.ConsumerGroups]
    of_broker: logstore.kafka.KafkaGroups

    @property
    def problems(self) -> list[str]:
        own = [text for some in self.own for text in some.problems]
        return [*own, *self.of_broker.problems]


def groups_in(paths: Sequence[str]) -> FoundGroups:
    """The groups of stores and of brokers' directories.

    Raises: as `logstore.groups`, `logstore.kafka.groups`.
    """
    own = [logstore.groups(path) for path in paths]
    of_broker = logstore.kafka.groups(*paths)
    return FoundGroups([*_own(own), *_of_broker(of_broker)], own, of_broker)


def chosen(
    found_groups: FoundGroups,
    groups: Sequence[str] = (),
    topics: Sequence[str] = (),
    sort: str | None = None,
) -> list[ListedGroup]:
    """The groups whose ids and topics patterns choose, in an order."""
    return sorted_by(list(_chosen(found_groups.listed, groups, topics)), COLUMNS, sort)


def print_list(
    printer: Printer, listed: Sequence[ListedGroup], sort: str | None
) -> None:
    """A line for each group."""
    total = counted(len(listed), "group")
    print_table(printer, COLUMNS, listed, total=total, sort=sort)


def warn_about(printer: Printer, groups: FoundGroups) -> bool:
    """Report members that are stuck, and what could not be read. Whether something
    could not."""
    for note in about_members(groups.own):
        printer.warn(note, "note")
    for problem in groups.problems:
        printer.warn(problem)
    return bool(groups.problems)


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
def list_groups(paths: Sequence[str], **arguments: Any) -> int:
    """`logstore-dump groups list`."""
    return _show(paths, arguments, print_list, _object_of_group)


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
def describe(paths: Sequence[str], **arguments: Any) -> int:
    """`logstore-dump groups describe`."""
    times = arguments["times"]
    return _show(paths, arguments, _print_all, lambda group: _objects(group, times))


def _show(
    paths: Sequence[str],
    arguments: dict[str, Any],
    print_text: Callable[[Printer, Sequence[ListedGroup], str | None], None],
    objects: Callable[[ListedGroup], Iterable[dict[str, Any]]],
) -> int:
    printer = Printer()
    for path in paths:
        check_store(path)
    groups = groups_in(paths)
    listed = chosen(groups, arguments["groups"], arguments["topics"], arguments["sort"])
    if arguments["form"] == "jsonl":
        for value in (value for group in listed for value in objects(group)):
            printer.json(value)
    elif listed:
        print_text(printer, listed, arguments["sort"])
    else:
        printer.line("no groups")
    printer.flush()
    names = [group.group for group in groups.listed]
    for note in _not_here(groups.of_broker, names, paths, arguments["groups"]):
        printer.warn(note, "note")
    return 1 if warn_about(printer, groups) else 0


def _own(stores: Iterable[logstore.types.ConsumerGroups]) -> Iterator[ListedGroup]:
    for group in (group for groups in stores for group in groups):
        members = [
            ListedMember(
                member.member_id,
                member.instance_id,
                len(member.partitions),
                pid=member.pid,
                is_stuck=member.stuck_ms is not None,
            )
            for member in group.members
        ]
        yield ListedGroup(
            group.group, _OWN, group.state, group.generation, members, group.partitions
        )


def _of_broker(groups: logstore.kafka.KafkaGroups) -> Iterator[ListedGroup]:
    for group in groups:
        members = [
            ListedMember(
                member.member_id,
                member.instance_id,
                len(member.partitions),
                member.client_id,
                member.host,
            )
            for member in group.members
        ]
        yield ListedGroup(
            group.group,
            group.protocol,
            group.state,
            group.generation,
            members,
            group.partitions,
        )


def _chosen(
    groups: Iterable[ListedGroup], patterns: Sequence[str], topics: Sequence[str]
) -> Iterator[ListedGroup]:
    for group in groups:
        if patterns and not _matches(group.group, patterns):
            continue
        rows = [row for row in group.rows if not topics or _matches(row.topic, topics)]
        if rows or not topics:
            yield replace(group, rows=rows)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _objects(group: ListedGroup, times: str) -> Iterator[dict[str, Any]]:
    """A line for each partition; a group without partitions gets one line, too."""
    members = {member.id: member for member in group.members}
    nobody = ListedMember("", None, 0)
    no_partition = logstore.types.GroupPartition("", -1)
    for row in group.rows or (no_partition,):
        member = nobody if row.member is None else members.get(row.member, nobody)
        yield line(
            "group",
            topic=row.topic or None,
            partition=None if row is no_partition else row.partition,
            group=group.group,
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
            protocol=group.protocol,
            state=group.state,
            generation=group.generation,
            members=len(group.members),
        )


def _object_of_group(group: ListedGroup) -> Iterator[dict[str, Any]]:
    yield line(
        "consumerGroup",
        topic=None,
        partition=None,
        group=group.group,
        protocol=group.protocol,
        state=group.state,
        generation=group.generation,
        members=len(group.members),
        stuckMembers=group.stuck,
        partitions=len(group.rows),
        lag=group.lag,
    )


def _print_all(
    printer: Printer, listed: Sequence[ListedGroup], sort: str | None
) -> None:
    print_list(printer, listed, sort)
    for columns, rows in (
        (ROW_COLUMNS, [(group.group, row) for group in listed for row in group.rows]),
        (MEMBER_COLUMNS, [(group.group, m) for group in listed for m in group.members]),
    ):
        if rows:
            printer.line("")
            print_table(printer, columns, rows)


def about_members(stores: Iterable[logstore.types.ConsumerGroups]) -> Iterator[str]:
    """Notes on the members of a store for an operator."""
    for group in (group for groups in stores for group in groups):
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
    groups: logstore.kafka.KafkaGroups,
    names: Sequence[str],
    paths: Sequence[str],
    patterns: Sequence[str],
) -> Iterator[str]:
    """Notes on groups and partitions that are not listed, without being a fault."""
    missing = groups.missing
    if not groups.partition_count and not names:
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
            f"{groups.partition_count} {'are' if len(missing) > 1 else 'is'} missing "
            f"({shown}): groups in them are not listed"
        )
    for pattern in patterns:
        if any(_matches(name, [pattern]) for name in names):
            continue
        if not missing or groups.is_here(pattern) or _GLOB.search(pattern):
            yield f"there is no group {pattern}"
        else:
            yield (
                f"group {pattern} would be in "
                f"__consumer_offsets-{groups.partition_of(pattern)}, which is missing"
            )
    if groups.other_records:
        count = sum(groups.other_records.values())
        yield (
            f"{counted(count, 'record')} of other kinds (share and streams groups) "
            f"{'are' if count > 1 else 'is'} not shown"
        )
