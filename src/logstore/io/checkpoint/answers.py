"""Answers to the requests of processes that have not the store's lock: values, and
their text (docs/format.md, "`.logstore-process-*` and `.logstore-answers-*`")."""

from __future__ import annotations

import base64
import re
from typing import Any, Final, NamedTuple

from logstore.errors import ConfigError, CorruptCheckpointError, LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.plain_errors import error_of, plain_error
from logstore.io.checkpoint.state_fields import boolean, integer
from logstore.io.layout import OFFSET_MAX, TopicPartition

__all__ = ["Answer", "answer_of", "answer_text", "plain_answer"]

# The answer to most appends, as `answer_text` writes it.
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_PLAIN: Final = re.compile(
    (
        r'\{"answer":\{"is_new":true,"is_short":false,"metadata":"","note":"",'
        rf'"offsets":\[\["([A-Za-z0-9._-]+)",{_NUMBER},{_NUMBER},{_NUMBER}\]\],'
        rf'"pinned":false,"records":{_NUMBER}\}},"version":1\}}'
    ).encode()
)


class Answer(NamedTuple):
    """The outcome of a request.

    Attributes:
        error: why it was refused; None: it was carried out.
        records, offsets, is_new, note, metadata, pinned: as in `Publication`.
        is_outdated: nothing was done: a topic has another number of partitions than
            when the records' partitions were chosen.
        is_short: the rest was too long; the caller looks it up in the store's ledger.
    """

    error: LogStoreError | None
    records: int = 0
    offsets: tuple[tuple[TopicPartition, range], ...] = ()
    is_new: bool = False
    note: str = ""
    metadata: bytes = b""
    pinned: bool = False
    is_outdated: bool = False
    is_short: bool = False


def answer_text(answer: Answer) -> str:
    """The text of an answer."""
    if answer.error is not None:
        value: dict[str, Any] = {"error": plain_error(answer.error)}
    elif answer.is_outdated:
        value = {"is_outdated": True}
    else:
        value = {
            "records": answer.records,
            "offsets": [[*key, s.start, s.stop] for key, s in answer.offsets],
            "is_new": answer.is_new,
            "note": answer.note,
            "metadata": base64.b64encode(answer.metadata).decode("ascii"),
            "pinned": answer.pinned,
            "is_short": answer.is_short,
        }
    return checkpoints.state_text({"answer": value})


def plain_answer(content: bytes) -> Answer | None:
    """The answer to an append to one partition, from its bytes; None: it is another
    one, which `answer_of` reads. To parse it as JSON costs more than the rest of a
    request."""
    match = _PLAIN.fullmatch(content)
    if match is None:
        return None
    name, number, begin, end, records = match.groups()
    topic = name.decode("ascii")
    try:
        layout.check_topic_name(topic)
    except ConfigError:
        return None
    span = range(int(begin), int(end))
    offsets = ((TopicPartition(topic, int(number)), span),)
    return Answer(None, int(records), offsets, is_new=True)


def answer_of(path: str, value: dict[str, Any]) -> Answer:
    """An answer from the value of an entry.

    Raises:
        CorruptCheckpointError: it has not the fields of one.
    """
    try:
        return _answer_of(value["answer"])
    except (KeyError, ValueError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptCheckpointError(
            f"an answer in {path} cannot be used: {reason}", path=path, reason=reason
        ) from error


def _answer_of(value: dict[str, Any]) -> Answer:
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    if "error" in value:
        return Answer(error_of(value["error"]))
    if "is_outdated" in value:
        return Answer(None, is_outdated=True)
    offsets: list[tuple[TopicPartition, range]] = []
    for topic, number, begin, end in value["offsets"]:
        layout.check_topic_name(topic)
        for each in (number, begin, end):
            integer("a number of offsets", each, 0, OFFSET_MAX)
        offsets.append((TopicPartition(topic, number), range(begin, end)))
    return Answer(
        None,
        integer("records", value["records"], 0, OFFSET_MAX),
        tuple(offsets),
        boolean("is_new", value["is_new"]),
        _text(value, "note"),
        base64.b64decode(_text(value, "metadata"), validate=True),
        boolean("pinned", value["pinned"]),
        is_short=boolean("is_short", value["is_short"]),
    )


def _text(value: dict[str, Any], name: str) -> str:
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} is not a string")
    return text
