"""The owner's side of requests that each process writes to its own file
(`logstore.io.checkpoint.process_requests`).

A process with a file is watched until it has ended. Its requests are taken in the order
of their numbers, round robin over the processes. Of a process that has ended,
publications under an identity of a caller are carried out: the caller may hand the same
in again. The rest is dropped, because its outcome would be unknown. Then the files are
removed.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import ConfigError, CorruptCheckpointError, LogStoreError
from logstore.io.checkpoint.answers import Answer
from logstore.io.checkpoint.process_requests import (
    ANSWER_BYTES_MAX,
    ServedProcess,
    TakenRequest,
    process_of,
    remove_leftovers,
)
from logstore.io.directory import Directory
from logstore.io.layout import PROCESS_PREFIX
from logstore.io.wakeups import Wakeups, Watch
from logstore.log.write.calls import (
    Append,
    Creation,
    Submission,
    answer_bytes,
    file_of,
    identity_of,
    short_answer_bytes,
    unpacked,
)
from logstore.log.write.staged_files import Staged, logs_of
from logstore.store.publication.publication import PublicationRequest, request_of

__all__ = ["Call", "ServedProcesses"]

# Taken for one commit.
_BYTES_MAX: Final = 8 << 20
# A process makes its files in less time.
_LEFT_MS: Final = 60_000
# Each takes two descriptors of the owner.
_PROCESSES_MAX: Final = 500


class Call:
    """A request of a process that the owner has taken.

    Attributes:
        name: of the file that it is in.
        request: the publication that it asks for; None: it is another request.
        creation: the topic that it asks for.
        error: why it is refused.
    """

    __slots__ = ("_served", "_taken", "creation", "error", "name", "request")

    def __init__(self, served: ServedProcess, taken: TakenRequest, path: str) -> None:
        self._served, self._taken = served, taken
        self.name = PROCESS_PREFIX + served.id
        self.request: PublicationRequest | None = None
        self.creation: Creation | None = None
        self.error: LogStoreError | None = None
        try:
            asked = unpacked(path, taken.content)
            if isinstance(asked, Append):
                self.request = _request_of(served, taken.slot.number, asked)
            elif isinstance(asked, Submission):
                self.request = _submitted(asked)
            else:
                self.creation = asked
        except TypeError as error:
            self.error = ConfigError(f"{error}; nothing was written")
        except LogStoreError as error:
            self.error = error

    @property
    def is_named(self) -> bool:
        """Whether a caller can hand in the same request again, under its identity."""
        return self.request is not None and not self.request.is_call

    @property
    def size(self) -> int:
        """Bytes of its content."""
        return self._taken.slot.size

    def keep(self) -> None:
        """Do not take it again: it is answered later."""
        self._served.keep(self._taken.slot)

    def answer(self, answer: Answer) -> None:
        """Answer it.

        Raises:
            OSError: the answer cannot be written.
        """
        served, slot, content = self._served, self._taken.slot, answer_bytes(answer)
        try:
            if len(content) > ANSWER_BYTES_MAX:
                with contextlib.suppress(OSError):
                    served.answer(slot, content)
                    return
                content = short_answer_bytes(answer)
            served.answer(slot, content)
        except OSError:
            served.let_go(slot)
            raise
        except BaseException:
            served.give_back(slot)
            raise

    @property
    def is_wanted(self) -> bool:
        """Whether the process still lives."""
        return self._served.is_alive

    def give_back(self) -> None:
        """Let it be taken again, by the next owner or by this one."""
        self._served.give_back(self._taken.slot)

    def drop(self) -> None:
        """Do not carry it out."""
        self._served.let_go(self._taken.slot)


def _request_of(
    served: ServedProcess, number: int, asked: Append
) -> PublicationRequest:
    """The publication that an append is.

    Raises:
        ConfigError: it names no records that can be published.
    """
    file = file_of(served.id, number)
    return PublicationRequest(
        asked.named(file),
        identity_of(served.id),
        number,
        contents={file: asked.data},
        partitions=asked.partitions,
        expected_offset=asked.expected_offset,
        is_wanted=lambda: served.is_alive,
    )


def _submitted(asked: Submission) -> PublicationRequest:
    """The publication that a caller asks for.

    Raises:
        ConfigError: an argument is invalid.
        TypeError: a field is of another type.
    """
    logs, identity, sequence, note, metadata, pinned = asked
    request = request_of(
        logs_of([Staged(tuple(logs))]), identity, sequence, note, metadata, pinned
    )
    if request.is_call or not identity:
        raise ConfigError(
            f"identity {identity!r:.100} is reserved; nothing was published",
            name="identity",
            value=identity,
        )
    return request


class ServedProcesses:
    """The processes that make requests of the owner of a store. The lock of
    publications guards it.

    Args:
        wakeups: returns what the owner waits for; None: it does not.
        ended: called with the identity of a process that has ended.
    """

    def __init__(
        self,
        root: Directory,
        wakeups: Callable[[], Wakeups | None],
        ended: Callable[[str], None],
    ) -> None:
        self._root = root
        self._ended = ended
        self._wakeups = wakeups
        self._served: dict[str, ServedProcess] = {}
        self._watches: dict[int, str] = {}
        # Processes that may have requests; the first one is served first.
        self._due: deque[str] = deque()
        # Processes that are looked at again after a pause: the system has refused a
        # call, or reports no changes of their files, or a request is being withdrawn.
        self._again: set[str] = set()
        # The files of which no changes are reported, by their descriptors.
        self._unreported: set[int] = set()
        # Processes whose errors were logged.
        self._told: set[str] = set()
        # Processes that had ended when their files were opened.
        self._ended_before: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no process may have requests."""
        return not self._due

    @property
    def needs_another_look(self) -> bool:
        """Whether to look again after a pause, though nothing is reported."""
        return bool(self._again)

    def look_again(self) -> None:
        """The pause is over."""
        for unique in list(self._again):
            self._again.discard(unique)
            self._is_due(unique)

    def note(self, names: Iterable[str]) -> None:
        """Files of these names are there, or have changed."""
        for name in names:
            unique = process_of(name)
            if unique is not None:
                self._is_due(unique)

    def clean(self, names: Iterable[str]) -> None:
        """Remove what is left of processes that were killed when they made their files;
        `names` are all in the root."""
        now_ms = self._root.files.now_ms()
        with contextlib.suppress(OSError):
            remove_leftovers(self._root, names, now_ms - _LEFT_MS)

    def reported(self, number: int) -> None:
        """There is a report of a watch with a number."""
        if number in self._watches:
            self._is_due(self._watches[number])

    def look_at_all(self) -> None:
        """Look at every process: reports were lost, or the system makes no reports."""
        for unique in list(self._served):
            self._is_due(unique)

    def _is_due(self, unique: str) -> None:
        if unique not in self._due:
            self._due.append(unique)

    def take(self, requests_max: int) -> list[Call]:
        """Take at most `requests_max` requests, from one process after the other."""
        self._open_new()
        calls: list[Call] = []
        left = _BYTES_MAX
        for _ in range(len(self._due)):
            if len(calls) >= requests_max or left <= 0:
                break
            unique = self._due[0]
            taken, has_more = self._take_from(unique, requests_max - len(calls), left)
            self._due.popleft()
            if has_more:
                self._due.append(unique)
            calls += taken
            left -= sum([call.size for call in taken])
        return calls

    def _open_new(self) -> None:
        """Open new processes' files; serve processes that have ended first: another
        process continues with their requests under an identity of a caller."""
        for unique in list(self._due):
            if unique not in self._served:
                # An error here occurs again when its requests are taken.
                with contextlib.suppress(LogStoreError, OSError):
                    if not self._open(unique).is_alive:
                        self._ended_before.add(unique)
                        self._due.remove(unique)
                        self._due.appendleft(unique)

    def _take_from(
        self, unique: str, most: int, bytes_max: int
    ) -> tuple[list[Call], bool]:
        """(requests of a process to carry out, whether to look at it again)."""
        path = self._root.path_of(PROCESS_PREFIX + unique)
        try:
            served = self._served.get(unique) or self._open(unique)
            taken = served.take(most, bytes_max)
            if not taken and not served.is_alive:
                # It may have made a request before it ended.
                taken = served.take(most, bytes_max)
                if not taken:
                    self._forget(served)
                    return [], False
        except FileNotFoundError:
            self._close(unique)
            return [], False
        except (CorruptCheckpointError, OSError) as error:
            if unique not in self._told:
                self._told.add(unique)
                logger.warning("cannot read the requests in %s: %s", path, error)
            if isinstance(error, OSError):
                self._again.add(unique)
            return [], False
        if served.is_blocked or served.fd in self._unreported:
            self._again.add(unique)
        calls = [Call(served, request, path) for request in taken]
        if unique not in self._ended_before:
            # Whether it lives is asked before they count.
            return calls, served.has_more
        for call in calls:
            if not call.is_named:
                call.drop()
        return [call for call in calls if call.is_named], bool(calls)

    def _open(self, unique: str) -> ServedProcess:
        if len(self._served) >= _PROCESSES_MAX:
            raise OSError(errno.EMFILE, f"{_PROCESSES_MAX} processes are served")
        served = self._served[unique] = ServedProcess(self._root, unique)
        if not served.is_of_this_boot:
            self._forget(served)
            raise FileNotFoundError(errno.ENOENT, "of another boot")
        wakeups = self._wakeups()
        if wakeups is not None:
            number = wakeups.add(Watch(served.fd, native.WATCH_WRITES))
            if number is not None:
                self._watches[number] = unique
            elif wakeups.is_reporting:
                self._unreported.add(served.fd)
        return served

    def _forget(self, served: ServedProcess) -> None:
        """Remove the files of a process that has ended."""
        with contextlib.suppress(OSError):
            served.remove()
            # Only then: a request that came back would be carried out twice.
            self._ended(identity_of(served.id))
        self._close(served.id)

    def _close(self, unique: str) -> None:
        for mine in (self._ended_before, self._again, self._told):
            mine.discard(unique)
        served = self._served.pop(unique, None)
        if served is None:
            return
        # The watch ends with the file.
        self._unreported.discard(served.fd)
        served.close()
        for number in [
            n for n, process_name in self._watches.items() if process_name == unique
        ]:
            del self._watches[number]

    def close(self) -> None:
        """Close all files: the next owner serves them."""
        for unique in list(self._served):
            self._close(unique)

    def abandon(self) -> None:
        """In the child of a fork."""
        for served in self._served.values():
            served.abandon()
        self._served.clear()
        self._watches.clear()
