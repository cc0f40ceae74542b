"""docs/spark.md against the code: its options, and its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import logstore
from pyspark_logstore.read.options import (
    BATCH_ONLY,
    BOTH,
    REFUSED_OF_KAFKA,
    STREAM_ONLY,
    WITHOUT_MEANING,
    parse,
)
from support import page_runner
from support.pages import blocks_of, make_environment, run_page
from support.wheels import shared_wheel

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "spark.md"
README = ROOT / "README.md"
TOPICS = ("orders", "clean")  # of the README's example
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_table_has_the_options_there_are() -> None:
    """The table marks the kinds of queries, and has no other options."""
    rows = re.findall(r"^\| `(\w+)` \| ([bs ]+) \|", TEXT, re.MULTILINE)
    expected = dict.fromkeys(BOTH, "b s")
    expected |= dict.fromkeys(BATCH_ONLY, "b") | dict.fromkeys(STREAM_ONLY, "s")
    assert dict(rows) == expected
    assert len(rows) == len(expected)


def test_page_has_the_options_that_are_refused_or_ignored() -> None:
    """Users moving a job from Kafka find them."""
    for name in (*REFUSED_OF_KAFKA, *WITHOUT_MEANING):
        pattern = f"{name.split('.')[0]}.*" if name.startswith("fetch") else name
        assert f"`{pattern}`" in TEXT, name


def test_options_of_the_job_that_moves_over_are_taken() -> None:
    """All of them are accepted, path instead of the servers."""
    job, _ = (block for _, block in BLOCKS.findall(TEXT) if "bootstrap" in block)
    options = dict(re.findall(r'^    \.option\("([\w.]+)", "?([\w:]+)"?\)', job, re.M))
    assert len(options) >= 7
    options["maxOffsetsPerTrigger"] = options["maxOffsetsPerTrigger"].replace("_", "")
    found = parse({**options, "path": "data"}, streaming=True)
    assert found.isolation == "read_committed"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel(tmp_path_factory)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", [PAGE, README], ids=lambda path: path.name)
def test_page_runs_as_pasted(
    page: Path, java_home: str, wheel: Path, tmp_path: Path
) -> None:
    """Every block, in order, in an environment that has only the packages of the page;
    the jobs for Kafka are changed as their comments say. Blocks of the README for a
    shell in a checkout are run by tests/docs/test_pages.py; test_spark_submit.py runs
    spark-submit."""
    python = make_environment(tmp_path / "venv")
    folder = tmp_path / "checkout"
    folder.mkdir()
    printed = run_page(
        page,
        folder,
        python,
        wheel,
        spark=True,
        java_home=java_home,
        leave_out=r"\bmake \w|examples/|spark-submit ",
    )
    assert printed.endswith("--- done\n")
    assert "needs Spark" not in printed
    if page == README:
        with logstore.open(folder / "data", read_only=True) as store:
            counts = [sum(p.end_offset for p in store.topic(t)) for t in TOPICS]
        assert counts == [5, 5]


def test_jobs_for_kafka_say_how_they_move_over() -> None:
    """The source's and the sink's jobs are moved. Nothing of Kafka's remains."""
    jobs = [b.text for b in blocks_of(TEXT) if page_runner.KAFKA_JOB.search(b.text)]
    assert len(jobs) == 2
    for job in jobs:
        moved = page_runner.moved(job)
        assert 'format("logstore")' in moved
        assert '.option("path", "data")' in moved
        assert not page_runner.KAFKA_JOB.search(moved)
        assert "bootstrap" not in moved
