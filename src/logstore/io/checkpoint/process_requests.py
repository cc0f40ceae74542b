"""Requests of one process that has not the store's lock, and the answers to them
(docs/format.md, "Requests of a process").

    .logstore-process-<id>   written by the process: a slot for each request that waits,
                             and a ring with their contents
    .logstore-answers-<id>   written by the owner of the store: a slot for each answer,
                             and room for long ones

Each side writes one of the files, so a report that a file has changed wakes the other
side alone. Neither file is synced: after a power failure no process waits for an
answer. Locks on single bytes of the first file decide the outcome of a request:

    byte 0         the process lives
    byte 64 + slot the owner has taken the request, and carries it out; or the process
                   withdraws it. Both do so with the lock only
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import operator
import os
import re
import struct
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, NamedTuple

import xxhash

from logstore import _native as native
from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import first_entry, split_entries
from logstore.io.checkpoint.place import is_left_over
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open

__all__ = [
    "ANSWER_BYTES_MAX",
    "LONG_ANSWER_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "SLOTS",
    "FilesGoneError",
    "ProcessFile",
    "ServedProcess",
    "Slot",
    "TakenRequest",
    "process_of",
    "remove_leftovers",
]

# Most requests of a process that wait at once, and their bytes.
SLOTS: Final = 64
RING_BYTES: Final = 16 << 20
REQUEST_BYTES_MAX: Final = 8 << 20

_HEADER_BYTES: Final = 4096
_SLOTS_POS: Final = 4096
_RING_POS: Final = 8192
# Number, position in the file, bytes, state, checksum of the content.
_SLOT: Final = struct.Struct("<QQIIQ")
_TABLE_BYTES: Final = SLOTS * _SLOT.size
# The table of slots and the beginning of the ring are read at once: a process with few
# requests has them there.
_AHEAD_BYTES: Final = _RING_POS - _SLOTS_POS + (16 << 10)
# The first of four in each slot is its number.
_NUMBERS: Final = struct.Struct(f"<{SLOTS * 4}Q")
_WAITS: Final = 0
_WITHDRAWN: Final = 1

_ALIVE: Final = 0
_TAKEN: Final = 64

# The calls by which a request is made, in order: both files still have their names; its
# content is written, then its slot.
_PUT_CONTENT: Final = 2
_PUT_SLOT: Final = 3
_PUT_CALLS: Final = 4
# The calls keep no longer content in memory.
_KEPT_BYTES: Final = 64 << 10

# Number, bytes, and the checksum of the content that follows.
_ANSWER: Final = struct.Struct("<QIQ")
_NUMBER: Final = struct.Struct("<Q")
_ANSWER_SLOT: Final = 2048
ANSWER_BYTES_MAX: Final = _ANSWER_SLOT - _ANSWER.size
# Longer ones go to a separate place after the slots, which takes no space before.
LONG_ANSWER_BYTES_MAX: Final = 1 << 20
_LONG_POS: Final = SLOTS * _ANSWER_SLOT

_NAME: Final = re.compile(re.escape(layout.PROCESS_PREFIX) + r"([0-9a-f]{32})")


def remove_leftovers(root: Directory, names: Iterable[str], before_ms: int) -> None:
    """Remove what is left of processes that ended before their requests had a name.

    Args:
        names: all that is in the root.
        before_ms: only what was not written to since then, in Unix milliseconds.

    Raises:
        OSError: the system refuses.
    """
    known = frozenset(names)
    for name in known:
        unique = name.removeprefix(layout.ANSWERS_PREFIX)
        if unique == name or layout.PROCESS_PREFIX + unique in known:
            continue
        with contextlib.suppress(FileNotFoundError):
            if root.stat(name).mtime_ns < before_ms * 1_000_000:
                temporary = f"{layout.PROCESS_PREFIX}{unique}.tmp"
                for leftover in (temporary, name):
                    root.unlink(leftover, missing_ok=True)


def process_of(name: str) -> str | None:
    """The id of the process whose requests are in a file; None: another file."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def _checksum(number: int, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=number)


class Slot(NamedTuple):
    """The place of a request.

    Attributes:
        number: of the request, from 1 on in the order of the requests of the process.
        pos, size: of its content in the file, in bytes.
    """

    number: int
    pos: int
    size: int

    @property
    def place(self) -> int:
        """Which of the slots it has."""
        return self.number % SLOTS


# ------------------------------------------------------------------ of the process


class FilesGoneError(Exception):
    """The files of a process have lost their names: no owner finds a request in them.
    No caller sees it."""


class ProcessFile:
    """The two files, of the process that makes requests. For one thread at a time.

    Attributes:
        id: of the process, 32 hexadecimal digits.

    Raises:
        OSError: they cannot be made; nothing is left of them.
    """

    def __init__(self, root: Directory, unique: str, about: dict[str, Any]) -> None:
        self.id = unique
        self._root = root
        self._files = root.files
        self._next = 1
        self._slots: dict[int, Slot] = {}
        self._names = layout.ANSWERS_PREFIX + unique, layout.PROCESS_PREFIX + unique
        text = checkpoints.state_text({"id": unique, **about})
        header = first_entry(text.encode("utf-8", "surrogatepass"))
        temporary = f"{self._names[1]}.tmp"
        try:
            self._answers = held_open(self._files, root.create(self._names[0]))
            # An answer always fits, also on a disk that is full by then.
            size = SLOTS * _ANSWER_SLOT
            self._files.reserve(self._answers.fd, 0, size)
            self._files.write(self._answers.fd, bytes(size), 0)
            self._file = held_open(self._files, root.create(temporary))
            self._files.write(self._file.fd, header.ljust(_RING_POS, b"\0"), 0)
            self._files.lock_byte(self._file.fd, _ALIVE)
            self._calls = self._prepared()
            root.rename(temporary, self._names[1])
        except BaseException:
            for name in (temporary, self._names[0]):
                with contextlib.suppress(OSError):
                    root.unlink(name, missing_ok=True)
            raise

    @property
    def answers_fd(self) -> int:
        """The file that changes when there is an answer."""
        return self._answers.fd

    @property
    def next_number(self) -> int:
        """The number of the next request."""
        return self._next

    def waiting(self, number: int) -> Slot | None:
        """The place of a request with a number; None: it was not made, or is over."""
        return self._slots.get(number)

    def _prepared(self) -> native.Steps:
        """The calls by which each request is made."""
        files, root = self._files, self._root.held()
        steps = []
        for file, name in zip((self._answers, self._file), self._names, strict=True):
            info = files.stat(file.fd)
            steps.append(
                native.Step(
                    native.STEP_FILE,
                    root.fd,
                    data=os.fsencode(name),
                    device=info.device,
                    inode=info.inode,
                )
            )
        write = native.Step(native.STEP_WRITE, self._file.fd)
        return native.Steps([*steps, write, write])

    def put(self, content: bytes) -> Slot | None:
        """Make a request; None: too many wait, or too many bytes of them.

        Raises:
            FilesGoneError: the files were removed; nothing was asked for.
            OSError: it cannot be written; nothing was asked for.
        """
        size = len(content)
        pos = self._place(size)
        if pos is None:
            return None
        # The reference keeps the descriptor open during the calls.
        root = self._root.held()
        slot = Slot(self._next, pos, size)
        # First: an interrupt may come after the last write, and a number that is given
        # again would be taken for a request that was carried out before.
        self._next += 1
        self._slots[slot.number] = slot
        # The first one follows the making of the files.
        begin = 0 if slot.number > 1 else _PUT_CONTENT
        calls = self._calls
        calls.set_bytes(_PUT_CONTENT, content, _RING_POS + pos)
        calls.set_bytes(
            _PUT_SLOT,
            _SLOT.pack(*slot, _WAITS, _checksum(slot.number, content)),
            _SLOTS_POS + slot.place * _SLOT.size,
        )
        try:
            done, error = self._files.make_steps(calls, _PUT_CALLS, begin)
        finally:
            del root
        if size > _KEPT_BYTES:
            calls.set_bytes(_PUT_CONTENT, b"")
        if done < _PUT_CALLS:
            self.free(slot)
            if error is None or done < _PUT_CONTENT:
                raise FilesGoneError from error
            raise error
        return slot

    def _place(self, size: int) -> int | None:
        """Position in the ring with room for `size` bytes; None: no room."""
        # Any thread may free a place at any time.
        slots = list(self._slots.values())
        if not slots:
            return 0
        first, last = min(slots), max(slots)
        if self._next - first.number >= SLOTS:
            return None
        end = last.pos + last.size
        if last.pos >= first.pos and end + size <= RING_BYTES:
            return end
        if last.pos >= first.pos:
            end = 0
        return end if end + size <= first.pos else None

    def answer(self, slot: Slot) -> bytes | None:
        """The answer to a request; None: it is not there yet, or not all of it."""
        files, fd, place = self._files, self._answers.fd, slot.place
        data = bytearray(_ANSWER_SLOT)
        files.read(fd, data, place * _ANSWER_SLOT)
        # Most looks find that of an earlier request.
        if _NUMBER.unpack_from(data)[0] != slot.number:
            return None
        numbered_answer = _answered(files, fd, place, bytes(data))
        return None if numbered_answer is None else numbered_answer[1]

    def withdraw(self, slot: Slot, may_be_done: Callable[[], bool]) -> bool:
        """Take a request back, which then will never be carried out; False: the owner
        has taken it.

        Args:
            may_be_done: whether an owner that has ended may have carried it out.

        Raises:
            OSError: the system refuses; it may be carried out.
        """
        fd, byte = self._file.fd, _TAKEN + slot.place
        try:
            # Inside: an interrupt may come after it. Without the lock, to unlock does
            # nothing.
            if not self._files.lock_byte(fd, byte):
                return False
            # Another thread may have taken its answer, and another request its place.
            if slot.number not in self._slots:
                return False
            if self.answer(slot) is not None or may_be_done():
                return False
            data = _SLOT.pack(*slot, _WITHDRAWN, 0)
            self._files.write(fd, data, _SLOTS_POS + slot.place * _SLOT.size)
        finally:
            self._files.unlock_byte(fd, byte)
        return True

    def free_others(self, numbers: Container[int]) -> None:
        """Free the places of requests that no call waits for, because their call was
        interrupted, if they are answered or can be taken back.

        Args:
            numbers: of the requests that a call waits for.
        """
        for slot in list(self._slots.values()):
            if slot.number not in numbers:
                with contextlib.suppress(OSError):
                    if self.answer(slot) is not None or self.withdraw(
                        slot, lambda: False
                    ):
                        self.free(slot)

    def free(self, slot: Slot) -> None:
        """The place of a request may be used again: it is answered, or withdrawn."""
        self._slots.pop(slot.number, None)

    def close(self) -> None:
        """Remove the files, if no request waits; else they stay for the owner. May be
        called again."""
        if self._file.fd < 0:
            return
        if not self._slots:
            for name in reversed(self._names):
                with contextlib.suppress(OSError):
                    self._root.unlink(name, missing_ok=True)
        with contextlib.suppress(OSError):
            self._files.unlock_byte(self._file.fd, _ALIVE)
        self.abandon()

    def abandon(self) -> None:
        """Leave the files to the parent, in the child of a fork."""
        self._file.close()
        self._answers.close()


def _answered(
    files: Files, fd: int, place: int, slot: bytes
) -> tuple[int, bytes] | None:
    """(number of the request, content) of the answer in a slot; None: no answer, or
    not all of it."""
    if len(slot) < _ANSWER.size:
        return None
    number, size, checksum = _ANSWER.unpack_from(slot)
    if size <= ANSWER_BYTES_MAX:
        content = slot[_ANSWER.size : _ANSWER.size + size]
    elif size <= LONG_ANSWER_BYTES_MAX:
        content = _read(files, fd, size, _long_pos(place))
    else:
        return None
    is_whole = len(content) == size and checksum == _checksum(number, content)
    return (number, content) if is_whole else None


def _long_pos(place: int) -> int:
    return _LONG_POS + place * LONG_ANSWER_BYTES_MAX


def _read(files: Files, fd: int, size: int, pos: int) -> bytes:
    data = bytearray(size)
    n = files.read(fd, data, pos)
    return bytes(memoryview(data)[:n])


# ------------------------------------------------------------------ of the owner


class WaitingRequest(NamedTuple):
    """A request that waits.

    Attributes:
        slot: its place.
        checksum: of its content.
        row: of the table, unchanged since it was read.
        ahead: its content, or a part of it.
    """

    slot: Slot
    checksum: int
    row: bytes
    ahead: bytes


class TakenRequest(NamedTuple):
    """A request that the owner carries out.

    Attributes:
        slot: its place.
        content: its bytes; None: they are damaged.
    """

    slot: Slot
    content: bytes | None


class ServedProcess:
    """The two files of another process, of the owner of the store. For one thread at a
    time.

    Attributes:
        id: of the process.
        about: what it says of itself.
        has_more: whether more requests may wait than were taken last.
        is_blocked: the next one is being withdrawn, by a process that may be stopped.

    Raises:
        FileNotFoundError: they are gone.
        CorruptCheckpointError: they are damaged.
        OSError: they cannot be opened.
    """

    def __init__(self, root: Directory, unique: str) -> None:
        self.id = unique
        self._root = root
        self._files = root.files
        self._names = layout.PROCESS_PREFIX + unique, layout.ANSWERS_PREFIX + unique
        if is_left_over(root, self._names[0]):
            # In a copy made of hard links: the process makes requests of the original.
            self.remove()
        self._file = held_open(self._files, self._opened(self._names[0]))
        self._answers = held_open(self._files, self._open_answers())
        path = root.path_of(self._names[0])
        data = bytearray(_HEADER_BYTES)
        n = self._files.read(self._file.fd, data, 0)
        try:
            bodies, _ = split_entries(bytes(data[:n]).partition(b"\0")[0])
        except ValueError as error:
            raise CorruptCheckpointError(
                f"the requests in {path} cannot be used: {error}",
                path=path,
                reason=str(error),
            ) from error
        self.about = checkpoints.entry_value(path, bodies[0])
        self.has_more = True
        self.is_blocked = False
        fds = self._file.fd, self._answers.fd
        self._taking = native.Steps(
            [
                native.Step(native.STEP_LOCK, fds[0]),
                native.Step(native.STEP_BYTES, fds[0]),
            ]
        )
        self._answering = native.Steps(
            [
                native.Step(native.STEP_WRITE, fds[1]),
                native.Step(native.STEP_UNLOCK, fds[0]),
            ]
        )
        # The number of the request that was taken from each slot.
        self._held: dict[int, int] = {}
        # The last answer in each slot.
        self._done = self._answered_before()

    def _opened(self, name: str) -> int:
        return self._root.open(name, write=True, keep_links=True)

    def _open_answers(self) -> int:
        root, name = self._root, self._names[1]
        try:
            return self._opened(name)
        except FileNotFoundError:
            if self.is_alive:
                raise
            # The file was removed. No caller waits for an answer, but requests under
            # an identity of a caller are carried out.
            return root.create(name)

    def _answered_before(self) -> list[int]:
        files, fd, done = self._files, self._answers.fd, []
        slots = _read(files, fd, SLOTS * _ANSWER_SLOT, 0)
        for place in range(SLOTS):
            begin = place * _ANSWER_SLOT
            numbered_answer = _answered(
                files, fd, place, slots[begin : begin + _ANSWER_SLOT]
            )
            done.append(0 if numbered_answer is None else numbered_answer[0])
        return done

    @property
    def fd(self) -> int:
        """The file that changes when there is a request."""
        return self._file.fd

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been started again since the process made its
        files: later, they may be of any earlier moment, and no process waits.
        """
        boot, host = self.about.get("boot"), self.about.get("host")
        files = self._files
        is_here = host == files.host() and boot is not None
        return not is_here or boot == files.process_id().boot.hex()

    @property
    def is_alive(self) -> bool:
        """Whether the process has neither ended nor closed its files."""
        return bool(self._files.locked_bytes(self._file.fd, _ALIVE, _ALIVE + 1))

    def waiting(self) -> list[WaitingRequest]:
        """The requests that wait, in the order of their numbers; their contents as far
        as they lie at the beginning of the ring.

        Raises:
            OSError: the file cannot be read.
        """
        data = _read(self._files, self._file.fd, _AHEAD_BYTES, _SLOTS_POS)
        # Of the table and then the ring: a process writes in the other order.
        requests = []
        table = data[:_TABLE_BYTES].ljust(_TABLE_BYTES, b"\0")
        newer = map(operator.gt, _NUMBERS.unpack(table)[::4], self._done)
        for index in itertools.compress(range(SLOTS), newer):
            begin = index * _SLOT.size
            number, pos, size, state, checksum = _SLOT.unpack_from(table, begin)
            if state == _WAITS and number % SLOTS == index:
                row, ahead_pos = (
                    table[begin : begin + _SLOT.size],
                    _RING_POS - _SLOTS_POS + pos,
                )
                ahead = data[ahead_pos : ahead_pos + size]
                slot = Slot(number, pos, size)
                requests.append(WaitingRequest(slot, checksum, row, ahead))
        return sorted(requests) if len(requests) > 1 else requests

    def take(self, requests_max: int, bytes_max: int) -> list[TakenRequest]:
        """Take waiting requests, in the order of their numbers: up to `requests_max`,
        with up to `bytes_max` bytes, and at least one if one waits. Each is answered.

        Raises:
            OSError: the file cannot be read.
        """
        taken_requests: list[TakenRequest] = []
        waiting = self.waiting()
        self.has_more = self.is_blocked = False
        for request in waiting[:requests_max]:
            slot = request.slot
            bytes_max -= slot.size
            if taken_requests and bytes_max < 0:
                break
            content = self._content(request)
            # Its place in the ring is its own as long as its row is in the table.
            is_taken = self._take(slot, request.row)
            if is_taken is None:
                self.is_blocked = True
                break
            if is_taken:
                taken_requests.append(TakenRequest(slot, content))
        self.has_more = len(taken_requests) < len(waiting) and not self.is_blocked
        return taken_requests

    def _take(self, slot: Slot, row: bytes) -> bool | None:
        """Take a request: lock its byte, and look whether it was not withdrawn before.
        False: it was; None: its process has locked the byte."""
        steps, byte = self._taking, _TAKEN + slot.place
        steps.set_bytes(0, b"", byte)
        steps.set_bytes(1, row, _SLOTS_POS + slot.place * _SLOT.size)
        done, error = self._files.make_steps(steps, 2)
        if done == 2:
            self._held[slot.place] = slot.number
            return True
        if done:
            self._files.unlock_byte(self._file.fd, byte)
        if error is not None:
            raise error
        return False if done else None

    def _content(self, request: WaitingRequest) -> bytes | None:
        slot, content = request.slot, request.ahead
        if slot.size > REQUEST_BYTES_MAX or slot.pos > RING_BYTES - slot.size:
            return None
        if len(content) < slot.size:
            fd = self._file.fd
            content = _read(self._files, fd, slot.size, _RING_POS + slot.pos)
        is_whole = len(content) == slot.size
        is_whole = is_whole and request.checksum == _checksum(slot.number, content)
        return content if is_whole else None

    def answer(self, slot: Slot, content: bytes) -> None:
        """Answer a request that was taken, and let it go.

        Args:
            content: at most `LONG_ANSWER_BYTES_MAX`; the disk has room for
                `ANSWER_BYTES_MAX`.

        Raises:
            OSError: the answer may be there in part; then its checksum differs. The
                request is still taken.
        """
        if self._held.get(slot.place) != slot.number:
            return  # its process has given it up, and a later one has its place
        if self._answers.fd < 0:
            # The calls have the number of the descriptor, which another file may have.
            raise OSError(errno.EBADF, "the file of answers is closed")
        head = _ANSWER.pack(slot.number, len(content), _checksum(slot.number, content))
        if len(content) > ANSWER_BYTES_MAX:
            self._files.write(self._answers.fd, content, _long_pos(slot.place))
            content = b""
        steps = self._answering
        steps.set_bytes(0, head + content, slot.place * _ANSWER_SLOT)
        steps.set_bytes(1, b"", _TAKEN + slot.place)
        done, error = self._files.make_steps(steps, 2)
        if not done:
            assert error is not None
            raise error
        self.keep(slot)
        del self._held[slot.place]

    def keep(self, slot: Slot) -> None:
        """Do not take a request again, which is answered later."""
        self._done[slot.place] = max(self._done[slot.place], slot.number)

    def let_go(self, slot: Slot) -> None:
        """End carrying out a request; the next owner may."""
        self.keep(slot)
        self.give_back(slot)

    def give_back(self, slot: Slot) -> None:
        """Unlock a request, which may also be taken again."""
        if self._held.get(slot.place) == slot.number:
            del self._held[slot.place]
            with contextlib.suppress(OSError):
                self._files.unlock_byte(self._file.fd, _TAKEN + slot.place)

    def remove(self) -> None:
        """Unlink the files of a process that has ended.

        Raises:
            OSError: the system refuses.
        """
        for name in self._names:
            self._root.unlink(name, missing_ok=True)

    def close(self) -> None:
        """Close the files, and release all requests that were taken."""
        for byte in range(_TAKEN, _TAKEN + SLOTS):
            with contextlib.suppress(OSError):
                self._files.unlock_byte(self._file.fd, byte)
        self.abandon()

    def abandon(self) -> None:
        """Leave the locks to the parent, in the child of a fork."""
        self._file.close()
        self._answers.close()
