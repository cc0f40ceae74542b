"""Small state files: Kafka's text checkpoints, and logstore's own state.

Kafka's (docs/format.md, "Offset checkpoints", "Leader epochs") are read leniently, as
Kafka reads them, and written whole: temporary name, sync, rename, directory sync.
logstore's own are a checksum line and JSON; a bad one raises `CorruptCheckpointError`
and is never guessed. Before a write, the content is checked against what the reader
accepts: nothing is written that could not be read again.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import xxhash

from logstore.errors import ConfigError, CorruptCheckpointError, UnsupportedError
from logstore.io.checkpoint.entries import (
    FileEnd,
    first_entry,
    later_entries,
    split_entries,
)
from logstore.io.checkpoint.state_fields import (
    CHECKS,
    JOURNAL_VERSION,
    check_journal,
)
from logstore.io.directory import NOT_A_FILE, Directory
from logstore.io.full_disk import write_file_anyway
from logstore.io.layout import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    OFFSET_MAX,
    PARTITION_MAX,
    PARTITION_STATE,
    PUBLICATION,
    PUBLISHED,
    RECOVERY_CHECKPOINT,
    TOPICS,
    TopicPartition,
)

__all__ = [
    "read_changes",
    "read_epochs",
    "read_growing",
    "read_offsets",
    "read_state",
    "store_fingerprint",
    "write_epochs",
    "write_offsets",
    "write_state",
]

CLEAN_SHUTDOWN_TEXT: Final = b'{"version":0,"brokerEpoch":-1}'
STATE_VERSION: Final = 1
# Of the state of a damaged partition: an earlier release must not cut its log.
DAMAGED_VERSION: Final = 2
_encode: Final = json.JSONEncoder(
    separators=(",", ":"), sort_keys=True, ensure_ascii=False
).encode
# Files of which there are later versions, too, and the last of them.
_LATER_VERSIONS: Final = {PARTITION_STATE: 2, PUBLICATION: 4, PUBLISHED: 3}
# Limits of reading: a file, its nesting, its numbers.
STATE_BYTES_MAX: Final = 64 << 20
STATE_DEPTH_MAX: Final = 8
_DIGITS_MAX: Final = 19
_EPOCH_MAX: Final = (1 << 31) - 1
_NO_BRACKETS: Final = bytes(b for b in range(256) if chr(b) not in "[]{}")
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (_DIGITS_MAX + 1))
# A checkpoint of offsets as Kafka and logstore write it, except for the count of its
# entries and the size of its numbers.
_OFFSETS_TEXT: Final = re.compile(
    rb"0\n[0-9]{1,19}\n(?:[A-Za-z0-9._-]+ [0-9]{1,10} [0-9]{1,19}\n)*"
)


def _entries(path: str, data: bytes | None, fields: int) -> list[list[str]]:
    """The entry lines of a checkpoint, split; [] for a missing or empty file."""
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
    count = _number(path, lines[1].strip())
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise _bad(path, f"it has {len(entries)} entries, not {count}")
    for entry in entries:
        if len(entry) != fields:
            raise _bad(path, f"an entry has {len(entry)} fields, not {fields}")
    return entries


# Errors of reading something else that has a state file's name.
NOT_A_STATE_FILE: Final = (*NOT_A_FILE, errno.EFBIG)


def state_bytes(directory: Directory, name: str) -> bytes | None:
    """A state file's bytes; None if it does not exist.

    Raises:
        CorruptCheckpointError: it is not a regular file, or it is far too large.
    """
    try:
        return directory.read_file(name, STATE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in NOT_A_STATE_FILE:
            raise
        raise _bad(directory.path_of(name), str(error.strerror)) from error


def _bad(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"checkpoint {path} cannot be used: {reason}", path=path, reason=reason
    )


def _not_written(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} is not written: it could not be read again, since {reason}; nothing "
        f"was changed",
        name=path,
    )


def _number(path: str, text: str, most: int = OFFSET_MAX) -> int:
    """A count, partition, offset or epoch: from 0 to `most`."""
    digits = text.lstrip("0") or "0" if text.isascii() and text.isdigit() else ""
    # Refuse a text of a million digits before converting it to a number.
    if not digits or len(digits) > _DIGITS_MAX or int(digits) > most:
        raise _bad(path, f"{text[:40]!r} is not a number in [0, {most}]")
    return int(digits)


def read_offsets(directory: Directory, name: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a log directory; {} if missing or empty.

    Raises:
        CorruptCheckpointError: it does not follow the format.
    """
    path, data = directory.path_of(name), state_bytes(directory, name)
    if data is not None and _OFFSETS_TEXT.fullmatch(data):
        # All in one piece: a store may have a hundred thousand partitions. If it does
        # not pass, the entry at fault is found below.
        words = data.decode().split()
        numbers, offsets = [*map(int, words[3::3])], [*map(int, words[4::3])]
        if (
            int(words[1]) == len(offsets)
            and max(numbers, default=0) <= PARTITION_MAX
            and max(offsets, default=0) <= OFFSET_MAX
        ):
            keys = map(TopicPartition, words[2::3], numbers)
            return dict(zip(keys, offsets, strict=True))
    result: dict[TopicPartition, int] = {}
    for topic, partition, offset in _entries(path, data, 3):
        number = _number(path, partition, PARTITION_MAX)
        result[TopicPartition(topic, number)] = _number(path, offset)
    return result


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{t} {p} {offset}" for (t, p), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def write_offsets(
    directory: Directory, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace an offset checkpoint; do nothing if it already has this content.

    Raises:
        ConfigError: a name or number could not be read again.
    """
    data = format_offsets(offsets)
    # Checked in one piece: a store may have a hundred thousand partitions.
    if offsets and not (
        0 <= min(offsets.values()) <= max(offsets.values()) <= OFFSET_MAX
        and _OFFSETS_TEXT.fullmatch(data)
    ):
        raise _not_written(directory.path_of(name), "an entry of it is out of bounds")
    try:
        if directory.read_file(name) == data:
            return
    except FileNotFoundError:
        pass
    directory.write_file(name, data)


def read_epochs(directory: Directory) -> list[tuple[int, int]]:
    """(epoch, first offset) pairs of a partition's leader-epoch-checkpoint."""
    path = directory.path_of(LEADER_EPOCHS)
    return _epochs_of(path, state_bytes(directory, LEADER_EPOCHS))


def _epochs_of(path: str, data: bytes | None) -> list[tuple[int, int]]:
    return [
        (_number(path, epoch, _EPOCH_MAX), _number(path, offset))
        for epoch, offset in _entries(path, data, 2)
    ]


def write_epochs(directory: Directory, epochs: Sequence[tuple[int, int]]) -> None:
    """Replace a leader epoch checkpoint, on a full disk in place.

    Raises:
        ConfigError: a number could not be read again.
    """
    lines = ["0", str(len(epochs)), *(f"{epoch} {offset}" for epoch, offset in epochs)]
    data = ("\n".join(lines) + "\n").encode()
    path = directory.path_of(LEADER_EPOCHS)
    try:
        _epochs_of(path, data)
    except CorruptCheckpointError as error:
        raise _not_written(path, error.reason) from error
    write_file_anyway(directory, LEADER_EPOCHS, data)


# ------------------------------------------------------------------ logstore's own


def _json(value: object) -> str:
    return _encode(value)


def state_text(value: Mapping[str, Any]) -> str:
    """The JSON of a state file. It is not escaped, so that 10,000 identities of 1,000
    characters each stay below `STATE_BYTES_MAX`."""
    return _json({"version": STATE_VERSION, **value})


def pack_state(value: Mapping[str, Any]) -> bytes:
    """Bytes of a state file: checksum line, then JSON."""
    return _pack(state_text(value))


def _pack(text: str) -> bytes:
    return first_entry(text.encode("utf-8", "surrogatepass"))


def unpack_state(path: str, data: bytes, name: str = "") -> dict[str, Any]:
    """The value of a state file; `name` says which one.

    Raises:
        CorruptCheckpointError: it is not a valid state file.
        UnsupportedError: a later logstore wrote it.
    """
    return _unpack(path, data, name)[0]


def _unpack(path: str, data: bytes, name: str) -> tuple[dict[str, Any], FileEnd]:
    merge = _MERGES.get(name)
    try:
        bodies, end = split_entries(data)
    except ValueError as error:
        raise _bad(path, str(error)) from error
    if merge is None and (len(bodies) > 1 or end.size < len(data)):
        raise _bad(path, "its checksum differs")
    value = entry_value(path, bodies[0], name)
    for body in bodies[1:]:
        assert merge is not None
        change = entry_value(path, body, name)
        try:
            merge(value, change)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _bad(path, f"an entry cannot be applied: {error!r}") from error
    return value, end


def merge_topics(topics: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set the settings of topics, or remove them: None."""
    for name, settings in changes.items():
        if settings is None:
            topics.pop(name, None)
        else:
            topics[name] = settings


def _merge_topics(value: dict[str, Any], change: dict[str, Any]) -> None:
    merge_topics(value["topics"], change["topics"])


def _merge_partition(value: dict[str, Any], change: dict[str, Any]) -> None:
    sealed = value["sealed"]
    sealed.extend(change.get("sealed", []))
    value.update(change, sealed=sealed)


def _merge_publication(value: dict[str, Any], change: dict[str, Any]) -> None:
    check_journal(change)
    value["bases"] += journal_rows(change)
    value["changes"] += change["changes"]


def journal_rows(value: Mapping[str, Any]) -> list[list[Any]]:
    """Where logs end from an entry of the journal on, as rows of `bases`."""
    if value["version"] < JOURNAL_VERSION:
        return list(value["bases"])
    ends = [[topic, n, end] for topic, n, _, end, *_ in value.get("logs", ())]
    return ends + list(value["bases"])


# The files that entries are appended to, and how an entry changes what was before.
_MERGES: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], None]]] = {
    TOPICS: _merge_topics,
    PARTITION_STATE: _merge_partition,
    PUBLICATION: _merge_publication,
}


def entry_value(path: str, body: bytes, name: str = "") -> dict[str, Any]:
    """The value of one entry of a state file; `name` says which one.

    Raises:
        CorruptCheckpointError: it is not a valid entry.
        UnsupportedError: a later logstore wrote it.
    """
    value = _parsed(path, body)
    version = value.get("version") if isinstance(value, dict) else None
    known = _LATER_VERSIONS.get(name, STATE_VERSION)
    if isinstance(version, int) and version > known:
        raise UnsupportedError(
            f"{path} has version {version}, this logstore knows {known}: a later "
            "release has written it. Use that release; nothing was changed",
            path=path,
        )
    if not isinstance(version, int) or version < STATE_VERSION:
        raise _bad(path, f"its version is {version}, not {STATE_VERSION}")
    return dict(value)


def _parsed(path: str, body: bytes) -> Any:
    """Parse JSON from untrusted bytes: a checksum is not a signature.

    Nesting is bounded before the parser sees it (otherwise the parser would end at the
    depth of the caller's stack), and so are numbers: only integers of at most 19 digits
    are accepted.
    """
    # Remove strings, which may hold any text. From the first place that is not JSON on,
    # this may confuse strings and other text; the parser stops at that place, and all
    # brackets before it count.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b'""'.join(unescaped.split(b'"')[::2])
    # Only brackets, all of one kind; each round removes the innermost pairs.
    brackets = structure.translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(STATE_DEPTH_MAX):
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _bad(path, f"it is nested more than {STATE_DEPTH_MAX} deep")
    if _LONG_NUMBER.search(structure):
        raise _bad(path, f"a number in it has more than {_DIGITS_MAX} digits")
    try:
        # As UTF-8: the parser also accepts UTF-16, whose bytes mean something else.
        text = body.decode("utf-8", "surrogatepass")
        return _DECODER.decode(text)
    except ValueError as error:
        # Not RecursionError: it means that the caller's stack is too deep already.
        raise _bad(path, f"it is not JSON: {error}") from error


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:40]} is not an integer")


# Made once: a file may have thousands of entries.
_DECODER: Final = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)


def read_state(directory: Directory, name: str) -> dict[str, Any] | None:
    """A state file of logstore; None if it does not exist.

    Raises:
        CorruptCheckpointError: it does not follow the format, or exceeds a limit.
    """
    state = read_growing(directory, name)
    return None if state is None else state[0]


def read_growing(
    directory: Directory, name: str
) -> tuple[dict[str, Any], FileEnd] | None:
    """A state file as `read_state`, and the end of its entries, for `read_changes`."""
    data = state_bytes(directory, name)
    if data is None:
        return None
    return _state_of(directory.path_of(name), name, data)


def read_entries(
    directory: Directory,
    name: str,
    check: Callable[[dict[str, Any]], None] = lambda value: None,
) -> tuple[list[dict[str, Any]], FileEnd] | None:
    """The value of each entry of a state file, in order, and their end; None if
    there is no file.

    Args:
        check: raises ValueError or KeyError for a later entry that cannot be.

    Raises: as `read_state`.
    """
    data = state_bytes(directory, name)
    if data is None:
        return None
    path = directory.path_of(name)
    try:
        bodies, end = split_entries(data)
    except ValueError as error:
        raise _bad(path, str(error)) from error
    values = [entry_value(path, body, name) for body in bodies]
    try:
        CHECKS.get(name, check)(values[0])
        for value in values[1:]:
            check(value)
    except KeyError as error:
        raise _bad(path, f"it has no {error}") from error
    except ValueError as error:
        raise _bad(path, str(error)) from error
    return values, end


def read_changes(
    directory: Directory,
    name: str,
    end: FileEnd,
    size: int,
    check: Callable[[dict[str, Any]], None] = lambda value: None,
) -> tuple[list[dict[str, Any]], FileEnd] | None:
    """Entries appended to a state file of `size` bytes since it ended at `end`: the
    value of each entry, and the new end. None if the file has to be read whole: it has
    no more bytes, others, or a bad entry, or it is gone.

    Args:
        check: raises ValueError or KeyError for a value that cannot be.

    Raises:
        CorruptCheckpointError, UnsupportedError: as `read_state`.
        OSError: as the system gives it.
    """
    if not end.size < size <= STATE_BYTES_MAX:
        return None
    data = bytearray(size - end.size)
    try:
        with directory.opened(name) as fd:
            if directory.files.read(fd, data, end.size) < len(data):
                return None
    except FileNotFoundError:
        return None
    entries = later_entries(bytes(data), end)
    if entries is None:
        return None
    path = directory.path_of(name)
    values = [entry_value(path, body, name) for body in entries[0]]
    try:
        for value in values:
            check(value)
    except (KeyError, ValueError):
        return None
    return values, entries[1]


def _state_of(path: str, name: str, data: bytes) -> tuple[dict[str, Any], FileEnd]:
    """The checked content of a state file, and where its entries end."""
    value, end = _unpack(path, data, name)
    check = CHECKS.get(name)
    if check is not None:
        try:
            check(value)
        except KeyError as error:
            raise _bad(path, f"it has no {error}") from error
        except ValueError as error:
            raise _bad(path, str(error)) from error
    return value, end


def write_state(directory: Directory, name: str, value: Mapping[str, Any]) -> None:
    """Replace a state file, durably; EFBIG if it would be too large to read again.

    A file with text of callers (in the store's root) is first checked with its
    own reader. The file of a partition, written at each roll, has no such text.

    Raises:
        ConfigError: the reader refuses it; nothing was changed.
    """
    data = pack_state(value)
    if name in CHECKS:
        _check_readable(directory, name, data)
    _write(directory, name, data)


def check_state(directory: Directory, name: str, value: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the reader of a state file would refuse the value."""
    _check_readable(directory, name, pack_state(value))


def _check_readable(directory: Directory, name: str, data: bytes) -> None:
    if len(data) > STATE_BYTES_MAX:
        return  # `_write` raises an error for it
    path = directory.path_of(name)
    try:
        _state_of(path, name, data)
    except CorruptCheckpointError as error:
        raise _not_written(path, error.reason) from error


def write_prepared(
    directory: Directory, name: str, text: str, *, in_place: bool = False
) -> bytes:
    """Replace a state file by JSON text as `state_text` makes it. Returns the bytes
    of the file.

    Args:
        in_place: change it in place if a full disk has no room for a second file.
    """
    data = _pack(text)
    _write(directory, name, data, in_place=in_place)
    return data


def _write(
    directory: Directory, name: str, data: bytes, *, in_place: bool = False
) -> None:
    if len(data) > STATE_BYTES_MAX:
        raise too_large(name)
    if in_place:
        write_file_anyway(directory, name, data)
    else:
        directory.write_file(name, data)


def too_large(name: str) -> OSError:
    """The error of a state file that could not be read again."""
    text = f"a state file would have more than {STATE_BYTES_MAX} bytes"
    return OSError(errno.EFBIG, text, name)


def _digest(directory: Directory, name: str) -> str | None:
    try:
        return f"{xxhash.xxh64_intdigest(directory.read_file(name)):016x}"
    except OSError as error:
        # A file that cannot be read is not absent: absence would mean another writer.
        if error.errno in (errno.ENOENT, *NOT_A_STATE_FILE):
            return None
        raise


def store_fingerprint(root: Directory) -> dict[str, str | None]:
    """Shows whether another program has been the writer since: the content of Kafka's
    clean-shutdown marker and recovery points (None: absent)."""
    return {
        "clean_shutdown": _digest(root, CLEAN_SHUTDOWN),
        "recovery_points": _digest(root, RECOVERY_CHECKPOINT),
    }


def digest_of(data: bytes | None) -> str | None:
    """The digest that `store_fingerprint` would return for a file with these bytes."""
    return None if data is None else f"{xxhash.xxh64_intdigest(data):016x}"
