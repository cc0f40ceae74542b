"""Child processes of a writer: forked, spawned by multiprocessing, or by exec."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from support.children import append_next, descriptors_in, look_around
from support.values import append_one, expected, fill, new_partition, read_all

METHODS = multiprocessing.get_all_start_methods()


# ------------------------------------------------------------------- multiprocessing


@pytest.mark.parametrize("method", METHODS)
def test_worker_of_each_start_method_reads_and_may_not_write(
    tmp_path: Path, method: str
) -> None:
    """The worker gets the path: it is refused as a writer while this process is one,
    reads the records, and does not affect this process."""
    assert set(METHODS) == {"fork", "spawn", "forkserver"}
    context = multiprocessing.get_context(method)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 10)
        with context.Pool(2) as pool:
            results = pool.map(look_around, [tmp_path] * 4)
            for found in results:
                assert found["writing"] == os.getpid()
                assert found["values"] == [r.value for r in expected(1, 0, 10)]
                # A fork has copies of open descriptors; a spawned child has nothing.
                assert bool(found["inherited"]) == (method == "fork")
            assert append_one(partition, durable=True) == 10
            store.close()
            # Each worker may be the next writer.
            assert [pool.apply(append_next, (tmp_path,)) for _ in range(3)] == [
                11, 12, 13,
            ]  # fmt: skip
    assert read_all(tmp_path) == expected(1, 0, 14)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("what", ["store", "topic", "partition", "reader"])
def test_open_store_is_not_sent_to_a_worker(
    tmp_path: Path, method: str, what: str
) -> None:
    """A copy would be a second writer without a lock: making one is a TypeError, and
    costs this process nothing."""
    context = multiprocessing.get_context(method)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 10)
        thing = {
            "store": store,
            "topic": store.topic("orders"),
            "partition": partition,
            "reader": partition.read(),
        }[what]
        with pytest.raises(TypeError):
            context.Process(target=print, args=(thing,)).start()
        assert append_one(partition, durable=True) == 10
    assert read_all(tmp_path) == expected(1, 0, 11)


# ------------------------------------------------------------------------------- fork

PRELUDE = """
import gc, os, signal, subprocess, sys
from pathlib import Path
import logstore
from support.children import *
from support.damage import snapshot_of
from support.values import *
path = Path(sys.argv[1])
store = logstore.open(path)
partition = new_partition(store)
fill(partition, 10)
"""


@contextlib.contextmanager
def script(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in another process that continues with `code`, killed in the end."""
    tests = Path(__file__).parents[1]
    source = Path(logstore.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"},
    ) as writer:
        try:
            yield writer
        finally:
            writer.kill()


@pytest.mark.parametrize(
    "ending",
    [
        "os._exit(0)",
        "sys.exit(0)",
        "store.close(); sys.exit(0)",
        "del store, partition; gc.collect(); sys.exit(0)",
    ],
)
def test_end_of_a_forked_child_changes_nothing(tmp_path: Path, ending: str) -> None:
    """Appended records that are not synced yet stay with the parent, no file is written
    twice, and no mark of a clean stop is left, however the child ends."""
    code = f"""
    before = snapshot_of(path)
    pid = os.fork()
    if pid == 0:
        {ending}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert snapshot_of(path) == before
    assert append_one(partition, durable=True) == 10
    store.close()
    print("done")
    """
    with script(code, tmp_path) as writer:
        told, _ = writer.communicate(timeout=60)
    assert (told, writer.returncode) == ("done\n", 0)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 11)


def test_store_that_is_forgotten_while_the_handlers_of_a_fork_run_changes_nothing(
    tmp_path: Path,
) -> None:
    """The collector may run before logstore's fork handler, which is not the first one
    in the child: the child does not wait for threads that it does not have, and closes
    nothing."""
    code = f"""
    import os, sys
    first = []
    os.register_at_fork(after_in_child=lambda: first and first.pop().close())
    import logstore
    store = logstore.open({str(tmp_path)!r})
    partition = store.create_topic("orders", 1)[0]
    partition.append(b"before")
    first.append(store)
    pid = os.fork()
    if pid == 0:
        os._exit(bool(first))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again = [sys.executable, "-c", "import logstore; logstore.open({str(tmp_path)!r})"]
    import subprocess
    assert "StoreLockedError" in subprocess.run(
        again, stderr=subprocess.PIPE, text=True
    ).stderr
    partition.append(b"behind", durable=True)
    store.close()
    print("done")
    """
    source = Path(logstore.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(source)},
        check=False,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0)
    with logstore.open(tmp_path) as store:
        assert [r.value for r in store.topic("orders")[0].read()] == [
            b"before",
            b"behind",
        ]


def next_writer(path: Path, writer: subprocess.Popen[str]) -> None:
    """Kill a writer that has said it is ready; another one opens at once."""
    with pytest.raises(logstore.StoreLockedError):
        logstore.open(path)
    writer.send_signal(signal.SIGKILL)
    writer.wait(30)
    with logstore.open(path) as store:
        assert append_one(store.topic("orders")[0], durable=True) == 10
    assert read_all(path) == expected(1, 0, 11)


def test_forked_child_that_outlives_the_writer_does_not_keep_the_lock(
    tmp_path: Path,
) -> None:
    """The child has the descriptors, but not the lock, and may not use them."""
    code = """
    if os.fork() == 0:
        assert descriptors_in(path)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            append_one(partition)
        except logstore.errors.ForkedError:
            print("refused", flush=True)
        os._exit(0)
    signal.pause()
    """
    with script(code, tmp_path) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        next_writer(tmp_path, writer)
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "refused\n"
    assert read_all(tmp_path) == expected(1, 0, 11)


# ------------------------------------------------------------------------------- exec


def test_program_that_the_writer_started_has_nothing_of_the_store(
    tmp_path: Path,
) -> None:
    """Even a program that inherits all descriptors which are not closed on exec, and
    outlives the writer: none belongs to the store, and the lock is free."""
    code = """
    reader = partition.read()
    next(reader)
    assert descriptors_in(path)
    code = "from support.children import *; import sys;" \\
        "print(descriptors_in(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    subprocess.Popen([sys.executable, "-c", code, str(path)], close_fds=False)
    signal.pause()
    """
    with script(code, tmp_path) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "[]\n"
        next_writer(tmp_path, writer)
    assert descriptors_in(tmp_path) == []
