"""A batch of a broker's log is out of order, with the right checksum. The format
logstore raises CorruptRecordError. The reader in Java returns all rows except those
from one batch, and no error.

Needs pyspark and the jar of logstore.

Usage: python r29_java_reader_leaves_out.py
"""

import logging

from common import end
from kbatch import directory, rows
from sparkling import session

logging.disable(logging.CRITICAL)


def read(path):
    spark = session()
    found = {}
    for name in ("logstore", "logstore-jvm"):
        try:
            frame = spark.read.format(name).option("subscribe", "t").load(path)
            found[name] = sorted(row[0] for row in frame.select("offset").collect())
        except Exception as error:
            found[name] = (
                "CorruptRecordError"
                if "CorruptRecordError" in str(error)
                else str(error)[:200]
            )
    spark.stop()
    return found


good = [rows(5 * i, 5) for i in range(10)]
path = directory(
    {0: b"".join(good[:4]) + good[5] + good[4] + b"".join(good[6:])}, clean_end=50
)
found = read(path)
got = found["logstore-jvm"]
end(
    ""
    if got == found["logstore"] or got == list(range(50))
    else (
        f"logstore: {found['logstore']}; logstore-jvm: {len(got)} rows, without"
        f" {sorted(set(range(50)) - set(got))}"
    )
)
