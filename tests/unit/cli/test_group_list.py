"""`groups` and `groups export`: output and exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker.kafka_records import (
    Assignment,
    GroupMember,
    GroupMetadata,
    OffsetCommit,
    format_assignment,
)
from logstore.broker.placement import partition_of_group
from logstore.cli import group_changes
from logstore.io import layout
from logstore.io.layout import TopicPartition
from support.damage import snapshot_of
from support.groups import consumer, drain, offset_in, settle, store_with
from support.offsets_topic import (
    OffsetsTopic,
    Pair,
    commit_of,
    committed,
    described,
    offsets_of,
    written,
)

TOPIC = "__consumer_offsets"


def member(name: str, *partitions: tuple[str, int]) -> GroupMember:
    places = tuple(TopicPartition(*one) for one in partitions)
    return GroupMember(
        name,
        f"{name}-static",
        f"client-{name}",
        "/10.0.0.1",
        assignment=format_assignment(Assignment(places)),
    )


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """Two groups: one with members, one that only committed."""
    members = (member("a", ("orders", 0), ("orders", 1)),)
    pairs: list[Pair] = [
        commit_of(3, "billing", "orders"),
        committed(OffsetCommit("old", "orders", 0, 9, metadata="by\nhand\x1b[31m")),
        committed(OffsetCommit("old", "gone", 4, 7, commit_ms=1_700_000_000_000)),
        described(GroupMetadata("billing", "consumer", 5, "range", "a", 1, members)),
    ]
    return written(tmp_path / "broker", pairs, {"orders": (10, 6)})


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.lines]


def test_groups_are_two_tables_and_their_members(run: Any, broker: Path) -> None:
    """The groups with their totals, their partitions, their members."""
    result = run("groups", "describe", broker)
    assert (result.status, result.err) == (0, "")
    text = [line.split() for line in result.lines]
    assert text[0][:3] == ["group", "protocol", "state"]
    assert text[1] == ["billing", "classic", "Stable", "5", "1", "-", "2", "7"]
    assert text[2] == ["old", "classic", "Empty", "-", "0", "-", "2", "1"]
    assert text[3][:2] == ["2", "groups"]
    assert ["billing", "orders-0", "3", "10", "7", "a"] in text
    assert ["billing", "orders-1", "-", "6", "-", "a"] in text
    assert ["old", "gone-4", "7", "-", "-", "-"] in text
    assert ["billing", "a", "a-static", "client-a", "/10.0.0.1", "2"] in text


def test_nothing_of_a_commit_reaches_the_terminal_raw(run: Any, broker: Path) -> None:
    """Metadata is untrusted text."""
    result = run("groups", "describe", broker, "--group", "old")
    assert "by\\nhand\\x1b[31m" in result.out
    assert "\x1b" not in result.out


def test_json_has_an_object_for_each_partition_of_a_group(
    run: Any, broker: Path
) -> None:
    """The names are promised in docs/cli.md."""
    found = objects(
        run("groups", "describe", broker, "--format", "jsonl", "--time", "iso")
    )
    assert len(found) == 4
    assert found[0] == {
        "schema": 1,
        "type": "group",
        "topic": "orders",
        "partition": 0,
        "group": "billing",
        "offset": 3,
        "metadata": "",
        "end": 10,
        "lag": 7,
        "member": "a",
        "client": "client-a",
        "host": "/10.0.0.1",
        "pid": None,
        "commitTimestamp": "1970-01-01T00:00:00.003Z",
        "protocol": "classic",
        "state": "Stable",
        "generation": 5,
        "members": 1,
    }
    assert (found[1]["offset"], found[1]["lag"], found[1]["member"]) == (
        None,
        None,
        "a",
    )
    assert found[1]["commitTimestamp"] is None
    assert (found[2]["topic"], found[2]["end"], found[2]["lag"]) == ("gone", None, None)
    assert found[3]["metadata"] == "by\nhand\x1b[31m"
    (row, _) = objects(
        run("groups", "describe", broker, "--group", "old", "--format", "jsonl")
    )
    assert row["commitTimestamp"] == 1_700_000_000_000


def test_group_without_partitions_is_a_line_of_its_own(
    run: Any, tmp_path: Path
) -> None:
    """A group is listed even if it has committed nothing."""
    empty = described(GroupMetadata("empty", "consumer", 2))
    broker = written(tmp_path / "broker", [empty], {})
    (value,) = objects(run("groups", "describe", broker, "--format", "jsonl"))
    assert (value["group"], value["topic"], value["partition"]) == ("empty", None, None)
    assert (value["offset"], value["state"]) == (None, "Empty")
    assert "empty" in run("groups", "describe", broker).out


def test_groups_and_topics_are_chosen_by_name_and_pattern(
    run: Any, broker: Path
) -> None:
    """An id with special characters is also its own name."""
    for arguments, expected in (
        (["--group", "b*"], ["billing", "billing"]),
        (
            ["--group", "old", "--group", "billing"],
            ["billing", "billing", "old", "old"],
        ),
        (["--topic", "gone"], ["old"]),
        (["--topic", "none"], []),
    ):
        found = objects(
            run("groups", "describe", broker, "--format", "jsonl", *arguments)
        )
        assert [one["group"] for one in found] == expected
    made = OffsetsTopic(broker.parent / "odd")
    made.put(commit_of(1, "[a]"), commit_of(1, "a"))
    (value,) = objects(
        run(
            "groups", "describe", made.directory, "--format", "jsonl", "--group", "[a]*"
        )
    ) or [{"group": ""}]
    assert value["group"] == "a"
    found = objects(
        run("groups", "describe", made.directory, "--format", "jsonl", "--group", "[a]")
    )
    assert {one["group"] for one in found} == {"[a]", "a"}


def test_groups_can_be_sorted(run: Any, broker: Path) -> None:
    """The rows are sorted by each column of the first table; unknown values come
    first."""
    for column in ("group", "state", "generation", "members", "partitions", "lag"):
        names = []
        for sort in (column, f"-{column}"):
            result = run("groups", "describe", broker, "--sort", sort)
            assert result.status == 0
            names.append([line.split()[0] for line in result.lines[1:3]])
        assert sorted(names[0]) == ["billing", "old"]
    lags = run("groups", "describe", broker, "--sort", "-lag").lines
    assert [line.split()[0] for line in lags[1:3]] == ["billing", "old"]


def test_what_is_not_here_is_said_and_no_fault(run: Any, tmp_path: Path) -> None:
    """Missing partitions, a group in one of them, an unknown group."""
    made = OffsetsTopic(tmp_path / "broker", partitions=20, topics={"t": (1,)})
    for number in range(15):
        if number != partition_of_group("here", 20):
            shutil.rmtree(made.directory / f"{TOPIC}-{number}")
    gone = next(
        name
        for name in map(str, range(99))
        if (made.directory / f"{TOPIC}-{partition_of_group(name, 20)}").exists()
        is False
    )
    result = run(
        "groups", "describe", made.directory, "--group", gone, "--group", "here"
    )
    assert (result.status, result.out) == (0, "no groups\n")
    assert "14 partitions of __consumer_offsets of 20 are missing (1," in result.err
    assert "10 and 4 more)" in result.err
    assert "there is no group here" in result.err
    assert f"group {gone} would be in {TOPIC}-" in result.err


def test_directory_without_the_topic_says_so(run: Any, store: Path) -> None:
    """A store of logstore is not a broker's directory."""
    result = run("groups", "describe", store)
    assert (result.status, result.out) == (0, "no groups\n")
    assert "no files of groups and no partition" in result.err


def test_records_of_other_groups_are_mentioned(run: Any, tmp_path: Path) -> None:
    """Share groups are no consumers."""
    made = OffsetsTopic(tmp_path)
    made.put((b"\0\x0b\0\1s", b"\0\0x"))
    result = run("groups", "describe", tmp_path)
    assert (result.status, result.out) == (0, "no groups\n")
    assert (
        "1 record of other kinds (share and streams groups) is not shown" in result.err
    )


def test_problems_are_reported_and_the_status_is_one(run: Any, tmp_path: Path) -> None:
    """Everything readable is printed."""
    made = OffsetsTopic(tmp_path)
    made.put(commit_of(1), (b"\0\2", b"x"))
    result = run("groups", "describe", tmp_path, "--format", "jsonl")
    assert result.status == 1
    assert len(result.lines) == 1
    assert "the record at offset 1 is left out: key.group" in result.err


def test_several_directories_are_read_together(run: Any, tmp_path: Path) -> None:
    """The topics of a group may be in another one."""
    first = OffsetsTopic(tmp_path / "a")
    first.put(commit_of(1))
    second = OffsetsTopic(tmp_path / "b", topics={"t": (4,)})
    shutil.rmtree(second.directory / f"{TOPIC}-0")
    for paths in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")):
        (value,) = objects(run("groups", "describe", *paths, "--format", "jsonl"))
        assert (value["end"], value["lag"]) == (4, 3)


def test_part_of_a_directory_is_refused(run: Any, broker: Path) -> None:
    """A partition or a file has no groups."""
    for path in (f"{TOPIC}-0", f"{TOPIC}-0/{0:020d}.log"):
        result = run("groups", "describe", broker / path)
        assert result.status == 2
        assert "give the log directory that contains it" in result.err


# ------------------------------------------------------------------ of a store


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A store with the group "g", which has read three of ten records."""
    path = store_with(tmp_path / "shop", partitions=1)
    with consumer(path) as one:
        settle(one)
        assert len(drain(one, 3)) == 3
        one.commit()
    return path


def test_groups_of_a_store_are_listed_beside_those_of_a_broker(
    run: Any, shop: Path, broker: Path
) -> None:
    """The processes of their members are shown."""
    assert ["g", "logstore", "Empty"] in [
        line.split()[:3] for line in run("groups", "describe", shop).lines
    ]
    with consumer(shop) as one:
        settle(one)
        (value,) = objects(run("groups", "describe", shop, "--format", "jsonl"))
        assert (value["group"], value["protocol"]) == ("g", "logstore")
        assert (value["offset"], value["end"], value["lag"]) == (3, 10, 7)
        assert (value["state"], value["pid"]) == ("Stable", os.getpid())
        assert value["client"] is None
        result = run("groups", "describe", shop, broker)
        assert (result.status, result.err) == (0, "")
        assert f"process {os.getpid()}" in result.out
        names = [line.split()[0] for line in result.lines[1:4]]
        assert names == ["g", "billing", "old"]


def test_list_has_a_line_for_each_group(run: Any, shop: Path, broker: Path) -> None:
    """The line has the total lag; as text and as JSON."""
    lines = [line.split() for line in run("groups", "list", shop, broker).lines]
    assert len(lines) == 5
    assert lines[1] == ["g", "logstore", "Empty", "2", "0", "0", "1", "7"]
    assert lines[4] == ["3", "groups", "1", "5", *lines[4][4:]]
    found = objects(run("groups", "list", shop, broker, "--format", "jsonl"))
    assert [one["group"] for one in found] == ["g", "billing", "old"]
    assert found[0] == {
        "schema": 1,
        "type": "consumerGroup",
        "topic": None,
        "partition": None,
        "group": "g",
        "protocol": "logstore",
        "state": "Empty",
        "generation": 2,
        "members": 0,
        "stuckMembers": 0,
        "partitions": 1,
        "lag": 7,
    }
    assert (found[1]["lag"], found[1]["stuckMembers"]) == (7, None)
    assert run("groups", "list", shop, "--group", "x").lines == ["no groups"]


def test_stat_of_a_store_ends_with_its_groups(
    run: Any, shop: Path, broker: Path
) -> None:
    """This holds for a store and for a broker's directory; a partition has no groups,
    and a store without groups prints nothing."""
    text = run("stat", shop).out
    assert text.endswith("\n" + run("groups", "list", shop).out)
    assert run("groups", "list", broker).out in run("stat", broker).out
    assert "protocol" not in run("stat", shop / "t-0").out
    assert "protocol" not in run("stat", shop, "--format", "jsonl").out
    (shop / layout.group_file("g")).write_bytes(b"no group")
    result = run("stat", shop)
    assert (result.status, "group" in result.err) == (1, True)


def test_reset_of_a_group_of_a_broker_says_whose_it_is(run: Any, broker: Path) -> None:
    """The error names the tool for it; an unknown group has a different error."""
    words = "groups", "reset", broker, "--to", "earliest", "--allow-shared-directory"
    result = run(*words, "--group", "old")
    assert result.status == 2
    assert "belongs to a Kafka broker: its offsets are in __consumer_off" in result.err
    assert "kafka-consumer-groups --reset-offsets" in result.err
    assert "--topics NAME commits offsets for a group of logstore" in result.err
    result = run(*words, "--group", "none")
    assert (result.status, "has committed no offset" in result.err) == (2, True)


def test_damaged_group_of_a_store_is_a_problem(run: Any, shop: Path) -> None:
    """The status is 1, and the file is named."""
    file = shop / layout.group_file("g")
    whole = file.read_bytes()
    for data, said in (
        (whole + b"x", "is damaged at byte"),
        (whole + bytes(9), "are an incomplete batch"),
    ):
        file.write_bytes(data)
        result = run("groups", "describe", shop)
        assert result.status == 1
        assert said in result.err
        assert str(file) in result.err


def test_stuck_members_and_lost_locks_are_mentioned(
    run: Any, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has to end them: nothing else takes their partitions away."""
    with consumer(shop) as one:
        settle(one)
        (group,) = logstore.groups(shop)
        (member,) = group.members
        for changed, text in (
            ({"has_ended": True}, "has ended, but a child of it still holds its locks"),
            (
                {"stuck_ms": 61_000},
                "holds t-0 and is stuck: its poll is 61 s overdue",
            ),
        ):
            members = (dataclasses.replace(member, **changed),)
            shown = logstore.types.ConsumerGroups(
                [dataclasses.replace(group, members=members)]
            )
            with monkeypatch.context() as patch:
                patch.setattr(logstore, "groups", lambda path, shown=shown: shown)
                for words in (["groups", "list"], ["groups", "describe"], ["stat"]):
                    result = run(*words, shop)
                    assert result.status == 0
                    assert text in result.err
                (value,) = objects(run("groups", "list", shop, "--format", "jsonl"))
            assert value["stuckMembers"] == int("stuck_ms" in changed)


def test_reset_sets_the_offsets(run: Any, shop: Path) -> None:
    """The former offsets are printed; with --dry-run nothing else happens."""
    words = ["groups", "reset", shop, "--group", "g"]
    result = run(*words, "--to", "earliest", "--dry-run")
    assert (result.status, result.err) == (0, "")
    assert result.lines[1].split() == ["t-0", "3", "0"]
    assert result.lines[2] == "1 offset of g would be committed"
    assert offset_in(shop) == 3
    for arguments, offset in (
        (["--to", "latest"], 10),
        (["--to", "4"], 4),
        (["--shift", "-3"], 1),
        (["--to", "2001-01-01T00:00:00Z"], 0),
        (["--to", "9999999999999ms"], 10),
        (["--to", "0", "--topics", "t"], 0),
    ):
        assert run(*words, *arguments, "--yes").status == 0
        assert offset_in(shop) == offset
    (value,) = objects(run(*words, "--to", "5", "--format", "jsonl", "--yes"))
    assert (value["type"], value["before"], value["after"]) == ("commit", 0, 5)
    assert value["dryRun"] is False
    new = [*words[:-1], "new", "--shift", "1", "--topics", "t", "--yes"]
    assert run(*new).out == "no offsets to change\n"


def test_reset_is_refused_with_status_two(run: Any, shop: Path) -> None:
    """Invalid arguments; live members; unknown groups."""
    words = ["groups", "reset", shop, "--group", "g"]
    for arguments, text in (
        ([], "give either --to or --shift"),
        (["--to", "1", "--shift", "1"], "give either --to or --shift"),
        (["--to", "yesterday"], "is not 'earliest'"),
        (["--to", "-5"], "is not 'earliest'"),
        (["--shift", "x"], "'x'"),
        (["--to", "1", "--topics", "none"], "none"),
    ):
        result = run(*words, *arguments)
        assert (result.status, text in result.err) == (2, True)
    result = run("groups", "reset", shop, "--group", "none", "--to", "1")
    assert (result.status, "--topics NAME commits" in result.err) == (2, True)
    with consumer(shop) as one:
        settle(one)
        result = run(*words, "--to", "1")
        assert result.status == 2
        assert f"has members in the processes {os.getpid()}" in result.err
    assert offset_in(shop) == 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A terminal, at which a person types a line."""

    def type_in(text: str) -> None:
        answers = io.StringIO(text)
        monkeypatch.setattr(answers, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", answers)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    return type_in


def test_reset_without_a_terminal_needs_a_word(run: Any, shop: Path) -> None:
    """A preview must not turn into a write: it takes --yes or --dry-run."""
    result = run("groups", "reset", shop, "--group", "g", "--to", "earliest")
    assert (result.status, result.out) == (2, "")
    assert "nothing was changed: repeat it with --yes, or with --dry-run" in result.err
    assert offset_in(shop) == 3


@pytest.mark.parametrize(
    ("answer", "offset"), [("y\n", 0), ("YES\n", 0), ("n\n", 3), ("\n", 3), ("", 3)]
)
def test_reset_shows_what_it_does_and_asks(
    run: Any, shop: Path, asked: Callable[[str], None], answer: str, offset: int
) -> None:
    asked(answer)
    result = run("groups", "reset", shop, "--group", "g", "--to", "earliest")
    # The question is not part of the output, which has the result and may be a file.
    assert "1 offset of g would be committed" in result.err
    assert "Commit these offsets for g? [y/N]" in result.err
    assert offset_in(shop) == offset
    assert result.status == (2 if offset else 0)
    assert ("1 offset of g are committed" in result.out) == (not offset)
    assert "would be" not in result.out


def test_reset_asks_only_if_there_is_something_to_change(
    run: Any, shop: Path, asked: Callable[[str], None]
) -> None:
    asked("y\n")
    words = ["--group", "new", "--shift", "1", "--topics", "t"]
    result = run("groups", "reset", shop, *words)
    assert (result.status, "[y/N]" in result.err) == (0, False)
    assert "no offsets to change" in result.err


def test_reset_does_what_was_shown(
    run: Any, shop: Path, asked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes made before the answer have no effect on it."""

    def meanwhile(change: Callable[[], object]) -> None:
        asked("y\n")
        monkeypatch.setattr(
            group_changes, "confirm", lambda printer, text: (change(), None)[1]
        )

    def grow() -> None:
        with logstore.open(shop) as store:
            store.topic("t")[0].append_many([b"x"] * 5)

    meanwhile(grow)
    words = ["groups", "reset", shop, "--group", "g"]
    assert run(*words, "--to", "latest").status == 0
    assert offset_in(shop) == 10
    meanwhile(lambda: logstore.reset_offsets(shop, "g", to=2, dry_run=False))
    result = run(*words, "--shift", "-1")
    assert result.status == 2
    assert "have changed since the changes were shown" in result.err
    assert offset_in(shop) == 2


# ------------------------------------------------------------------ export


def test_export_of_a_group_of_a_store(run: Any, shop: Path, target: Path) -> None:
    """Its offsets go to the broker, except for topics that are gone."""
    with consumer(shop, topics=()) as one, logstore.open(shop) as opened:
        opened.create_topic("gone", 1)
        key = logstore.TopicPartition("gone", 0)
        one.assign([key])
        one.commit({key: 0})
        opened.delete_topic("gone")
    words = ["groups", "export", shop, "--group", "g", "--to", target]
    (value,) = objects(run(*words, "--format", "jsonl", "--yes"))
    assert (value["topic"], value["after"]) == ("t", 3)
    assert offsets_of(logstore.kafka.groups(target))["g", "t", 0] == 3


def test_export_and_reset_show_their_changes_alike(
    run: Any, shop: Path, target: Path
) -> None:
    """The same objects, and the same table above the sentence."""
    export = ["groups", "export", shop, "--group", "g", "--to", target, "--dry-run"]
    reset = ["groups", "reset", shop, "--group", "g", "--to", "latest", "--dry-run"]
    shown = [objects(run(*words, "--format", "jsonl")) for words in (export, reset)]
    assert [list(value) for value in shown[0]] == [list(value) for value in shown[1]]
    tables = [run(*words).lines for words in (export, reset)]
    assert tables[0][0].split() == tables[1][0].split()
    assert tables[1][-1] == "1 offset of g would be committed"
    assert tables[0][-1].startswith(f"{tables[1][-1]} in __consumer_offsets-")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A stopped broker, where "old" has an offset."""
    made = OffsetsTopic(tmp_path / "target", partitions=3)
    made.put(commit_of(1, "old", "gone", 4), partition=partition_of_group("old", 3))
    return made.directory


def test_export_commits_the_offsets(run: Any, broker: Path, target: Path) -> None:
    """The former offsets are printed."""
    arguments = ["groups", "export", broker, "--group", "old", "--to", target]
    before = snapshot_of(target)
    result = run(*arguments, "--dry-run")
    assert result.status == 0
    assert "2 offsets of old would be committed in __consumer_offsets-" in result.out
    assert snapshot_of(target) == before
    found = objects(run(*arguments, "--format", "jsonl", "--yes"))
    assert [one["type"] for one in found] == ["commit", "commit"]
    assert found[0] == {
        "schema": 1,
        "type": "commit",
        "topic": "gone",
        "partition": 4,
        "group": "old",
        "before": 1,
        "after": 7,
        "metadata": "",
        "dryRun": False,
    }
    assert (found[1]["before"], found[1]["after"]) == (None, 9)
    groups = logstore.kafka.groups(target)
    assert offsets_of(groups) == {("old", "gone", 4): 7, ("old", "orders", 0): 9}
    result = run(*arguments, "--yes")
    assert "2 offsets of old are committed" in result.out
    assert ["gone-4", "7", "7"] in [line.split() for line in result.lines]


def test_export_is_refused_with_status_two(
    run: Any, broker: Path, target: Path, tmp_path: Path
) -> None:
    """If the broker has the lock; if the group is unknown; without options."""
    words = ["groups", "export", broker, "--group", "old", "--to", target]
    with logstore.open(target):
        result = run(*words, "--yes")
        assert (result.status, "is open for writing" in result.err) == (2, True)
    result = run("groups", "export", broker, "--group", "none", "--to", target)
    assert (result.status, "has committed no offset" in result.err) == (2, True)
    result = run("groups", "export", broker, "--group", "old", "--to", tmp_path / "x")
    assert (result.status, "no such file or directory:" in result.err) == (2, True)
    for missing in ("--group", "--to"):
        left = [*words]
        del left[left.index(missing) : left.index(missing) + 2]
        result = run(*left)
        assert (result.status, f"'{missing}'" in result.err) == (2, True)


def test_export_asks_too(
    run: Any, broker: Path, target: Path, asked: Callable[[str], None]
) -> None:
    """Without a terminal it takes --yes or --dry-run."""
    words = ["groups", "export", broker, "--group", "old", "--to", target]
    before = snapshot_of(target)
    result = run(*words)
    assert (result.status, "repeat it with --yes" in result.err) == (2, True)
    assert snapshot_of(target) == before
    asked("y\n")
    assert run(*words).status == 0
    assert offsets_of(logstore.kafka.groups(target))["old", "orders", 0] == 9


def test_directory_with_the_name_of_a_subcommand_is_a_path(
    run: Any, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./export`, as docs/cli.md says."""
    monkeypatch.chdir(broker.parent)
    broker.rename("export")
    assert "billing" in run("groups", "describe", "./export").out
