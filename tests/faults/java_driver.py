"""Damaged logs through Spark itself: the process that `java` starts.

Its session is running when `register` brings the jar, so that the class loader of the
driver does not have the classes of the reader. Errors of a task must arrive whole.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

_FORMATS = ("logstore", "logstore-jvm")


def session(folder: str) -> Any:
    """A local session that has begun without logstore."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import logstore.spark

    builder = SparkSession.builder.master("local[1]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    logstore.spark.register(spark)
    return spark


def problem(spark: Any, case: Any) -> str:
    """Problem of the result that a caller gets for a damaged log, or ""."""
    found = []
    for name in _FORMATS:
        reader = spark.read.format(name).options(**case.options)
        try:
            rows = reader.load().select("offset", "value", "headers").collect()
            found.append((sorted(row[0] for row in rows), ""))
        except Exception as error:
            found.append(([], str(error)))
    told, told_of_java = (text for _, text in found)
    if not told:
        return "" if found[0] == found[1] else f"{found[0]} and {found[1]}"
    # The text of Python is in a traceback, the text of Java follows its class.
    for text in ("Error: ", ".log at byte "):
        if text in told and text not in told_of_java:
            return f"{text!r} is not in {told_of_java[:600]!r}, but in {told[-600:]!r}"
    return "" if told_of_java else f"no error, and {told[-600:]!r}"


def main() -> None:
    """Check the logs of a seed: a line for each."""
    from faults.java import Case

    seed, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        spark = session(folder)
        for number in range(count):
            rng = random.Random(f"java at the driver {seed}/{number}")
            case = Case(Path(folder) / str(number), rng, Counter())
            case.options.pop("endingOffsets", None)
            case.options["onCorruption"] = "raise"
            what = f"{case.what}, {case.damage()}"
            text = problem(spark, case)
            line = [f"{what}: {text}" if text else "", {}]
            print(json.dumps(line), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
