"""Tasks read by Java's reader and by Python's, without Spark.

The plan is the same as for Spark's driver; each reader opens the store again, like an
executor.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from logstore.io.layout import parse_segment_file
from pyspark_logstore import jvm
from pyspark_logstore.jvm.helper import Helper
from pyspark_logstore.jvm.plans import task_from
from pyspark_logstore.read.columns import source_schema
from pyspark_logstore.read.options import parse
from pyspark_logstore.read.tasks import read_task
from pyspark_logstore.stores import reopen_store
from support.java_decoder import BUILD

SCHEMA = source_schema(include_headers=True)
_JAR = Path(jvm.__file__).with_name(jvm.JAR)
_OPENS = "--add-opens=java.base/java.nio=ALL-UNNAMED"

Row = list[Any]


class Outcome(NamedTuple):
    """Rows and error of a reader.

    Attributes:
        rows: before the error; ``[offset, partition, key, value, micros, type of
            timestamp, headers]``.
        error: its class and text; "" for none.
        ranges_of_python: how many Java left to Python.
        damage: the first offset of damage, from an error of Python; -1: none.
    """

    rows: list[Row]
    error: str
    ranges_of_python: int = 0
    damage: int = -1

    @property
    def offsets(self) -> list[int]:
        return [row[0] for row in self.rows]


def plan_of(
    options: Mapping[str, str], conditions: Sequence[Mapping[str, Any]] = ()
) -> Any:
    """The plan of a query, in the form that Java gets. Raises the driver's errors."""
    request = {
        "options": dict(options),
        "schema": SCHEMA.json(),
        "conditions": list(conditions),
    }
    reopen_store(os.path.abspath(options["path"]))
    return Helper(io.BytesIO()).plan(request)


def by_python(tasks: Sequence[Any], options: Mapping[str, str]) -> Outcome:
    """Outcome of the format ``logstore`` for the tasks of a plan."""
    path = os.path.abspath(options["path"])
    rows: list[Row] = []
    try:
        reopen_store(path)
        parsed = parse(dict(options), streaming=False)
        for task in tasks:
            for batch in read_task(task_from(task["task"]), SCHEMA, path, parsed):
                rows += _rows(batch)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Outcome(rows, text, damage=_damaged_from(error))
    return Outcome(rows, "")


def _damaged_from(error: Exception) -> int:
    """First damaged offset, from an error; -1 if the error has no offset. That offset
    is of the first record that was not delivered, and may be in an earlier segment than
    the damage."""
    offset = getattr(error, "offset", None)
    if offset is None:
        return -1
    segment = parse_segment_file(os.path.basename(str(getattr(error, "path", ""))))
    return int(offset) if segment is None else max(offset, segment.base_offset)


def _rows(batch: Any) -> Iterator[Row]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(n).to_pylist() for n in ("offset", "partition")]
    columns += [map(_hex, batch.column(n).to_pylist()) for n in ("key", "value")]
    columns += [times, batch.column("timestampType").to_pylist()]
    columns.append(map(_pairs, batch.column("headers").to_pylist()))
    return map(list, zip(*columns, strict=True))


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _pairs(headers: Any) -> Any:
    return headers and [[h["key"], _hex(h["value"])] for h in headers]


def no_java() -> str:
    """Why Java's reader cannot run here; "" if it can."""
    if BUILD["find_javac"]() is None or BUILD["find_jars"]() is None:
        return "no JDK, or no Spark"
    return "" if _JAR.exists() else "the reader in Java is not built here"


def _class_path(classes: Path) -> str:
    return f"{classes}:{_JAR}:{BUILD['find_jars']()}/*"


def compile_check(classes: Path) -> None:
    """Compile the Java program of `JavaTasks` into a directory."""
    source = Path(__file__).with_name("TaskCheck.java")
    command = [BUILD["find_javac"](), "-proc:none", "-d", str(classes)]
    command += ["-cp", _class_path(classes), str(source)]
    subprocess.run(command, check=True)


class JavaTasks:
    """A Java process that reads tasks, one after the other."""

    def __init__(
        self, classes: Path, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Args: classes: the directory of `compile_check`."""
        options = [_OPENS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
        options.append(f"-Dlogstore.python={sys.executable}")
        java = str(Path(BUILD["find_javac"]()).with_name("java"))
        self._process = subprocess.Popen(
            [java, *options, "-cp", _class_path(classes), "logstore.spark.TaskCheck"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        # It ends with its input.
        weakref.finalize(self, self._process.kill)

    def read(
        self,
        tasks: Sequence[Any],
        options: Mapping[str, str],
        *,
        pause: int = -1,
        meanwhile: Callable[[int], None] = lambda count: None,
    ) -> Outcome:
        """Outcome of Java's reader for the tasks of a plan.

        Args:
            pause: after this number of batches of each task `meanwhile` is called, with
                the number of rows of that task so far.
        """
        rows: list[Row] = []
        left = 0
        for task in tasks:
            reply = self._ask(
                {
                    "task": task,
                    "schema": SCHEMA.json(),
                    "options": dict(options),
                    "pause": pause,
                }
            )
            if "paused" in reply:
                meanwhile(reply["paused"])
                reply = self._ask({})
            rows += reply["rows"]
            left += reply["logstoreRangesOfPython"]
            if "error" in reply:
                return Outcome(rows, _named(reply), left)
        return Outcome(rows, "", left)

    def _ask(self, request: Mapping[str, Any]) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _named(reply: Mapping[str, Any]) -> str:
    """The error, named as in Python. Other errors of a task keep Java's name."""
    kind = reply["kind"]
    if kind == "java.lang.RuntimeException":
        return str(reply["error"])
    if kind == "java.lang.IllegalArgumentException":
        return f"ConfigError: {reply['error']}"
    return f"{kind}: {reply['error']}"
