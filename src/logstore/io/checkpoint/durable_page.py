"""The durable offset of a log, for other processes (`.logstore-durable`).

The state file of a partition has it, too, durably and up to 5 s late. This file is
written over in place after each sync, and never synced itself. Its content became true
before it was written. Still, it counts only until the machine or another owner starts:
a copy of it, as in a backup, says nothing of the copy of a log. While it counts,
recovery takes no torn tail below it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import xxhash

from logstore import _native as native
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.stamps import FileStamp

__all__ = ["PageKey", "digest_of", "pack_page", "read_page", "unpack_page"]

_MAGIC: Final = b"LSDURBL\1"
# Magic; boot id; inode and time of change of the owner file; id of the log; its cuts.
_HEAD: Final = struct.Struct(">8s16sQq16sq")
_TAIL: Final = struct.Struct(">qQ")
assert _HEAD.size == native.PAGE_DURABLE_POS
assert _HEAD.size + _TAIL.size == native.PAGE_BYTES


class PageKey(NamedTuple):
    """The key that a durable offset is valid for.

    Attributes:
        boot_id: of the run of the machine.
        owner: stamp of the owner file, which each owner replaces.
        log_id: of the log, 32 hex digits.
        cuts: serial number of the newest cut of the log.
    """

    boot_id: bytes
    owner: FileStamp
    log_id: str
    cuts: int

    def head(self) -> bytes:
        """The bytes before the durable offset; empty: there is no such file."""
        try:
            log_id = bytes.fromhex(self.log_id)
        except ValueError:
            return b""
        if len(self.boot_id) != 16 or len(log_id) != 16:
            return b""
        inode, _, ctime_ns, _ = self.owner
        return _HEAD.pack(_MAGIC, self.boot_id, inode, ctime_ns, log_id, self.cuts)


def digest_of(head: bytes) -> int:
    """The digest that a durable offset's check is made with."""
    return xxhash.xxh64_intdigest(head)


def pack_page(head: bytes, durable: int) -> bytes:
    """The bytes of the file."""
    return head + _TAIL.pack(durable, durable ^ digest_of(head))


def unpack_page(data: bytes, head: bytes) -> int:
    """The durable offset of a file that begins so; -1 if it begins in another way, or
    its bytes are not whole."""
    if len(data) != native.PAGE_BYTES or not head or not data.startswith(head):
        return -1
    durable, check = _TAIL.unpack_from(data, len(head))
    return int(durable) if durable >= 0 and check == durable ^ digest_of(head) else -1


def read_page(
    directory: Directory, owner: FileStamp | None, log_id: str, cuts: int
) -> int:
    """The durable offset in the file of a partition; -1: it does not count for its log.

    Args:
        owner: stamp of the owner file, if logstore was the last writer.
        log_id, cuts: as in `PageKey`.

    Raises:
        OSError: as the system gives it.
    """
    if owner is None:
        return -1
    files = directory.files
    head = PageKey(files.boot_id(), owner, log_id, cuts).head()
    data = bytearray(native.PAGE_BYTES)
    with directory.opened(layout.DURABLE) as fd:
        count = files.read(fd, data, 0)
    return unpack_page(bytes(data[:count]), head)
