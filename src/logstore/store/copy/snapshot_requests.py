"""Requests for a snapshot, by processes without the store's lock.

    requester                                  owner
    links a request to its one name            sees the name, and reads the request
    waits for lines that are appended to it    appends: begun, how far, and the end
    returns, or raises the error               removes the name

The requester holds a lock (`flock`) on its request: without one it is left over. The
owner holds one on a byte of it from before it has begun until it has ended: without it
the owner was killed, and the next one begins again. A requester that waits no longer
takes the lock on the byte, too, and then no owner begins. A request is not synced,
because it ends with its requester. Every owner looks for one, twice a second. An owner
that does not begin within some seconds is a broker, or a process with an earlier
version.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    LogStoreError,
    StorageError,
    StoreLockedError,
    storage_errors,
)
from logstore.io.checkpoint.plain_errors import error_of, plain_error
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open
from logstore.io.filesystem import prepare_beside
from logstore.io.layout import SNAPSHOT_REQUEST, TopicPartition
from logstore.io.lock import writer_of
from logstore.io.wakeups import ServiceThread, Wakeups
from logstore.store.context import StoreContext
from logstore.store.copy.snapshot import (
    SnapshotProgress,
    SnapshotReport,
    SnapshotTarget,
    check_target,
    make_snapshot,
)
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["SnapshotServer", "snapshot_elsewhere"]

# How often an owner looks for a request, and a requester for an answer.
_LOOK_S: Final = 0.5
_POLL_S: Final = 0.02
# An owner that has not begun after this time does not know of snapshots.
_BEGIN_S: Final = 5.0
_PROGRESS_S: Final = 0.2
_BYTES_MAX: Final = 1 << 20
_VERSION: Final = 1
# Disk space that a request has ahead, so that a full disk does not prevent an answer.
_ROOM_BYTES: Final = 1 << 16
# The byte that an owner locks, or a requester that waits no longer.
_SERVED: Final = 1


class _Owner(Protocol):
    """A store that is open for writing."""

    def __enter__(self) -> _Owner: ...

    def __exit__(self, *error: Any) -> None: ...

    def snapshot(
        self,
        path: str,
        *,
        links: bool,
        on_progress: Callable[[SnapshotProgress], None] | None,
    ) -> SnapshotReport: ...


# ------------------------------------------------------------------ of the owner


def _log_error(error: BaseException) -> None:
    logger.exception("a snapshot cannot be made", error=error)


class SnapshotServer:
    """Makes the snapshots that other processes ask for, in a thread, which keeps no
    store open while it waits."""

    def __init__(
        self, context: StoreContext, topics: OpenTopics, publisher: Publisher
    ) -> None:
        self._context = context
        self._topics = topics
        self._publisher = publisher
        root = context.root

        def sleep(wakeups: Wakeups) -> None:
            wakeups.wait(_LOOK_S)

        self._thread = ServiceThread(
            root,
            "snapshots",
            self._look,
            _log_error,
            _LOOK_S,
            sleep,
            sleeps_first=True,
        )
        # The request that a snapshot is made for.
        self._serving: native.OpenFile | None = None

    def start(self) -> None:
        """Look for requests from now on. Without a thread, they are not answered."""
        if type(self._context.files) is not Files:
            return  # tests make each call by themselves
        try:
            self._thread.start()
        except StorageError as error:
            logger.warning(
                "no thread for snapshots that other processes request: %s", error
            )

    def stop(self) -> None:
        """End the thread; a snapshot that it makes ends with `StoreClosedError`. May be
        called again."""
        self._thread.stop()

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there, and the lock of its
        request belongs to the parent."""
        self._thread.abandon()
        if self._serving is not None:
            self._serving.close()

    def _look(self) -> None:
        if self._context.is_closed:
            return
        root, files = self._context.root, self._context.files
        if not root.exists(SNAPSHOT_REQUEST):
            return
        try:
            file = held_open(
                files, root.open(SNAPSHOT_REQUEST, write=True, keep_links=True)
            )
        except FileNotFoundError:
            return
        if files.lock_file(file.fd):
            # It is left over. The name may be that of another one by now.
            _unlink_own(root, file.fd)
            return
        info = files.stat(file.fd)
        if info.uid in (files.user(), -1):
            self._serve(_OpenRequest(root, file, info.size))

    def _serve(self, request: _OpenRequest) -> None:
        """Make the snapshot of a request. Another user may not ask: this process has
        other rights than that user's."""
        context = self._context
        self._serving = request.file
        if not request.begin():
            self._serving = None
            return
        outcome = "no snapshot was made"
        try:
            target = request.target()
            request.say({"begun": os.getpid()})
            report = make_snapshot(context, self._topics, self._publisher, target)
            outcome = "the snapshot was made, but its report was lost"
            request.say({"report": report._replace(damaged=())._asdict(),
                         "damaged": [list(key) for key in report.damaged]})  # fmt: skip
        except LogStoreError as error:
            if not context.is_closed:  # else the requester takes the lock
                request.say({"error": plain_error(error)})
        except BaseException as error:
            request.refuse(f"{outcome}: {error!r}")
            raise
        finally:
            _unlink_own(context.root, request.file.fd)
            self._serving = None


class _OpenRequest:
    """A request that an owner answers."""

    def __init__(self, root: Directory, file: native.OpenFile, size: int) -> None:
        self._root = root
        self.file = file
        self._end = size
        self._said = 0.0

    def begin(self) -> bool:
        """Lock it until its file is closed; False: it is not waited for any longer, or
        another owner serves it."""
        return self._root.files.lock_byte(self.file.fd, _SERVED)

    def target(self) -> SnapshotTarget:
        """The snapshot to be made.

        Raises:
            StorageError: it cannot be read.
        """
        data = bytearray(min(self._end, _BYTES_MAX))
        self._root.files.read(self.file.fd, data, 0)
        # An owner that was killed may have left a part of a line.
        self._end = data.rfind(b"\n") + 1
        try:
            value = json.loads(bytes(data).split(b"\n")[0])
            if value["version"] != _VERSION:
                raise ValueError(f"its version is {value['version']}")
            path, links = value["path"], value["links"]
            if not isinstance(path, str) or not os.path.isabs(path):
                raise ValueError("it has no absolute path")
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"a request for a snapshot cannot be read: {error!r}",
                path=self._root.path_of(SNAPSHOT_REQUEST),
                action="read",
            ) from error
        return SnapshotTarget(path, bool(links), self._progress)

    def _progress(self, progress: SnapshotProgress) -> None:
        now = time.monotonic()
        if now - self._said < _PROGRESS_S:
            return
        self._said = now
        if self._root.files.lock_file(self.file.fd):
            raise StorageError(
                "the process that asked for a snapshot has ended",
                path=self._root.path,
                action="make a snapshot of",
            )
        # Without room the requester gets no report of progress: it waits for the end.
        with contextlib.suppress(OSError):
            self._root.files.reserve(self.file.fd, self._end, _ROOM_BYTES)
            self.say({"progress": list(progress)})

    def refuse(self, why: str) -> None:
        """Report an error to the requester, if that is possible."""
        path = self._root.path
        message = f"a snapshot of {path} was asked for: {why}"
        error = StorageError(message, path=path, action="make a snapshot of")
        with contextlib.suppress(OSError):
            self.say({"error": plain_error(error)})

    def say(self, value: dict[str, Any]) -> None:
        """Append a line."""
        data = json.dumps(value).encode() + b"\n"
        self._root.files.write(self.file.fd, data, self._end)
        self._end += len(data)


def _unlink_own(root: Directory, fd: int) -> None:
    """Remove a request, if it still has its name."""
    with contextlib.suppress(OSError):
        if _has_name(root, fd):
            root.unlink(SNAPSHOT_REQUEST, missing_ok=True)


def _has_name(root: Directory, fd: int) -> bool:
    """Whether a request has its name: neither answered nor given up."""
    try:
        return root.stat(SNAPSHOT_REQUEST).inode == root.files.stat(fd).inode
    except FileNotFoundError:
        return False


# ------------------------------------------------------------------ of the requester


def snapshot_elsewhere(
    context: StoreContext, target: SnapshotTarget, open_owner: Callable[[], _Owner]
) -> SnapshotReport:
    """A snapshot for a process that has the store open for reading: with the writer's
    lock, if it is free; else its owner makes it.

    Raises: as `Store.snapshot`, and as opening the store for writing.
    """
    check_target(context.files, context.path, target.path)
    while True:
        try:
            owner = open_owner()
        except StoreLockedError as error:
            report = _ask(context, target, error)
            if report is not None:
                return report
            continue
        with owner:
            path, links, on_progress = target
            return owner.snapshot(path, links=links, on_progress=on_progress)


def _ask(
    context: StoreContext, target: SnapshotTarget, locked: StoreLockedError
) -> SnapshotReport | None:
    """Ask the owner of the store; None: it has ended without an answer."""
    root, files = context.root, context.files
    with storage_errors("ask for a snapshot of", root.path, "No snapshot was made."):
        prepare_beside(root, context.store_config)
        file = _requested(root, target, locked)
        if file is None:
            return None
        try:
            return _answered(root, file, target, locked)
        finally:
            _unlink_own(root, file.fd)
            files.unlock_file(file.fd)


def _requested(
    root: Directory, target: SnapshotTarget, locked: StoreLockedError
) -> native.OpenFile | None:
    """The request, which is made when the one before is answered; None: there is no
    owner any more."""
    files = root.files
    temporary = f"{SNAPSHOT_REQUEST}.{os.getpid()}-{os.urandom(8).hex()}.tmp"
    file = held_open(files, root.create(temporary))
    try:
        path, links = target.path, target.links
        text = json.dumps({"version": _VERSION, "path": path, "links": links})
        files.reserve(file.fd, 0, _ROOM_BYTES)
        files.write(file.fd, text.encode() + b"\n", 0)
        files.lock_file(file.fd)
        deadline = time.monotonic() + _BEGIN_S
        while True:
            try:
                with root.use() as fd:
                    files.link(fd, temporary, fd, SNAPSHOT_REQUEST)
                return file
            except FileExistsError:
                _remove_left_over(root)
            if writer_of(root) is None:
                return None
            if time.monotonic() > deadline and not _is_begun(root):
                raise _unanswered(root, locked)
            time.sleep(_POLL_S)
    finally:
        root.unlink(temporary, missing_ok=True)


def _remove_left_over(root: Directory) -> None:
    """Remove a request whose requester has ended."""
    with contextlib.suppress(FileNotFoundError), root.opened(SNAPSHOT_REQUEST) as fd:
        if root.files.lock_file(fd):
            _unlink_own(root, fd)


def _is_begun(root: Directory) -> bool:
    """Whether the owner has begun to answer another request."""
    try:
        return root.read_file(SNAPSHOT_REQUEST).count(b"\n") > 1
    except FileNotFoundError:
        return True


def _answered(
    root: Directory,
    file: native.OpenFile,
    target: SnapshotTarget,
    locked: StoreLockedError,
) -> SnapshotReport | None:
    deadline, is_begun = time.monotonic() + _BEGIN_S, False
    count = 1  # the first line is the request itself
    while True:
        values = _values(root.files, file.fd, count)
        for value in values:
            count, is_begun = count + 1, True
            if "report" in value:
                keys = tuple(TopicPartition(*key) for key in value["damaged"])
                return SnapshotReport(**{**value["report"], "damaged": keys})
            if "error" in value:
                raise error_of(value["error"])
            if "progress" in value and target.on_progress is not None:
                target.on_progress(SnapshotProgress(*value["progress"]))
        is_served = root.files.locked_bytes(file.fd, _SERVED, _SERVED + 1)
        has_ended = writer_of(root) is None or (
            is_begun and not _has_name(root, file.fd)
        )
        if is_begun and is_served and not has_ended:
            deadline = time.monotonic() + _BEGIN_S  # if it is killed: for the next one
        is_late = time.monotonic() > deadline
        if has_ended or is_late:
            is_over = root.files.lock_byte(file.fd, _SERVED)
            if _values(root.files, file.fd, count):
                # Lines that it wrote at the end, or it has begun just now.
                root.files.unlock_byte(file.fd, _SERVED)
                continue
            if has_ended and (is_over or is_late):
                return None
            if is_over:
                raise _unanswered(root, locked)
        time.sleep(_POLL_S)


def _values(files: Files, fd: int, count: int) -> list[dict[str, Any]]:
    """The values of the whole lines after the first `count`."""
    data = bytearray(files.size(fd))
    files.read(fd, data, 0)
    return [json.loads(line) for line in bytes(data).split(b"\n")[count:-1]]


def _unanswered(root: Directory, locked: StoreLockedError) -> StoreLockedError:
    return StoreLockedError(
        f"store {root.path} is open for writing in process {locked.holder_pid}, which "
        f"has not answered a request for a snapshot in {_BEGIN_S:.0f} s: it is a "
        f"broker, or uses an earlier version of logstore, or belongs to another user. "
        f"Nothing was written. Call Store.snapshot in that process, or stop it",
        path=root.path,
        holder_pid=locked.holder_pid,
    )
