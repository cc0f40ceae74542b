"""One partition as a scan sees it: a view, bounds, and how to decode it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.log.read.corruption import DamagePolicy
from logstore.log.read.view import View
from logstore.record.decoder import ChunkReader

__all__ = ["Log"]


class Log(NamedTuple):
    """A partition at the time when a scan began.

    Attributes:
        topic, number: which partition.
        view: its segments and bounds.
        start, stop: the offsets to read, half open.
        make_reader: returns a new decoder for a read that begins at an offset; the
            second argument says whether headers are wanted.
        policy: what to do about damage.
        go_on: returns the present state of the partition from an offset on; None: the
            scan ends before the end of the log.
    """

    topic: str
    number: int
    view: View
    start: int
    stop: int
    make_reader: Callable[[int, bool], ChunkReader]
    policy: DamagePolicy
    go_on: Callable[[int], Log] | None = None
