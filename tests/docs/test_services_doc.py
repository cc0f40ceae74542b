"""docs/{services,exactly-once,web-servers}.md: their examples run as pasted."""

from __future__ import annotations

import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "docs" / "services.md"
WEB_SERVERS = ROOT / "docs" / "web-servers.md"
EXACTLY_ONCE = ROOT / "docs" / "exactly-once.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def test_the_first_example_is_short_and_runs(tmp_path: Path) -> None:
    """The example runs as a program: two workers, one of which is killed."""
    program = blocks_of(SERVICES)[0]
    assert len(list(filter(None, program.splitlines()))) <= 26
    (tmp_path / "shop.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0
    # It was killed in the middle of a request, and no request was handled twice.
    (group,) = logstore.groups(tmp_path / "shop")
    assert sum(row.offset for row in group.partitions) == 400


def test_processes_of_a_web_server_append(tmp_path: Path) -> None:
    """The example runs as a program."""
    (tmp_path / "visits.py").write_text(blocks_of(WEB_SERVERS)[0])
    done = subprocess.run(
        [sys.executable, "visits.py"], cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "page", [SERVICES, EXACTLY_ONCE, WEB_SERVERS], ids=lambda path: path.name
)
def test_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks run in order, in an empty directory; their assertions hold."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)[0 if page == EXACTLY_ONCE else 1 :]
    assert blocks
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


def test_commands_run(tmp_path: Path) -> None:
    """They show and move the group of the previous example."""
    text = SERVICES.read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with logstore.open(tmp_path / "queue") as store:
        store.create_topic("jobs").append(b"x", durable=True)
    with logstore.Consumer(
        tmp_path / "queue", group="at-least-once", topics=["jobs"], reset="earliest"
    ) as consumer:
        assert consumer.poll(timeout_ms=10_000)
        consumer.commit()
    folder = Path(sys.executable).parent
    path = os.pathsep.join([os.fspath(folder), os.environ["PATH"]])
    for line in "".join(commands).splitlines():
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert "at-least-once" in done.stdout, line


@pytest.mark.parametrize("page", [SERVICES, EXACTLY_ONCE], ids=lambda path: path.name)
def test_names_exist(page: Path) -> None:
    """Names of logstore, of its consumers and its stores."""
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`logstore\.([A-Za-z_.]*\w)", text):
        assert operator.attrgetter(path)(logstore), path
    for kind in ("Consumer", "Store"):
        for name in re.findall(rf"`{kind}\.([a-z_]+)", text):
            assert hasattr(getattr(logstore, kind), name), name
    for name in re.findall(r"`consumer\.([a-z_]+)", text):
        assert hasattr(logstore.Consumer, name) or name in text.split("| logstore |")[0]
