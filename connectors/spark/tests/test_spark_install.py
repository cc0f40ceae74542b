"""The source is found from a virtual environment that is not activated."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import logstore

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import logstore.spark

builder = SparkSession.builder.master("local[1]")
for setting in sys.argv[3:]:
    builder = builder.config(*setting.split("=", 1))
if sys.argv[1] == "session_defaults":
    builder = logstore.spark.session_defaults(builder)
spark = builder.getOrCreate()
if sys.argv[1] == "register":
    logstore.spark.register(spark)
reader = spark.read.format("logstore").option("subscribe", "orders")
print("rows:", reader.load(sys.argv[2]).count())
spark.stop()
"""


def bare_environment(java_home: str) -> dict[str, str]:
    """Only system directories are on the search path, and no variable names a
    Python."""
    java = shutil.which("java")
    if not java_home and not os.environ.get("JAVA_HOME") and java:
        java_home = str(Path(java).resolve().parents[1])
    kept = {
        name: os.environ[name]
        for name in ("HOME", "PYTHONPATH", "SPARK_SUBMIT_OPTS", "TMPDIR")
        if name in os.environ
    }
    java_home = java_home or os.environ.get("JAVA_HOME", "")
    return {**kept, "PATH": "/usr/bin:/bin", "JAVA_HOME": java_home}


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("help_with", ["register", "session_defaults"])
def test_source_works_where_python_is_not_on_the_path(
    help_with: str,
    java_home: str,
    make_topic: Callable[..., logstore.Topic],
    writer: logstore.Store,
    tmp_path: Path,
) -> None:
    """Workers run the Python of the program, with either helper."""
    found_first = help_with == "register" and "PYTHONPATH" in os.environ
    if found_first and version("pyspark").startswith("4.0."):
        pytest.skip("4.0 finds the source on PYTHONPATH, and then takes no other")
    make_topic(count=10)
    settings = ["spark.ui.enabled=false", "spark.driver.host=127.0.0.1"]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, help_with, writer.path, *settings],
        env=bare_environment(java_home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "rows: 10" in result.stdout, result.stderr[-3000:]


def test_module_is_found_the_way_spark_looks() -> None:
    """`pkgutil` lists it: after an ordinary and an editable installation."""
    names = [module.name for module in pkgutil.iter_modules()]
    assert "pyspark_logstore" in names


IMPORT = """
import sys
for name in {missing}:
    sys.modules[name] = None
import pyspark_logstore
print(hasattr(pyspark_logstore, "DefaultSource"), "logstore" in sys.modules)
"""


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ([], "True"),
        (["pyspark"], "False"),
        (["pyspark.sql.datasource"], "False"),
        (["pyarrow"], "True"),
    ],
)
def test_module_is_imported_without_failing(missing: list[str], found: str) -> None:
    """A failing import would hide the sources of all other packages; and it is
    quick."""
    if importlib.util.find_spec("pyspark") is None:
        found = "False"
    result = subprocess.run(
        [sys.executable, "-c", IMPORT.format(missing=missing)],
        capture_output=True,
        text=True,
    )
    assert result.stdout.split() == [found, "False"], result.stderr
