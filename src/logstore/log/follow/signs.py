"""Stamps that show whether another process has changed a partition.

They cost a few calls, and read no log: a writer changes the files that they are made of
before, or when, it changes more than the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logstore.io.checkpoint.ownership import Ownership, OwnershipKey
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.io.files import FileStamp, settled, stamp_of
from logstore.io.layout import LEADER_EPOCHS, LOG, PARTITION_STATE
from logstore.log.follow.file_identity import LogFiles
from logstore.segment import Segment

__all__ = ["BrokerStart", "PartitionStamp", "cut_stamp"]


class PartitionStamp(NamedTuple):
    """Shows whether another process has changed more than the end of the log. Apparent
    damage may be a change by a writer since the first stamp.

    Attributes:
        directory_id: device and inode of the partition's directory.
        mtime_ns: when names in it changed.
        state, ownership: change with logstore's own state, and with who owns the store.
    """

    directory_id: tuple[int, int]
    mtime_ns: int
    state: FileStamp | None
    ownership: OwnershipKey

    @classmethod
    def now(cls, directory: Directory, ownership: Ownership) -> PartitionStamp:
        info, state = directory.info_and_stamp(PARTITION_STATE)
        return cls(
            (info.device, info.inode), info.mtime_ns, state, ownership.cache_key()
        )


def cut_stamp(
    directory: Directory,
    ownership: Ownership,
    log_files: LogFiles,
    segments: Sequence[Segment],
    *,
    is_safe: bool = False,
) -> object:
    """A value that changes whenever the log is cut, before any byte is overwritten:
    logstore writes its state first, and a broker its leader epochs. A writer that
    starts after a backup was put back leaves the state as it is, and replaces its
    mark in the root. Of a foreign log, the last file is included: there may be no
    epochs.

    Args:
        is_safe: the value will be compared with a later one. Then it is None, which
            equals no other, if a future change may leave it as it is.
    """
    with directory.use() as fd:
        files = directory.files
        infos: list[object] = []
        names = [PARTITION_STATE]
        if log_files.is_foreign:
            names.append(LEADER_EPOCHS)
            names += [segment.file(LOG) for segment in segments[-1:]]
        for name in names:
            try:
                info = files.stat_name(fd, name)
            except FileNotFoundError:
                infos.append(None)
                continue
            if is_safe and settled(info.ctime_ns, files) < 0:
                return None
            infos.append(stamp_of(info))
        place = files.stat(fd)
    if not log_files.is_foreign:
        writer = ownership.writer()
        if is_safe and writer is not None and settled(writer[2], files) < 0:
            return None
        infos.append(writer)
    return (place.device, place.inode), infos


class BrokerStart:
    """The start offset of a log that a broker writes, as its checkpoint in the root
    tells it after ``DeleteRecords``: the directory of the log does not change then.

    Args:
        metadata: reads the facts about the partition.

    Attributes:
        stamp: of the checkpoint, when it was read last.
    """

    def __init__(
        self, ownership: Ownership, metadata: Callable[[], PartitionMetadata]
    ) -> None:
        self._ownership = ownership
        self._metadata = metadata
        self.stamp: FileStamp | None = None

    def news(self, log_files: LogFiles) -> int:
        """The start offset, if the log is a broker's and the checkpoint has changed; 0
        if not.

        To be called before the names are listed: a broker takes a log out of the
        checkpoint when it has deleted the segments before the start.
        """
        if not log_files.is_foreign:
            return 0
        stamp = self._ownership.starts_stamp()
        if stamp == self.stamp:
            return 0
        start, self.stamp = self._metadata().log_start, stamp
        return start
