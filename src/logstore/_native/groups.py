"""The bytes that a commit of a consumer group writes, made from the bytes of the commit
before (``ls_group.c``)."""

from __future__ import annotations

from typing import Final

from logstore._native._ls import ffi, lib

__all__ = ["POINT_BYTES", "CommitBatch", "PointBytes"]

POINT_BYTES: Final[int] = lib.LS_GROUP_POINT_BYTES


class CommitBatch:
    """The batch of one committed offset, which gets other numbers for each commit; for
    one thread at a time.

    Args:
        data: the batch: magic 2, not compressed, one record without headers.
        offset_pos, time_pos: where the offset and the time of the commit stand in it.
        proof_pos: the same of the proof; 0: the record has no proof.

    Raises:
        ValueError: one of them is outside of the records.
    """

    __slots__ = ("_batch", "_places", "_size")

    def __init__(
        self, data: bytes, offset_pos: int, time_pos: int, proof_pos: int = 0
    ) -> None:
        self._size = len(data)
        self._batch = ffi.new("uint8_t[]", data)
        self._places = ffi.new("int64_t[3]", (offset_pos, time_pos, proof_pos))
        self.renumbered(0, 0, 0, 0)

    def renumbered(self, base: int, now_ms: int, offset: int, proof: int) -> bytes:
        """The batch with other numbers.

        Args:
            base: the offset of its record.
            now_ms: the time of the batch, and of the commit.
            offset: the committed one.
            proof: of the offset, if the batch has a place for one.
        """
        batch, size = self._batch, self._size
        if lib.ls_group_renumber(
            batch, size, self._places, base, now_ms, offset, proof
        ):
            raise ValueError("a number of the commit is outside of the records")
        return ffi.buffer(batch, size)[:]  # type: ignore[no-any-return]


class PointBytes:
    """One place of a durable point, in its stored form: the same bytes for each size of
    the file, so that a prepared write of them stays prepared.

    Attributes:
        data: the bytes, whose number does not change.
    """

    __slots__ = ("_pointer", "data")

    def __init__(self) -> None:
        self.data = bytearray(POINT_BYTES)
        self._pointer = ffi.from_buffer("uint8_t[]", self.data)

    def move(self, size: int) -> None:
        """Give the point another size of the same file."""
        lib.ls_group_move_point(self._pointer, size)
