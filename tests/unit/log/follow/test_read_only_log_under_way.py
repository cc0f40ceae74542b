"""A read under way in a log that is cut, deleted, created again, taken over or
put back from a backup: it gives records of one log, and says how it ends."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore import OffsetOutOfRangeError, TopicNotFoundError
from logstore.errors import PartitionNotFoundError
from logstore.store.opening import open_store
from support.broker import bases, compaction, foreign
from support.broker_logs import TICK_S, two_logs
from support.changing_logs import Scene, put_back, write_epochs
from support.damage import FaultyFiles, Unsynced, frames, logs_in
from support.read_ways import SIZE, WAYS, append
from support.values import config_of

# Such records are more than any reader has read ahead.
COUNT = 1600

# Makes the log, yields how many records are read then, and changes it; perhaps again.
# The second value that it gets is the partition that is read.
Change = Generator[int, logstore.Partition, None]

READS = ("read", "skip", "committed", "batches", "arrow")
SMALL: dict[str, Any] = {"segment_bytes": 150_000}


class Row(NamedTuple):
    """A change of a log, and what a read under way gives.

    Attributes:
        change: of old records to new ones.
        error: what the read ends with; empty: it reaches the end.
        ways, where: of the read.
        end: of the old records that it gives; -1: anywhere.
        new: how many new ones follow them.
        says: the text of the error (`match`), and its attributes.
        options: of the read.
        then: (value, how many) that the log has then; empty: not asked.
    """

    change: Callable[..., Change]
    error: tuple[type[Exception], ...] = ()
    ways: tuple[str, ...] = (*WAYS,)
    where: tuple[str, ...] = ("own", "other")
    end: int = -1
    new: int = 0
    says: dict[str, Any] = {}
    options: dict[str, Any] = {}
    then: tuple[tuple[bytes, int], ...] = ()


# ------------------------------------------------------------------ logstore's writer


def cut(
    scene: Scene, at: int, to: int, new: int, *, more: int = 0, **settings: Any
) -> Change:
    """Cut the log of a read at `at`, after it has grown; it grows again."""
    p = scene.create(**settings)
    append(p, b"old", COUNT)
    reader = yield at
    append(p, b"old", more)
    p.truncate_to(to)
    append(p, b"new", new)
    if not new:
        # Another reader in its process may look meanwhile.
        assert reader.end_offset == to


def cut_for_other_batches(scene: Scene, magic: int) -> Change:
    """Any bytes may replace the beginning of a batch, even a later format."""
    p = scene.create(magic)
    append(p, b"old", COUNT)
    yield 1
    p.truncate_to(0)
    for _ in range(40):
        p.append(b"new" + b"\x7f" * 100_000)


def failed_append(scene: Scene) -> Change:
    """A reader looks while the record is in the file, which is then cut."""
    files, seen = FaultyFiles(), []

    def look(method: str, name: str) -> None:
        # Readers may have seen these bytes, so they are synced before the cut is noted.
        if method == "sync" and name.endswith(".log") and not seen:
            seen.append(reader.end_offset)

    p = scene.create(files=files)
    p.append_many([b"old".ljust(SIZE)] * COUNT)
    p.flush()
    reader = yield 1
    files.before = look
    files.fail("write", errno.EIO, name=".log", times=1, done=True)
    with pytest.raises(logstore.StorageError):
        p.append(b"bad" * 200)
    assert seen == [COUNT + 1]
    append(p, b"new", 100)
    assert reader.end_offset == COUNT + 100


def deleted_before(scene: Scene, at: int, to: int, more: int = 0) -> Change:
    """The files stay for a while."""
    p = scene.create(**SMALL)
    append(p, b"old", COUNT)
    yield at
    append(p, b"new", more)
    p.delete_before(to)
    assert [*scene.partition_path.glob("*.deleted")]


def deleted(scene: Scene, at: int = 1, more: int = 0, **settings: Any) -> Change:
    p = scene.create(**SMALL, **settings)
    append(p, b"old", COUNT - more)
    yield at
    append(p, b"old", more)
    scene.store.delete_topic("orders")


def cut_and_deleted(scene: Scene, at: int, to: int) -> Change:
    """The files of a read that has begun stay, but they were cut."""
    p = scene.create(2)
    append(p, b"old", to)
    if at == to:
        p.roll()
    append(p, b"old", COUNT - to)
    p.flush()
    yield at
    p.truncate_to(to)
    append(p, b"new", COUNT)
    p.flush()
    scene.store.delete_topic("orders")


def made_anew(scene: Scene, new: int, *, is_same_place: bool = False) -> Change:
    """The new segments may have the names of the old ones, and the new directory may
    have the number of the old one; then the id in the state differs."""
    p = scene.create(**SMALL)
    append(p, b"old", COUNT)
    p.flush()
    reader: Any = yield 10
    p = scene.recreate(**SMALL)
    append(p, b"new", new)
    p.flush()
    if is_same_place:
        info, followed = reader._log.directory.info(), reader._log._log
        place = info.device, info.inode
        followed._stamp = followed._stamp._replace(directory_id=place)


# ------------------------------------------------------------------ a backup, a broker


def backup(scene: Scene, how: str) -> Change:
    append(scene.saved(500), b"old", COUNT)
    scene.store.close()
    yield 800
    put_back(scene.backup, scene.path, how)
    p = scene.open_partition()
    assert p.end_offset == 500
    append(p, b"new", 2 * COUNT)
    p.flush()


def backup_with_the_same_state(scene: Scene) -> Change:
    """No state was written between the backup and the lost records, and files without a
    change since then are not copied back: only the log and the mark of its writer
    change."""
    state = "orders-0/.logstore-state"
    scene.killed(500, COUNT)
    yield 800
    assert (scene.path / state).read_bytes() == (scene.backup / state).read_bytes()
    scene.log.write_bytes(scene.saved_log.read_bytes())
    append(scene.open_partition(), b"new", 2 * COUNT)


def taken_back(scene: Scene, cut_to: int, *, rolls: bool, is_seen: bool) -> Change:
    """The log was another program's, when it was read or between two looks; then
    logstore's writer takes it over. Its last segment may have been empty, and may be
    empty again in between."""
    p = scene.create()
    append(p, b"old", COUNT)
    if rolls:
        p.roll()
    scene.store.close()
    if is_seen:
        scene.to_another_program()
    yield COUNT
    if not is_seen:
        scene.to_another_program()
    p = scene.open_partition()
    if cut_to < COUNT:
        p.truncate_to(cut_to)
        append(p, b"new", COUNT - cut_to)
        if rolls:
            p.roll()
    append(p, b"new", 10)


def broker(scene: Scene, *, is_clean: bool) -> Change:
    """A broker removes the clean-shutdown marker when it starts; after a kill there is
    no marker, and its recovery points show it. No batch of magic 1 has a leader
    epoch."""
    live = scene.path.with_name("live")
    for path, value in (live, b"old"), (scene.backup, b"new"):
        with open_store(path, _files=Unsynced()) as store:
            p = store.create_topic("orders", config=config_of(1))[0]
            for number in range(COUNT):
                mine = (b"old" if number < 100 else value).ljust(300, b".")
                p.append(mine, timestamp_ms=number)
    with contextlib.ExitStack() as stack:
        if not is_clean:
            store = stack.enter_context(open_store(live, _files=Unsynced()))
            store.topic("orders")[0].append(b"old")
        shutil.copytree(live, scene.path)
    time.sleep(TICK_S)
    reader = yield 300
    assert reader.end_offset >= COUNT
    points = "recovery-point-offset-checkpoint"
    (scene.path / (".kafka_cleanshutdown" if is_clean else points)).unlink()
    replace_from(scene.log, logs_in(scene.backup / "orders-0")[0].read_bytes(), 100)


def replace_from(log: Path, new: bytes, number: int) -> None:
    """Cut a file at a batch, in place, and write others there."""
    at = frames(log)[number].pos
    os.truncate(log, at)
    with log.open("r+b") as file:
        file.seek(at)
        file.write(new[at:])


def replica(
    scene: Scene, seen: dict[int, int], same: int, count: int, cut_at: int = 0
) -> Change:
    """Others of the same sizes replace batches exactly: nothing looks like damage.

    Args:
        seen: ends of the log before that, with the number of records read at each.
    """
    log, old, new, begins = two_logs(scene.path.parent / "logs", count, same)
    log.parents[1].rename(scene.path)
    begins.append(len(old))
    reader = None
    for end, read in seen.items():
        scene.log.write_bytes(old[: begins[end]])
        if reader is None:
            time.sleep(TICK_S)
        else:
            assert reader.end_offset == end
        reader = yield read
    if cut_at:
        replace_from(scene.log, new, cut_at)
    else:
        scene.log.write_bytes(new)


def rolled_and_compacted(scene: Scene, count: int) -> Change:
    """The last segment at the first look is compacted at the next, alone or together
    with the one before."""
    append(scene.create(2, segment_bytes=50_000), b"old", 100)
    scene.store.close()
    write_epochs(foreign(scene.path), (1, 0))
    last = logs_in(scene.partition_path)[-1]
    data = last.read_bytes()
    last.unlink()
    (scene.path / "recovery-point-offset-checkpoint").unlink()
    yield int(last.name[:20])
    last.write_bytes(data)
    chosen = bases(scene.partition_path)[-1 - count : -1]
    for step in compaction(scene.partition_path, chosen, lambda n: n % 3 != 0):
        step()


def some_files_replaced(scene: Scene, cut: int) -> Change:
    """If only the last file was replaced, all before it still stands. If more was cut,
    the other files may have their names, numbers and sizes again: the epoch of the new
    leader begins at the first different record."""
    logs = []
    for path, value in ((scene.path, b"old"), (scene.backup, b"new")):
        with open_store(path, _files=Unsynced()) as store:
            p = store.create_topic("orders", config=config_of(2))[0]
            for number in range(150):
                if number in (50, 100):
                    p.roll()
                mine = b"old" if number < cut else value
                p.append(mine.ljust(300, b"."), timestamp_ms=number)
        logs.append(logs_in(foreign(path)))
    (scene.path / "recovery-point-offset-checkpoint").unlink()
    time.sleep(TICK_S)
    yield 60
    if cut < 100:
        write_epochs(scene.partition_path, (0, 0), (1, cut))
    for log, new in zip(*logs, strict=True):
        if log.read_bytes() != new.read_bytes():
            log.write_bytes(new.read_bytes())


# ------------------------------------------------------------------ the table

OUT, GONE = (OffsetOutOfRangeError,), (PartitionNotFoundError,)
EITHER, NO_TOPIC = (*OUT, *GONE), (TopicNotFoundError,)
FOLLOW, THREE = ("follow",), ("read", "batches", "arrow")
MOST, OTHER, OWN = (*THREE, *FOLLOW), ("other",), ("own",)
TO_500 = {"cut_to": 500}

ROWS: dict[str, Row] = {
    # Cut below the place of the read, batch over batch.
    "cut-1": Row(
        partial(cut, at=600, to=500, new=COUNT),
        OUT,
        says={"match": "truncated to offset 500", "cut_to": 500},
        then=((b"old", 500), (b"new", COUNT)),
    ),
    "cut-2": Row(
        partial(cut, at=600, to=500, new=COUNT, magic=2), OUT, MOST, says=TO_500
    ),
    "cut-and-shorter": Row(partial(cut, at=600, to=500, new=0), OUT, MOST, says=TO_500),
    **{
        f"cut-for-others-{magic}": Row(
            partial(cut_for_other_batches, magic=magic),
            OUT,
            THREE,
            then=((b"new", 40),),
        )
        for magic in (0, 1, 2)
    },
    # Cut above it: what stays is given.
    "cut-above": Row(partial(cut, at=10, to=1100, new=COUNT), OUT, READS, end=1100),
    "cut-above-and-shorter": Row(
        partial(cut, at=1, to=1100, new=0, magic=2), OUT, READS, end=1100
    ),
    "cut-between-segments": Row(
        partial(cut, at=10, to=500, new=COUNT, **SMALL), OUT, READS, end=500
    ),
    "cut-right-before-it": Row(
        partial(cut, at=501, to=500, new=COUNT, **SMALL), OUT, MOST, says=TO_500
    ),
    "cut-far-before-it": Row(
        partial(cut, at=620, to=500, new=0, magic=2, **SMALL), OUT, MOST, says=TO_500
    ),
    **{
        f"cut-above-a-follower-{skip}": Row(
            partial(cut, at=10, to=1100, new=COUNT, magic=magic),
            (),
            FOLLOW,
            end=1100,
            new=COUNT,
            options={"on_corruption": skip},
        )
        for magic, skip in ((1, "raise"), (2, "skip"))
    },
    "cut-at-a-follower": Row(
        partial(cut, at=COUNT, to=COUNT, new=10, more=3), (), FOLLOW, end=COUNT, new=10
    ),
    "failed-append": Row(failed_append, (), FOLLOW, OTHER, COUNT, 100),
    # Deleted, or another one.
    "deleted-before": Row(partial(deleted_before, at=1, to=900), (), READS, end=COUNT),
    "deleted-before-a-follower": Row(
        partial(deleted_before, at=COUNT, to=COUNT + 50, more=100),
        OUT,
        FOLLOW,
        end=COUNT,
        says={"requested": COUNT, "start": COUNT + 50},
    ),
    "deleted": Row(deleted, (), READS, OWN, COUNT),
    "deleted-behind-a-follower": Row(
        partial(deleted, at=COUNT - 1, more=1), NO_TOPIC, FOLLOW, OWN, COUNT
    ),
    "deleted-elsewhere": Row(
        partial(deleted, file_delete_delay_ms=0),
        GONE,
        where=OTHER,
        says={"match": "orders-0 is no longer at"},
    ),
    "cut-and-deleted": Row(
        partial(cut_and_deleted, at=1, to=1100), NO_TOPIC, where=OWN
    ),
    # Even a read up to the cut has more to read.
    "cut-and-deleted-behind-a-part": Row(
        partial(cut_and_deleted, at=1, to=1100),
        NO_TOPIC,
        READS,
        OWN,
        options={"stop": 1100},
    ),
    **{
        f"cut-and-deleted-at-a-follower-{durable}": Row(
            partial(cut_and_deleted, at=1000, to=1000),
            NO_TOPIC,
            FOLLOW,
            OWN,
            1000,
            options={"durable_only": durable},
        )
        for durable in (False, True)
    },
    **{
        f"made-anew-with-{new}{'-in-the-same-place' * is_same}": Row(
            partial(made_anew, new=new, is_same_place=is_same),
            GONE,
            ("read", "follow") if is_same else MOST,
            OTHER,
            says={"match": "another topic"},
            then=((b"new", new),),
        )
        for new, is_same in ((50, False), (2 * COUNT, False), (2 * COUNT, True))
    },
    "backup-replaced": Row(partial(backup, how="replaced"), EITHER, MOST, OTHER),
    "backup-overwritten": Row(partial(backup, how="overwritten"), EITHER, MOST, OTHER),
    "backup-with-the-same-state": Row(
        backup_with_the_same_state,
        EITHER,
        MOST,
        OTHER,
        then=((b"old", 500), (b"new", 2 * COUNT)),
    ),
    # Another program.
    "taken-back-and-cut": Row(
        partial(taken_back, cut_to=500, rolls=True, is_seen=True),
        OUT,
        FOLLOW,
        OTHER,
        COUNT,
    ),
    **{
        f"taken-back-{'unnoticed-' * (not is_seen)}{rolls}": Row(
            partial(taken_back, cut_to=COUNT, rolls=rolls, is_seen=is_seen),
            (),
            FOLLOW,
            OTHER,
            COUNT,
            10,
        )
        for rolls in (False, True)
        for is_seen in (False, True)
    },
    **{
        f"broker-after-{name}": Row(
            partial(broker, is_clean=name == "close"),
            OUT,
            THREE,
            OTHER,
            says={"match": "was truncated"},
        )
        for name in ("close", "kill")
    },
    "replica": Row(
        partial(replica, seen={COUNT: 600}, same=500, count=COUNT, cut_at=500),
        OUT,
        MOST,
        OTHER,
        then=((b"old", 500), (b"new", COUNT - 500)),
    ),
    "replica-at-a-follower": Row(
        partial(replica, seen={50: 50, 70: 0}, same=50, count=100),
        (),
        FOLLOW,
        OTHER,
        50,
        50,
    ),
    "replica-below-a-follower": Row(
        partial(replica, seen={80: 80}, same=50, count=100), OUT, FOLLOW, OTHER, 80
    ),
    **{
        f"rolled-and-compacted-{count}": Row(
            partial(rolled_and_compacted, count=count), (), FOLLOW, OTHER, 100
        )
        for count in (1, 2)
    },
    # Records that were decoded before are given.
    **{
        f"replica-cuts-{cut_to}": Row(
            partial(some_files_replaced, cut=cut_to),
            OUT,
            THREE,
            OTHER,
            100,
            says={"cut_to": lowest},
            then=((b"old", cut_to), (b"new", 150 - cut_to)),
        )
        for cut_to, lowest in ((20, 20), (120, 100))
    },
}


@pytest.mark.parametrize(
    ("name", "way", "where"),
    [
        (n, way, where)
        for n, row in ROWS.items()
        for way in row.ways
        for where in row.where
    ],
)
def test_read_under_way_gives_one_log_and_says_how_it_ends(
    tmp_path: Path, name: str, way: str, where: str
) -> None:
    """Records of the log before the change, without a hole, then the named error or the
    records after them; a new read gives the present log."""
    row = ROWS[name]
    with Scene(tmp_path) as scene:
        change = row.change(scene)
        count = next(change)
        with scene.reading(where) as reading:
            reader = reading.topic("orders")[0]
            records, found = WAYS[way](reader, **row.options), []
            with contextlib.suppress(StopIteration):
                while True:
                    found += itertools.islice(records, count)
                    count = change.send(reader)
            error = None
            try:
                for pair in records:
                    found.append(pair)
            except row.error as caught:
                error = caught
            assert (error is None) == (not row.error), len(found)
            said = {key: getattr(error, key) for key in row.says if key != "match"}
            assert said.items() <= row.says.items()
            assert row.says.get("match", "") in str(error)
            if row.error == GONE:
                for call in (
                    reader.read,
                    lambda: reader.fetch(0),
                    lambda: reader.get(0),
                ):
                    with pytest.raises(GONE, match=row.says["match"]):
                        call()
            if row.then:
                now = reading.topic("orders")[0].read()
                values = [(record.value or b"")[:3] for record in now]
                assert values == [v for value, n in row.then for v in [value] * n]
    first = found[0][0]
    assert [offset for offset, _ in found] == list(range(first, first + len(found)))
    values = [value[:3] for _, value in found]
    old = values.count(b"old")
    assert values == [b"old"] * old + [b"new"] * row.new
    assert row.end in (-1, first + old)
