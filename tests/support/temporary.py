"""Temporary directories of tests: in memory, if there is room.

A test waits for each sync of a disk, and most tests do not need a disk. At the level
``all`` (tests/support/levels.py), and if ``TMPDIR`` is set, tests use the system's
temporary directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.levels import IS_ALL

__all__ = ["on_disk", "remove", "use_memory"]

MEMORY: Final = Path("/dev/shm")
# The files of all tests together: less than 3 GiB at one time.
NEEDED: Final = 8 << 30
_PREFIX: Final = "logstore-tests-"
# The directory of the system, for the processes of a run.
_DISK: Final = "LOGSTORE_TEST_DISK"


def use_memory(memory: Path = MEMORY) -> Path | None:
    """Make `tempfile` use memory in this process and its children, at the commit level
    and if there is room.

    Returns:
        The directory, which the caller must `remove`; None: the system's is used. The
        directory of an earlier run is removed here.
    """
    if IS_ALL or "TMPDIR" in os.environ or not memory.is_dir():
        return None
    for old in memory.glob(f"{_PREFIX}*"):
        process = old.name.removeprefix(_PREFIX)
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            remove(old)
    if min(shutil.disk_usage(memory).free, _available()) < NEEDED:
        return None
    directory = memory / f"{_PREFIX}{os.getpid()}"
    directory.mkdir(mode=0o755)  # tests as other users have their files in it, too
    os.environ[_DISK] = tempfile.gettempdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    return directory


@contextlib.contextmanager
def on_disk() -> Iterator[Path]:
    """A directory on the disk for a test that needs one."""
    place = os.environ.get(_DISK, tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="logstore-", dir=place) as directory:
        yield Path(directory)


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _available() -> int:
    """Bytes of memory that programs may still take; 0: unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
