"""Requests that a process makes by its file, and the answers of the owner: values, and
their bytes (docs/format.md, "Requests of a process").

The content of a request is a line of JSON, followed by the bytes of its batches.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.config import TopicConfig, from_stored, to_stored
from logstore.errors import ConfigError, CorruptCheckpointError, LogStoreError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.answers import Answer, answer_of, answer_text, plain_answer
from logstore.io.checkpoint.ledger import PROCESS_IDENTITY
from logstore.io.checkpoint.process_requests import LONG_ANSWER_BYTES_MAX
from logstore.log.write.staged_files import Staged, StagedLog, logs_of, staged_prefix

__all__ = [
    "Append",
    "Asked",
    "CallerEndedError",
    "Creation",
    "OutdatedChoiceError",
    "Submission",
    "answer_bytes",
    "answer_in",
    "file_of",
    "identity_of",
    "short_answer_bytes",
    "unpacked",
]

_TOPIC_ID: Final = re.compile("[0-9a-f]{32}")


def identity_of(process: str) -> str:
    """The identity of a process with an id."""
    return PROCESS_IDENTITY + process


class OutdatedChoiceError(LogStoreError):
    """The number of partitions of a topic has changed since the partitions of records
    were chosen: nothing was done, and they are chosen again. Not raised to callers."""


class CallerEndedError(LogStoreError):
    """The process that made the request has ended before it took effect: nothing was
    done. Not raised to callers."""


def file_of(process: str, number: int) -> str:
    """The name by which the batches of a request are known while it is carried out: as
    if they were staged in a file."""
    return f"{staged_prefix(identity_of(process))}{number}-0-{process[:16]}"


class Append(NamedTuple):
    """Records to append, to all of their partitions or to none.

    Attributes:
        logs: of each partition; the batches of a log with an empty `file` are in
            `data`.
        data: whole batches.
        partitions: how many partitions topics had when the partitions of records were
            chosen.
        expected_offset: append only if the first record gets this offset; None: any.
    """

    logs: tuple[StagedLog, ...]
    data: bytes
    partitions: dict[str, int]
    expected_offset: int | None = None

    def packed(self) -> bytes:
        """The content of a request."""
        # The same bytes as from `_packed`, which takes longer than everything else that
        # an append does before it waits.
        logs = ",".join([_log_text(log) for log in self.logs])
        counts = [f"{_text_of(topic)}:{n}" for topic, n in self.partitions.items()]
        expected = "null" if self.expected_offset is None else self.expected_offset
        text = (
            f'{{"version":1,"kind":"append","logs":[{logs}],'
            f'"partitions":{{{",".join(counts)}}},"expected_offset":{expected}}}\n'
        )
        return text.encode("utf-8", "surrogatepass") + self.data

    def named(self, file: str) -> tuple[StagedLog, ...]:
        """Its logs, in which the batches that came with it have the name of a file.

        Raises:
            ConfigError: it names no records that can be published.
        """
        logs = [log if log.file else log._replace(file=file) for log in self.logs]
        return tuple(logs_of(Staged(tuple(logs))))


class Creation(NamedTuple):
    """A topic to create.

    Attributes:
        name, partitions, config, exist_ok: as in `Store.create_topic`.
        id: of the new topic, 32 hexadecimal digits. An owner that finds a topic with
            this id continues the work of an earlier owner; "": the owner chooses one.
    """

    name: str
    partitions: int
    config: TopicConfig | None
    exist_ok: bool
    id: str = ""

    def packed(self) -> bytes:
        """The content of a request."""
        config = None if self.config is None else to_stored(self.config)
        return _packed(
            {"version": 1, "kind": "create", **self._asdict(), "config": config}
        )


class Submission(NamedTuple):
    """Staged records to publish, under an identity of their publisher.

    Attributes:
        logs: what was staged.
        identity, sequence, note, metadata, pinned: as in `Store.submit`.
    """

    logs: tuple[StagedLog, ...]
    identity: str
    sequence: int
    note: str = ""
    metadata: bytes = b""
    pinned: bool | None = None

    def packed(self) -> bytes:
        """The content of a request."""
        return _packed(
            {
                "version": 1,
                "kind": "publish",
                **self._asdict(),
                "logs": [list(log) for log in self.logs],
                "metadata": base64.b64encode(self.metadata).decode("ascii"),
            }
        )


Asked: TypeAlias = Append | Creation | Submission


# Made once: `json.dumps` makes one in each call.
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# The names and ids of topics come again and again.
_text_of: Final = functools.lru_cache(maxsize=256)(_encode)


def _log_text(log: StagedLog) -> str:
    """The JSON of the fields of a staged log."""
    topic, partition, magic, records, file, is_alone, first, runs, topic_id = log
    alone = "true" if is_alone else "false"
    name = _encode(file) if file else '""'
    places = ",".join([f"[{pos},{size}]" for pos, size in runs])
    return (
        f"[{_text_of(topic)},{partition},{magic},{records},{name},{alone},{first},"
        f"[{places}],{_text_of(topic_id)}]"
    )


def _packed(value: dict[str, Any], data: bytes = b"") -> bytes:
    return b"%s\n%s" % (_encode(value).encode("utf-8", "surrogatepass"), data)


def unpacked(path: str, content: bytes | None) -> Asked:
    """The value of a request. The fields of a `Submission` are checked like the
    arguments of a caller.

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
            if expected is not None and type(expected) is not int:
                raise ValueError(f"expected_offset is {expected!r:.100}")
            return Append(logs, data, dict(value["partitions"]), expected)
        if value["kind"] == "create":
            config = value["config"]
            return Creation(
                value["name"],
                value["partitions"],
                None if config is None else from_stored(config),
                bool(value["exist_ok"]),
                _topic_id(value.get("id", "")),
            )
        if value["kind"] == "publish":
            return Submission(
                tuple([StagedLog(*row) for row in value["logs"]]),
                value["identity"],
                value["sequence"],
                value["note"],
                base64.b64decode(value["metadata"], validate=True),
                value["pinned"],
            )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise _damaged(path, str(error)) from error
    raise _damaged(path, f"its kind is {value['kind']!r:.100}")


def _topic_id(value: object) -> str:
    if isinstance(value, str) and (not value or _TOPIC_ID.fullmatch(value)):
        return value
    raise ValueError(f"the id of a topic is {value!r:.100}")


def _damaged(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"a request in {path} cannot be used: {reason}; nothing was written",
        path=path,
        reason=reason,
    )


def answer_bytes(answer: Answer) -> bytes:
    """The content of an answer; a short one if it would be too long."""
    content = _bytes(answer)
    if len(content) > LONG_ANSWER_BYTES_MAX:
        return short_answer_bytes(answer)
    return content


def short_answer_bytes(answer: Answer) -> bytes:
    """The content of an answer that says that the answer is too long: the process then
    asks for the part that is remembered of its request."""
    error = answer.error
    if error is None:
        return _bytes(Answer(None, answer.records, (), answer.is_new, is_short=True))
    text = f"{type(error).__name__}: {str(error)[:400]}"
    return _bytes(Answer(LogStoreError(text)))


def _bytes(answer: Answer) -> bytes:
    return answer_text(answer).encode("utf-8", "surrogatepass")


def answer_in(path: str, content: bytes) -> Answer:
    """An answer from its bytes.

    Raises:
        CorruptCheckpointError: it does not have the fields of an answer.
    """
    plain = plain_answer(content)
    return plain or answer_of(path, checkpoints.entry_value(path, content))
