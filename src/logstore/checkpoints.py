"""Small state files: Kafka's text checkpoints, and logstore's own state.

Kafka's (docs/format.md, "Offset checkpoints", "Leader epochs") are read leniently as
Kafka reads them and written whole: temporary name, sync, rename, directory sync.
logstore's own are JSON behind a checksum line; a bad one is a `CorruptCheckpointError`
and never a guess.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import xxhash

from logstore._files import Directory
from logstore.errors import CorruptCheckpointError
from logstore.layout import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    OFFSET_MAX,
    RECOVERY_CHECKPOINT,
)

__all__ = [
    "read_epochs",
    "read_offsets",
    "read_state",
    "store_fingerprint",
    "write_epochs",
    "write_offsets",
    "write_state",
]

TopicPartition = tuple[str, int]

CLEAN_SHUTDOWN_TEXT: Final = b'{"version":0,"brokerEpoch":-1}'
_STATE_VERSION: Final = 1


def _entries(directory: Directory, name: str, fields: int) -> list[list[str]]:
    """The entry lines of a checkpoint, split; [] for a missing or empty file."""
    path = directory.path_of(name)
    data = _read(directory, name)
    if data is None:
        return []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(path, "it is not UTF-8 text") from error
    lines = text.splitlines()
    if not lines:
        return []
    if lines[0].strip() != "0":
        raise _bad(path, f"its version is {lines[0][:40]!r}, not 0")
    if len(lines) == 1:
        return []
    if not lines[1].strip().isdigit():
        raise _bad(path, f"its number of entries is {lines[1][:40]!r}")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != int(lines[1]):
        raise _bad(path, f"it has {len(entries)} entries, not {int(lines[1])}")
    for entry in entries:
        if len(entry) != fields:
            raise _bad(path, f"an entry has {len(entry)} fields, not {fields}")
    return entries


# What opening says of a symlink, a socket or FIFO, and a directory of a file's name.
_NOT_A_FILE: Final = (errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EISDIR, errno.EFBIG)


def _read(directory: Directory, name: str) -> bytes | None:
    """A state file's bytes; None if there is none.

    Raises:
        CorruptCheckpointError: something else is there, or it is far too large.
    """
    try:
        return directory.read_file(name)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise
        raise _bad(directory.path_of(name), str(error.strerror)) from error


def _bad(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"checkpoint {path} cannot be used: {reason}", path=path, reason=reason
    )


def _number(path: str, text: str) -> int:
    """A partition, offset or epoch: not negative, 64 bit."""
    if not text.isascii() or not text.isdigit() or int(text) > OFFSET_MAX:
        raise _bad(path, f"{text[:40]!r} is no number in [0, {OFFSET_MAX}]")
    return int(text)


def read_offsets(directory: Directory, name: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a log directory; {} if missing or empty.

    Raises:
        CorruptCheckpointError: it does not follow the format.
    """
    path = directory.path_of(name)
    result: dict[TopicPartition, int] = {}
    for topic, partition, offset in _entries(directory, name, 3):
        result[topic, _number(path, partition)] = _number(path, offset)
    return result


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{t} {p} {offset}" for (t, p), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def write_offsets(
    directory: Directory, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace an offset checkpoint; nothing if it already says just that."""
    data = format_offsets(offsets)
    try:
        if directory.read_file(name) == data:
            return
    except FileNotFoundError:
        pass
    directory.write_file(name, data)


def read_epochs(directory: Directory) -> list[tuple[int, int]]:
    """(epoch, first offset) pairs of a partition's leader-epoch-checkpoint."""
    path = directory.path_of(LEADER_EPOCHS)
    return [
        (_number(path, epoch), _number(path, offset))
        for epoch, offset in _entries(directory, LEADER_EPOCHS, 2)
    ]


def write_epochs(directory: Directory, epochs: Sequence[tuple[int, int]]) -> None:
    lines = ["0", str(len(epochs)), *(f"{epoch} {offset}" for epoch, offset in epochs)]
    directory.write_file(LEADER_EPOCHS, ("\n".join(lines) + "\n").encode())


# ------------------------------------------------------------------ logstore's own


def pack_state(value: Mapping[str, Any]) -> bytes:
    """Bytes of a state file: checksum line, then JSON."""
    body = json.dumps(
        {"version": _STATE_VERSION, **value}, separators=(",", ":"), sort_keys=True
    ).encode()
    return b"xxh64 %016x\n%s\n" % (xxhash.xxh64_intdigest(body), body)


def unpack_state(path: str, data: bytes) -> dict[str, Any]:
    """The value of a state file; `CorruptCheckpointError` if it cannot be one."""
    head, _, rest = data.partition(b"\n")
    body = rest[:-1] if rest.endswith(b"\n") else rest
    if head != b"xxh64 %016x" % xxhash.xxh64_intdigest(body):
        raise _bad(path, "its checksum differs")
    try:
        value = json.loads(body)
    except ValueError as error:
        raise _bad(path, f"it is not JSON: {error}") from error
    if not isinstance(value, dict) or value.get("version") != _STATE_VERSION:
        found = value.get("version") if isinstance(value, dict) else None
        raise _bad(
            path, f"its version is {found}, this logstore knows {_STATE_VERSION}"
        )
    return value


def read_state(directory: Directory, name: str) -> dict[str, Any] | None:
    """A state file of logstore's; None if there is none."""
    data = _read(directory, name)
    return None if data is None else unpack_state(directory.path_of(name), data)


def write_state(directory: Directory, name: str, value: Mapping[str, Any]) -> None:
    """Replace a state file, durably."""
    directory.write_file(name, pack_state(value))


def _digest(directory: Directory, name: str) -> str | None:
    try:
        return f"{xxhash.xxh64_intdigest(directory.read_file(name)):016x}"
    except OSError as error:
        # Anything else is no answer: "not there" would be taken for another writer.
        if error.errno not in (errno.ENOENT, *_NOT_A_FILE):
            raise
        return None


def store_fingerprint(root: Directory) -> dict[str, str | None]:
    """What tells whether another program has been the writer since: the content of
    Kafka's clean-shutdown marker and recovery points (None: not there)."""
    return {
        "clean_shutdown": _digest(root, CLEAN_SHUTDOWN),
        "recovery_points": _digest(root, RECOVERY_CHECKPOINT),
    }


def digest_of(data: bytes | None) -> str | None:
    """The digest that `store_fingerprint` would have of a file with these bytes."""
    return None if data is None else f"{xxhash.xxh64_intdigest(data):016x}"
