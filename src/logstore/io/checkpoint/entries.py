"""State files that grow: an entry, and later ones that say what has changed since.

A state file is written whole: temporary name, sync, rename, directory sync. A change
may then be appended to it, as a separate entry: one write at the end of the file and
a sync. So a change costs what it says, however much the file holds. When the entries
have grown to the size of the first one, the file is written whole again.

An entry is a checksum line and a line of JSON. Its checksum covers the checksum of the
entry before, and the position of the entry: it is valid at the place it was
written, and nowhere else. The next entry is written after the sync of the one before
has returned. So a power failure can damage the last entry only, and leaves the file as
it was before that change, as an interrupted rename does. A bad entry that another one
follows is damage. To prevent a damaged bit from undoing a change silently, callers
append only changes whose loss recovery makes up for, or that an entry follows at once,
or they have the entry sealed: a short entry without content follows it, written after
its sync, and is overwritten by the next entry. A power failure takes the seal alone.
Whatever follows an entry, a seal, another entry or a part of one, was written when that
was synced; of a last one that nothing follows, this is not known.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import xxhash

from logstore.io.stamps import FileStamp

__all__ = [
    "ENTRY_BYTES",
    "FileEnd",
    "end_of",
    "first_entry",
    "later_entries",
    "later_entry",
    "seal_of",
    "split_entries",
    "with_room_for_seal",
]

_PREFIX: Final = b"xxh64 "
# The checksum line, with its line end.
_HEAD_BYTES: Final = len(_PREFIX) + 17
# Bytes of an entry besides its JSON: the checksum line, and a line end.
ENTRY_BYTES: Final = _HEAD_BYTES + 1
# In the place of the JSON of a seal; no state file has it.
_SEAL: Final = b"[]"
_SEAL_BYTES: Final = ENTRY_BYTES + len(_SEAL)
# Blocks of file systems are multiples of it.
_BLOCK_BYTES: Final = 512
# More bytes of entries may follow the first one, whatever its own size.
_GROWTH_BYTES_MIN: Final = 64 << 10


class FileEnd(NamedTuple):
    """End of the valid entries of a state file.

    Attributes:
        first: bytes of the first entry.
        size: bytes of all, without a seal.
        checksum: that of the last one.
        stamp: of the file after the last write; None: unknown.
        is_sealed: a seal follows, or a part of bytes written after the sync.
    """

    first: int
    size: int
    checksum: int
    stamp: FileStamp | None = None
    is_sealed: bool = False

    def is_long(self, growth_bytes: int = _GROWTH_BYTES_MIN) -> bool:
        """Whether the file must be written whole again: so a change costs at most
        twice what it says, in the long run, and reading it twice what it holds.

        Args:
            growth_bytes: this many bytes of later entries are never too many.
        """
        return self.size - self.first > max(self.first, growth_bytes)

    def after(self, entry: bytes) -> FileEnd:
        """The end after a later entry, with an unknown stamp."""
        return FileEnd(self.first, self.size + len(entry), _checksum_in(entry))


def first_entry(body: bytes) -> bytes:
    """The bytes of a file with one entry."""
    return _entry(body, _checksum(body, 0, 0))


def end_of(data: bytes, stamp: FileStamp | None) -> FileEnd:
    """The end of a file that was written whole, with these bytes."""
    return FileEnd(len(data), len(data), _checksum_in(data), stamp)


def later_entry(end: FileEnd, body: bytes) -> bytes:
    """The bytes of an entry that is to follow the end of a file."""
    return _entry(body, _checksum(body, end.checksum, end.size))


def with_room_for_seal(end: FileEnd, body: bytes) -> bytes:
    """The JSON of an entry that is to follow the end of a file, with spaces after it
    if its seal would begin another block of the disk: a full disk that had room for the
    entry then has room for the seal."""
    left = -(end.size + ENTRY_BYTES + len(body)) % _BLOCK_BYTES
    return body if left >= _SEAL_BYTES else body.ljust(len(body) + left + 1)


def seal_of(end: FileEnd) -> bytes:
    """The bytes of the seal of the entry that ends there."""
    return later_entry(end, _SEAL)


def _checksum_in(entry: bytes) -> int:
    return int(entry[len(_PREFIX) : _HEAD_BYTES - 1], 16)


def _entry(body: bytes, checksum: int) -> bytes:
    return b"%s%016x\n%s\n" % (_PREFIX, checksum, body)


def _checksum(body: bytes | memoryview, before: int, pos: int) -> int:
    return xxhash.xxh64_intdigest(body, seed=(before + pos) % (1 << 64))


def split_entries(data: bytes) -> tuple[list[bytes], FileEnd]:
    """The JSON of the valid entries of a file, and their end. A bad last entry is
    left out, and so is a seal.

    Raises:
        ValueError: the first entry is bad, or one that others follow.
    """
    bodies: list[bytes] = []
    pos = checksum = first = 0
    sealed: tuple[int, int] | None = None
    while pos < len(data) or not bodies:
        begin = pos + _HEAD_BYTES
        stop = data.find(b"\n", begin)
        if stop < 0:
            # As earlier versions did, accept a file without its last line end.
            stop = len(data) if not bodies else begin
        body = data[begin:stop]
        expected_checksum = _checksum(body, checksum, pos)
        if data[pos : stop + 1] not in (
            _entry(body, expected_checksum),
            _entry(body, expected_checksum)[:-1],
        ):
            if not bodies or _is_followed(data, pos, checksum):
                raise ValueError("its checksum differs")
            break
        sealed = (pos, checksum) if body == _SEAL else None
        bodies.append(body)
        pos, checksum, first = (
            min(stop + 1, len(data)),
            expected_checksum,
            first or stop + 1,
        )
    if sealed is not None and len(bodies) > 1:
        # It may be overwritten by the next entry.
        bodies.pop()
        pos, checksum = sealed
    return bodies, FileEnd(first, pos, checksum, is_sealed=pos < len(data))


def later_entries(data: bytes, end: FileEnd) -> tuple[list[bytes], FileEnd] | None:
    """The JSON of the entries that were appended to a file since it ended at `end`, and
    their end. None if these bytes, the file's from there on, are not valid
    entries up to the last byte. A seal is left out.

    An entry continues only the bytes that were before it when it was written. So one
    that is valid shows, too, that the file has not been written whole since.
    """
    bodies: list[bytes] = []
    pos, checksum, is_sealed = 0, end.checksum, end.is_sealed and not data
    before = checksum
    while pos < len(data):
        stop = data.find(b"\n", pos + _HEAD_BYTES)
        body = data[pos + _HEAD_BYTES : stop]
        checksum = _checksum(body, checksum, end.size + pos)
        if stop < 0 or data[pos : stop + 1] != _entry(body, checksum):
            return None
        if body == _SEAL and stop + 1 == len(data):
            checksum, is_sealed = before, True
            break
        bodies.append(body)
        pos, before = stop + 1, checksum
    size = end.size + pos
    return bodies, FileEnd(end.first, size, checksum, is_sealed=is_sealed)


def _is_followed(data: bytes, pos: int, before: int) -> bool:
    """Whether a valid entry follows the bad one at a position, at once or later. Its
    checksum covers that of the entry before it, which stands in the checksum line of
    that entry; if the line is what is damaged, it is that of the entry's JSON."""
    candidates = _stored(data, pos)
    stop = data.find(b"\n", pos + _HEAD_BYTES)
    if stop >= 0:
        candidates.add(_checksum(data[pos + _HEAD_BYTES : stop], before, pos))
    # Text that only looks like entries must not cost more than as many entries.
    left = 2 * len(data)
    while left > 0 and (pos := data.find(_PREFIX, pos + len(_PREFIX))) >= 0:
        stored = _stored(data, pos)
        stop = data.find(b"\n", pos + _HEAD_BYTES) if stored else -1
        if stop >= 0:
            body = data[pos + _HEAD_BYTES : stop]
            left -= len(body)
            if any(_checksum(body, checksum, pos) in stored for checksum in candidates):
                return True
            candidates = stored
    return False


def _stored(data: bytes, pos: int) -> set[int]:
    """The checksum in the checksum line of an entry; nothing if it is not a number."""
    digits = data[pos + len(_PREFIX) : pos + _HEAD_BYTES - 1]
    is_number = len(digits) == 16 and not digits.strip(b"0123456789abcdef")
    return {int(digits, 16)} if is_number else set()
