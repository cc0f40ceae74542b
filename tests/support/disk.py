"""A disk in memory: the system calls of a store, and what a power cut leaves of them.

`MemoryDisk` is a `Files`. Its *nodes* are the files as a program sees them; its *base*
is the part that survives a power cut; *pending* changes lie between the two until a
sync covers them. All contents are immutable (`bytes`, and dictionaries that are never
changed), so that keeping a moment costs a shallow copy, and making a disk of one as
little.

    weak   the least that POSIX allows: a sync of a file saves the bytes of that file, a
           sync of a directory the names in it, and nothing else is in any order.
    ext4   names and lengths are saved in order, by any sync.

A sync that is made to fail marks what it should have saved as clean: no later sync
covers it, and it can be read until the machine stops, as Linux does it. (Names are not
lost so: a journal that cannot be written stops the file system.)

`support.power_cut` has the states that a power cut may leave of a moment.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from logstore.io.files import Waitable
from logstore.io.scheduler import Scheduler
from logstore.io.stamps import FileInfo
from support.byte_locks import ByteLocks
from support.disk_changes import (
    ROOT,
    Change,
    Cut,
    Moment,
    Names,
    Node,
    Nodes,
    Write,
    apply,
    changes_up_to,
    tree,
)
from support.disk_faults import Fault, is_look_of_owner

_FIRST_FD = 1 << 20  # nothing of the system's own
_devices = itertools.count(1 << 40)


_processes: weakref.WeakSet[MemoryDisk] = weakref.WeakSet()


def end_processes() -> None:
    """Kill all processes, on all disks in memory: their background threads would wait
    in real time, while their clocks stand still."""
    for disk in list(_processes):
        disk.kill()


class _Medium:
    """The disk itself, shared by several processes."""

    def __init__(self, nodes: Nodes, clock: int, model: str, seed: int) -> None:
        self.nodes = dict(nodes)
        self.base = dict(nodes)
        self.pending: list[Change] = []
        self.model = model
        self.rng = random.Random(seed)
        self.next_node = max(nodes) + 1
        self.clock = self.born = clock
        self.times: dict[int, tuple[int, int]] = {}  # modified, changed
        self.reserved: dict[int, int] = {}
        self.locks: dict[int, int] = {}  # node -> pid
        self.bytes: dict[tuple[int, int], tuple[int, int]] = {}  # (node, byte) -> owner
        self.boot = next(_devices).to_bytes(16, "big")
        self.budget: int | None = None
        self.moments: list[Moment] | None = None


class MemoryDisk(ByteLocks):
    """System calls of one process on a disk in memory.

    Not for several threads at once. The clock moves with each call, and by `advance`.

    Attributes:
        calls: (method, name) of each call, once it is set to a list.
    """

    def __init__(
        self,
        nodes: Nodes | None = None,
        *,
        model: str = "weak",
        seed: int = 0,
        clock: int = 1_700_000_000_000_000_000,
        medium: _Medium | None = None,
        pid: int = 0,
    ) -> None:
        self.medium = medium or _Medium(nodes or {ROOT: {}}, clock, model, seed)
        self.device = next(_devices)
        self.pid = pid or self.device
        self.calls: list[tuple[str, str]] | None = None
        self._is_dead = False
        self._sleepers: set[Any] = set()
        _processes.add(self)
        self._fds: dict[int, tuple[int, str]] = {}
        self._next_fd = _FIRST_FD
        self._written: set[int] = set()
        self._faults: list[Fault] = []
        self._bad: list[tuple[str, int, int, int]] = []

    # ------------------------------------------------------------ for tests

    def process(self) -> MemoryDisk:
        """The same disk as another process sees it."""
        return MemoryDisk(medium=self.medium)

    def kill(self) -> MemoryDisk:
        """End this process: its files are closed, its locks are free. Returns the disk
        as the next process sees it."""
        self._is_dead = True
        while self._sleepers:
            with contextlib.suppress(RuntimeError):  # it wakes up right now
                self._sleepers.pop().lock.release()
        self._fds.clear()
        self._unlock_bytes((self.pid,))
        locks = self.medium.locks
        for node in [node for node, pid in locks.items() if pid == self.pid]:
            del locks[node]
        return self.process()

    def record(self) -> list[Moment]:
        """Keep a moment after each change and each sync from now on, in this list."""
        self.medium.moments = []
        return self.medium.moments

    def moment(self, what: str = "") -> Moment:
        m = self.medium
        return Moment(dict(m.nodes), dict(m.base), tuple(m.pending), m.clock, what)

    def tree(self) -> dict[str, bytes]:
        """Paths with the contents of files, as programs see them."""
        return tree(self.medium.nodes)

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.medium.clock += int(seconds * 1e9)

    def fail(
        self,
        method: str,
        error: int = errno.EIO,
        *,
        nth: int = 1,
        times: int = 1 << 60,
        name: str = "",
        short: int = -1,
    ) -> None:
        """Fail the n-th call from now on, and `times` - 1 after it.

        Args:
            method: of `Files`; "*" any.
            name: only calls on files whose name ends so.
            short: of a write, the number of bytes written before it fails.
        """
        self._faults.append(Fault(method, error, nth, times, name, short))

    def damage(self, name: str, begin: int, end: int, *, lie: int = 0) -> None:
        """Make reads of these bytes fail with EIO, in files whose name ends so; with
        `lie` they return the first of them with these bits changed instead."""
        self._bad.append((name, begin, end, lie))

    def heal(self) -> None:
        """Fail no more calls."""
        self._faults.clear()
        self._bad.clear()

    def fill(self, left: int) -> None:
        """Leave this number of bytes free."""
        self.medium.budget = self._used() + left

    # ------------------------------------------------------------ inside

    def _call(self, method: str, name: str) -> Fault | None:
        """Note a call; raise if it must fail (the caller handles a short write). The
        listings of an owner's thread do not count: they come at random times."""
        if self._is_dead:
            raise OSError(errno.EBADF, "the process was killed")
        if is_look_of_owner(method):
            return None
        if self.calls is not None:
            self.calls.append((method, name))
        self.medium.clock += 1000
        for fault in self._faults:
            if fault.method not in (method, "*") or not name.endswith(fault.name):
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.times > 0:
                fault.times -= 1
                if method in ("write", "sync"):
                    return fault
                raise _error(fault.error)
        return None

    def _node(self, fd: int) -> int:
        try:
            return self._fds[fd][0]
        except KeyError:
            raise _error(errno.EBADF) from None

    def _name(self, fd: int) -> str:
        return self._fds.get(fd, (0, ""))[1]

    def _names_of(self, dir_fd: int) -> dict[str, int]:
        names = self.medium.nodes.get(self._node(dir_fd), {})
        if not isinstance(names, dict):
            raise _error(errno.ENOTDIR)
        return names

    def _find(self, dir_fd: int, name: str) -> int:
        if name == ".":
            return self._node(dir_fd)
        try:
            return self._names_of(dir_fd)[name]
        except KeyError:
            raise _error(errno.ENOENT) from None

    def _new_fd(self, node: int, name: str) -> int:
        self._next_fd += 1
        self._fds[self._next_fd] = node, name
        return self._next_fd

    def _change(self, change: Change, what: str) -> None:
        m = self.medium
        apply(m.nodes, change)
        m.pending.append(change)
        now = m.clock
        if isinstance(change, Names):
            m.times[change.directory] = now, now
            for _, node in change.entries:
                if node is not None:
                    m.times[node] = m.times.get(node, (now, now))[0], now
        else:
            m.times[change.node] = now, now
        self._keep(what)

    def _keep(self, what: str) -> None:
        if self.medium.moments is not None:
            self.medium.moments.append(self.moment(what))

    def _saved(self, node: int, *, is_directory: bool) -> None:
        """A sync succeeded: move the changes that it covers to the base."""
        m = self.medium
        ordered = m.model == "ext4"
        kept: list[Change] = []
        for change in m.pending:
            if isinstance(change, Names):
                covered = ordered or (is_directory and change.directory == node)
            else:
                covered = change.node == node or (ordered and isinstance(change, Cut))
            if covered:
                apply(m.base, change)
                if isinstance(change, Cut):
                    kept = list(changes_up_to(kept, change))
            else:
                kept.append(change)
        m.pending = kept
        if is_directory or ordered:
            self._collect()

    def _collect(self) -> None:
        """Drop nodes from the base that no name can lead to any more."""
        m = self.medium
        wanted = {ROOT} | {node for node, _ in self._fds.values()}
        for nodes in (m.base, m.nodes):
            for names in nodes.values():
                if isinstance(names, dict):
                    wanted.update(names.values())
        for change in m.pending:
            if isinstance(change, Names):
                wanted.update(node for _, node in change.entries if node is not None)
        for node in m.base.keys() - wanted:
            del m.base[node]

    def _lost(self, node: int) -> None:
        """A sync failed: its bytes count as clean, though not all are on the disk."""
        m = self.medium
        saved = m.rng.choice((0.0, 0.0, 0.5))
        kept: list[Change] = []
        for change in m.pending:
            if isinstance(change, Names) or change.node != node:
                kept.append(change)
            elif m.rng.random() < saved:
                apply(m.base, change)
        m.pending = kept

    def _forget(self, node: int) -> None:
        """Drop a node without a name, unless it is open. After a power cut a file may
        have two names (`move`)."""
        m = self.medium
        named = (n.values() for n in m.nodes.values() if isinstance(n, dict))
        if all(node != other for other, _ in self._fds.values()) and not any(
            node in numbers for numbers in named
        ):
            m.nodes.pop(node, None)
            m.reserved.pop(node, None)

    def _used(self) -> int:
        m = self.medium
        return sum(
            max(len(node), m.reserved.get(number, 0))
            for number, node in m.nodes.items()
            if isinstance(node, bytes)
        )

    def _room(self, node: int, end: int) -> int:
        """How far a file may grow towards `end`."""
        m = self.medium
        if m.budget is None:
            return end
        have = max(len(m.nodes.get(node, b"")), m.reserved.get(node, 0))
        return max(min(end, have + max(m.budget - self._used(), 0)), min(have, end))

    # ------------------------------------------------------------ directories

    def make_root(self, path: str) -> None:
        self._call("make_root", path)
        fd = self._new_fd(ROOT, "/")
        for part in path.strip("/").split("/"):
            if part not in self._names_of(fd):
                self.make_directory(fd, part)
                self.sync_directory(fd)
            parent, fd = fd, self.open_directory(fd, part)
            self.close(parent)
        self.close(fd)

    def open_root(self, path: str) -> int:
        self._call("open_root", path)
        fd = self._new_fd(ROOT, "/")
        for part in path.strip("/").split("/"):
            try:
                node = self._find(fd, part)
                if isinstance(self.medium.nodes[node], bytes):
                    raise _error(errno.ENOTDIR)
            finally:
                self._fds.pop(fd)
            fd = self._new_fd(node, part)
        return fd

    def open_directory(self, dir_fd: int, name: str) -> int:
        self._call("open_directory", name)
        node = self._find(dir_fd, name)
        if isinstance(self.medium.nodes[node], bytes):
            raise _error(errno.ENOTDIR)
        return self._new_fd(node, name)

    def _fresh(self, dir_fd: int, name: str, content: Node, what: str) -> int:
        m = self.medium
        directory = self._node(dir_fd)
        if directory not in m.nodes:
            raise _error(errno.ENOENT)
        node, m.next_node = m.next_node, m.next_node + 1
        self._change(Names(directory, ((name, node),), content), f"{what} {name}")
        return node

    def make_directory(self, dir_fd: int, name: str) -> None:
        self._call("make_directory", name)
        if name in self._names_of(dir_fd):
            raise _error(errno.EEXIST)
        self._fresh(dir_fd, name, {}, "mkdir")

    def remove_directory(self, dir_fd: int, name: str) -> None:
        self._call("remove_directory", name)
        node = self._find(dir_fd, name)
        names = self.medium.nodes[node]
        if isinstance(names, bytes):
            raise _error(errno.ENOTDIR)
        if names:
            raise _error(errno.ENOTEMPTY)
        self._change(Names(self._node(dir_fd), ((name, None),)), f"rmdir {name}")
        self.medium.nodes.pop(node)

    def list(self, dir_fd: int, *, directories: bool = False) -> list[str]:
        self._call("list", self._name(dir_fd))
        names = self._names_of(dir_fd)
        if directories:
            nodes = self.medium.nodes
            return sorted(n for n in names if isinstance(nodes[names[n]], dict))
        return sorted(names)

    def sync_directory(self, dir_fd: int) -> None:
        name = self._name(dir_fd)
        self._call("sync_directory", name)
        self._saved(self._node(dir_fd), is_directory=True)
        self._keep(f"sync {name}/")

    # ------------------------------------------------------------ files

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        self._call("open", name)
        node = self._find(dir_fd, name)
        if isinstance(self.medium.nodes[node], dict):
            raise _error(errno.EISDIR if write else errno.EINVAL)
        return self._new_fd(node, name)

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        self._call("create", name)
        node = self._names_of(dir_fd).get(name)
        if node is None:
            node = self._fresh(dir_fd, name, b"", "create")
        elif exclusive:
            raise _error(errno.EEXIST)
        elif isinstance(self.medium.nodes[node], dict):
            raise _error(errno.EISDIR)
        else:
            self._change(Names(self._node(dir_fd), ((name, None),)), f"unlink {name}")
            self._forget(node)
            node = self._fresh(dir_fd, name, b"", "create")
        return self._new_fd(node, name)

    def close(self, fd: int) -> None:
        if self._is_dead:
            return  # as the real one, which raises nothing
        node, name = self._fds.pop(fd, (0, ""))
        if not node:
            raise _error(errno.EBADF)
        if self.medium.locks.get(node) == self.pid:
            del self.medium.locks[node]  # POSIX: with any descriptor of the file
        self._unlock_bytes((self.pid, fd))
        if node in self.medium.nodes and fd in self._written:
            self._written.discard(fd)
            # May fail, and the descriptor is closed anyway. One that was only read
            # from, or a directory's, has nothing to fail with.
            self._call("close", name)

    def read(self, fd: int, buffer: Any, pos: int) -> int:
        name = self._name(fd)
        self._call("read", name)
        view = memoryview(buffer).cast("B")
        node = self.medium.nodes.get(self._node(fd), b"")
        if isinstance(node, dict):
            raise _error(errno.EISDIR)
        data = node[pos : pos + len(view)]
        for end, low, high, lie in self._bad:
            if name.endswith(end) and pos < high and low < pos + len(data):
                if not lie:
                    raise _error(errno.EIO)
                at = max(low, pos) - pos
                data = data[:at] + bytes([data[at] ^ lie]) + data[at + 1 :]
        view[: len(data)] = data
        return len(data)

    def write(self, fd: int, data: Any, pos: int) -> None:
        name = self._name(fd)
        fault = self._call("write", name)
        node = self._node(fd)
        given = bytes(data)
        self._written.add(fd)
        if fault is not None:
            given = given[: max(fault.short, 0)]
        fits = self._room(node, pos + len(given)) - pos
        if given[: max(fits, 0)]:
            written = Write(node, pos, given[: max(fits, 0)])
            self._change(written, f"write {name} {pos}+{len(written.data)}")
        if fault is not None:
            raise _error(fault.error)
        if fits < len(given):
            raise _error(errno.ENOSPC)

    def sync(self, fd: int) -> None:
        name = self._name(fd)
        fault = self._call("sync", name)
        node = self._node(fd)
        if fault is not None:
            self._lost(node)
            self._keep(f"failed sync {name}")
            raise _error(fault.error)
        self._saved(node, is_directory=False)
        self._keep(f"sync {name}")

    def truncate(self, fd: int, size: int) -> None:
        name = self._name(fd)
        self._call("truncate", name)
        node = self._node(fd)
        if self._room(node, size) < size:
            raise _error(errno.ENOSPC)
        self.medium.reserved.pop(node, None)
        self._change(Cut(node, size), f"truncate {name} {size}")

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        self._call("reserve", self._name(fd))
        node = self._node(fd)
        if self._room(node, pos + size) < pos + size:
            raise _error(errno.ENOSPC)
        reserved = self.medium.reserved
        reserved[node] = max(reserved.get(node, 0), pos + size)
        return True

    def write_back(self, fd: int, pos: int, size: int) -> None:
        """Anything may reach the disk at any time here."""

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        self._call("rename", old)
        m = self.medium
        node = self._find(dir_fd, old)
        there = self._names_of(dir_fd).get(new)
        if there == node:
            return
        if there is not None:
            is_directory = isinstance(m.nodes[node], dict)
            target = m.nodes[there]
            if isinstance(target, dict) and not is_directory:
                raise _error(errno.EISDIR)
            if isinstance(target, bytes) and is_directory:
                raise _error(errno.ENOTDIR)
            if isinstance(target, dict) and target:
                raise _error(errno.ENOTEMPTY)
        entries = ((old, None), (new, node))
        self._change(Names(self._node(dir_fd), entries), f"rename {old} {new}")
        if there is not None:
            self._forget(there)

    def move(self, dir_fd: int, old: str, to_fd: int, new: str) -> None:
        """Move a file. A power cut may leave both names, or none."""
        self._call("move", old)
        m = self.medium
        node = self._find(dir_fd, old)
        there = self._names_of(to_fd).get(new)
        if there is not None and isinstance(m.nodes[there], dict):
            raise _error(errno.EISDIR)
        # For programs it is one step.
        moments, m.moments = m.moments, None
        self._change(Names(self._node(to_fd), ((new, node),)), "")
        m.moments = moments
        gone = Names(self._node(dir_fd), ((old, None),))
        self._change(gone, f"move {old} {new}")
        if there is not None:
            self._forget(there)

    def unlink(self, dir_fd: int, name: str) -> None:
        self._call("unlink", name)
        node = self._find(dir_fd, name)
        if isinstance(self.medium.nodes[node], dict):
            raise _error(errno.EISDIR)
        self._change(Names(self._node(dir_fd), ((name, None),)), f"unlink {name}")
        self._forget(node)

    def _info(self, node: int) -> FileInfo:
        m = self.medium
        content = m.nodes.get(node, b"")
        is_file = isinstance(content, bytes)
        modified, changed = m.times.get(node, (m.born, m.born))
        size = len(content) if is_file else 4096
        return FileInfo(
            size, modified, changed, self.device, node, is_file, not is_file
        )

    def stat(self, fd: int) -> FileInfo:
        self._call("stat", self._name(fd))
        return self._info(self._node(fd))

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        self._call("stat_name", name)
        return self._info(self._find(dir_fd, name))

    def set_modified(self, fd: int, mtime_ns: int) -> None:
        self._call("set_modified", self._name(fd))
        self.medium.times[self._node(fd)] = mtime_ns, self.medium.clock

    def size(self, fd: int) -> int:
        self._call("size", self._name(fd))
        return len(self.medium.nodes.get(self._node(fd), b""))

    def free_bytes(self, fd: int) -> int:
        self._call("free_bytes", self._name(fd))
        budget = self.medium.budget
        return 1 << 40 if budget is None else max(budget - self._used(), 0)

    # ------------------------------------------------------------ lock, clock

    def lock(self, fd: int) -> int | None:
        self._call("lock", self._name(fd))
        holder = self.medium.locks.setdefault(self._node(fd), self.pid)
        return None if holder == self.pid else holder

    def now_ms(self) -> int:
        return self.medium.clock // 1_000_000

    def monotonic(self) -> float:
        return self.medium.clock / 1e9

    def unlock_file(self, fd: int) -> None:
        pass

    def lock_file(self, fd: int) -> bool:
        self._call("lock_file", self._name(fd))
        return True

    def wait(self, waiter: Waitable, seconds: float | None) -> bool:
        self._sleepers.add(waiter)
        try:
            return not self._is_dead and waiter.wait(seconds)
        finally:
            self._sleepers.discard(waiter)
            if self._is_dead:
                # A killed process has no threads: thousands would stay, and poll.
                owner = sys._getframe(1).f_locals.get("self")
                if isinstance(owner, Scheduler):
                    owner._stopped = True


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def disk_of(
    files: Iterable[tuple[str, bytes]], *, model: str = "weak", seed: int = 0
) -> MemoryDisk:
    """A disk with these files, all saved; parents are made."""
    nodes: Nodes = {ROOT: {}}
    number = ROOT
    for path, content in files:
        at = ROOT
        *parents, name = path.strip("/").split("/")
        if content == b"/":
            parents, name = [*parents, name], ""
        for part in parents:
            if part not in nodes[at]:
                number += 1
                nodes[at] = {**nodes[at], part: number}
                nodes[number] = {}
            at = nodes[at][part]
        if name:
            number += 1
            nodes[at] = {**nodes[at], name: number}
            nodes[number] = content
    return MemoryDisk(nodes, model=model, seed=seed)
