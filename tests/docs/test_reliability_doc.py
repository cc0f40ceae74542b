"""The failure catalogue of docs/reliability.md against the tests that it names.

Every failure in the catalogue names the test that shows its outcome; renaming or
removing a test breaks its row.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RUNS = ROOT / "docs" / "fault-runs.md"
ROWS = 212
HEAD = "| # | what happens | shown by |"
METHOD = "faults: "
NAMES = {method.NAME for method in METHODS}
NO_TEST = re.compile(r"\bnot (?:covered|offered): \w{2,}")


def rows(text: str) -> Iterator[list[str]]:
    """The rows of the tables of the catalogue."""
    inside = False
    for line in text.splitlines():
        if line == HEAD:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|- "):
            yield [cell.strip() for cell in line[1:].removesuffix("|").split("|")]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def problems(text: str) -> list[str]:
    """The problems of the rows of a page."""
    found = list(rows(text))
    wrong = []
    numbers = [cells[0] for cells in found]
    if numbers != [str(number) for number in range(1, ROWS + 1)]:
        wrong.append(f"numbers are not 1 to {ROWS} in order: {' '.join(numbers)}")
    for cells in found:
        wrong += [f"{cells[0]}: {what}" for what in problems_of(cells)]
    return wrong


def problems_of(cells: list[str]) -> list[str]:
    """The problems of a row: its form, and the tests and methods that it names."""
    if len(cells) != 3 or not cells[1]:
        return ["it has not the three columns"]
    named = in_code(cells[2])
    wrong = [what for name in named if (what := problem_of(name))]
    if not named and not NO_TEST.search(cells[2]):
        wrong.append("no test, no method and no reason")
    return wrong


def problem_of(name: str) -> str:
    """The problem of the name of a test or a method; "" for a valid one."""
    if name.startswith(METHOD):
        method = name.removeprefix(METHOD)
        return "" if method in NAMES else f"there is no method {method}"
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return f"there is no file {path}"
    if not test.startswith("test_") or test not in functions_of(path):
        return f"{path} has no test {test}"
    return ""


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    """The functions and methods of a module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    bodies = [tree.body, *(n.body for n in tree.body if isinstance(n, ast.ClassDef))]
    return frozenset(
        node.name
        for body in bodies
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_each_row_of_the_catalogue_names_what_shows_it() -> None:
    """Existing tests, existing methods, or the reason why there is no test."""
    assert problems(PAGE.read_text(encoding="utf-8")) == []


def test_pages_say_how_many_rows_there_are() -> None:
    """The README, and the head of the page."""
    for page in (ROOT / "README.md", PAGE):
        assert re.findall(r"(\d+)\s+ways", page.read_text()) == [str(ROWS)], page.name


def test_each_test_that_the_page_names_is_there() -> None:
    """Names outside the catalogue count, and names in the diary."""
    text = PAGE.read_text(encoding="utf-8") + RUNS.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|connectors)/[\w/]+\.py)(::\w+)?`", text)
    assert len(named) > 300
    for path, test in named:
        problem = problem_of(path + test) if test else ""
        assert not problem, problem
        assert (ROOT / path).is_file(), path
    assert not re.findall(r"`(?!tests/|connectors/)[\w/]*test_\w+\.py", text)


def test_each_method_shows_something() -> None:
    """A method that no row names would have no known use."""
    named = {
        name.removeprefix(METHOD)
        for cells in rows(PAGE.read_text(encoding="utf-8"))
        for name in in_code(cells[-1])
        if name.startswith(METHOD)
    }
    assert named == NAMES


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        ("", "no test, no method and no reason"),
        ("not covered:", "no test, no method and no reason"),
        ("somewhere", "no test, no method and no reason"),
        ("`faults: wishes`", "there is no method wishes"),
        ("`tests/unit/test_gone.py::test_x`", "there is no file"),
        ("`tests/docs/test_docs.py::test_gone`", "has no test test_gone"),
        ("`tests/docs/test_docs.py::rows`", "has no test rows"),
        ("`tests/docs/test_docs.py`", "has no test "),
    ],
)
def test_bad_row_is_found(cell: str, what: str) -> None:
    """A reason does not excuse a wrong name."""
    for text in (cell, f"{cell}; not covered: the rest") if "`" in cell else (cell,):
        (found,) = problems_of(["1", "a thing", text])
        assert what in found


@pytest.mark.parametrize(
    "cell",
    [
        "`faults: kills`",
        "`tests/docs/test_docs.py::test_links_lead_somewhere`, `faults: kills`",
        "not offered: no such thing",
        "`faults: kills`; not covered: hours of it",
    ],
)
def test_good_row_is_accepted(cell: str) -> None:
    """Each valid form of the last column."""
    assert problems_of(["1", "a thing", cell]) == []


def test_missing_repeated_and_misplaced_rows_are_found() -> None:
    """The numbers are the page's promise of completeness."""
    numbers = range(1, ROWS + 1)
    lines = [f"| {number} | a thing | `faults: kills` |" for number in numbers]
    head = f"{HEAD}\n| --- | --- | --- |\n"
    assert problems(head + "\n".join(lines)) == []
    for wrong in (lines[:-1], lines[1:], [lines[0], *lines], lines[::-1], []):
        assert len(problems(head + "\n".join(wrong))) == 1
