"""The file of a consumer group as a log: batches that are whole, or not there at all.

It is an append-only file (`logstore.io.checkpoint.append_file`), which is changed under
the group's mutex alone, after its tail was read again: another member may have appended
since. It is rewritten by a rename.

Bytes left at the end by a crash are cut off before the next append. If they are damage
(`logstore.group.file.damage`), the file is not changed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Final

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
from logstore.group.file.damage import TrailingBytes, damaged
from logstore.group.file.durable_point import NO_POINT, GroupDurablePoint, SharedPoint
from logstore.group.file.group_records import GroupRecords
from logstore.group.file.slots import Slots, lock_file_of
from logstore.group.file.state import GroupState
from logstore.group.file.synced_file import SyncedFile
from logstore.io.checkpoint.append_file import Point
from logstore.io.directory import Directory
from logstore.record.decoder import ChunkReader, Damage, damage_of

__all__ = ["GroupLog"]

# How often a reader looks at bytes that seem to be damaged: others may append.
_LOOKS: Final = 10
_SYNC_PAUSE_S: Final = 0.0001
_SYNC_WAIT_S: Final = 10.0


class GroupLog:
    """The log of one group, for one thread at a time.

    Invariant: the records were taken in up to the end, which is the end of a whole
    batch of the file that is open; what is interrupted is read again.

    Attributes:
        name, path: of the file.
        end_pos: where the last batch ends that was read or appended.
        last_offset: of its last record; -1: no record yet.

    Args:
        records: takes in each record read or appended.
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
        self.end_pos = 0
        self.last_offset = -1

    def close(self) -> None:
        """Close the file."""
        self._file = self._calls = None

    @property
    def end(self) -> Point:
        """The end of the last read or append, for `sync`."""
        return Point(None if self._file is None else self._file.identity, self.end_pos)

    @property
    def is_doubtful(self) -> bool:
        """Whether a sync of the file has failed, as far as this member knows."""
        return self._file is not None and self._file.is_doubtful

    def _opened(self) -> SyncedFile:
        assert self._file is not None
        return self._file

    # ------------------------------------------------------------ reading

    def refresh(self) -> bool:
        """Read whole batches appended since; takes no lock. Returns
        whether there was anything.

        Raises:
            CorruptCheckpointError: it is damaged, no group's file, or another group's.
            UnsupportedError: a later version has written to it.
            StorageError: the system refuses.
        """
        before = self._file, self.end_pos
        with storage_errors("read", self.path):
            size = self._open_now()
            if size is not None and size != self.end_pos:
                self._read_to(size)
                if self.end_pos < size:
                    self._check_rest()
        return (self._file, self.end_pos) != before

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

    def _rest(self, size: int, damage: Damage | None) -> TrailingBytes:
        data = self._opened().read(self.end_pos, max(size - self.end_pos, 0))
        return TrailingBytes(self.end_pos, data, self.last_offset + 1, damage)

    def rest_bytes(self) -> int:
        """The number of bytes after the last whole batch that was read: another member
        is writing them, or a crash has left them.

        Raises:
            StorageError: the system refuses.
        """
        with storage_errors("read", self.path):
            file = self._file
            return 0 if file is None else self._files.size(file.fd) - self.end_pos

    def refresh_held(self, shared: SharedPoint) -> None:
        """Refresh for a caller that has the mutex and will append: bytes that a crash
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
            damage = None if size == self.end_pos else self._read_to(size)
            file = self._opened()
            if self.end_pos < size:
                point = shared.now()
                rest = self._rest(size, damage)
                rest.check(self.path, file.id, point)
                logger.warning(
                    "%s: removed %d bytes at byte %d, left by a crash (%s); they have "
                    "no durable commit",
                    self.path, size - self.end_pos, self.end_pos, rest.reason,
                )  # fmt: skip
                file.cut_to(self.end_pos)
            # An empty file is confirmed with its first batch.
            if self.end_pos:
                file.confirm(shared, self.end_pos)

    def _open_now(self) -> int | None:
        """Open the file that has the name now; its size, or None without a file."""
        file = self._file
        try:
            size = None if file is None else file.size_now()
            if size is None:
                # Replaced with the mutex (`refresh_held`): others append to it.
                fd = self._root.open(self.name, write=self._write_mode, keep_links=True)
        except FileNotFoundError:
            if file is not None:
                reason = "it was removed while it was in use"
                raise damaged(self.path, 0, reason) from None
            return None
        if size is None:
            file = SyncedFile(self._root, self.name, fd)
            # A call that is interrupted from here on opens it again.
            self._file, self._calls, self.end_pos, self.last_offset = None, None, 0, -1
            self._records.forget()
            self._file = file
            return file.size
        if size < self.end_pos:
            reason = f"it shrank from {self.end_pos} to {size} bytes"
            raise damaged(self.path, size, reason)
        return size

    def _read_to(self, size: int) -> Damage | None:
        """Take in the whole batches up to `size`; what is wrong with the next one, if
        it is not only cut off."""
        # No `FileWalk`: bytes that are not a batch are returned here, not an error.
        fault: Damage | None = None

        def take_in(data: bytes) -> int:
            nonlocal fault
            begin = self.end_pos
            try:
                self._take_in(data)
            except Damage as damage:
                fault = damage
            return self.end_pos - begin

        self._opened().read_on(self.end_pos, size, take_in, BATCH_BYTES_MAX)
        self._records.check(self.end_pos)
        return fault

    def _take_in(self, data: bytes) -> None:
        """Take in the whole batches of some bytes.

        Raises:
            Damage: after the last of them, something else follows.
        """
        c = native.pointer(data)
        walk = native.walk_batches(c, len(data), last_offset=self.last_offset)
        if walk.pos:
            if not self.end_pos:
                self._opened().begins_with(data)
            capacity = min(16384, walk.pos // RECORD_BYTES + 1)
            reader = ChunkReader(BATCH_BYTES_MAX, capacity=capacity)
            checks = native.CHECK_ORDER
            for run in reader.columns(c, data, walk.pos, self.last_offset, checks):
                self._records.take_in(native.decoded_records(run), self.end_pos)
            self.end_pos, self.last_offset = self.end_pos + walk.pos, walk.last_offset
        if walk.error is not None:
            raise damage_of(walk.error)

    # ------------------------------------------------------------ appending

    def append(
        self,
        slots: Slots,
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
            file = self._file
            if file is None:
                fd = self._root.create(self.name)
                file = self._file = SyncedFile(self._root, self.name, fd)
            if not self.end_pos:
                file.begin(slots.point, data)
        self._calls_with(slots).append(self.end_pos, data)
        self._pass(data, items, state)

    def _calls_with(self, slots: Slots) -> CommitCalls:
        """The calls on the open file, and on a lock file."""
        calls = self._calls
        if calls is None or calls.slots is not slots:
            calls = self._calls = CommitCalls(slots, self._opened())
        return calls

    def _pass(
        self, data: bytes, items: Sequence[Item], state: GroupState | None
    ) -> None:
        """Continue after a batch that was appended."""
        self._records.note(items, state)
        end, last_offset = self.end_pos + len(data), self.last_offset + len(items)
        # Nothing is called from here on: what is interrupted before is read again.
        self.end_pos, self.last_offset = end, last_offset

    def append_at_once(
        self, slots: Slots, data: bytes, items: Sequence[Item], *, durable: bool
    ) -> bool:
        """Take the mutex, append a batch of `items`, and sync it if `durable`, all in
        one call, if nothing is in the way. False: nothing was appended.

        Raises: what the system has refused, and as `sync` if `durable`.
        """
        file = self._file
        if file is None or not self.end_pos:
            return False
        if file.is_doubtful or not file.is_confirmed:
            return False
        calls = self._calls
        if calls is None or calls.slots is not slots:
            calls = self._calls_with(slots)
        done, error = calls.commit(self.end_pos, data, durable=durable)
        is_appended = done > calls.write
        if is_appended:
            self._pass(data, items, None)
        if error is not None:
            if done == calls.sync:
                raise self._not_durable(error)
            if not (is_appended and durable):
                raise error
        # It counts: the calls after it are tried again, step by step.
        if is_appended and durable and done < calls.synced:
            self.sync(slots, self.end)
        return is_appended

    # ------------------------------------------------------------ syncs

    def sync(self, slots: Slots, upto: Point) -> None:
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

    def _sync(self, slots: Slots, upto: Point) -> None:
        shared, deadline = slots.point, None
        while self._point_below(shared, upto) is not None:
            # In this order an interrupt leaves no lock: to give back what was not taken
            # does nothing.
            try:
                if shared.take_turn():
                    self._sync_now(slots, upto)
                    return
            finally:
                shared.end_turn()
            now = self._files.monotonic()
            deadline = now + _SYNC_WAIT_S if deadline is None else deadline
            if now > deadline:
                self._opened().sync_for_all(shared)  # the one with the turn hangs
                return
            time.sleep(_SYNC_PAUSE_S)

    def _sync_now(self, slots: Slots, upto: Point) -> None:
        """Sync all that is whole, with the turn to sync."""
        # Not the size: another member may be in the middle of an append.
        self.refresh()
        point, file = self._point_below(slots.point, upto), self._opened()
        if point is None:
            return
        if not (file.is_of(point) and point.is_synced):
            try:
                file.renew(slots.point, self.end_pos)
            except OSError:
                file.is_doubtful = True
                raise
            return
        self._calls_with(slots).sync_to(self.end_pos)

    def _point_below(
        self, shared: SharedPoint, upto: Point
    ) -> GroupDurablePoint | None:
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
            f"cannot sync the group's file {self.path}: {error}. The last commit "
            "is in effect, but a power failure may lose it. Commit again",
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
        old = self._opened()
        new = SyncedFile.written(self._root, self.name, data)
        new.begins_with(data)
        if not old.doubts(shared.now()):
            old.sync_for_all(shared)
        end, last_offset = len(data), self.last_offset + count
        new.take_name()
        # Nothing is called until all is that of the new file; what is interrupted
        # before finds another file of this name, and reads it.
        self._file, self.end_pos, self.last_offset = new, end, last_offset
        self._calls = None
        self._root.sync()
        shared.set(new.id, end, is_new=True)
        new.is_confirmed = True
