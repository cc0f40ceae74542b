"""The file of a group: committed offsets, after failures of every kind."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.broker.kafka_records import (
    OffsetCommit,
    format_group_key,
    format_offset_key,
    format_offset_value,
)
from logstore.group.file import group_file as group_file_module
from logstore.group.file import group_log as group_log_module
from logstore.group.file.batches import Batches
from logstore.group.file.group_file import GroupFile, record_id
from logstore.group.file.state import (
    HEADER,
    AssignmentRow,
    GroupState,
    Member,
    format_state,
)
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files, ProcessId
from support.damage import flip_bit
from support.disk import MemoryDisk
from support.groups import T0, T1, OneMember, offset_in
from support.levels import some
from support.power_cut import cuts

NAME = ".logstore-group-g"


@pytest.fixture(autouse=True, params=[False, True], ids=["in steps", "at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both implementations of a commit."""
    monkeypatch.setattr(OneMember, "at_once", request.param)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneMember]:
    member = OneMember(tmp_path)
    yield member
    member.close()


def file_in(path: Path) -> Path:
    return path / NAME


def size_on(disk: MemoryDisk) -> int:
    return next(len(data) for path, data in disk.tree().items() if path.endswith(NAME))


# ------------------------------------------------------------------ contents


def test_last_commit_counts(one: OneMember, tmp_path: Path) -> None:
    """This holds for each partition, and for every member."""
    assert one.offset() is None
    one.commit(3)
    one.commit(7, T1, metadata="x", leader_epoch=4, topic_id="ab" * 16)
    one.commit(5)
    assert offset_in(tmp_path) == 5
    other = OneMember(tmp_path)
    assert other.offset(T1) == 7
    commit = other.file.committed(T1)
    assert commit == OffsetCommit("g", "t", 1, 7, 4, "x", 1, None, "ab" * 16)
    assert [one.offset for one in other.file.commits()] == [5, 7]


def test_removed_commit_counts_no_more(one: OneMember, tmp_path: Path) -> None:
    """A record without a value removes it."""
    one.commit(3)
    one.commit(4, T1)
    one.file.append(one.slots, removed=[T0])
    assert offset_in(tmp_path) is None
    assert offset_in(tmp_path, T1) == 4


def test_state_is_read_as_written(one: OneMember, tmp_path: Path) -> None:
    """Members, table, topics, way to commit."""
    member = Member("m-0", 0, "i", ("t",), "t.*", (T0, T1), True)
    rows = {T0: AssignmentRow(0, "ab" * 16), T1: AssignmentRow(7, "")}
    state = GroupState(5, "range", "commits", (member,), rows, {"t": (0, 1)}, 9)
    one.file.append(one.slots, state=state)
    other = OneMember(tmp_path)
    assert other.file.refresh()
    assert not other.file.refresh()
    assert other.file.state == state
    assert other.file.state.assigned() == {T0: member, T1: member}
    assert other.file.state.member("m-0") == member
    assert other.file.state.member("m-1") is None


def test_file_of_an_unknown_group_says_which(one: OneMember) -> None:
    """It is needed to list all groups of a store."""
    one.commit(3)
    file = GroupFile(one.root, NAME)
    file.refresh()
    assert (file.group, len(file.commits())) == ("g", 1)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("orders", "orders"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("a.lock", "a%2Elock"),
        ("ü", "%C3%BC"),
        ("\N{PILE OF POO}", "%F0%9F%92%A9"),
        ("x" * 180, "x" * 180),
        (".", "%2E"),
    ],
)
def test_id_is_escaped(group: str, name: str) -> None:
    """No two groups have the same file."""
    assert layout.group_file(group) == f".logstore-group-{name}"


def test_long_id_has_its_digest_as_a_name() -> None:
    """It has more than 180 bytes; the lock file's name fits, too."""
    names = {layout.group_file("x" * n) for n in (181, 300, 10_000)}
    assert len(names) == 3
    assert all(name.startswith(".logstore-group-%sha256-") for name in names)
    assert all(len(layout.group_lock_file(name)) < 255 for name in names)
    listed = [".logstore-group-a", ".logstore-group-a.lock", ".logstore-group-a.tmp"]
    assert layout.group_files([*listed, "x", *names]) == [listed[0], *names]


@pytest.mark.parametrize("group", ["", "a\0b", "x" * 10_001, "\ud800", 5, None])
def test_bad_id_is_refused(group: str) -> None:
    """No file is made."""
    with pytest.raises(logstore.ConfigError, match="bad group id") as caught:
        layout.group_file(group)
    assert caught.value.name == "group"


@pytest.mark.parametrize("group", ["x" * 10_000, "\N{PILE OF POO}" * 10_000])
def test_longest_id_can_be_committed(tmp_path: Path, group: str) -> None:
    """A text of Kafka's has at most 32,767 bytes: a longer id is shortened."""
    name = layout.group_file(group)
    member = OneMember(tmp_path, group)
    commit = OffsetCommit(member.file.group, "t", 0, 5)
    member.file.append(member.slots, [commit])
    again = GroupFile(member.root, name, record_id(group))
    again.refresh()
    assert again.committed(T0) == commit


# ------------------------------------------------------------------ two members


def commit_in_turn(path: Path, rounds: int) -> list[int | None]:
    """Offsets found after two members have committed in turns."""
    one, two = OneMember(path), OneMember(path)
    for offset in range(rounds):
        one.commit(offset, T0)
        two.commit(offset, T1)
    return [offset_in(path, T0), offset_in(path, T1)]


def test_tail_is_read_again_before_each_append(tmp_path: Path) -> None:
    """No commit of another member is overwritten."""
    assert commit_in_turn(tmp_path, 20) == [19, 19]


def test_position_cached_under_the_lock_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the test above can fail."""
    monkeypatch.setattr(GroupFile, "refresh_held", lambda self, slots: None)
    try:
        found: object = commit_in_turn(tmp_path, 20)
    except (logstore.LogStoreError, FileExistsError) as error:
        found = error
    assert found != [19, 19]


# ------------------------------------------------------------------ syncs


class CountedSyncs(Files):
    syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def test_durable_commit_is_synced_once(tmp_path: Path) -> None:
    """One sync that covers it is enough."""
    files = CountedSyncs()
    one = OneMember(tmp_path, files=files)
    one.commit(1)
    before = files.syncs
    one.commit(2, durable=True)
    assert files.syncs == before + 1
    other = OneMember(tmp_path)
    other.file.refresh()
    other.file.sync(other.slots, other.file.end)
    one.file.sync(one.slots, one.file.end)
    assert files.syncs == before + 1


def test_sync_does_not_wait_for_ever(
    one: OneMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member has the turn and is stuck."""
    monkeypatch.setattr(group_log_module, "_SYNC_WAIT_S", 0.01)
    other = OneMember(tmp_path)
    assert other.slots.point.take_turn()
    one.commit(2, durable=True)
    assert offset_in(tmp_path) == 2


def test_failed_sync_is_an_error_until_the_file_is_written_anew() -> None:
    """The system may have dropped the bytes: another sync would not write them."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(1, durable=True)
    disk.fail("sync", name=NAME, times=1)
    with pytest.raises(logstore.errors.SyncFailedError, match="may lose it"):
        one.commit(2, durable=True)
    with pytest.raises(logstore.errors.SyncFailedError):
        one.file.sync(one.slots, one.file.end)
    one.commit(3, durable=True)
    moment = disk.moment()
    for _, nodes in cuts(moment, random.Random(1), 8):
        assert offset_in("/store", files=MemoryDisk(nodes)) == 3


# ------------------------------------------------------------------ failures


def test_full_disk_leaves_the_file_as_it_was() -> None:
    """A commit that has no room does not count, and the next one with room works."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(1)
    size = size_on(disk)
    disk.fail("write", errno.ENOSPC, name=NAME, short=20, times=1)
    with pytest.raises(logstore.DiskFullError):
        one.commit(2)
    assert size_on(disk) == size
    one.commit(3)
    assert offset_in("/store", files=disk.process()) == 3


def test_kill_in_the_middle_of_an_append_is_cut_off() -> None:
    """This holds even if the member that wrote cannot cut it."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(1)
    disk.fail("write", errno.ENOSPC, name=NAME, short=20, times=1)
    disk.fail("truncate", errno.EIO, name=NAME, times=1)
    with pytest.raises(logstore.DiskFullError):
        one.commit(2)
    other = OneMember("/store", files=disk.process())
    assert other.offset() == 1  # without the mutex nothing is cut
    other.commit(3)
    assert other.offset() == 3
    assert one.offset() == 3


@pytest.mark.parametrize("call", range(1, 30))
def test_failing_call_loses_no_commit(call: int) -> None:
    """Any call may fail, any number of times: earlier commits are still there."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(1, durable=True)
    disk.fail("*", errno.EIO, nth=call, times=1)
    done = 1
    for offset in (2, 3):
        try:
            one.commit(offset, durable=True)
        except logstore.errors.SyncFailedError:
            done = offset
        except (logstore.LogStoreError, OSError):
            continue
        else:
            done = offset
    disk.heal()
    found = offset_in("/store", files=disk.kill())
    assert found is not None
    assert found >= done


def test_file_that_was_removed_in_use_is_not_made_again(one: OneMember) -> None:
    """Its contents would be lost silently."""
    one.commit(1)
    one.root.unlink(NAME)
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="removed while"):
        one.commit(2)
    assert not one.root.exists(NAME)


def test_file_that_has_no_more_offsets_refuses(one: OneMember, tmp_path: Path) -> None:
    """No checksum covers the offset of its last batch."""
    one.commit(3)
    before = file_in(tmp_path).read_bytes()
    one.file._log.last_offset = layout.OFFSET_MAX - 1
    for durable in (False, True):
        with pytest.raises(logstore.StorageError, match="no room for 1 more"):
            one.commit(4, durable=durable)
    assert file_in(tmp_path).read_bytes() == before


def test_file_that_was_cut_in_use_is_damage(one: OneMember, tmp_path: Path) -> None:
    """No member cuts whole batches."""
    one.commit(1)
    one.commit(2)
    os.truncate(file_in(tmp_path), 30)
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="30 bytes"):
        one.commit(3)
    assert file_in(tmp_path).stat().st_size == 30


# ------------------------------------------------------------------ damage


def three_commits(path: Path, *, durable: bool) -> list[int]:
    """A file with three batches; where each ends."""
    member, ends = OneMember(path), []
    for offset in (1, 2, 3):
        member.commit(offset, durable=durable)
        ends.append(member.file.end.size)
    member.close()
    return ends


def test_every_torn_tail_is_cut(tmp_path: Path) -> None:
    """At each length, whole batches count."""
    ends = three_commits(tmp_path, durable=False)
    data = file_in(tmp_path).read_bytes()
    for size in some(range(len(data) + 1), 40):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / NAME).write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert offset_in(tmp_path / "s") == (whole or None)
        kept = (tmp_path / "s" / NAME).stat().st_size
        assert kept == ([0, *ends][whole])


def test_zeros_at_the_end_are_cut(tmp_path: Path) -> None:
    """A file system may leave them if it had written only the length."""
    three_commits(tmp_path, durable=False)
    data = file_in(tmp_path).read_bytes()
    file_in(tmp_path).write_bytes(data + bytes(100))
    assert offset_in(tmp_path) == 3
    assert file_in(tmp_path).read_bytes() == data


@pytest.mark.parametrize("position", [8, 11, 16, 17, 40, 60, 70])
def test_damage_before_whole_batches_is_an_error(tmp_path: Path, position: int) -> None:
    """This holds even for a damaged length, which leads past them: the file is not
    changed."""
    ends = three_commits(tmp_path, durable=False)
    data = bytearray(file_in(tmp_path).read_bytes())
    data[ends[0] + position] ^= 0x41
    file_in(tmp_path).write_bytes(data)
    kinds = logstore.errors.CorruptCheckpointError, logstore.errors.UnsupportedError
    with pytest.raises(kinds, match=f"{NAME}.* at byte {ends[0]}|version"):
        offset_in(tmp_path)
    assert file_in(tmp_path).read_bytes() == data


def test_damage_of_what_was_durable_is_an_error(tmp_path: Path) -> None:
    """The last batch is no torn tail if a sync has covered it."""
    ends = three_commits(tmp_path, durable=True)
    data = file_in(tmp_path).read_bytes()
    changed = bytearray(data)
    changed[-3] ^= 1
    with file_in(tmp_path).open("r+b") as file:
        file.write(changed)
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match="were durable"
    ) as caught:
        offset_in(tmp_path)
    assert caught.value.position == ends[1]
    with file_in(tmp_path).open("r+b") as file:
        file.truncate(ends[1] + 9)
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="were durable"):
        offset_in(tmp_path)
    assert file_in(tmp_path).stat().st_size == ends[1] + 9


class NextBoot(Files):
    def process_id(self) -> ProcessId:
        return super().process_id()._replace(boot=bytes(range(16)))


def test_damage_after_a_power_failure_is_cut(tmp_path: Path) -> None:
    """Appends after the last sync may reach the disk in any order then; only once:
    later damage is an error again."""
    member = OneMember(tmp_path)
    member.commit(1, durable=True)
    for offset in (2, 3):
        member.commit(offset)
    end = member.file.end.size
    flip_bit(file_in(tmp_path), 8 * (end // 3 + 40))
    assert offset_in(tmp_path, files=NextBoot()) == 1
    assert file_in(tmp_path).stat().st_size == end // 3
    again = OneMember(tmp_path, files=NextBoot())
    for offset in (4, 5):
        again.commit(offset)
    flip_bit(file_in(tmp_path), 8 * (end // 3 + 40))
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match="whole batch follows"
    ):
        offset_in(tmp_path, files=NextBoot())


@pytest.mark.parametrize(
    "data", [b"hello", b"\1" * 100, b"PK\3\4" + bytes(60), b"\0" * 16 + b"\1"]
)
def test_file_of_someone_else_stays(tmp_path: Path, data: bytes) -> None:
    """No append writes such bytes."""
    file_in(tmp_path).write_bytes(data)
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        offset_in(tmp_path)
    assert file_in(tmp_path).read_bytes() == data


def test_file_of_another_group_is_refused(tmp_path: Path) -> None:
    """It was copied, for example."""
    three_commits(tmp_path, durable=True)
    data = file_in(tmp_path).read_bytes()
    (tmp_path / ".logstore-group-h").write_bytes(data)
    other = OneMember(tmp_path, "h")
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="other groups"):
        other.file.refresh()


def test_records_of_other_groups_beside_own_ones_are_left_out(one: OneMember) -> None:
    """A copy of a broker's batches may have them."""
    own, other = OffsetCommit("g", "t", 0, 4), OffsetCommit("h", "t", 0, 9)
    items = [
        (format_offset_key(c.group, "t", 0), format_offset_value(c), None)
        for c in (own, other)
    ]
    with one.root.use() as fd:
        file = one.root.files.create(fd, NAME)
        one.root.files.write(
            file, Batches(one.root.files).batch([*items, (b"\0\x09x", b"", None)], 0), 0
        )
    assert one.offset() == 4
    assert one.file.commits() == [own]


def group_record(one: OneMember, header: dict[str, object]) -> None:
    value, _ = format_state("g", GroupState(3))
    item = (format_group_key("g"), value, json.dumps(header).encode())
    data = Batches(one.root.files).batch([item], 0)
    with one.root.use() as fd:
        file = one.root.files.create(fd, NAME)
        one.root.files.write(file, data, 0)


GOOD: dict[str, object] = {
    "version": 1,
    "way": "",
    "members": [],
    "rows": [],
    "topics": {},
}


def test_later_version_is_refused(one: OneMember, tmp_path: Path) -> None:
    """It is no damage, and nothing is changed."""
    group_record(one, {**GOOD, "version": 2, "new": 1})
    data = file_in(tmp_path).read_bytes()
    with pytest.raises(logstore.errors.UnsupportedError, match="version is 2"):
        offset_in(tmp_path)
    assert file_in(tmp_path).read_bytes() == data


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "1"},
        {"version": 0},
        {"way": "x"},
        {"way": []},
        {"members": [1]},
        {"members": None},
        {"rows": [[0, "t", 0]]},
        {"rows": [[2048, "t", 0, ""]]},
        {"rows": [[1, "t", 0, ""], [1, "t", 1, ""]]},
        {"rows": [[1, 5, 0, ""]]},
        {"topics": {"t": [-1]}},
        {"topics": [1]},
        {"topics": {"t": 7}},
    ],
)
def test_malformed_header_is_damage(one: OneMember, wrong: dict[str, object]) -> None:
    """The header may contain anything."""
    group_record(one, {**GOOD, **wrong})
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="malformed"):
        one.file.refresh()


def test_record_of_a_broker_has_no_members_here(one: OneMember) -> None:
    """Its generation counts, so that the next one is higher."""
    value, _ = format_state("g", GroupState(41, members=(Member("m", 0),)))
    data = Batches(one.root.files).batch([(format_group_key("g"), value, None)], 0)
    with one.root.use() as fd:
        file = one.root.files.create(fd, NAME)
        one.root.files.write(file, data, 0)
    one.file.refresh()
    assert one.file.state == GroupState(41)
    assert HEADER == "logstore"


# ------------------------------------------------------------------ rewritten


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_file_module, "_REWRITE_BYTES", 2000)


def test_file_is_written_anew_when_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rewritten at four times the size of its live records; other members
    continue in the new one."""
    small(monkeypatch)
    one, two = OneMember(tmp_path), OneMember(tmp_path)
    one.file.append(one.slots, state=GroupState(3, "range", "commits"))
    for offset in range(200):
        one.commit(offset, T0)
        two.commit(offset, T1)
        assert (one.offset(T0), one.offset(T1)) == (offset, offset)
    assert file_in(tmp_path).stat().st_size < 4000
    assert two.file.state.generation == 3
    assert offset_in(tmp_path) == 199
    assert not list(tmp_path.glob("*.tmp"))


def test_failure_to_write_anew_is_none_of_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit counts; the rewrite is tried again later."""
    small(monkeypatch)
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    disk.fail("*", errno.EIO, name=".tmp")
    for offset in range(40):
        one.commit(offset)
    disk.heal()
    assert offset_in("/store", files=disk.process()) == 39
    for offset in range(40, 80):
        one.commit(offset)
    assert size_on(disk) < 4000


@pytest.mark.parametrize("model", ["weak", "ext4"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(5)
def test_power_failure_keeps_durable_commits(
    model: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure comes at each moment, and leaves the disk in any state; the group
    continues."""
    small(monkeypatch)
    rng = random.Random(seed)
    disk = MemoryDisk(model=model, seed=seed)
    disk.make_root("/store")
    moments = disk.record()
    one = OneMember("/store", files=disk)
    promised: list[tuple[int, int]] = []
    for offset in range(1, 40):
        durable = rng.random() < 0.3
        one.commit(offset, durable=durable)
        if durable:
            promised.append((len(moments), offset))
    last = one.file.end
    assert last[1] < 4000  # it was rewritten meanwhile
    for index in some(range(len(moments)), 60, salt=f"{seed}"):
        least = max((p for at, p in promised if at <= index), default=0)
        for words, nodes in cuts(moments[index], rng, 4, model=model):
            after = MemoryDisk(nodes, model=model)
            try:
                found = offset_in("/store", files=after)
            except logstore.LogStoreError as error:
                pytest.fail(f"moment {index}, {words}: {error}")
            assert (found or 0) >= least, (index, words)
            again = OneMember("/store", files=after.process())
            again.commit(100, durable=True)
            assert again.offset() == 100


def test_directory_of_the_store_is_that_of_the_group(tmp_path: Path) -> None:
    """A group's files are plain files in the root of a store."""
    member = OneMember(tmp_path)
    member.commit(1)
    assert sorted(os.listdir(tmp_path)) == [NAME, f"{NAME}.lock"]
    assert Directory.open_root(Files(), str(tmp_path)).directories() == []
