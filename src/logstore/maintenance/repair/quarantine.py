"""The place where `repair` keeps the bytes that it takes out of a store.

It is a directory with a manifest (docs/format.md, ".logstore-quarantine-*"), inside the
partition's directory so that the store's root gets no new entry, or below a directory
that the user named. It is made when the first byte must be kept. Before `ready`
returns, it syncs the copies and the manifest, which records their original places: only
then may anything be taken out of the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
from typing import Any, Final

from logstore.io.directory import Directory
from logstore.io.layout import QUARANTINE_PREFIX
from logstore.log.recover.durable import copy_bytes

MANIFEST: Final = "manifest.json"


@dataclasses.dataclass(slots=True)
class QuarantinedRange:
    """One thing in a quarantine: bytes [position, position + bytes) of `source`."""

    file: str
    source: str
    position: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    reason: str


class Quarantine:
    """The bytes that are taken out of one directory.

    Without `outside`, it is a directory inside of that directory. For the root of a
    store (`is_root`) it is plain files next to the others: a Kafka broker refuses to
    start if it finds a directory that it does not know.
    """

    def __init__(
        self, source: Directory, mode: str, outside: str | None, *, is_root: bool
    ) -> None:
        self.source = source
        self.mode = mode
        self.outside = outside
        self.is_root = is_root
        self.kept: list[QuarantinedRange] = []
        self.path: str | None = None
        self._moved: list[str] = []
        self._directory: Directory | None = None
        self._prefix = ""
        self._is_same_device = True

    # -- making it

    def _open(self) -> Directory:
        """The directory, made at the first call."""
        if self._directory is not None:
            return self._directory
        source, files = self.source, self.source.files
        when = datetime.datetime.fromtimestamp(
            files.now_ms() / 1000, tz=datetime.timezone.utc
        ).strftime("%Y%m%dT%H%M%SZ")
        if self.outside is None and self.is_root:
            directory = source
            self._prefix = _unused(source, f"{QUARANTINE_PREFIX}{when}") + "-"
            self.path = source.path_of(self._prefix)
        else:
            if self.outside is None:
                parent, name = source, f"{QUARANTINE_PREFIX}{when}"
            else:
                files.make_root(self.outside)
                parent = Directory.open_root(files, self.outside)
                name = "store" if self.is_root else source.name
            name = _unused(parent, name)
            parent.make(name)
            parent.sync()
            directory = parent.child(name)
            self.path = directory.path
        self._is_same_device = directory.info().device == source.info().device
        self._directory = directory
        return directory

    # -- filling it

    def copy(
        self,
        name: str,
        begin: int,
        end: int,
        first: int | None,
        last: int | None,
        reason: str,
    ) -> str:
        """Copy bytes [begin, end) of a file of the directory, synced; returns where."""
        to = self._open()
        kept = f"{self._prefix}{name}@{begin}-{end}"
        size = self._copy(name, begin, end, to, kept)
        self.kept.append(QuarantinedRange(kept, name, begin, size, first, last, reason))
        return to.path_of(kept)

    def move(self, name: str, first: int | None, last: int | None, reason: str) -> str:
        """Plan to move a whole file out of the directory, by `take_out`; returns where.

        If the quarantine is on another file system, the file is copied now.
        """
        to = self._open()
        kept = self._prefix + name
        if name in self._moved:
            return to.path_of(kept)
        size = self.source.stat(name).size
        if not self._is_same_device:
            self._copy(name, 0, size, to, kept)
        self.kept.append(QuarantinedRange(kept, name, 0, size, first, last, reason))
        self._moved.append(name)
        return to.path_of(kept)

    def _copy(self, name: str, begin: int, end: int, to: Directory, kept: str) -> int:
        """Copy bytes of a file, synced; returns how many there were."""
        files = self.source.files
        with self.source.opened(name) as fd:
            copy = to.create(kept)
            try:
                size = copy_bytes(self.source, fd, begin, end, copy)
                files.sync(copy)
            finally:
                files.close(copy)
        return size

    def ready(self) -> None:
        """Write the manifest and sync everything: 1. manifest; 2. the directory;
        3. its parent."""
        if self._directory is None:
            return
        to = self._directory
        to.write_file(self._prefix + MANIFEST, self._manifest())
        self.source.sync()

    def _manifest(self) -> bytes:
        value: dict[str, Any] = {
            "version": 1,
            "mode": self.mode,
            "time_ms": self.source.files.now_ms(),
            "directory": self.source.path,
            "kept": [dataclasses.asdict(kept) for kept in self.kept],
        }
        return (json.dumps(value, indent=1) + "\n").encode()

    def take_out(self, name: str) -> None:
        """Move a file out that was passed to `move`; nothing if it no longer exists."""
        if name not in self._moved or self._directory is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._is_same_device:
                self.source.move(name, self._directory, self._prefix + name)
                self._directory.sync()
            else:
                self.source.unlink(name)
            self.source.sync()

    def give_up(self) -> None:
        """Remove the copies; nothing was taken out of the log yet."""
        to = self._directory
        if to is None:
            return
        with contextlib.suppress(OSError):
            for name in to.names():
                if to is not self.source or name.startswith(self._prefix):
                    to.unlink(name, missing_ok=True)
            if to is not self.source and to.parent is not None:
                to.parent.remove(to.name)
        self._directory, self.path = None, None


def _unused(directory: Directory, name: str) -> str:
    """The name, with a number appended if it is taken."""
    names = directory.names()
    number, chosen = 1, name
    while any(other == chosen or other.startswith(f"{chosen}-") for other in names):
        number += 1
        chosen = f"{name}.{number}"
    return chosen
