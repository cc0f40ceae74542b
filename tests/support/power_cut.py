"""Possible states of a `MemoryDisk` after a power cut at some moment.

Each pending change has a separate fate: it reached the disk or not; of a write a part
may have reached it, or zeros or other bytes are in its place. `cuts` tries the fates
that are known to matter, one change at a time, and mixes them at random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from support.disk_changes import Change, Moment, Names, Nodes, Write, apply

# Bytes that no checksum of a batch covers: a tear in them before a block with an old
# batch of the same length makes a batch that cannot be distinguished from a new one.
_HEADER = 21

# The offset field at the start of a batch. In a wrapper (magic 0 and 1) it determines
# the offsets of the messages inside, and no checksum covers it.
_OFFSET = 8

# (words, changes that reached the disk, in order)
Outcome = tuple[str, list[Change]]


def cuts(
    moment: Moment, rng: random.Random, most: int, *, model: str = "weak"
) -> Iterator[tuple[str, Nodes]]:
    """At most `most` states: (what happened, the nodes after it).

    Nothing and everything reaching the disk come first, then a sample of the rest.
    """
    pending = moment.pending
    for words, changes in itertools.islice(_outcomes(moment, rng, most), most):
        if model == "ext4":
            changes = _in_order(changes, pending)
        nodes = dict(moment.base)
        for change in changes:
            apply(nodes, change)
        yield words, nodes


def _outcomes(moment: Moment, rng: random.Random, most: int) -> Iterator[Outcome]:
    pending = moment.pending
    yield "nothing", []
    if not pending:
        return
    yield "all", list(pending)
    single = list(_single(moment, rng))
    rng.shuffle(single)
    mixed = max(most // 3, 1) if len(pending) > 1 else 0
    yield from single[: max(most - 2 - mixed, 0)]
    for _ in range(mixed):
        yield _mixed(moment, rng)


def _single(moment: Moment, rng: random.Random) -> Iterator[Outcome]:
    """Outcomes in which one change has another fate than the others."""
    pending = moment.pending
    count = len(pending)
    for at in range(count):
        before, change, after = pending[:at], pending[at], pending[at + 1 :]
        if at:
            yield f"the first {at}", [*before]
        if count > 1:
            yield f"all but {at}", [*before, *after]
            yield f"only {at}", [change]
        if isinstance(change, Write):
            for words, other in _fates(change, moment, rng):
                yield f"{at} {words}", [*before, *other, *after]
                yield f"{at} {words}, nothing behind", [*before, *other]


def _fates(write: Write, moment: Moment, rng: random.Random) -> Iterator[Outcome]:
    """Possible outcomes of a write other than all of it or nothing."""
    node, pos, data = write
    size = len(data)

    def other(found: bytes) -> list[Change]:
        return [Write(node, pos, _rewritten(write, found, moment))]

    yield "zeros", other(bytes(size))
    yield "garbage", other(rng.randbytes(size))
    if size > _OFFSET:
        yield f"zeros up to {_OFFSET}", other(bytes(_OFFSET) + data[_OFFSET:])
    stale = _stale(write, moment)
    if stale:
        yield "stale", other(stale)
    for _ in range(3):
        at = _tear(size, rng)
        if at:
            yield f"torn at {at}", [Write(node, pos, data[:at])]
            yield f"torn at {at}, then zeros", other(data[:at] + bytes(size - at))
            yield f"zeros up to {at}", other(bytes(at) + data[at:])
            if stale and _HEADER <= at < int.from_bytes(data[8:12], "big"):
                yield f"torn at {at}, then stale", other(data[:at] + stale[at:])


def left_of(data: bytes, before: bytes, found: bytes) -> bytes:
    """Bytes on disk after `data` was written over the saved `before`, and a power cut
    left `found`: bytes rewritten with their old value keep it."""
    same = bytes(
        mine if mine == there else other
        for mine, there, other in zip(data, before, found, strict=False)
    )
    return same + found[len(same) :]


def _rewritten(write: Write, found: bytes, moment: Moment) -> bytes:
    base = moment.base.get(write.node, b"")
    before = base[write.pos : write.pos + len(write.data)]
    return left_of(write.data, before, found)


def _tear(size: int, rng: random.Random) -> int:
    """Random place of a tear in a write, often inside the header of a batch."""
    if size < 2:
        return 0
    return rng.randrange(1, min(size, rng.choice((20, 70, size))))


def _stale(write: Write, moment: Moment) -> bytes:
    """Bytes that a block had before: the beginning of the same file. (They are
    recognised by their lower offsets.)"""
    old = moment.nodes.get(write.node, b"")
    if not isinstance(old, bytes) or not 0 < len(write.data) <= write.pos:
        return b""
    return old[: len(write.data)]


def _mixed(moment: Moment, rng: random.Random) -> Outcome:
    """An outcome in which each change has a random fate."""
    changes: list[Change] = []
    words: list[str] = []
    kept = rng.choice((0.3, 0.6, 0.9))
    for at, change in enumerate(moment.pending):
        if rng.random() < kept:
            changes.append(change)
        elif isinstance(change, Write) and rng.random() < 0.6:
            name, other = rng.choice(list(_fates(change, moment, rng)))
            changes += other
            words.append(f"{at} {name}")
        else:
            words.append(f"without {at}")
    return ", ".join(words) or "all", changes


def _in_order(changes: Sequence[Change], pending: Sequence[Change]) -> list[Change]:
    """Names and lengths survive in the order of the calls: none after a lost one."""
    kept = {id(change) for change in changes}
    lawful = set()
    for change in pending:
        if isinstance(change, Write):
            continue
        if id(change) not in kept:
            break
        lawful.add(id(change))
    return [c for c in changes if isinstance(c, Write) or id(c) in lawful]


def touched(moment: Moment) -> str:
    """Description of a moment, for messages."""
    names = sum(isinstance(change, Names) for change in moment.pending)
    return f"{moment.what} ({len(moment.pending)} pending, {names} of names)"
