"""The page of the benchmarks: its tables, its plots, its list of cases."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import logstore

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
MAKE: dict[str, Any] = runpy.run_path(str(DOCS / "make_benchmarks.py"))
MEASURED = sorted((DOCS / "measurements").glob("*.json"))
BYTES_MAX = 150_000


def compare(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run `bench.compare` from the root of the tree, after some statements."""
    code = f"import sys\n{before}\nfrom bench.compare import main\nsys.exit(main())"
    return run_code(code, *arguments)


def run_code(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run statements in the root of the tree, with `bench` importable."""
    path = [str(Path(logstore.__file__).parents[1]), str(ROOT), *sys.path]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )


def test_tables_are_those_of_the_measurements() -> None:
    """`python docs/make_benchmarks.py` changes nothing."""
    assert MAKE["page"](PAGE) == PAGE
    services = (DOCS / "services.md").read_text(encoding="utf-8")
    assert MAKE["page"](services, MAKE["TABLES_OF_SERVICES"]) == services


def test_short_table_of_spark_has_the_numbers_of_this_page() -> None:
    """Each rate of docs/spark.md is in a row of the same work here."""
    spark = (DOCS / "spark.md").read_text(encoding="utf-8")
    section = spark.partition("## How fast\n")[2].partition("\n## ")[0]
    short = [line.strip("| ").split(" | ") for line in section.splitlines()]
    rates = {cells[0]: cells[1:] for cells in short if len(cells) == 5}
    assert len(rates) == 6  # with the head and the line below it
    here = PAGE.partition("\n### Spark reads\n")[2].partition("\n### ")[0]
    rows = [line for line in here.splitlines() if line.startswith("|")]
    for work, found in list(rates.items())[2:]:
        columns = "all seven" if "seven" in work else "four"
        name = "all rows" if "all rows" in work else work
        same = [row for row in rows if f"| {columns} | {name}" in row]
        missing = [rate for rate in found if f"| {rate} |" not in "".join(same)]
        assert (len(same) > 0, missing) == (True, []), work


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_measurements_say_when_and_where(path: Path) -> None:
    """They are small, too, with medians of at least seven rounds."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size <= BYTES_MAX
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert {"python", "system", "machine", "cores", "load"} <= set(found)
    assert found["rows"]
    assert all(row.get("rounds", 7) >= 7 for row in found["rows"])


@pytest.mark.parametrize("name", MAKE["PLOTS"])
def test_plot_is_on_the_page_and_readable(name: str) -> None:
    """Text stays text, and nothing is fetched from another host."""
    assert f"](images/{name}.svg)" in PAGE
    path = DOCS / "images" / f"{name}.svg"
    svg = path.read_text(encoding="utf-8")
    assert len(svg.encode()) <= BYTES_MAX
    texts = [node.text for node in ElementTree.fromstring(svg).iter() if node.text]
    assert "logstore" in {text.strip() for text in texts}
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|usr|var|opt)\b", svg)
    assert "url(" not in re.sub(r"url\(#", "", svg)


def test_page_describes_each_case() -> None:
    """Each case of `bench.compare --list` is described; tables have no other cases."""
    run = compare("--list")
    assert run.returncode == 0, run.stderr
    cases = run.stdout.split()
    assert len(cases) > 50
    described = PAGE.partition("## The cases")[2].partition("Notes on the rivals")[0]
    assert set(re.findall(r"`(\w+)`", described)) >= set(cases)
    measured = {
        row["case"]
        for name in ("compare", "sizes")
        for row in json.loads((DOCS / "measurements" / f"{name}.json").read_text())[
            "rows"
        ]
    }
    assert measured <= set(cases)


def test_rival_that_is_not_installed_is_left_out() -> None:
    """The others run, their results are verified, and the output names it."""
    arguments = ("--quick", "--rounds", "1", "--only", "append_many_1m")
    run = compare(*arguments, before="sys.modules['rocksdict'] = None")
    assert run.returncode == 0, run.stderr
    assert "append_many_1m: without peers.rocksdb_store.AppendMany: " in run.stderr
    assert "rocksdict is not installed" in run.stderr
    assert "| append_many_1m | " in run.stdout
    assert "SQLite executemany" in run.stdout
    assert "RocksDB" not in run.stdout


def test_queues_of_the_services_give_what_was_put(tmp_path: Path) -> None:
    """The table names the rate of each of them; `bench.services` checks the values."""
    code = (
        "import pathlib, sys\n"
        "from bench import services\n"
        "services._QUEUE_VALUES, services._QUEUE_BATCH = 4, 3\n"
        "rows = list(services.queue_rows(pathlib.Path(sys.argv[1]), 2))\n"
        "print(services.table(rows))"
    )
    run = run_code(code, str(tmp_path))
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("| measure | logstore | rival |")
    assert sum("SQLite (WAL, FULL)" in line for line in lines) == 2
