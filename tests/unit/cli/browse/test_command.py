"""The subcommand `browse`: checks made before a screen is drawn."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.browse.command import EXAMPLES
from support.browsing import terminal


def test_without_a_terminal_it_says_so(shop: Path, run: Any) -> None:
    """The status is 2; the message names the command that prints to a pipe."""
    result = run("browse", shop)
    assert (result.status, result.out) == (2, "")
    assert "browse needs a terminal" in result.err
    assert "`logstore-dump records` prints to a pipe" in result.err


def test_a_dumb_terminal_is_none(shop: Path) -> None:
    """A dumb terminal obeys no control sequences."""
    with terminal("browse", shop, TERM="dumb") as shown:
        assert shown.end() == 2
    assert b"browse needs a terminal" in shown.written


WITHOUT = """
import sys
sys.modules["textual"] = None
import logstore.cli.browse.command as command
command.is_terminal = lambda stream: True
from logstore.cli.main import main
sys.exit(main(["browse", sys.argv[1]]))
"""


def test_without_textual_it_says_what_to_install(shop: Path) -> None:
    """The status is that of every missing package."""
    words = [sys.executable, "-c", WITHOUT, shop]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "logstore-dump: this command needs textual; install it with "
        "`pip install 'pylogstore[browse]'`\n"
    )


def test_no_other_command_loads_textual(shop: Path) -> None:
    """Their help does not load it either."""
    for arguments in (["ls", str(shop)], ["browse", "--help"]):
        code = (
            "import sys\nfrom logstore.cli.main import main\n"
            f"assert main({arguments!r}) == 0\nassert 'textual' not in sys.modules"
        )
        words = [sys.executable, "-c", code]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_pasted(shop: Path, example: str) -> None:
    """It runs in a terminal, until `q`."""
    for name in ("data", "kafka"):
        (shop.parent / name).symlink_to(shop)
    words = shlex.split(example)
    here = Path.cwd()
    os.chdir(shop.parent)
    try:
        with terminal(*words) as shown:
            shown.until(b"Quit")
            shown.send(b"q")
            assert shown.end() == 0
    finally:
        os.chdir(here)
    assert b"\x1b[?1049l" in shown.written  # the terminal is back to normal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "order"], b"did you mean orders"),
        (["--partition", "9"], b"have no partition 9"),
    ],
)
def test_what_is_not_there_is_said_before_a_screen_is_drawn(
    shop: Path, arguments: list[str], said: bytes
) -> None:
    """The status is 2, and the screen of the terminal stays."""
    with terminal("browse", shop, *arguments) as shown:
        assert shown.end() == 2
    assert said in shown.written
    assert b"\x1b[?1049h" not in shown.written


def test_it_only_reads(shop: Path) -> None:
    """Whatever keys are pressed, no file is made or changed, and a writer is not locked
    out."""
    before = {p: p.stat().st_mtime_ns for p in shop.rglob("*") if p.is_file()}
    with terminal("browse", shop) as shown:
        shown.until(b"orders")
        for keys, seen in (
            (b"c", b"3,000 "),
            (b"\r", b"click 7"),
            (b"f", b"following"),
            (b"3s", b"no problems"),
            (b"2", b"no groups"),
        ):
            shown.send(keys)
            shown.until(seen)
        assert {
            p: p.stat().st_mtime_ns for p in shop.rglob("*") if p.is_file()
        } == before
        with logstore.open(shop) as store:
            store.topic("clicks").append(b"x")
        shown.send(b"q")
        assert shown.end() == 0
