"""`logstore-dump report`: its status, and the file that it writes."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from logstore.cli.output import Progress
from support.cli import Terminal
from support.damage import flip_bit, logs_in


def test_report_exits_one_if_it_shows_problems(
    run: Any, partition: Path, tmp_path: Path
) -> None:
    """`verify --format html` does the same; the page is written anyway."""
    page = tmp_path / "r.html"
    assert run("report", partition, "-o", page).status == 0
    flip_bit(logs_in(partition)[0], 8 * 30)
    for arguments in (["report"], ["verify", "--format", "html"]):
        page.unlink()
        assert run(*arguments, partition.parent, "-o", page).status == 1
        assert "</html>" in page.read_text()
        result = run(*arguments, partition.parent)
        assert (result.status, result.out.count("</html>")) == (1, 1)


def test_report_replaces_its_file_as_a_whole(
    run: Any, partition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old page stays until the new one is complete, and if it never is; the new one
    has the mode of the old, and a link stays a link."""
    page, link = tmp_path / "r.html", tmp_path / "link.html"
    page.write_text("old")
    page.chmod(0o640)
    link.symlink_to(page.name)

    def fail(source: str, target: str) -> None:
        assert page.read_text() == "old"
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert run("report", partition, "-o", page).status == 2
    assert page.read_text() == "old"
    assert run("report", partition, "-o", link).status == 0
    assert link.is_symlink()
    assert "</html>" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    assert not list(tmp_path.glob("*.tmp"))


def test_report_leaves_what_is_no_file_in_its_place(run: Any, partition: Path) -> None:
    """A device is written to, not replaced."""
    before = os.stat("/dev/null").st_ino
    assert run("report", partition, "-o", "/dev/null").status == 0
    assert os.stat("/dev/null").st_ino == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"],
        ["report", "-o", "-"],
        ["verify", "--format", "html"],
        ["export", "-o", "-", "--format", "parquet"],
        ["export", "-o", "-", "--format", "arrow"],
    ],
    ids=" ".join,
)
def test_what_is_no_text_is_refused_on_a_terminal(
    run: Any,
    partition: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    """This includes a dumb terminal: the bytes of a file would change it, a page would
    fill it."""
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    result = run(*arguments, partition)
    assert (result.status, screen.getvalue()) == (2, "")
    assert "redirect standard output, or give -o FILE" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "-o", "{page}"],
        ["verify", "--format", "html", "-o", "{page}"],
        ["batches"],
        ["tail", "-n", "30"],
        ["records"],
        ["rebuild-index"],
    ],
    ids=" ".join,
)
def test_work_that_takes_long_has_a_bar(
    run: Any,
    partition: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    """The bar is shown only on a terminal; not if the records are printed there, which
    would mix."""
    monkeypatch.setenv("TERM", "xterm")
    defaults = (None, "bytes", 0.0)
    monkeypatch.setattr(Progress.__init__, "__defaults__", defaults)
    page = str(tmp_path / "r.html")
    given = [one.format(page=page) for one in arguments]
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    assert run(*given, partition).status == 0
    assert "%" in err.getvalue()
    log = logs_in(partition)[0]
    if arguments[0] in ("batches", "tail", "records"):
        for path in (log, partition):
            err = Terminal()
            monkeypatch.setattr(sys, "stderr", err)
            assert run(*given, path).status == 0
            assert "%" in err.getvalue()
        err, out = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stderr", err)
        monkeypatch.setattr(sys, "stdout", out)
        assert run(*given, partition).status == 0
        assert (err.getvalue(), bool(out.getvalue())) == ("", True)
