"""Checks of a store's surroundings: file system, mount, permissions, limits, files.

`doctor` reports risks that cause no error until it is too late. It changes nothing;
on request it writes a test file, and removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Final

from logstore.errors import StoreNotFoundError, storage_error, storage_errors
from logstore.io import filesystem, layout
from logstore.io.directory import Directory
from logstore.io.files import DIRECTORY_MODE, FILE_MODE, Files
from logstore.io.lock import description, holder_of, time_text
from logstore.io.lock_record import state_of
from logstore.log.frames.units import number_text, size_text
from logstore.maintenance.finding import ENVIRONMENT, NOTE, OK, PROBLEM, Finding

__all__ = ["EnvironmentFinding", "EnvironmentReport", "doctor"]

_TEST_FILE: Final = ".logstore-doctor"
_TEST_BYTES: Final = 4096
_TEST_SYNCS: Final = 32
# Names in one directory that are examined one by one; the rest is only counted.
_ENTRIES_MAX: Final = 1_000_000
# How old a staged file is that is reported: a stage may take long.
_STAGED_MS: Final = 3_600_000
_FEW_BYTES: Final = 1 << 30
_FEW_INODES: Final = 10_000
_FEW_FILES: Final = 1024

# Mount options that break a guarantee, as /proc/self/mountinfo shows them.
_BAD_OPTIONS: Final = {
    "data=writeback": "after a power cut, old bytes may replace records",
    "nobarrier": "a sync does not reach the disk through its cache",
    "barrier=0": "a sync does not reach the disk through its cache",
    "sync=disabled": "a sync writes nothing",
    "nodatacow": "btrfs keeps no checksums of data",
}


@dataclasses.dataclass(frozen=True, slots=True)
class EnvironmentFinding:
    """One thing that `doctor` looked at.

    Attributes:
        kind: its subject: ``file-system``, ``mount``, ``owner``, ...; see docs/cli.md.
        level: ``ok``, ``note`` (worth knowing) or ``problem`` (a promise is not kept).
        message: the finding, as a sentence.
        values: the same as plain values.
    """

    kind: str
    level: str
    message: str
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """The result of `doctor`; `path` is the absolute path of the directory."""

    path: str
    findings: tuple[EnvironmentFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def problems(self) -> tuple[EnvironmentFinding, ...]:
        """The findings of level ``problem``."""
        return tuple(o for o in self.findings if o.level == PROBLEM)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "path": self.path,
            "ok": self.ok,
            "findings": [dataclasses.asdict(o) for o in self.findings],
        }


def doctor(
    path: str | os.PathLike[str],
    *,
    write_test: bool = False,
    _files: Files | None = None,
) -> EnvironmentReport:
    """Check the file system, mount, permissions, limits and files around a store.

    Changes nothing and takes no lock; may run while a writer or a broker works. It does
    not check records: use `verify` for that.

    Args:
        path: the directory of a store.
        write_test: make a file in it, measure how long a sync takes and whether space
            can be reserved, and remove the file.

    Raises:
        StoreNotFoundError: there is no directory at `path`.
        StorageError: it cannot be read, or, with `write_test`, not be written to.
    """
    files = _files or Files()
    full = os.path.abspath(os.fspath(path))
    try:
        root = Directory.open_root(files, full)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFoundError(f"there is no store at {full}", path=full) from error
    except OSError as error:
        raise storage_error(error, "open", full) from error
    try:
        with storage_errors("examine", full):
            findings = [*_Doctor(root).checks()]
            if write_test:
                findings.append(_write_test(root))
            views = (
                EnvironmentFinding(
                    finding.kind, finding.severity, finding.message, {**finding.values}
                )
                for finding in findings
            )
            return EnvironmentReport(full, tuple(views))
    finally:
        root.close()


class _Doctor:
    """Checks one directory."""

    def __init__(self, root: Directory) -> None:
        self.root = root
        self.files = root.files

    def _say(
        self, kind: str, severity: str, text: str, values: dict[str, Any]
    ) -> Finding:
        path = self.root.path
        return Finding(ENVIRONMENT, kind, severity, path, text, values=values)

    def checks(self) -> Iterator[Finding]:
        checks: tuple[Callable[[], Iterator[Finding]], ...] = (
            self.file_system,
            self.mount,
            self.preloaded,
            self.space,
            self.limits,
            self.owner,
            self.lock,
            self.entries,
        )
        for check in checks:
            yield from check()

    def file_system(self) -> Iterator[Finding]:
        kind, is_network = filesystem.kind_of(self.root)
        if is_network:
            text = f"{kind}: locks, renames and syncs are not reliable"
            yield self._say("file-system", PROBLEM, text, {"kind": kind})
        elif kind in ("tmpfs", "ramfs"):
            text = f"{kind}: in memory: everything is lost when the machine stops"
            yield self._say("file-system", NOTE, text, {"kind": kind})
        else:
            yield self._say("file-system", OK, kind, {"kind": kind})

    def mount(self) -> Iterator[Finding]:
        mount = filesystem.mount_of(self.root)
        if mount is None:
            text = "the mount is unknown (no /proc?)"
            yield self._say("mount", NOTE, text, {})
            return
        values = {
            "point": mount.point,
            "kind": mount.kind,
            "source": mount.source,
            "options": list(mount.options),
        }
        text = f"{mount.source} on {mount.point} as {mount.kind}"
        bad = [option for option in mount.options if option in _BAD_OPTIONS]
        for option in bad:
            why = f"{text} with {option}: {_BAD_OPTIONS[option]}"
            level = NOTE if option == "nodatacow" else PROBLEM
            yield self._say("mount", level, why, values)
        if "ro" in mount.options:
            yield self._say("mount", NOTE, f"{text}, read-only", values)
        elif not bad:
            yield self._say("mount", OK, text, values)

    def preloaded(self) -> Iterator[Finding]:
        """Checks only this process; its user often starts the writer as well."""
        preload = os.environ.get("LD_PRELOAD", "")
        if "eatmydata" in preload:
            yield self._say(
                "preload",
                PROBLEM,
                "LD_PRELOAD has eatmydata here: syncs do nothing",
                {"LD_PRELOAD": preload},
            )

    def space(self) -> Iterator[Finding]:
        with self.root.use() as fd:
            space = self.files.space(fd)
        values = space._asdict()
        free, every = size_text(space.free_bytes), size_text(space.bytes)
        text = f"{free} of {every} are free"
        level = NOTE if space.free_bytes < _FEW_BYTES else OK
        yield self._say("space", level, text, values)
        if space.inodes >= 0:
            free, every = number_text(space.free_inodes), number_text(space.inodes)
            text = f"{free} of {every} inodes are free"
            level = NOTE if space.free_inodes < _FEW_INODES else OK
            yield self._say("inodes", level, text, values)

    def limits(self) -> Iterator[Finding]:
        open_files, file_bytes = self.files.resource_limits()
        values = {"open_files": open_files, "file_bytes": file_bytes}
        some = "any number of" if open_files is None else number_text(open_files)
        text = f"this process may have {some} open files (RLIMIT_NOFILE)"
        few = open_files is not None and open_files < _FEW_FILES
        yield self._say("limits", NOTE if few else OK, text, values)
        if file_bytes is not None:
            text = f"a file may have {size_text(file_bytes)} (RLIMIT_FSIZE)"
            yield self._say("limits", NOTE, text, values)

    def owner(self) -> Iterator[Finding]:
        info = self.root.info()
        values = {"uid": info.uid, "gid": info.gid, "mode": f"{info.mode:04o}"}
        why = filesystem.who_else(info, self.files.user(), group_access=False)
        if why:
            text = f"not opened for writing without a setting: {why}; {self._owner()}"
            level = PROBLEM if info.mode & 0o002 else NOTE
            yield self._say("owner", level, text, values)
            return
        text = self._owner()
        wider = info.mode & ~DIRECTORY_MODE & 0o777
        yield self._say("owner", NOTE if wider else OK, text, values)

    def _owner(self) -> str:
        """The owner and the mode of the directory, as people know them."""
        info = self.root.info()
        users, groups = self.files.user_tables()
        letters = stat.filemode(info.mode)[1:]
        return (
            f"user {_named(users, info.uid)}, group {_named(groups, info.gid)}, mode "
            f"{info.mode:04o} ({letters})"
        )

    def lock(self) -> Iterator[Finding]:
        try:
            holder = holder_of(self.root)
        except FileNotFoundError:
            return
        except OSError as error:
            text = f"cannot examine the lock file: {error.strerror}"
            yield self._say("lock", NOTE, text, {})
            return
        state = state_of(self.root)
        values: dict[str, object] = {"pid": holder}
        if holder is None:
            text = "no process has the store open for writing"
            if state.until is not None:
                text += f", since {time_text(state.until)}"
            yield self._say("lock", OK, text, values)
            return
        who = f"process {holder}" if holder else "a process"
        if state.holder is not None:
            who += description(state.holder)
        elif not state.is_changing:
            who += " of another program than logstore, such as a Kafka broker,"
        text = f"{who} has the store open for writing"
        level = OK
        if state.unowned_since is not None:
            level = NOTE
            values["unowned_since_ms"] = state.unowned_since
            text += (
                " for a moment, to carry out requests. No owner since "
                f"{time_text(state.unowned_since)}: nothing is compacted"
            )
        yield self._say("lock", level, text, values)

    # -- the files in it

    def entries(self) -> Iterator[Finding]:
        tally = _Tally(self.root.info().uid, self.files.now_ms())
        names = self.root.names()
        for name in names[:_ENTRIES_MAX]:
            info = self._stat(self.root, name)
            if info is None:
                continue
            is_partition = info.is_directory and (
                layout.parse_partition_directory(name) is not None
                or layout.transition_topic(name) is not None
            )
            is_kafkas = info.is_directory and name in layout.NOT_PARTITIONS
            is_file = not info.is_directory and layout.is_store_file(name)
            tally.add(name, info, is_known=is_partition or is_kafkas or is_file)
            if is_partition or is_kafkas:
                self._directory(name, tally, is_kafkas=is_kafkas)
        for (kind, level, text), some in tally.files.items():
            if some:
                shown = ", ".join(some[:3]) + (", ..." if len(some) > 3 else "")
                values = {"count": len(some), "first": some[:3]}
                message = f"{text} {shown} ({number_text(len(some))} in all)"
                yield self._say(kind, level, message, values)
        if len(names) > _ENTRIES_MAX:
            text = (
                f"only the first {number_text(_ENTRIES_MAX)} of "
                f"{number_text(len(names))} names were examined"
            )
            yield self._say("entries", NOTE, text, {"names": len(names)})

    def _directory(self, name: str, tally: _Tally, *, is_kafkas: bool) -> None:
        """The files of a partition; `is_kafkas`: of a directory that is Kafka's alone,
        whatever their names are."""
        directory = self.root.child(name)
        try:
            names = directory.names()
        except FileNotFoundError:
            return  # its topic was deleted meanwhile
        except OSError:
            tally.files[_UNREADABLE].append(name)
            return
        for inner in names[:_ENTRIES_MAX]:
            info = self._stat(directory, inner)
            if info is not None:
                is_known = is_kafkas or layout.is_partition_file(inner)
                tally.add(f"{name}/{inner}", info, is_known=is_known)

    def _stat(self, directory: Directory, name: str) -> Any:
        with contextlib.suppress(OSError):
            return directory.stat(name)
        return None


def _named(table: str, number: int) -> str:
    """A user or group with its name, from a table as /etc/passwd: ``kafka (1001)``; the
    number alone if the table does not have it."""
    for line in table.splitlines():
        name, *rest = line.split(":")
        if rest[1:2] == [str(number)]:
            return f"{name} ({number})"
    return str(number)


# Kind, severity and text of the findings about files.
_OPEN_TO_ALL: Final = "modes", PROBLEM, "anyone may write to"
_WIDER: Final = "modes", NOTE, "group or others have access to"
_OF_OTHERS: Final = "owners", NOTE, "another user than the store's owns"
_FOREIGN: Final = "foreign", NOTE, "not named as by Kafka or logstore:"
_LEFTOVERS: Final = "leftovers", NOTE, "left over, or about to be removed:"
_STAGED: Final = (
    "staged",
    NOTE,
    "staged, not published, and not written to for an hour (a killed process leaves "
    "such files; Store.discard_staged(older_than_ms=3_600_000) removes them):",
)
_TORN: Final = "torn", NOTE, "kept copies of torn tails:"
_DAMAGED: Final = "damage", PROBLEM, "damage was found, not repaired yet:"
_UNREADABLE: Final = "unreadable", PROBLEM, "cannot be listed:"
_OF_FILES: Final = (
    _OPEN_TO_ALL, _WIDER, _OF_OTHERS, _FOREIGN, _LEFTOVERS, _STAGED, _TORN, _DAMAGED,
    _UNREADABLE,
)  # fmt: skip
_ENDINGS: Final = (
    layout.DELETED, layout.CLEANED, layout.SWAP, ".tmp", "-delete", "-stray"
)  # fmt: skip


class _Tally:
    """The files of a store, grouped by the finding that reports them."""

    def __init__(self, owner: int, now_ms: int) -> None:
        self.owner = owner
        self.now_ms = now_ms
        self.files: dict[tuple[str, str, str], list[str]] = {
            key: [] for key in _OF_FILES
        }

    def add(self, name: str, info: Any, *, is_known: bool) -> None:
        base, files = name.rpartition("/")[2], self.files
        if not is_known:
            files[_FOREIGN].append(name)
        if not (info.is_file or info.is_directory):
            return
        if info.mode & 0o002:
            files[_OPEN_TO_ALL].append(name)
        elif info.mode & ~(DIRECTORY_MODE if info.is_directory else FILE_MODE):
            files[_WIDER].append(name)
        if info.uid != self.owner:
            files[_OF_OTHERS].append(name)
        if base.startswith(layout.STAGED_PREFIX):
            if self.now_ms - info.mtime_ns // 1_000_000 >= _STAGED_MS:
                files[_STAGED].append(name)
        elif base.startswith(layout.TORN_PREFIX):
            files[_TORN].append(name)
        elif base == layout.DAMAGED:
            files[_DAMAGED].append(name)
        elif base.endswith(_ENDINGS):
            files[_LEFTOVERS].append(name)


def _write_test(root: Directory) -> Finding:
    """Measure how long a sync takes here, and whether space can be reserved."""
    files = root.files
    name = f"{_TEST_FILE}-{os.urandom(8).hex()}.tmp"
    fd = root.create(name)
    try:
        can_reserve = files.reserve(fd, 0, _TEST_BYTES * _TEST_SYNCS)
        seconds = []
        for number in range(_TEST_SYNCS):
            begun = files.monotonic()
            files.write(fd, bytes(_TEST_BYTES), number * _TEST_BYTES)
            files.sync(fd)
            seconds.append(files.monotonic() - begun)
    finally:
        files.close(fd)
        root.unlink(name, missing_ok=True)
    usual, worst = statistics.median(seconds) * 1e3, max(seconds) * 1e3
    text = f"a write and sync of 4 KiB takes {usual:.2f} ms, at worst {worst:.2f} ms"
    if not can_reserve:
        text += "; space cannot be reserved, so a full disk is noticed only by a write"
    values = {
        "sync_ms_median": usual,
        "sync_ms_max": worst,
        "can_reserve": can_reserve,
    }
    level = OK if can_reserve else NOTE
    return Finding(ENVIRONMENT, "write-test", level, root.path, text, values=values)
