"""A log that changes between two looks of a reader: the next look gives what a reader
finds that opens it now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.broker import compaction, foreign, with_epoch
from support.broker_logs import FEW, TICK_S, fetched, small_log, two_logs
from support.changing_logs import Scene, bounds, put_back, write_epochs
from support.damage import frames, logs_in
from support.read_ways import SIZE, WAYS, append
from support.values import fill

# Makes the log; then changes it in steps, and a look follows each.
Steps = Iterator[None]

POINTS = "recovery-point-offset-checkpoint"

READS = ("read", "batches", "arrow")

ASKS: dict[str, Callable[[logstore.Partition], Any]] = {
    **{way: lambda p, way=way: [*WAYS[way](p)] for way in READS},
    "fetch": lambda p: [*fetched(p)],
    "time": lambda p: [p.offset_for_time(at) for at in (0, 50, 5_000)],
}


def run(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()


# ------------------------------------------------------------------ logstore's writer


def cut(scene: Scene, magic: int) -> Steps:
    p = scene.create(magic, segment_bytes=2000)
    fill(p, 30)
    yield
    p.truncate_to(15)
    fill(p, 60, seed=1)
    yield


def deleted_before(scene: Scene) -> Steps:
    p = scene.create(segment_bytes=300, file_delete_delay_ms=0)
    fill(p, 60)
    yield
    for start in (7, 31, 32, 60):
        p.delete_before(start)
        yield
    fill(p, 5)
    yield


def backup_of_a_lower_start(scene: Scene, age_s: float) -> Steps:
    """Only the start shows it: it falls. The directory's time, which is unchanged, is
    trusted if it is of some age."""
    scene.saved(10, 2).delete_before(4)
    scene.store.close()
    time.sleep(age_s)
    yield
    put_back(scene.backup, scene.path)
    append(scene.open_partition(), b"new", 1)
    yield


def backup_of_the_size_that_was_lost(scene: Scene) -> Steps:
    """Only the mark of its writer shows the change: the file has its former length, and
    the names and times of the directory are the same."""
    scene.killed(5, 10)
    size = scene.log.stat().st_size
    time.sleep(0.05)  # separates the times of earlier and later changes
    yield
    scene.log.write_bytes(scene.saved_log.read_bytes())
    append(scene.open_partition(), b"new", 5, size=SIZE + size // 15)
    assert scene.log.stat().st_size == size
    yield


# ------------------------------------------------------------------ a broker


def compacted(scene: Scene, magic: int, codec: str = "none", times: int = 1) -> Steps:
    """The file system gives the number of a removed file to the next."""
    directory = small_log(scene.path, magic, codec)
    yield
    for _ in range(times):
        run(compaction(directory, [0], is_late=times == 1))
    yield


def grown_rolled_and_compacted(scene: Scene) -> Steps:
    p = scene.create(2)
    for _ in range(300):
        p.append_many([b"x" * 100] * 5)
    scene.store.close()
    directory = foreign(scene.path)
    data, found = scene.log.read_bytes(), frames(scene.log)
    scene.log.write_bytes(data[: found[100].pos])
    (scene.path / POINTS).unlink()
    time.sleep(TICK_S)
    yield
    scene.log.write_bytes(data[: found[200].pos])
    (directory / f"{1000:020d}.log").write_bytes(data[found[200].pos :])
    run(compaction(directory, [0], lambda number: number % 3 == 1))
    yield


def deleted_and_put_back(scene: Scene) -> Steps:
    directory = small_log(scene.path, 2, "none")
    log = logs_in(directory)[0]
    yield
    for _ in range(2):
        log.rename(scene.path.parent / log.name)
        yield
        (scene.path.parent / log.name).rename(log)
        yield


def taken_over(scene: Scene, codec: str, *, epochs: bool) -> Steps:
    """The batches of a broker have a leader epoch; it appends, and rolls."""
    p = scene.create(2, codec=codec)
    for _ in range(20):
        p.append_many([b"x" * 50] * 5)
    scene.store.close()
    batch = scene.log.read_bytes()[: frames(scene.log)[1].pos]
    time.sleep(TICK_S)
    yield
    (scene.path / ".kafka_cleanshutdown").unlink()
    if epochs:
        write_epochs(scene.partition_path, (0, 0), (5, 100))
    with scene.log.open("ab") as file:
        for offset in range(100, 200, 5):
            file.write(with_epoch(batch, offset, 5))
    yield
    second = scene.partition_path / f"{200:020d}.log"
    second.write_bytes(with_epoch(batch, 200, 5))
    yield


def replica(scene: Scene, *, in_place: bool) -> Steps:
    """It truncates, and gets other batches: of other sizes, or of the same ones."""
    log, old, new, begins = two_logs(scene.path.parent / "logs", 40, 10 * in_place)
    log.parents[1].rename(scene.path)
    scene.log.write_bytes(old[: begins[20]])
    time.sleep(TICK_S)
    yield
    at = begins[10 * in_place]
    with scene.log.open("r+b") as file:
        if in_place:
            file.truncate(at)
        file.seek(at)
        file.write(new[at : None if in_place else begins[20]])
    yield


CHANGES: dict[str, Callable[[Scene], Steps]] = {
    **{f"cut-{magic}": partial(cut, magic=magic) for magic in (0, 1, 2)},
    "deleted-before": deleted_before,
    "backup-of-a-lower-start": partial(backup_of_a_lower_start, age_s=0),
    "backup-of-a-lower-start-and-old": partial(backup_of_a_lower_start, age_s=0.2),
    "backup-of-the-size-that-was-lost": backup_of_the_size_that_was_lost,
    "compacted-0": partial(compacted, magic=0),
    "compacted-1": partial(compacted, magic=1, codec="gzip"),
    "compacted-2": partial(compacted, magic=2),
    "compacted-twice": partial(compacted, magic=2, times=2),
    "grown-rolled-and-compacted": grown_rolled_and_compacted,
    "deleted-and-put-back": deleted_and_put_back,
    "taken-over": partial(taken_over, codec="none", epochs=True),
    "taken-over-compressed": partial(taken_over, codec="gzip", epochs=True),
    "taken-over-without-epochs": partial(taken_over, codec="none", epochs=False),
    "replica": partial(replica, in_place=True),
    "replica-of-the-same-sizes": partial(replica, in_place=False),
}


@pytest.mark.sampled(96)
@pytest.mark.parametrize("has_read", [True, False], ids=["read", "looked"])
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("name", CHANGES)
def test_look_behind_a_change_gives_the_log_as_a_new_reader_finds_it(
    tmp_path: Path, name: str, ask: str, has_read: bool
) -> None:
    """Whether the reader had read the log, or only looked at it; again at the look
    after that."""
    with Scene(tmp_path) as scene:
        change = CHANGES[name](scene)
        next(change)
        with scene.reading(config=FEW) as reading:
            reader: Any = reading.topic("orders")[0]
            known = [reader.end_offset]
            if has_read:
                known = ASKS[ask](reader)
                reading._context.descriptors._evict(0)
            for _ in change:
                before, known = known, ASKS[ask](reader)
                with scene.reading() as anew:
                    fresh = anew.topic("orders")[0]
                    assert known == ASKS[ask](fresh)
                    assert bounds(reader) == bounds(fresh)
                assert ASKS[ask](reader) == known
                assert known != before or ask in ("time", "fetch")
                if reader.start_offset:
                    with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
                        reader.read(reader.start_offset - 1)
                    assert caught.value.start == reader.start_offset
