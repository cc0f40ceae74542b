"""Registers the data sources ``logstore`` and ``logstore-jvm`` with Spark sessions.

Spark finds the source by itself if its workers run the Python in which logstore is
installed. They run ``PYSPARK_PYTHON``, else the ``python3`` of the search path, which
is another one if a virtual environment is not activated.

    builder = logstore.spark.session_defaults(SparkSession.builder)
    spark = builder.getOrCreate()

For an existing session, call ``logstore.spark.register(spark)``.

``logstore-jvm`` is the source of ``logstore`` with a reader in Java, which is several
times as fast. Its jar is `jar_path`; if logstore was installed without a JDK,
``python -m logstore.spark`` builds it.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

try:
    import pyspark
    import pyspark.sql.datasource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
    raise ImportError(
        "logstore.spark needs pyspark 4; install it with "
        "`pip install 'pylogstore[spark]'`",
        name=error.name,
    ) from error
from pyspark.errors import PySparkException

from pyspark_logstore.early_checks import check_early
from pyspark_logstore.jvm import build_jar, jar_path
from pyspark_logstore.jvm.missing import MissingReader
from pyspark_logstore.jvm.session import add_reader
from pyspark_logstore.lag import Lag, LagListener, lags_of
from pyspark_logstore.source import DefaultSource

__all__ = [
    "Lag",
    "LagListener",
    "jar_path",
    "lags_of",
    "register",
    "session_defaults",
]

# Since 4.1; off by default. It gives a third more throughput, and saves 20 ms per task.
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"


def register(spark: Any) -> None:
    """Register the formats ``logstore`` and ``logstore-jvm`` in a session.

    Needed if Spark does not find them by itself; and for the reader in Java, whose jar
    it adds to the jars of the session. Without that jar, the `load()` of
    ``logstore-jvm`` raises an error with the reason. In local mode, unless
    ``PYSPARK_PYTHON`` is set, the workers then run this Python. After the call,
    `load()` and `start()` raise `ConfigError` for wrong options of the formats.

    Args:
        spark: a `SparkSession`; also one of Spark Connect, whose server must have
            logstore installed. There, give it the jar yourself, with
            ``spark.addArtifact(logstore.spark.jar_path())``.
    """
    check_early()
    _register_sources(spark, has_reader=_prepare(spark))


def _prepare(spark: Any) -> bool:
    """Set the Python of a running Spark, and add the reader in Java. Returns whether
    the reader is available; True with Spark Connect, where the user gives the jar."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return True
    if context.master.startswith("local") and _is_this_python():
        context.pythonExec = sys.executable
    # For the reader in Java, which asks a Python: here that of the driver, and in the
    # executors the one that runs Spark's functions.
    system = context._jvm.java.lang.System
    system.setProperty("logstore.python", sys.executable)
    system.setProperty("logstore.worker.python", context.pythonExec)
    return not add_reader(spark)


def _register_sources(spark: Any, *, has_reader: bool) -> None:
    for source in (DefaultSource,) if has_reader else (DefaultSource, MissingReader):
        try:
            spark.dataSource.register(source)
        except PySparkException as error:
            # 4.0 refuses to register a source that it has found by itself.
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
                raise


def session_defaults(builder: Any) -> Any:
    """Set defaults for the source in a ``SparkSession.builder``, and return it. Its
    `getOrCreate` adds the jar of ``logstore-jvm``, if there is one, to the session.

    Call it before the first session of a process. ``PYSPARK_PYTHON`` becomes this
    Python unless it is set: the first session starts the Java machine, which inherits
    the environment. If the machine runs already (spark-submit, a shell, a notebook),
    `getOrCreate` does what `register` does, unless Spark has found the formats itself.
    From Spark 4.1 on, workers are reached by Unix sockets
    (``spark.python.unix.domain.socket.enabled``), unless the setting is given to the
    builder, or to spark-submit. `load()` and `start()` raise `ConfigError` for wrong
    options of the formats.
    """
    check_early()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _version() >= (4, 1) and not _is_set(builder, _UNIX_SOCKETS):
        builder = builder.config(_UNIX_SOCKETS, "true")
    make = builder.getOrCreate

    @functools.wraps(make)
    def get_or_create() -> Any:
        is_late = _is_running()
        session = make()
        if getattr(session, "_sc", None) is not None:  # not with Spark Connect
            has_reader = _prepare(session)
            if is_late and not _is_found(session):
                _register_sources(session, has_reader=has_reader)
        return session

    builder.getOrCreate = get_or_create
    return builder


def _is_running() -> bool:
    """Whether a Java machine runs, whose environment cannot be changed any more."""
    return (
        pyspark.SparkContext._gateway is not None
        or "PYSPARK_GATEWAY_PORT" in os.environ
    )


def _is_found(session: Any) -> bool:
    """Whether Spark finds the source by itself, in the Python that it looks with."""
    manager = session._jsparkSession.sessionState().dataSourceManager()
    return bool(manager.dataSourceExists(DefaultSource.name()))


def _is_this_python() -> bool:
    """Whether workers are to run this Python: no other one is named."""
    return os.environ.get("PYSPARK_PYTHON", "") in ("", sys.executable)


def _is_set(builder: Any, name: str) -> bool:
    """Whether a setting is given to a builder, or to the Java machine that runs."""
    if name in getattr(builder, "_options", {}):
        return True
    if not _is_running():
        return False
    # It knows the options of spark-submit and spark-defaults.conf, before which a
    # setting of the builder would go.
    pyspark.SparkContext._ensure_initialized()
    return bool(pyspark.SparkConf().contains(name))


def _version() -> tuple[int, int]:
    major, minor, *_ = pyspark.__version__.split(".")
    return int(major), int(minor)


def _main() -> None:
    """Build the jar of the reader in Java if it is not there, and print its path."""
    if jar_path() is None:
        try:
            reason = build_jar.build()
        except build_jar.CompileError as error:
            reason = f"its sources do not compile (status {error.returncode})"
        except OSError as error:
            reason = (
                f"{build_jar.JAR} cannot be written ({error.strerror}); run this as "
                f"the user that installed logstore"
            )
        if reason:
            sys.exit(f"the reader in Java (logstore-jvm) is not built: {reason}")
    print(jar_path())


if __name__ == "__main__":
    _main()
