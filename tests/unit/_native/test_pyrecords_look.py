"""A look at a directory, and the floors of indexes, as the module _records gives
them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import operator
import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore import _native as native
from logstore._native.decoding import connect_core

NAMES = b"a\0.\0"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a").write_bytes(b"123")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@contextlib.contextmanager
def in_place_of_the_call(look: Callable[[], int]) -> Iterator[None]:
    """Looks call this function instead of the system."""
    function = ctypes.CFUNCTYPE(ctypes.c_int32)(look)
    address = ctypes.cast(function, ctypes.c_void_p).value
    connect_core(ls_sys_look=address or 0)
    try:
        yield
    finally:
        connect_core()


def test_look_gives_the_object_of_the_look_before_if_nothing_has_changed(
    root: int, tmp_path: Path
) -> None:
    """A caller compares the two by `is`."""
    _, first = native.look(root, "dir", NAMES, 2, None)
    assert len(first) == 16 + 2 * 32
    size = struct.unpack_from("=q", first, 16 + 24)[0]
    assert size == 3
    assert native.look(root, "dir", NAMES, 2, first)[1] is first
    (tmp_path / "dir" / "a").write_bytes(b"1234")
    _, second = native.look(root, "dir", NAMES, 2, first)
    assert struct.unpack_from("=q", second, 16 + 24)[0] == 4


def test_look_at_a_missing_directory_names_it(root: int) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        native.look(root, "none", NAMES, 2, None)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "none")


@pytest.mark.parametrize(
    ("name", "names", "count", "before", "error"),
    [
        ("d\0r", NAMES, 2, None, ValueError),
        ("dir", NAMES, -1, None, ValueError),
        ("dir", NAMES * 40, 80, None, ValueError),
        ("dir", NAMES, 2, b"", ValueError),
        ("dir", NAMES, 2, bytearray(80), TypeError),
        ("dir", NAMES, 3, None, OSError),
        (b"dir", NAMES, 2, None, TypeError),
    ],
)
def test_look_refuses_what_it_could_not_examine(
    root: int, name: str, names: bytes, count: int, before: bytes, error: type
) -> None:
    """No byte outside of its arguments is read or written."""
    with pytest.raises(error):
        native.look(root, name, names, count, before)


def test_look_is_made_again_after_a_signal(root: int) -> None:
    """Other calls are repeated in the same way."""
    results = [-errno.EINTR, -errno.EINTR, -errno.EACCES]
    with in_place_of_the_call(lambda: results.pop(0)), pytest.raises(PermissionError):
        native.look(root, "dir", NAMES, 2, None)
    assert not results


def test_error_of_a_signal_handler_ends_a_look(root: int) -> None:
    """An interrupt is not lost, and the call is not made for ever."""

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    # No line of Python runs in the call: the handler would run there.
    send = ctypes.PyDLL(None)["raise"]
    signals = map(send, itertools.repeat(signal.SIGUSR1))
    results = map(operator.itemgetter(1), zip(signals, itertools.repeat(-errno.EINTR)))
    before = signal.signal(signal.SIGUSR1, refuse)
    try:
        with in_place_of_the_call(results.__next__), pytest.raises(KeyboardInterrupt):
            native.look(root, "dir", NAMES, 2, None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_floor_is_the_greatest_entry_up_to_a_target() -> None:
    """Its two numbers are right for both kinds of index."""
    targets = (9, 10, 29, 30, 99)
    for form, is_time in ((">ii", False), (">qi", True)):
        data = b"".join(struct.pack(form, 10 * i, 100 * i) for i in range(1, 4))
        for entries in (data, bytearray(data)):
            found = [native.index_floor(entries, 3, t, is_time) for t in targets]
            assert found[0][0] == -1
            assert found[1:] == [
                (slot, 10 * slot + 10, 100 * slot + 100) for slot in (0, 1, 2, 2)
            ]
            assert native.index_floor(entries, 1, 99, is_time) == (0, 10, 100)


@pytest.mark.parametrize("is_time", [False, True])
def test_floor_reads_no_entry_behind_the_data(is_time: bool) -> None:
    for count in (-1, 2):
        with pytest.raises(ValueError, match="count"):
            native.index_floor(bytes(12), count, 5, is_time)
    with pytest.raises(TypeError, match="bytearray"):
        native.index_floor(memoryview(bytes(12)), 1, 5, is_time)  # type: ignore[arg-type]
