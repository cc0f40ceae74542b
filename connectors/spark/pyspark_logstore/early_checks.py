"""Options checked by `load()` and `start()` themselves, in the process of the user.

Spark asks a Python source for its schema at `load()`, unless the user gives one, and
does not say whether a stream is read; it calls no method of a stream's sink before the
query runs (4.0 to 4.3). Nor can a source choose another one: the option ``reader`` is
looked at here, too. So a wrong option of a stream would only be visible as a failed
query. PySpark's own readers and writers know the options when they are called; this
module makes them check those of the format ``logstore``, and of no other.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark_logstore.jvm import jar_path
from pyspark_logstore.option_values import refuse
from pyspark_logstore.read.options import parse
from pyspark_logstore.write.options import parse_sink

__all__ = ["check_early", "has_reader"]

logger = logging.getLogger("logstore.spark")

FORMAT_OF_JAVA: Final = "logstore-jvm"

Check = Callable[[Mapping[str, str], Any], object]
_GIVEN: Final = "_logstore_given"  # options given to a reader or writer so far
_FORMAT: Final = ""  # its key there: no option has this name
_IS_WRAPPED: Final = "_logstore_checks"


def check_early() -> None:
    """Make `spark.read`, `spark.readStream` and `df.writeStream` check the options of
    ``logstore``; a second call does nothing. Those of Spark Connect are not changed."""
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    _add(DataFrameReader, "load", lambda given, _: parse(given, streaming=False))
    _add(DataStreamReader, "load", lambda given, _: parse(given, streaming=True))
    _add(DataStreamWriter, "start", _check_sink)


def has_reader(given: Mapping[str, str], reader: Any) -> bool:
    """Whether the option ``reader`` chooses the reader in Java, and the session has it.
    With ``auto``, one warning says why it has not.

    Raises:
        ConfigError: the option is ``jvm``, and the session does not have it.
    """
    global _is_warned
    choice = str(given.get("reader", "python")).strip().lower()
    if choice == "python":
        return False
    reason = _why_not_java(reader)
    if not reason:
        return True
    if choice == "jvm":
        refuse("reader", choice, reason)
    if not _is_warned:
        _is_warned = True
        logger.warning("option reader is auto, and Python reads: %s", reason)
    return False


_is_warned = False


def _why_not_java(reader: Any) -> str:
    """Why a session does not have the reader in Java; "" if it has."""
    jar = jar_path()
    if jar is None:
        return (
            "logstore was built without the reader in Java; install a JDK 17 or later "
            "and pyspark, and then logstore with pip install --no-build-isolation"
        )
    context = reader._spark.sparkContext
    if os.path.basename(jar) not in str(context._jsc.sc().listJars()):
        return "call logstore.spark.register(spark) to add the reader in Java"
    return ""


def _check_sink(given: Mapping[str, str], writer: Any) -> None:
    # Imports pyarrow.
    from pyspark_logstore.write.router import check_sink_schema

    options = parse_sink(given, streaming=True)
    check_sink_schema(writer._df.schema, options.topic)


def _add(kind: type, last: str, check: Check) -> None:
    """Make the methods of a class record their options, and `last` check them."""
    if hasattr(kind, _IS_WRAPPED):
        return
    setattr(kind, _IS_WRAPPED, True)
    _replace(kind, "format", lambda given, source: given.update({_FORMAT: source}))
    _replace(kind, "option", lambda given, key, value: _record(given, {key: value}))
    _replace(kind, "options", lambda given, **options: _record(given, options))
    for name in ("foreach", "foreachBatch"):  # these do not write to a store
        if hasattr(kind, name):
            _replace(kind, name, lambda given, f: given.pop(_FORMAT, None))
    original = getattr(kind, last)

    @functools.wraps(original)
    def checked(self: Any, path: Any = None, *others: Any, **named: Any) -> Any:
        given = dict(_given(self))
        rest = dict(named)
        source = rest.pop("format", None) or (others[0] if others else None)
        if source is not None:
            given[_FORMAT] = source
        for name in ("schema", "outputMode", "partitionBy", "queryName"):
            rest.pop(name, None)
        _record(given, rest)
        if isinstance(path, str):
            _record(given, {"path": path})
        if str(given.pop(_FORMAT, "")).lower() == "logstore":
            check(given, self)
            if last == "load" and has_reader(given, self):
                self.format(FORMAT_OF_JAVA)
                if "format" in named:
                    named["format"] = FORMAT_OF_JAVA
                elif others:
                    others = (FORMAT_OF_JAVA, *others[1:])
        return original(self, path, *others, **named)

    setattr(kind, last, checked)


def _replace(kind: type, name: str, record: Callable[..., object]) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        record(_given(self), *arguments, **named)
        return result

    setattr(kind, name, wrapper)


def _given(builder: Any) -> dict[str, Any]:
    given: dict[str, Any] = builder.__dict__.setdefault(_GIVEN, {})
    return given


def _record(given: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Record options as Spark does: names in lower case, without None values."""
    for name, value in options.items():
        if value is not None:
            is_flag = isinstance(value, bool)
            given[name.lower()] = str(value).lower() if is_flag else str(value)
