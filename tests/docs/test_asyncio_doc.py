"""docs/asyncio.md: its examples run as pasted, and every name in it exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import logstore.aio

PAGE = Path(__file__).parents[2] / "docs" / "asyncio.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order, in an empty directory; their assertions hold."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(TEXT)
    assert len(blocks) >= 4
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_methods_that_are_awaited_are_those_that_wait() -> None:
    """The list on the page; each is a coroutine of one of the classes."""
    (listed,) = re.findall(r"are awaited: (.*?) and so on", TEXT, re.DOTALL)
    kinds = [getattr(logstore.aio, name) for name in logstore.aio.__all__]
    for name in re.findall(r"`(\w+)`", listed):
        found = [vars(k)[name] for k in kinds if inspect.isclass(k) and name in vars(k)]
        assert found, name
        assert all(map(inspect.iscoroutinefunction, found)), name


@pytest.mark.parametrize("name", sorted(logstore.aio.__all__))
def test_public_name_and_its_members_have_docstrings(name: str) -> None:
    """Classes shared with `logstore` keep their docstrings from there."""
    value = getattr(logstore.aio, name)
    assert value.__doc__
    if inspect.isclass(value):
        for member in vars(value):
            if not member.startswith("_"):
                found = getattr(value, member)
                is_slot = inspect.ismemberdescriptor(found)
                assert is_slot or inspect.getdoc(found), member
