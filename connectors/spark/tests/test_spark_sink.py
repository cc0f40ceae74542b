"""``df.write.format("logstore")`` with Spark itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

pytestmark = pytest.mark.spark


def write(frame: Any, path: Path, **options: str) -> None:
    given = {"topic": "orders", **options}
    frame.write.format("logstore").options(**given).mode("append").save(str(path))


def values(path: Path, topic: str = "orders") -> list[list[bytes | None]]:
    """The values in each partition."""
    with logstore.open(path, read_only=True) as store:
        return [[r.value for r in p.read()] for p in store.topic(topic)]


def test_frame_is_written_in_order(spark: Any, tmp_path: Path) -> None:
    """To a store and a topic that were not there."""
    frame = spark.range(25_000, numPartitions=2).selectExpr(
        "CAST(id AS string) AS value"
    )
    write(frame, tmp_path / "data")
    (found,) = values(tmp_path / "data")
    assert found == [b"%d" % n for n in range(25_000)]
