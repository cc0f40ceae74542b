"""Limits that the system sets a process: file size, open files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import logstore
from support.values import append_one, expected, read_all, write_store

PRELUDE = """
import gc, os, resource, signal, sys
from pathlib import Path
import logstore
from support.values import *
path = Path(sys.argv[1])

def open_now():
    gc.collect()
    return len(os.listdir("/proc/self/fd")) - 1
"""


def done(code: str, path: Path) -> str:
    """Output of another process that runs `code` on a store, and exits with 0."""
    tests = Path(__file__).parents[1]
    source = Path(logstore.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(path)],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-3000:])
    return ended.stdout


# --------------------------------------------------------------------- size of a file


@pytest.mark.parametrize("action", ["SIG_IGN", "SIG_DFL"])
def test_file_size_limit_at_the_log_never_kills(tmp_path: Path, action: str) -> None:
    """Not even if SIGXFSZ would: the limit is seen before a byte is written. Once it is
    lifted, the log continues without a gap."""
    code = f"""
    signal.signal(signal.SIGXFSZ, signal.{action})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    store = logstore.open(path)
    partition = new_partition(store)
    refused = 0
    while refused < 3:
        try:
            fill(partition, 10)
        except logstore.DiskFullError:
            refused += 1
    count = partition.end_offset
    partition.flush()
    assert list(partition.read()) == expected(1, 0, count)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert append_one(partition, durable=True) == count
    store.close()
    print(count + 1)
    """
    count = int(done(code, tmp_path))
    assert count > 50
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
    assert read_all(tmp_path) == expected(1, 0, count)


def test_file_size_limit_at_a_state_file_loses_nothing(tmp_path: Path) -> None:
    """Many small segments: the list of them grows too large. The log continues, logs
    a message, and the next opening has more to check."""
    code = """
    import logging
    told = []
    logging.getLogger("logstore").addFilter(lambda r: told.append(r.getMessage()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
    store = logstore.open(path)
    partition = new_partition(store, segment_bytes=300)
    for _ in range(600):
        append_one(partition, durable=True)
    assert any("File too large" in message for message in told), told
    assert list(partition.read()) == expected(1, 0, 600)
    os._exit(0)
    """
    done(code, tmp_path)
    assert (tmp_path / "orders-0" / ".logstore-state").stat().st_size <= 4_000
    with logstore.open(tmp_path) as store:
        assert {a.label for a in store.recovery_report.actions} <= {"index-rebuilt"}
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 600)
        assert append_one(store.topic("orders")[0]) == 600
    assert logstore.verify(tmp_path).ok


# -------------------------------------------------------------------------- open files


def test_too_few_descriptors_at_any_point_is_a_named_error(tmp_path: Path) -> None:
    """Each number of descriptors, from none to enough, for a whole life of a store: a
    failed call raises a named error, nothing leaks, no record is lost or altered."""
    write_store(tmp_path, 60, segment_bytes=500)
    code = """
    config = logstore.StoreConfig(max_open_files=8)

    def life():
        try:
            with logstore.open(path, config=config) as store:
                partition = store.topic("orders")[0]
                list(partition.read())
                append_one(partition)
                partition.roll()
                append_one(partition, durable=True)
                with logstore.open(path, read_only=True, config=config) as reader:
                    list(reader.topic("orders")[0].read())
            return True
        except logstore.StorageError as error:
            refused.add(error.errno)
            return False

    refused = set()
    life()
    idle = open_now()
    needed = None
    for free in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (idle + free, 4096))
        is_whole = life()
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        assert open_now() == idle, (free, open_now(), idle)
        with logstore.open(path) as store:
            records = list(store.topic("orders")[0].read())
        assert records == expected(1, 0, len(records)), free
        if is_whole:
            needed = free
            break
    assert refused == {24}, refused
    # Sealed segments of the writer and of the reader, and a few beside them.
    assert 0 < needed <= 2 * 8 + 8, needed
    print(len(records))
    """
    count = int(done(code, tmp_path))
    assert read_all(tmp_path) == expected(1, 0, count)
    assert logstore.verify(tmp_path).ok


def test_more_segments_are_deleted_than_files_may_be_open(tmp_path: Path) -> None:
    """By retention or by hand; a reader that has begun continues."""
    code = """
    store = logstore.open(path)
    partition = new_partition(store, segment_bytes=300)
    fill(partition, 800)
    reader = partition.read()
    begun = [next(reader) for _ in range(5)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now() + 20,) * 2)
    assert len(partition.segments) > 100
    assert partition.delete_before(790) == 790
    assert begun + list(reader) == expected(1, 0, 800)
    assert append_one(partition, durable=True) == 800
    store.close()
    """
    done(code, tmp_path)
    assert read_all(tmp_path) == expected(1, 790, 801)


def test_message_of_too_few_descriptors_says_so(tmp_path: Path) -> None:
    """It names the limit."""
    write_store(tmp_path, 10)
    code = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now() + 1, 4096))
    try:
        logstore.open(path)
    except logstore.StorageError as error:
        print(error)
    """
    assert "Too many open files" in done(code, tmp_path)


@pytest.mark.parametrize("read_only", [False, True])
def test_descriptors_of_many_partitions_are_what_the_documentation_says(
    tmp_path: Path, read_only: bool
) -> None:
    """Reading and appending hold at most `max_open_files`, whatever the number of
    partitions; the store itself holds two, or six if it is open for writing."""
    partitions, limit = 60, 8
    code = f"""
    config = logstore.StoreConfig(max_open_files={limit})
    with logstore.open(path) as store:
        for partition in store.create_topic("orders", {partitions}).partitions:
            fill(partition, 5)
            partition.roll()
    idle = open_now()
    with logstore.open(path, config=config, read_only={read_only}) as store:
        for partition in store.topic("orders").partitions:
            list(partition.read())
        read = open_now() - idle
        if not {read_only}:
            for partition in store.topic("orders").partitions:
                append_one(partition)
        print(read, open_now() - idle)
    assert open_now() == idle
    """
    read, held = map(int, done(code, tmp_path).split())
    of_store = 2 if read_only else 6
    assert read <= limit + of_store
    assert held <= limit + of_store
