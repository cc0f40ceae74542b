"""The tables of docs/compatibility.md equal the data, and their tests exist."""

from __future__ import annotations

import ast
import functools
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_compatibility.py"))
PAGE = ROOT / "docs" / "compatibility.md"
TABLES = {
    "reads": (MAKE["READS"], MAKE["WRITERS"]),
    "serves": (MAKE["SERVES"], MAKE["STARTED"]),
}
NAMED = sorted(
    {test for rows, _ in TABLES.values() for row in rows for test in row.shown}
)


@functools.cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_page_has_the_tables_of_the_data() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MAKE["page"](text) == text, "run: python docs/make_compatibility.py"
    assert all(f"`{name}`" in text for name in NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_named_test_exists(name: str) -> None:
    """A test that is renamed or removed takes its cells along."""
    path, _, function = name.partition("::")
    assert (ROOT / path).is_file()
    assert function.startswith("test_")
    assert function in functions_of(path)


@pytest.mark.parametrize("table", TABLES)
def test_rows_name_releases_of_their_table(table: str) -> None:
    """Each row has a cell for each release: a test, or the reason for its absence."""
    rows, releases = TABLES[table]
    assert len({row.what for row in rows}) == len(rows)
    for row in rows:
        assert row.shown
        # No releases listed: all releases of the table.
        shown = {r for w in row.shown.values() for r in w.split() or releases}
        absent = set(row.absent.split())
        assert shown | absent == set(releases), row.what
        assert not shown & absent, row.what


def test_name_that_does_not_exist_is_found() -> None:
    assert "test_of_nothing" not in functions_of("tests/golden/test_golden.py")
