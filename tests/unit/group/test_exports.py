"""Handing a group's offsets over to a broker: written records, and refusals."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker.groups import kafka_groups
from logstore.broker.kafka_records import OffsetCommit
from logstore.broker.lag import OffsetChange
from logstore.broker.placement import partition_of_group
from logstore.errors import CommitFailedError
from logstore.group.exports import GroupExport, export_group
from logstore.io.files import Files
from support.broker import foreign
from support.damage import flip_bit, logs_in, snapshot_of
from support.offsets_topic import (
    OffsetsTopic,
    commit_of,
    committed,
    offsets_of,
    written,
)

TOPIC = "__consumer_offsets"
HOLDS = """\
import sys, fcntl, struct
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A group "g" with two offsets, and another one."""
    rich = OffsetCommit("g", "t", 1, 4, 7, "müll", 1000, 2000, "0f" * 16)
    pairs = [commit_of(3), committed(rich), commit_of(9, "h")]
    return written(tmp_path / "source", pairs, {"t": (5, 5)})


@pytest.fixture
def broker(tmp_path: Path) -> OffsetsTopic:
    """A stopped broker with three partitions for groups; "g" has an offset there."""
    made = OffsetsTopic(tmp_path / "broker", partitions=3, topics={"t": (6, 6)})
    made.put(
        commit_of(1), commit_of(2, topic="u"), partition=partition_of_group("g", 3)
    )
    return made


def test_offsets_are_committed_in_the_partition_of_the_group(
    source: Path, broker: OffsetsTopic
) -> None:
    """They have the time of the call, without the epoch and topic id of the source;
    offsets of other partitions and of other groups stay."""
    number = partition_of_group("g", 3)
    for dry_run in (True, False):
        before = time.time_ns() // 1_000_000
        export = export_group(source, "g", to=broker.directory, dry_run=dry_run)
        changes = (
            OffsetChange("t", 0, 1, 3),
            OffsetChange("t", 1, None, 4, "müll"),
        )
        path = str(broker.directory)
        assert export == GroupExport("g", path, number, changes, dry_run)
    groups = kafka_groups(broker.directory)
    assert offsets_of(groups) == {("g", "t", 0): 3, ("g", "t", 1): 4, ("g", "u", 0): 2}
    (group,) = groups
    assert group.offsets_partition == number
    row = group.partitions[1]
    assert (row.metadata, row.leader_epoch, row.topic_id) == ("müll", -1, None)
    assert row.expire_ms is None
    assert row.commit_ms >= before


def test_dry_run_writes_nothing(source: Path, broker: OffsetsTopic) -> None:
    """Neither directory changes."""
    seen = snapshot_of(source), snapshot_of(broker.directory)
    assert export_group(source, "g", to=broker.directory, dry_run=True).dry_run
    assert (snapshot_of(source), snapshot_of(broker.directory)) == seen


def test_only_what_was_shown_is_exported(source: Path, broker: OffsetsTopic) -> None:
    """The changes of a dry run are made, or none if they differ by now."""
    planned = export_group(source, "g", to=broker.directory, dry_run=True).changes
    seen = offsets_of(kafka_groups(broker.directory))
    others = (dataclasses.replace(planned[0], after=1), *planned[1:])
    for wrong in (others, planned[:1], ()):
        with pytest.raises(CommitFailedError, match="have changed since") as caught:
            export_group(
                source, "g", to=broker.directory, dry_run=False, expected=wrong
            )
        assert caught.value.group == "g"
    assert offsets_of(kafka_groups(broker.directory)) == seen
    done = export_group(
        source, "g", to=broker.directory, dry_run=False, expected=planned
    )
    assert done.changes == planned


def test_source_is_not_written(source: Path, broker: OffsetsTopic) -> None:
    """It may be the directory of another broker that runs."""
    seen = snapshot_of(source)
    export_group(source, "g", to=broker.directory, dry_run=False)
    assert snapshot_of(source) == seen


def test_second_export_changes_nothing_more(source: Path, broker: OffsetsTopic) -> None:
    """It can be repeated, as after an error."""
    for _ in range(2):
        export = export_group(source, "g", to=broker.directory, dry_run=False)
    assert [(one.before, one.after) for one in export.changes] == [(3, 3), (4, 4)]


def test_open_transaction_of_the_broker_does_not_win_later(
    source: Path, broker: OffsetsTopic
) -> None:
    """A commit that was pending when the broker stopped is older than the export, also
    if its marker comes after that."""
    number = partition_of_group("g", 3)
    broker.put(commit_of(77), partition=number, producer=9)
    export_group(source, "g", to=broker.directory, dry_run=False)
    with logstore.open(broker.directory, read_only=True) as store:
        end = store.topic(TOPIC)[number].end_offset
    broker.continue_at(number, end)
    broker.end(9, 1, partition=number)
    assert offsets_of(kafka_groups(broker.directory))["g", "t", 0] == 3


def test_log_of_old_batches_gets_old_batches(source: Path, tmp_path: Path) -> None:
    """A broker before 0.11 does not know magic 2."""
    old = tmp_path / "old"
    key, value = commit_of(1)
    with logstore.open(old) as store:
        magic_1 = logstore.TopicConfig(message_format=1)
        store.create_topic(TOPIC, config=magic_1).append(value, key=key)
    foreign(old)
    export_group(source, "g", to=old, dry_run=False)
    with logstore.open(old, read_only=True) as store:
        batches = list(store.topic(TOPIC)[0].read_batches())
    assert [batch.magic for batch in batches] == [1, 1, 1]
    assert offsets_of(kafka_groups(old))["g", "t", 0] == 3


def test_group_of_many_partitions_is_exported_whole(
    tmp_path: Path, broker: OffsetsTopic
) -> None:
    """The group needs more than one batch."""
    offsets = [
        committed(OffsetCommit("big", "t", number, number, metadata="m" * 3000))
        for number in range(1000)
    ]
    made = OffsetsTopic(tmp_path / "big")
    made.put(*offsets)
    export_group(made.directory, "big", to=broker.directory, dry_run=False)
    found = offsets_of(kafka_groups(broker.directory))
    assert {number: found["big", "t", number] for number in range(1000)} == {
        number: number for number in range(1000)
    }
    with logstore.open(broker.directory, read_only=True) as store:
        partition = store.topic(TOPIC)[partition_of_group("big", 3)]
        sizes = [batch.size_bytes for batch in partition.read_batches()]
    assert max(sizes) <= 1 << 20


# ------------------------------------------------------------------ refusals


def refused(
    broker: Path, call: Callable[[], Any], kind: type[logstore.LogStoreError], text: str
) -> None:
    """The call raises this error, and changes nothing in the broker's directory except
    for the files of the lock, which it has briefly held if it was free."""
    kept = (".lock",) if kind is logstore.StoreLockedError else (".", ".lock")
    seen = {
        name: stamp for name, stamp in snapshot_of(broker).items() if name not in kept
    }
    with pytest.raises(kind, match=text):
        call()
    after = snapshot_of(broker)
    assert {name: after.get(name) for name in seen} == seen


def test_running_broker_refuses(source: Path, broker: OffsetsTopic) -> None:
    """A broker has the lock, as another program would."""
    lock = broker.directory / ".lock"
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        refused(
            broker.directory,
            lambda: export_group(source, "g", to=broker.directory, dry_run=False),
            logstore.StoreLockedError,
            f"process {process.pid}",
        )
        assert process.stdin is not None
        process.stdin.close()
    assert export_group(source, "g", to=broker.directory, dry_run=False).changes


def test_group_that_is_not_there_is_told_from_one_that_is_not_here(
    source: Path, broker: OffsetsTopic, tmp_path: Path
) -> None:
    """Three different reasons; nothing is written."""
    partly = tmp_path / "partly"
    made = OffsetsTopic(partly, partitions=2)
    checkpoint = f"0\n2\n{TOPIC} 0 0\n{TOPIC} 1 0\n"
    (made.directory / "replication-offset-checkpoint").write_text(checkpoint)
    shutil.rmtree(partly / f"{TOPIC}-{partition_of_group('gone', 2)}")
    nothing = OffsetsTopic(tmp_path / "nothing", topics={"t": (1,)}).directory
    shutil.rmtree(nothing / f"{TOPIC}-0")
    for path, group, text in (
        (source, "none", "'none' has committed no offset"),
        (partly, "gone", "which is missing"),
        (nothing, "g", "neither in its own file nor in __consumer_offsets"),
    ):
        for dry_run in (True, False):
            with pytest.raises(
                logstore.errors.GroupNotFoundError, match=text
            ) as caught:
                export_group(path, group, to=broker.directory, dry_run=dry_run)
            assert (caught.value.group, caught.value.path) == (group, str(path))


def test_broker_without_all_of_the_topic_refuses(
    source: Path, broker: OffsetsTopic
) -> None:
    """The number of partitions must be known, because it decides which partition has a
    group."""
    (broker.directory / "replication-offset-checkpoint").write_text(
        f"0\n1\n{TOPIC} 4 1\n"
    )
    for dry_run in (True, False):
        refused(
            broker.directory,
            lambda dry_run=dry_run: export_group(
                source, "g", to=broker.directory, dry_run=dry_run
            ),
            logstore.errors.PartitionNotFoundError,
            "has 3 of the 5 or more partitions",
        )
    (broker.directory / "replication-offset-checkpoint").write_text(
        f"0\n1\n{TOPIC} {2**31 - 2} 1\n"
    )
    with pytest.raises(
        logstore.errors.PartitionNotFoundError, match="3 of the 2147483647"
    ):
        export_group(source, "g", to=broker.directory, dry_run=True)
    (broker.directory / "replication-offset-checkpoint").unlink()
    shutil.rmtree(broker.directory / f"{TOPIC}-1")
    with pytest.raises(
        logstore.errors.PartitionNotFoundError, match="2 of the 3 or more"
    ):
        export_group(source, "g", to=broker.directory, dry_run=True)


def test_broker_without_the_topic_refuses(source: Path, tmp_path: Path) -> None:
    """The broker creates the topic itself, with its configured number of partitions."""
    made = OffsetsTopic(tmp_path / "new", topics={"t": (1,)})
    shutil.rmtree(made.directory / f"{TOPIC}-0")
    with pytest.raises(logstore.TopicNotFoundError, match="have a group commit"):
        export_group(source, "g", to=made.directory, dry_run=True)


def test_directories_that_cannot_be_meant_are_refused(
    source: Path, tmp_path: Path
) -> None:
    """A missing directory is not made; the directory of the group itself is refused."""
    with pytest.raises(logstore.StoreNotFoundError):
        export_group(source, "g", to=tmp_path / "none", dry_run=False)
    assert not (tmp_path / "none").exists()
    with pytest.raises(logstore.ConfigError, match="to the same directory"):
        export_group(source, "g", to=os.path.join(source, "."), dry_run=False)


def test_damaged_log_of_the_broker_refuses(source: Path, broker: OffsetsTopic) -> None:
    """If the end of the log is unknown, nothing is appended."""
    number = partition_of_group("g", 3)
    broker.put(commit_of(5), partition=number)
    (log,) = logs_in(broker.directory / f"{TOPIC}-{number}")
    flip_bit(log, 8 * 70)
    (broker.directory / "recovery-point-offset-checkpoint").write_text(
        f"0\n1\n{TOPIC} {number} 3\n"
    )
    (broker.directory / ".kafka_cleanshutdown").touch()
    data = log.read_bytes()
    with pytest.raises(logstore.CorruptionError):
        export_group(source, "g", to=broker.directory, dry_run=False)
    assert log.read_bytes() == data


def test_full_disk_leaves_the_former_offsets(
    source: Path, broker: OffsetsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is named; the offsets of the broker count."""
    (log,) = logs_in(broker.directory / f"{TOPIC}-{partition_of_group('g', 3)}")
    size = log.stat().st_size

    def full(self: Files, fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Files, "sync", full)
        with pytest.raises(logstore.StorageError):
            export_group(source, "g", to=broker.directory, dry_run=False)
    assert log.stat().st_size >= size
    found = offsets_of(kafka_groups(broker.directory))
    assert found["g", "t", 0] in (1, 3)
    export_group(source, "g", to=broker.directory, dry_run=False)
    assert offsets_of(kafka_groups(broker.directory))["g", "t", 0] == 3
