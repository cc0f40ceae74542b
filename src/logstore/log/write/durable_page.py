"""Publishes the durable offset of a log to other processes, after each sync."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.io import layout
from logstore.io.checkpoint.durable_page import PageKey, digest_of, pack_page
from logstore.io.files import held_open
from logstore.log.write.context import LogContext

__all__ = ["DurablePage"]

# Owners of open files, besides the serial numbers of segments.
_serials: Final = itertools.count(-1, -1)


class DurablePage:
    """The file with the durable offset. The log's lock guards it; `SharedSync` also
    writes to it, in a step that needs no lock.

    Invariant: all records below its offset are durable. C writes to it only while it
    has the present cuts.

    Attributes:
        state: the content that C writes.
    """

    __slots__ = ("_context", "_cuts", "_file", "_rest", "_serial", "state")

    def __init__(self, context: LogContext, rest: Callable[[], bool]) -> None:
        """`rest`: asks the log to release its files; a method."""
        self._context = context
        self._rest = rest
        self._serial = next(_serials)
        self._file: native.OpenFile | None = None
        self._cuts = 0
        self.state = native.DurablePageState()

    def tell(self, durable: int, cuts: int) -> None:
        """Publish the durable offset. It never fails: other processes also find it in
        the state file.

        Args:
            cuts: serial number of the newest cut.
        """
        raw = self.state.raw
        if raw.fd == native.PAGE_OFF:
            return
        try:
            if self._file is not None and cuts == self._cuts:
                self._write(self.state.head(), durable)
            else:
                self._begin(durable, cuts)
        except (MemoryError, RecursionError):
            raw.fd = native.PAGE_TO_OPEN  # the next one may have some
        except OSError as error:
            self.close()
            raw.fd = native.PAGE_OFF
            logger.warning(
                "other processes see the durable offset of %s late: %s",
                self._context.name,
                error,
            )

    def _begin(self, durable: int, cuts: int) -> None:
        """Write it whole, at first or after a cut."""
        context, raw = self._context, self.state.raw
        owner = context.services.state.ownership.writer()
        head = b""
        if owner is not None:
            boot_id = context.files.boot_id()
            head = PageKey(boot_id, owner, context.log_id, cuts).head()
        if not head:
            raw.fd = native.PAGE_OFF
            return
        if self._file is None:
            self._open()
        self._write(head, durable)
        self._cuts = cuts

    def _open(self) -> None:
        context = self._context
        directory, descriptors = context.directory, context.services.descriptors
        descriptors.make_room()
        try:
            fd = directory.open(layout.DURABLE, write=True)
        except FileNotFoundError:
            fd = directory.create(layout.DURABLE)
        self._file = held_open(context.files, fd)
        descriptors.insert(self._serial, self._file, self._rest)

    def _write(self, head: bytes, durable: int) -> None:
        assert self._file is not None
        data = pack_page(head, durable)
        self._context.files.write(self._file.fd, data, 0)
        self.state.fill(data, digest_of(head))
        self.state.raw.fd = self._file.fd

    def pause(self) -> None:
        """Publish nothing before the next `tell`: the log is being cut. It cannot fail:
        an undo may have little stack left."""
        raw = self.state.raw
        if raw.fd >= 0:
            raw.fd = native.PAGE_TO_OPEN

    def close(self) -> None:
        """Release the file: the log rests."""
        self.pause()
        if self._file is not None:
            self._file = None
            self._context.services.descriptors.forget(self._serial)
