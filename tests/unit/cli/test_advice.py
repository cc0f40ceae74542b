"""Errors of the library name options at the command line, not arguments."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.advice import ADVICE, for_command_line

SOURCE = Path(logstore.__file__).parent
# Advice for programs only.
FOR_PROGRAMS = re.compile(r"\w=(True|False)|StoreConfig|logstore\.\w|Store\.\w")


def texts() -> str:
    """The texts in the library, one after the other, without their values."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                values = [p.value for p in parts if isinstance(p, ast.Constant)]
                found.append("".join(v for v in values if isinstance(v, str)))
    return "\n".join(found)


def test_each_advice_is_one_of_the_library() -> None:
    """A row whose words are in no message any more replaces nothing."""
    every = texts()
    for pattern, _ in ADVICE:
        plain = re.sub(r"\\(.)", r"\1", pattern)
        assert max(re.findall(r"[\w=. -]+", plain), key=len).strip() in every, pattern


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        (
            "store s is open for writing in process 7; open it with read_only=True, or "
            "close it there",
            "store s is open for writing in process 7; stop it there and run this "
            "again; --dry-run, if the command has it, needs no lock",
        ),
        (
            "Run as user 7, or open it with StoreConfig(allow_shared_directory=True); "
            "read_only=True is always possible",
            "Run as user 7, or give --allow-shared-directory",
        ),
        (
            "Remove the permission (chmod g-w), or open it with "
            "group_access=True, or open it with "
            "StoreConfig(allow_shared_directory=True); reading without a group "
            "is always possible",
            "Remove the permission (chmod g-w), or give --group-access or "
            "--allow-shared-directory",
        ),
        (
            "the store is its parent: logstore.open('/a b').topic('orders')[0]",
            "the store is its parent: give /a b",
        ),
        ("max_memory=5 is too few", "--max-memory 5 is too few"),
        ("a plain sentence", "a plain sentence"),
    ],
)
def test_advice_is_replaced(said: str, typed: str) -> None:
    """The rest of the message stays."""
    assert for_command_line(said) == typed


@pytest.mark.parametrize(
    "arguments",
    [
        ("repair", "--mode", "cut", "--yes"),
        ("rebuild-index",),
        ("compact",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_store_that_is_open_is_told_for_the_command_line(
    run: Any, store: Path, arguments: tuple[str, ...]
) -> None:
    """The status is 2; the advice can be followed at a terminal."""
    with logstore.open(store):
        result = run(arguments[0], store, *arguments[1:])
    assert result.status == 2
    assert "is open for writing in" in result.err
    assert "--dry-run" in result.err
    assert not FOR_PROGRAMS.search(result.err), result.err


def test_a_directory_that_others_write_to_is_told_for_the_command_line(
    run: Any, store: Path
) -> None:
    """The message names the options that allow it."""
    os.chmod(store, 0o777)
    result = run("rebuild-index", store)
    assert (result.status, "--allow-shared-directory" in result.err) == (2, True)
    assert not FOR_PROGRAMS.search(result.err), result.err
    os.chmod(store, 0o770)
    result = run("rebuild-index", store)
    assert (result.status, "--group-access" in result.err) == (2, True)
    assert not FOR_PROGRAMS.search(result.err), result.err


def test_a_limit_is_told_as_an_option(run: Any, tmp_path: Path) -> None:
    """A batch is larger than the reader allows."""
    config = logstore.TopicConfig(compression_type="gzip")
    with logstore.open(tmp_path) as opened:
        topic = opened.create_topic("t", config=config)
        topic[0].append_many([b"x" * 1000] * 100)
    result = run("records", tmp_path, "--max-batch-decompressed-bytes", 2000)
    assert result.status == 2
    assert "--max-batch-decompressed-bytes raises that limit" in result.err
    assert not FOR_PROGRAMS.search(result.err), result.err


def test_a_group_without_offsets_is_told_as_an_option(run: Any, store: Path) -> None:
    """`groups reset` of an unknown group."""
    result = run("groups", "reset", store, "--group", "g", "--to", "earliest")
    assert (result.status, "--topics NAME" in result.err) == (2, True)
