"""Requests to publish, of processes that have not the store's lock: a file for each, in
the store's root (docs/format.md, "Requests").

The process that wants to publish writes the file under a temporary name, renames it,
and keeps it open. The owner of the store reads it, publishes, appends the answer to it
and unlinks it: so the answer reaches the one who asked, and nothing is left for anybody
else. Neither is synced. After a power failure there is nobody who waits for an answer,
and what of the request is left is either whole or damaged, as its checksum tells.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from typing import Any, Final, NamedTuple

import xxhash

from logstore.errors import CorruptCheckpointError, LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import (
    FileEnd,
    end_of,
    later_entries,
    later_entry,
    split_entries,
)
from logstore.io.checkpoint.plain_errors import error_of, plain_error
from logstore.io.checkpoint.state_fields import boolean, integer
from logstore.io.directory import Directory
from logstore.io.files import held_open
from logstore.io.layout import OFFSET_MAX, TopicPartition

__all__ = [
    "Answer",
    "Request",
    "OpenRequest",
    "RequestFile",
    "answer_of",
    "answer_text",
    "is_request",
    "pack_request",
    "request_name",
    "requested_sequence",
    "unique_part",
]

# Of the hash of the identity; the sequence with leading zeros, so that the requests of
# an identity are in order; what makes it unique.
_NAME: Final = re.compile(
    re.escape(layout.REQUEST_PREFIX) + r"[0-9a-f]{16}-[0-9]{19}-[0-9a-z-]{1,64}"
)

_UNIQUE: Final = re.compile(r"-([0-9]+-[0-9a-f]{16})\Z")


class Answer(NamedTuple):
    """What came of a request.

    Attributes:
        error: why it was refused; None: it was published.
        records, offsets, is_new, note, metadata, pinned: as in `Publication`.
        is_outdated: nothing was done: a topic has another number of partitions than
            when those of the records were chosen.
    """

    error: LogStoreError | None
    records: int = 0
    offsets: tuple[tuple[TopicPartition, range], ...] = ()
    is_new: bool = False
    note: str = ""
    metadata: bytes = b""
    pinned: bool = False
    is_outdated: bool = False


class Request(NamedTuple):
    """The content of a request.

    Attributes:
        logs: the fields of each `StagedLog`.
        identity, sequence, note, metadata, pinned: as in `Store.publish`.
        end: where the file ends.
        is_answered: whether an answer follows it.
    """

    logs: list[list[Any]]
    identity: str
    sequence: int
    note: str
    metadata: bytes
    pinned: bool | None
    end: FileEnd
    is_answered: bool


def request_name(identity: str, sequence: int, unique: str) -> str:
    """The name of a request; `unique` has up to 64 characters out of ``[0-9a-z-]``."""
    digest = xxhash.xxh3_64_hexdigest(identity.encode())
    return f"{layout.REQUEST_PREFIX}{digest}-{sequence:019d}-{unique}"


def requested_sequence(name: str, identity: str) -> int | None:
    """The sequence that a request, also one that was put aside, is for; None if it is
    of another identity."""
    digest = xxhash.xxh3_64_hexdigest(identity.encode())
    for prefix in (layout.REQUEST_PREFIX, layout.REFUSED_PREFIX):
        rest = name.removeprefix(f"{prefix}{digest}-")
        digits = rest.partition("-")[0]
        if rest != name and digits.isascii() and digits.isdigit():
            return int(digits)
    return None


def is_request(name: str) -> bool:
    """Whether a name is that of a request."""
    return _NAME.fullmatch(name) is not None


# ------------------------------------------------------------------ reading


def _unpack(path: str, data: bytes) -> Request:
    with _corrupt(path):
        bodies, end = split_entries(data)
        value = checkpoints.entry_value(path, bodies[0])
        return _request_of(value, end, is_answered=len(bodies) > 1)


class _corrupt:  # used as a function
    """What a value of the body is not leads to a `CorruptCheckpointError`."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or not isinstance(error, (KeyError, ValueError, TypeError)):
            return
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptCheckpointError(
            f"request {self._path} cannot be used: {reason}",
            path=self._path,
            reason=reason,
        ) from error


def _request_of(value: dict[str, Any], end: FileEnd, *, is_answered: bool) -> Request:
    """What a request says; the values of its fields are checked by who uses them, as
    those of a caller are."""
    logs, identity, note = value["logs"], value["identity"], value["note"]
    if not isinstance(logs, list) or not all(isinstance(row, list) for row in logs):
        raise ValueError("logs is no list of lists")
    if not isinstance(identity, str) or not isinstance(note, str):
        raise ValueError("its identity or note is no text")
    metadata = base64.b64decode(_text(value, "metadata"), validate=True)
    pinned = value["pinned"]
    if pinned is not None and not isinstance(pinned, bool):
        raise ValueError("pinned is neither true, false nor null")
    sequence = integer("sequence", value["sequence"], 0, OFFSET_MAX)
    return Request(logs, identity, sequence, note, metadata, pinned, end, is_answered)


def _text(value: dict[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str):
        raise ValueError(f"{name} is no text")
    return found


def _answer_of(value: dict[str, Any]) -> Answer:
    if not isinstance(value, dict):
        raise ValueError("its answer is no object")
    if "error" in value:
        return Answer(error_of(value["error"]))
    if "is_outdated" in value:
        return Answer(None, is_outdated=True)
    offsets: list[tuple[TopicPartition, range]] = []
    for topic, number, begin, end in value["offsets"]:
        layout.check_topic_name(topic)
        for each in (number, begin, end):
            integer("a number of offsets", each, 0, OFFSET_MAX)
        offsets.append((TopicPartition(topic, number), range(begin, end)))
    return Answer(
        None,
        integer("records", value["records"], 0, OFFSET_MAX),
        tuple(offsets),
        boolean("is_new", value["is_new"]),
        _text(value, "note"),
        base64.b64decode(_text(value, "metadata"), validate=True),
        boolean("pinned", value["pinned"]),
    )


def answer_of(path: str, value: dict[str, Any]) -> Answer:
    """An answer from the value of an entry.

    Raises:
        CorruptCheckpointError: it has not the fields of one.
    """
    with _corrupt(path):
        return _answer_of(value["answer"])


# ------------------------------------------------------------------ writing


def pack_request(
    logs: list[list[Any]],
    identity: str,
    sequence: int,
    note: str,
    metadata: bytes,
    pinned: bool | None,
) -> bytes:
    """The bytes of a request."""
    return checkpoints.pack_state(
        {
            "logs": logs,
            "identity": identity,
            "sequence": sequence,
            "note": note,
            "metadata": base64.b64encode(metadata).decode("ascii"),
            "pinned": pinned,
        }
    )


def answer_text(answer: Answer) -> str:
    if answer.error is not None:
        value: dict[str, Any] = {"error": plain_error(answer.error)}
    elif answer.is_outdated:
        value = {"is_outdated": True}
    else:
        value = {
            "records": answer.records,
            "offsets": [[*key, s.start, s.stop] for key, s in answer.offsets],
            "is_new": answer.is_new,
            "note": answer.note,
            "metadata": base64.b64encode(answer.metadata).decode("ascii"),
            "pinned": answer.pinned,
        }
    return checkpoints.state_text({"answer": value})


class OpenRequest:
    """A request of another process, which the owner of the store has open until it has
    answered.

    Attributes:
        name: of its file.
        request: what it asks for.

    Raises:
        CorruptCheckpointError: it is damaged, or no regular file.
        FileNotFoundError: it is gone.
        OSError: it cannot be read.
    """

    def __init__(self, root: Directory, name: str) -> None:
        self.name = name
        self._root = root
        path, files = root.path_of(name), root.files
        try:
            self._file = held_open(files, self._opened())
            info = files.stat(self._file.fd)
            if info.size > checkpoints.STATE_BYTES_MAX:
                raise checkpoints.too_large(name)
        except OSError as error:
            if error.errno not in checkpoints.NOT_A_STATE_FILE:
                raise
            raise CorruptCheckpointError(
                f"request {path} cannot be used: {error.strerror}",
                path=path,
                reason=str(error.strerror),
            ) from error
        self._inode = info.inode
        data = bytearray(info.size)
        count = files.read(self._file.fd, data, 0)
        self.request = _unpack(path, bytes(memoryview(data)[:count]))

    def _opened(self) -> int:
        try:
            return self._root.open(self.name, write=True)
        except OSError:
            # It is published, and there can be no answer.
            return self._root.open(self.name)

    def answer(self, answer: Answer) -> None:
        """Append an answer, for the process that has the file open.

        Raises:
            OSError: it may be there in part, which its checksum tells.
        """
        end = self.request.end
        body = answer_text(answer).encode("utf-8", "surrogatepass")
        self._root.files.write(self._file.fd, later_entry(end, body), end.size)

    def remove(self) -> None:
        """Unlink the file, if it still has its name: the same may have been handed in
        anew, perhaps with another note.

        Raises:
            OSError: the system refuses.
        """
        with contextlib.suppress(FileNotFoundError):
            if self._root.stat(self.name).inode == self._inode:
                self._root.unlink(self.name)


class RequestFile:
    """A request of this process, which it keeps open until there is an answer.

    Raises:
        FileNotFoundError: somebody has removed it before it had its name.
        OSError: it cannot be made; nothing is left of it.
    """

    def __init__(self, root: Directory, name: str, data: bytes) -> None:
        self.name = name
        self._root = root
        self._end = end_of(data, None)
        # Of its own: others may hand in the same at the same time.
        temporary = f"{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp"
        if len(data) > checkpoints.STATE_BYTES_MAX:
            raise checkpoints.too_large(name)
        fd = root.create(temporary)
        try:
            root.files.write(fd, data, 0)
            root.rename(temporary, name)
        except BaseException:
            root.files.close(fd)
            root.unlink(temporary, missing_ok=True)
            raise
        self.fd = fd

    def answer(self) -> Answer | None:
        """The answer; None: there is none yet, or not all of it.

        Raises:
            CorruptCheckpointError: it has not the fields of an answer.
            OSError: it cannot be read.
        """
        files, end = self._root.files, self._end
        size = files.size(self.fd) - end.size
        if size <= 0:
            return None
        data = bytearray(size)
        count = files.read(self.fd, data, end.size)
        found = later_entries(bytes(memoryview(data)[:count]), end)
        if not found or not found[0]:
            return None
        path = self._root.path_of(self.name)
        with _corrupt(path):
            # There is one: who finds it there does not answer again.
            value = checkpoints.entry_value(path, found[0][0])
        return answer_of(path, value)

    @property
    def is_there(self) -> bool:
        """Whether the request still has its name."""
        try:
            info = self._root.stat(self.name)
        except FileNotFoundError:
            return False
        mine = self._root.files.stat(self.fd)
        return (info.device, info.inode) == (mine.device, mine.inode)

    def remove(self) -> None:
        """Withdraw it: it has an answer, or needs none."""
        if self.is_there:
            self._root.unlink(self.name, missing_ok=True)

    def close(self) -> None:
        """Let go of it; the request stays."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._root.files.close(fd)


def unique_part(name: str) -> str:
    """What makes a staged file's name unique, for the request that is about it: so the
    same records are handed in under the same name, however often they are."""
    found = _UNIQUE.search(name)
    return found[1] if found else f"0-{os.urandom(8).hex()}"
