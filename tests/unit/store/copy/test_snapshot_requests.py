"""Requests for a snapshot, whose owner fails, closes the store, or is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open
from logstore.store.context import StoreContext
from logstore.store.copy import snapshot_requests
from logstore.store.copy.snapshot import SnapshotReport, make_snapshot


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A closed store with some records."""
    with logstore.open(tmp_path / "source") as store:
        store.create_topic("t").append_many([b"%d" % number for number in range(10)])
    return tmp_path / "source"


@pytest.fixture
def always_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """One owner follows the other, without a gap that a requester could observe."""

    def writer_of(root: Directory) -> int:
        del root
        return 0  # unknown

    monkeypatch.setattr(snapshot_requests, "writer_of", writer_of)


def _asked(source: Path) -> SnapshotReport:
    """The report of a snapshot that another open store is asked for."""
    with logstore.open(source, read_only=True) as store:
        return store.snapshot(source.parent / "copy")


def _values(path: Path) -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [record.value for record in store.topic("t")[0].read()]


def test_request_whose_owner_fails_is_answered_with_an_error(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever error ends the work of an owner, the requester does not wait for it."""

    def full(*args: object) -> SnapshotReport:
        raise MemoryError

    with logstore.open(source):
        monkeypatch.setattr(snapshot_requests, "make_snapshot", full)
        with pytest.raises(logstore.StorageError, match=r"was made: MemoryError"):
            _asked(source)
        monkeypatch.undo()
        assert _asked(source).partitions == 1
    assert not (source / layout.SNAPSHOT_REQUEST).exists()


def test_request_whose_answer_cannot_be_written_is_answered_with_an_error(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the report as lost: it has no room in the request, and the
    snapshot exists."""
    say = snapshot_requests._OpenRequest.say

    def say_little(self: snapshot_requests._OpenRequest, value: dict[str, int]) -> None:
        if "report" in value:
            raise OSError(28, os.strerror(28))
        say(self, value)

    monkeypatch.setattr(snapshot_requests._OpenRequest, "say", say_little)
    with (
        logstore.open(source),
        pytest.raises(logstore.StorageError, match="was made, but its report was lost"),
    ):
        _asked(source)
    assert _values(source.parent / "copy") == _values(source)


def test_request_has_room_for_its_answer_on_a_full_disk(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space is taken before the owner begins, and again as lines are written."""
    seen: list[int] = []
    make = make_snapshot

    def look(*args: object) -> SnapshotReport:
        info = (source / layout.SNAPSHOT_REQUEST).stat()
        seen.append(info.st_blocks * 512 - info.st_size)
        return make(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_requests, "make_snapshot", look)
    with logstore.open(source):
        _asked(source)
    assert seen[0] >= snapshot_requests._ROOM_BYTES - 4096


@pytest.mark.usefixtures("always_owned")
def test_request_whose_owner_closes_the_store_goes_to_the_next_one(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that closes the store, and opens it again at once, answers later."""
    make = make_snapshot
    stores = [logstore.open(source)]
    contexts: list[StoreContext] = []

    def reopen() -> None:
        stores[0].close()
        stores.append(logstore.open(source))

    thread = threading.Thread(target=reopen)

    def interrupted(context: StoreContext, *args: object) -> SnapshotReport:
        contexts.append(context)
        if len(contexts) == 1:
            thread.start()
            while True:
                context.check_open()
        return make(context, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_requests, "make_snapshot", interrupted)
    try:
        assert _asked(source).partitions == 1
    finally:
        thread.join()
        stores[-1].close()
    assert len(contexts) == 2
    assert _values(source.parent / "copy") == _values(source)


_KILLED = """
import os, sys, logstore
from logstore.store.copy import snapshot_requests

def killed(*args):
    with open(os.path.join(sys.argv[1], ".logstore-request-snapshot"), "ab") as file:
        file.write(b'{"progr')  # a part of a line
    os._exit(9)

snapshot_requests.make_snapshot = killed
store = logstore.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("always_owned")
def test_request_whose_owner_is_killed_is_begun_again_by_the_next_one(
    source: Path,
) -> None:
    """The next owner finds the request, also after a part of a line."""
    owners: list[logstore.Store] = []
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()

        def follow() -> None:
            owner.wait()
            owners.append(logstore.open(source))

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            assert _asked(source).partitions == 1
        finally:
            thread.join()
            owners[0].close()
        assert owner.returncode == 9
    assert _values(source.parent / "copy") == _values(source)


@pytest.mark.usefixtures("always_owned")
def test_request_whose_owner_is_killed_is_refused_if_the_next_one_does_not_answer(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker, or an earlier version, has the store after an owner that had begun."""
    monkeypatch.setattr(snapshot_requests, "_BEGIN_S", 0.2)
    monkeypatch.setattr(snapshot_requests.SnapshotServer, "start", lambda self: None)
    requested = snapshot_requests._requested

    def begun(*args: object) -> object:
        file = requested(*args)  # type: ignore[arg-type]
        with (source / layout.SNAPSHOT_REQUEST).open("ab") as request:
            request.write(b'{"begun": 1}\n')
        return file

    monkeypatch.setattr(snapshot_requests, "_requested", begun)
    with (
        logstore.open(source),
        pytest.raises(logstore.StoreLockedError, match="has not answered"),
    ):
        _asked(source)


def test_request_of_another_version_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner ignores a request that it may misunderstand."""
    dumps = json.dumps

    def newer(value: dict[str, object]) -> str:
        return dumps({**value, "version": 2} if "version" in value else value)

    monkeypatch.setattr(json, "dumps", newer)
    with (
        logstore.open(source),
        pytest.raises(logstore.StorageError, match="its version is 2"),
    ):
        _asked(source)
    assert not (source.parent / "copy").exists()


def test_request_that_is_given_up_is_begun_by_no_owner(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that has seen the request before makes no snapshot after the requester
    has got the error."""
    files = Files()
    begun: list[bool] = []

    def unanswered(root: Directory, locked: logstore.StoreLockedError) -> Exception:
        fd = root.open(layout.SNAPSHOT_REQUEST, write=True, keep_links=True)
        file = held_open(files, fd)
        begun.append(snapshot_requests._OpenRequest(root, file, 0).begin())
        return locked

    monkeypatch.setattr(snapshot_requests, "_BEGIN_S", 0.2)
    monkeypatch.setattr(snapshot_requests, "_unanswered", unanswered)
    monkeypatch.setattr(snapshot_requests.SnapshotServer, "start", lambda self: None)
    with logstore.open(source), pytest.raises(logstore.StoreLockedError):
        _asked(source)
    assert begun == [False]


@pytest.mark.usefixtures("always_owned")
def test_request_that_is_begun_at_the_last_moment_is_waited_for(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer counts, also if the requester was about to give up."""
    monkeypatch.setattr(snapshot_requests, "_BEGIN_S", 2.0)
    begin = snapshot_requests._OpenRequest.begin

    def slow(self: snapshot_requests._OpenRequest) -> bool:
        is_mine = begin(self)
        time.sleep(2.5)
        return is_mine

    monkeypatch.setattr(snapshot_requests._OpenRequest, "begin", slow)
    with logstore.open(source):
        assert _asked(source).partitions == 1


def test_request_is_not_held_by_a_child_that_its_owner_forks(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock belongs to the owner alone: it ends with it, though a child survives."""
    pids: list[int] = []
    free: list[bool] = []

    def forking(*args: object) -> SnapshotReport:
        if pids:
            raise MemoryError  # it is tried again
        read, write = os.pipe()
        alive, lives = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(write)
            os.write(lives, b"x")
            os.read(read, 1)
            os._exit(0)
        pids.append(pid)
        os.read(alive, 1)
        (server,) = servers
        assert server._serving is not None
        server._serving.close()  # as the end of the process
        fd = os.open(source / layout.SNAPSHOT_REQUEST, os.O_RDWR)
        free.append(not Files().locked_bytes(fd, 1, 2))
        for one in (fd, read, write, alive, lives):
            os.close(one)
        raise MemoryError

    servers: list[snapshot_requests.SnapshotServer] = []
    start = snapshot_requests.SnapshotServer.start

    def started(self: snapshot_requests.SnapshotServer) -> None:
        servers.append(self)
        start(self)

    monkeypatch.setattr(snapshot_requests.SnapshotServer, "start", started)
    monkeypatch.setattr(snapshot_requests, "make_snapshot", forking)
    monkeypatch.setattr(snapshot_requests, "_BEGIN_S", 0.5)
    with logstore.open(source), pytest.raises(logstore.LogStoreError):
        _asked(source)
    assert free[0]
    for pid in pids:
        os.waitpid(pid, 0)
