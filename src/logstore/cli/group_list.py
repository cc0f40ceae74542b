"""`groups`: groups of consumers, their members, offsets and lag."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import logstore
from logstore.cli import options
from logstore.cli.app import command
from logstore.cli.output import Printer
from logstore.cli.paths import check_store
from logstore.cli.schema import line, timestamp_value
from logstore.cli.tables import Column, names_of, print_table, sorted_by
from logstore.cli.text import counted, grouped

EXAMPLES: Final = [
    "groups data",
    "groups data --group billing",
    "groups data --topic 'orders*' --sort -lag",
    "groups data --format jsonl",
]
_UNKNOWN: Final = "-"
_FEW: Final = 10
_GLOB: Final = re.compile(r"[*?\[]")


class Listed(NamedTuple):
    """A group, and those of its partitions that were chosen."""

    group: logstore.KafkaGroup
    rows: Sequence[logstore.GroupPartition]

    @property
    def lag(self) -> int | None:
        known = [row.lag for row in self.rows if row.lag is not None]
        return sum(known) if known else None


class _Row(NamedTuple):
    """A partition of a group."""

    group: logstore.KafkaGroup
    row: logstore.GroupPartition


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else grouped(value)


def _sortable(value: int | None) -> tuple[bool, int]:
    return value is not None, value or 0


def _numeric(name: str, of: Any) -> Column:
    """A column of numbers, of which some are not known."""
    return Column(
        name,
        lambda row: _sortable(of(row)),
        lambda value: _number(value[1] if value[0] else None),
        True,
    )


COLUMNS: Final = (
    Column("group", lambda one: one.group.group),
    Column("protocol", lambda one: one.group.protocol),
    Column("state", lambda one: one.group.state),
    _numeric(
        "generation",
        lambda one: one.group.generation if one.group.generation >= 0 else None,
    ),
    Column("members", lambda one: len(one.group.members), grouped, True, sum),
    Column("partitions", lambda one: len(one.rows), grouped, True, sum),
    _numeric("lag", lambda one: one.lag),
)
_ROW_COLUMNS: Final = (
    Column("group", lambda one: one.group.group),
    Column(
        "partition",
        lambda one: (one.row.topic, one.row.partition),
        lambda key: f"{key[0]}-{key[1]}",
    ),
    _numeric("offset", lambda one: one.row.offset),
    _numeric("end", lambda one: one.row.end),
    _numeric("lag", lambda one: one.row.lag),
    Column("member", lambda one: one.row.member or _UNKNOWN),
    Column("metadata", lambda one: one.row.metadata),
)
_MEMBER_COLUMNS: Final = (
    Column("group", lambda one: one[0]),
    Column("member", lambda one: one[1].member_id),
    Column("instance", lambda one: one[1].instance_id or _UNKNOWN),
    Column("client", lambda one: one[1].client_id),
    Column("host", lambda one: one[1].host),
    Column("partitions", lambda one: len(one[1].partitions), grouped, True),
)


@command(
    "groups",
    "Show the groups of consumers of a broker: members, offsets, lag.",
    EXAMPLES,
    path="a Kafka log directory; several of one broker's are read together",
)
@options.path(many=True)
@options.group_pattern
@options.topic
@options.sort(names_of(COLUMNS))
@options.output_format()
@options.times
def groups(paths: Sequence[str], **given: Any) -> int:
    """`logstore-dump groups`."""
    printer = Printer()
    for path in paths:
        check_store(path)
    found = logstore.kafka_groups(*paths)
    listed = sorted_by(
        list(_chosen(found, given["groups"], given["topics"])), COLUMNS, given["sort"]
    )
    if given["form"] == "jsonl":
        for one in listed:
            for value in _objects(one, given["times"]):
                printer.json(value)
    else:
        _print(printer, found, listed)
    printer.flush()
    for note in _notes(found, paths, given["groups"]):
        printer.warn(note, "note")
    for problem in found.problems:
        printer.warn(problem)
    return 1 if found.problems else 0


def _chosen(
    found: Iterable[logstore.KafkaGroup],
    patterns: Sequence[str],
    topics: Sequence[str],
) -> Iterator[Listed]:
    for group in found:
        if patterns and not _matches(group.group, patterns):
            continue
        rows = [
            row for row in group.partitions if not topics or _matches(row.topic, topics)
        ]
        if rows or not topics:
            yield Listed(group, rows)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _objects(one: Listed, times: str) -> Iterator[dict[str, Any]]:
    """A line for each partition; one without a partition for a group that has none."""
    group = one.group
    members = {member.member_id: member for member in group.members}
    no_partition = logstore.GroupPartition("", -1)
    for row in one.rows or (no_partition,):
        member = members.get(row.member or "")
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
            client=None if member is None else member.client_id,
            host=None if member is None else member.host,
            commitTimestamp=None
            if row.commit_ms < 0
            else timestamp_value(row.commit_ms, times),
            protocol=group.protocol,
            state=group.state,
            generation=group.generation,
            members=len(group.members),
        )


def _print(
    printer: Printer, found: logstore.KafkaGroups, listed: Sequence[Listed]
) -> None:
    if not listed:
        if found.partition_count:
            printer.line("no groups")
        return
    print_table(printer, COLUMNS, listed, total=counted(len(listed), "group"))
    rows = [_Row(one.group, row) for one in listed for row in one.rows]
    if rows:
        printer.line("")
        print_table(printer, _ROW_COLUMNS, rows)
    members = [
        (one.group.group, member) for one in listed for member in one.group.members
    ]
    if members:
        printer.line("")
        print_table(printer, _MEMBER_COLUMNS, members)


def _notes(
    found: logstore.KafkaGroups, paths: Sequence[str], patterns: Sequence[str]
) -> Iterator[str]:
    """What is not listed, and is no fault."""
    if not found.partition_count:
        yield (
            f"{', '.join(paths)}: no partition of __consumer_offsets is here, so "
            f"nothing is known of groups"
        )
        return
    missing = found.missing
    if missing:
        shown = ", ".join(str(number) for number in missing[:_FEW])
        if len(missing) > _FEW:
            shown += f" and {grouped(len(missing) - _FEW)} more"
        yield (
            f"{counted(len(missing), 'partition')} of __consumer_offsets of "
            f"{found.partition_count} {'are' if len(missing) > 1 else 'is'} not here "
            f"({shown}): groups in them are not listed"
        )
    for pattern in patterns:
        if any(_matches(group.group, [pattern]) for group in found):
            continue
        if found.is_here(pattern) or _GLOB.search(pattern):
            yield f"there is no group {pattern}"
        else:
            yield (
                f"group {pattern} would be in __consumer_offsets-"
                f"{found.partition_of(pattern)}, which is not here"
            )
    if found.other_records:
        count = sum(found.other_records.values())
        yield (
            f"{counted(count, 'record')} of other kinds (share and streams groups) "
            f"{'are' if count > 1 else 'is'} not shown"
        )
