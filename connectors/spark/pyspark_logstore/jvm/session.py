"""Gives a running Spark the reader in Java.

``spark.jars`` is read when the Java machine and its `SparkContext` start. Under
spark-submit, in a shell and in most notebooks they run before the first line of the
user's program, and a value set by the program would replace the jars that the user has
given by ``--jars``, ``--packages`` or spark-defaults.conf. So the jar is added to the
running session, as spark-submit itself adds jars: to the class loader of the driver,
in which Spark looks for formats by name, and to the files that executors fetch.
"""

from __future__ import annotations

import os
from typing import Any, Final

from py4j.protocol import Py4JError

from pyspark_logstore.jvm import JAR, NOT_BUILT, jar_path

__all__ = ["add_reader"]

_CLASS: Final = "logstore.spark.LogSource"
# Suffix of the names of Spark's class loaders that accept further jars.
_TAKES_JARS: Final = "MutableURLClassLoader"


def add_reader(session: Any) -> str:
    """Make the format ``logstore-jvm`` known in a session, its driver and its
    executors. A further call does nothing.

    Args:
        session: a `SparkSession` that is not one of Spark Connect.

    Returns:
        Why the session does not have the format; "" if it has.
    """
    context = session.sparkContext
    jar = jar_path()
    try:
        if jar is None:
            return "" if _is_known(context) else NOT_BUILT
        if not _is_known(context):
            _add_to_driver(session, jar)
        if not _is_known(context):
            return (
                f"the class loader of this session takes no jars; start Spark with "
                f"--jars {jar}"
            )
        java_context = context._jsc.sc()
        # Jars that the user has given are listed, too, and fetched already.
        if JAR not in {
            os.path.basename(name) for name in _texts(java_context.listJars())
        }:
            java_context.addJar(jar)
    except Py4JError as error:
        return (
            f"this session takes no jars at run time ({_first_line(error)}); start "
            f"Spark with --jars {jar}"
        )
    return ""


def _is_known(context: Any) -> bool:
    """Whether the driver finds the class where Spark looks for formats."""
    loader = _context_loader(context)
    try:
        loader.loadClass(_CLASS)
    except Py4JError:
        return False
    return True


def _context_loader(context: Any) -> Any:
    """The class loader of the thread that answers calls of Python."""
    return context._jvm.java.lang.Thread.currentThread().getContextClassLoader()


def _add_to_driver(session: Any, jar: str) -> None:
    context = session.sparkContext
    loader = _context_loader(context)
    while loader is not None:
        if loader.getClass().getName().endswith(_TAKES_JARS):
            # All threads of the driver share this loader: the threads of queries, and
            # the threads that answer other threads of Python.
            url = context._jvm.java.io.File(jar).toURI().toURL()
            loader.addURL(url)
            return
        loader = loader.getParent()
    # A driver that spark-submit did not start. This changes the loader of one thread.
    name = jar.replace("\\", "\\\\").replace("'", "\\'")
    session.sql(f"ADD JAR '{name}'")


def _texts(sequence: Any) -> list[str]:
    """The elements of a sequence of Scala."""
    return [str(sequence.apply(index)) for index in range(sequence.size())]


def _first_line(error: Py4JError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
