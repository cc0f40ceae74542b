"""A store never leaves its directory: every file is reached through a descriptor of its
directory, no link is followed, no socket opened, no process started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logstore
from support.damage import logs_in
from support.values import append_one, append_records, expected, fill, new_partition
from support.whole_life import BEGIN, END, FORBIDDEN

HERE = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
    "PYTHONDONTWRITEBYTECODE": "1",
}
AUDIT = "import sys, pathlib\nfrom support.whole_life import audited\n"


def run(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=200,
    )


def run_audited(tmp_path: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{AUDIT}{before}\naudited(pathlib.Path(sys.argv[1]) / 'data')"
    return run(sys.executable, "-c", code, str(tmp_path))


def test_whole_life_stays_inside_the_store(tmp_path: Path) -> None:
    """Audit events of the interpreter, in one process from creation to export."""
    done = run_audited(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


PLANTED = {
    "follows links": "import os, logstore.io.files as f\nf._FLAGS &= ~os.O_NOFOLLOW",
    "whole path": (
        "import os, logstore.io.directory as f\n"
        "f.Directory.open = lambda s, n, write=False: os.open(s.path_of(n), os.O_RDWR)"
    ),
    "unlink by path": (
        "import os, logstore.io.directory as f\n"
        "f.Directory.unlink = lambda s, n, missing_ok=False: os.unlink(s.path_of(n))"
    ),
    "rename by path": (
        "import os, logstore.io.directory as f\n"
        "f.Directory.rename = lambda s, a, b: os.rename(s.path_of(a), s.path_of(b))"
    ),
    "socket": (
        "import socket, logstore.store.store as s\n"
        "o = s.Store.create_topic\n"
        "s.Store.create_topic = lambda *a, **k: (socket.socket(), o(*a, **k))[1]"
    ),
    "process": (
        "import os, logstore.store.store as s\n"
        "o = s.Store.create_topic\n"
        "s.Store.create_topic = lambda *a, **k: (os.system('true'), o(*a, **k))[1]"
    ),
    "pickle": (
        "import pickle, logstore.store.store as s\n"
        "o, p = s.Store.create_topic, pickle.dumps(len)\n"
        "s.Store.create_topic = lambda *a, **k: (pickle.loads(p), o(*a, **k))[1]"
    ),
}


@pytest.mark.parametrize("before", PLANTED.values(), ids=PLANTED)
def test_audit_notices_each_way_out(tmp_path: Path, before: str) -> None:
    """The audit hook must be seen to fail."""
    done = run_audited(tmp_path, before)
    assert done.returncode == 3, done.stderr[-3000:]
    assert "not allowed: " in done.stderr


def test_import_opens_no_socket_and_starts_nothing() -> None:
    """Only Python's own files are read."""
    code = (
        "import sys, os\n"
        f"bad = {FORBIDDEN!r}\n"
        "def hook(event, args):\n"
        "    ours = ('ctypes', 'marshal')\n"
        "    if event.startswith(bad) and not event.startswith(ours):\n"
        "        os.write(2, event.encode())\n"
        "        os._exit(3)\n"
        "sys.addaudithook(hook)\n"
        "import logstore, logstore.cli.main\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_whole_life_in_an_empty_network_namespace(tmp_path: Path) -> None:
    """The namespace does not even have the loopback interface."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    for options in (["-n"], ["-r", "-n"]):
        if run(unshare, *options, "true").returncode == 0:
            break
    else:
        pytest.skip("network namespaces are not permitted here")
    life = [sys.executable, "-m", "support.whole_life", str(tmp_path)]
    done = run(unshare, *options, *life)
    assert done.returncode == 0, done.stderr[-3000:]


# ------------------------------------------------------------------- system calls

_CALL = re.compile(
    r'(?:^|\s)(\w+)\((AT_FDCWD|\d+)(?:<[^>]*>)?, "((?:[^"\\]|\\.)*)"(.*)'
)
_NETWORK = re.compile(r"(?:^|\s)(socket|connect|bind|sendto|accept4?|listen)\(")


def strays(trace: str, place: str) -> list[str]:
    """Lines of a trace that lead out of a store, or into one by a whole path."""
    found = []
    own = False
    for line in trace.splitlines():
        if BEGIN in line or END in line:
            own = BEGIN in line
            continue
        if own:
            continue
        if _NETWORK.search(line) or "execve(" in line:
            found.append(line)
        call = _CALL.search(line)
        if call is None:
            continue
        name, where, path, rest = call.groups()
        if "out.jsonl" in path:
            continue
        if path.startswith(place):
            # The directory of a store or a partition is opened, or its type is queried.
            if name == "openat" and "O_DIRECTORY" in rest:
                continue
            if name in ("newfstatat", "statx", "readlink", "mkdirat"):
                continue
            if name == "openat" and path == place:  # to sync it
                continue
            found.append(line)
        elif not path.startswith("/") and where != "AT_FDCWD" and name == "openat":
            wanted = ["O_NOFOLLOW", "O_CLOEXEC"]
            wanted += ["O_EXCL"] if "O_CREAT" in rest else []
            if not all(flag in rest for flag in wanted):
                found.append(line)
    return found


def test_trace_reader_notices_each_way_out() -> None:
    """Lines in the format of strace."""
    place = "/tmp/place"
    for line in (
        '1 openat(AT_FDCWD, "/tmp/place/data/x.log", O_RDONLY|O_CLOEXEC) = 3',
        '1 openat(5, "x.log", O_RDONLY|O_CLOEXEC) = 3',
        '1 openat(5, "x.log", O_RDONLY|O_NOFOLLOW) = 3',
        '1 openat(5, "x", O_RDWR|O_CREAT|O_NOFOLLOW|O_CLOEXEC, 0600) = 3',
        '1 unlinkat(AT_FDCWD, "/tmp/place/data/x", 0) = 0',
        '1 renameat(AT_FDCWD, "/tmp/place/a", AT_FDCWD, "/tmp/place/b") = 0',
        "1 socket(AF_INET, SOCK_STREAM, 0) = 3",
        '1 execve("/bin/sh", ["sh"], 0x7ffe) = 0',
    ):
        assert strays(line, place) == [line]
    for line in (
        '1 openat(5, "x", O_RDWR|O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC, 0600) = 3',
        '1 openat(AT_FDCWD, "/tmp/place/data", O_RDONLY|O_DIRECTORY|O_CLOEXEC) = 3',
        '1 openat(AT_FDCWD, "/usr/lib/x.py", O_RDONLY|O_CLOEXEC) = 3',
        '1 renameat(5, "a.tmp", 5, "a") = 0',
    ):
        assert strays(line, place) == []


def test_system_calls_of_a_whole_life(tmp_path: Path) -> None:
    """System calls in a trace: `openat` with O_NOFOLLOW, O_CLOEXEC, O_EXCL; no
    socket."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace")
    trace = tmp_path / "trace"
    place = tmp_path / "place"
    place.mkdir()
    life = [sys.executable, "-m", "support.whole_life", str(place)]
    done = run(
        strace, "-f", "-qq", "-o", str(trace), "-e", "trace=%file,%network", *life
    )
    if done.returncode != 0 and "ptrace" in done.stderr:
        pytest.skip("strace is not permitted here")
    assert done.returncode == 0, done.stderr[-3000:]
    text = trace.read_text(errors="replace")
    # The first line is the start of the program itself.
    _, _, text = text.partition("\n")
    assert text.count("renameat") > 50
    assert strays(text, str(place)) == []


# ---------------------------------------------------------------------- swapped names


@pytest.mark.parametrize("what", ["segment", "directory", "state", "lock"])
def test_name_swapped_for_a_link_under_a_working_store(
    tmp_path: Path, what: str
) -> None:
    """A thread puts links in place of files and directories, as fast as it can: nothing
    outside is changed, and calls that fail raise named errors."""
    store = tmp_path / "data"
    outside = tmp_path / "outside"
    outside.mkdir()
    with logstore.open(store) as opened:
        fill(new_partition(opened, segment_bytes=400, file_delete_delay_ms=0), 30)
    directory = store / "orders-0"
    # The same names outside: a followed link would find a file to write into.
    shutil.copytree(directory, outside / "orders-0")
    target = {
        "segment": logs_in(directory)[-1],
        "directory": directory,
        "state": directory / ".logstore-state",
        "lock": store / ".lock",
    }[what]
    twin = outside / target.relative_to(store)
    if what == "lock":
        twin.write_bytes(b"")
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    stop = threading.Event()
    swaps = [0]

    def swap() -> None:
        aside = target.with_name("aside")
        while not stop.is_set():
            with contextlib.suppress(OSError):
                target.rename(aside)
                target.symlink_to(twin)
            stop.wait(0.0005)
            with contextlib.suppress(OSError):
                if target.is_symlink():
                    target.unlink()
                aside.rename(target)
                swaps[0] += 1
            stop.wait(0.0005)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for round_ in range(40):
            with contextlib.suppress(logstore.LogStoreError):
                with logstore.open(store) as opened:
                    partition = opened.topic("orders")[0]
                    for _ in range(10):
                        append_one(partition)
                    append_records(partition, 10)
                    partition.flush()
                    partition.roll()
                    list(partition.read())
                    if round_ % 3 == 0:
                        partition.delete_before(partition.end_offset - 5)
            with contextlib.suppress(logstore.LogStoreError):
                logstore.verify(store)
            with contextlib.suppress(logstore.LogStoreError):
                logstore.rebuild_index(store)
    finally:
        stop.set()
        thread.join()
    assert swaps[0] > 0
    now = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    assert now == before


def test_partition_directory_swapped_while_it_is_open(tmp_path: Path) -> None:
    """A link at the path of an open partition is not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with logstore.open(tmp_path / "data") as opened:
        partition = new_partition(opened)
        fill(partition, 5)
        directory = tmp_path / "data" / "orders-0"
        directory.rename(tmp_path / "moved")
        directory.symlink_to(outside)
        with pytest.raises(logstore.LogStoreError):
            for _ in range(3):
                append_one(partition)
                partition.roll()
        directory.unlink()
        (tmp_path / "moved").rename(directory)
    assert list(outside.iterdir()) == []
    with logstore.open(tmp_path / "data", read_only=True) as opened:
        found = list(opened.topic("orders")[0].read())
        assert found == expected(1, 0, len(found))
        assert len(found) >= 5
