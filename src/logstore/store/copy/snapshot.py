"""Snapshots: a copy of an open store at one moment, in another directory.

A snapshot is written under a temporary name, with a file in it that forbids to open it,
and gets its name when all of it is durable. Sealed segments get a second name there (a
hard link) if that is possible: neither store writes to a file with two names
(`Directory.open`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import ConfigError, StorageError, storage_errors
from logstore.index import before_offset
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.io.files import PRIVATE, Files, held_open
from logstore.io.layout import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from logstore.log.write.log_cut import LogCut, names_beside
from logstore.log.write.writer import PartitionWriter
from logstore.segment import Segment
from logstore.store.context import StoreContext
from logstore.store.copy.cut import PartitionCut, StoreCut, take_cut
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = [
    "SnapshotProgress",
    "SnapshotReport",
    "SnapshotTarget",
    "check_target",
    "make_snapshot",
]

_COPY_BYTES: Final = 1 << 20
_CUTS_MAX: Final = 3
# Errors of `link` that lead to a copy.
_NO_LINK: Final = (
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.ENOENT,
)
# Not copied: quarantined bytes, and files that a process was writing.
_LEFT_OUT: Final = (
    layout.OWN_COPY_PREFIX,
    layout.TORN_PREFIX,
    layout.QUARANTINE_PREFIX,
)
# The copy of an intact log has a state that is made for it, and the page is for the
# processes that have the original open.
_OF_ORIGINAL: Final = (layout.PARTITION_STATE, layout.DURABLE)


class SnapshotProgress(NamedTuple):
    """The progress of a snapshot.

    Attributes:
        bytes_done, bytes_total: of log.
    """

    bytes_done: int
    bytes_total: int


class SnapshotReport(NamedTuple):
    """The contents of a snapshot.

    Attributes:
        path: its directory.
        topics, partitions, segments: how many there are.
        groups: how many groups have a file.
        identities: how many publishers are remembered.
        bytes: of log.
        bytes_linked: of these, bytes in files shared with the original.
        damaged: the partitions that were copied with their damage, and those whose
            directory is gone from the original.
    """

    path: str
    topics: int
    partitions: int
    segments: int
    groups: int
    identities: int
    bytes: int
    bytes_linked: int
    damaged: tuple[layout.TopicPartition, ...]


class SnapshotTarget(NamedTuple):
    """The place of a snapshot, and how to make it; see `Store.snapshot`."""

    path: str
    links: bool
    on_progress: Callable[[SnapshotProgress], None] | None = None


class _CutError(Exception):
    """A log was truncated, or its topic deleted, while it was copied."""


def check_target(files: Files, source: str, path: str) -> None:
    """Raise `ConfigError` if a snapshot cannot be made at a path: something is there
    that a directory cannot replace, or it lies in the store."""
    if _lies_in(files, source, path):
        raise _refused(path, "it is inside the store")
    above, name = os.path.split(path)
    with contextlib.ExitStack() as stack:
        try:
            parent = Directory.open_root(files, above)
            stack.callback(parent.close)
            there = parent.stat(name)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise _refused(path, "a parent of it is a file") from None
        try:
            directory = Directory.open_root(files, path)
            stack.callback(directory.close)
        except (FileNotFoundError, NotADirectoryError):
            raise _refused(path, "it is not a directory") from None
        if directory.names():
            raise _refused(path, "it is not empty")
        info = directory.info()
        if (there.device, there.inode) != (info.device, info.inode):
            raise _refused(path, "it is a link to a directory")
        with directory.use() as fd, parent.use() as above_fd:
            if files.mounts(fd)[0] != files.mounts(above_fd)[0]:
                raise _refused(path, "it is a mount point. Name a directory in it")


def _lies_in(files: Files, source: str, path: str) -> bool:
    """Whether a path is a directory or leads into it, also through links."""
    store = _identity(files, source)
    while True:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if _identity(files, path) == store:
                return True
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above


def _identity(files: Files, path: str) -> tuple[int, int]:
    directory = Directory.open_root(files, path)
    try:
        info = directory.info()
        return info.device, info.inode
    finally:
        directory.close()


def _refused(path: str, why: str) -> ConfigError:
    return ConfigError(
        f"no snapshot can be made at {path}: {why}. Nothing was written",
        name="path",
        value=path,
    )


def make_snapshot(
    context: StoreContext,
    topics: OpenTopics,
    publisher: Publisher,
    target: SnapshotTarget,
) -> SnapshotReport:
    """Make a snapshot of an open store; see `Store.snapshot`."""
    for _ in range(_CUTS_MAX):
        with storage_errors("read", context.path, "No snapshot was made."):
            cut = take_cut(context, topics, publisher)
        with contextlib.suppress(_CutError):
            return _Snapshot(context, topics, cut, target).make()
    raise StorageError(
        f"no snapshot of {context.path} was made: {_CUTS_MAX} times, one of its "
        "logs was truncated or deleted while it was copied. Try again",
        path=context.path,
        action="make a snapshot of",
    )


class _Snapshot:
    """One attempt to write a cut to a directory."""

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        cut: StoreCut,
        target: SnapshotTarget,
    ) -> None:
        self._context = context
        self._topics = topics
        self._files = context.files
        self._cut = cut
        self._path, self._links, self._on_progress = target
        logs = [
            partition.log for partition in cut.partitions if partition.log is not None
        ]
        self._total = sum(sum(log.sizes) for log in logs)
        self._done = self._linked = self._segments = 0

    def make(self) -> SnapshotReport:
        """1. Make a directory with a temporary name and the mark of an unfinished
        snapshot. 2. Write everything, and sync it. 3. Remove the mark, and sync the
        directory. 4. Give it its name, and sync the directory above."""
        files, path = self._files, self._path
        check_target(files, self._context.path, path)
        above, name = os.path.split(path)
        temporary = f"{name}.unfinished-{os.urandom(4).hex()}"
        full = os.path.join(above, temporary)
        with storage_errors("write the snapshot", full, "No snapshot was made."):
            files.make_root(full)
            parent = Directory.open_root(files, above)
            root = Directory.open_root(files, full)
            try:
                self._write(root)
                root.unlink(layout.UNFINISHED)
                root.sync()
                try:
                    parent.rename(temporary, name)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise _refused(path, "it is no longer empty") from error
                    raise
                parent.sync()
            except BaseException:
                with contextlib.suppress(OSError):
                    _remove(root, parent, temporary)
                raise
            finally:
                root.close()
                parent.close()
        return self._report()

    def _report(self) -> SnapshotReport:
        cut = self._cut
        ledger = cut.ledger or {"published": []}
        return SnapshotReport(
            self._path,
            len({partition.key.topic for partition in cut.partitions}),
            len(cut.partitions),
            self._segments,
            len(cut.groups),
            len(ledger["published"]),
            self._done,
            self._linked,
            tuple(
                sorted(
                    [
                        *(
                            partition.key
                            for partition in cut.partitions
                            if partition.log is None
                        ),
                        *cut.missing,
                    ]
                )
            ),
        )

    # ------------------------------------------------------------ the root

    def _write(self, root: Directory) -> None:
        cut = self._cut
        root.access = cut.root.access
        if root.access != PRIVATE:
            with root.use() as fd:
                self._files.set_access(fd, root.access)
        root.write_file(layout.UNFINISHED, b"")
        for partition in cut.partitions:
            self._write_partition(root, partition)
            self._check(partition)
        self._write_cluster(root)
        for name, data in (*cut.groups.items(), *cut.files.items()):
            if data:
                self._put(root, name, data)
        if cut.settings:
            checkpoints.write_state(root, layout.TOPICS, {"topics": cut.settings})
        if cut.ledger is not None:
            checkpoints.write_state(root, layout.PUBLISHED, cut.ledger)
        self._write_owner(root)
        root.sync()
        for partition in cut.partitions:
            self._check(partition)

    def _write_owner(self, root: Directory) -> None:
        """The owner file says that it was written nowhere: the first opening sees that
        this is a copy, also in the directory of the original."""
        cut, ownership = self._cut, Ownership(root)
        ownership.unsettle()
        ownership.store_epoch = cut.store_epoch
        logs = {
            partition.key: partition.log
            for partition in cut.partitions
            if partition.log is not None
        }
        ends = {key: log.end for key, log in logs.items()}
        starts = {
            partition.key: partition.start
            for partition in cut.partitions
            if _is_noted(partition)
        }
        ownership.lower_high_watermarks(ends)
        # An opening examines damaged logs again if one of the original would do so.
        if cut.is_clean or len(logs) == len(cut.partitions):
            ownership.end({**cut.points, **ends}, starts)
        else:
            checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, cut.points)
            ownership.write_starts(starts)
            ownership.record()

    def _write_cluster(self, root: Directory) -> None:
        """Copy the cluster metadata of a KRaft broker. It does not change, as no broker
        runs while this process has the lock. Nothing is linked: a broker appends in
        place.
        """
        name = layout.CLUSTER_METADATA
        if name not in self._cut.root.directories():
            return
        source = self._cut.root.child(name)
        root.make(name)
        to = root.child(name)
        for file in sorted({*source.names()} - {*source.directories()}):
            self._copy_file(source, file, to)
            self._context.check_open()
        to.sync()

    def _put(self, directory: Directory, name: str, data: bytes) -> None:
        """Write a small file, durably; the directory is synced later."""
        fd = directory.create(name)
        try:
            self._files.write(fd, data, 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _check(self, partition: PartitionCut) -> None:
        """Raise if a log has lost what its cut has, or may be that of another topic of
        this name. The topic that was deleted loses its writer after its directory, and
        before another one gets that name."""
        self._context.check_open()
        writers = self._topics.writers
        is_there = self._cut.root.exists(partition.directory.name)
        if partition.writer is None:
            is_same = partition.key in writers.broken
        else:
            is_same = writers.loaded.get(partition.key) is partition.writer
        if not (is_there and is_same):
            raise _CutError
        if partition.writer is None:
            return
        if partition.log is None:
            is_gone = partition.writer.start_offset != partition.start
        else:
            is_gone = partition.log.is_gone(partition.writer.cuts)
        if is_gone:
            raise _CutError

    # ------------------------------------------------------------ partitions

    def _write_partition(self, root: Directory, partition: PartitionCut) -> None:
        root.make(partition.directory.name)
        to = root.child(partition.directory.name)
        try:
            names = {*partition.directory.names()} - {
                *partition.directory.directories()
            }
            if partition.writer is not None and partition.log is not None:
                self._write_log(partition.writer, partition.log, to)
            for name in sorted(names):
                if _is_copied(name, partition.log):
                    self._copy_file(partition.directory, name, to)
        except FileNotFoundError as error:
            self._check(partition)
            raise error
        to.sync()

    def _write_log(self, writer: PartitionWriter, log: LogCut, to: Directory) -> None:
        """The segments of a log, their other files, and its state."""
        if not log.segments:
            return
        for segment, size in zip(log.segments, log.sizes, strict=True):
            is_active = segment is log.segments[-1]
            self._write_segment(segment, size, to, may_link=not is_active)
            if is_active:
                self._write_active(writer, log, to)
            else:
                self._write_beside(writer, segment, to)
            self._segments += 1
        checkpoints.write_prepared(to, layout.PARTITION_STATE, log.state)

    def _write_active(
        self, writer: PartitionWriter, log: LogCut, to: Directory
    ) -> None:
        """Write the indexes of the active segment, at the time of the cut. An aborted
        transaction is in its index before its marker is in the log."""
        active = log.segments[-1]
        contents = {INDEX: log.offset_index, TIME_INDEX: log.time_index}
        with writer.lock:  # no entry is half written
            file, _ = self._opened_beside(writer, active, _usual(active, TXN_INDEX))
            if file is not None:
                data = bytearray(self._files.size(file.fd))
                self._files.read(file.fd, data, 0)
                contents[TXN_INDEX] = before_offset(bytes(data), log.end)
        for suffix, content in contents.items():
            if content or suffix != TXN_INDEX:
                self._put(to, _usual(active, suffix), content)

    def _write_beside(
        self, writer: PartitionWriter, segment: Segment, to: Directory
    ) -> None:
        """The other files of a sealed segment, also if it is compacted, or deleted,
        meanwhile. Missing files are built at the opening."""
        digest = layout.digest_file(segment.base_offset)
        usual = [_usual(segment, suffix) for suffix in (INDEX, TIME_INDEX, TXN_INDEX)]
        for name in (*usual, digest):
            may_link = self._links and name in usual[:2]
            with writer.lock:
                file, current_name = self._opened_beside(writer, segment, name)
                is_linked = may_link and self._link(
                    segment.file.directory, current_name, to, name
                )
            if file is None:
                continue
            if is_linked:
                self._files.sync(file.fd)
            else:
                self._copy(file.fd, None, to, name)

    def _opened_beside(
        self, writer: PartitionWriter, segment: Segment, name: str
    ) -> tuple[native.OpenFile | None, str]:
        """Another file of a segment, which has this name in the log, and its current
        name; None: the file is missing. The caller holds the log's lock."""
        if segment.file.moved_to and writer.health.is_poisoned:
            raise _CutError  # a compaction failed half-way: either may have the names
        names = names_beside(segment, name, writer.segments)
        for candidate in names:
            with contextlib.suppress(FileNotFoundError):
                return held_open(
                    self._files, segment.file.directory.open(candidate)
                ), candidate
        return None, names[0]

    def _write_segment(
        self, segment: Segment, size: int, to: Directory, *, may_link: bool
    ) -> None:
        """The first `size` bytes of a segment's log."""
        file = segment.file.borrow()
        name = layout.segment_file(segment.base_offset, LOG)
        info = self._files.stat(file.fd)
        may_link = may_link and self._links and info.size == size
        now = segment.file.moved_to or segment.file.name(LOG)
        if may_link and self._link(segment.file.directory, now, to, name):
            if to.stat(name).inode == info.inode:
                self._synced(to, name)
                self._linked += size
                self._step(size)
                return
            to.unlink(name)  # it was deleted meanwhile, and another one has its name
        self._copy(file.fd, size, to, name)

    def _copy_file(self, source: Directory, name: str, to: Directory) -> None:
        """Copy a file; not one that is gone meanwhile."""
        try:
            file = held_open(self._files, source.open(name))
        except FileNotFoundError:
            return
        self._copy(file.fd, None, to, name)

    def _link(self, source: Directory, name: str, to: Directory, new: str) -> bool:
        try:
            with source.use() as fd, to.use() as to_fd:
                self._files.link(fd, name, to_fd, new)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def _synced(self, directory: Directory, name: str) -> None:
        with directory.opened(name) as fd:
            self._files.sync(fd)

    def _copy(self, fd: int, size: int | None, to: Directory, name: str) -> None:
        """Copy bytes of an open file; all of them without a `size`."""
        files, is_log = self._files, size is not None
        wanted = files.size(fd) if size is None else size
        to_fd = to.create(name)
        try:
            buffer, pos = memoryview(bytearray(min(_COPY_BYTES, wanted))), 0
            while pos < wanted:
                n = files.read(fd, buffer[: min(_COPY_BYTES, wanted - pos)], pos)
                if n == 0:
                    break
                files.write(to_fd, buffer[:n], pos)
                pos += n
                if is_log:
                    self._step(n)
            if is_log and pos < wanted:
                raise _CutError
            files.set_mode_of(to_fd, fd)
            files.sync(to_fd)
        finally:
            files.close(to_fd)

    def _step(self, size: int) -> None:
        self._done += size
        self._context.check_open()
        if self._on_progress is not None:
            self._on_progress(SnapshotProgress(self._done, self._total))


def _is_noted(partition: PartitionCut) -> bool:
    """Whether the start of a log is in Kafka's checkpoint: it is not a base offset."""
    if partition.log is None:
        return partition.start > 0  # its segments may be unknown
    return (
        bool(partition.log.segments)
        and partition.start > partition.log.segments[0].base_offset
    )


def _usual(segment: Segment, suffix: str) -> str:
    return layout.segment_file(segment.base_offset, suffix)


def _is_copied(name: str, log: LogCut | None) -> bool:
    """Whether a file of a partition belongs to a copy of it, besides the segment files
    of an intact log."""
    if name.endswith(".tmp") or name.startswith(_LEFT_OUT):
        return False
    parsed = layout.parse_segment_file(name)
    if log is None or parsed is None:
        is_of_log = layout.parse_digest_file(name) is not None or name in _OF_ORIGINAL
        return layout.is_partition_file(name) and (log is None or not is_of_log)
    is_snapshot = parsed.suffix == SNAPSHOT and not parsed.transition
    return is_snapshot and parsed.base_offset <= log.end


def _remove(root: Directory, parent: Directory, name: str) -> None:
    """Remove an unfinished snapshot."""
    for directory in root.directories():
        child = root.child(directory)
        for entry in child.names():
            child.unlink(entry, missing_ok=True)
        root.remove(directory)
    # The mark is the last: what is left of it is not a store.
    for entry in sorted(root.names(), key=layout.UNFINISHED.__eq__):
        root.unlink(entry, missing_ok=True)
    parent.remove(name)
