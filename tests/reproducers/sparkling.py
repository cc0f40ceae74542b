"""A local Spark session with both formats, for the programs that need one."""

import logging
import os
import sys
import tempfile

logging.disable(logging.CRITICAL)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def session():
    """The session; the program ends with 2 if logstore was built without its jar."""
    from pyspark.sql import SparkSession

    import logstore.spark

    if logstore.spark.jar_path() is None:
        print("this installation has no jar", flush=True)
        os._exit(2)
    # Tracebacks are shown, what Spark itself prints is not.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    tmp = tempfile.mkdtemp()
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", tmp)
        .config("spark.sql.warehouse.dir", tmp)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
    )
    return logstore.spark.session_defaults(builder).getOrCreate()


def load(spark, name, path, topic="c", **options):
    reader = spark.read.format(name).option("path", path).option("subscribe", topic)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def outcome(call):
    """The result and None, or None and the error in one line."""
    try:
        return call(), None
    except Exception as error:
        lines = [
            x.strip()
            for x in str(error).splitlines()
            if "CorruptRecordError:" in x or "ConfigError" in x
        ] or str(error).splitlines()
        return None, " ".join(lines[0].split())[-230:]


def end(wrong, text):
    """Print the last line and exit, without waiting for a JVM that may hang."""
    print(f"{'WRONG' if wrong else 'OK'}: {text}", flush=True)
    os._exit(bool(wrong))
