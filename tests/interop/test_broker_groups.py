"""`kafka_groups` on directories of real brokers agrees with Kafka's own tools.

A broker of each release gets groups of every kind (`kafka/Groups.java`): members that
live, commits without members, transactions that were committed, aborted and left open,
offsets and groups that were removed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker import kafka_records as records
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.releases import each_release

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.thorough]

TOPIC = "__consumer_offsets"
# Group, topic, partition, offset, end, lag, member, host, client; None for "-".
Described = tuple[str | None, ...]
_PAYLOAD = re.compile(r"^\| offset: (\d+) .*? key: (.*) payload: (.*)$")
_OLD_KEY = re.compile(r"offset_commit::group=(.*),partition=(.*)-(\d+)")
_OLD_VALUE = re.compile(r"offset=(\d+)(?:,metadata=(.*))?")


@dataclass(frozen=True, slots=True)
class Life:
    """Observations of one broker.

    Attributes:
        data: its directory, after it was stopped.
        described, states: output of Kafka's tool while all members lived.
        groups: the result of logstore at that time.
        described_later: the same after members had left, shortly before the stop.
        dumps: the lines of the dump tool, by partition.
        exported: the group handed over to the stopped broker.
        described_again: output of the tool for that group after the next start.
        first: the first offset that a member of it was given, by topic and partition.
        committed: the last committed offsets of that member.
    """

    release: str
    data: Path
    described: set[Described]
    states: dict[str, tuple[str, int]]
    groups: logstore.kafka.KafkaGroups
    described_later: set[Described]
    dumps: dict[str, list[str]]
    exported: logstore.kafka.GroupExport
    described_again: set[Described]
    first: dict[tuple[str, int], int]
    committed: dict[tuple[str, int], int | None]


HANDED: dict[tuple[str, int], int] = {
    ("alpha", 0): 4,
    ("alpha", 1): 0,
    ("alpha", 2): 29,
    ("beta", 0): 3,
}


def table_of(text: str) -> Iterator[dict[str, str | None]]:
    """The rows of all tables that the tool printed, by the names of their columns."""
    names: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["GROUP"]:
            names = words
        elif words and len(words) == len(names):
            values = (None if word == "-" else word for word in words)
            yield dict(zip(names, values, strict=True))


def described(text: str) -> set[Described]:
    names = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    names += ("CONSUMER-ID", "HOST", "CLIENT-ID")
    return {
        tuple(row[name] for name in names) for row in table_of(text) if row["TOPIC"]
    }


def states(text: str) -> dict[str, tuple[str, int]]:
    """State and number of members of each group: the last two words of its line."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[0] != "GROUP":
            found[words[0]] = words[-2], int(words[-1])
    return found


def as_described(groups: logstore.kafka.KafkaGroups) -> set[Described]:
    """The rows of logstore's result as the tool prints them."""
    found = set()
    for group in groups:
        members = {member.member_id: member for member in group.members}
        for row in group.partitions:
            member = members.get(row.member or "")
            numbers = (row.partition, row.offset, row.end, row.lag)
            found.add(
                (
                    group.group,
                    row.topic,
                    *(None if number is None else str(number) for number in numbers),
                    row.member,
                    None if member is None else member.host,
                    None if member is None else member.client_id,
                )
            )
    return found


def offsets_of(rows: set[Described]) -> set[Described]:
    """Offsets without members, which may leave between two looks."""
    return {row[:6] for row in rows if row[3] is not None}


def source_of(directory: Path) -> Path:
    """A store with the group "handed", in the state that a consumer has left."""
    with logstore.open(directory) as store:
        for name, count in (("alpha", 3), ("beta", 1)):
            store.create_topic(name, count).append_many([b"x"] * 200)
    with logstore.Consumer(directory, group="handed") as consumer:
        keys = {logstore.TopicPartition(*key): offset for key, offset in HANDED.items()}
        consumer.assign(list(keys))
        consumer.commit(keys)
    return directory


@pytest.fixture(scope="module", params=each_release())
def life(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Life:
    """A broker from its start to its stop."""
    release: str = request.param
    directory = tmp_path_factory.mktemp(f"kafka-{release}")
    try:
        broker = KafkaBroker(directory, release, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        broker.start()
        protocol = "consumer" if release.startswith("4") else "classic"
        clients = broker.clients("Groups.java", protocol)
        broker.said(clients, "READY")
        rows = described(broker.groups("--describe", "--all-groups"))
        states_now = states(broker.groups("--describe", "--all-groups", "--state"))
        groups = logstore.kafka.groups(broker.data)
        assert clients.stdin is not None
        clients.stdin.close()
        broker.said(clients, "ENDED")
        later = described(broker.groups("--describe", "--all-groups"))
        broker.stop()
        logs = sorted(broker.data.glob(f"{TOPIC}-*/*.log"))
        dump = broker.tools.dump(logs, "--offsets-decoder", root=broker.data)
        dumps = {
            name.partition("/")[0]: lines for name, lines in dump.sections().items()
        }
        stopped = directory / "stopped"
        shutil.copytree(broker.data, stopped)
        # Into the directory of the stopped broker, which then serves it.
        exported = logstore.kafka.export_group(
            source_of(directory / "source"), "handed", to=broker.data, dry_run=False
        )
        broker.start()
        again = described(broker.groups("--describe", "--group", "handed"))
        first = {}
        joined = broker.run_clients("Groups.java", "join", "handed")
        for line in joined.splitlines():
            _, topic, number, offset = line.split()
            first[topic, int(number)] = int(offset)
        broker.stop()
        (handed,) = (
            group
            for group in logstore.kafka.groups(broker.data)
            if group.group == "handed"
        )
        committed_there = {
            (row.topic, row.partition): row.offset for row in handed.partitions
        }
    return Life(
        release,
        stopped,
        rows,
        states_now,
        groups,
        later,
        dumps,
        exported,
        again,
        first,
        committed_there,
    )


def test_groups_of_a_running_broker_are_those_of_kafkas_tool(life: Life) -> None:
    """Offsets, ends, lags, members, hosts and clients, of every group."""
    assert as_described(life.groups) == life.described
    assert {"live", "simple", "partly", "in-transactions"} <= {
        group.group for group in life.groups
    }
    assert life.groups.problems == ()
    assert (life.groups.partition_count, life.groups.missing) == (5, ())


def test_states_of_a_running_broker_are_those_of_kafkas_tool(life: Life) -> None:
    """The number of members is compared, too."""
    found = {group.group: (group.state, len(group.members)) for group in life.groups}
    assert found == life.states
    assert found["live"] == ("Stable", 2)


def test_offsets_of_a_stopped_broker_are_the_last_that_its_tool_said(
    life: Life,
) -> None:
    """The offsets come from the files alone, after the members had left."""
    groups = logstore.kafka.groups(life.data)
    assert offsets_of(as_described(groups)) == offsets_of(life.described_later)
    assert groups.problems == ()


def test_only_committed_transactions_count(life: Life) -> None:
    """Aborted and open transactions, and removed offsets, leave no offset."""
    by_name = {group.group: group for group in life.groups}
    rows = by_name["in-transactions"].partitions
    assert [(row.partition, row.offset, row.metadata) for row in rows] == [
        (0, 6, "at 6")
    ]
    assert "removed" not in by_name
    assert [row.partition for row in by_name["partly"].partitions] == [1]
    assert by_name["simple"].partitions[0].metadata == "müll"


def test_groups_of_the_newer_protocol_have_their_members(life: Life) -> None:
    """From 4.0 on, records have ids, and the result names of topics; share groups,
    which are no consumers, are counted."""
    if not life.release.startswith("4"):
        assert life.groups.other_records == {}
        return
    (group,) = (group for group in life.groups if group.group == "newer")
    assert group.protocol == "consumer"
    assert {member.instance_id for member in group.members} == {None, "newer-static"}
    assert {member.topics for member in group.members} == {("alpha",)}
    assigned = [one for member in group.members for one in member.partitions]
    assert sorted(assigned) == [("alpha", 0), ("alpha", 1), ("alpha", 2)]
    assert all(row.topic_id for row in group.partitions if row.offset is not None)
    assert set(life.groups.other_records) >= {10, 11}


def decoded(release: str, key: str, value: str) -> Any:
    """A line of the dump tool in the form of `expected`; None: a different kind of
    line."""
    if release.startswith("2"):
        found = _OLD_KEY.fullmatch(key)
        if found is None:
            return None
        place = (found[1], found[2], int(found[3]))
        if value == "<DELETE>":
            return place, None
        commit = _OLD_VALUE.fullmatch(value)
        assert commit is not None
        return place, (int(commit[1]), commit[2] or "")
    parsed = json.loads(key)
    if parsed["type"] not in ("0", "1"):
        return None
    data = parsed["data"]
    place = (data["group"], data["topic"], data["partition"])
    if value == "<DELETE>":
        return place, None
    commit_of = json.loads(value)["data"]
    return place, (commit_of["offset"], commit_of["metadata"])


def test_commits_are_those_that_kafkas_offsets_decoder_prints(life: Life) -> None:
    """Record by record, on the same bytes."""
    count = 0
    with logstore.open(life.data, read_only=True) as store:
        for partition in store.topic(TOPIC):
            printed = {}
            for line in life.dumps[f"{TOPIC}-{partition.number}"]:
                match = _PAYLOAD.match(line)
                if match is not None:
                    entry = decoded(life.release, match[2], match[3])
                    if entry is not None:
                        printed[int(match[1])] = entry
            found: dict[int, Any] = {}
            for record in partition.read():
                assert record.key is not None
                key = records.parse_key(record.key)
                if isinstance(key, records.OffsetKey):
                    value = None
                    if record.value is not None:
                        commit = records.parse_offset_value(key, record.value)
                        value = commit.offset, commit.metadata
                    found[record.offset] = tuple(key), value
            assert found == printed
            count += len(found)
    assert count >= 10


def test_exported_group_is_served_by_the_broker(life: Life) -> None:
    """Its tool shows the offsets; a member continues at them, and commits."""
    assert not life.exported.dry_run
    assert {
        (one.topic, one.partition): one.after for one in life.exported.changes
    } == HANDED
    shown = {
        (row[1], int(row[2] or -1)): int(row[3] or -1) for row in life.described_again
    }
    assert shown == HANDED
    assert life.first == HANDED
    ends = {("alpha", 0): 10, ("alpha", 1): 20, ("alpha", 2): 30, ("beta", 0): 5}
    assert {key: life.committed[key] for key in ends} == ends


def printed_group(release: str, key: str, value: str) -> dict[str, Any] | None:
    """The output of the dump tool about a group; None: a different kind of line."""
    if value == "<DELETE>" or (release.startswith("2") and key[:6] == "offset"):
        return None
    if release.startswith("2"):
        # Not JSON, and without the times; its members are text of Scala.
        return {
            "group": key.removeprefix("group_metadata::group="),
            **json.loads(value),
        }
    parsed = json.loads(key)
    if parsed["type"] != "2":
        return None
    return {**parsed["data"], **json.loads(value)["data"]}


def check_group(group: records.GroupMetadata, printed: dict[str, Any]) -> None:
    """Compare everything that was printed of a group."""
    assert group.group == printed["group"]
    assert group.protocol_type == printed["protocolType"]
    assert group.protocol == printed["protocol"]
    if "generationId" in printed:
        assert group.generation == printed["generationId"]
        assert all(one.member_id in printed["assignment"] for one in group.members)
        return
    assert group.generation == printed["generation"]
    assert group.leader == printed["leader"]
    assert group.state_ms == printed["currentStateTimestamp"]
    for member, shown in zip(group.members, printed["members"], strict=True):
        assert member.member_id == shown["memberId"]
        assert member.instance_id == shown["groupInstanceId"]
        assert member.client_id == shown["clientId"]
        assert member.client_host == shown["clientHost"]
        assert member.session_timeout_ms == shown["sessionTimeout"]
        assert list(records.parse_assignment(member.assignment).partitions) == [
            (topic["topic"], number)
            for topic in shown["assignment"]["assignedPartitions"]
            for number in topic["partitions"]
        ]


def test_group_records_are_those_that_kafkas_offsets_decoder_prints(
    life: Life,
) -> None:
    """Generation, assignor, leader, time and members, as far as a release prints it."""
    count = 0
    with logstore.open(life.data, read_only=True) as store:
        for partition in store.topic(TOPIC):
            values = {record.offset: record for record in partition.read()}
            for line in life.dumps[f"{TOPIC}-{partition.number}"]:
                match = _PAYLOAD.match(line)
                if match is None:
                    continue
                printed = printed_group(life.release, match[2], match[3])
                if printed is not None:
                    record = values[int(match[1])]
                    assert record.key is not None
                    assert record.value is not None
                    key = records.parse_key(record.key)
                    assert isinstance(key, records.GroupKey)
                    check_group(records.parse_group_value(key, record.value), printed)
                    count += 1
    assert count
