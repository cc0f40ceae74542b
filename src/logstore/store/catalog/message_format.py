"""The format in which a topic without its own settings is continued.

A topic that only a broker has written to has no `message_format`. Its logs are
continued in the format that they end with: a broker of 0.11 or later has written
record batches, and consumers that need their headers or producer ids still get them.
The first append persists the format that was found: the logs may be empty later.
`TopicSettings.append_config` asks here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import LogStoreError, storage_error
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.segment import Segment

__all__ = ["continued_format", "last_magic"]

_RECORD_BATCH: Final = 2
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def continued_format(root: Directory, topic: str, numbers: Iterable[int]) -> int:
    """The magic of batches appended to a topic, by its logs in `root`: 2 if one of them
    ends with a batch of magic 2, so that empty partitions follow the others; else the
    default of `TopicConfig`.

    Files that cannot be read are ignored: opening their partition raises the error.

    Raises:
        StorageError: the process lacks descriptors or memory; the next call may
            succeed.
    """
    for number in numbers:
        directory = root.child(layout.partition_directory(topic, number))
        try:
            if last_magic(directory) == _RECORD_BATCH:
                return _RECORD_BATCH
        finally:
            directory.close()
    return TopicConfig().message_format


def last_magic(directory: Directory) -> int | None:
    """The magic of the last intact batch of a log; None if no batch is found."""
    descriptors = Descriptors(directory.files, 8)
    try:
        parsed = map(layout.parse_segment_file, directory.names())
        logs = [file for file in parsed if file and file.suffix == layout.LOG]
        bases = {file.base_offset for file in logs if not file.transition}
        for base in sorted(bases, reverse=True):
            name = layout.segment_file(base, layout.LOG)
            size = directory.stat(name).size
            magic = _magic_in(Segment.of_file(directory, descriptors, name, base, size))
            if magic is not None:
                return magic
    except (OSError, LogStoreError) as error:
        _raise_if_passing(error)
    finally:
        descriptors.close()
    return None


def _magic_in(segment: Segment) -> int | None:
    """The magic of the last intact batch of a segment; None: it has no intact batch."""
    magic = None
    try:
        place = segment.locate(native.OFFSET_MAX)
        for header, _, _ in segment.headers(place, checks=native.CHECK_CRC):
            magic = header.magic
    except (OSError, LogStoreError) as error:
        _raise_if_passing(error)
    return magic


def _raise_if_passing(error: BaseException) -> None:
    """Raise an error after which the next attempt may succeed: the default would be in
    use until the next opening."""
    if isinstance(error, OSError) and error.errno in _PASSING:
        raise storage_error(error, "read", str(error.filename or "a log")) from error
