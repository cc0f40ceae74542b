"""Runs the code blocks of a page, in order, in the current directory.

    python tests/support/page_runner.py PAGE [--spark] [--leave-out PATTERN]

Blocks of Python share one namespace, as if they were typed into one session; a block of
shell is given to bash, which stops at the first line that fails. Without `--spark`,
blocks of Python that are about Spark are left out. Blocks of shell that contain the
pattern of `--leave-out` are left out too, for a page that another test has run already.
Paths on a page are relative, so the directory should be empty.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.pages import Block, blocks_of

# A job of Spark's Kafka source or sink. Its comments say how each line changes when the
# job moves to logstore; the changed job is run.
KAFKA_JOB = re.compile(r'format\("kafka"\)')
ABOUT_SPARK = re.compile(r"\bspark\b", re.IGNORECASE)
# An endless stream is stopped after its first batch.
FIRST_BATCH_S = 60


def moved(text: str) -> str:
    """Apply the comments of a job: ``old  # .new`` becomes ``.new``; a value with the
    comment ``a new one`` gets another name."""
    lines = []
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")
        if comment.startswith("."):
            line = code[: code.rindex(f".{comment[1:].partition('(')[0]}(")] + comment
        elif comment == "a new one":
            line = re.sub(r'"([\w-]+)"\)$', r'"\1-of-the-moved-job")', code)
        lines.append(line)
    return "\n".join(lines) + "\n"


def run_python(page: Path, block: Block, names: dict[str, Any]) -> None:
    """Run a block; tracebacks have the line numbers of the page."""
    is_kafka_job = bool(KAFKA_JOB.search(block.text))
    text = moved(block.text) if is_kafka_job else block.text
    source = "\n" * (block.line - 1) + text
    before = names.get("query")
    importlib.invalidate_caches()  # a block of shell may have installed something
    exec(compile(source, str(page), "exec"), names)
    query = names.get("query")
    if is_kafka_job and query is not None and query is not before:
        stop_after_first_batch(query)


def stop_after_first_batch(query: Any) -> None:
    """Stop a stream, or raise what it failed with."""
    deadline = time.monotonic() + FIRST_BATCH_S
    while query.isActive and not query.lastProgress and time.monotonic() < deadline:
        time.sleep(0.1)
    if query.exception() is not None:
        raise query.exception()
    query.stop()


def run_shell(block: Block) -> None:
    """Run a block unchanged in bash."""
    sys.stdout.flush()
    shell = ["bash", "-euo", "pipefail", "-c", block.text]
    subprocess.run(shell, check=True, stdin=subprocess.DEVNULL)


def run_block(page: Path, block: Block, names: dict[str, Any]) -> None:
    """Run, or parse, one block.

    Raises:
        ValueError: it is in a language that cannot be run.
    """
    if block.language in ("python", "py"):
        run_python(page, block, names)
    elif block.language == "sh":
        run_shell(block)
    elif block.language in ("json", "indented"):
        json.loads(block.text)
    else:
        raise ValueError(
            f"{page.name}, line {block.line}: a block of {block.language!r}; a block "
            "is python, sh or json, so that it can be run"
        )


def main() -> None:
    """Run the page that the first argument names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--leave-out", type=re.compile, metavar="PATTERN")
    args = parser.parse_args()
    page: Path = args.page
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        is_python = block.language in ("python", "py")
        if is_python and ABOUT_SPARK.search(block.text) and not args.spark:
            print(f"--- line {block.line}: left out, needs Spark", flush=True)
            continue
        if not is_python and args.leave_out and args.leave_out.search(block.text):
            print(f"--- line {block.line}: left out", flush=True)
            continue
        print(f"--- line {block.line}: {block.language}", flush=True)
        run_block(page, block, names)
    spark = names.get("spark")
    if spark is not None:
        spark.stop()
    print("--- done", flush=True)


if __name__ == "__main__":
    main()
