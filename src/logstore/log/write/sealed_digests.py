"""The digests of sealed segments: one small file each, written once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logstore import _native as native
from logstore._native.locks import logger
from logstore.io import layout
from logstore.io.checkpoint.segment_digest import SegmentDigest, hash_log, write_digest
from logstore.io.layout import LOG
from logstore.log.scan import scan_log
from logstore.log.write.context import LogContext
from logstore.segment import Segment

__all__ = ["SealedDigests"]


class SealedDigests:
    """Which sealed segments of a log have a digest. The log's lock guards it.

    Invariant: a segment whose base offset is in `_digested` has a digest, or is
    damaged, and gets none.
    """

    __slots__ = ("_context", "_digested")

    def __init__(self, context: LogContext, digested: set[int]) -> None:
        self._context = context
        self._digested = digested

    def missing(self, segments: tuple[Segment, ...]) -> Iterator[Segment]:
        """The sealed segments of a log without a digest."""
        for segment in segments[:-1]:
            if segment.base_offset not in self._digested:
                yield segment

    def write_all(self, segments: tuple[Segment, ...]) -> None:
        """Write the missing digests."""
        for segment in self.missing(segments):
            self.keep(segment, self.make(segment))

    def keep(self, segment: Segment, digest: SegmentDigest | None) -> None:
        """Write the digest of a segment; None: it gets none."""
        self._digested.add(segment.base_offset)
        if digest is not None:
            write_digest(self._context.directory, digest)

    def make(self, segment: Segment) -> SegmentDigest | None:
        """The digest of a sealed segment whose batches are all valid, else None."""
        directory = self._context.directory
        base, size = segment.base_offset, segment.size
        state = native.SegmentState(base)
        with directory.opened(segment.file.name(LOG)) as fd:
            file_size = directory.files.size(fd)
            scan = scan_log(directory, fd, file_size, state, checks=segment.checks)
        if file_size != size or not scan.is_whole:
            logger.warning("no digest of %s: it is damaged", segment.path)
            return None
        return SegmentDigest(
            base,
            segment.next_offset,
            size,
            state.max_timestamp,
            state.max_timestamp_offset,
            hash_log(directory, base, size),
        )

    def drop(self, segments: Iterable[Segment]) -> None:
        """Remove the digests of segments that are dropped or appended to again."""
        for segment in segments:
            base = segment.base_offset
            self._digested.discard(base)
            self._context.directory.unlink(layout.digest_file(base), missing_ok=True)
