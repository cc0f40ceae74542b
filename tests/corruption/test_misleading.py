"""Damage that seems to fit: a length that leads to a later batch, an offset that
reaches into the next one, a record that holds what looks like the log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced, flip_bit, overwrite
from support.mending import (
    Batch,
    batches_in,
    check_nothing_is_lost,
    log_bytes,
    manifests,
    offsets_read,
)
from support.values import append_records, config_of, new_partition, write_store

COUNT = 60
SMALL: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 100}
formats = pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "lz4")],
    ids=lambda value: str(value),
)


def forget_logstore(store: Path) -> None:
    """Make the log look as if another program had written it."""
    for path in [store / ".logstore-owner", store / "orders-0" / ".logstore-state"]:
        path.unlink()


def lead_to(batch: Batch, end: int) -> None:
    """Let the length of a batch say that it ends at a position."""
    overwrite(batch.log, batch.pos + 8, (end - batch.pos - 12).to_bytes(4, "big"))


def skipped(store: Path, start: int = 0) -> list[int]:
    """Offsets from `start` on of a reader that skips damage."""
    with logstore.open(store, read_only=True) as found:
        partition = found.topic("orders")[0]
        return [r.offset for r in partition.read(start, on_corruption="skip")]


@pytest.mark.sampled(20)
@formats
@pytest.mark.parametrize("where", ["first", "inside", "last"])
@pytest.mark.parametrize("damage", ["length", "content", "offset"])
@pytest.mark.parametrize("is_own", [True, False], ids=["own", "broker"])
def test_length_that_leads_to_a_later_batch_takes_none_between_with_it(
    tmp_path: Path, magic: int, codec: str, is_own: bool, damage: str, where: str
) -> None:
    """The length may lead to the end of the segment, too: `repair` and readers continue
    at the next batch."""
    sound = tmp_path / "sound"
    write_store(sound, COUNT, magic, codec, call=3, **SMALL)
    if not is_own:
        forget_logstore(sound)
    all_batches = batches_in(sound / "orders-0")
    logs = sorted({batch.log for batch in all_batches})
    log = logs[{"first": 0, "inside": 1, "last": -1}[where]]
    batches = [batch for batch in all_batches if batch.log == log]
    hit, *behind = batches[1 if where == "inside" else 0 :]
    assert behind
    for slot in sorted({0, len(behind) // 2, len(behind) - 1}):
        end = behind[slot].pos + behind[slot].size
        store = tmp_path / "store"
        shutil.copytree(sound, store)
        one = hit._replace(log=store / "orders-0" / log.name)
        lead_to(one, end)
        if damage == "content":
            flip_bit(one.log, 8 * (one.pos + one.size - 1))
        if damage == "offset":
            overwrite(one.log, one.pos, b"\x91")
            flip_bit(one.log, 8 * (one.pos + 13))
        rest = [offset for offset in range(COUNT) if offset not in one.offsets]
        assert skipped(store) == rest
        assert skipped(store, one.last + 1) == list(range(one.last + 1, COUNT))
        before = log_bytes(store / "orders-0")
        report = logstore.repair(store, "skip", _files=Unsynced())
        assert report.ok, report.remaining
        assert offsets_read(store) == rest
        partition = store / "orders-0"
        check_nothing_is_lost(partition, before, manifests(partition))
        shutil.rmtree(store)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("inner", [0, 1, 2])
@pytest.mark.parametrize("outer", [0, 1, 2])
def test_batches_in_the_values_of_a_damaged_one_are_not_taken_for_the_log(
    tmp_path: Path, outer: int, inner: int, shift: int
) -> None:
    """The values are a copy of another log, batch by batch, with nearly the same
    offsets. The size of the damaged batch follows from its length field, or, if that is
    damaged, from its content."""
    write_store(tmp_path / "copied", COUNT + shift, inner, call=1)
    batches = batches_in(tmp_path / "copied" / "orders-0")
    data = batches[0].log.read_bytes()
    values = [data[b.pos : b.pos + b.size] for b in batches][shift:]
    sound = tmp_path / "sound"
    with open_store(sound, _files=Unsynced()) as made:
        partition = new_partition(made, outer, **SMALL)
        for at in range(0, COUNT, 2):
            partition.append_many(values[at : at + 2])
    forget_logstore(sound)
    outside = batches_in(sound / "orders-0")
    inside = [batch for batch in outside if batch.log != outside[0].log]
    for one in (inside[1], outside[-1]):
        # The length, and all from the magic on: no CRC covers the bytes in between.
        for pos in [*range(8, 12), *range(16, one.size, 13)]:
            store = tmp_path / f"{one.first}-{pos}"
            shutil.copytree(sound, store)
            log = store / "orders-0" / one.log.name
            flip_bit(log, 8 * (one.pos + pos) + pos % 8)
            logstore.repair(store, "skip", _files=Unsynced())
            if logstore.verify(store).problems:
                continue  # a magic that is not understood: left alone
            with logstore.open(store, read_only=True) as found:
                records = list(found.topic("orders")[0].read())
            read = [record.offset for record in records]
            assert read == [o for o in range(COUNT) if o not in one.offsets], pos
            assert [record.value for record in records] == [values[o] for o in read]
            shutil.rmtree(store)


def test_what_follows_damage_is_the_next_batch_and_not_the_next_of_an_older_magic(
    tmp_path: Path,
) -> None:
    """The topic went back to an older format."""
    store = tmp_path / "store"
    with open_store(store, _files=Unsynced()) as found:
        partition = new_partition(found, 2)
        for _ in range(3):
            append_records(partition, 5)
        found.topic("orders").configure(config_of(1))
        partition.append(b"in magic 1")
    one = batches_in(store / "orders-0")[0]
    overwrite(one.log, one.pos + 8, b"\x7f")
    assert skipped(store) == list(range(5, 16))
    forget_logstore(store)
    assert logstore.repair(store, "skip", _files=Unsynced()).ok
    assert skipped(store) == list(range(5, 16))


@formats
@pytest.mark.parametrize("far", [1, 2])
def test_offset_that_reaches_into_the_next_batch_does_not_push_that_out(
    tmp_path: Path, magic: int, codec: str, far: int
) -> None:
    """Even if all later batches are damaged, too: the first batch of a segment has
    exactly the offsets between the segment's name and the second batch."""
    store = tmp_path / "store"
    write_store(store, COUNT, magic, codec, call=3, **SMALL)
    forget_logstore(store)
    batches = batches_in(store / "orders-0")
    log = sorted({batch.log for batch in batches})[1]
    one, two, *rest = [batch for batch in batches if batch.log == log]
    stored = one.first if magic == 2 else one.last
    one_is_alone = one.first == one.last
    overwrite(log, one.pos, (stored + (1 if one_is_alone else far)).to_bytes(8, "big"))
    for batch in rest:
        flip_bit(log, 8 * (batch.pos + batch.size - 1))
    assert logstore.repair(store, "skip", _files=Unsynced()).ok
    lost = one.offsets.union(*(batch.offsets for batch in rest))
    assert offsets_read(store) == [o for o in range(COUNT) if o not in lost]
    assert two.offsets <= set(offsets_read(store))


@formats
def test_batch_behind_damage_does_not_take_the_offsets_of_what_is_damaged(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """In a log without gaps, in which only one other batch contradicts it."""
    store = tmp_path / "store"
    write_store(store, COUNT, magic, codec, call=3, **SMALL)
    batches = batches_in(store / "orders-0")
    log = sorted({batch.log for batch in batches})[1]
    one, two, three, *rest = [batch for batch in batches if batch.log == log]
    stored = one.first if magic == 2 else one.last
    overwrite(log, two.pos, stored.to_bytes(8, "big"))
    for batch in [one, *rest]:
        flip_bit(log, 8 * (batch.pos + batch.size - 1))
    assert logstore.repair(store, "skip", _files=Unsynced()).ok
    lost = set().union(*(batch.offsets for batch in [one, two, *rest]))
    assert offsets_read(store) == [o for o in range(COUNT) if o not in lost]
    assert three.offsets <= set(offsets_read(store))
