"""The benchmarks with Spark run: a few records, one round, all contestants."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench` is not installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))


@pytest.mark.thorough
def test_reading_is_measured(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sums of every contestant are checked by the program itself."""
    from bench import spark_source

    args = argparse.Namespace(records=4000, partitions=2, rounds=1)
    spark_source.write_store(tmp_path / "store", args.records, args.partitions)
    rows = spark_source.run_schema(spark, tmp_path, "four", {}, args)
    assert {row["source"] for row in rows} >= {"logstore", "ceiling", "parquet"}
    assert {row["action"] for row in rows} == set(spark_source.ACTIONS)
    assert capsys.readouterr().out


@pytest.mark.thorough
def test_writing_is_measured(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import spark_sink

    args = argparse.Namespace(records=4000, partitions=[2], tasks=2, rounds=1)
    rows = list(spark_sink.run_writes(spark, tmp_path, args))
    assert {row["sink"] for row in rows} >= {"logstore", "ceiling", "parquet"}


def test_triggers_are_measured(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program checks that every row was read, once."""
    from bench import spark_trigger

    args = argparse.Namespace(rows=10, rounds=2, warm_up=1)
    rows = spark_trigger.run(spark, tmp_path, args)
    assert rows[0]["source"] == "logstore"
    assert all(row["all ms"] > 0 for row in rows)
    assert capsys.readouterr().out
