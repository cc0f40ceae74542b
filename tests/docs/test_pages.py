"""README and guide, run from top to bottom as pasted."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import logstore
from support import page_runner
from support.pages import RUNNABLE, Block, blocks_of, make_environment, run_page
from support.wheels import copy_sources, shared_wheel

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide.md"
SPARK = ROOT / "docs" / "spark.md"
PAGES = [README, GUIDE, SPARK]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel(tmp_path_factory)


# The first block of the README: it makes an environment, and builds the checkout with
# packages of the index.
INSTALL = r"python3 -m venv"


@pytest.mark.slow
def test_readme_runs_as_pasted(wheel: Path, tmp_path: Path) -> None:
    """Its Python and its commands; blocks for Spark are tested with the connector."""
    python = make_environment(tmp_path / "venv")
    page = tmp_path / "README.md"
    page.write_text(f"```sh\npip install pylogstore\n```\n\n{README.read_text()}")
    folder = tmp_path / "checkout"
    folder.mkdir()
    printed = run_page(page, folder, python, wheel, leave_out=INSTALL)
    assert "does not provide the extra" not in printed
    assert printed.endswith("--- done\n")
    for said in ("all well", "pytest", "no problems"):  # make demo, make test, verify
        assert said in printed


@pytest.mark.thorough  # downloads pyarrow, and builds
@pytest.mark.slow
def test_readme_installs_from_a_checkout(tmp_path: Path) -> None:
    """The first block, with the package index."""
    (block,) = [
        block for block in blocks_of(README.read_text()) if INSTALL in block.text
    ]
    copy_sources(tmp_path)
    kept = {name: value for name, value in os.environ.items() if name[:4] != "PYTH"}
    check = "cd / && logstore-dump --version && python -c 'import pyarrow, logstore'"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{block.text}\n{check}"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert logstore.__version__ in done.stdout


@pytest.mark.slow
def test_guide_runs_as_pasted(wheel: Path, tmp_path: Path) -> None:
    """All of it, in an environment that has the wheel."""
    python = make_environment(tmp_path / "venv")
    install = Block("sh", "pip install pylogstore\n", 1)
    page = tmp_path / "guide.md"
    page.write_text(f"```{install.language}\n{install.text}```\n\n{GUIDE.read_text()}")
    folder = tmp_path / "checkout"
    folder.mkdir()
    assert run_page(page, folder, python, wheel).endswith("--- done\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_block_can_be_run(page: Path) -> None:
    """Every block has a language that can be run."""
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert len(blocks) >= 5
    other = [b for b in blocks if b.language not in (*RUNNABLE, "json", "indented")]
    assert other == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_fence_belongs_to_a_block(page: Path) -> None:
    """Blocks, counted in another way: by their fences."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)
    fenced = [b for b in blocks_of(text) if b.language != "indented"]
    assert len(fences) == 2 * len(fenced)


# ------------------------------------------------------------------------ the helper

PAGE = """\
Text

```python
a = 1
```

- an item

  ~~~ sh
  true
  ~~~

      not a block of the page

```
no language
```

Text

    {"a": 1}

    {"b": 2}
"""


def test_blocks_of_every_kind_are_found() -> None:
    """Blocks with and without language, with tildes, in a list, without a fence."""
    assert blocks_of(PAGE) == [
        Block("python", "a = 1\n", 4),
        Block("sh", "true\n", 10),
        Block("", "no language\n", 16),
        Block("indented", '{"a": 1}\n\n{"b": 2}\n', 21),
    ]


def test_fence_that_is_not_closed_is_an_error() -> None:
    """Its block would hide all later ones."""
    with pytest.raises(ValueError, match="line 1 is not closed"):
        blocks_of("```python\na = 1\n")


JOB = """\
df = (
    spark.readStream.format("kafka")  # .format("logstore")
    .option("kafka.bootstrap.servers", "host:9092")  # .option("path", "data")
    .option("subscribe", "orders")  # the same
    .option("checkpointLocation", "checkpoint")  # a new one
)
"""
MOVED = """\
df = (
    spark.readStream.format("logstore")
    .option("path", "data")
    .option("subscribe", "orders")  # the same
    .option("checkpointLocation", "checkpoint-of-the-moved-job")
)
"""


def test_job_is_moved_as_its_comments_say() -> None:
    """The rest of a line stays."""
    assert page_runner.moved(JOB) == MOVED


@pytest.mark.parametrize(
    ("language", "text", "error"),
    [
        ("python", "assert False", AssertionError),
        ("sh", "false\ntrue", Exception),
        ("sh", "false | true", Exception),
        ("indented", "{", ValueError),
        ("", "anything", ValueError),
        ("text", "anything", ValueError),
    ],
)
def test_block_that_fails_is_noticed(
    language: str, text: str, error: type[Exception], tmp_path: Path
) -> None:
    """Every line of shell counts, not only the last one; a block that cannot be run is
    an error."""
    with pytest.raises(error):
        page_runner.run_block(tmp_path / "page.md", Block(language, text, 1), {})
