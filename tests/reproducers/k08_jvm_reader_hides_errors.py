"""Spark with the format logstore-jvm, registered with a running session: a task that
finds damage fails with CorruptRecordError, but the caller gets "Lost task ...:
UnknownReason", without the file, the position and the offset. The driver cannot
deserialize the exception, whose class is in a jar that its class loader does not have.
The format logstore reports all of it.

Needs pyspark, Java, and the jar of logstore.

Usage: python k08_jvm_reader_hides_errors.py [register|session_defaults|both]
"""

import glob
import os
import pathlib
import sys
import tempfile

from pyspark.sql import SparkSession

import logstore as ls
import logstore.spark

how = sys.argv[1] if len(sys.argv) > 1 else "register"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
with tempfile.TemporaryDirectory() as d:
    store = os.path.join(d, "s")
    with ls.open(store) as s:
        p = s.create_topic("t", config=ls.TopicConfig(message_format=2))[0]
        for i in range(20):
            p.append_many([b"%d.%d" % (i, k) for k in range(10)])
    log = glob.glob(f"{store}/t-0/*.log")[0]
    data = bytearray(pathlib.Path(log).read_bytes())
    data[len(data) // 2] ^= 4
    pathlib.Path(log).write_bytes(data)
    b = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", d)
        .config("spark.sql.warehouse.dir", f"{d}/wh")
        .config("spark.log.level", "FATAL")
    )
    spark = (
        logstore.spark.session_defaults(b) if how != "register" else b
    ).getOrCreate()
    if how != "session_defaults":
        logstore.spark.register(spark)
    bad = 0
    for name in ("logstore", "logstore-jvm"):
        try:
            n = len(
                spark.read.format(name)
                .option("path", store)
                .option("subscribe", "t")
                .load()
                .collect()
            )
            said = f"{n} rows"
        except Exception as e:
            said = " ".join(str(e).split())
        fine = "CorruptRecord" in said and os.path.basename(log) in said
        bad += not fine
        at = max(said.find("CorruptRecord"), said.find("Reason") - 60, 0)
        print(f"{name:13} {said[at : at + 250]}")
    spark.stop()
print("WRONG" if bad else "OK")
sys.exit(bool(bad))
