"""Requests that a process makes by its file, and the answers of the owner: values, and
their bytes (docs/format.md, "Requests of a process").

The content of a request is a line of JSON, followed by the bytes of its batches.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from logstore.config import TopicConfig, from_stored, to_stored
from logstore.errors import ConfigError, CorruptCheckpointError, LogStoreError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.process_requests import ANSWER_BYTES_MAX
from logstore.io.checkpoint.requests import Answer, answer_of, answer_text
from logstore.io.checkpoint.state_fields import integer
from logstore.io.layout import OFFSET_MAX
from logstore.log.write.staged_files import Staged, StagedLog, logs_of, staged_prefix

__all__ = [
    "PROCESS_IDENTITY",
    "Append",
    "Creation",
    "OutdatedChoiceError",
    "answer_bytes",
    "answer_in",
    "file_of",
    "identity_of",
    "unpacked",
]

# The identities of processes begin so.
PROCESS_IDENTITY: Final = "process:"


def identity_of(process: str) -> str:
    """The identity of a process with an id."""
    return PROCESS_IDENTITY + process


class OutdatedChoiceError(LogStoreError):
    """A topic has another number of partitions than when the partitions of records were
    chosen: nothing was done, and they are chosen again. No caller sees it."""


def file_of(process: str, number: int) -> str:
    """The name by which the batches of a request are known while it is carried out: as
    if they were staged in a file."""
    return f"{staged_prefix(identity_of(process))}{number}-0-{process[:16]}"


class Append(NamedTuple):
    """Records that are to be appended, to all of their partitions or to none.

    Attributes:
        logs: of each partition; those with an empty `file` are in `data`.
        data: whole batches.
        partitions: how many partitions topics had when the partitions of records were
            chosen.
        expected_offset: of the first record, if it is to be appended; None: any.
    """

    logs: tuple[StagedLog, ...]
    data: bytes
    partitions: dict[str, int]
    expected_offset: int | None = None

    def packed(self) -> bytes:
        """The content of a request."""
        value = {
            "version": 1,
            "kind": "append",
            "logs": [list(log) for log in self.logs],
            "partitions": self.partitions,
            "expected_offset": self.expected_offset,
        }
        return _packed(value, self.data)

    def named(self, file: str) -> tuple[StagedLog, ...]:
        """Its logs, in which the batches that came with it have the name of a file.

        Raises:
            ConfigError: it names no records that can be published.
        """
        logs = [log if log.file else log._replace(file=file) for log in self.logs]
        return tuple(logs_of(Staged(tuple(logs))))


class Creation(NamedTuple):
    """A topic that is to be made.

    Attributes:
        name, partitions, config, exist_ok: as in `Store.create_topic`.
    """

    name: str
    partitions: int
    config: TopicConfig | None
    exist_ok: bool

    def packed(self) -> bytes:
        """The content of a request."""
        config = None if self.config is None else to_stored(self.config)
        return _packed(
            {"version": 1, "kind": "create", **self._asdict(), "config": config}
        )


def _packed(value: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n" + data


def unpacked(path: str, content: bytes | None) -> Append | Creation:
    """The value of a request.

    Raises:
        CorruptCheckpointError: its bytes are damaged.
        UnsupportedError: a later version wrote it.
    """
    if content is None:
        raise _damaged(path, "its checksum differs")
    text, _, data = content.partition(b"\n")
    value = checkpoints.entry_value(path, text)
    try:
        if value["kind"] == "append":
            logs = tuple([StagedLog(*row) for row in value["logs"]])
            expected = value["expected_offset"]
            if expected is not None:
                expected = integer("expected_offset", expected, 0, OFFSET_MAX)
            return Append(logs, data, dict(value["partitions"]), expected)
        if value["kind"] == "create":
            config = value["config"]
            return Creation(
                value["name"],
                value["partitions"],
                None if config is None else from_stored(config),
                bool(value["exist_ok"]),
            )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise _damaged(path, str(error)) from error
    raise _damaged(path, f"its kind is {value['kind']!r:.100}")


def _damaged(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"a request in {path} cannot be used: {reason}; nothing was written",
        path=path,
        reason=reason,
    )


def answer_bytes(answer: Answer) -> bytes:
    """The content of an answer. One that is too long says so, and the process asks what
    is remembered of its request."""
    for short in (answer, _shortened(answer)):
        content = answer_text(short).encode("utf-8", "surrogatepass")
        if len(content) <= ANSWER_BYTES_MAX:
            return content
    raise AssertionError("a short answer is too long")


def _shortened(answer: Answer) -> Answer:
    error = answer.error
    if error is None:
        # Its offsets are asked for.
        return Answer(None, answer.records, (), answer.is_new)
    return Answer(LogStoreError(f"{type(error).__name__}: {str(error)[:400]}"))


def answer_in(path: str, content: bytes) -> Answer:
    """An answer from its bytes.

    Raises:
        CorruptCheckpointError: it has not the fields of one.
    """
    return answer_of(path, checkpoints.entry_value(path, content))
