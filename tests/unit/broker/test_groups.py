"""The groups of a broker, from directories in every state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logstore
from logstore.broker.groups import KafkaGroup, KafkaGroups, KafkaMember, kafka_groups
from logstore.broker.kafka_records import (
    Assignment,
    GroupMember,
    GroupMetadata,
    Subscription,
    format_assignment,
    format_group_key,
    format_offset_key,
    format_subscription,
)
from logstore.broker.placement import partition_of_group
from logstore.io.layout import TopicPartition
from support import hostile
from support.damage import (
    fixed_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    snapshot_of,
)
from support.golden import SLICE
from support.offsets_topic import (
    OffsetsTopic,
    Pair,
    commit_of,
    described,
    offsets_of,
    written,
)
from support.users import NOBODY, as_user, needs_root, shared_place

TOPIC_ID = "000102030405060708090a0b0c0d0e0f"


def only(groups: KafkaGroups) -> KafkaGroup:
    (group,) = groups
    return group


def key(kind: int, group: str, member: str | None = None) -> bytes:
    texts = [group] if member is None else [group, member]
    parts = [len(text).to_bytes(2, "big") + text.encode() for text in texts]
    return kind.to_bytes(2, "big") + b"".join(parts)


# ------------------------------------------------------------------ members


def member(name: str, *partitions: tuple[str, int]) -> GroupMember:
    assigned = Assignment(tuple(TopicPartition(*one) for one in partitions))
    return GroupMember(
        name,
        None,
        f"client-{name}",
        "/10.0.0.1",
        subscription=format_subscription(Subscription(("t",))),
        assignment=format_assignment(assigned),
    )


def test_members_and_what_they_were_assigned_are_listed(tmp_path: Path) -> None:
    """Rows of partitions with a member, with and without a committed offset."""
    members = (member("b", ("t", 1)), member("a", ("t", 0)))
    group = GroupMetadata("g", "consumer", 4, "range", "a", 77, members)
    groups = kafka_groups(
        written(
            tmp_path,
            [commit_of(1), commit_of(2, partition=2), described(group)],
            {"t": (3, 3, 3)},
        )
    )
    found = only(groups)
    assert (found.state, found.generation, found.assignor) == ("Stable", 4, "range")
    assert (found.protocol, found.protocol_type) == ("classic", "consumer")
    assert found.state_ms == 77
    assert found.members[0] == KafkaMember(
        "a", None, "client-a", "/10.0.0.1", ("t",), (TopicPartition("t", 0),)
    )
    rows = [
        (row.partition, row.offset, row.member, row.lag) for row in found.partitions
    ]
    assert rows == [(0, 1, "a", 2), (1, None, "b", None), (2, 2, None, 1)]


def test_group_whose_members_left_is_empty(tmp_path: Path) -> None:
    """The last record of a group counts."""
    full = GroupMetadata("g", "consumer", 4, "range", "a", 77, (member("a"),))
    empty = GroupMetadata("g", "consumer", 5, None, None, 78)
    groups = kafka_groups(written(tmp_path, [described(full), described(empty)], {}))
    found = only(groups)
    assert (found.state, found.generation, found.members) == ("Empty", 5, ())
    assert found.partitions == ()


def test_members_of_other_protocol_types_have_no_partitions(tmp_path: Path) -> None:
    """The data that Kafka Connect keeps there is not a list of partitions, and no
    problem."""
    worker = GroupMember("w", "i", subscription=b"\0\1url", assignment=b"\xff" * 9)
    for kind in ("connect", "consumer"):
        group = GroupMetadata("g", kind, 1, "sessioned", "w", 1, (worker,))
        groups = kafka_groups(written(tmp_path / kind, [described(group)], {}))
        assert only(groups).members == (KafkaMember("w", "i", "", "", (), ()),)
        assert groups.problems == ()


def newer_group(epoch: int, target: int, assigned: bytes) -> list[Pair]:
    """The records of a group with one member of the newer protocol."""
    subscribed = bytes.fromhex("0000 00 00 0263 032f68 02 0274 00 000493e0 00 00")
    return [
        (key(3, "n"), b"\0\0" + epoch.to_bytes(4, "big") + b"\0"),
        (key(6, "n"), b"\0\0" + target.to_bytes(4, "big") + b"\0"),
        (key(5, "n", "m"), subscribed),
        (key(8, "n", "m"), assigned),
    ]


def assigned(epoch: int, state: int, partition: int) -> bytes:
    """Assignment of a member of the newer protocol: one partition of `TOPIC_ID`."""
    head = b"\0\0" + epoch.to_bytes(4, "big") * 2 + bytes([state])
    return (
        head
        + b"\2"
        + bytes.fromhex(TOPIC_ID)
        + b"\2"
        + partition.to_bytes(4, "big")
        + b"\0\1\0"
    )


def test_group_of_the_newer_protocol_has_members_by_topic_id(tmp_path: Path) -> None:
    """The names of topics come from the directories of their partitions."""
    for name, ids, topic in (
        ("known", {"t": TOPIC_ID}, "t"),
        ("unknown", {}, "(AAECAwQFBgcICQoLDA0ODw)"),
    ):
        made = OffsetsTopic(tmp_path / name, topics={"t": (0, 9)}, ids=ids)
        made.put(*newer_group(3, 3, assigned(3, 0, 1)))
        found = only(kafka_groups(made.directory))
        assert (found.protocol, found.state) == ("consumer", "Stable")
        assert found.generation == 3
        place = TopicPartition(topic, 1)
        assert found.members == (KafkaMember("m", None, "c", "/h", ("t",), (place,)),)
        (row,) = found.partitions
        assert (row.topic, row.partition, row.member) == (*place, "m")
        assert row.end == (9 if ids else None)


@pytest.mark.parametrize(
    ("epoch", "target", "member_epoch", "state", "expected"),
    [
        (3, 3, 3, 0, "Stable"),
        (4, 3, 3, 0, "Assigning"),
        (4, 4, 3, 0, "Reconciling"),
        (4, 4, 4, 1, "Reconciling"),
    ],
)
def test_state_of_the_newer_protocol_is_derived_as_by_the_broker(
    tmp_path: Path,
    epoch: int,
    target: int,
    member_epoch: int,
    state: int,
    expected: str,
) -> None:
    """It follows from the epochs of the group, of the target and of the members."""
    made = OffsetsTopic(tmp_path)
    made.put(*newer_group(epoch, target, assigned(member_epoch, state, 0)))
    assert only(kafka_groups(made.directory)).state == expected


def test_member_of_the_newer_protocol_that_left_is_gone(tmp_path: Path) -> None:
    """A tombstone of a member; a group without members is empty."""
    made = OffsetsTopic(tmp_path)
    made.put(*newer_group(3, 3, assigned(3, 0, 0)))
    made.put((key(5, "n", "m"), None), (key(8, "n", "m"), None))
    found = only(kafka_groups(made.directory))
    assert (found.state, found.members, found.partitions) == ("Empty", (), ())


def test_records_of_other_types_are_counted(tmp_path: Path) -> None:
    """Share and streams groups, and records of later brokers: never an error."""
    pairs = [(key(11, "s"), b"\0\0any"), (key(17, "x"), b"\7\7"), (b"\x7f\0", b"")]
    groups = kafka_groups(written(tmp_path, [*pairs, commit_of(1)], {}))
    assert groups.other_records == {11: 1, 17: 1, 0x7F00: 1}
    assert groups.problems == ()
    assert len(groups) == 1


# ------------------------------------------------------------------ partition of a
# group


def test_partitions_that_are_not_here_are_named(tmp_path: Path) -> None:
    """A missing partition is not an empty one."""
    made = OffsetsTopic(tmp_path, partitions=4)
    for number in range(4):
        made.put(commit_of(number, f"g{number}"), partition=number)
    directory = made.directory
    shutil.rmtree(directory / "__consumer_offsets-1")
    groups = kafka_groups(directory)
    assert (groups.partition_count, groups.missing) == (4, (1,))
    assert [group.offsets_partition for group in groups] == [0, 2, 3]
    here = next(
        name for name in map(str, range(99)) if partition_of_group(name, 4) == 2
    )
    gone = next(
        name for name in map(str, range(99)) if partition_of_group(name, 4) == 1
    )
    assert groups.is_here(here)
    assert groups.partition_of(here) == 2
    assert not groups.is_here(gone)


def test_checkpoints_tell_of_partitions_without_a_directory(tmp_path: Path) -> None:
    """A copy without the last partitions does not look complete."""
    directory = written(tmp_path, [commit_of(1)], {})
    (directory / "replication-offset-checkpoint").write_text(
        "0\n2\n__consumer_offsets 0 1\n__consumer_offsets 4 7\n"
    )
    groups = kafka_groups(directory)
    assert (groups.partition_count, groups.missing) == (5, (1, 2, 3, 4))
    assert groups.problems == ()


def test_number_that_no_cluster_has_is_a_problem(tmp_path: Path) -> None:
    """It takes neither time nor memory; the partition of a group is unknown."""
    directory = written(tmp_path, [commit_of(1)], {})
    (directory / "replication-offset-checkpoint").write_text(
        f"0\n2\n__consumer_offsets 0 1\n__consumer_offsets {2**31 - 2} 7\n"
    )
    groups = kafka_groups(directory)
    assert len(groups) == 1
    assert (groups.partition_count, groups.missing) == (2**31 - 1, (2**31 - 2,))
    assert "would have 2147483647 partitions" in groups.problems[0]
    assert not groups.is_here(groups[0].group)


def test_directory_without_the_topic_knows_of_no_group(tmp_path: Path) -> None:
    """Its result does not claim that the broker has no groups."""
    made = OffsetsTopic(tmp_path, topics={"t": (1,)})
    directory = made.directory
    shutil.rmtree(directory / "__consumer_offsets-0")
    groups = kafka_groups(directory)
    assert (list(groups), groups.partition_count) == ([], 0)
    assert not groups.is_here("g")
    with pytest.raises(logstore.ConfigError, match="0 partitions"):
        groups.partition_of("g")


def test_log_shorter_than_the_broker_had_it_is_a_problem(tmp_path: Path) -> None:
    """The directory was copied incompletely: the offsets may be old, and the problem
    says so."""
    directory = written(tmp_path, [commit_of(1), commit_of(2)], {"t": (1,)})
    checkpoint = directory / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\n__consumer_offsets 0 2\n")
    assert kafka_groups(directory).problems == ()
    checkpoint.write_text("0\n1\n__consumer_offsets 0 3\n")
    (problem,) = kafka_groups(directory).problems
    assert "ends at offset 2 here; the broker had it up to 3" in problem


def test_several_directories_of_a_broker_are_one(tmp_path: Path) -> None:
    """Groups are in one, their topics in another; the longest copy counts."""
    first = OffsetsTopic(tmp_path / "a", partitions=2, topics={"t": (3,)})
    first.put(commit_of(1))
    first.put(commit_of(2))
    second = OffsetsTopic(tmp_path / "b", partitions=2, topics={"t": (7,), "u": (4,)})
    second.put(commit_of(1))
    second.put(commit_of(1, "h", "u"), partition=1)
    a, b = first.directory, second.directory
    shutil.rmtree(a / "__consumer_offsets-1")
    for directories in ((a, b), (b, a)):
        groups = kafka_groups(*directories)
        assert groups.missing == ()
        assert offsets_of(groups) == {("g", "t", 0): 2, ("h", "u", 0): 1}
        assert [group.partitions[0].end for group in groups] == [7, 4]


# ------------------------------------------------------------------ bad directories


def test_nothing_to_read_is_a_named_error(tmp_path: Path) -> None:
    """No directory, a missing one, and one without logs."""
    with pytest.raises(logstore.ConfigError, match=r"one of the broker's log\.dirs"):
        kafka_groups()
    with pytest.raises(logstore.StoreNotFoundError):
        kafka_groups(tmp_path / "none")
    with pytest.raises(logstore.StoreNotFoundError):
        kafka_groups(tmp_path)


def test_bad_records_are_reported_and_leave_all_others(tmp_path: Path) -> None:
    """A malformed value, a malformed key, a missing key."""
    offset_key = format_offset_key("bad", "t", 0)
    pairs = [
        (offset_key, b"\0\3\0"),
        (b"\0\1\0\xff", b"x"),
        (b"\0", b"x"),
        (None, b"x"),
        (format_group_key("worse"), b"\0\x63"),
        commit_of(1),
    ]
    groups = kafka_groups(written(tmp_path, pairs, {}))
    assert offsets_of(groups) == {("g", "t", 0): 1}
    assert len(groups.problems) == 5
    text = "\n".join(groups.problems)
    for part in (
        "at offset 0 is left out: OffsetCommitValue.offset at byte 2: 8 bytes are",
        "at offset 1 is left out: key.group at byte",
        "at offset 2 is left out: key.type at byte 0",
        "at offset 3 is left out: it has no key",
        "at offset 4 is left out: GroupMetadataValue.version at byte 0: it is 99",
    ):
        assert part in text


def test_commit_that_cannot_be_read_does_not_bring_back_the_former(
    tmp_path: Path,
) -> None:
    """A stale offset would be wrong; the problem names a missing commit."""
    broken = (format_offset_key("g", "t", 0), b"\0\3\0")
    groups = kafka_groups(written(tmp_path, [commit_of(1), broken], {}))
    assert list(groups) == []
    assert len(groups.problems) == 1


def test_many_problems_are_some_and_a_number(tmp_path: Path) -> None:
    """A hostile partition does not fill the memory with sentences."""
    made = OffsetsTopic(tmp_path)
    made.put(*[(None, b"x")] * 250)
    problems = kafka_groups(made.directory).problems
    assert len(problems) == 101
    assert problems[-1] == "__consumer_offsets-0: 150 more problems of this kind"


def test_damaged_batch_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    """Commits before and after the damage count."""
    pairs = [commit_of(number, f"g{number}") for number in range(5)]
    directory = written(tmp_path, pairs, {})
    (log,) = logs_in(directory / "__consumer_offsets-0")
    frame = frames(log)[2]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    # Below this offset the log is durable: bytes after damage there are no torn tail.
    (directory / "recovery-point-offset-checkpoint").write_text(
        "0\n1\n__consumer_offsets 0 5\n"
    )
    groups = kafka_groups(directory)
    assert [group.group for group in groups] == ["g0", "g1", "g3", "g4"]
    (problem,) = groups.problems
    assert problem.startswith("__consumer_offsets-0: ")
    assert "Record 2 cannot be read" in problem


def test_batch_with_damaged_records_is_reported_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    """The checksum of a batch is right, and its records are malformed."""
    made = OffsetsTopic(tmp_path)
    made.put(commit_of(1))
    made.put(commit_of(2, "bad"), commit_of(3, "bad2"))
    made.put(commit_of(4, "h"))
    (log,) = logs_in(tmp_path / "__consumer_offsets-0")
    frame = frames(log)[1]
    data = log.read_bytes()[frame.pos : frame.pos + frame.size]
    overwrite(log, frame.pos, fixed_crc(data[:61] + b"\xff" * 9 + data[70:]))
    groups = kafka_groups(tmp_path)
    assert [group.group for group in groups] == ["g", "h"]
    assert len(groups.problems) == 1


def test_partition_that_cannot_be_read_is_missing(tmp_path: Path) -> None:
    """A file where the directory of a topic must be."""
    made = OffsetsTopic(tmp_path, partitions=2)
    made.put(commit_of(1))
    directory = made.directory
    (log,) = logs_in(directory / "__consumer_offsets-1")
    log.unlink()
    log.symlink_to(log.with_name("00000000000000000000.index"))
    groups = kafka_groups(directory)
    assert groups.missing == (1,)
    assert len(groups.problems) == 1
    assert offsets_of(groups) == {("g", "t", 0): 1}


def test_bad_checkpoint_is_a_problem_and_no_error(tmp_path: Path) -> None:
    """Checkpoints only help."""
    directory = written(tmp_path, [commit_of(1)], {})
    (directory / "replication-offset-checkpoint").write_text("seven\n")
    groups = kafka_groups(directory)
    assert offsets_of(groups) == {("g", "t", 0): 1}
    assert "replication-offset-checkpoint" in groups.problems[0]


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\ntopic_id: short", b"\xff" * 100, b"x" * 100_000]
)
def test_bad_topic_id_file_is_no_id(tmp_path: Path, content: bytes) -> None:
    """The name of the topic is unknown then; everything else is read."""
    made = OffsetsTopic(tmp_path, topics={"t": (1,)})
    made.put(*newer_group(3, 3, assigned(3, 0, 0)))
    directory = made.directory
    (directory / "t-0" / "partition.metadata").write_bytes(content)
    (row,) = only(kafka_groups(directory)).partitions
    assert row.topic == "(AAECAwQFBgcICQoLDA0ODw)"


@pytest.mark.parametrize("made_logs", [hostile.bombs, hostile.lengths, hostile.offsets])
def test_hostile_log_costs_its_own_groups_only(
    tmp_path: Path, made_logs: Callable[[], Iterator[tuple[str, bytes]]]
) -> None:
    """Bombs, false lengths and offsets: no error, no memory beyond the limit; the
    groups of the other partitions are found."""
    made = OffsetsTopic(tmp_path, partitions=2)
    made.put(commit_of(1), partition=1)
    (log,) = logs_in(tmp_path / "__consumer_offsets-0")
    config = logstore.StoreConfig(max_batch_decompressed_bytes=1 << 20)
    for name, data in made_logs():
        log.write_bytes(data)
        groups = kafka_groups(tmp_path, store_config=config)
        assert offsets_of(groups) == {("g", "t", 0): 1}, name


# ------------------------------------------------------------------ without a trace


def test_nothing_is_written(tmp_path: Path) -> None:
    """No byte, no time of a file and no lock changes."""
    made = OffsetsTopic(tmp_path, topics={"t": (3,)})
    made.put(commit_of(1))
    made.put(commit_of(2), producer=3)
    directory = made.directory
    before = snapshot_of(directory)
    kafka_groups(directory)
    assert snapshot_of(directory) == before


@needs_root
def test_directory_of_another_user_that_is_read_only_is_read() -> None:
    """A user with read access only sees the groups."""
    with shared_place(0) as place:
        directory = written(place / "broker", [commit_of(1)], {"t": (4,)})
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)

        def look() -> None:
            assert offsets_of(kafka_groups(directory)) == {("g", "t", 0): 1}

        as_user(NOBODY, look)


def test_groups_of_a_real_broker_are_found() -> None:
    """Kafka 2.8.2 wrote these commits, of clients that were no members."""
    groups = kafka_groups(SLICE / "2.8.2" / "clean")
    assert [(group.group, group.state) for group in groups] == [
        ("golden-group", "Empty"),
        ("second.group", "Empty"),
    ]
    assert {row.topic for group in groups for row in group.partitions} == {"edge"}
    assert [row.offset for group in groups for row in group.partitions] == [7, 7]


def test_log_that_grows_meanwhile_is_read(tmp_path: Path) -> None:
    """A broker that runs appends; each call finds the current records."""
    made = OffsetsTopic(tmp_path, topics={"t": (9,)})
    puts: list[Callable[[], None]] = [
        lambda: made.put(commit_of(1)),
        lambda: made.put(commit_of(2)),
    ]
    for number, put in enumerate(puts, 1):
        put()
        assert offsets_of(kafka_groups(tmp_path)) == {("g", "t", 0): number}
