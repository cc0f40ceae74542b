"""The open files of a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files


@pytest.mark.parametrize("step", ["_open", "_writers", "_indexes"])
def test_file_that_could_not_be_forgotten_is_forgotten_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A finalizer that runs in a deep stack may have no room for it, at any step."""

    class NoRoom(dict[int, int]):
        def pop(self, *arguments: int | None) -> None:
            raise RecursionError

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    directory = Directory.open_root(Files(), os.fspath(tmp_path))
    descriptors = Descriptors(Files(), 10)
    fds = [
        descriptors.borrow(owner, directory, lambda: ("a", "b")).fd for owner in (1, 2)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(descriptors, step, NoRoom())
        with pytest.raises(RecursionError):
            descriptors.forget(1)
    descriptors.forget(2)
    assert len(descriptors) == 0
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
