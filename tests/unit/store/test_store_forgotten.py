"""Stores that are never closed: collected, at the end of the program, and still
open."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import warnings

import pytest

import logstore
from logstore.io.service_calls import begin_call, end_call


def open_and_append(path: pathlib.Path) -> None:
    store = logstore.open(path)
    store.create_topic("orders", exist_ok=True)[0].append(b"kept")


def read_values(path: pathlib.Path) -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [record.value for record in store.topic("orders")[0].read()]


def test_forgotten_store_gives_its_lock_to_the_next_opening(
    tmp_path: pathlib.Path,
) -> None:
    """It is in a reference cycle, so only the collector finds it."""
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            open_and_append(tmp_path)
            with logstore.open(tmp_path) as store:
                assert not store.recovery_report  # it was closed, not only unlocked
                assert store.topic("orders")[0].durable_offset == 1
    finally:
        gc.enable()
    (warning,) = [w for w in caught if str(tmp_path) in str(w.message)]
    assert str(tmp_path) in str(warning.message)
    assert f"{__file__}:" in str(warning.message)
    assert isinstance(warning.source, logstore.Store)


def test_forgotten_store_is_collected_though_a_thread_of_it_is_at_work(
    tmp_path: pathlib.Path,
) -> None:
    """The thread holds it until its call ends; a collection before that misses it."""
    held = [logstore.open(tmp_path)]
    is_inside = threading.Event()

    def serve() -> None:
        begin_call()
        try:
            is_inside.set()
            time.sleep(0.05)
            held.clear()
        finally:
            end_call()

    thread = threading.Thread(target=serve)
    thread.start()
    is_inside.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with logstore.open(tmp_path) as store:
            assert not held
            assert store.topics() == []
    thread.join()


def test_store_that_is_used_is_locked_though_its_thread_is_at_work(
    tmp_path: pathlib.Path,
) -> None:
    begin_call()
    try:
        with logstore.open(tmp_path), pytest.raises(logstore.StoreLockedError):
            logstore.open(tmp_path)
    finally:
        end_call()


def test_forgotten_store_that_deleted_a_topic_is_collected(
    tmp_path: pathlib.Path,
) -> None:
    """Work due in a minute (deleting the files of the topic) does not keep it alive."""
    store = logstore.open(tmp_path)
    store.create_topic("orders")[0].append(b"1")
    store.delete_topic("orders")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del store
        gc.collect()
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


def test_store_whose_partition_is_in_use_is_not_forgotten(
    tmp_path: pathlib.Path,
) -> None:
    """A partition in use, or a read, keeps the store alive."""
    store = logstore.open(tmp_path)
    partition = store.create_topic("orders")[0]
    partition.append(b"1")
    del store
    gc.collect()
    with pytest.raises(logstore.StoreLockedError):
        logstore.open(tmp_path)
    partition.append(b"2")
    assert read_values(tmp_path) == [b"1", b"2"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del partition
        gc.collect()


def test_error_of_a_locked_store_says_where_this_process_opened_it(
    tmp_path: pathlib.Path,
) -> None:
    with logstore.open(tmp_path):
        line = sys._getframe().f_lineno - 1
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path)
        assert caught.value.opened_at == f"{__file__}:{line}"
        assert caught.value.holder_pid == os.getpid()
        assert f"this process ({os.getpid()})" in str(caught.value)
        assert f"{__file__}:{line}" in str(caught.value)


def test_error_of_a_store_that_another_process_has_names_it(
    tmp_path: pathlib.Path,
) -> None:
    code = (
        "import logstore, sys\n"
        "try:\n    logstore.open(sys.argv[1], lock_timeout_ms=0)\n"
        "except logstore.StoreLockedError as e:\n"
        "    print(e.holder_pid, e.opened_at, e)\n"
    )
    with logstore.open(tmp_path):
        said = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert said.startswith(f"{os.getpid()} None ")
    assert f"in process {os.getpid()} (" in said


@pytest.mark.parametrize("option", ["default", "error"])
def test_stores_that_are_open_at_exit_are_closed(
    tmp_path: pathlib.Path, option: str
) -> None:
    """Each gives a ResourceWarning; if warnings are errors, the others are closed as
    well."""
    code = (
        "import logstore, sys\n"
        "kept = []\n"
        "for path in sys.argv[1:]:\n"
        "    kept.append(logstore.open(path))\n"
        "    kept[-1].create_topic('orders')[0].append(b'kept')\n"
    )
    paths = [tmp_path / "a", tmp_path / "b"]
    told = subprocess.run(
        [sys.executable, "-W", f"{option}::ResourceWarning", "-c", code, *paths],
        capture_output=True,
        text=True,
    ).stderr
    for path in paths:
        assert read_values(path) == [b"kept"]
        with logstore.open(path) as store:
            assert not store.recovery_report
            assert store.topic("orders")[0].durable_offset == 1
    assert "ResourceWarning" in told
    if option == "default":
        assert all(str(path) in told for path in paths)
        assert told.count("was not closed") == 2


def test_sync_that_fails_at_exit_is_logged(tmp_path: pathlib.Path) -> None:
    code = (
        "import errno, logging, sys, logstore\n"
        "from logstore.io.files import Files\n"
        "from logstore.store.opening import open_store\n"
        "logging.basicConfig()\n"
        "class Failing(Files):\n"
        "    def sync(self, fd):\n"
        "        if broken:\n"
        "            raise OSError(errno.EIO, 'gone')\n"
        "broken = False\n"
        "store = open_store(sys.argv[1], _files=Failing())\n"
        "config = logstore.TopicConfig(flush_ms=1 << 40)\n"
        "store.create_topic('orders', config=config)[0].append(b'x')\n"
        "broken = True\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert "cannot be" in said.stderr
