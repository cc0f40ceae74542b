"""Requests to a broker, byte by byte: fields that no client library exposes.

A broker stores the batches of a produce request unchanged, except for its own fields:
offset, leader epoch, and the time of the append.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NamedTuple

__all__ = ["Produced", "Wire", "WireError"]

_PRODUCE, _LIST_OFFSETS, _CREATE_TOPICS = 0, 2, 19
_LIST_OFFSETS_VERSION, _CREATE_TOPICS_VERSION = 1, 2
_LATEST = -1
# The newest with message sets, and the oldest that every release takes with batches.
_PRODUCE_VERSIONS = {0: 2, 1: 2, 2: 3}
# A topic appears some time after the port is open, and after its creation is answered.
_UNKNOWN_TOPIC, _NOT_LEADER = 3, 6
# The broker has not reached its controller yet, so it cannot create a topic.
_NO_BROKER = 38
_TIMEOUT_MS = 60_000
_SECONDS_MAX = 60
_POLL_SECONDS = 0.2


class WireError(Exception):
    """A broker refused a request; the message has its error codes."""


class Produced(NamedTuple):
    """The answer for one topic.

    Attributes:
        error: 0 none; else Kafka's code.
        offset: of the first record.
        time_ms: of the append, if the topic has LogAppendTime; else -1.
    """

    error: int
    offset: int
    time_ms: int


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class Wire:
    """One connection; a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), _SECONDS_MAX)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        self._socket.close()

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        """The answer to a request, after its correlation id."""
        request = struct.pack(">hhih", api, version, 1, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._stream.read(4))
        return self._stream.read(size)[4:]

    def create_topics(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Create topics of one partition with these settings, all in one request, as
        soon as the broker can.

        Raises:
            WireError: the broker refused one.
        """
        end = time.monotonic() + _SECONDS_MAX
        while True:
            refused = self._create_topics(topics)
            if not refused:
                return
            is_late = time.monotonic() > end
            if is_late or {error for error, _ in refused.values()} != {_NO_BROKER}:
                raise WireError(str(refused))
            time.sleep(_POLL_SECONDS)

    def _create_topics(
        self, topics: Mapping[str, Mapping[str, str]]
    ) -> dict[str, tuple[int, str]]:
        """The error codes and messages of the topics that were refused."""
        body = struct.pack(">i", len(topics))
        for name, settings in topics.items():
            body += _string(name) + struct.pack(">ihi", 1, 1, 0)
            body += struct.pack(">i", len(settings))
            for key, value in settings.items():
                body += _string(key) + _string(value)
        body += struct.pack(">i?", _TIMEOUT_MS, False)
        answer = self._ask(_CREATE_TOPICS, _CREATE_TOPICS_VERSION, body)
        (count,) = struct.unpack_from(">i", answer, 4)
        pos, refused = 8, {}
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, pos)
            name = answer[pos + 2 : pos + 2 + length].decode()
            pos += 2 + length
            error, length = struct.unpack_from(">hh", answer, pos)
            pos += 4
            message = answer[pos : pos + max(length, 0)].decode()
            pos += max(length, 0)
            if error:
                refused[name] = error, message
        return refused

    def produce(self, batches: Mapping[str, bytes]) -> dict[str, Produced]:
        """Append batches to topics of one partition, a batch (or a message set of
        magic 1) for each, all of the same magic; waits until the topics are there."""
        answers: dict[str, Produced] = {}
        left, end = dict(batches), time.monotonic() + _SECONDS_MAX
        while left:
            found = self._produce(left)
            for name, answer in found.items():
                is_late = time.monotonic() > end
                if answer.error not in (_UNKNOWN_TOPIC, _NOT_LEADER) or is_late:
                    answers[name] = answer
                    del left[name]
            if left:
                time.sleep(_POLL_SECONDS)
        return answers

    def end_offsets(self, topics: Iterable[str]) -> dict[str, int]:
        """One past the last record of topics of one partition, as soon as all of them
        have been loaded.

        Raises:
            WireError: the broker has not loaded one.
        """
        names, end = list(topics), time.monotonic() + _SECONDS_MAX
        while True:
            found = self._list_offsets(names)
            late = {name: error for name, (error, _) in found.items() if error}
            if not late:
                return {name: offset for name, (_, offset) in found.items()}
            if time.monotonic() > end:
                raise WireError(f"not loaded: {late}")
            time.sleep(_POLL_SECONDS)

    def _list_offsets(self, names: list[str]) -> dict[str, tuple[int, int]]:
        body = struct.pack(">ii", -1, len(names))
        for name in names:
            body += _string(name) + struct.pack(">iiq", 1, 0, _LATEST)
        answer = self._ask(_LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
        (count,) = struct.unpack_from(">i", answer)
        pos, found = 4, {}
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, pos)
            name = answer[pos + 2 : pos + 2 + length].decode()
            # After the name: the number of partitions, and the number of this one.
            error, _, offset = struct.unpack_from(">hqq", answer, pos + 2 + length + 8)
            found[name] = error, offset
            pos += 2 + length + 8 + 18
        return found

    def _produce(self, batches: Mapping[str, bytes]) -> dict[str, Produced]:
        magic = next(iter(batches.values()))[16]
        version = _PRODUCE_VERSIONS[magic]
        body = _string(None) if version >= 3 else b""
        body += struct.pack(">hii", -1, _TIMEOUT_MS, len(batches))
        for name, batch in batches.items():
            assert batch[16] == magic
            body += _string(name) + struct.pack(">iii", 1, 0, len(batch))
            body += bytes(8) + batch[8:]  # a client's offsets begin at 0
        answer = self._ask(_PRODUCE, version, body)
        (count,) = struct.unpack_from(">i", answer)
        pos, found = 4, {}
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, pos)
            name = answer[pos + 2 : pos + 2 + length].decode()
            # After the name: the number of partitions, and the number of this one.
            fields = struct.unpack_from(">hqq", answer, pos + 2 + length + 8)
            found[name] = Produced(*fields)
            pos += 2 + length + 8 + 18
        return found
