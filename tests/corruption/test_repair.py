"""Each kind of damage, in both modes: intact batches keep their offsets, damaged bytes
are put aside unchanged, and the log continues.

A case damages a store that was closed and says which offsets `skip` cannot keep;
`cut` must end before the first of them (or where the case says otherwise).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    Unsynced,
    append_garbage,
    crash,
    cut,
    flip_bit,
    logs_in,
    overwrite,
    zero,
)
from support.mending import (
    Batch,
    batches_in,
    check_mended,
    check_nothing_is_lost,
    log_bytes,
    manifests,
    offsets_read,
)
from support.values import (
    record_of,
    write_store,
)

COUNT = 60
SMALL = {"segment_bytes": 700, "index_interval_bytes": 100}

# Offsets that skip loses, and where cut ends (None: before the first that is lost).
Case = Callable[[Path, list[Batch]], "tuple[set[int], int | None]"]
both_modes = pytest.mark.parametrize("mode", ["cut", "skip"])


def middle(batches: list[Batch], log: int) -> list[Batch]:
    """The batches of a segment."""
    names = sorted({batch.log for batch in batches})
    return [batch for batch in batches if batch.log == names[log]]


def flipped_body(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    flip_bit(batch.log, 8 * (batch.pos + batch.size - 3) + 2)
    return batch.offsets, None


def flipped_length(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    overwrite(batch.log, batch.pos + 8, b"\x7f\xff\xff\xf0")
    return batch.offsets, None


def offset_too_high(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    overwrite(batch.log, batch.pos, b"\x00\x40")
    return batch.offsets, None


def offset_too_low(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    overwrite(batch.log, batch.pos + 7, b"\x00")
    return batch.offsets, None


def first_offset_too_high(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[0]
    overwrite(batch.log, batch.pos + 3, b"\x01")
    return batch.offsets, None


def last_offset_too_high(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = batches[-1]
    overwrite(batch.log, batch.pos + 2, b"\x01")
    return batch.offsets, None


def zeros_inside(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    one, two = middle(batches, 1)[1:3]
    zero(one.log, one.pos + 5, two.pos + two.size)
    return one.offsets | two.offsets, None


def zeroed_segment(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    gone = middle(batches, 1)
    zero(gone[0].log, 0, gone[0].log.stat().st_size)
    return set().union(*(batch.offsets for batch in gone)), None


def shortened(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    gone = middle(batches, 1)[2:]
    cut(gone[0].log, gone[0].pos + 20)
    return set().union(*(batch.offsets for batch in gone)), None


def shortened_between(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    gone = middle(batches, 1)[2:]
    cut(gone[0].log, gone[0].pos)
    return set().union(*(batch.offsets for batch in gone)), None


def repeated(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    data = batch.log.read_bytes()
    end = batch.pos + batch.size
    batch.log.write_bytes(data[:end] + data[batch.pos : end] + data[end:])
    return set(), batch.last + 1


def garbage_between(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[1]
    data = batch.log.read_bytes()
    batch.log.write_bytes(data[: batch.pos] + b"\xa5\x5a\xff" * 9 + data[batch.pos :])
    return set(), batch.first


def one_batch_gone(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = middle(batches, 1)[0]
    data = batch.log.read_bytes()
    end = batch.pos + batch.size
    batch.log.write_bytes(data[: batch.pos] + data[end:])
    return batch.offsets, None


def missing_segment(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    gone = middle(batches, 1)
    gone[0].log.unlink()
    return set().union(*(batch.offsets for batch in gone)), None


def missing_first(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    gone = middle(batches, 0)
    gone[0].log.unlink()
    return set().union(*(batch.offsets for batch in gone)), None


def missing_last(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    gone = middle(batches, -1)
    gone[0].log.unlink()
    return set().union(*(batch.offsets for batch in gone)), None


def missing_all(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    for log in logs_in(partition):
        log.unlink()
    return set(range(COUNT)), None


def garbage_tail(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    append_garbage(logs_in(partition)[-1])
    return set(), COUNT


def old_batch_tail(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    batch = batches[0]
    data = batch.log.read_bytes()[: batch.size]
    append_garbage(logs_in(partition)[-1], data)
    return set(), COUNT


def sealed_tail(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    append_garbage(logs_in(partition)[1])
    return set(), middle(batches, 1)[-1].last + 1


def lost_end(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    cut(batches[-1].log, batches[-1].pos + 9)
    return batches[-1].offsets, None


def lost_end_between(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    cut(batches[-1].log, batches[-1].pos)
    return batches[-1].offsets, None


def emptied_end(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    gone = middle(batches, -1)
    cut(gone[0].log, 0)
    return set().union(*(batch.offsets for batch in gone)), None


def damaged_end(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    flip_bit(batches[-1].log, 8 * (batches[-1].pos + batches[-1].size - 2))
    return batches[-1].offsets, None


def damaged_start(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    flip_bit(batches[0].log, 8 * (batches[0].size - 2))
    return batches[0].offsets, None


def in_every_segment(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    lost = set()
    for log in sorted({batch.log for batch in batches}):
        batch = [b for b in batches if b.log == log][1]
        flip_bit(log, 8 * (batch.pos + batch.size - 2))
        lost |= batch.offsets
    return lost, None


def renamed(log: Path, base: int) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        old = log.with_suffix(suffix)
        if old.exists():
            old.rename(log.with_name(f"{base:020d}{suffix}"))


def misnamed_lower(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    part = middle(batches, 2)
    renamed(part[0].log, part[0].first - 1)
    return set(), part[0].first


def misnamed_higher(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    part = middle(batches, 1)
    renamed(part[0].log, part[0].first + 1)
    return set(), part[0].first


def misnamed_far(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    part = middle(batches, 1)
    renamed(part[0].log, 10_000)
    return set(), part[0].first


def names_swapped(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    one, two = middle(batches, 1)[0].log, middle(batches, 2)[0].log
    for suffix in (".log", ".index", ".timeindex"):
        a, b = one.with_suffix(suffix), two.with_suffix(suffix)
        first, second = a.read_bytes(), b.read_bytes()
        a.write_bytes(second)
        b.write_bytes(first)
    # Their known sizes are swapped, too: bytes beyond the shorter one do not count.
    return set(), middle(batches, 1)[0].first


def copied_behind(partition: Path, batches: list[Batch]) -> tuple[set[int], int | None]:
    log = middle(batches, 1)[0].log
    shutil.copy(log, log.with_name(f"{10_000:020d}.log"))
    return set(), COUNT


def copied_between(
    partition: Path, batches: list[Batch]
) -> tuple[set[int], int | None]:
    part = middle(batches, 1)
    base = middle(batches, 2)[0].first + 1
    shutil.copy(part[0].log, part[0].log.with_name(f"{base:020d}.log"))
    return set(), middle(batches, 3)[0].first


CASES: list[Case] = [
    flipped_body, flipped_length, offset_too_high, offset_too_low,
    first_offset_too_high, last_offset_too_high, zeros_inside, zeroed_segment,
    shortened, shortened_between, repeated, garbage_between, one_batch_gone,
    missing_segment, missing_first, missing_last, missing_all, garbage_tail,
    old_batch_tail, sealed_tail, lost_end, lost_end_between, emptied_end, damaged_end,
    damaged_start, in_every_segment, misnamed_lower, misnamed_higher, misnamed_far,
    names_swapped, copied_behind, copied_between,
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)

FORMATS = [(0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "lz4")]


@pytest.fixture(scope="module", params=FORMATS, ids=lambda f: f"magic{f[0]}-{f[1]}")
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A store that was closed, to be copied."""
    magic, codec = request.param
    path = tmp_path_factory.mktemp("sound") / "store"
    write_store(path, COUNT, magic, codec, call=3, **SMALL)
    return path


@pytest.mark.sampled(40)
@every_case
@both_modes
def test_repair_keeps_what_is_sound(
    sound: Path, tmp_path: Path, case: Case, mode: str
) -> None:
    """It keeps its offsets; the rest is put aside; the log continues, in mode skip
    never with an offset that was already used."""
    store = tmp_path / "store"
    shutil.copytree(sound, store)
    partition = store / "orders-0"
    batches = batches_in(partition)
    assert len(logs_in(partition)) >= 4
    lost, end = case(partition, batches)
    if mode == "skip":
        offsets = [o for o in range(COUNT) if o not in lost]
        end = COUNT
    else:
        end = min(lost) if end is None else end
        offsets = list(range(end))
    before = log_bytes(partition)
    report = logstore.repair(store, mode, _files=Unsynced())
    assert report.ok, report.remaining
    assert report.actions
    check_nothing_is_lost(partition, before, manifests(partition))
    if mode == "cut" and not offsets:
        end = 0
    check_mended(store, offsets, end)
    again = logstore.repair(store, mode)
    assert (again.actions, again.remaining) == ((), ())


# ------------------------------------------------------- other writers, other ends

# Damage that is noticed without logstore's state files.
PLAIN: list[Case] = [
    flipped_body, flipped_length, offset_too_high, offset_too_low, zeros_inside,
    zeroed_segment, repeated, garbage_between, garbage_tail, old_batch_tail, lost_end,
    damaged_end, damaged_start, in_every_segment, copied_behind,
]  # fmt: skip


@pytest.mark.sampled(40)
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.__name__)
@both_modes
def test_repair_of_what_another_program_wrote(
    sound: Path, tmp_path: Path, case: Case, mode: str
) -> None:
    """Without logstore's own state, with Kafka's recovery points: the same."""
    store = tmp_path / "store"
    shutil.copytree(sound, store)
    partition = store / "orders-0"
    batches = batches_in(partition)
    for path in [store / ".logstore-owner", partition / ".logstore-state"]:
        path.unlink()
    lost, end = case(partition, batches)
    if mode == "skip":
        offsets = [o for o in range(COUNT) if o not in lost]
        end = COUNT
    else:
        end = min(lost) if end is None else end
        offsets = list(range(end))
    before = log_bytes(partition)
    report = logstore.repair(partition, mode, _files=Unsynced())
    assert report.ok, report.remaining
    check_nothing_is_lost(partition, before, manifests(partition))
    check_mended(store, offsets, end)


@pytest.mark.sampled(40)
@every_case
@both_modes
def test_repair_behind_a_crash(
    sound: Path, tmp_path: Path, case: Case, mode: str
) -> None:
    """The writer was killed, then the damage came: as if it had been closed; bytes past
    the durable point are a torn tail and may end the log."""
    store = tmp_path / "store"
    shutil.copytree(sound, tmp_path / "open")
    with open_store(tmp_path / "open", _files=Unsynced()) as found:
        found.topic("orders").configure(found.topic("orders").config)
        crash(tmp_path / "open", store)
    assert "unclean-stop" in {n.kind for n in logstore.verify(store).notes}
    partition = store / "orders-0"
    batches = batches_in(partition)
    lost, end = case(partition, batches)
    before = log_bytes(partition)
    report = logstore.repair(store, mode, _files=Unsynced())
    assert report.ok, report.remaining
    check_nothing_is_lost(partition, before, manifests(partition))
    if mode == "skip":
        offsets, end = [o for o in range(COUNT) if o not in lost], COUNT
    else:
        end = min(lost) if end is None else end
        offsets = list(range(end))
    check_mended(store, offsets, end)


# ------------------------------------------------------------------ failures


class Faulty(FaultyFiles):
    """Fails the chosen calls, and does not sync."""

    def sync(self, fd: int) -> None:
        self._noted("sync", fd)

    def sync_directory(self, dir_fd: int) -> None:
        self._noted("sync_directory", dir_fd)

    def _noted(self, method: str, fd: int) -> None:
        self.counts[method] += 1
        fault = self._fault(method, self._names.get(fd, ""))
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error))


FAULTS = [
    "create", "make_directory", "move", "open", "open_directory", "read", "rename",
    "sync", "sync_directory", "truncate", "unlink", "write", "list",
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("method", FAULTS)
@pytest.mark.parametrize(
    "case", [in_every_segment, misnamed_far, lost_end], ids=lambda case: case.__name__
)
@both_modes
def test_repair_interrupted_at_any_call_is_finished_by_the_next(
    tmp_path: Path, case: Case, mode: str, method: str
) -> None:
    """Each call fails once: an error, no intact record lost, and a second try that ends
    like an undisturbed one."""
    sound = tmp_path / "sound"
    write_store(sound, COUNT, 2, call=3, **SMALL)
    batches = batches_in(sound / "orders-0")
    data_of = {b: b.log.read_bytes()[b.pos : b.pos + b.size] for b in batches}
    lost, end = case(sound / "orders-0", batches)
    whole = [data for batch, data in data_of.items() if not batch.offsets & lost]
    if mode == "skip":
        offsets, end = [o for o in range(COUNT) if o not in lost], COUNT
    else:
        end = min(lost) if end is None else end
        offsets = list(range(end))
    rng = random.Random(f"{case.__name__}/{mode}/{method}")
    nth = 0
    while True:
        # Frequent calls are sampled.
        nth += 1 if nth < 12 else rng.randrange(1, 12)
        store = tmp_path / "store"
        shutil.copytree(sound, store)
        files = Faulty()
        files.fail(method, nth=nth, times=1)
        try:
            logstore.repair(store, mode, _files=files)
        except logstore.LogStoreError:
            failed = True
        else:
            failed = False
        if nth > files.counts[method]:
            break
        # Whichever call failed, an opening loses nothing that a repair would have kept.
        if failed:
            with open_store(store, _files=Unsynced()) as found:
                found.topic("orders")
        report = logstore.repair(store, mode, _files=Unsynced())
        assert report.ok, (nth, report.remaining)
        assert offsets_read(store) == offsets, nth
        with open_store(store, _files=Unsynced()) as found:
            assert found.topic("orders")[0].end_offset == end
        partition = store / "orders-0"
        kept = b"".join(
            path.read_bytes()
            for path in sorted(partition.rglob("*.log*"))
            if path.is_file()
        )
        assert all(data in kept for data in whole), nth
        shutil.rmtree(store)


# ------------------------------------------------------------------ at random


def damage_several(
    partition: Path, batches: list[Batch], rng: random.Random
) -> tuple[set[Batch], set[int], list[int]]:
    """Two to four damages: (damaged batches, offsets of batches with a damaged offset,
    upper bounds of the end in mode cut)."""
    hurt: set[Batch] = set()
    moved: set[int] = set()
    ends = [COUNT]  # upper bounds of the end in mode cut
    for _ in range(rng.randrange(2, 5)):
        log = rng.choice(logs_in(partition))
        size = log.stat().st_size
        if not size:
            continue
        begin = rng.randrange(size)
        end = min(size, begin + rng.randrange(1, 150))
        kind = rng.choice(["flip", "zero", "random", "cut", "garbage"])
        if kind == "flip":
            flip_bit(log, 8 * begin + rng.randrange(8))
            end = begin + 1
        elif kind == "zero":
            zero(log, begin, end)
        elif kind == "random":
            overwrite(log, begin, rng.randbytes(end - begin))
        elif kind == "cut":
            cut(log, begin)
            end = 1 << 40
        else:
            append_garbage(log, rng.randbytes(end - begin))
            ends.append(max(b.last + 1 for b in batches if b.log == log))
            continue
        hurt |= {
            b
            for b in batches
            if b.log == log and b.pos < end and begin < b.pos + b.size
        }
        for b in batches:
            if b.log == log and b.pos < end and begin < b.pos + 8:
                moved |= b.offsets
    return hurt, moved, ends


@pytest.mark.sampled(40)
@pytest.mark.parametrize("seed", range(60))
@both_modes
def test_repair_of_several_damages_at_random(
    sound: Path, tmp_path: Path, seed: int, mode: str
) -> None:
    """Two to four of them: each batch that no damage has touched stays in mode skip,
    each record is read unchanged, and every byte is still in the store or its
    quarantine."""
    rng = random.Random(f"{sound.parent.name}/{seed}")
    store = tmp_path / "store"
    shutil.copytree(sound, store)
    partition = store / "orders-0"
    batches = batches_in(partition)
    hurt, _, ends = damage_several(partition, batches, rng)
    before = log_bytes(partition)
    report = logstore.repair(store, mode, _files=Unsynced())
    if "left-alone" in {action.label for action in report.actions}:
        assert log_bytes(partition) == before
        return
    assert report.ok, report.remaining
    check_nothing_is_lost(partition, before, manifests(partition))
    offsets = offsets_read(store)
    untouched = set().union(*(b.offsets for b in batches if b not in hurt))
    if mode == "skip":
        assert untouched <= set(offsets)
        check_mended(store, offsets, COUNT)
    else:
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= min([*ends, *(b.first for b in hurt)])
        check_mended(store, offsets, len(offsets))


# One of several damages is a changed offset that only its neighbours show: a doubt
# between two batches was once decided for the wrong one. Or a length that changed so
# that it led to a later batch (sound0/3180).
FOUND = [
    (0, "none", seed)
    for seed in (
        "sound0/151", "sound0/229", "sound0/334", "sound0/361", "sound0/718",
        "sound0/998", "sound0/1213", "sound0/1396", "sound0/3180",
    )
] + [
    (1, "none", seed) for seed in ("sound1/105", "sound1/290", "sound1/687")
] + [
    (1, "gzip", "sound7/20101"), (1, "gzip", "sound2/5606"), (2, "lz4", "sound4/229"),
]  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    ("magic", "codec", "seed"),
    [*FOUND, *((m, c, f"broker/{n}") for m, c in FORMATS for n in range(8))],
)
@both_modes
def test_repair_of_several_damages_of_a_log_of_another_program(
    tmp_path: Path, magic: int, codec: str, seed: str, mode: str
) -> None:
    """Without logstore's own state: a batch that no damage touched keeps its offset,
    and none is left out in mode skip; no record is changed, except for a damaged offset
    that nothing contradicts."""
    store = tmp_path / "store"
    write_store(store, COUNT, magic, codec, call=3, **SMALL)
    partition = store / "orders-0"
    for path in [store / ".logstore-owner", partition / ".logstore-state"]:
        path.unlink()
    batches = batches_in(partition)
    hurt, moved, _ = damage_several(partition, batches, random.Random(seed))
    before = log_bytes(partition)
    report = logstore.repair(store, mode, _files=Unsynced())
    if "left-alone" in {action.label for action in report.actions}:
        assert log_bytes(partition) == before
        return
    assert report.ok, report.remaining
    check_nothing_is_lost(partition, before, manifests(partition))
    with open_store(store, read_only=True) as found:
        records = list(found.topic("orders")[0].read())
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    known = [record_of(offset, magic)._replace(offset=0) for offset in moved]
    for record in records:
        is_right = record.offset < COUNT and record == record_of(record.offset, magic)
        assert is_right or record._replace(offset=0) in known
    if mode == "skip":
        untouched = set().union(*(b.offsets for b in batches if b not in hurt))
        assert untouched <= set(offsets)
    again = logstore.repair(store, mode, _files=Unsynced())
    assert (again.actions, again.remaining) == ((), ())


def test_repair_believes_what_goes_on_and_not_one_batch_whose_offset_was_zeroed(
    tmp_path: Path,
) -> None:
    """In a log that logstore wrote: the record after the damage is not another one."""
    store = tmp_path / "store"
    write_store(store, COUNT, 1, call=1, **SMALL)
    batches = batches_in(store / "orders-0")
    zero(batches[0].log, 1, batches[1].pos + 8)
    report = logstore.repair(store, "skip", _files=Unsynced())
    assert report.ok
    assert offsets_read(store) == list(range(2, COUNT))
