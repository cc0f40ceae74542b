"""Staged records: the values that a caller passes on, and the files that they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import xxhash

from logstore import _native as native
from logstore.config import StoreConfig, TopicConfig, check_int
from logstore.errors import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    RecordTooLargeError,
    storage_error,
)
from logstore.io import layout
from logstore.io.directory import NOT_A_FILE, Directory
from logstore.record.incoming import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


__all__ = ["Staged", "StagedLog"]

IDENTITY_MAX: Final = 1000
# A topic's id has 32 characters; a text longer than this is not an id.
_TOPIC_ID_MAX: Final = 64
_INT32_MAX: Final = (1 << 31) - 1
# A file of up to this many bytes is read when it is checked.
_SMALL_BYTES: Final = 64 << 10


class StagedLog(NamedTuple):
    """The records of a staged file for one partition.

    Attributes:
        topic, partition: which.
        magic: of its batches.
        records: how many.
        file: name of the file in the store's root.
        is_alone: there is nothing else in the file.
        first: offset of the first record in the file.
        runs: (position, bytes) of whole batches in the file, in order.
        topic_id: which of the topics that have had this name, one after the other; ""
            for one that has no id.
    """

    topic: str
    partition: int
    magic: int
    records: int
    file: str
    is_alone: bool
    first: int
    runs: tuple[tuple[int, int], ...]
    topic_id: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of its batches."""
        return sum([size for _, size in self.runs])


class Staged(NamedTuple):
    """Staged records, as a plain value that a process can send to another.

    Attributes:
        logs: for each partition its files, in the order of its records.
    """

    logs: tuple[StagedLog, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the store's root."""
        return tuple(dict.fromkeys(log.file for log in self.logs))

    @property
    def records(self) -> int:
        """How many there are for all partitions."""
        return sum(log.records for log in self.logs)


def check_identity(identity: object, name: str = "identity") -> str:
    """Return `identity` (or another text that is stored with it) if it is valid for a
    publisher, else raise `ConfigError`."""
    if not isinstance(identity, str):
        raise ConfigError(
            f"{name} is {type(identity).__name__}, not a text of at most "
            f"{IDENTITY_MAX} characters; nothing was done",
            name=name,
            value=identity,
        )
    if len(identity) > IDENTITY_MAX:
        raise ConfigError(
            f"{name} has {len(identity)} characters, more than {IDENTITY_MAX}; "
            f"nothing was done",
            name=name,
            value=identity,
        )
    try:
        identity.encode()
    except UnicodeEncodeError as error:
        # Two of these in a row would be read again as another identity.
        raise ConfigError(
            f"{name} {identity[:100]!r} has a lone surrogate at {error.start}; "
            "nothing was done",
            name=name,
            value=identity,
        ) from None
    return identity


def check_sequence(sequence: object, name: str = "sequence") -> int:
    """Return `sequence` if it is valid for a publication, else raise `ConfigError`."""
    check_int(name, sequence, 0, layout.OFFSET_MAX)
    assert isinstance(sequence, int)
    return sequence


def staged_name(identity: str, sequence: int) -> str:
    """A new name for a staged file of a publication."""
    return f"{staged_prefix(identity)}{sequence}-{os.getpid()}-{os.urandom(8).hex()}"


def staged_prefix(identity: str) -> str:
    """The prefix of the names of all staged files of an identity."""
    return f"{layout.STAGED_PREFIX}{xxhash.xxh3_64_hexdigest(identity.encode())}-"


def staged_sequence(name: str, identity: str) -> int | None:
    """The sequence that a staged file is for; None if it is of another identity."""
    rest = name.removeprefix(staged_prefix(identity))
    digits = rest.partition("-")[0]
    if rest == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def logs_of(staged: Staged | Iterable[Staged]) -> list[StagedLog]:
    """The logs of one staged value, or of several in their order. They come from other
    processes, so each field is checked to be one that a `Stage` may have written.

    Raises:
        ConfigError: a field that no stage writes.
    """
    value: Any = staged
    if isinstance(value, Staged):
        value = [value]
    if not hasattr(value, "__iter__"):
        raise _no_staged("it is not what Stage.finish returned", value)
    logs: list[StagedLog] = []
    for result in list(value):
        if not isinstance(result, Staged) or not _is_list(result.logs):
            raise _no_staged("it is not what Stage.finish returned", result)
        logs += map(_checked, result.logs)
    return logs


def check_apart(logs: Iterable[StagedLog]) -> None:
    """Raise `ConfigError` if the same bytes are named twice, which would publish them
    twice: the list has something two times."""
    logs = list(logs)
    if len(logs) == 1 and len(logs[0].runs) == 1:
        return
    ends: dict[str, int] = {}
    for name, pos, size in sorted((log.file, *run) for log in logs for run in log.runs):
        if pos < ends.get(name, 0):
            raise _no_staged(f"it has bytes of {name} from {pos} on twice", name)
        ends[name] = pos + size


def _no_staged(why: str, value: object) -> ConfigError:
    return ConfigError(
        f"the staged records are refused: {why}; nothing was changed",
        name="staged",
        value=value,
    )


def _is_list(value: object) -> bool:
    return isinstance(value, tuple | list)


def _checked(log: Any) -> StagedLog:
    """Return a staged log whose fields have the right types and are in their bounds."""
    if not isinstance(log, StagedLog):
        raise _no_staged(f"a log of it is {type(log).__name__}", log)
    check_staged_name(log.file)
    try:
        layout.check_topic_name(log.topic)
    except ConfigError:
        raise _no_staged("its topic is not a valid topic name", log) from None
    runs: Any = log.runs
    if not _is_list(runs) or not runs:
        raise _no_staged(f"{log.file} has no list of runs", log)
    if not all(_is_list(run) and len(run) == 2 for run in runs):
        raise _no_staged(f"a run of {log.file} is not a pair", log)
    offset_max = layout.OFFSET_MAX
    bounds = [
        ("partition", log.partition, 0, layout.PARTITION_MAX),
        ("magic", log.magic, 1, 2),
        ("records", log.records, 1, offset_max),
        ("first", log.first, 0, offset_max),
    ]
    for pos, size in runs:
        bounds += (
            ("position of a run", pos, 0, offset_max - _INT32_MAX),
            ("size of a run", size, 1, _INT32_MAX),
        )
    for name, value, low, high in bounds:
        # Only an int, and no subclass: these values are compared, added and stored.
        if type(value) is not int or not low <= value <= high:
            shown = repr(value) if isinstance(value, float) else _brief(value)
            raise _no_staged(f"{name} is {shown}, not in [{low}, {high}]", log)
    if log.records > offset_max - log.first:
        raise _no_staged(f"{log.records} records follow offset {log.first}", log)
    if type(log.is_alone) is not bool:
        raise _no_staged("is_alone is neither true nor false", log)
    topic_id: object = log.topic_id
    if not isinstance(topic_id, str) or len(topic_id) > _TOPIC_ID_MAX:
        raise _no_staged("its topic_id is not a topic id", log)
    if type(runs) is tuple and all(type(run) is tuple for run in runs):
        return log
    return log._replace(runs=tuple([(pos, size) for pos, size in runs]))


def _brief(value: object) -> str:
    """An integer without a million digits, or the name of a type, for a message."""
    if type(value) is int:
        return str(value) if abs(value) < 1 << 100 else "an integer that is too large"
    return type(value).__name__


def check_files(
    root: Directory,
    logs: Iterable[StagedLog],
    room: int,
    known_contents: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Raise unless the files of staged logs exist and are as long as they must be.

    Args:
        known_contents: contents that are not in files, by name.

    Returns the contents of the small files, by name, `room` bytes at most in all, and
    the known contents.

    Raises:
        CorruptRecordError: a file is too short.
        StorageError: a file does not exist, or cannot be read.
    """
    contents = dict(known_contents)
    sizes = {name: len(content) for name, content in known_contents.items()}
    for log in logs:
        name = log.file
        if name not in sizes:
            try:
                most = min(_SMALL_BYTES, max(room, 0))
                sizes[name], data = root.read_small(name, most)
            except OSError as error:
                if error.errno not in NOT_A_FILE:
                    raise _cannot_read(root, log, error) from error
                raise not_staged(root, log, 0) from error
            if len(data) == sizes[name]:
                contents[name] = data
                room -= len(data)
        for pos, size in log.runs:
            if pos + size > sizes[name]:
                raise not_staged(root, log, pos)
    return contents


def _cannot_read(root: Directory, log: StagedLog, error: OSError) -> LogStoreError:
    advice = ""
    if isinstance(error, FileNotFoundError):
        advice = (
            "It was published or removed, or staged in a place that this "
            "process does not see."
        )
    return storage_error(error, "read", root.path_of(log.file), advice)


def moved_runs(
    root: Directory,
    log: StagedLog,
    base: int,
    leader_epoch: int,
    config: TopicConfig,
    append_time_ms: int,
) -> Iterator[tuple[Any, int]]:
    """The batches of a staged log with offsets from `base` on: (pointer, size) of one
    run after another, in memory that is reused for the next run.

    Args:
        config: the topic's current settings: no batch may be larger than its limit.
        append_time_ms: the timestamp of batches, if the topic, or a batch itself, says
            that it is the time of the append.

    Raises:
        CorruptRecordError: the file does not contain the staged records.
        RecordTooLargeError: a batch is larger than ``max_message_bytes``.
        StorageError: the file cannot be read.
    """
    moved = _Moved(root, log, base, leader_epoch, config, append_time_ms)
    try:
        with root.opened(log.file) as fd:
            length = root.files.size(fd)
            for pos, size in log.runs:
                if pos < 0 or size <= 0 or pos + size > length:
                    raise not_staged(root, log, pos)
            buffer = native.Buffer(max((size for _, size in log.runs), default=1))
            for pos, size in log.runs:
                n = root.files.read(fd, buffer.view[:size], pos)
                moved.move(buffer.c, n, pos, size)
                yield buffer.c, size
    except OSError as error:
        raise _cannot_read(root, log, error) from error
    moved.end()


def moved_content(
    root: Directory,
    log: StagedLog,
    content: bytes,
    base: int,
    leader_epoch: int,
    config: TopicConfig,
    append_time_ms: int,
) -> bytearray:
    """The batches of a staged log as `moved_runs` gives them, all in one piece.

    Args:
        content: of its file, as `check_files` has read it.
    """
    moved = _Moved(root, log, base, leader_epoch, config, append_time_ms)
    data = bytearray()
    for pos, size in log.runs:
        run = bytearray(content[pos : pos + size])
        moved.move(native.pointer(run), len(run), pos, size)
        data = data + run if data else run
    moved.end()
    return data


class _Moved:
    """Moves the batches of one staged log to their offsets, run by run."""

    __slots__ = ("_base", "_config", "_epoch", "_last_offset", "_log", "_root", "_time")

    def __init__(
        self,
        root: Directory,
        log: StagedLog,
        base: int,
        leader_epoch: int,
        config: TopicConfig,
        append_time_ms: int,
    ) -> None:
        self._root = root
        self._log = log
        self._config = config
        self._base = base
        self._epoch = leader_epoch
        self._time = append_time_ms
        self._last_offset = log.first - 1

    def move(self, data: Any, n: int, pos: int, size: int) -> None:
        """Move the batches of one run, of which `n` bytes were read."""
        log, config = self._log, self._config
        walk = native.shift_offsets(
            data,
            n,
            shift=self._base - log.first,
            last_offset=self._last_offset,
            leader_epoch=self._epoch,
            magic=log.magic,
            max_bytes=config.max_message_bytes,
            timestamp=self._time,
            stamps_all=config.message_timestamp_type == "LogAppendTime",
        )
        if walk.error is not None and walk.error.status == native.E_TOO_LARGE:
            raise _too_large(log, walk.error.found, config.max_message_bytes)
        if walk.error is not None or walk.pos != size:
            raise not_staged(self._root, log, pos + walk.pos)
        if config.compacts:
            # The topic may have been set to compact after they were staged, or handed
            # in.
            self._check_keys(native.bytes_of(data, size))
        self._last_offset = walk.last_offset

    def _check_keys(self, batches: bytes) -> None:
        """Raise `InvalidRecordError` if a record has no key: compaction would remove
        it."""
        log = self._log
        prepare(
            batches,
            max_bytes=self._config.max_message_bytes,
            decompressed_max=StoreConfig().max_batch_decompressed_bytes,
            is_append_time=True,
            where=f"{log.topic}-{log.partition}",
            needs_keys=True,
        )

    def end(self) -> None:
        """Raise unless these were all of its records."""
        log = self._log
        if self._last_offset != log.first + log.records - 1:
            raise not_staged(self._root, log, -1)


def _too_large(log: StagedLog, size: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a batch of {size} bytes was staged for {log.topic}-{log.partition}, whose "
        f"topic has max_message_bytes={limit} now; nothing was published. Stage again, "
        f"or raise the limit",
        limit_name="max_message_bytes",
        limit=limit,
        size=size,
    )


def check_staged_name(name: object) -> None:
    """Raise `ConfigError` if `name` cannot be the name of a staged file."""
    if not isinstance(name, str):
        raise _no_staged(f"its file is {type(name).__name__}, not a name", name)
    rest = name.removeprefix(layout.STAGED_PREFIX)
    if rest == name or not rest.isascii() or not rest.replace("-", "").isalnum():
        raise ConfigError(
            f"{name!r} is not the name of a staged file", name="staged", value=name
        )


def not_staged(root: Directory, log: StagedLog, position: int) -> CorruptRecordError:
    path = root.path_of(log.file)
    return CorruptRecordError(
        f"what was staged for {log.topic}-{log.partition} is incomplete; nothing "
        "was published",
        path=path,
        position=max(position, 0),
        offset=0,
    )
