"""A log that changes at any call of a look, or of a read: the answer is right before or
after the change, and the next look sees it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore import CorruptRecordError, OffsetOutOfRangeError
from logstore.errors import PartitionNotFoundError
from logstore.store.opening import open_store
from support.broker import foreign
from support.broker_logs import TICK_S
from support.changing_logs import Scene, bounds, put_back, write_epochs, write_starts
from support.damage import FaultyFiles, Unsynced, frames, logs_in
from support.levels import Steps
from support.read_ways import SIZE, append, pairs_of
from support.values import config_of, fill


class Look(Scene):
    """A log that changes at a call of a look.

    Attributes:
        reader: the partition that looks, once it is open.
        records, found: of a read under way.
        error: that the call of the change raises.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader: logstore.Partition
        self.records: Iterator[tuple[int, bytes]] = iter(())
        self.found: list[tuple[int, bytes]] = []
        self.error: BaseException | None = None


# Makes the log, yields, makes a change that the look finds, yields, makes the change
# during the look; then perhaps yields, and changes the log after the look.
Change = Iterator[None]


class Row(NamedTuple):
    """A change, and the answers that are right.

    Attributes:
        ask: of the scene.
        right: whether an answer is.
        errors: that the answer may be.
        opens: the reader opens the log in this look.
    """

    change: Callable[[Look], Change]
    ask: Callable[[Look], Any]
    right: Callable[[Any], bool]
    errors: tuple[type[BaseException], ...] = ()
    opens: bool = False


# ------------------------------------------------------------------ logstore's writer


def rolled(scene: Look, *, is_deleted: bool) -> Change:
    """The state may name a segment that is not among the names read a moment before."""
    # Readers know of each sync.
    scene.config = logstore.StoreConfig(flush_checkpoint_ms=0)
    p = scene.create(2)
    fill(p, 3)
    yield
    p.flush()
    yield
    p.roll()
    fill(p, 3)
    p.flush()
    if is_deleted:
        p.delete_before(6)


def deleted(scene: Look) -> Change:
    """After the roll that follows, only the new segment is looked for."""
    p = scene.create(2)
    for turn in range(8):
        p.append(b"%d" % turn)
        p.roll()
        if turn == 3:
            yield
    p.delete_before(1)
    yield
    p.delete_before(7)
    yield
    p.append(b"next")
    p.roll()


def deleted_below(scene: Look) -> Change:
    small = {"segment_bytes": 1200, "index_interval_bytes": 200}
    p = scene.create(2, **small, file_delete_delay_ms=0)
    for number in range(60):
        p.append_many([b"v" * 48] * 3, timestamps_ms=[1000 + number] * 3)
    yield
    yield
    p.delete_before(100)
    for gone in scene.partition_path.glob("*.deleted"):
        gone.unlink(missing_ok=True)


def failing(scene: Look, error: BaseException, count: int) -> Change:
    small = {"segment_bytes": 700, "index_interval_bytes": 100}
    p = scene.create(1, codec="gzip", **small)
    fill(p, 12)
    yield
    fill(p, count, call=3)
    yield
    scene.error = error
    yield
    p.roll()
    fill(p, 4, call=2)


OLD = [b"old.%d" % offset for offset in range(10)]
# Any bytes may replace the beginning of a batch, even a later format.
NEW = [b"new.%d" % offset + b"\x7f" * 500 for offset in range(3)]


def cut(scene: Look, cut_to: int) -> Change:
    """The end that came down with the cut is no end of the log, which has grown."""
    p = scene.create(2)
    p.append_many(OLD[:5], timestamps_ms=range(5))
    p.append_many(OLD[5:], timestamps_ms=range(5, 10))
    yield
    yield
    p.truncate_to(cut_to)
    p.append_many(NEW, timestamps_ms=[0, 1, 9])


def removed(scene: Look) -> Change:
    fill(scene.create(2), 20)
    scene.store.close()
    yield
    yield
    shutil.rmtree(scene.partition_path)


# ------------------------------------------------------------------ a backup, a broker


def backup(scene: Look, how: str, size: int, segment_bytes: int) -> Change:
    """The look finds a log that was changed, so it is loaded again; then a backup is
    copied over the files, which grow again."""
    append(scene.saved(5, segment_bytes=segment_bytes), b"old", 10)
    scene.store.close()
    yield
    if how == "appended":
        # A read is in the middle of the log.
        scene.records = pairs_of(scene.reader.follow(timeout=0))
        scene.found += itertools.islice(scene.records, 15)
    if how == "restored":
        put_back(scene.backup, scene.path, "restored")
    p = scene.open_partition()
    if how == "cut":
        p.truncate_to(2)
    append(p, b"mid", 7, size=size)
    yield
    scene.store.close()
    put_back(scene.backup, scene.path, "restored")
    append(scene.open_partition(), b"new", 12)


def follow(scene: Look) -> list[bytes]:
    """Read to the end, or to an error; return the beginning of each value."""
    try:
        if not scene.found:
            scene.records = pairs_of(scene.reader.follow(timeout=0))
        for pair in scene.records:
            scene.found.append(pair)
    except (OffsetOutOfRangeError, PartitionNotFoundError):
        pass
    assert [offset for offset, _ in scene.found] == [*range(len(scene.found))]
    return [value[:3] for _, value in scene.found]


def is_of_one_log(values: list[bytes], between: int) -> bool:
    """Whether they begin one of the logs that there were."""
    old, mid, new = ([value] * 15 for value in (b"old", b"mid", b"new"))
    logs = old, [*old[:between], *mid[:7]], [*old[:5], *new[:12]]
    return any(values == log[: len(values)] for log in logs)


def start_of_a_broker(scene: Look) -> Change:
    """A broker deletes records, and then their segment: the checkpoint then has no
    row."""
    p = scene.create(2)
    for offset in range(30):
        if offset in (10, 20):
            p.roll()
        p.append(b"%d" % offset)
    scene.store.close()
    os.utime(foreign(scene.path), (time.time() - 100,) * 2)
    yield
    write_starts(scene.path, 10)
    yield
    for file in scene.partition_path.glob(f"{0:020d}.*"):
        file.rename(f"{file}.deleted")
    write_starts(scene.path)


def replica(scene: Look, count: int, *, epochs: bool, rolls: bool = False) -> Change:
    """It truncates in place, and grows past the old size: the present bytes are read.
    A look that has read bytes of both logs sees it by the leader epochs, if there are
    any, whatever end it found."""
    logs = []
    for path, value, n in (scene.path, b"old", 3), (scene.backup, b"new", count):
        with open_store(path, _files=Unsynced()) as store:
            p = store.create_topic("orders", config=config_of(2))[0]
            for number in range(40):
                values = [b"same"] * 3 if number < 10 else [value] * n
                p.append_many(values, timestamps_ms=[number] * len(values))
        (log,) = logs_in(foreign(path))
        logs.append((log.read_bytes(), [frame.pos for frame in frames(log)]))
    (old, begins), (new, new_begins) = logs
    (scene.path / "recovery-point-offset-checkpoint").unlink()
    scene.log.write_bytes(old[: begins[20]])
    if epochs:
        write_epochs(scene.partition_path, (1, 0))
    else:
        for path in (scene.partition_path, scene.log):
            os.utime(path, (time.time() - 100,) * 2)
    yield
    scene.log.write_bytes(old[: begins[21]])
    yield
    os.truncate(scene.log, begins[10])
    if epochs:
        write_epochs(scene.partition_path, (1, 0), (2, 30))
    rolls_at = new_begins[20] if rolls else len(new)
    with scene.log.open("r+b") as file:
        file.write(new[:rolls_at])
    if rolls:
        scene.log.with_name(f"{50:020d}.log").write_bytes(new[rolls_at:])
    yield
    if not epochs:
        time.sleep(TICK_S)  # so young a file may still be in the middle of a write


# ------------------------------------------------------------------ the table


class _StopError(BaseException):
    """Stands for an interrupt."""


def offsets(
    p: logstore.Partition, start: int | None = None, **options: Any
) -> list[int]:
    return [record.offset for record in p.read(start, **options)]


def fetched(p: logstore.Partition, **options: Any) -> list[bytes | None]:
    return [record.value for record in p.fetch(0, **options)]


# (question, offset of the cut, answer before the cut, answer after it).
ANSWERS: dict[str, tuple[Callable[[logstore.Partition], Any], int, Any, Any]] = {
    "fetch": (fetched, 0, OLD, NEW),
    "committed": (partial(fetched, isolation="read_committed"), 0, OLD, NEW),
    "at the end": (
        lambda p: [r.value for r in p.read(5, isolation="read_committed")],
        5,
        OLD[5:],
        NEW,
    ),
    "time": (lambda p: p.offset_for_time(8), 0, 8, 2),
    "stable": (lambda p: p.last_stable_offset(), 5, 10, 8),
}


def end_of(scene: Look) -> int:
    return scene.reader.end_offset


ROWS: dict[str, Row] = {
    # A read that has begun finishes: deleted files stay for a while.
    **{
        f"rolled{'-and-deleted' * is_deleted}": Row(
            partial(rolled, is_deleted=is_deleted),
            lambda s, durable=not is_deleted: offsets(s.reader, durable_only=durable),
            lambda found: found in ([], [0, 1, 2], [0, 1, 2, 3, 4, 5]),
        )
        for is_deleted in (False, True)
    },
    "deleted": Row(deleted, end_of, lambda end: end == 8),
    "deleted-below": Row(
        deleted_below,
        lambda s: (
            offsets(s.reader, 150, isolation="read_committed"),
            s.reader.last_stable_offset(),
            s.reader.offset_for_time(1055),
        ),
        lambda found: found == ([*range(150, 180)], 180, 165),
    ),
    **{
        f"failing-{count}-{error!r}": Row(
            partial(failing, error=error, count=count),
            end_of,
            lambda end, count=count: end == 12 + count,
            (logstore.StorageError, _StopError),
        )
        for count in (2, 40)
        for error in (OSError(errno.EMFILE, ""), OSError(errno.EIO, ""), _StopError())
    },
    **{
        f"cut-{name}": Row(
            partial(cut, cut_to=cut_to),
            lambda s, ask=ask: ask(s.reader),
            lambda found, right=right: found in right,
            (OffsetOutOfRangeError,) if name == "at the end" else (),  # it had begun
        )
        for name, (ask, cut_to, *right) in ANSWERS.items()
    },
    "removed": Row(
        removed,
        lambda s: s.reader.byte_ranges(0, 10),
        lambda found: found is None or bool(found.files),
        (PartitionNotFoundError,),
    ),
    **{
        f"backup-{how}-{size}-{segment_bytes}": Row(
            partial(backup, how=how, size=size, segment_bytes=segment_bytes),
            follow,
            partial(is_of_one_log, between=between),
        )
        for how, size, segment_bytes, between in (
            ("restored", SIZE, 1 << 20, 5),
            ("restored", SIZE + 40, 1 << 20, 5),  # the batches lie at other places
            ("restored", SIZE, SIZE, 5),
            # The first segment is refilled to the offset at which it ended.
            ("restored", SIZE, 5 * SIZE, 5),
            ("cut", SIZE, 1 << 20, 2),
            ("appended", SIZE, 1 << 20, 15),
        )
    },
    "start-of-a-broker": Row(
        start_of_a_broker, lambda s: s.reader.start_offset, lambda start: start == 10
    ),
    **{
        f"replica{'-opens' * opens}": Row(
            partial(replica, count=5, epochs=False),
            end_of,
            lambda end: 30 <= end <= 180,
            (CorruptRecordError,),
            opens,
        )
        for opens in (False, True)
    },
    **{
        f"replica-with-epochs{'-rolls' * rolls}": Row(
            partial(replica, count=2, epochs=True, rolls=rolls),
            end_of,
            lambda end: 50 <= end <= 90,
            (CorruptRecordError,),
        )
        for rolls in (False, True)
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_change_at_any_call_of_a_look_is_seen_then_or_by_the_next(
    tmp_path: Path, name: str
) -> None:
    """The next look gives the log as a new reader finds it."""
    row, steps = ROWS[name], Steps(10)
    for nth in steps:
        files = FaultyFiles()
        with Look(tmp_path / str(nth)) as scene, contextlib.ExitStack() as stack:
            change = row.change(scene)
            next(change)

            def step(scene: Look = scene, change: Change = change) -> None:
                next(change, None)
                if scene.error:
                    raise scene.error

            def opened(scene: Look = scene) -> None:
                reading = stack.enter_context(scene.reading(_files=files))  # noqa: B023
                scene.reader = reading.topic("orders")[0]

            if not row.opens:
                opened()
                assert end_of(scene)
            next(change)
            files.forget()
            files.at_call(nth, step)
            try:
                if row.opens:
                    opened()
                answer = row.ask(scene)
                assert row.right(answer), (nth, answer)
            except row.errors:
                assert nth <= len(files.calls)
            files.before = None
            steps.total = len(files.calls)
            for _ in change:
                pass
            if scene.partition_path.exists():
                with scene.reading() as anew:
                    fresh = anew.topic("orders")[0]
                    for _ in range(2):
                        assert bounds(scene.reader) == bounds(fresh), nth
                        assert list(scene.reader.read()) == list(fresh.read()), nth
    assert steps.total > 5
