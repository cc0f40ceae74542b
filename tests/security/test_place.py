"""Conditions for writing a store: a directory that no other user can change, on a file
system that keeps its promises. A setting overrides them; reading is always allowed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

import logstore
from logstore import StoreConfig
from logstore.io import filesystem as place
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import snapshot_of
from support.users import NOBODY, SOMEBODY, as_user, needs_root, shared_place
from support.values import append_one, expected, fill, new_partition, read_all

SHARED = StoreConfig(allow_shared_directory=True)
GROUP = StoreConfig(group_access=True)


def make_store(path: Path, count: int = 5) -> Path:
    with logstore.open(path) as store:
        fill(new_partition(store), count)
    return path


def refused(path: Path, name: str, config: StoreConfig | None = None) -> str:
    """The message of the error on opening for writing; nothing changed."""
    before = snapshot_of(path)
    with pytest.raises(logstore.ConfigError) as caught:
        logstore.open(path, config=config)
    assert caught.value.name == name
    assert str(path) in str(caught.value)
    assert f"{name}=True" in str(caught.value)
    assert snapshot_of(path) == before
    return str(caught.value)


# ------------------------------------------------------------ whose directory it is


@pytest.mark.parametrize("mode", [0o702, 0o707, 0o777, 0o1777, 0o770, 0o720])
def test_directory_that_others_may_write_to_is_refused_for_writing(
    tmp_path: Path, mode: int
) -> None:
    """The error names the mode, the remedy, and the setting; a sticky bit does not
    help."""
    store = make_store(tmp_path / "data")
    store.chmod(mode)
    text = refused(store, "allow_shared_directory")
    assert f"{mode & 0o777:04o}" in text
    assert ("chmod o-w" if mode & 0o002 else "chmod g-w") in text
    assert read_all(store) == expected(1, 0, 5)
    with logstore.open(store, config=SHARED) as opened:
        append_one(opened.topic("orders")[0])
    assert stat.S_IMODE(store.stat().st_mode) == mode
    with pytest.raises(logstore.ConfigError):
        logstore.rebuild_index(store)
    logstore.rebuild_index(store / "orders-0", dry_run=True)
    logstore.rebuild_index(store / "orders-0", store_config=SHARED)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o711, 0o2755])
def test_directory_that_others_may_only_read_is_fine(tmp_path: Path, mode: int) -> None:
    """The owner decides about read access."""
    store = make_store(tmp_path / "data")
    store.chmod(mode)
    with logstore.open(store) as opened:
        append_one(opened.topic("orders")[0])


def test_group_may_write_where_the_group_has_access(tmp_path: Path) -> None:
    """`group_access` trusts the group, and no other users."""
    store = make_store(tmp_path / "data")
    store.chmod(0o2770)
    with logstore.open(store, config=GROUP) as opened:
        append_one(opened.topic("orders")[0])
    store.chmod(0o777)
    refused(store, "allow_shared_directory", GROUP)


@needs_root
def test_directory_of_another_user_is_refused_for_writing() -> None:
    """Refused even if the modes allow it; the error names the owner."""

    def work(path: Path) -> None:
        text = refused(path, "allow_shared_directory")
        assert f"user {SOMEBODY}" in text
        assert f"user {NOBODY}" in text
        assert len(read_all(path)) == 5
        with logstore.open(path, config=SHARED) as opened:
            append_one(opened.topic("orders")[0])

    with shared_place(SOMEBODY) as at:
        path = make_store(at / "data")
        for p in [path, *path.rglob("*")]:
            os.chown(p, SOMEBODY, SOMEBODY)
            p.chmod(0o777 if p.is_dir() else 0o666)
        as_user(NOBODY, work, path)


@needs_root
def test_directory_of_root_is_fine_for_a_user_of_its_group() -> None:
    """Volumes are mounted for a group in this way: root could change it anyway."""

    def work(path: Path) -> None:
        refused(path, "allow_shared_directory")
        with logstore.open(path, config=GROUP) as opened:
            fill(new_partition(opened), 3)

    def another(path: Path) -> None:
        with logstore.open(path, config=GROUP) as opened:
            append_one(opened.topic("orders")[0])
        assert read_all(path) == expected(1, 0, 4)

    with shared_place(0) as at:
        path = at / "volume"
        path.mkdir()
        os.chown(path, 0, SOMEBODY)
        path.chmod(0o2775)
        as_user(NOBODY, work, path, group=SOMEBODY)
        as_user(NOBODY - 1, another, path, group=SOMEBODY)


@needs_root
def test_root_in_the_store_of_another_user_is_refused_and_says_so() -> None:
    """The owner could not open files that root made there: a classic of `sudo`."""
    with shared_place(NOBODY) as at:
        path = at / "data"
        as_user(NOBODY, lambda: [make_store(path), None][1])
        text = refused(path, "allow_shared_directory")
        assert f"Run as user {NOBODY}" in text
        with pytest.raises(logstore.ConfigError):
            logstore.rebuild_index(path)
        assert read_all(path) == expected(1, 0, 5)


@needs_root
def test_what_root_makes_where_it_is_allowed_belongs_to_the_owner() -> None:
    """The owner can use the store as before."""

    def go_on(path: Path) -> None:
        with logstore.open(path) as opened:
            for name in ("orders", "more"):
                append_one(opened.topic(name)[0])
        assert read_all(path) == expected(1, 0, 7)

    with shared_place(NOBODY) as at:
        path = at / "data"
        as_user(NOBODY, lambda: [make_store(path), None][1])
        with logstore.open(path, config=SHARED) as opened:
            partition = opened.topic("orders")[0]
            partition.roll()
            append_one(partition)
            opened.create_topic("more")
        logstore.rebuild_index(path, store_config=SHARED)
        for p in [path, *path.rglob("*")]:
            assert (p.stat().st_uid, p.stat().st_gid) == (NOBODY, NOBODY), p
        as_user(NOBODY, go_on, path)


def test_owner_is_looked_at_in_what_was_opened_not_in_its_name(tmp_path: Path) -> None:
    """A link to a directory that others may write to does not get around the check."""
    store = make_store(tmp_path / "data")
    store.chmod(0o777)
    (tmp_path / "link").symlink_to(store)
    with pytest.raises(logstore.ConfigError, match="everybody may write"):
        logstore.open(tmp_path / "link")


# ------------------------------------------------------------ file systems


class Elsewhere(Files):
    """Files that claim to be on another file system."""

    def __init__(self, number: int, kind: str = "") -> None:
        self.number = number
        self.kind = kind

    def file_system(self, fd: int) -> int:
        return self.number

    def mounts(self, fd: int) -> tuple[int, str]:
        if not self.kind:
            return -1, ""
        return 7, (
            "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
            f"7 1 0:44 / /mnt/a\\040b rw,nosuid - {self.kind} server:/x rw,hard\n"
        )


NETWORK_KINDS = sorted({(name, number) for number, name in place.NETWORK.items()})


@pytest.mark.parametrize(
    ("name", "number"), NETWORK_KINDS, ids=[f"{n}-{k:#x}" for n, k in NETWORK_KINDS]
)
def test_network_file_system_is_refused_for_writing(
    tmp_path: Path, name: str, number: int
) -> None:
    """The error has the name, and the setting that allows it; reading is not
    refused."""
    path = make_store(tmp_path / "data")
    before = snapshot_of(path)
    files = Elsewhere(number)
    with pytest.raises(logstore.ConfigError, match=f"on {name}") as caught:
        open_store(path, _files=files)
    assert caught.value.name == "allow_network_filesystem"
    assert snapshot_of(path) == before
    with open_store(path, read_only=True, _files=files) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)
    assert snapshot_of(path) == before
    allowed = StoreConfig(allow_network_filesystem=True)
    with open_store(path, _files=files, config=allowed) as store:
        append_one(store.topic("orders")[0])
    with pytest.raises(logstore.ConfigError):
        logstore.rebuild_index(path, _files=files)
    logstore.rebuild_index(path, _files=files, store_config=allowed)


@pytest.mark.parametrize("kind", ["virtiofs", "fuse.sshfs", "fuseblk"])
def test_fuse_is_refused_with_the_name_of_what_is_behind_it(
    tmp_path: Path, kind: str
) -> None:
    """virtiofs reports the number of FUSE: its lock does not reach the host."""
    with pytest.raises(logstore.ConfigError, match=rf"FUSE \({kind}\)"):
        open_store(tmp_path / "data", _files=Elsewhere(0x65735546, kind))


@pytest.mark.parametrize("number", [*place.FILE_SYSTEMS, 0, 0x12345678], ids=hex)
def test_local_and_unknown_file_systems_are_fine(tmp_path: Path, number: int) -> None:
    """Only file systems that are known to break the promises are refused."""
    with open_store(tmp_path / "data", _files=Elsewhere(number)) as store:
        fill(new_partition(store), 3)


def test_this_file_system_is_asked(tmp_path: Path) -> None:
    """statfs gives a number for a directory, and 0 for a descriptor that is not
    open."""
    root = Directory.open_root(Files(), str(tmp_path))
    with root.use() as fd:
        assert Files().file_system(fd) > 0
        number, table = Files().mounts(fd)
    root.close()
    assert Files().file_system(1 << 20) == 0
    assert number in {mount.number for mount in place.parse_mounts(table)}


def test_mounts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    """Optional fields, octal escapes, options of mount and file system."""
    files = Elsewhere(0x6969, "nfs4")
    root = Directory.open_root(files, str(tmp_path))
    try:
        assert place.mount_of(root) == place.Mount(
            7, "/mnt/a b", "nfs4", "server:/x", ("rw", "nosuid", "hard")
        )
    finally:
        root.close()


@pytest.mark.parametrize(
    "table", ["", "\n", "nonsense", "1 2 3 - 4", "x 0 8:1 / / rw - ext4 d rw", " - "]
)
def test_mounts_that_are_none_are_left_out(table: str) -> None:
    """A table in an unknown form is no reason to fail."""
    assert place.parse_mounts(table) == []


def test_place_that_cannot_be_looked_at_is_a_storage_error(tmp_path: Path) -> None:
    """No bare OSError is raised, and the directory is closed."""

    class Failing(Files):
        def user(self) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(logstore.StorageError, match="cannot examine"):
        open_store(tmp_path / "data", _files=Failing())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "name", ["group_access", "allow_shared_directory", "allow_network_filesystem"]
)
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_setting_that_is_no_bool_is_refused(name: str, value: object) -> None:
    """1 is not True: a setting that lifts a protection must be explicit."""
    with pytest.raises(logstore.ConfigError) as caught:
        StoreConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.name == name
