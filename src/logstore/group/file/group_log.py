"""The file of a consumer group as a log: batches that are whole, or not there at all.

It is changed under the group's mutex alone, after its tail was read again: another
member may have appended since. It is rewritten by a rename.

What a crash has left at the end is cut off before the next append. If it is damage
(`logstore.group.file.damage`), the file is not changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    CorruptCheckpointError,
    StorageError,
    SyncFailedError,
    UnsupportedError,
    storage_errors,
)
from logstore.group.file.batches import BATCH_BYTES_MAX, RECORD_BYTES, Item
from logstore.group.file.commit_calls import CommitCalls
from logstore.group.file.damage import Rest, damaged
from logstore.group.file.durable_point import (
    NO_POINT,
    DurablePoint,
    SharedPoint,
)
from logstore.group.file.group_records import GroupRecords
from logstore.group.file.slots import Slots, lock_file_of
from logstore.group.file.state import GroupState
from logstore.group.file.synced_file import SyncedFile
from logstore.io.directory import Directory
from logstore.record.decoder import ChunkReader, Damage, damage_of

__all__ = ["End", "GroupLog"]

_READ_BYTES: Final = 1 << 20
# How often a reader looks at bytes that seem to be damaged: others may append.
_LOOKS: Final = 10
_SYNC_PAUSE_S: Final = 0.0001
_SYNC_WAIT_S: Final = 10.0

# Device and inode of the file, None before the first, and where its last batch ends.
End: TypeAlias = "tuple[tuple[int, int] | None, int]"


class GroupLog:
    """The log of one group, for one thread at a time.

    Invariant: the records were taken in up to the end, which is the end of a whole
    batch of the file that is open; what is interrupted is read again.

    Attributes:
        name, path: of the file.
        last_offset: of the last record that was read or appended; -1: there is none.

    Args:
        records: takes in what is read or appended.
        write: open the file so that it can be appended to.
    """

    def __init__(
        self, root: Directory, name: str, records: GroupRecords, *, write: bool
    ) -> None:
        self.name = name
        self.path = root.path_of(name)
        self._root = root
        self._files = root.files
        self._records = records
        self._write_mode = write
        self._file: SyncedFile | None = None
        self._calls: CommitCalls | None = None
        self._end = 0
        self.last_offset = -1

    def close(self) -> None:
        """Close the file."""
        self._file = self._calls = None

    @property
    def end(self) -> End:
        """The end of what was read or appended last, for `sync`."""
        return None if self._file is None else self._file.identity, self._end

    @property
    def is_doubtful(self) -> bool:
        """Whether a sync of the file has failed, as far as this member knows."""
        return self._file is not None and self._file.is_doubtful

    def _opened(self) -> SyncedFile:
        assert self._file is not None
        return self._file

    # ------------------------------------------------------------ reading

    def refresh(self) -> bool:
        """Read what was appended since, as far as it is whole; takes no lock. Returns
        whether there was anything.

        Raises:
            CorruptCheckpointError: it is damaged, no group's file, or another group's.
            UnsupportedError: a later version has written to it.
            StorageError: the system refuses.
        """
        before = self.end
        with storage_errors("read", self.path):
            size = self._open_now()
            if size is not None and size != self._end:
                self._read_to(size)
                if self._end < size:
                    self._check_rest()
        return self.end != before

    def _check_rest(self) -> None:
        """Raise if the bytes after the last whole batch are damaged: another member may
        be writing them, or a crash has left them."""
        before: tuple[int, bytes] | None = None
        for _ in range(_LOOKS):
            # In this order, all bytes below the durable point are whole.
            with lock_file_of(self._root, self.name) as lock:
                point = NO_POINT if lock is None else lock.point.now()
            size = self._open_now() or 0
            rest = self._rest(size, self._read_to(size))
            if not rest.data:
                return
            try:
                rest.check(self.path, self._opened().id, point)
                return
            except (CorruptCheckpointError, UnsupportedError):
                if before == (rest.pos, rest.data):
                    raise
                before = rest.pos, rest.data

    def _rest(self, size: int, damage: Damage | None) -> Rest:
        data = bytearray(max(size - self._end, 0))
        n = self._files.read(self._opened().fd, data, self._end)
        return Rest(self._end, bytes(data[:n]), self.last_offset + 1, damage)

    def rest_bytes(self) -> int:
        """The number of bytes after the last whole batch that was read: another member
        is writing them, or a crash has left them.

        Raises:
            StorageError: the system refuses.
        """
        with storage_errors("read", self.path):
            file = self._file
            return 0 if file is None else self._files.size(file.fd) - self._end

    def refresh_held(self, shared: SharedPoint) -> None:
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
            damage = None if size == self._end else self._read_to(size)
            file = self._opened()
            if self._end < size:
                point = shared.now()
                rest = self._rest(size, damage)
                rest.check(self.path, file.id, point)
                logger.warning(
                    "%s: cut off %d bytes at byte %d, which a crash has left (%s); no "
                    "commit that was durable is in them",
                    self.path, size - self._end, self._end, rest.reason,
                )  # fmt: skip
                self._files.truncate(file.fd, self._end)
            # An empty file is confirmed with its first batch.
            if self._end:
                file.confirm(shared, self._root, self._end)

    def _open_now(self) -> int | None:
        """Open the file that has the name now; its size, or None if there is none."""
        file = self._file
        try:
            info = self._root.stat(self.name)
        except FileNotFoundError:
            if file is not None:
                reason = "it was removed while it was in use"
                raise damaged(self.path, 0, reason) from None
            return None
        if file is None or (info.device, info.inode) != file.identity:
            # Replaced with the mutex (`refresh_held`): others append to it.
            fd = self._root.open(self.name, write=self._write_mode, keep_links=True)
            file = SyncedFile(self._files, fd)
            # A call that is interrupted from here on opens it again.
            self._file, self._calls, self._end, self.last_offset = None, None, 0, -1
            self._records.forget()
            self._file = file
            return file.size
        if info.size < self._end:
            reason = f"it has {info.size} bytes, and had {self._end} whole ones before"
            raise damaged(self.path, info.size, reason)
        return info.size

    def _read_to(self, size: int) -> Damage | None:
        """Take in the whole batches up to `size`; what is wrong with the next one, if
        it is not only cut off."""
        # No `FileWalk`: bytes that are no batch are returned here, not an error.
        found: Damage | None = None
        wanted = _READ_BYTES
        while self._end < size:
            data = bytearray(min(wanted, size - self._end))
            n = self._files.read(self._opened().fd, data, self._end)
            begin, is_all = self._end, n < len(data) or self._end + n == size
            try:
                self._take_in(bytes(data[:n]))
            except Damage as damage:
                found = damage
            if self._end != begin:
                wanted = _READ_BYTES
            elif is_all or wanted > BATCH_BYTES_MAX:
                break
            else:
                wanted *= 2
        self._records.check(self._end)
        return found

    def _take_in(self, data: bytes) -> None:
        """Take in the whole batches of some bytes.

        Raises:
            Damage: after the last of them, something else follows.
        """
        c = native.pointer(data)
        walk = native.walk_batches(c, len(data), last_offset=self.last_offset)
        if walk.pos:
            if not self._end:
                self._opened().begins_with(data)
            capacity = min(16384, walk.pos // RECORD_BYTES + 1)
            reader = ChunkReader(BATCH_BYTES_MAX, capacity=capacity)
            checks = native.CHECK_ORDER
            for run in reader.columns(c, data, walk.pos, self.last_offset, checks):
                self._records.take_in(native.decoded_records(run), self._end)
            self._end, self.last_offset = self._end + walk.pos, walk.last_offset
        if walk.error is not None:
            raise damage_of(walk.error)

    # ------------------------------------------------------------ appending

    def append(
        self,
        shared: SharedPoint,
        data: bytes,
        items: Sequence[Item],
        state: GroupState | None,
    ) -> None:
        """Append a batch, with the mutex, after `refresh_held`.

        Args:
            items, state: the records of the batch, for `GroupRecords.note`.

        Raises:
            DiskFullError, StorageError: nothing was appended.
        """
        with storage_errors("write", self.path):
            self._write(shared, data)
        self._pass(data, items, state)

    def _pass(
        self, data: bytes, items: Sequence[Item], state: GroupState | None
    ) -> None:
        """Continue after a batch that was appended."""
        self._records.note(items, state)
        end, last_offset = self._end + len(data), self.last_offset + len(items)
        # Nothing is called from here on: what is interrupted before is read again.
        self._end, self.last_offset = end, last_offset

    def _write(self, shared: SharedPoint, data: bytes) -> None:
        file = self._file
        if file is None:
            file = SyncedFile(self._files, self._root.create(self.name))
            self._file = file
        if not self._end:
            file.begin(shared, self._root, data)
        try:
            self._files.write(file.fd, data, self._end)
        except BaseException:
            # Cut off the written part here; else the next member that appends does.
            with contextlib.suppress(OSError):
                self._files.truncate(file.fd, self._end)
            raise

    def append_at_once(
        self, slots: Slots, data: bytes, items: Sequence[Item], *, durable: bool
    ) -> bool:
        """Take the mutex, append a batch of `items`, and sync it if `durable`, all in
        one call, if nothing is in the way. False: nothing was appended.

        Raises: what the system has refused, and as `sync` if `durable`.
        """
        file = self._file
        if file is None or not self._end:
            return False
        if file.is_doubtful or not file.is_confirmed:
            return False
        calls = self._calls
        if calls is None or calls.slots is not slots:
            calls = CommitCalls(self._root, slots, self.name, file)
            self._calls = calls
        made = calls.make(self._end, data, durable=durable)
        if made.is_appended:
            self._pass(data, items, None)
        if made.has_sync_failed:
            assert made.error is not None
            file.is_doubtful = True
            raise self._not_durable(made.error)
        if made.error is not None and not (made.is_appended and durable):
            raise made.error
        # It counts: the calls after it are tried again, step by step.
        if made.is_appended and durable and not made.is_synced:
            self.sync(slots.point, self.end)
        return made.is_appended

    # ------------------------------------------------------------ syncs

    def sync(self, shared: SharedPoint, upto: End) -> None:
        """Make durable what was appended up to an `end`; without the mutex. A sync that
        another member makes meanwhile is enough.

        Raises:
            SyncFailedError: it is not known to be durable, and may be lost in a power
                failure; whatever the system has refused.
        """
        try:
            self._sync(shared, upto)
        except SyncFailedError:
            raise
        except (OSError, StorageError) as error:
            raise self._not_durable(error) from error

    def _sync(self, shared: SharedPoint, upto: End) -> None:
        deadline: float | None = None
        while self._point_below(shared, upto) is not None:
            # In this order an interrupt leaves no lock: to give back what was not taken
            # does nothing.
            try:
                if shared.take_turn():
                    self._sync_now(shared, upto)
                    return
            finally:
                shared.end_turn()
            now = self._files.monotonic()
            deadline = now + _SYNC_WAIT_S if deadline is None else deadline
            if now > deadline:
                self._opened().sync(shared)  # the one with the turn hangs
                return
            time.sleep(_SYNC_PAUSE_S)

    def _sync_now(self, shared: SharedPoint, upto: End) -> None:
        """Sync all that is whole, with the turn to sync."""
        # Not the size: another member may be in the middle of an append.
        self.refresh()
        point, file = self._point_below(shared, upto), self._opened()
        if point is None:
            return
        is_new = not (file.is_of(point) and point.is_synced)
        try:
            file.sync(shared)
            if is_new:
                self._root.sync()
        except OSError as error:
            file.is_doubtful = True
            raise self._not_durable(error) from error
        shared.set(file.id, self._end, is_new=is_new)

    def _point_below(self, shared: SharedPoint, upto: End) -> DurablePoint | None:
        """The durable point; None if it has reached an `end`.

        Raises:
            SyncFailedError: a sync of the file has failed, and it was not replaced.
        """
        (identity, end), file, point = upto, self._opened(), shared.now()
        # A file that was compacted was synced before the other one was renamed.
        is_reached = point.size >= end or identity != file.identity
        if is_reached and file.is_of(point):
            return None
        if file.doubts(point):
            raise self._not_durable(OSError(errno.EIO, os.strerror(errno.EIO)))
        return point

    def _not_durable(self, error: OSError | StorageError) -> SyncFailedError:
        return SyncFailedError(
            f"cannot sync the group's file {self.path}: {error}. What was committed "
            f"last counts now, and may be lost in a power failure. Commit again",
            errno=error.errno,
            path=self.path,
            action="sync",
        )

    # ------------------------------------------------------------ compaction

    def rewrite(self, shared: SharedPoint, data: bytes, count: int) -> None:
        """Replace the file, durably, by one with a batch of the records that count,
        with the mutex and the turn to sync. The first has the offset that is next.

        1. Write a temporary file, and sync it. 2. Sync the old one: after a power
        failure it may have the name. 3. Rename the new one, and sync the directory. 4.
        Set the durable point, which is of the old file until then.
        """
        files, temporary = self._files, f"{self.name}.tmp"
        old = self._opened()
        new = SyncedFile(files, self._root.create(temporary, exclusive=False))
        files.write(new.fd, data, 0)
        files.sync(new.fd)
        new.begins_with(data)
        if not old.doubts(shared.now()):
            old.sync(shared)
        end, last_offset = len(data), self.last_offset + count
        self._root.rename(temporary, self.name)
        # Nothing is called until all is that of the new file; what is interrupted
        # before finds another file of this name, and reads it.
        self._file, self._end, self.last_offset = new, end, last_offset
        self._calls = None
        self._root.sync()
        shared.set(new.id, end, is_new=True)
        new.is_confirmed = True
