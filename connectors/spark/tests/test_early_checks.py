"""`load()` and `start()` say what is wrong with the options, without Spark itself."""

from __future__ import annotations

from typing import Any

import pytest

from logstore import ConfigError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import types

from pyspark_logstore import early_checks
from pyspark_logstore.read.options import parse

FRAME = types.StructType([types.StructField("value", types.BinaryType())])


class Called(Exception):
    """Spark got to do it."""


def make_reader() -> Any:
    """A class with the methods of PySpark's readers, wrapped."""

    class Reader:
        _df: Any = None

        def format(self, source: str) -> Any:
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
        early_checks._add(Reader, "load", lambda given, _: parse(given, streaming=True))
    return Reader()


def make_writer(schema: Any = FRAME) -> Any:
    class Writer:
        _df = type("Frame", (), {"schema": schema})

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
    """Wherever they are given: options, arguments, flags, None."""
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
    """Wherever it was given, and before Spark is asked for anything."""
    with pytest.raises(ConfigError, match="did you mean subscribe"):
        load(make_reader())


def test_other_formats_are_let_alone() -> None:
    """Also where a later call chooses one."""
    with pytest.raises(Called):
        make_reader().format("kafka").option("subscribee", "a").load()
    with pytest.raises(Called):
        make_reader().format("logstore").load("data", format="parquet", x="y")
    with pytest.raises(Called):
        make_writer().format("logstore").foreachBatch(print).start()


def test_start_checks_options_and_columns_of_the_sink() -> None:
    """Of a stream, where Spark asks nobody."""
    with pytest.raises(ConfigError, match="txnAppId"):
        make_writer().format("logstore").start("out", topic="a", txnAppId="x")
    with pytest.raises(ConfigError, match="option topic or a column topic"):
        make_writer().format("logstore").start("out")
    empty = types.StructType([types.StructField("key", types.BinaryType())])
    with pytest.raises(ConfigError, match="needs a column value"):
        make_writer(empty).format("logstore").option("topic", "a").start("out")
    with pytest.raises(Called):
        make_writer().format("logstore").option("topic", "a").start("out")


def test_pysparks_own_classes_are_wrapped_once(checked_early: None) -> None:
    """A second session, or `register` after `session_defaults`, adds nothing."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start
    early_checks.check_early()
    assert DataStreamWriter.start is start
    assert start.__name__ == "start"
