"""`logstore-dump completion` and `man`, and the requests of a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logstore.cli.app import ORDER
from logstore.cli.manual import manual
from logstore.cli.run import cli
from logstore.cli.shell import VARIABLE

PAGE = Path(__file__).parents[3] / "docs" / "logstore-dump.1"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(run: Any, shell: str, tmp_path: Path) -> None:
    """The shell accepts it, if it is installed."""
    result = run("completion", shell)
    assert result.status == 0
    assert VARIABLE in result.out
    program = shutil.which(shell)
    if program is not None:
        script = tmp_path / "script"
        script.write_text(result.out)
        done = subprocess.run([program, "-n", str(script)], capture_output=True)
        assert done.returncode == 0, done.stderr


def completions(shell: str, words: str) -> list[str]:
    """Completions for a line whose cursor is at its end."""
    env = os.environ | {
        VARIABLE: f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    if shell == "fish":
        env["COMP_CWORD"] = words.split(" ")[-1]
    command = [sys.executable, "-m", "logstore"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return re.split(r"[,\t\n]", done.stdout.strip())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_subcommands_options_values_and_topics_are_completed(
    shell: str, store: Path
) -> None:
    """Topics are read from the path on the command line."""
    assert "rebuild-index" in completions(shell, "logstore-dump reb")
    assert "--on-corruption" in completions(shell, "logstore-dump records --on")
    payloads = completions(shell, "logstore-dump records --payload b")
    assert "base64" in payloads
    topics = completions(shell, f"logstore-dump records {store} --topic c")
    assert "clicks" in topics
    assert "orders" not in topics
    assert "--to" not in completions(shell, "logstore-dump records --t")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_both_words_of_a_subcommand_are_completed(shell: str) -> None:
    """The first, then the words that may follow it; then its options."""
    assert "groups" in completions(shell, "logstore-dump gr")
    seconds = completions(shell, "logstore-dump groups ")
    for word in ("list", "describe", "reset", "export"):
        assert word in seconds
    assert "records" not in seconds
    found = completions(shell, "logstore-dump groups d")
    assert "describe" in found
    assert "reset" not in found
    assert "--topic" in completions(shell, "logstore-dump groups describe --t")
    assert completions(shell, "logstore-dump nothing ") == [""]


def test_completion_of_a_topic_without_a_store_is_nothing(tmp_path: Path) -> None:
    """There is no error either."""
    line = f"logstore-dump records {tmp_path / 'missing'} --topic c"
    assert completions("bash", line) == [""]


def test_manual_has_every_subcommand_and_option(run: Any) -> None:
    """groff accepts it without a warning."""
    text = run("man").out
    assert text == manual(cli)
    for name in ORDER:
        assert f".SS {name}".replace("-", "-") in text.replace("\\-", "-")
        for parameter in cli.commands[name].params:
            if not getattr(parameter, "hidden", True):
                for option in parameter.opts:
                    assert option in text.replace("\\-", "-")
    groff = shutil.which("groff")
    if groff is not None:
        words = [groff, "-man", "-Tutf8", "-ww", "-z"]
        done = subprocess.run(words, input=text, capture_output=True, text=True)
        assert done.stderr == ""


def test_manual_page_in_the_repository_is_up_to_date() -> None:
    """`python docs/make_man.py` writes it."""
    assert PAGE.read_text("utf-8") == manual(cli)
