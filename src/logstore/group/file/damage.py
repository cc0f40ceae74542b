"""Damage of a group's file, as distinct from the remains of an interrupted append.

Bytes after the last whole batch are cut off before the next append if another member is
writing them, or a crash has left them. They are damage if they do not begin as the next
batch does, if whole batches follow, or if a sync has covered them.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore import _native as native
from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.group.file.durable_point import FileId, GroupDurablePoint
from logstore.record.batch_search import MAGIC_POS, possible_batches
from logstore.record.decoder import Damage

__all__ = ["TrailingBytes", "damaged", "may_be_torn", "whole_batch", "written_later"]


def damaged(path: str, position: int, reason: str) -> CorruptCheckpointError:
    """The error for a damaged file.

    Args:
        position: of the first damaged byte; -1: unknown.
    """
    return CorruptCheckpointError(
        f"the group's file {path} is damaged at byte {position}: {reason}. "
        f"Nothing was changed. Keep a copy of it; then put back a backup, or "
        f"remove it and reset the group's offsets",
        path=path,
        position=position,
        reason=reason,
    )


def written_later(path: str, position: int | None, reason: str) -> UnsupportedError:
    """The error for a record or batch of a format that this version does not know."""
    return UnsupportedError(
        f"a later version of logstore, or of Kafka, has written to the group's "
        f"file {path}: {reason}. Nothing was changed; use that version",
        path=path,
        position=position,
    )


class TrailingBytes(NamedTuple):
    """The bytes after the last whole batch.

    Attributes:
        pos: position of the first one.
        data: the bytes.
        offset: base offset of the next batch.
        damage: why they are not a batch; None: their end is missing.
    """

    pos: int
    data: bytes
    offset: int
    damage: Damage | None

    @property
    def reason(self) -> str:
        """Reason why they are no whole batch."""
        if self.damage is None:
            return "a batch is cut off"
        unknown = "a batch of an unknown format: " if self.damage.unsupported else ""
        return f"{unknown}{self.damage.reason}"

    def check(self, path: str, file: FileId, point: GroupDurablePoint) -> None:
        """Raise if they are damage.

        Args:
            path: of the file.
            file: its id, as far as the file was read.
            point: its state before the bytes were read.

        Raises:
            CorruptCheckpointError: they are damaged.
            UnsupportedError: a later version has written them.
        """
        # A first batch that cannot be read does not show whose the point is.
        is_known = point.file == file or (
            not self.pos and point.file.inode == file.inode
        )
        reason = self.reason
        if is_known and self.pos < point.size:
            reason += f", and the first {point.size} bytes were durable"
            raise damaged(path, self.pos, reason)
        # If the machine has stopped since the last sync, its file system may have
        # written anything where something was appended then, in any order.
        if is_known and not point.is_of_this_boot:
            return
        if self.damage is not None and self.damage.unsupported:
            raise written_later(path, self.pos, reason)
        if not may_be_torn(self.data, self.offset):
            raise damaged(path, self.pos, f"{reason}, and no append began there")
        position = whole_batch(self.data)
        if position is not None:
            reason += f", and a whole batch follows at byte {self.pos + position}"
            raise damaged(path, self.pos, reason)


def may_be_torn(tail: bytes, offset: int) -> bool:
    """Whether some bytes may be what is left of an append: its first bytes, or zeros
    if a file system had no time to write them."""
    begin = offset.to_bytes(8, "big")
    head, magic = tail[:8], tail[MAGIC_POS : MAGIC_POS + 1]
    return (head == begin[: len(head)] or not any(head)) and magic in (
        b"",
        b"\0",
        b"\2",
    )


def whole_batch(data: bytes) -> int | None:
    """Position of a whole batch of magic 2, after the first byte; None: not found."""
    for position, is_whole in possible_batches(data, native.pointer(data)):
        if is_whole and position and data[position + MAGIC_POS] == 2:
            return position
    return None
