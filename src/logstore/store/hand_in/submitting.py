"""Hand-in of what was staged (`Store.submit`): a request is a file in the root of the
store, which the owner answers and unlinks (its side: `owner`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore.errors import (
    CorruptCheckpointError,
    PublicationTimeoutError,
    StoreLockedError,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint.requests import (
    Answer,
    RequestFile,
    pack_request,
    request_name,
    unique_part,
)
from logstore.io.directory import Directory
from logstore.io.lock import holder_of
from logstore.io.lock_record import state_of
from logstore.io.wakeups import Wakeups, Watch
from logstore.store.hand_in.own_owner import waits_for_itself
from logstore.store.publication.publication import (
    Publication,
    PublicationRequest,
)

__all__ = ["OwnerWatch", "hand_in"]

# How often a requester looks by itself whether the lock is free, and whether there is
# an answer, in case a report was missed.
_LOOK_S: Final = 0.1
# The same for an answer where changes of files are not reported at all.
_UNREPORTED_S: Final = 0.01
# The lock falls a moment after its file was closed.
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.001
# Somebody may remove requests before they have their name (`Store.discard_staged`).
_REQUEST_TRIES: Final = 3


class OwnerWatch:
    """Wakes a requester by what the owner does: it answers a request, or its lock may
    have fallen. For one call after the other: the system takes long to end a watch
    (20 ms), and little to begin another one in it.

    The lock falls when its file is closed, also by the death of its holder; closing it
    is what is reported, a moment before.

    Attributes:
        is_held: the lock was held when a requester last looked, which sets it, and
            there was no report of its file since. Never where nothing is reported.
    """

    def __init__(self, root: Directory) -> None:
        self._wakeups = Wakeups(root.files)
        self._lock = self._wakeups.add(Watch(root, native.WATCH_CLOSES, layout.LOCK))
        self.is_held = False
        if self._lock is None:
            self._wakeups.close()

    def close(self) -> None:
        """Watch nothing any more."""
        self._wakeups.close()

    def take(self) -> None:
        """Forget what was reported before, except that the lock may have fallen: the
        end of a file is reported, too, when it is closed."""
        reports = self._wakeups.take()
        if reports is None or any(number == self._lock for number, _ in reports):
            self.is_held = False

    def begin(self, fd: int) -> None:
        """Wait for changes of an open request, too, as long as it has a name."""
        self._wakeups.restart_pauses()
        if self._wakeups.add(Watch(fd, native.WATCH_FILE)) is None:
            self._wakeups.close()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. Whether something may have changed; a report may be
        of an earlier request."""
        if not self._wakeups.is_reporting:
            seconds = min(seconds, _UNREPORTED_S)
        is_woken = self._wakeups.wait(seconds)
        if is_woken:
            self.take()
        return is_woken


def hand_in(
    root: Directory,
    request: PublicationRequest,
    timeout_ms: int | None,
    publish_as_owner: Callable[[PublicationRequest], Publication],
    watches: deque[OwnerWatch],
) -> Publication:
    """Have a request published by the process with the lock; see `Store.submit`.

    Args:
        watches: those that no call uses now.
        publish_as_owner: takes the lock and publishes, or raises `StoreLockedError`.
    """
    begun = time.monotonic()
    try:
        watch = watches.pop()
    except IndexError:
        watch = OwnerWatch(root)
    # If the lock falls behind this, `wait` tells.
    watch.take()
    if not watch.is_held:
        if _holder(root) is None:
            with contextlib.suppress(StoreLockedError):
                found = publish_as_owner(request)
                watches.append(watch)
                return found
        else:
            error = waits_for_itself(root, state_of(root).holder)
            if error is not None:
                raise error
            watch.is_held = True
    requester = _Requester(root, request, begun, timeout_ms, publish_as_owner, watch)
    found = requester.run()
    watches.append(watch)
    return found


def _holder(root: Directory) -> int | None:
    """The pid of the owner (0: unknown); None if there is none, or never was."""
    try:
        return holder_of(root)
    except FileNotFoundError:
        return None


class _Requester:
    """One call that waits for another process."""

    def __init__(
        self,
        root: Directory,
        request: PublicationRequest,
        begun: float,
        timeout_ms: int | None,
        publish_as_owner: Callable[[PublicationRequest], Publication],
        watch: OwnerWatch,
    ) -> None:
        self._root = root
        self._watch = watch
        self._request = request
        self._timeout_ms = timeout_ms
        self._deadline = None if timeout_ms is None else begun + timeout_ms / 1000
        self._publish_as_owner = publish_as_owner

    def run(self) -> Publication:
        """Hand the request in, again if it is lost, until it is answered."""
        note, pause_s = "Nothing was handed in.", _LOCK_PAUSE_S
        while True:
            file = self._handed_in(note)
            try:
                found = self._wait(file)
            finally:
                file.close()
            if found is not None:
                return found
            note = (
                "It was handed in before, and may have been published: submit the "
                "same again, and it is published once."
            )
            # Longer each time: others that hand in the same take the name in turn.
            time.sleep(min(self._rest(), pause_s))
            pause_s = min(2 * pause_s, _LOOK_S)

    def _handed_in(self, note: str) -> RequestFile:
        request = self._request
        unique = unique_part(request.logs[0].file if request.logs else "")
        data = pack_request([list(log) for log in request.logs], *request[1:6])
        name = request_name(request.identity, request.sequence, unique)
        with storage_errors("write the request", self._root.path_of(name), note):
            for _ in range(_REQUEST_TRIES - 1):
                with contextlib.suppress(FileNotFoundError):
                    return RequestFile(self._root, name, data)
            return RequestFile(self._root, name, data)

    def _wait(self, file: RequestFile) -> Publication | None:
        """What came of the request; None: it is gone, without an answer."""
        self._watch.begin(file.fd)
        with storage_errors("read", self._root.path_of(file.name)):
            answer = file.answer()
            while answer is None:
                # Everything before the watch but an answer is found a look later.
                is_reported = self._watch.wait(self._rest())
                answer = file.answer()
                if answer is not None:
                    break
                if not file.is_there:
                    # In this order: it is answered before it is unlinked.
                    answer = file.answer()
                    if answer is not None:
                        break
                    self._check_lost(file)
                    return None
                if is_reported and self._watch.is_held:
                    continue  # perhaps of the file before, which the owner closes late
                if _holder(self._root) is None:
                    found = self._take_over()
                    if found is not None:
                        file.remove()
                        return found
        return self._accept(answer)

    def _rest(self) -> float:
        """How long to wait for the next report, in seconds."""
        if self._deadline is None:
            return _LOOK_S
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise PublicationTimeoutError(
                self._request.identity,
                self._request.sequence,
                timeout_ms=self._timeout_ms or 0,
            )
        return min(rest, _LOOK_S)

    def _accept(self, answer: Answer) -> Publication:
        if answer.error is not None:
            raise answer.error
        return Publication(
            self._request.identity,
            self._request.sequence,
            answer.records,
            dict(answer.offsets),
            answer.is_new,
            answer.note,
            answer.metadata,
            answer.pinned,
        )

    def _check_lost(self, file: RequestFile) -> None:
        """Raise unless it was unlinked because the answer could not be written."""
        refused = layout.REFUSED_PREFIX + file.name.removeprefix(layout.REQUEST_PREFIX)
        if self._root.exists(refused):
            path = self._root.path_of(refused)
            raise CorruptCheckpointError(
                f"the request was found damaged, and is kept as {path}; nothing was "
                f"published, and the staged records are still there. Hand them in "
                f"again",
                path=path,
                reason="its checksum differs",
            )

    def _take_over(self) -> Publication | None:
        """Become the publisher; None: another process has."""
        for _ in range(_LOCK_TRIES):
            try:
                return self._publish_as_owner(self._request)
            except StoreLockedError:
                if _holder(self._root) is not None:
                    return None
            time.sleep(_LOCK_PAUSE_S)
        return None
