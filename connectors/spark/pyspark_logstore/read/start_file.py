"""The start offsets of a query, kept until its first batch is complete.

Spark does not persist the start of a new query of a Python source. If the query dies
before its first batch is complete, Spark requests the start again;
``startingOffsets=latest`` is a later offset by then, and the records in between would
be lost. With the options ``readerId`` and ``stateDir``, the first answer is kept in a
file: ``<stateDir>/<readerId>.json``. It is not in the store, since a reader never
writes to it, nor in the checkpoint, since a source does not know its path.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from logstore import ConfigError
from pyspark_logstore.read.offsets import from_json, marks_from_json
from pyspark_logstore.read.options import SourceOptions

__all__ = ["StartFile"]

logger = logging.getLogger("logstore.spark")


class StartFile:
    """The file of one query, or none (an empty path)."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def of(cls, options: SourceOptions) -> StartFile:
        """The file that the options name; none if they do not name one."""
        if not options.reader_id:
            return cls("")
        directory = os.path.abspath(options.state_dir)
        return cls(os.path.join(directory, f"{options.reader_id}.json"))

    def read(self) -> dict[str, dict[str, Any]] | None:
        """The text that was written; None: nothing was written.

        Raises:
            ConfigError: the file holds something else, or cannot be read.
        """
        if not self._path:
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                value: dict[str, dict[str, Any]] = json.load(file)
            from_json(value)
            marks_from_json(value)
            return value
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                f"option stateDir: {self._path} cannot be read: {error.strerror}",
                name="stateDir",
                value=self._path,
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"option stateDir: {self._path} does not hold offsets: {error}. "
                "Remove it to start over",
                name="stateDir",
                value=self._path,
            ) from error

    def write(self, offsets: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the text of offsets; it is on stable storage when this returns.

        Steps: 1. write a temporary file, sync it; 2. rename it (commit); 3. sync the
        directory.

        Raises:
            ConfigError: the directory does not exist, or cannot be written to.
        """
        if not self._path:
            return
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(offsets, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
            self._sync_directory()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise ConfigError(
                f"option stateDir: {self._path} cannot be written: {error.strerror}. "
                f"The directory must be there, and writable for the driver",
                name="stateDir",
                value=self._path,
            ) from error

    def _sync_directory(self) -> None:
        directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def remove(self) -> None:
        """Remove the file: the checkpoint has the offsets now."""
        if self._path:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            except OSError as error:
                # The file only has the start of the query, which the checkpoint now
                # has: this must not end a working query.
                logger.warning("cannot remove %s: %s", self._path, error.strerror)
