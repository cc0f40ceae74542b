"""What the examples share: a Spark session, or what is missing for one.

As a program (``make demo-spark`` begins with it), it says whether there is a Java; it
needs no package for that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any


def missing_java() -> str:
    """How to install Java; "" where one is there."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return (
            "Java 17 or later is missing. On Debian and Ubuntu: "
            "apt install openjdk-17-jre-headless"
        )
    return ""


def missing() -> str:
    """What has to be installed before Spark can start; "" where all is there."""
    if importlib.util.find_spec("pyspark") is None:
        return f"pyspark is missing: {sys.executable} -m pip install '.[spark]'"
    return missing_java()


def start(name: str) -> Any:
    """A session with two cores that says nothing of itself but errors.

    Raises:
        SystemExit: something has to be installed first; the message tells what.
    """
    if missing():
        raise SystemExit(missing())
    # Only now: both need what was looked for.
    from pyspark.sql import SparkSession

    import logstore.spark

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = logstore.spark.session_defaults(SparkSession.builder)
    builder = (
        builder.master("local[2]")
        .appName(name)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    try:
        spark = builder.getOrCreate()
    except RuntimeError as error:  # PySpark's own: it cannot start its Java
        raise SystemExit(f"{error} Spark needs Java 17 or later.") from None
    logstore.spark.register(spark)
    return spark


if __name__ == "__main__":
    sys.exit(missing_java() or 0)
