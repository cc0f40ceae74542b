"""Stamps that show whether another process has changed a partition.

They cost a few calls, and read no log: a writer changes the files that they are made of
before, or when, it changes more than the end of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from logstore.io.checkpoint.ownership import (
    OWNERSHIP_FILES,
    MetadataNow,
    Ownership,
    OwnershipKey,
)
from logstore.io.checkpoint.publications import PublicationKey
from logstore.io.directory import Directory
from logstore.io.layout import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    OWNER,
    PARTITION_STATE,
    PUBLICATION,
    PUBLISHED,
    RECOVERY_CHECKPOINT,
)
from logstore.io.stamps import FileStamp, LookNames
from logstore.log.follow.file_identity import LogFiles

__all__ = [
    "CUT_BY_BROKER",
    "CUT_BY_LOGSTORE",
    "WRITER",
    "BrokerStart",
    "Guards",
    "PartitionStamp",
    "WriterStamps",
    "publication_key",
    "writer_stamps",
]

# In the root of the store: the mark of its writer, the files that show that a broker
# has taken it over (`store_fingerprint`), and the files of a publication.
WRITER: Final = f"../{OWNER}"
_BROKER: Final = (f"../{CLEAN_SHUTDOWN}", f"../{RECOVERY_CHECKPOINT}")
_PUBLICATIONS: Final = (f"../{PUBLICATION}", f"../{PUBLISHED}")

# The files of which one changes before a log is cut: logstore writes its state first,
# and a broker its leader epochs. A writer that starts after a backup was put back
# does not change the state, but replaces its mark in the root. A log is logstore's own
# until a broker takes the store over.
CUT_BY_LOGSTORE: Final = LookNames(WRITER, PARTITION_STATE, *_BROKER)
CUT_BY_BROKER: Final = LookNames(LEADER_EPOCHS, PARTITION_STATE)
_OWN_GUARDS: Final = LookNames(*CUT_BY_LOGSTORE.names, ".", *_PUBLICATIONS)
_PARTITION: Final = LookNames(
    ".", PARTITION_STATE, *(f"../{name}" for name in OWNERSHIP_FILES)
)

# See `PartitionStamp.writer_stamps`.
WriterStamps: TypeAlias = tuple[FileStamp | None, ...]


class Guards(NamedTuple):
    """The names that a look at a log examines; each list begins with the one before.

    Attributes:
        cut: one of these files changes whenever the log is cut, before any byte is
            overwritten. Of a foreign log, the last file is included: there may be no
            epochs.
        quick: of logstore's own log: if these have not changed, nothing but the end of
            the last file has.
        all: these, and the last file.
        last: its name; "" without files.
    """

    cut: LookNames
    quick: LookNames
    all: LookNames
    last: str

    @classmethod
    def of(cls, last: str, *, is_foreign: bool) -> Guards:
        name = (last,) if last else ()
        if is_foreign:
            cut = LookNames(*CUT_BY_BROKER.names, *name)
            names = LookNames(*cut.names, WRITER, ".", *_PUBLICATIONS)
            return cls(cut, names, names, last)
        names = LookNames(*_OWN_GUARDS.names, *name)
        return cls(CUT_BY_LOGSTORE, _OWN_GUARDS, names, last)


def publication_key(stamps: Mapping[str, FileStamp | None]) -> PublicationKey:
    """`Publications.cache_key` from the stamps of a look."""
    publication, published = _PUBLICATIONS
    return stamps[publication], stamps[published]


def writer_stamps(stamps: Mapping[str, FileStamp | None]) -> WriterStamps:
    """`PartitionStamp.writer_stamps` from the stamps of a look at the same log."""
    return tuple(stamps[name] for name in (WRITER, *_BROKER) if name in stamps)


class PartitionStamp(NamedTuple):
    """Shows whether another process has changed more than the end of the log. Apparent
    damage may be a change by a writer since the first stamp.

    Attributes:
        directory_id: device and inode of the partition's directory.
        mtime_ns: when names in it changed.
        state, ownership: change with logstore's own state, and with the store's owner.
    """

    directory_id: tuple[int, int]
    mtime_ns: int
    state: FileStamp | None
    ownership: OwnershipKey

    def writer_stamps(self, *, is_foreign: bool) -> WriterStamps:
        """The stamps of the files in the root of which one changes before another
        program writes to a log, or another writer of logstore does."""
        owner, clean_shutdown, points, _ = self.ownership
        return (owner,) if is_foreign else (owner, clean_shutdown, points)

    @classmethod
    def now(cls, directory: Directory) -> PartitionStamp:
        look = directory.look(_PARTITION)
        names, state, *owners = look.stamps().values()
        assert names is not None
        return cls(look.place, names[1], state, OwnershipKey(*owners))


class BrokerStart:
    """The start offset of a log that a broker writes, from its checkpoint in the root:
    ``DeleteRecords`` changes this, and not the directory of the log.

    Args:
        metadata: reads the facts about the partition.

    Attributes:
        stamp: of the checkpoint, when it was read last.
    """

    def __init__(self, ownership: Ownership, metadata: MetadataNow) -> None:
        self._ownership = ownership
        self._metadata = metadata
        self.stamp: FileStamp | None = None

    def news(self, log_files: LogFiles) -> int:
        """The start offset, if the log is a broker's and the checkpoint has changed; 0
        if not.

        To be called before the look at the directory: a broker takes a log out of the
        checkpoint when it has deleted the segments before the start.
        """
        if not log_files.is_foreign:
            return 0
        stamp = self._ownership.starts_stamp()
        if stamp == self.stamp:
            return 0
        start, self.stamp = self._metadata().log_start, stamp
        return start
