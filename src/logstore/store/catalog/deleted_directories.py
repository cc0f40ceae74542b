"""The directories of deleted topics: renamed, emptied and, later, removed."""

from __future__ import annotations

from logstore._native.locks import logger
from logstore.config import TopicConfig
from logstore.errors import is_disk_full
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.store.catalog.topic_settings import TopicSettings

__all__ = ["DeletedDirectories"]


class DeletedDirectories:
    """Removes the directories of deleted topics.

    Attributes:
        dying: ``-delete`` directories whose delay is not over.

    Invariant: as long as the settings on the disk still have a topic, its renamed
    directories stay, though empty: from their names the next opening knows that nothing
    is lost.
    """

    def __init__(self, root: Directory, settings: TopicSettings) -> None:
        self._root = root
        self._settings = settings
        self.dying: list[str] = []

    def rename(self, name: str, new: str, *, is_recorded: bool) -> None:
        """Rename the directory of a partition that is being deleted. If a full disk has
        no room for the new name, and the deletion `is_recorded`, remove it at once.
        Else remove indexes, and other files that can be made again, to make room."""
        if self._has_renamed(name, new):
            return
        if not is_recorded:
            _make_room(self._root.child(name))
        elif self.empty([name]):
            self._root.remove(name)
            return
        if not self._has_renamed(name, new):
            # ext4 may have given the store's directory one of two blocks.
            self._root.rename(name, new)

    def _has_renamed(self, name: str, new: str) -> bool:
        """Rename a directory; False if a full disk has no room for the new name."""
        try:
            self._root.rename(name, new)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        return True

    def finish(self, names: list[str]) -> None:
        """Complete deletions of topics that an earlier writer began: now if the delay
        is over, else when this one begins to write."""
        delay_ms = TopicConfig().file_delete_delay_ms
        over: list[str] = []
        for name in names:
            parsed = layout.transition_topic(name)
            if parsed is None or parsed[2] != "delete":
                continue
            age_ms = (
                self._root.files.now_ms() - self._root.stat(name).ctime_ns // 1_000_000
            )
            (self.dying if 0 <= age_ms < delay_ms else over).append(name)
        self.remove(self.empty(over))

    def empty(self, names: list[str]) -> list[str]:
        """Remove the files of partition directories that were renamed for deletion.
        Returns the names of the directories that are empty now.

        Files that are not named as Kafka or logstore name files are foreign: they stay,
        and so does the directory.
        """
        emptied = []
        for name in names:
            directory = self._root.child(name)
            try:
                foreign = _empty(directory)
                if foreign:
                    logger.warning(
                        "%s is kept: %d files in it are not of a log (%r)",
                        directory.path,
                        len(foreign),
                        foreign[0],
                    )
                    continue
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("cannot remove %s: %s", directory.path, error)
                continue
            emptied.append(name)
        return emptied

    def remove(self, emptied: list[str]) -> None:
        """Remove empty directories, if the settings are persisted: the store's lock is
        held."""
        self._settings.catch_up()
        if self._settings.is_dirty:
            self.dying += emptied
            return
        for name in emptied:
            try:
                self._root.remove(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                path = self._root.path_of(name)
                logger.warning("cannot remove %s: %s", path, error)


def _make_room(directory: Directory) -> None:
    """Remove what can be made again: the index files of a partition, and the page with
    the durable offset for readers; of a log without records, which may have little else
    that takes space, the leader epochs, too."""
    gone, is_empty = [layout.DURABLE], True
    for name in directory.names():
        parsed = layout.parse_segment_file(name)
        if parsed and parsed.suffix in (layout.INDEX, layout.TIME_INDEX):
            gone.append(name)
        elif parsed and parsed.suffix == layout.LOG:
            is_empty &= not directory.stat(name).size
    for name in [*gone, layout.LEADER_EPOCHS] if is_empty else gone:
        directory.unlink(name, missing_ok=True)


def _empty(directory: Directory) -> list[str]:
    """Remove the files that logstore or Kafka put into a partition's directory, also
    logstore's directories in it (`layout.QUARANTINE_PREFIX`). Returns
    the names of foreign files, which stay."""
    foreign: list[str] = []
    for name in directory.names():
        if name.startswith(layout.OWN_PREFIX) and directory.stat(name).is_directory:
            inner = directory.child(name)
            for file in inner.names():
                inner.unlink(file, missing_ok=True)
            directory.remove(name)
        elif layout.is_partition_file(name):
            directory.unlink(name, missing_ok=True)
        else:
            foreign.append(name)
    return foreign
