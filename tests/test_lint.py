"""The linters as tests, so that `make test` reports everything in one summary."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = {
    "ruff-check": ["ruff", "check", "--quiet", "."],
    "ruff-format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy", "--no-error-summary"],
}
# Lines of a program that makes exceptions, and the expected error code of mypy; "":
# none.
CALLS = {
    'errors.ConfigError("text", name="a", value=object())': "",
    'errors.ConfigError("text")': "",
    'errors.ConfigError("text", nam="a")': "call-arg",
    'errors.ConfigError("text", name=1)': "arg-type",
    'errors.ConfigError("text", "a")': "call-arg",
    "errors.ConfigError()": "call-arg",
    'errors.ConfigError("text").message': "attr-defined",
    'errors.ProducerFencedError("text", name="a", epoch=1, expected=2)': "call-arg",
    'errors.CorruptIndexError("text", position=1)': "call-arg",
    'errors.CorruptIndexError("text", path=b"p")': "arg-type",
    'errors.CorruptIndexError("text", path="p").reason.upper()': "",
    'errors.CorruptIndexError("text", path="p").position + 1': "operator",
    'errors.OffsetConflictError(1, 2, partition="a-0").actual + 1': "",
    "errors.OffsetConflictError(1, 2)": "call-arg",
    'errors.StorageError(path="p")': "call-arg",
    "errors.StoreClosedError()": "",
    'errors.LogStoreError("text").appended[0][1].start': "",
    'logstore.errors.GroupNotEmptyError("text", group="g", pids=(1,)).pids[0] + 1': "",
    'logstore.errors.GroupNotEmptyError("text", group="g")': "call-arg",
    'logstore.errors.FencedError("text", grup="g")': "call-arg",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_linter_finds_nothing(tool: str) -> None:
    """ruff and mypy report nothing about the repository."""
    command = [sys.executable, "-m", *TOOLS[tool]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.fail(f"{result.stdout}{result.stderr}".strip(), pytrace=False)


def test_mypy_knows_the_facts_of_exceptions(tmp_path: Path) -> None:
    """A program that makes one with a wrong fact, or without one, is wrong for mypy."""
    program = tmp_path / "program.py"
    imports = ["import logstore", "from logstore import errors"]
    program.write_text("\n".join([*imports, *CALLS]))
    command = [sys.executable, "-m", *TOOLS["mypy"], str(program)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = dict.fromkeys(range(3, 3 + len(CALLS)), "")
    for line, code in re.findall(r":(\d+): error: .*\[(.*)\]", result.stdout):
        found[int(line)] = code
    assert dict(zip(CALLS, found.values(), strict=True)) == CALLS, result.stdout
