"""Power cuts while indexes are built, by `rebuild_index` and by opening.

The calls of one run are recorded on a disk in memory; for each call, many states that a
power cut may leave are tried: reads and lookups are right at once, and another run ends
with the indexes of an undisturbed one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import logstore
from faults.checker import PATH, open_quietly
from support.disk import ROOT, MemoryDisk, Nodes
from support.power_cut import cuts
from support.values import append_one, expected, fill, new_partition, timestamp_of

COUNT = 24
SUFFIXES = (".index", ".timeindex")
Damage = Callable[[bytes], bytes | None]

DAMAGES: dict[str, Damage] = {
    "missing": lambda data: None,
    "cut": lambda data: data[: len(data) // 2 + 3],
    "zeros": lambda data: bytes(len(data) or 24),
    "garbage": lambda data: b"\xa5" * 48,
}


def damaged_store(damage: Damage) -> Nodes:
    """Disk with a closed store whose sealed segments have bad indexes."""
    disk = MemoryDisk()
    with open_quietly(disk) as store:
        settings = {"segment_bytes": 500, "index_interval_bytes": 100}
        partition = new_partition(store, **settings)
        fill(partition, COUNT, call=1)
        last = f"{partition.segments[-1].base_offset:020d}"
        assert len(partition.segments) > 2
    nodes = dict(disk.medium.nodes)
    place = step(nodes, step(nodes, ROOT, PATH.strip("/")), "orders-0")
    names = dict(directory(nodes, place))
    for name, node in list(names.items()):
        if name.endswith(SUFFIXES) and not name.startswith(last):
            old = nodes[node]
            assert isinstance(old, bytes)
            new = damage(old)
            if new is None:
                del names[name]
            else:
                nodes[node] = new
    nodes[place] = names
    return nodes


def directory(nodes: Nodes, number: int) -> dict[str, int]:
    found = nodes[number]
    assert isinstance(found, dict)
    return found


def step(nodes: Nodes, number: int, name: str) -> int:
    return directory(nodes, number)[name]


def indexes_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {n: data for n, data in disk.tree().items() if n.endswith(SUFFIXES)}


def build(disk: MemoryDisk) -> None:
    logstore.rebuild_index(PATH, _files=disk)


def check_reads(disk: MemoryDisk) -> None:
    """Every record, and every lookup."""
    with open_quietly(disk, read_only=True) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        for offset in range(COUNT):
            assert [r.offset for r in partition.read(offset, offset + 1)] == [offset]
            time = timestamp_of(offset)
            wanted = next(o for o in range(COUNT) if timestamp_of(o) >= time)
            assert partition.offset_for_time(time) == wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", DAMAGES)
def test_power_cut_while_indexes_are_rebuilt_costs_nothing(what: str) -> None:
    """Each file is the old one or the new one, whole; a temporary one does not
    count."""
    nodes = damaged_store(DAMAGES[what])
    whole = MemoryDisk(nodes)
    build(whole)
    wanted = indexes_of(whole)
    assert wanted != indexes_of(MemoryDisk(nodes))
    disk = MemoryDisk(nodes)
    moments = disk.record()
    build(disk)
    assert any(".tmp" in moment.what for moment in moments)
    rng = random.Random(1)
    for moment in moments:
        for words, left in cuts(moment, rng, 6):
            where = (moment.what, words)
            old = indexes_of(MemoryDisk(nodes))
            for name, data in indexes_of(MemoryDisk(left)).items():
                assert data in (wanted[name], old.get(name)), (name, where)
            check_reads(MemoryDisk(left))
            again = MemoryDisk(left)
            build(again)
            assert indexes_of(again) == wanted, where
            assert logstore.verify(PATH, _files=again).ok, where


def test_power_cut_while_opening_builds_indexes_costs_nothing() -> None:
    """The next opening builds the missing ones, and reports them once."""
    nodes = damaged_store(DAMAGES["missing"])
    disk = MemoryDisk(nodes)
    moments = disk.record()
    with open_quietly(disk) as store:
        actions = store.recovery_report.actions
    assert {action.label for action in actions} == {"index-rebuilt"}
    wanted = indexes_of(disk)
    rng = random.Random(2)
    for moment in moments:
        for words, left in cuts(moment, rng, 6):
            where = (moment.what, words)
            check_reads(MemoryDisk(left))
            again = MemoryDisk(left)
            with open_quietly(again) as store:
                assert {a.label for a in store.recovery_report.actions} <= {
                    "index-rebuilt"
                }, where
            assert indexes_of(again) == wanted, where
            with open_quietly(again) as store:
                assert not store.recovery_report, where
                assert append_one(store.topic("orders")[0], durable=True) == COUNT
            assert logstore.verify(PATH, _files=again).ok, where
