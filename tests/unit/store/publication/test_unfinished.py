"""Remains of a publication after a crash: its entry in the journal, the seal of the
entry, and its segments in each log; and the decision which of them count."""

from __future__ import annotations

import errno
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import LogStoreError, Store
from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import end_of, later_entry, split_entries
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.disk import MemoryDisk
from support.disk_changes import ROOT, Nodes
from support.values import config_of

JOURNAL = f"store/{layout.PUBLICATION}"
LOGS = [f"store/a-{number}/{0:020d}.log" for number in range(2)]
ENTRIES = "whole", "torn", "lost"
CONTENTS = "whole", "short", "zeros", "other"
IDENTITY = "test"


def publish(store: Store, sequence: int, value: bytes) -> None:
    """Publish two records to each of both partitions."""
    with store.stage(IDENTITY, sequence) as stage:
        for partition in store.topic("a"):
            stage.append_many(partition, [value] * 2, timestamps_ms=[1, 2])
        staged = stage.finish()
    store.publish([staged], identity=IDENTITY, sequence=sequence)


class World:
    """A store whose last publication is sealed, and its bytes before that publication.

    Args:
        is_mixed: a plain append comes between two publications to a log.
    """

    def __init__(self, *, is_mixed: bool, value: bytes = b"second") -> None:
        self.disk = MemoryDisk()
        store = open_quietly(self.disk)
        store.create_topic("a", 2, config_of(2))
        publish(store, 1, b"first")
        self.bases = [2, 2]
        if is_mixed:
            store.topic("a")[0].append(b"plain", timestamp_ms=1, durable=True)
            self.bases = [3, 2]
        before = self.disk.tree()
        self.sizes = [len(before[name]) for name in LOGS]
        self.nodes = dict(self.disk.medium.nodes)
        publish(store, 2, value)
        self.after = self.disk.tree()

    def journal(self, entry: str, *, is_sealed: bool) -> bytes:
        data = self.after[JOURNAL]
        end = split_entries(data)[1].size
        begin = data.rindex(b"xxh64 ", 0, end)
        if entry == "whole":
            return data if is_sealed else data[:end]
        # The entry was written over the seal of the previous one.
        return data[: begin + (0 if entry == "lost" else (end - begin) // 2)]

    def log(self, number: int, content: str, other: World) -> bytes:
        data, begin = self.after[LOGS[number]], self.sizes[number]
        if content == "short":
            return data[: (begin + len(data)) // 2]
        if content == "zeros":
            return data[:begin] + bytes(len(data) - begin)
        return other.after[LOGS[number]] if content == "other" else data

    def left(self, files: dict[str, bytes], *, same_boot: bool) -> MemoryDisk:
        """The disk with these files after the end of the process, or of the machine."""
        disk, nodes = self.disk.kill(), dict(self.nodes)
        for name, data in files.items():
            nodes[node_of(nodes, name)] = data
        if not same_boot:
            return MemoryDisk(nodes)
        disk.medium.nodes = dict(nodes)
        disk.medium.base, disk.medium.pending = dict(nodes), []
        return disk.process()


def node_of(nodes: Nodes, path: str) -> int:
    number = ROOT
    for part in path.split("/"):
        names = nodes[number]
        assert isinstance(names, dict)
        number = names[part]
    return number


def verify(disk: MemoryDisk) -> tuple[logstore.types.VerifyNote, ...]:
    report = logstore.verify(PATH, _files=disk)
    assert not report.problems
    return report.notes


def seen(store: Store) -> tuple[list[int], int | None]:
    return [p.end_offset for p in store.topic("a")], store.published(IDENTITY)


@pytest.mark.parametrize("same_boot", [False, True], ids=["restart", "kill"])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["", "mixed"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_without_a_seal_counts_if_all_logs_have_its_bytes(
    entry: str, is_mixed: bool, same_boot: bool
) -> None:
    """Otherwise all logs keep their earlier ends. A log with whole batches of other
    bytes is damaged, and is not cut. Readers decide the same before there is an owner;
    remembered publications count for them once durable."""
    other = World(is_mixed=is_mixed, value=b"altern")
    for contents in itertools.product(CONTENTS, repeat=2):
        if same_boot and "zeros" in contents:
            continue  # the kernel had all bytes
        world = World(is_mixed=is_mixed)
        files = {JOURNAL: world.journal(entry, is_sealed=False)}
        if same_boot and entry == "lost":
            # The seal of the previous entry is only lost with the machine.
            end = split_entries(files[JOURNAL])[1]
            files[JOURNAL] += later_entry(end, b"[]")
        files |= {n: world.log(i, contents[i], other) for i, n in enumerate(LOGS)}
        disk = world.left(files, same_boot=same_boot)
        before, done = world.bases, 1
        after = [end + 2 for end in before]
        counts = (entry, contents) == ("whole", ("whole", "whole"))
        with open_quietly(disk.process(), read_only=True) as reader:
            ends, number = seen(reader)
            assert ends == (after if counts else before), contents
            assert number == (2 if counts and not same_boot else done), contents
        store = open_quietly(disk)
        assert seen(store) == ((after, 2) if counts else (before, done)), contents
        damaged = [i for i in range(2) if entry == "whole" and contents[i] == "other"]
        for number, partition in enumerate(store.topic("a")):
            if number in damaged:
                with pytest.raises(
                    LogStoreError, match="of the unfinished publication"
                ):
                    partition.append(b"x")
                name = LOGS[number]
                assert disk.tree()[name].startswith(files[name])
            else:
                assert partition.append(b"x") == seen(store)[0][number] - 1
        store.close()
        # The verdict, and the end of the log, stay the same.
        store = open_quietly(disk)
        for number in damaged:
            assert store.topic("a")[number].end_offset == before[number]
            with pytest.raises(LogStoreError):
                store.topic("a")[number].append(b"x")
        store.close()


@pytest.mark.parametrize("is_mixed", [False, True], ids=["", "mixed"])
def test_sealed_entry_counts_whatever_the_logs_have(is_mixed: bool) -> None:
    """It was synced with its logs: a shorter one has lost data, and is neither cut nor
    written to."""
    other = World(is_mixed=is_mixed, value=b"altern")
    for contents in itertools.product(CONTENTS, repeat=2):
        world = World(is_mixed=is_mixed)
        files = {JOURNAL: world.journal("whole", is_sealed=True)}
        files |= {n: world.log(i, contents[i], other) for i, n in enumerate(LOGS)}
        disk = world.left(files, same_boot=False)
        with open_quietly(disk) as store:
            assert store.published(IDENTITY) == 2, contents
            for number, partition in enumerate(store.topic("a")):
                if contents[number] in ("short", "zeros"):
                    with pytest.raises(LogStoreError):
                        partition.append(b"x")
                else:
                    assert partition.append(b"x") == world.bases[number] + 2


def test_part_of_what_follows_an_entry_is_its_seal() -> None:
    """A torn entry over the seal of the previous one does not revoke the seal, and
    readers do not check its logs."""
    world = World(is_mixed=False)
    data = world.journal("whole", is_sealed=False)
    for tail in (b"x", b"xxh64 0123456789abc", bytes(5)):
        logs = {name: world.after[name] for name in LOGS}
        disk = world.left({JOURNAL: data + tail, **logs}, same_boot=True)
        with open_quietly(disk, read_only=True) as reader:
            assert seen(reader) == ([4, 4], 2)
        with open_quietly(disk) as store:
            assert seen(store) == ([4, 4], 2)
        world = World(is_mixed=False)


def test_entry_of_a_log_that_went_on_in_another_segment_counts() -> None:
    """It was synced before that segment began, and may be compacted since."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    store.create_topic("a", 1, config_of(2))
    publish(store, 1, b"first")
    publish(store, 2, b"second")
    store.topic("a")[0].roll()
    data = disk.tree()[JOURNAL]
    nodes = {
        n: node[: split_entries(data)[1].size] if node == data else node
        for n, node in disk.kill().medium.nodes.items()
    }
    name = f"store/a-0/{0:020d}.log"
    log = disk.tree()[name]
    again = MemoryDisk(nodes)
    with open_quietly(again) as opened:
        assert opened.topic("a")[0].end_offset == 4
        assert opened.published(IDENTITY) == 2
    assert again.tree()[name] == log


@pytest.mark.parametrize("count", [1, 3, 19])
def test_logs_and_journal_are_synced_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The call that writes the entry, and its seal. The disk begins with all of them at
    once; if there are many, several threads wait."""
    real, calls = native.Steps.make, list[list[native.Step]]()

    def make(self: native.Steps, end: int, begin: int = 0) -> tuple[int, int]:
        calls.append([self[number] for number in range(begin, end)])
        return real(self, end, begin)

    with open_store(tmp_path) as store:
        topic = store.create_topic("a", count, config_of(2))
        publish(store, 1, b"first")
        monkeypatch.setattr(native.Steps, "make", make)
        publish(store, 2, b"second")
        monkeypatch.undo()
        (made,) = calls
        assert [step.kind for step in made] == [
            native.STEP_STAMP,
            native.STEP_WRITE,
            native.STEP_SYNC,
            native.STEP_WRITE,
        ]
        assert made[2].size == 4 * (count + 1)
        assert [p.end_offset for p in topic] == [4] * count


def test_reader_beside_sees_a_publication_when_it_is_sealed(tmp_path: Path) -> None:
    """Its entry is in the file before, and the records are in the logs."""
    found: list[object] = []

    class Looking(Files):
        def sync(self, fd: int) -> None:
            if reader and is_looking:
                found.append(seen(reader[0]))
            super().sync(fd)

    reader: list[Store] = []
    is_looking = False
    with open_store(tmp_path, _files=Looking()) as store:
        store.create_topic("a", 2, config_of(2))
        publish(store, 1, b"first")
        with logstore.open(tmp_path, read_only=True) as beside:
            reader.append(beside)
            is_looking = True
            publish(store, 2, b"second")
            is_looking = False
            assert found == [([2, 2], 1)] * 3
            assert seen(beside) == ([4, 4], 2)
            reader.clear()


def test_sync_of_a_log_that_fails_leaves_nothing_of_its_entry() -> None:
    """The power may fail at any time then: the journal is cut, durably."""
    for number in range(2):
        world_disk = MemoryDisk()
        store = open_quietly(world_disk)
        store.create_topic("a", 2, config_of(2))
        publish(store, 1, b"first")
        name = f"a-{number}/{0:020d}.log".split("/")[-1]
        world_disk.fail("sync", errno.EIO, name=name, nth=number + 1, times=1)
        with pytest.raises(LogStoreError, match="sync"):
            publish(store, 2, b"second")
        world_disk.heal()
        assert seen(store) == ([2, 2], 1)
        killed = world_disk.kill()
        for nodes in (killed.moment().base, killed.moment().nodes):
            with open_quietly(MemoryDisk(nodes)) as again:
                assert seen(again) == ([2, 2], 1)


def test_entry_that_cannot_be_taken_back_is_said_to_be_unknown() -> None:
    """The sync of a log has failed, and then the cut of the journal."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    store.create_topic("a", 2, config_of(2))
    publish(store, 1, b"first")
    disk.fail("sync", errno.EIO, name=".log", times=1)
    disk.fail("truncate", errno.EIO, name=layout.PUBLICATION)
    with pytest.raises(logstore.errors.SyncFailedError, match="is not known"):
        publish(store, 2, b"second")
    with pytest.raises(LogStoreError):
        publish(store, 3, b"third")
    disk.heal()
    with open_quietly(disk.kill()) as again:
        ends, done = seen(again)
        assert ends == [2 * (done or 0)] * 2


def test_journal_of_the_version_before_is_read_as_before() -> None:
    """Its last entry counts without a seal: its logs were synced before it was
    written."""
    world = World(is_mixed=False)
    logs = {name: world.after[name] for name in LOGS}
    bodies, _ = split_entries(world.after[JOURNAL])
    value: dict[str, Any] = checkpoints.entry_value("", bodies[0], layout.PUBLICATION)
    first = {**value, "version": 3, "bases": [["a", 0, 2], ["a", 1, 2]]}
    later = {**value, "version": 3, "bases": [["a", 0, 4], ["a", 1, 2]]}
    later["changes"] = [[IDENTITY, 7, 2, 1, "", False, ""]]
    del later["generation"]
    data = checkpoints.pack_state(first)
    text = checkpoints.state_text(later).encode()
    data += later_entry(end_of(data, None), text)
    for same_boot in (True, False):
        disk = world.left({JOURNAL: data, **logs}, same_boot=same_boot)
        with open_quietly(disk.process(), read_only=True) as reader:
            assert seen(reader) == ([4, 2], 7)
    with open_quietly(disk) as store:
        assert seen(store) == ([4, 2], 7)


def test_earlier_version_refuses_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(is_mixed=False)
    disk = world.left({JOURNAL: world.after[JOURNAL]}, same_boot=True)
    versions = {**checkpoints._LATER_VERSIONS, layout.PUBLICATION: 3}
    monkeypatch.setattr(checkpoints, "_LATER_VERSIONS", versions)
    with pytest.raises(logstore.errors.UnsupportedError, match="version 4"):
        open_quietly(disk)


def test_kill_while_publishing_is_told_as_what_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of it was acknowledged, and no caller requested the cut: it is logged
    with level INFO and the number of records, and is in the report of the opening."""
    world = World(is_mixed=False)
    files = {name: world.after[name] for name in LOGS}
    files[JOURNAL] = world.journal("lost", is_sealed=False)
    disk = world.left(files, same_boot=True)
    (note,) = (n for n in verify(disk) if n.kind == "unpublished")
    assert "nothing of it was acknowledged" in note.message
    caplog.set_level("INFO", "logstore")
    with open_store(PATH, _files=disk) as store:
        assert seen(store) == ([2, 2], 1)
        actions = store.recovery_report.actions
    messages = [
        f"undid an unfinished publication, 2 records from offset 2 on in a-{number}; "
        f"nothing of it was acknowledged"
        for number in range(2)
    ]
    assert [action.message for action in actions] == messages
    logged = [(one.levelname, one.getMessage()) for one in caplog.records]
    for number, message in enumerate(messages):
        assert ("INFO", f"recovery: unpublished: {message}") in logged
        reason = "a publication was not finished; 2 offsets dropped"
        assert ("INFO", f"a-{number} truncated to offset 2: {reason}") in logged
    about = [one for one in logged if re.search("recovery|truncated", one[1])]
    assert len(about) == 4
    assert {level for level, _ in about} == {"INFO"}


def test_cut_that_was_asked_for_is_told_as_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason of a cut is its caller's."""
    caplog.set_level("INFO", "logstore")
    with logstore.open(tmp_path) as store:
        log = store.create_topic("a")[0]
        log.append_many([b"x"] * 3)
        log.truncate_to(1)
    assert "a-0 truncated to offset 1: asked for; 2 offsets dropped" in caplog.text
