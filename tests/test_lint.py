"""The linters as tests, so that `make test` tells about all in one summary."""

from __future__ import annotations

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


@pytest.mark.parametrize("tool", TOOLS)
def test_linter_finds_nothing(tool: str) -> None:
    """ruff and mypy have nothing to say about the repository."""
    command = [sys.executable, "-m", *TOOLS[tool]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.fail(f"{result.stdout}{result.stderr}".strip(), pytrace=False)
