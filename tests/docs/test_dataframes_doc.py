"""docs/dataframes.md: its examples run as pasted, its column table is the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from logstore.log.frames.columns import ALL_COLUMNS, SCHEMA

PAGE = Path(__file__).parents[2] / "docs" / "dataframes.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order, in an empty directory; their assertions hold."""
    for name in ("duckdb", "pandas", "polars"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(TEXT)
    assert len(blocks) >= 10
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    names["store"].close()


def test_table_of_columns_is_the_schema() -> None:
    """Names in their order, with Arrow's words for the types."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE)
    assert [name for name, _ in rows] == list(ALL_COLUMNS)
    words = {"timestamp": "timestamp[ms, UTC]"}
    words["headers"] = "list<struct<key: string, value: binary>>"
    for name, kind in rows:
        assert kind.strip() == words.get(name, str(SCHEMA[name].type)), name
