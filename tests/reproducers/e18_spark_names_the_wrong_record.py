"""A record with a time far before 1970 fails a read of Spark with a message that names
another record and the wrong direction ("more than").

Needs pyspark.

Usage: python e18_spark_names_the_wrong_record.py
"""

import sys

import pyarrow as pa

import logstore as ls
from logstore import TopicPartition
from pyspark_logstore.read.columns import BatchShaper, source_schema

batch = pa.record_batch(
    {
        "offset": pa.array([5, 6, 7], pa.int64()),
        "timestamp": pa.array(
            [1_700_000_000_000, -(1 << 60), 1_700_000_000_001],
            pa.timestamp("ms", "UTC"),
        ),
    }
)
whole = source_schema(include_headers=False)
schema = type(whole)([f for f in whole.fields if f.name in ("offset", "timestamp")])
try:
    BatchShaper(schema).shape(batch, TopicPartition("c", 0))
    said = "no error"
except ls.LogStoreError as error:
    said = str(error)
wrong = "offset 6" not in said
print(f"{'WRONG' if wrong else 'OK'}: {said[:160]}")
sys.exit(wrong)
