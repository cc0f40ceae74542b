"""The process that serves requests of Java over its pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa

import logstore
from pyspark_logstore.read.columns import source_schema

SCHEMA = source_schema(include_headers=False).json()


class Asked:
    """A helper process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_logstore.jvm.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def send(self, operation: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"do": operation, **arguments})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, operation: str, **arguments: Any) -> Any:
        self.send(operation, **arguments)
        return self.answer()

    def rows(self, operation: str, **arguments: Any) -> list[int]:
        """The offsets of the stream before the answer."""
        self.send(operation, **arguments)
        assert self.process.stdout is not None
        with pa.ipc.open_stream(self.process.stdout) as stream:
            offsets: list[int] = stream.read_all().column("offset").to_pylist()
            return offsets


@pytest.fixture
def helper() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    assert asked.process.stdin is not None
    asked.process.stdin.close()
    assert asked.process.wait(30) == 0  # it ends with its input
    assert asked.process.stdout is not None
    asked.process.stdout.close()


def test_errors_are_answers_and_the_next_request_is_answered(
    helper: Asked, writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic()
    wrong = helper.ask("describe", options={"path": "/x"}, schema=None)
    assert wrong["error"]["type"] == "ConfigError"
    assert "subscribe" in wrong["error"]["message"]
    options = {"path": writer.path, "subscribe": "orders"}
    assert helper.ask("describe", options=options, schema=None)["schema"] == SCHEMA
    options = {"path": "/x", "subscribe": "orders"}
    gone = helper.ask("describe", options=options, schema=None)
    assert gone["error"]["type"] == "StoreNotFoundError"
    gone = helper.ask("plan", options=options, schema=SCHEMA, conditions=[])
    assert gone["error"]["type"] == "StoreNotFoundError"


def test_rows_come_as_a_stream_and_then_an_answer(
    helper: Asked, writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic(count=50)
    options = {"path": writer.path, "subscribe": "orders"}
    condition = {"column": "offset", "is": ">=", "values": [40]}
    plan = helper.ask("plan", options=options, schema=SCHEMA, conditions=[condition])
    assert plan["counts"] == {"count": 10, "min": 40, "max": 49}
    (task,) = plan["tasks"]
    read = {"options": options, "schema": SCHEMA, "task": task["task"], "range": 0}
    assert helper.rows("read", **read, offset=45) == list(range(45, 50))
    assert helper.answer() == {}


def test_rows_of_a_request_that_cannot_be_are_an_empty_stream(
    helper: Asked, writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    """Java waits for a stream, then for the answer that has the error."""
    make_topic(count=50)
    options = {"path": writer.path, "subscribe": "orders"}
    assert helper.rows("read", options=options, schema=SCHEMA, task="") == []
    assert helper.answer()["error"]["type"] == "JSONDecodeError"


def test_stream_is_that_of_the_python_source(
    helper: Asked, writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    """Limits are included, which Python sources have from Spark 4.2 on."""
    make_topic(count=50)
    options = {
        "path": writer.path,
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20",
    }
    assert helper.ask("stream", options=options, schema=SCHEMA) == {}
    start = helper.ask("initial")["offset"]
    assert json.loads(start)["orders"]["0"] == 0
    end = helper.ask("latest", start=start, all=False)["offset"]
    assert json.loads(end)["orders"]["0"] == 20
    everything = helper.ask("latest", start=start, all=True)["offset"]
    assert json.loads(everything)["orders"]["0"] == 50
    (task,) = helper.ask("batch", start=start, end=end)["tasks"]
    assert [(r["start"], r["stop"]) for r in task["ranges"]] == [(0, 20)]
    lag = helper.ask("lag", read=end, end=helper.ask("report")["offset"])["lag"]
    assert lag["maxOffsetsBehindLatest"] == "30"
    assert helper.ask("latest", start=everything, all=False)["offset"] == everything
    assert helper.ask("commit", end=end) == {}
