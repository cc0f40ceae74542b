"""Spark source: retention between a task's look at the start of the log and its first
read fails the task with OffsetOutOfRangeError, also with failOnDataLoss=false: the read
is made outside of the `try` that handles it.

Usage: python a35_spark_retention_race.py (needs pyspark, starts no JVM)
"""

import tempfile

import logstore
from pyspark_logstore.read import tasks
from pyspark_logstore.read.columns import BatchShaper, source_schema
from pyspark_logstore.read.offsets import LossPolicy
from pyspark_logstore.read.options import TopicPartition, parse
from pyspark_logstore.read.planning import LogRange

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(segment_bytes=1000, file_delete_delay_ms=0)
    writer = store.create_topic("t", config=config)[0]
    for i in range(100):
        writer.append(b"%050d" % i)
    with logstore.open(path, read_only=True) as reader:
        real = reader.topic("t")[0]

        class Beside:
            """The partition; the owner's retention runs after the look at the end."""

            def __getattr__(self, name):
                value = getattr(real, name)
                if name == "end_offset" and writer.start_offset == 0:
                    writer.delete_before(50)
                return value

        options = parse(
            {"path": path, "subscribe": "t", "failOnDataLoss": "false"}, streaming=False
        )
        shaper = BatchShaper(source_schema(include_headers=False))
        found = LogRange(TopicPartition("t", 0), 0, 100, 0, 1024)
        try:
            offsets = []
            for batch in tasks._read_range(
                Beside(), found, shaper, options, LossPolicy(False)
            ):
                offsets += batch.column("offset").to_pylist()
            bad = offsets != list(range(50, 100))
            print(f"read {offsets[:1]}..{offsets[-1:]}")
        except logstore.LogStoreError as error:
            bad = True
            print(f"{type(error).__name__}: {error}")
print("WRONG" if bad else "OK")
raise SystemExit(bad)
