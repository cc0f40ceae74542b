"""Small file systems that are really full, each in mounts of this process alone.

The mounts are removed when the process ends, in any way: they are in its own namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from faults.method import Skip

__all__ = ["KINDS", "Disk", "any_kind", "fill_block", "mounted"]

_CLONE_NEWNS: Final = 0x20000
_MIB: Final = 1 << 20


class _Kind(NamedTuple):
    """A kind of file system: the tool and options for an image, or tmpfs options."""

    tool: str
    options: tuple[str, ...]
    image_bytes: int = 0


KINDS: Final = {
    "ext4": _Kind("mkfs.ext4", ("-q", "-F", "-m0", "-N4096", "-b4096"), 24 * _MIB),
    "ext4-1k": _Kind("mkfs.ext4", ("-q", "-F", "-m0", "-N4096", "-b1024"), 24 * _MIB),
    "ext4-no-journal": _Kind(
        "mkfs.ext4",
        ("-q", "-F", "-m0", "-N4096", "-b1024", "-O^has_journal"),
        16 * _MIB,
    ),
    "xfs": _Kind("mkfs.xfs", ("-q", "-f"), 320 * _MIB),
    "tmpfs-bytes": _Kind("", ("size=6m,nr_inodes=4000",)),
    "tmpfs-inodes": _Kind("", ("size=12m,nr_inodes=1200",)),
}


class Disk(NamedTuple):
    """A mounted file system."""

    kind: str
    place: Path

    def free(self) -> tuple[int, int]:
        """Free bytes, and free inodes."""
        stat = os.statvfs(self.place)
        return stat.f_bavail * stat.f_frsize, stat.f_favail

    def fill(self) -> None:
        """Take the last free byte, or the last inode."""
        filler = self.place / "filler"
        filler.mkdir(exist_ok=True)
        if self.kind == "tmpfs-inodes":
            with contextlib.suppress(OSError):
                for number in range(1 << 20):
                    (filler / f"{len(list(filler.iterdir()))}-{number}").touch()
            return
        with contextlib.suppress(OSError), (filler / "rest").open("ab", 0) as rest:
            for size in (1 << 16, 4096, 1024, 1):
                with contextlib.suppress(OSError):
                    while rest.write(bytes(size)):
                        pass
            os.fsync(rest.fileno())

    def empty(self) -> None:
        """Free the space that `fill` has taken."""
        shutil.rmtree(self.place / "filler", ignore_errors=True)


def fill_block(directory: Path) -> list[Path]:
    """Make files, so that the last block of a directory has no room for a longer name.
    Their number is found by a trial with the same names in another directory."""
    twin = directory.parent / "twin"
    twin.mkdir()
    for name in sorted(os.listdir(directory)):
        (twin / name).touch()
    before, count = twin.stat().st_size, 0
    # On a file system whose directories have no blocks, no file is made.
    while twin.stat().st_size == before and count < 400:
        (twin / _pad(count)).touch()
        count += 1
    shutil.rmtree(twin)
    made = [directory / _pad(number) for number in range(count - 1)]
    for path in made if count < 400 else ():
        path.touch()
    return made


def _pad(number: int) -> str:
    return f".logstore-p{number:03d}"


@functools.cache
def _own_mounts() -> str:
    """Why this process can have no private mounts; "" once it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        return "needs root"
    return _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if not done.returncode else done.stderr.strip() or " ".join(command)


@contextlib.contextmanager
def mounted(kind: str, at: Path) -> Iterator[Disk]:
    """A new file system of this kind.

    Raises:
        Skip: it cannot be made, or mounted, on this machine.
    """
    how, place = KINDS[kind], at / "disk"
    if reason := _own_mounts():
        raise Skip(reason)
    if how.tool and not shutil.which(how.tool):
        raise Skip(f"needs {how.tool}")
    place.mkdir()
    if how.tool:
        image = at / "image"
        with image.open("wb") as file:
            file.truncate(how.image_bytes)
        failed = _run(how.tool, *how.options, str(image))
        failed = failed or _run("mount", "-o", "loop", str(image), str(place))
    else:
        failed = _run("mount", "-t", "tmpfs", "-o", *how.options, "none", str(place))
    if failed:
        raise Skip(f"needs {kind}: {failed.replace(str(at), '')}")
    try:
        yield Disk(kind, place)
    finally:
        _run("umount", "--lazy", str(place))


def any_kind(rng: random.Random) -> str:
    return rng.choice(sorted(KINDS))
