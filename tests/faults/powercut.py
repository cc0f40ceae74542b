"""Possible states of files after a power cut, from a trace of file calls.

A trace (`recorder.c`) becomes a list of events: a change, a sync, a promise. At any
moment, changes that no sync covers yet may have reached the disk or not, in any order,
in part, as zeros, or as what the disk block held before.

Two models say what a sync covers. "weak" is the least that POSIX allows: the bytes of
that file, or the names in that directory. "ext4": also every name and size that was
changed before; those reach the disk in order.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.power_cut import left_of

__all__ = ["Change", "Cut", "Disk", "Event", "Recording", "variants"]

(OPEN, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, SYNC_BEGIN, SYNC_END, CLOSE, PROMISE,
 OTHER) = range(1, 12)  # fmt: skip
EVENT = struct.Struct("<iiiiqII")

ROOT = 0


class Change(NamedTuple):
    """A change of a file or a directory.

    Attributes:
        kind: "write" (node, position, bytes), "size" (node, size), or "names": entries
            (directory, name, node or -1 for none).
    """

    kind: str
    node: int
    pos: int
    data: bytes
    entries: tuple[tuple[int, str, int], ...] = ()


class Event(NamedTuple):
    """A recorded event: "change", "sync" or "failed-sync" (of a node; changes numbered
    below `upto` were made before it began), "promise" (`text`)."""

    kind: str
    change: Change | None = None
    node: int = -1
    upto: int = 0
    text: bytes = b""


class Disk:
    """Files and directories by number; the root is number 0."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.directories: dict[int, dict[str, int]] = {ROOT: {}}

    def copy(self) -> Disk:
        other = Disk()
        other.files = dict(self.files)
        other.directories = {k: dict(v) for k, v in self.directories.items()}
        return other

    def apply(self, change: Change) -> None:
        if change.kind == "write":
            old, pos = self.files.get(change.node, b""), change.pos
            behind = old[pos + len(change.data) :]
            self.files[change.node] = old[:pos].ljust(pos, b"\0") + change.data + behind
        elif change.kind == "size":
            old = self.files.get(change.node, b"")
            self.files[change.node] = old[: change.pos].ljust(change.pos, b"\0")
        for directory, name, node in change.entries:
            names = self.directories.setdefault(directory, {})
            if node < 0:
                names.pop(name, None)
            else:
                names[name] = node
        if change.kind == "names" and change.pos:
            self.directories.setdefault(change.node, {})

    def beside(self, node: int) -> list[bytes]:
        """The files of the directory that a file is in."""
        for names in self.directories.values():
            if node in names.values():
                return [self.files[n] for n in names.values() if n in self.files]
        return []

    def tree(
        self, at: int = ROOT, path: str = ""
    ) -> Iterator[tuple[str, bytes | None]]:
        """(path, bytes or None for a directory) of all that can be reached."""
        for name, node in sorted(self.directories.get(at, {}).items()):
            if node in self.directories:
                yield path + name, None
                yield from self.tree(node, f"{path}{name}/")
            else:
                yield path + name, self.files.get(node, b"")

    def write_to(self, folder: Path) -> None:
        """Make real files of it."""
        os.mkdir(folder)
        for path, data in self.tree():
            where = f"{folder}/{path}"
            if data is None:
                os.mkdir(where)
                continue
            fd = os.open(where, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, data)
            os.close(fd)


class Recording:
    """The events of a trace, and the disk at its end.

    Attributes:
        events: in order.
        unknown: calls on the store that this model does not cover.
    """

    def __init__(self, trace: bytes, root: str) -> None:
        self.events: list[Event] = []
        self.unknown: list[str] = []
        self.disk = Disk()
        self._root = root
        self._fds: dict[int, int] = {}
        self._begun: dict[int, tuple[int, int]] = {}
        self._changes = 0
        self._next = 1
        pos = 0
        while pos < len(trace):
            kind, fd, other, result, at, n, m = EVENT.unpack_from(trace, pos)
            pos += EVENT.size
            first, second = trace[pos : pos + n], trace[pos + n : pos + n + m]
            pos += n + m
            self._take(kind, fd, other, result, at, first, second)

    def _change(self, *fields: Any) -> None:
        change = Change(*fields)
        self.disk.apply(change)
        self.events.append(Event("change", change))
        self._changes += 1

    def _place(self, fd: int, text: bytes) -> tuple[int, str]:
        """(directory, name) of a path; the root itself is (-1, "")."""
        name = text.decode()
        if fd >= 0:
            return self._fds[fd], name
        below = os.path.relpath(name, self._root)
        if below == ".":
            return -1, ""
        node = ROOT
        *parents, name = below.split("/")
        for parent in parents:
            node = self.disk.directories[node][parent]
        return node, name

    def _take(
        self, kind: int, fd: int, other: int, result: int, at: int, first: bytes,
        second: bytes,
    ) -> None:  # fmt: skip
        disk = self.disk
        if kind == OPEN:
            self._opened(*self._place(fd, first), other, result)
        elif kind == WRITE:
            self._change("write", self._fds[fd], at, first)
        elif kind == TRUNCATE:
            self._change("size", self._fds[fd], at, b"")
        elif kind == RENAME:
            old, new = self._place(fd, first), self._place(other, second)
            node = disk.directories[old[0]][old[1]]
            self._change("names", old[0], 0, b"", ((*old, -1), (*new, node)))
        elif kind == UNLINK:
            place = self._place(fd, first)
            self._change("names", place[0], 0, b"", ((*place, -1),))
        elif kind == MKDIR:
            place = self._place(fd, first)
            if place[0] >= 0:
                node, self._next = self._next, self._next + 1
                # Its number in `node`, and a 1: it is a directory.
                self._change("names", node, 1, b"", ((*place, node),))
        elif kind == SYNC_BEGIN:
            self._begun[other] = (self._fds[fd], self._changes)
        elif kind == SYNC_END:
            what = "sync" if result == 0 else "failed-sync"
            node, upto = self._begun.pop(other)
            self.events.append(Event(what, node=node, upto=upto))
        elif kind == CLOSE:
            self._fds.pop(fd, None)
        elif kind == PROMISE:
            self.events.append(Event("promise", text=first))
        else:
            self.unknown.append(first.decode())

    def _opened(self, directory: int, name: str, flags: int, fd: int) -> None:
        if directory < 0 or name == ".":
            self._fds[fd] = max(directory, ROOT)
            return
        node = self.disk.directories[directory].get(name, -1)
        if node < 0:
            node, self._next = self._next, self._next + 1
            self.disk.files[node] = b""
            self._change("names", directory, 0, b"", ((directory, name, node),))
        elif flags & os.O_TRUNC and self.disk.files.get(node):
            self._change("size", node, 0, b"")
        self._fds[fd] = node


class Cut:
    """Durable and pending changes at each event of a recording."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.durable = Disk()
        self.pending: list[tuple[int, Change]] = []
        self._lost: set[int] = set()
        self._made = 0

    def step(self, event: Event) -> None:
        if event.kind == "change":
            assert event.change is not None
            self.pending.append((self._made, event.change))
            self._made += 1
        elif event.kind == "sync":
            left: list[tuple[int, Change]] = []
            for number, change in self.pending:
                if number < event.upto and self._covers(number, change, event.node):
                    self.durable.apply(change)
                    if change.kind != "names":
                        left = list(self._without(left, change))
                    if change.kind == "size":
                        left = list(_up_to(left, change))
                else:
                    left.append((number, change))
            self.pending = left
        elif event.kind == "failed-sync":
            # The pages count as clean now: no later sync writes them.
            self._lost |= {
                number
                for number, change in self.pending
                if number < event.upto
                and change.kind == "write"
                and change.node == event.node
            }

    def _without(
        self, pending: list[tuple[int, Change]], done: Change
    ) -> Iterator[tuple[int, Change]]:
        """Remainder of writes that a failed sync gave up, if a later change of the same
        bytes is durable."""
        for number, write in pending:
            if write.node != done.node or number not in self._lost:
                yield number, write
                continue
            begin, end = write.pos, write.pos + len(write.data)
            low = done.pos
            high = end if done.kind == "size" else done.pos + len(done.data)
            for first, last in ((begin, min(end, low)), (max(begin, high), end)):
                if first < last:
                    data = write.data[first - begin : last - begin]
                    yield number, write._replace(pos=first, data=data)

    def _covers(self, number: int, change: Change, node: int) -> bool:
        if number in self._lost:
            return False
        if change.kind == "names":
            ordered = self.model == "ext4"
            return ordered or any(d == node for d, _, _ in change.entries)
        return change.node == node or (self.model == "ext4" and change.kind == "size")

    def lawful(self, chosen: list[Change], pending: list[Change]) -> list[Change]:
        """Chosen changes that the model allows together."""
        if self.model != "ext4":
            return chosen
        have = {id(change) for change in chosen}
        kept = set()
        for change in pending:
            if change.kind != "write":
                if id(change) not in have:
                    break
                kept.add(id(change))
        return [c for c in chosen if c.kind == "write" or id(c) in kept]


def _up_to(
    pending: list[tuple[int, Change]], size: Change
) -> Iterator[tuple[int, Change]]:
    """Changes made before a durable size, without the parts of writes past it: parts
    that are not on the disk yet never get there."""
    for number, change in pending:
        if change.kind == "write" and change.node == size.node:
            data = change.data[: max(size.pos - change.pos, 0)]
            if data:
                yield number, change._replace(data=data)
        else:
            yield number, change


def variants(
    pending: list[Change], newest: bool, rng: random.Random, disk: Disk
) -> Iterator[tuple[str, list[Change]]]:
    """Possible subsets of the unsynced changes on disk: (in words, the changes).
    `newest`: the last one was made just now."""
    n = len(pending)
    yield "all", pending
    if not n:
        return
    yield "none", []
    for k in range(1, n):
        yield f"first {k}", pending[:k]
    for k in range(n):
        yield f"without {k}", pending[:k] + pending[k + 1 :]
        if n > 2:
            yield f"only {k}", [pending[k]]
        if pending[k].kind == "write":
            for what, other in _spoilt(pending[k], rng, disk):
                yield f"{what} {k}", [*pending[:k], other, *pending[k + 1 :]]
                yield f"{what} {k}, then none", [*pending[:k], other]
    if newest and pending[-1].kind == "write":
        yield from _torn(pending, disk)
    for number in range(6 if n > 2 else 0):
        yield f"random {number}", list(_some(pending, rng, disk))


def _over(write: Change, found: bytes, disk: Disk) -> Change:
    """A write with other bytes found in its place."""
    before = disk.files.get(write.node, b"")[write.pos : write.pos + len(write.data)]
    return write._replace(data=left_of(write.data, before, found))


def _spoilt(
    write: Change, rng: random.Random, disk: Disk
) -> Iterator[tuple[str, Change]]:
    """Outcomes of a write whose blocks were allocated, but hold other bytes."""
    size = len(write.data)
    yield "zeros for", _over(write, bytes(size), disk)
    yield "garbage for", _over(write, rng.randbytes(size), disk)
    # Old content of a reused block, from this or another file of the directory. (A file
    # of another partition may hold a valid batch for this place: a batch does not name
    # its partition.)
    old = rng.choice([b"", *disk.beside(write.node)])
    if old:
        at = rng.randrange(len(old)) if rng.random() < 0.5 else 0
        stale = (old[at:] + old)[:size].ljust(size, b"\0")
        yield "stale bytes for", _over(write, stale, disk)
    half = size // 2
    if half:
        # The later page reached the disk, the earlier one did not.
        later = bytes(half) + write.data[half:]
        yield "the end alone of", _over(write, later, disk)


def _torn(pending: list[Change], disk: Disk) -> Iterator[tuple[str, list[Change]]]:
    write = pending[-1]
    data, size = write.data, len(write.data)
    if size <= 512:
        cuts: Any = range(1, size)
    else:
        edges = range(512 - write.pos % 512, size, 512)
        cuts = sorted({1, 8, 12, 16, 17, size // 2, size - 1, *edges})
    for cut in cuts:
        yield f"torn at {cut}", [*pending[:-1], write._replace(data=data[:cut])]
        zeroed = data[:cut] + bytes(size - cut)
        yield f"zeros from {cut}", [*pending[:-1], _over(write, zeroed, disk)]


def _some(pending: list[Change], rng: random.Random, disk: Disk) -> Iterator[Change]:
    for change in pending:
        chance = rng.random()
        if chance < 0.5:
            yield change
        elif chance < 0.65 and change.kind == "write" and len(change.data) > 1:
            cut = rng.randrange(1, len(change.data))
            rest = bytes(len(change.data) - cut) if chance < 0.58 else b""
            yield _over(change, change.data[:cut] + rest, disk)
