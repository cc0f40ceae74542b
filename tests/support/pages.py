"""The code blocks of a page: found, whatever fence they have, and run as pasted.

`run_page` makes an empty environment, in which nothing is installed but pip, and an
empty directory, and starts `page_runner.py` there. A page that begins with
``pip install pylogstore`` installs it: from a wheel of this tree, without network. What
the package depends on comes from the environment of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "RUNNABLE", "Block", "blocks_of", "make_environment", "run_page"]

ROOT = Path(__file__).parents[2]
# Languages of blocks that are run, and of blocks of data, which are parsed.
RUNNABLE = ("python", "py", "sh")
DATA = ("json", "indented")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>[^`]*)$")
_LIST_ITEM = re.compile(r"^ *([-*+]|\d+[.)]) ")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: `line` is the number (from 1) of the first line of its text,
    `language` the word after the fence, "" if there is no word, "indented" for a block
    without a fence."""

    language: str
    text: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """All code blocks of a page, in order.

    Raises:
        ValueError: a fence is not closed.
    """
    lines = text.splitlines()
    found = []
    number = 0
    before = ""  # the last line that is not empty
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.match(line)
        if fence:
            end = _closing(lines, number, fence["fence"])
            body = [
                inner.removeprefix(fence["indent"]) for inner in lines[number + 1 : end]
            ]
            language = fence["info"].strip().split(" ")[0]
            found.append(Block(language, _joined(body), number + 2))
            number = end
        elif line.startswith("    ") and _begins_indented(lines, number, before):
            end = number
            while end < len(lines) and (not lines[end] or lines[end][:4] == "    "):
                end += 1
            body = [inner[4:] for inner in lines[number:end]]
            found.append(Block("indented", _joined(body).rstrip() + "\n", number + 1))
            number = end - 1
        if lines[number]:
            before = lines[number]
        number += 1
    return found


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _closing(lines: list[str], begin: int, fence: str) -> int:
    for number in range(begin + 1, len(lines)):
        if re.fullmatch(rf" *{re.escape(fence)} *", lines[number]):
            return number
    raise ValueError(f"the fence of line {begin + 1} is not closed")


def _begins_indented(lines: list[str], number: int, before: str) -> bool:
    # It follows an empty line, but lines after a list item belong to that item.
    in_list = _LIST_ITEM.match(before) or before.startswith("  ")
    return bool(number) and not lines[number - 1] and not in_list


# --------------------------------------------------------------------------- running

# In the pages, commands of the checkout (make, examples) are run from its root. The
# links make the directory of the test look like one.
_NOT_LINKED = {"build", "dist", "data", "node_modules"}
_STAMPS = ("venv", "package", "test", "spark")


def make_environment(folder: Path) -> Path:
    """An environment without logstore; its Python."""
    venv.create(folder)
    # The pip of the tests' environment: an installation would take seconds.
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{folder / "bin" / "python"}" -m pip "$@"\n')
    pip.chmod(0o755)
    (packages,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    # Searched after its own directory, and not recursively: an editable installation is
    # a `.pth` file, which counts only in a directory of the environment itself.
    (packages / "shared.pth").write_text("".join(f"{path}\n" for path in shared))
    # `make` finds everything set up.
    for name in _STAMPS:
        (folder / f".stamp-{name}").touch()
    return folder / "bin" / "python"


def _environment(python: Path, wheel: Path, java_home: str) -> dict[str, str]:
    folder = python.parent.parent
    settings = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        # `pip install pylogstore` finds the wheel of this tree, and nothing else.
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # `make test` runs this test: here its command only has to start.
        "VENV": str(folder),
        "PYTEST_ARGS": "--version",
        "DEMO_ARGS": "--records 20000",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
    }
    if java_home:
        settings["JAVA_HOME"] = java_home
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "LD_PRELOAD", "MAKEFLAGS", "MAKELEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, **settings}


def run_page(
    page: Path,
    folder: Path,
    python: Path,
    wheel: Path,
    *,
    spark: bool = False,
    java_home: str = "",
    leave_out: str = "",
    timeout_s: float = 280,
) -> str:
    """Run every block of the page, in order; what they print.

    Args:
        folder: an empty directory, in which they run.
        python: of an environment of `make_environment`.
        wheel: found by ``pip install pylogstore``.
        spark: whether blocks that need Spark are run, too.
        leave_out: a pattern; blocks of shell that have it are not run.

    Raises:
        AssertionError: a block failed; with its line and all output.
    """
    for path in ROOT.iterdir():
        if path.name not in _NOT_LINKED and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    command = [str(python), str(Path(__file__).with_name("page_runner.py")), str(page)]
    command += ["--spark"] if spark else []
    command += ["--leave-out", leave_out] if leave_out else []
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(python, wheel, java_home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-6000:]}"
    return done.stdout
