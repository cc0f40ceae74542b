"""Options checked by `load()` and `start()` themselves, in the process of the user.

Spark asks a Python source for its schema at `load()`, unless the user gives one, and
does not say whether a stream is read; it calls no method of a stream's sink before the
query runs (4.0 to 4.3). So a wrong option of a stream would only be visible as a failed
query. PySpark's own readers and writers know the options when they are called; this
module makes them check the options of the formats ``logstore`` and ``logstore-jvm``,
and the topics and partitions that these name. Other formats are not changed. The option
``reader`` is applied here, too: a source cannot choose another source.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark_logstore.jvm import FORMAT_OF_JAVA, ONLY_READS
from pyspark_logstore.jvm.session import add_reader
from pyspark_logstore.option_values import refuse
from pyspark_logstore.read.options import SourceOptions, parse
from pyspark_logstore.write.options import parse_sink

__all__ = ["check_early", "has_reader"]

logger = logging.getLogger("logstore.spark")

FORMAT: Final = "logstore"

# Checks the arguments of a reader or writer with the format; returns the format to use.
Check = Callable[["Given", Any], str]
_GIVEN: Final = "_logstore_given"  # the arguments of a reader or writer so far
_IS_WRAPPED: Final = "_logstore_checks"


class Given:
    """Arguments of a reader or writer.

    Attributes:
        options: as in Spark: names in lower case, without None values.
        format: the name of the source or sink, in lower case.
        schema: of a reader; None if none was given.
    """

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.format = ""
        self.schema: Any = None

    def copy(self) -> Given:
        """Copy, including the options."""
        other = Given()
        other.options.update(self.options)
        other.format, other.schema = self.format, self.schema
        return other

    def record(self, options: Mapping[str, Any]) -> None:
        """Add options."""
        for name, value in options.items():
            if value is not None:
                is_flag = isinstance(value, bool)
                text = str(value).lower() if is_flag else str(value)
                self.options[name.lower()] = text

    def use(self, source: object) -> None:
        """Set the format."""
        self.format = str(source).lower()


def check_early() -> None:
    """Make `spark.read`, `spark.readStream` and `df.writeStream` check the options of
    ``logstore``; a second call does nothing. Spark Connect's classes are unchanged."""
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    _add(DataFrameReader, "load", functools.partial(_check_source, streaming=False))
    _add(DataStreamReader, "load", functools.partial(_check_source, streaming=True))
    _add(DataStreamWriter, "start", _check_sink)


def _check_source(given: Given, reader: Any, *, streaming: bool) -> str:
    """Check the options of a reader; return the format that reads.

    Raises:
        ConfigError, StoreNotFoundError, StorageError: as `parse`, `check_source` and
            the readers; or the session does not have the requested reader.
    """
    options = parse(given.options, streaming=streaming)
    if given.format == FORMAT_OF_JAVA:
        reason = add_reader(reader._spark)
        if reason:
            refuse("format", given.format, reason)
        is_java = True
    else:
        is_java = has_reader(given.options, reader)
    _check_readable(
        options, given.schema, reader._spark, streaming=streaming, is_java=is_java
    )
    return FORMAT_OF_JAVA if is_java else FORMAT


def _check_readable(
    options: SourceOptions, schema: Any, session: Any, *, streaming: bool, is_java: bool
) -> None:
    # These import pyarrow.
    from pyspark_logstore.read.checks import check_source
    from pyspark_logstore.read.columns import check_schema, source_schema
    from pyspark_logstore.read.stream import StreamReader

    if schema is None:
        schema = source_schema(include_headers=options.include_headers)
    elif isinstance(schema, str):
        schema = _parsed(schema)
    check_schema(schema)
    if streaming and not is_java:
        StreamReader(schema, options)  # refuses what this version of Spark lacks
    check_source(options, streaming=streaming, directory=_directory_of(session))


def _parsed(schema: str) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(schema)


def _directory_of(session: Any) -> str:
    """Base directory of relative paths in Spark: `os.chdir` does not change it."""
    return str(session._jvm.java.lang.System.getProperty("user.dir"))


def _check_sink(given: Given, writer: Any) -> str:
    # These import pyarrow.
    from pyspark_logstore.write.router import check_sink_schema
    from pyspark_logstore.write.target import check_target

    if given.format == FORMAT_OF_JAVA:
        refuse("format", given.format, ONLY_READS)
    options = parse_sink(given.options, streaming=True)
    check_sink_schema(writer._df.schema, options.topic)
    check_target(options, _directory_of(writer._spark))
    return FORMAT


def has_reader(given: Mapping[str, str], reader: Any) -> bool:
    """Whether the option ``reader`` chooses the reader in Java, and the session has it.
    With ``auto``, one warning says why the session does not have it.

    Raises:
        ConfigError: the option is ``jvm``, and the session does not have it.
    """
    global _is_warned
    choice = str(given.get("reader", "python")).strip().lower()
    if choice == "python":
        return False
    reason = add_reader(reader._spark)
    if not reason:
        return True
    if choice == "jvm":
        refuse("reader", choice, reason)
    if not _is_warned:
        _is_warned = True
        logger.warning("option reader=auto: Python reads instead of Java: %s", reason)
    return False


_is_warned = False


def _add(kind: type, last: str, check: Check) -> None:
    """Make the methods of a class record their arguments, and `last` check them."""
    if hasattr(kind, _IS_WRAPPED):
        return
    setattr(kind, _IS_WRAPPED, True)
    _replace(kind, "format", lambda given, source: given.use(source))
    _replace(kind, "option", lambda given, key, value: given.record({key: value}))
    _replace(kind, "options", lambda given, **options: given.record(options))
    if hasattr(kind, "schema"):
        _replace(kind, "schema", lambda given, schema: setattr(given, "schema", schema))
    for name in ("foreach", "foreachBatch"):  # these do not write to a store
        if hasattr(kind, name):
            _replace(kind, name, lambda given, f: given.use(""))
    original = getattr(kind, last)
    takes = inspect.signature(original)

    @functools.wraps(original)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        call = takes.bind(self, *arguments, **named)
        rest = dict(call.arguments)
        rest.pop("self")
        rest.update(rest.pop("options", {}))
        given = _given(self).copy()
        source = rest.pop("format", None)
        if source is not None:
            given.use(source)
        schema = rest.pop("schema", None)
        if schema is not None:
            given.schema = schema
        for name in ("outputMode", "partitionBy", "queryName"):
            rest.pop(name, None)
        if not isinstance(rest.get("path"), str):
            rest.pop("path", None)
        given.record(rest)
        if given.format in (FORMAT, FORMAT_OF_JAVA):
            used = check(given, self)
            if used != given.format:
                self.format(used)
                if source is not None:
                    call.arguments["format"] = used
        return original(*call.args, **call.kwargs)

    setattr(kind, last, checked)


def _replace(kind: type, name: str, record: Callable[..., object]) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        record(_given(self), *arguments, **named)
        return result

    setattr(kind, name, wrapper)


def _given(builder: Any) -> Given:
    given: Given = builder.__dict__.setdefault(_GIVEN, Given())
    return given
