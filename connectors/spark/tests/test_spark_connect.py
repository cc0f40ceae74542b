"""``logstore-jvm`` with Spark Connect: its jar is an artifact of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

SCRIPT = """
import sys
import logstore.spark
from pyspark.sql import SparkSession

path, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.addArtifact(logstore.spark.jar_path())
frame = spark.read.format("logstore-jvm").option("subscribe", "orders").load(path)
assert frame.count() == 200
assert frame.filter("length(value) = 1").count() == 200
assert [row.offset for row in frame.filter("offset = 3").collect()] == [3, 3]
query = (
    spark.readStream.format("logstore-jvm")
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load(path)
    .writeStream.format("memory")
    .queryName("found")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(120)
assert spark.sql("SELECT count(*) FROM found").first()[0] == 200
spark.stop()
print("all rows")
"""


@pytest.mark.timeout(600)
def test_jar_that_is_an_artifact_of_a_session_reads(
    java_home: str, tmp_path: Path
) -> None:
    """Batch query and stream, with a separate server, in a separate process."""
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    with logstore.open(tmp_path / "data") as store:
        for partition in store.create_topic("orders", 2):
            partition.append_many([b"x"] * 100)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    if java_home:
        environment["JAVA_HOME"] = java_home
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "data", tmp_path / "checkpoint"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all rows\n")
