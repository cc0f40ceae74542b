"""Sealed segments that are served from memory, each request with a latency."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore import TopicConfig
from logstore.io.directory import Directory
from logstore.io.layout import INDEX, LOG, TIME_INDEX
from logstore.io.read_ahead import FarPlace
from logstore.io.segment_place import Placed
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.read.view import View
from logstore.log.write.writer import PartitionWriter
from logstore.segment import Segment
from logstore.store.partition.partition_views import PartitionViews

LATENCY_S = 0.002
BLOCK_BYTES = 64 << 10
# After this time, no more requests come before the first pending one is answered.
ALONE_S = 0.2


def far_store(path: Path, segment_bytes: int, value_bytes: int) -> Path:
    """A store with two topics that have 12 sealed segments each: "one" in one
    partition, "three" in three. A batch has 8 records."""
    with logstore.open(path) as store:
        for topic, count in (("one", 1), ("three", 3)):
            config = TopicConfig(segment_bytes=segment_bytes)
            created = store.create_topic(topic, count, config=config)
            for partition in created.partitions:
                while len(partition.segments) <= 12 // count:
                    values = [os.urandom(value_bytes) for _ in range(8)]
                    partition.append_many(values)
    return path


class Request(NamedTuple):
    """A request for bytes of a log that was answered.

    Attributes:
        topic_partition: whose log.
        base_offset: of the segment.
        pos, size: the bytes.
        at_once: how many requests were running when it was answered, with itself.
    """

    topic_partition: str
    base_offset: int
    pos: int
    size: int
    at_once: int


class MemoryPlace(FarPlace):
    """Serves the segments given to `take`, each request after `LATENCY_S`, and counts.

    Attributes:
        requests: for bytes of logs, in the order of their answers.
        index_requests: number of requests for indexes.
        most: maximum number of concurrent requests.
        is_patient: pending requests are answered when there are `in_flight` of them, or
            no more have come for `ALONE_S`: so their number does not depend on the
            speed of the reader.
        before: called before each request for bytes, in its thread.
        cut: available bytes of a segment, by its serial number; default: all.
    """

    block_bytes = BLOCK_BYTES

    def __init__(self, *, is_patient: bool = False) -> None:
        super().__init__()
        self.is_patient = is_patient
        self.requests: list[Request] = []
        self.index_requests = 0
        self.most = 0
        self.before: Callable[[Placed, int], object] = lambda segment, pos: None
        self.cut: dict[int, int] = {}
        self._content: dict[tuple[int, str], bytes] = {}
        self._running = 0
        # Number of concurrent requests at each answer.
        self._answered: list[int] = []
        self._changed = threading.Condition()

    def take(self, segment: Segment) -> None:
        """Serve a segment from now on."""
        for suffix in (LOG, INDEX, TIME_INDEX):
            with contextlib.suppress(FileNotFoundError):
                data = segment.file.directory.read_file(segment.file.name(suffix))
                self._content[segment.file.serial, suffix] = data
        segment.place = self

    def request(self, segment: Placed, view: memoryview, pos: int) -> int:
        self.before(segment, pos)
        content = self._content[segment.file.serial, LOG]
        end = self.cut.get(segment.file.serial, len(content))
        data = content[pos : min(pos + len(view), end)]
        at_once = self._run()
        view[: len(data)] = data
        name = segment.file.directory.path.rpartition("/")[2]
        request = Request(name, segment.base_offset, pos, len(view), at_once)
        self.requests.append(request)
        return len(data)

    def request_index(self, segment: Placed, suffix: str) -> bytes:
        self.index_requests += 1
        self._run()
        with contextlib.suppress(KeyError):
            return self._content[segment.file.serial, suffix]
        raise FileNotFoundError(suffix)

    def _run(self) -> int:
        with self._changed:
            number = len(self._answered)
            self._running += 1
            self.most = max(self.most, self._running)
            if self._running >= self.in_flight:
                self._answer()
        time.sleep(LATENCY_S)
        with self._changed:
            if self.is_patient:
                self._changed.wait_for(lambda: len(self._answered) > number, ALONE_S)
            if len(self._answered) == number:
                self._answer()
            self._running -= 1
            return self._answered[number]

    def _answer(self) -> None:
        """Answer all pending requests, if it is patient."""
        self._answered.append(self._running)
        self._changed.notify_all()

    def mean(self) -> float:
        """Average number of concurrent requests when one was answered, without the
        first and the last ones."""
        steady = self.requests[2 * self.in_flight : -2 * self.in_flight]
        return sum(request.at_once for request in steady) / len(steady)

    @property
    def log_bytes(self) -> int:
        """Total size of the served logs."""
        return sum(len(d) for (_, suffix), d in self._content.items() if suffix == LOG)

    @property
    def segments(self) -> int:
        """Number of served segments."""
        return sum(suffix == LOG for _, suffix in self._content)


def serve(patch: pytest.MonkeyPatch, place: MemoryPlace, *, guard: bool = True) -> None:
    """Make every read find sealed segments in a far place. With `guard`, it is an error
    to open their files."""
    taken: set[tuple[Directory, str]] = set()
    view_of, open_file = PartitionViews.view_of, Directory.open
    find, find_since = PartitionViews.find, PartitionViews.find_since

    def take(log: PartitionWriter | ReadOnlyLog, segments: tuple[Segment, ...]) -> None:
        for segment in segments[:-1]:
            if segment.place is segment.file:
                place.take(segment)
                for suffix in (LOG, INDEX, TIME_INDEX):
                    taken.add((log.directory, segment.file.name(suffix)))
                segment.file.forget()

    def far_view_of(views: PartitionViews, seen: Any, durable_only: bool) -> View:
        take(views.log, seen.segments)
        return view_of(views, seen, durable_only)

    def far_find(views: PartitionViews, *arguments: Any) -> Any:
        take(views.log, views.log.segments)
        return find(views, *arguments)

    def far_find_since(views: PartitionViews, *arguments: Any) -> Any:
        take(views.log, views.log.segments)
        return find_since(views, *arguments)

    def near(directory: Directory, name: str, **options: Any) -> int:
        assert (directory, name) not in taken, f"{name} is far away"
        return open_file(directory, name, **options)

    patch.setattr(PartitionViews, "view_of", far_view_of)
    patch.setattr(PartitionViews, "find", far_find)
    patch.setattr(PartitionViews, "find_since", far_find_since)
    if guard:
        patch.setattr(Directory, "open", near)
