"""The file of a consumer group as a log: batches that are whole, or not there at all.

It is changed under the group's mutex alone, after its tail was read again: another
member may have appended since. It is written anew by a rename.

What a crash has left at the end is cut off before the next append. Bytes that make no
batch and are followed by whole ones, or that a sync has covered, are damage: then the
file stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    CorruptCheckpointError,
    StorageError,
    SyncFailedError,
    UnsupportedError,
    storage_errors,
)
from logstore.group.file.batches import BATCH_BYTES_MAX, RECORD_BYTES
from logstore.group.file.commit_calls import CommitCalls, Made
from logstore.group.file.durable_point import DurablePoint, FileId
from logstore.group.file.slots import LockFile, Slots
from logstore.group.file.torn_append import may_be_torn, whole_batch
from logstore.io.directory import Directory, held_open
from logstore.record.decoder import ChunkReader, Damage, damage_of, iter_records
from logstore.record.record import Record

__all__ = ["GroupLog"]

_READ_BYTES: Final = 1 << 20
_CRC_POS: Final = 17
_LATER: Final = "a batch of an unknown format"
# So often a reader looks at bytes that seem to be damaged: others may append.
_LOOKS: Final = 10
_SYNC_PAUSE_S: Final = 0.0001
_SYNC_WAIT_S: Final = 10.0

_Identity: TypeAlias = "tuple[int, int]"


class GroupLog:
    """The log of one group, for one thread at a time. What its records say is for those
    that inherit it: `_forget_records`, `_take_in_record`, `_check_records`.

    Attributes:
        name, path: of the file.

    Args:
        write: open it so that it can be appended to.
    """

    def __init__(self, root: Directory, name: str, *, write: bool = False) -> None:
        self.name = name
        self.path = root.path_of(name)
        self._write_mode = write
        self._root = root
        self._files = root.files
        self._file: native.OpenFile | None = None
        self._forget()

    def _forget(self) -> None:
        self._identity: _Identity = (-1, -1)
        self._id = FileId()  # with its first batch, once that was read
        # Whether the durable point was seen to be of this file.
        self._is_confirmed = False
        # A sync of it has failed, of this member or another: the system may have
        # dropped what it did not write. It has to be written anew.
        self._is_doubtful = False
        self._calls: CommitCalls | None = None
        # Where the last whole batch that was read ends, and its last offset.
        self._end = 0
        self._last_offset = -1
        self._forget_records()

    def _forget_records(self) -> None:
        """Nothing was read so far."""
        raise NotImplementedError

    def _take_in_record(self, record: Record) -> None:
        """The next record."""
        raise NotImplementedError

    def _check_records(self) -> None:
        """Raise if the records that were read are not those of the group."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""
        self._file = self._calls = None

    # ------------------------------------------------------------ reading

    def refresh(self) -> bool:
        """Read what was appended since, as far as it is whole; takes no lock. Returns
        whether there was anything.

        Raises:
            CorruptCheckpointError: it is damaged, no group's file, or another group's.
            UnsupportedError: a later version has written to it.
            StorageError: the system refuses.
        """
        before = self._identity, self._end
        with storage_errors("read", self.path):
            size = self._open_now()
            if size is not None and size != self._end:
                self._read_batches(size)
                if self._end < size:
                    self._check_rest()
        return (self._identity, self._end) != before

    def _check_rest(self) -> None:
        """Raise if the bytes after the last whole batch are damaged: another member may
        be writing them, or a crash has left them."""
        before: tuple[int, bytes] | None = None
        for _ in range(_LOOKS):
            # In this order, all bytes below the durable point are whole.
            point = self._durable_point()
            size = self._open_now() or 0
            reason = self._read_batches(size)
            rest = self._rest(size)
            if not rest:
                return
            try:
                self._check_tail(point, rest, reason)
                return
            except (CorruptCheckpointError, UnsupportedError):
                if before == (self._end, rest):
                    raise
                before = self._end, rest

    def _durable_point(self) -> DurablePoint:
        """For a reader, which has no slots: without a lock file it is unknown."""
        try:
            lock = LockFile(self._root, self.name)
        except FileNotFoundError:
            return DurablePoint(FileId(), 0, is_of_this_boot=False)
        try:
            return lock.point.now()
        finally:
            lock.close()

    def _rest(self, size: int) -> bytes:
        data = bytearray(max(size - self._end, 0))
        return bytes(data[: self._files.read(self._fd(), data, self._end)])

    def rest_bytes(self) -> int:
        """How many bytes follow the last whole batch that was read: another member is
        writing them, or a crash has left them.

        Raises:
            StorageError: the system refuses.
        """
        with storage_errors("read", self.path):
            return 0 if self._file is None else self._files.size(self._fd()) - self._end

    def refresh_held(self, slots: Slots) -> None:
        """As `refresh`, for a caller that has the mutex and will append: what a crash
        has left at the end is cut off.

        Raises:
            CorruptCheckpointError: it is damaged; nothing was changed.
            others: as `refresh`.
        """
        with storage_errors("read", self.path):
            size = self._open_now()
            if size is None:
                return
            with self._root.use() as root_fd:
                is_shared = self._files.links(root_fd, self.name) > 1
            if is_shared:
                self._files.close(self._root.open(self.name, write=True))
                size = self._open_now() or 0
            reason = "" if size == self._end else self._read_batches(size)
            if self._end < size:
                self._cut_tail(slots, size, reason)
            # An empty file is confirmed with its first batch.
            if self._end and not self._doubts(slots) and not self._is_confirmed:
                self._confirm(slots)

    def _open_now(self) -> int | None:
        """Open the file that has the name now; its size, or None if there is none."""
        try:
            info = self._root.stat(self.name)
        except FileNotFoundError:
            if self._identity != (-1, -1):
                raise self._damaged(0, "it was removed while it was in use") from None
            return None
        if self._file is None or (info.device, info.inode) != self._identity:
            file = held_open(
                self._files,
                # Replaced with the mutex (`refresh_held`): others append to it.
                self._root.open(self.name, write=self._write_mode, keep_links=True),
            )
            info = self._files.stat(file.fd)
            file_id = FileId(info.inode)
            self._forget()
            # Nothing is called from here on.
            self._file, self._id = file, file_id
            self._identity = info.device, info.inode
            return info.size
        if info.size < self._end:
            reason = f"it has {info.size} bytes, and had {self._end} whole ones before"
            raise self._damaged(info.size, reason)
        return info.size

    def _fd(self) -> int:
        assert self._file is not None
        return self._file.fd

    def _read_batches(self, size: int) -> str:
        """Take in the whole batches up to `size`; why the rest is none."""
        # No `FileWalk`: bytes that are no batch are a reason here, not an error.
        reason = "a batch is cut off"
        wanted = _READ_BYTES
        while self._end < size:
            data = bytearray(min(wanted, size - self._end))
            n = self._files.read(self._fd(), data, self._end)
            begin, is_all = self._end, n < len(data) or self._end + n == size
            try:
                self._take_in(bytes(data[:n]))
            except Damage as damage:
                reason = damage.reason
                if damage.unsupported:
                    reason = f"{_LATER}: {reason}"
                if self._end == begin and is_all:
                    break
            if self._end == begin:
                if is_all or wanted > BATCH_BYTES_MAX:
                    break
                wanted *= 2
                continue
            wanted = _READ_BYTES
        self._check_records()
        return reason

    def _take_in(self, data: bytes) -> None:
        """Take in the whole batches of some bytes.

        Raises:
            Damage: after the last of them, something else follows.
        """
        c = native.pointer(data)
        walk = native.walk_batches(c, len(data), last_offset=self._last_offset)
        if walk.pos:
            self._take_in_whole(c, data, walk.pos)
            self._last_offset = walk.last_offset
        if walk.error is not None:
            raise damage_of(walk.error)

    def _take_in_whole(self, c: Any, data: bytes, end: int) -> None:
        """Take in batches that were checked."""
        if not self._end:
            self._id = self._id_with(data)
        capacity = min(16384, end // RECORD_BYTES + 1)
        reader = ChunkReader(BATCH_BYTES_MAX, capacity=capacity)
        reader.begin(self._last_offset, native.CHECK_ORDER)
        for run in reader.columns(c, data, end, 0, 0, native.OFFSET_MAX):
            for record in iter_records(run):
                self._take_in_record(record)
        self._end += end

    # ------------------------------------------------------------ damage

    def _cut_tail(self, slots: Slots, size: int, reason: str) -> None:
        """Cut off the bytes after the last whole batch, unless they are damaged."""
        self._check_tail(slots.point.now(), self._rest(size), reason)
        logger.warning(
            "%s: cut off %d bytes at byte %d, which a crash has left (%s); no commit "
            "that was durable is in them",
            self.path, size - self._end, self._end, reason,
        )  # fmt: skip
        self._files.truncate(self._fd(), self._end)

    def _check_tail(self, point: DurablePoint, tail: bytes, reason: str) -> None:
        """Raise if the bytes after the last whole batch are damaged.

        Args:
            point: as it was before they were read.
        """
        # A first batch that cannot be read does not tell whose the point is.
        is_known = point.file == self._id or (
            not self._end and point.file.inode == self._id.inode
        )
        if is_known and self._end < point.size:
            reason += f", and the first {point.size} bytes were durable"
            raise self._damaged(self._end, reason)
        # If the machine has stopped since the last sync, its file system may have
        # written anything where something was appended then, in any order.
        if not is_known or point.is_of_this_boot:
            self._check_torn(tail, reason)

    def _check_torn(self, tail: bytes, reason: str) -> None:
        """Raise if some bytes are not what an append leaves that was cut short."""
        if reason.startswith(_LATER):
            raise self._later(reason)
        if not may_be_torn(tail, self._last_offset + 1):
            raise self._damaged(self._end, f"{reason}, and no append began there")
        found = whole_batch(tail)
        if found is not None:
            reason += f", and a whole batch follows at byte {self._end + found}"
            raise self._damaged(self._end, reason)

    def _confirm(self, slots: Slots) -> None:
        """Once for each file and start of the machine: what was found is the file from
        now on, so that later damage is not taken for what that has left. One that is
        shorter than was durable is another, such as a backup that was put back."""
        point = slots.point.now()
        if not self._has(point) or point.size > self._end:
            self._sync_file(slots)
            self._root.sync()
            slots.point.set(self._id, self._end, is_new=True)
        self._is_confirmed = True

    def _doubts(self, slots: Slots) -> bool:
        """Whether a sync of the file has failed, and it was not written anew since."""
        if not self._is_doubtful:
            point = slots.point.now()
            # Of no file: it was being written anew.
            is_mine = point.file in (self._id, FileId())
            self._is_doubtful = point.is_doubtful and is_mine
        return self._is_doubtful

    def _has(self, point: DurablePoint) -> bool:
        """Whether a durable point is of this file, since the start of the machine."""
        return point.is_of_this_boot and point.file == self._id

    def _id_with(self, data: bytes) -> FileId:
        """The id of the file with `data`, whole batches, at its beginning."""
        return FileId(self._identity[1], _first_of(data))

    def _damaged(self, position: int, reason: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"the group's file {self.path} is damaged at byte {position}: {reason}. "
            f"Nothing was changed. Keep a copy of it; then put back a backup, or "
            f"remove it and reset the group's offsets",
            path=self.path,
            position=position,
            reason=reason,
        )

    def _later(self, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"a later version of logstore, or of Kafka, has written to the group's "
            f"file {self.path}: {reason}. Nothing was changed; use that version",
            path=self.path,
            position=self._end,
        )

    # ------------------------------------------------------------ appending

    def _append(
        self, slots: Slots, data: bytes, count: int, note: Callable[[], None]
    ) -> None:
        """Append a batch of `count` records, with the mutex, after `refresh_held`.

        Args:
            note: notes these records, as if they were read.

        Raises:
            DiskFullError, StorageError: nothing was appended.
        """
        with storage_errors("write", self.path):
            self._write(slots, data)
        self._pass(len(data), count, note)

    def _pass(self, size: int, count: int, note: Callable[[], None]) -> None:
        """Continue after `count` records that were appended."""
        note()
        # Nothing is called from here on: what is interrupted before is read again.
        self._end, self._last_offset = self._end + size, self._last_offset + count

    def _write(self, slots: Slots, data: bytes) -> None:
        if self._file is None:
            fd = self._root.create(self.name)
            self._file = held_open(self._files, fd)
            info = self._files.stat(fd)
            self._identity = info.device, info.inode
        if not self._end:
            # The name must survive a power failure, as what is synced later: also if
            # another member made the file, and was killed before it synced that.
            self._root.sync()
            self._id = self._id_with(data)
            slots.point.set(self._id, 0, is_new=True)
            self._is_confirmed = True
        try:
            self._files.write(self._fd(), data, self._end)
        except BaseException:
            # Cut off the written part here; else the next member that appends does.
            with contextlib.suppress(OSError):
                self._files.truncate(self._fd(), self._end)
            raise

    def _append_at_once(
        self,
        slots: Slots,
        data: bytes,
        count: int,
        note: Callable[[], None],
        *,
        durable: bool,
    ) -> Made | None:
        """Take the mutex, append a batch of `count` records, and sync it if `durable`,
        all in one call, if nothing is in the way. None: nothing was tried. `_finish`
        does the rest, or raises.

        Args:
            note: as in `_append`.
        """
        if not self._is_confirmed or self._is_doubtful or self._file is None:
            return None
        if not self._end:
            return None
        if self._calls is None or self._calls.slots is not slots:
            self._calls = CommitCalls(
                self._root, slots, self.name, self._file, self._identity, self._id
            )
        made = self._calls.make(self._end, data, durable=durable)
        if made.is_appended:
            self._pass(len(data), count, note)
        return made

    def _finish(self, slots: Slots, made: Made, *, durable: bool) -> None:
        """After `_append_at_once`, whose records were noted.

        Raises: what the system has refused, and as `sync` if `durable`.
        """
        if made.has_sync_failed:
            assert made.error is not None
            self._is_doubtful = True
            raise self._not_durable(made.error)
        if made.error is not None and not (made.is_appended and durable):
            raise made.error
        # It counts: what has failed behind it is tried again, step by step.
        if made.is_appended and durable and not made.is_synced:
            self.sync(slots, self.end)

    # ------------------------------------------------------------ syncs

    @property
    def end(self) -> tuple[_Identity, int]:
        """What `sync` is to reach, for what was appended last."""
        return self._identity, self._end

    def sync(self, slots: Slots, upto: tuple[_Identity, int]) -> None:
        """Make durable what was appended up to an `end`; without the mutex. A sync that
        another member makes meanwhile is enough.

        Raises:
            SyncFailedError: it is not known to be durable, and may be lost in a power
                failure; whatever the system has refused.
        """
        try:
            self._sync(slots, upto)
        except SyncFailedError:
            raise
        except (OSError, StorageError) as error:
            raise self._not_durable(error) from error

    def _sync(self, slots: Slots, upto: tuple[_Identity, int]) -> None:
        identity, end = upto
        deadline: float | None = None
        while True:
            point = slots.point.now()
            if self._is_durable(point, identity, end):
                return
            if self._doubts(slots):
                raise self._not_durable(OSError(errno.EIO, os.strerror(errno.EIO)))
            # In this order an interrupt leaves no lock: to give back what was not taken
            # does nothing.
            try:
                if slots.point.take_turn():
                    self._sync_now(slots, upto)
                    return
            finally:
                slots.point.end_turn()
            now = self._files.monotonic()
            deadline = now + _SYNC_WAIT_S if deadline is None else deadline
            if now > deadline:
                self._sync_file(slots)  # the one with the turn hangs
                return
            time.sleep(_SYNC_PAUSE_S)

    def _is_durable(self, point: DurablePoint, identity: _Identity, end: int) -> bool:
        # One that was compacted was synced before it was renamed.
        is_reached = point.size >= end or identity != self._identity
        return is_reached and self._has(point)

    def _sync_now(self, slots: Slots, upto: tuple[_Identity, int]) -> None:
        # Not the size: another member may be in the middle of an append.
        self.refresh()
        point = slots.point.now()
        if self._is_durable(point, *upto):
            return
        if self._doubts(slots):
            raise self._not_durable(OSError(errno.EIO, os.strerror(errno.EIO)))
        is_new = not self._has(point)
        try:
            self._sync_file(slots)
            if is_new:
                self._root.sync()
        except OSError as error:
            self._is_doubtful = True
            raise self._not_durable(error) from error
        slots.point.set(self._id, self._end, is_new=is_new)

    def _sync_file(self, slots: Slots) -> None:
        """Sync what was written. If that fails, all members know it: to none of them
        another sync says anything of what this one was to write."""
        try:
            self._files.sync(self._fd())
        except BaseException:
            self._is_doubtful = True
            with contextlib.suppress(StorageError):
                slots.point.doubt(self._id)
            raise

    def _not_durable(self, error: OSError | StorageError) -> SyncFailedError:
        return SyncFailedError(
            f"cannot sync the group's file {self.path}: {error}. What was committed "
            f"last counts now, and may be lost in a power failure. Commit again",
            errno=error.errno,
            path=self.path,
            action="sync",
        )

    # ------------------------------------------------------------ compaction

    def _rewrite(self, slots: Slots, data: bytes, count: int) -> None:
        """Replace the file, durably, by one with a batch of the records that count,
        with the mutex and the turn to sync. The first has the offset that is next.

        1. Write a temporary file, and sync it. 2. Sync the old one, and let the durable
        point be of no file: the new one may have the number of an earlier one. 3.
        Rename it, and sync the directory. 4. Set the durable point.
        """
        files, temporary = self._files, f"{self.name}.tmp"
        file = held_open(files, self._root.create(temporary, exclusive=False))
        files.write(file.fd, data, 0)
        files.sync(file.fd)
        info = files.stat(file.fd)
        is_doubtful = self._doubts(slots)
        if not is_doubtful:
            self._sync_file(slots)
        slots.point.set(FileId(), 0, is_new=True, is_doubtful=is_doubtful)
        file_id = FileId(info.inode, _first_of(data))
        end, last_offset = len(data), self._last_offset + count
        self._root.rename(temporary, self.name)
        # Nothing is called until all is that of the new file; what is interrupted
        # before finds another file of this name, and reads it.
        self._calls, self._is_confirmed = None, False
        self._end, self._last_offset = end, last_offset
        self._file, self._id, self._identity = file, file_id, (info.device, info.inode)
        self._root.sync()
        self._is_doubtful = False
        slots.point.set(self._id, len(data), is_new=True)
        self._is_confirmed = True


def _first_of(data: bytes) -> bytes:
    """Distinguishes the first of some whole batches from others: its offset and CRC."""
    return data[:8] + data[_CRC_POS : _CRC_POS + 4]
