"""``examples/`` for Spark: each runs with one command, and its output is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import logstore

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(
    path.name
    for path in EXAMPLES.glob("*.py")
    if "spark_session.start" in path.read_text()
)
NOON_MS = 1_700_049_600_000
HIDE = "import sys\nsys.modules['pyspark'] = None\n"


def run(*arguments: str, java_home: str = "", **settings: str) -> str:
    """Output of Python, started in the checkout."""
    env = {**os.environ, **settings}
    if java_home:
        env["JAVA_HOME"] = java_home
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def test_examples_are_those_that_are_tested() -> None:
    """A new one needs a test."""
    assert PROGRAMS == ["demo_spark.py", "late_readings.py", "word_count.py"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_needs_no_spark(name: str) -> None:
    """The help lists the choices."""
    text = run(f"examples/{name}", "--help", JAVA_HOME="/nonexistent")
    assert re.search(r"--(dir|records)", text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_missing_pyspark_is_told(name: str) -> None:
    """The message has the command that installs it, and there is no traceback."""
    code = f"{HIDE}sys.path.insert(0, 'examples')\nimport {name[:-3]} as example\n"
    code += "sys.argv[1:] = []\nexample.main()"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "pip install '.[spark]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
@pytest.mark.spark
def test_word_count_counts_every_word_once(java_home: str, tmp_path: Path) -> None:
    """The words are from the lines in its store; the second run adds to the first."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    folder = tmp_path / "kept"
    text = run(
        "examples/word_count.py",
        "--lines",
        "300",
        "--dir",
        str(folder),
        java_home=java_home,
    )
    expected: Counter[str] = Counter()
    with logstore.open(folder / "store", read_only=True) as store:
        for partition in store.topic("lines"):
            for record in partition.read():
                expected.update((record.value or b"").decode().split())
    found = {word: int(n) for n, word in re.findall(r"^ +(\d+) (\w+)$", text, re.M)}
    assert found == expected
    first, second = map(int, re.findall(r"^run \d: (\d+) words", text, re.M))
    assert 0 < first < second == expected.total()


@pytest.mark.thorough
@pytest.mark.spark
def test_late_readings_are_dropped(java_home: str, tmp_path: Path) -> None:
    """Only readings older than the watermark are dropped; each finished minute is
    written."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    folder = tmp_path / "kept"
    text = run(
        "examples/late_readings.py",
        "--every",
        "20",
        "--dir",
        str(folder),
        java_home=java_home,
    )
    # The same by hand: in the order of appending, with a watermark by run.
    minutes: dict[tuple[str, int], list[float]] = defaultdict(list)
    late = []
    with logstore.open(folder / "store", read_only=True) as store:
        for partition in store.topic("readings"):
            newest = 0
            for record in partition.read():
                second = (record.timestamp_ms - NOON_MS) // 1000
                sensor = (record.key or b"").decode()
                # Both sensors have a last reading at 9:40 in the first run.
                if newest >= 580 and second < 7 * 60:
                    late.append((sensor, second))
                else:
                    minutes[sensor, second // 60].append(float(record.value or b""))
                newest = max(newest, second)
    assert len(late) == 2
    expected = {
        (sensor, f"12:{minute:02}"): f"{sum(all_) / len(all_):.2f} {len(all_)}"
        for (sensor, minute), all_ in minutes.items()
        if minute < 17  # the last reading is of 19:40, two minutes before it is 17:40
    }
    found = re.findall(r"^ +(\w+) (\d+:\d+) +([\d.]+) \((\d+) readings\)$", text, re.M)
    assert {(s, m): f"{degrees} {n}" for s, m, degrees, n in found} == expected
    assert len(found) == len(expected) == 34
    assert expected["attic", "12:08"] != "23.00 3"  # one came late, and in time
    numbers = re.findall(r"^run \d: \d+ readings, (\d) came too late", text, re.M)
    assert numbers == ["0", "2", "0"]


@pytest.mark.thorough
@pytest.mark.spark
def test_demo_streams_each_record_once(java_home: str) -> None:
    """All records in the store, and then new ones; the program compares them itself."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    text = run("examples/demo_spark.py", "--records", "4000", java_home=java_home)
    assert "all well" in text
    assert re.findall(r"([\d,]+) rows from store to store", text) == ["4,000", "4,000"]
    assert "8,000 records streamed from store to store, each once" in text


def fails(program: str, **settings: str) -> str:
    """Output of an example that cannot start; no traceback."""
    result = subprocess.run(
        [sys.executable, program],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def test_missing_java_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    """`make demo-spark` begins with this check; it needs no package for it."""
    settings = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    said = fails("examples/spark_session.py", **settings)
    assert "apt install openjdk-17-jre-headless" in said
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo-spark:")[2]
    assert recipe.startswith("\n\t@$(PYTHON) examples/spark_session.py\n")
    assert run("examples/spark_session.py", JAVA_HOME=str(tmp_path)) == ""


def test_java_that_does_not_start_is_told(tmp_path: Path) -> None:
    """It is too old, for example."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    said = fails("examples/demo_spark.py", JAVA_HOME=str(tmp_path))
    assert "Spark needs Java 17 or later" in said
