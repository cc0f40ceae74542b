"""Errors as plain values, for another process."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from logstore import errors
from logstore.errors import LogStoreError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.plain_errors import error_of, plain_error

EDGES = [(1 << 63) - 1, -(1 << 63), 1 << 63, -(1 << 63) - 1, 1 << 200]


def told(error: LogStoreError) -> LogStoreError:
    """The error as another process reads it from a file."""
    text = checkpoints.state_text({"error": plain_error(error)})
    return error_of(checkpoints.entry_value("path", text.encode())["error"])


def test_error_keeps_its_kind_text_and_facts() -> None:
    error = errors.CorruptRecordError("broken", path="/a", position=5, offset=9)
    found = told(error)
    assert type(found) is errors.CorruptRecordError
    assert str(found) == str(error)
    assert (found.path, found.position, found.offset) == ("/a", 5, 9)
    full = told(errors.DiskFullError("full", errno=errno.ENOSPC, path="/a"))
    assert isinstance(full, errors.DiskFullError)
    assert full.errno == errno.ENOSPC


@pytest.mark.parametrize("number", EDGES)
def test_number_that_a_file_cannot_hold_is_left_out(number: int) -> None:
    error = errors.ConfigError("no", name="sequence", value=number)
    found = told(error)
    assert isinstance(found, errors.ConfigError)
    assert found.value == (number if -(1 << 63) <= number < 1 << 63 else None)
    assert found.name == "sequence"


def test_error_of_a_kind_of_its_own_is_that_of_its_base() -> None:
    class Own(errors.ReadOnlyError):
        pass

    assert type(told(Own("no"))) is errors.ReadOnlyError


def test_kind_that_is_not_known_here_is_the_base_of_all() -> None:
    for kind in ("SystemExit", "error_text", "Later"):
        found = error_of({"kind": kind, "message": "text", "facts": {"__class__": 1}})
        assert type(found) is LogStoreError
        assert str(found) == "text"


@pytest.mark.parametrize(
    "value",
    [None, {}, {"kind": "ConfigError", "message": "m"},
     {"kind": 1, "message": "m", "facts": {}},
     {"kind": "ConfigError", "facts": {}}],
)  # fmt: skip
def test_value_that_is_no_error_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="an error"):
        error_of(value)
