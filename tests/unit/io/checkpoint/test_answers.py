"""Answers to requests, as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logstore.errors import CorruptCheckpointError, LogStoreError, ReadOnlyError
from logstore.io.checkpoint.answers import (
    Answer,
    answer_of,
    answer_text,
    plain_answer,
)
from logstore.io.layout import TopicPartition

OFFSETS = ((TopicPartition("orders", 0), range(5, 8)),)


def again(answer: Answer) -> Answer:
    return answer_of("file", json.loads(answer_text(answer)))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(None, 3, OFFSETS, True, "note", b"\xff", True),
        Answer(None, 0),
        Answer(None, is_outdated=True),
        Answer(None, 9, (), True, is_short=True),
    ],
    ids=["published", "nothing", "outdated", "short"],
)
def test_answer_is_read_as_it_was_written(answer: Answer) -> None:
    assert again(answer) == answer


def test_refusal_is_an_error_of_its_kind() -> None:
    answer = again(Answer(ReadOnlyError("no")))
    assert isinstance(answer.error, ReadOnlyError)
    assert str(answer.error) == "no"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"answer": []},
        {"answer": {"records": -1}},
        {"answer": {"records": 1, "offsets": [["a/b", 0, 0, 1]]}},
        {"answer": {"records": 1, "offsets": [["a", 0, 0]]}},
        {"answer": {"error": "no"}},
        {"answer": {"error": {"kind": 1, "message": "", "facts": {}}}},
    ],
    ids=["empty", "list", "number", "topic", "row", "error", "kind"],
)
def test_answer_without_its_fields_is_damaged(value: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpointError, match="an answer in file") as caught:
        answer_of("file", value)
    assert caught.value.path == "file"


def test_error_of_another_version_is_an_error() -> None:
    value = {"kind": "NewError", "message": "it says", "facts": {}}
    answer = answer_of("file", {"answer": {"error": value}})
    assert type(answer.error) is LogStoreError
    assert str(answer.error) == "it says"


PLAIN = Answer(None, 3, OFFSETS, is_new=True)


def test_answer_to_an_append_is_read_without_json() -> None:
    """The result equals that of JSON."""
    for answer in (
        PLAIN,
        Answer(None, 0, ((TopicPartition("A.b_c-9", 77), range(0)),), is_new=True),
        Answer(None, 1, ((TopicPartition("a", 0), range(10**17, 10**17 + 1)),), True),
    ):
        assert plain_answer(answer_text(answer).encode()) == again(answer) == answer


@pytest.mark.parametrize(
    "text",
    [
        answer_text(Answer(None, is_outdated=True)),
        answer_text(Answer(ReadOnlyError("no"))),
        answer_text(PLAIN._replace(note="n")),
        answer_text(PLAIN._replace(metadata=b"m")),
        answer_text(PLAIN._replace(pinned=True)),
        answer_text(PLAIN._replace(is_new=False)),
        answer_text(PLAIN._replace(is_short=True)),
        answer_text(PLAIN._replace(offsets=OFFSETS * 2)),
        answer_text(PLAIN._replace(offsets=())),
        answer_text(PLAIN).replace("orders", ".."),
        answer_text(PLAIN).replace("orders", "o" * 250),
        answer_text(PLAIN).replace("orders", "o/s"),
        answer_text(PLAIN).replace("5,8", "05,8"),
        answer_text(PLAIN).replace("5,8", "-5,8"),
        answer_text(PLAIN).replace("5,8", f"5,{10**18}"),
        answer_text(PLAIN).replace('"version":1', '"version":2'),
        answer_text(PLAIN) + " ",
        "",
    ],
)
def test_all_other_answers_are_left_to_the_usual_way(text: str) -> None:
    assert plain_answer(text.encode()) is None
