"""`load()` and `start()` report wrong options, without Spark itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore import ConfigError, StoreNotFoundError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import types

from pyspark_logstore import early_checks
from pyspark_logstore.read.options import parse

FRAME = types.StructType([types.StructField("value", types.BinaryType())])


class Called(Exception):
    """Raised in place of the call to Spark."""


def check_options(given: Any, reader: Any) -> str:
    """The check of a stream's source, without the store."""
    parse(given.options, streaming=True)
    return str(given.format)


def make_reader(check: Any = check_options) -> Any:
    """A class with the methods of PySpark's readers, wrapped."""

    class Reader:
        _df: Any = None

        def format(self, source: str) -> Any:
            return self

        def schema(self, schema: Any) -> Any:
            return self

        def option(self, key: str, value: Any) -> Any:
            return self

        def options(self, **options: Any) -> Any:
            return self

        def load(
            self,
            path: Any = None,
            format: Any = None,
            schema: Any = None,
            **options: Any,
        ) -> Any:
            raise Called(path, format, schema, options)

    for _ in range(2):
        early_checks._add(Reader, "load", check)
    return Reader()


def make_writer(schema: Any = FRAME, directory: str = os.curdir) -> Any:
    system = SimpleNamespace(getProperty={"user.dir": directory}.__getitem__)
    java = SimpleNamespace(lang=SimpleNamespace(System=system))

    class Writer:
        _df = type("Frame", (), {"schema": schema})
        _spark = SimpleNamespace(_jvm=SimpleNamespace(java=java))

        def format(self, source: str) -> Any:
            return self

        def option(self, key: str, value: Any) -> Any:
            return self

        def options(self, **options: Any) -> Any:
            return self

        def foreachBatch(self, f: Any) -> Any:
            return self

        def start(self, path: Any = None, format: Any = None, **options: Any) -> Any:
            raise Called(path, format, options)

    early_checks._add(Writer, "start", early_checks._check_sink)
    return Writer()


def test_right_options_reach_spark_as_they_were_given() -> None:
    """They may be options, arguments, flags, or None."""
    reader = make_reader().format("logstore").option("subscribe", "a")
    reader.options(includeHeaders=True, minPartitions=None)
    with pytest.raises(Called) as caught:
        reader.load("data", schema="value binary", startingOffsets="earliest")
    options = {"startingOffsets": "earliest"}
    assert caught.value.args == ("data", None, "value binary", options)
    with pytest.raises(Called):
        make_reader().load("data", "logstore", subscribe="a")


@pytest.mark.parametrize(
    "load",
    [
        lambda r: r.format("logstore").option("subscribee", "a").load("data"),
        lambda r: r.format("LogStore").options(subscribee="a").load("data"),
        lambda r: r.format("logstore").load("data", subscribee="a"),
        lambda r: r.option("subscribee", "a").load("data", "logstore"),
        lambda r: r.load(path="data", format="logstore", subscribee="a"),
    ],
)
def test_wrong_option_is_an_error_of_load(load: Any) -> None:
    """The option may be given anywhere; Spark is not called."""
    with pytest.raises(ConfigError, match="did you mean subscribe"):
        load(make_reader())


def test_other_formats_are_let_alone() -> None:
    """A later call may choose the other format."""
    with pytest.raises(Called):
        make_reader().format("kafka").option("subscribee", "a").load()
    with pytest.raises(Called):
        make_reader().format("logstore").load("data", format="parquet", x="y")
    with pytest.raises(Called):
        make_writer().format("logstore").foreachBatch(print).start()


def test_start_checks_options_and_columns_of_the_sink() -> None:
    """The query is a stream, for which Spark does not ask the source."""
    with pytest.raises(ConfigError, match="txnAppId"):
        make_writer().format("logstore").start("out", topic="a", txnAppId="x")
    with pytest.raises(ConfigError, match="option topic or a column topic"):
        make_writer().format("logstore").start("out")
    empty = types.StructType([types.StructField("key", types.BinaryType())])
    with pytest.raises(ConfigError, match="needs a column value"):
        make_writer(empty).format("logstore").option("topic", "a").start("out")
    with pytest.raises(Called):
        make_writer().format("logstore").option("topic", "a").start("out")


def test_check_is_given_the_schema_and_chooses_the_format() -> None:
    """Both may be given in any way."""
    seen = []

    def check(given: Any, reader: Any) -> str:
        seen.append(given.schema)
        return "logstore-jvm"

    with pytest.raises(Called) as caught:
        make_reader(check).format("logstore").schema("value binary").load("data")
    assert caught.value.args == ("data", None, None, {})
    with pytest.raises(Called) as caught:
        make_reader(check).load("data", "logstore", "key binary")
    assert caught.value.args == ("data", "logstore-jvm", "key binary", {})
    assert seen == ["value binary", "key binary"]


def test_start_checks_the_store_and_the_topic(tmp_path: Path) -> None:
    """A relative path begins in the directory in which Spark was started. A missing
    store is created, unless that is forbidden; nothing is created by the check."""
    writer = make_writer(directory=str(tmp_path)).format("logstore")
    with pytest.raises(Called):
        writer.start("out", topic="a")
    with pytest.raises(StoreNotFoundError, match=str(tmp_path / "out")):
        writer.start("out", topic="a", createTopic="false")
    with pytest.raises(ConfigError, match="bad topic name 'a/b'"):
        writer.start("out", topic="a/b")
    columns = types.StructType().add("value", "binary").add("topic", "string")
    by_column = make_writer(columns, str(tmp_path)).format("logstore")
    with pytest.raises(StoreNotFoundError):
        by_column.start("out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreNotFoundError, match="file"):
        writer.start("file", topic="a")
    with logstore.open(tmp_path / "data") as store:
        old = store.create_topic("old", config=logstore.TopicConfig(message_format=0))
        old[0].append(b"value")
    with pytest.raises(ConfigError, match="message_format=0"):
        writer.start("data", topic="old")
    with pytest.raises(ConfigError, match="no such topic, and createTopic=false; its"):
        writer.start("data", topic="new", createTopic="false")
    with pytest.raises(Called):
        writer.start("data", topic="new")
    with pytest.raises(StoreNotFoundError, match="directory of a partition"):
        writer.start("data/old-0", topic="a")
    with pytest.raises(ConfigError, match="write with the format logstore"):
        make_writer().format("logstore-jvm").start("data", topic="new")


def test_pysparks_own_classes_are_wrapped_once(checked_early: None) -> None:
    """A second session, or `register` after `session_defaults`, adds nothing."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start
    early_checks.check_early()
    assert DataStreamWriter.start is start
    assert start.__name__ == "start"
