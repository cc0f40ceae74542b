"""The process that Java asks: ``python -m pyspark_logstore.jvm.helper``.

A request is a line of JSON, so is an answer; ``read`` is answered by an Arrow stream
and a line. One process answers one request after the other, and has at most one stream.
It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from logstore import LogStoreError, TopicPartition
from pyspark_logstore.jvm.conditions import Condition, narrowed
from pyspark_logstore.jvm.plans import plan_json, rest_of, stands, task_from
from pyspark_logstore.read.batch import BatchReader
from pyspark_logstore.read.checks import check_source
from pyspark_logstore.read.columns import arrow_schema, check_schema, source_schema
from pyspark_logstore.read.offsets import Offsets, backlog, from_json
from pyspark_logstore.read.options import SourceOptions, parse, parse_any
from pyspark_logstore.read.stream import StreamReader
from pyspark_logstore.stores import settled, store_at

__all__ = ["Helper", "main"]

Request = Mapping[str, Any]


class JvmStreamReader(StreamReader):
    """Java knows where a batch starts in every version of Spark."""

    _knows_starts = True

    def _is_everything(self, limit: Any) -> bool:
        return bool(limit)


class Helper:
    """Answers requests."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._stream: JvmStreamReader | None = None
        self._stream_options: SourceOptions | None = None

    def answer(self, request: Request) -> Any:
        """The answer to one request.

        Raises:
            LogStoreError: as the method of the reader that the request calls.
        """
        return _ANSWERS[request["do"]](self, request)

    # ------------------------------------------------------------------ both

    def describe(self, request: Request) -> Any:
        """The columns, after a check of the options, of the topics and partitions that
        they name, and of the schema given."""
        options = request["options"]
        parsed, streaming = parse_any(options)
        check_source(parsed, streaming=streaming)
        if request["schema"]:
            schema = _schema(request["schema"])
            check_schema(schema)
        else:
            asked = next(
                (v for k, v in options.items() if k.lower() == "includeheaders"), ""
            )
            headers = asked.strip().lower() == "true"
            schema = source_schema(include_headers=headers)
        return {"schema": schema.json()}

    def stands(self, request: Request) -> Any:
        """Whether a planned range is unchanged."""
        path = _path(_source_options(request))
        task = task_from(request["task"])
        return {"stands": stands(task, request["range"], request["upto"], path)}

    def read(self, request: Request) -> Any:
        """Write the rest of a range as an Arrow stream."""
        schema = _columns(request)
        # Java reads a stream before the reply, so a stream is written even on errors.
        with pa.ipc.new_stream(self._out, arrow_schema(schema)) as stream:
            options = _source_options(request)
            for batch in rest_of(
                task_from(request["task"]),
                request["range"],
                request["offset"],
                schema,
                _path(options),
                options,
            ):
                stream.write_batch(batch)
        return {}

    # ----------------------------------------------------------------- batch

    def plan(self, request: Request) -> Any:
        """The plan of a batch query."""
        options = parse(request["options"], streaming=False)
        conditions = [Condition.of(given) for given in request["conditions"]]
        reader = BatchReader(_columns(request), options)
        path = _path(options)

        def offset_for_time(name: TopicPartition, millis: int) -> int | None:
            return store_at(path).partition(name).offset_for_time(millis)

        def narrow(start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
            return narrowed(conditions, start, end, offset_for_time)

        tasks = settled(lambda: reader.plan(narrow))
        return plan_json([task for task in tasks if task.ranges], path, options)

    # ---------------------------------------------------------------- stream

    def stream(self, request: Request) -> Any:
        """Begin a stream; the requests below are for it."""
        self._stream_options = parse(request["options"], streaming=True)
        self._stream = JvmStreamReader(_columns(request), self._stream_options)
        return {}

    @property
    def _reader(self) -> JvmStreamReader:
        assert self._stream is not None, "no stream was begun"
        return self._stream

    def initial(self, request: Request) -> Any:
        """The start of a new query."""
        return {"offset": json.dumps(self._reader.initialOffset())}

    def latest(self, request: Request) -> Any:
        """The end of the next batch."""
        start = json.loads(request["start"])
        end = self._reader.latestOffset(start, request["all"])
        same = end is start or end == start
        return {"offset": request["start"] if same else json.dumps(end)}

    def report(self, request: Request) -> Any:
        """The ends of the partitions as of the last look."""
        latest = self._reader.reportLatestOffset()
        return {"offset": latest and json.dumps(latest)}

    def available_now(self, request: Request) -> Any:
        """The query ends at what exists at its first request."""
        self._reader.prepareForTriggerAvailableNow()
        return {}

    def batch(self, request: Request) -> Any:
        """The plan of a batch."""
        start, end = json.loads(request["start"]), json.loads(request["end"])
        tasks = self._reader.partitions(start, end)
        assert self._stream_options is not None
        options = self._stream_options
        tasks = [task for task in tasks if task.ranges]
        latest = self._reader.reportLatestOffset()
        lags = _lags(end, latest) if latest else [0]
        return {**plan_json(tasks, _path(options), options), "lag": max(lags)}

    def commit(self, request: Request) -> Any:
        """A batch is complete."""
        self._reader.commit(json.loads(request["end"]))
        return {}

    def lag(self, request: Request) -> Any:
        """The numbers of offsets between the read positions and the ends."""
        lags = _lags(json.loads(request["read"]), json.loads(request["end"]))
        return {
            "lag": {
                "minOffsetsBehindLatest": str(min(lags)),
                "maxOffsetsBehindLatest": str(max(lags)),
                "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
            }
        }


def _lags(read: Any, end: Any) -> list[int]:
    """The offsets between two positions, by partition; at least one number."""
    first, last = from_json(read), from_json(end)
    waiting = backlog({name: first.get(name, 0) for name in last}, last)
    return [waiting.get(name, 0) for name in last] or [0]


_ANSWERS: Final[Mapping[str, Callable[[Helper, Request], Any]]] = {
    "describe": Helper.describe,
    "stands": Helper.stands,
    "read": Helper.read,
    "plan": Helper.plan,
    "stream": Helper.stream,
    "initial": Helper.initial,
    "latest": Helper.latest,
    "report": Helper.report,
    "available now": Helper.available_now,
    "batch": Helper.batch,
    "commit": Helper.commit,
    "lag": Helper.lag,
}


def _source_options(request: Request) -> SourceOptions:
    """Options of a task, whose query may be a batch query or a stream."""
    given = request["options"]
    try:
        return parse(given, streaming=False)
    except LogStoreError:
        return parse(given, streaming=True)


def _path(options: SourceOptions) -> str:
    return os.path.abspath(options.path)


def _schema(text: str) -> Any:
    return StructType.fromJson(json.loads(text))


def _columns(request: Request) -> Any:
    """The columns of a scan; without any, `offset`, to count the rows."""
    schema = _schema(request["schema"])
    return schema if len(schema) else StructType([StructField("offset", LongType())])


def main() -> None:
    """Answer requests until the input ends."""
    # Replies go to the original stdout; anything that other code prints goes to stderr.
    out = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)
    helper = Helper(out)
    for line in sys.stdin.buffer:
        try:
            reply = helper.answer(json.loads(line))
        except Exception as error:
            reply = {"error": {"type": type(error).__name__, "message": str(error)}}
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
