"""The bytes of requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logstore.log.write.calls import Append, Creation, Submission, unpacked
from logstore.log.write.staged_files import StagedLog

LOG = StagedLog("a", 3, 2, 10, "", False, 0, ((0, 99),), "0a" * 16)
FILE = StagedLog("b.c-d_e", 0, 1, 7, ".logstore-staged-x-1-2-3", True, 5, (), "")


def as_json(value: Any) -> bytes:
    """The documented format: a line of JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"


@pytest.mark.parametrize(
    "asked",
    [
        Append((LOG,), b"data\n\0", {}),
        Append((LOG, LOG._replace(partition=4)), b"", {"a": 5, "\u2603": 1}, 77),
        Append((FILE._replace(runs=((1, 2), (30, 4))),), b"", {}, 0),
        Append((FILE._replace(topic_id='q"\\\u2603\ud800'),), b"x", {}),
        Append((), b"", {}),
    ],
    ids=["one", "two", "file", "text", "none"],
)
def test_append_is_a_line_of_json_and_its_batches(asked: Append) -> None:
    """The bytes equal a request that is encoded as a whole, and decode to the same
    value."""
    content = asked.packed()
    value = {
        "version": 1,
        "kind": "append",
        "logs": [list(log) for log in asked.logs],
        "partitions": asked.partitions,
        "expected_offset": asked.expected_offset,
    }
    assert content == as_json(value) + asked.data
    found = unpacked("file", content)
    assert isinstance(found, Append)
    assert found._replace(logs=()) == asked._replace(logs=())
    assert json.dumps(found.logs) == json.dumps(asked.logs)


@pytest.mark.parametrize(
    "asked",
    [
        Creation("a", 3, None, True),
        Submission((), "x", 1, "\u2603", b"\0m", True),
        Submission((FILE,), "x", 1),
    ],
    ids=["creation", "metadata", "file"],
)
def test_other_requests_are_read_as_they_were_written(
    asked: Creation | Submission,
) -> None:
    content = asked.packed()
    found = unpacked("file", content)
    assert json.dumps(found, default=repr) == json.dumps(asked, default=repr)
    assert content == as_json(json.loads(content))
