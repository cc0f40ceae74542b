"""docs/spark.md against the code: its options, and its examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pyspark_logstore.options import (
    BATCH_ONLY,
    BOTH,
    REFUSED_OF_KAFKA,
    STREAM_ONLY,
    WITHOUT_MEANING,
    parse,
)

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_table_has_the_options_there_are() -> None:
    """With where they count, and no others."""
    rows = re.findall(r"^\| `(\w+)` \| ([bs ]+) \|", TEXT, re.MULTILINE)
    expected = dict.fromkeys(BOTH, "b s")
    expected |= dict.fromkeys(BATCH_ONLY, "b") | dict.fromkeys(STREAM_ONLY, "s")
    assert dict(rows) == expected
    assert len(rows) == len(expected)


def test_page_has_the_options_that_are_refused_or_ignored() -> None:
    """Somebody who moves a job over finds them."""
    for name in (*REFUSED_OF_KAFKA, *WITHOUT_MEANING):
        pattern = f"{name.split('.')[0]}.*" if name.startswith("fetch") else name
        assert f"`{pattern}`" in TEXT, name


def test_options_of_the_job_that_moves_over_are_taken() -> None:
    """All of them, path instead of the servers."""
    job, _ = (block for _, block in BLOCKS.findall(TEXT) if "bootstrap" in block)
    options = dict(re.findall(r'^    \.option\("([\w.]+)", "?([\w:]+)"?\)', job, re.M))
    assert len(options) >= 7
    options["maxOffsetsPerTrigger"] = options["maxOffsetsPerTrigger"].replace("_", "")
    found = parse({**options, "path": "data"}, streaming=True)
    assert found.isolation == "read_committed"


@pytest.mark.spark
def test_python_blocks_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in an empty directory; those that start a session are compiled."""
    # Relative paths are those of the session, not of a test.
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCKS.finditer(TEXT):
        source = block[2]
        for name in ("data", "clean", "checkpoint", "shouted-checkpoint"):
            source = re.sub(
                rf"""(["']){name}\1""", rf"\g<1>{tmp_path / name}\1", source
            )
        code = compile(source, str(PAGE), "exec")
        if block[1] == "python":
            exec(code, names)
