"""Doing things as another user, in a child process."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65_534
SOMEBODY = 61_234

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user"
)


@contextlib.contextmanager
def shared_place(user: int) -> Iterator[Path]:
    """A user's directory that others can access, unlike pytest's directories."""
    place = Path(tempfile.mkdtemp(prefix="logstore-"))
    try:
        os.chown(place, user, user)
        place.chmod(0o755)
        yield place
    finally:
        shutil.rmtree(place)


def as_user(
    user: int, work: Callable[..., None], *args: Any, group: int | None = None
) -> None:
    """Run `work` as a user (and its group) in a child; its failure is this test's.

    The child is forked, so that it needs to read no module.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            gid = user if group is None else group
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(user, user, user)
            work(*args)
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        pytest.fail(f"as user {user}:\n{told}", pytrace=False)
