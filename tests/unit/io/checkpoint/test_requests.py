"""Requests to publish, of one process to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.errors import CorruptCheckpointError, ReadOnlyError
from logstore.io import layout
from logstore.io.checkpoint.requests import (
    Answer,
    OpenRequest,
    RequestFile,
    is_request,
    pack_request,
    request_name,
    requested_sequence,
    unique_part,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

NAME = request_name("me", 7, "1-" + "0" * 16)
LOGS = [["file", "orders", 0]]
OFFSETS = ((TopicPartition("orders", 0), range(5, 8)),)
PUBLISHED = Answer(None, 3, OFFSETS, True, "note", b"\xff", True)


def handed_in(root: Directory, note: str = "note") -> RequestFile:
    data = pack_request(LOGS, "me", 7, note, b"\0", None)
    return RequestFile(root, NAME, data)


def test_request_is_read_as_it_was_handed_in(root: Directory) -> None:
    mine, owners = handed_in(root), OpenRequest(root, NAME)
    request = owners.request
    assert request[:6] == (LOGS, "me", 7, "note", b"\0", None)
    assert not request.is_answered
    assert mine.is_there
    assert mine.answer() is None
    owners.answer(PUBLISHED)
    assert mine.answer() == PUBLISHED
    assert OpenRequest(root, NAME).request.is_answered
    owners.remove()
    assert not mine.is_there
    assert mine.answer() == PUBLISHED  # it has the file open
    mine.close()


def test_refusal_reaches_the_one_who_asked(root: Directory) -> None:
    mine = handed_in(root)
    OpenRequest(root, NAME).answer(Answer(ReadOnlyError("no")))
    answer = mine.answer()
    assert answer is not None
    assert isinstance(answer.error, ReadOnlyError)
    mine.close()


def test_request_that_was_handed_in_anew_stays(root: Directory, tmp_path: Path) -> None:
    """The owner removes what it has answered, and the one who asked what it has handed
    in: not what has the same name since."""
    first, owners = handed_in(root), OpenRequest(root, NAME)
    second = handed_in(root, "another note")
    owners.remove()
    assert second.is_there
    first.remove()
    assert second.is_there
    assert OpenRequest(root, NAME).request.note == "another note"
    second.remove()
    assert not (tmp_path / NAME).exists()
    owners.remove()  # it is gone: no error
    first.close()
    second.close()


def test_answer_that_is_not_whole_is_none_yet(root: Directory, tmp_path: Path) -> None:
    mine, size = handed_in(root), (tmp_path / NAME).stat().st_size
    OpenRequest(root, NAME).answer(PUBLISHED)
    whole = (tmp_path / NAME).read_bytes()
    for end in range(size, len(whole)):
        with (tmp_path / NAME).open("r+b") as file:
            file.truncate(end)
        assert mine.answer() is None
        with (tmp_path / NAME).open("r+b") as file:
            file.write(whole)
    assert mine.answer() == PUBLISHED
    mine.close()


def test_damaged_request_is_a_named_error(root: Directory, tmp_path: Path) -> None:
    handed_in(root).close()
    data = bytearray((tmp_path / NAME).read_bytes())
    data[-5] ^= 1
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"request .* cannot be used"):
        OpenRequest(root, NAME)
    (tmp_path / NAME).unlink()
    with pytest.raises(FileNotFoundError):
        OpenRequest(root, NAME)
    (tmp_path / NAME).mkdir()
    with pytest.raises(CorruptCheckpointError):
        OpenRequest(root, NAME)


def test_name_tells_identity_and_sequence() -> None:
    """Also of a request that was put aside."""
    assert is_request(NAME)
    assert not is_request(NAME + ".tmp")
    assert requested_sequence(NAME, "me") == 7
    assert requested_sequence(NAME, "you") is None
    aside = NAME.replace(layout.REQUEST_PREFIX, layout.REFUSED_PREFIX)
    assert requested_sequence(aside, "me") == 7
    assert not is_request(aside)
    assert unique_part(NAME) == "1-" + "0" * 16
    assert unique_part("x") != unique_part("x")
