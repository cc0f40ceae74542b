"""The place of a store: the owner of its directory, and its file system.

A store in an unsuitable place is refused for writing unless the settings allow it;
reading is never refused. The rules are in docs/operations.md, "Permissions" and "File
systems".
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Final, NamedTuple

from logstore.config import StoreConfig
from logstore.errors import (
    ConfigError,
    StoreNotFoundError,
    storage_error,
    storage_errors,
)
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Access, Files
from logstore.io.layout import OWNER
from logstore.io.stamps import FileInfo

__all__ = [
    "FILE_SYSTEMS",
    "NETWORK",
    "Mount",
    "check_is_store",
    "is_directory",
    "is_partition",
    "is_store",
    "kind_of",
    "mount_of",
    "open_root",
    "parse_mounts",
    "prepare_beside",
    "prepare_root",
    "who_else",
]

ROOT_USER: Final = 0
CREATED_FOR_GROUP: Final = 0o050

# f_type of statfs(2), from linux/magic.h and the file systems' own headers.
FILE_SYSTEMS: Final[dict[int, str]] = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlayfs",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x7366746E: "ntfs3",
    0xCA451A4E: "bcachefs",
}
NETWORK: Final[dict[int, str]] = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x564C: "NCP",
    0x73757245: "Coda",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x01021997: "9P",
    0x47504653: "GPFS",
    0x20030528: "OrangeFS",
    0xAAD7AAEA: "PanFS",
    0x19830326: "BeeGFS",
    0x786F4256: "VirtualBox shared folder",
    0xBACBACBC: "VMware shared folder",
    0x65735546: "FUSE",
}


def open_root(files: Files, path: str) -> Directory:
    """The directory at a path that a user gives.

    Raises:
        StoreNotFoundError: the path does not exist.
        StorageError: the system refuses.
    """
    try:
        return Directory.open_root(files, path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"no such file or directory: {path}", path=path
        ) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error


def is_directory(files: Files, path: str) -> bool:
    """Whether the path is a directory. Raises: as `open_root`."""
    try:
        files.close(files.open_root(path))
    except NotADirectoryError:
        return False
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"no such file or directory: {path}", path=path
        ) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error
    return True


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo.

    Attributes:
        number: its id.
        point: its mount point.
        kind: name of the file system: ``ext4``, ``fuse.sshfs``, ``virtiofs``.
        source: device or server.
        options: of the mount and of the file system.
    """

    number: int
    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def parse_mounts(table: str) -> list[Mount]:
    """The lines of a mountinfo file (proc(5)); other lines are ignored."""
    mounts = []
    for line in table.split("\n"):
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not separator or len(left) < 6 or len(right) < 3 or not left[0].isdigit():
            continue
        options = (*left[5].split(","), *right[2].split(","))
        mounts.append(
            Mount(
                int(left[0]),
                _unescaped(left[4]),
                right[0],
                _unescaped(right[1]),
                tuple(dict.fromkeys(options)),
            )
        )
    return mounts


def _unescaped(text: str) -> str:
    """The text without the octal escapes of spaces and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(root: Directory) -> Mount | None:
    """The mount of a directory; None if it is unknown."""
    with root.use() as fd:
        number, table = root.files.mounts(fd)
    for mount in parse_mounts(table):
        if mount.number == number:
            return mount
    return None


def kind_of(root: Directory) -> tuple[str, bool]:
    """(kind of file system, whether it is a network or FUSE one)."""
    with root.use() as fd:
        number = root.files.file_system(fd)
    if number in NETWORK:
        mount = mount_of(root)
        name = NETWORK[number]
        if mount is not None and mount.kind.lower() != name.lower():
            name = f"{name} ({mount.kind})"
        return name, True
    return FILE_SYSTEMS.get(number, f"unknown ({number:#x})"), False


def who_else(info: FileInfo, user: int, *, group_access: bool) -> str:
    """Why other users may change a directory, as a sentence; "" if none may.

    Root always may, so a directory of root is as good as one of this user.
    """
    if info.uid not in (user, ROOT_USER, -1):
        return f"it belongs to user {info.uid}, and this process is user {user}"
    if info.mode & 0o002:
        return f"everybody may write to it (mode {info.mode:04o})"
    if info.mode & 0o020 and not group_access:
        return f"its group, {info.gid}, may write to it (mode {info.mode:04o})"
    return ""


# Files of a log directory's root that no other program uses. (`.lock` is not among
# them: many programs use it.) A power failure in the first opening may leave one with
# its temporary name, and nothing else.
_FINAL_FILES: Final = frozenset(
    {OWNER, layout.TOPICS, layout.LOCK_RECORD} | layout.KAFKA_STORE_FILES
) - {layout.LOCK}
_ROOT_FILES: Final = _FINAL_FILES | {f"{name}.tmp" for name in _FINAL_FILES}
_PARTITION_FILES: Final = frozenset(
    {layout.PARTITION_STATE, layout.LEADER_EPOCHS, layout.PARTITION_METADATA}
)


def is_partition(root: Directory, names: list[str]) -> bool:
    """Whether a directory with these names in it is one of a partition: because of its
    files, or, if all of them are lost, because it has a partition's name and its parent
    has the files of a store.

    Raises:
        OSError: the system refuses.
    """
    if not _ROOT_FILES.isdisjoint(names):
        return False
    if _has_log(names):
        return True
    if layout.parse_partition_directory(root.name) is None or is_store(root, names):
        return False
    try:
        parent = Directory.open_root(root.files, os.path.dirname(root.path))
    except OSError:
        return False
    try:
        return not _ROOT_FILES.isdisjoint(parent.names())
    except OSError:
        return False
    finally:
        parent.close()


def is_store(root: Directory, names: list[str]) -> bool:
    """Whether a directory with these names in it is a store (a log directory): it has
    the files of a store, or a directory with a partition's name and files. Names of
    directories alone prove nothing: `/etc` has ``dbus-1``.

    Raises:
        StoreNotFoundError: it is a snapshot that was not finished.
        OSError: the system refuses.
    """
    _check_finished(root, names)
    if not _ROOT_FILES.isdisjoint(names):
        return True
    inside: list[str] = []
    for name in names:
        if layout.transition_topic(name) is not None:
            return True  # a partition being deleted, with the name that a broker uses
        if layout.parse_partition_directory(name):
            child = root.child(name)
            try:
                child_names = child.names()
            except FileNotFoundError:
                return True  # its owner is deleting it
            except OSError:
                continue
            finally:
                child.close()
            if _has_log(child_names):
                return True
            inside += child_names
    return not inside and _is_empty_store(names)


def _check_finished(root: Directory, names: list[str]) -> None:
    """Raise `StoreNotFoundError` if an interrupted snapshot left this directory."""
    if layout.UNFINISHED in names:
        raise StoreNotFoundError(
            f"{root.path} is an unfinished snapshot, not a store. Remove it",
            path=root.path,
        )


def _is_empty_store(names: list[str]) -> bool:
    """Whether there is a lock and nothing else except directories of partitions (which
    are empty): many programs have a `.lock`."""
    return layout.LOCK in names and all(
        name == layout.LOCK
        or name.startswith(layout.OWN_PREFIX)
        or layout.parse_partition_directory(name)
        for name in names
    )


def _may_be_store(root: Directory, names: list[str]) -> bool:
    """Whether a directory that has no log may still be read as a store: a lock may be
    that of a store without a topic, next to other files, and an empty directory may be
    a partition without a record. This is too little to report a valid store."""
    return layout.LOCK in names or any(
        layout.parse_partition_directory(name) is not None and _is_empty(root, name)
        for name in names
    )


def _is_empty(root: Directory, name: str) -> bool:
    """Whether it is an empty directory."""
    child = root.child(name)
    try:
        return not child.names()
    except OSError:
        return False
    finally:
        child.close()


def _has_log(names: list[str]) -> bool:
    return any(
        name in _PARTITION_FILES or layout.parse_segment_file(name) for name in names
    )


def check_is_store(root: Directory, *, must_exist: bool) -> None:
    """Raise an error if a directory is a partition's and not a store; with `must_exist`
    also if it has no file of a store or a log.

    Raises:
        StoreNotFoundError: the message says what the directory is.
        StorageError: the system refuses.
    """
    with storage_errors("examine", root.path):
        names = root.names()
        _check_finished(root, names)
        if is_partition(root, names):
            parent, name = os.path.split(root.path)
            rest = ""
            parsed = layout.parse_partition_directory(name)
            if parsed is not None:
                rest = f".topic({parsed[0]!r})[{parsed[1]}]"
            raise StoreNotFoundError(
                f"{root.path} is the directory of a partition; the store is its "
                f"parent: logstore.open({parent!r}){rest}",
                path=root.path,
            )
        if must_exist and not (is_store(root, names) or _may_be_store(root, names)):
            what = f"{len(names)} other files" if names else "nothing"
            raise StoreNotFoundError(
                f"there is no store at {root.path}: the directory contains "
                f"{what}, and no partition of a topic or file of logstore or Kafka",
                path=root.path,
            )


def prepare_root(root: Directory, config: StoreConfig, *, is_new: bool = False) -> None:
    """Before a store is written to, check its place and set the modes of new files.

    1. Check the owner. 2. Check the file system. 3. Set `root.access`: group bits, and
    the owner if root writes to another user's store.

    Args:
        made: the directory was just created.

    Raises:
        ConfigError: others may change the directory, or it is on a network file system,
            and `config` does not allow that; nothing was changed.
        StorageError: the system refuses.
    """
    with storage_errors("examine", root.path):
        _check_owner(root, config, root.info(), config.group_access, _OPENED)
        _check_file_system(root, config, _OPENED)
        root.access = _access(root, config, is_new)


def prepare_beside(root: Directory, config: StoreConfig) -> None:
    """Before a file is put into a store without its lock (what is staged, a request,
    the files of a group): the checks of `prepare_root`, and `root.access`, the same as
    that of the owner's own files, since the owner must read them.

    If the owner has given its group access, another user of it may do this.

    Raises: as `prepare_root`.
    """
    with storage_errors("examine", root.path):
        info, user = root.info(), root.files.user()
        group = 0
        with contextlib.suppress(FileNotFoundError):
            group = root.stat(OWNER).mode & 0o060
        is_given = bool(group & info.mode & 0o020)
        if is_given and user != ROOT_USER:
            info = info._replace(uid=user)
        _check_owner(root, config, info, is_given or config.group_access, _BESIDE)
        _check_file_system(root, config, _BESIDE)
        access = _access(root, config, is_new=False)
        root.access = access._replace(group=access.group | group)


# The text of a refusal, and of the way that is left.
_OPENED: Final = "opened for writing", "read_only=True is always possible"
_BESIDE: Final = (
    "written to: it gets no files of groups, and nothing staged or handed in",
    "reading without a group is always possible",
)


def _check_owner(
    root: Directory,
    config: StoreConfig,
    info: FileInfo,
    group_access: bool,
    words: tuple[str, str],
) -> None:
    if config.allow_shared_directory:
        return
    user = root.files.user()
    why = who_else(info, user, group_access=group_access)
    if not why:
        return
    if info.uid not in (user, ROOT_USER, -1):
        what = f"Run as user {info.uid}"
    elif info.mode & 0o002:
        what = "Remove the permission (chmod o-w)"
    else:
        what = "Remove the permission (chmod g-w), or open it with group_access=True"
    raise ConfigError(
        f"store {root.path} is not {words[0]}. The reason: {why}, so records could be "
        f"changed, or files replaced, by others. {what}, or open it with "
        f"StoreConfig(allow_shared_directory=True); {words[1]}",
        name="allow_shared_directory",
        value=False,
    )


def _check_file_system(
    root: Directory, config: StoreConfig, words: tuple[str, str]
) -> None:
    if config.allow_network_filesystem:
        return
    kind, is_network = kind_of(root)
    if is_network:
        raise ConfigError(
            f"store {root.path} is not {words[0]}. The reason: it is on {kind}, "
            "where locks may not exclude other writers and synced data may be "
            "lost. Use a local file system, or open it with "
            f"StoreConfig(allow_network_filesystem=True); {words[1]}",
            name="allow_network_filesystem",
            value=False,
        )


def _access(root: Directory, config: StoreConfig, is_new: bool) -> Access:
    info = root.info()
    group = 0
    if config.group_access:
        group = info.mode & 0o070
        if is_new:
            group = CREATED_FOR_GROUP
            with root.use() as fd:
                root.files.set_access(fd, Access(group))
    # Files that root makes in another user's store must stay usable for its owner.
    if root.files.user() == ROOT_USER and info.uid > ROOT_USER:
        return Access(group, info.uid, info.gid)
    return Access(group)
