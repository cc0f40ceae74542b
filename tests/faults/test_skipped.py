"""Cases that cannot be made on a machine are skipped, and do not count as done."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults import __main__ as programme
from faults import full, planted, small_disks
from faults.cases import guarded, run_cases
from faults.method import Skip, Tally, skipped_in_words
from faults.planted_bug import hunt_all

# Units of each case of this module for `run_cases`; each third case cannot be made.
_WORTH = 5


def problem(key: str, notes: Counter[str]) -> str:
    notes["done"] = _WORTH
    if int(key.rpartition("/")[2]) % 3 == 0:
        raise Skip("needs root", _WORTH)
    return "broken" if key.endswith("/4") else ""


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Restore the log, which the programme turns off."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)


def test_skipped_cases_are_no_work_that_was_done() -> None:
    tally = Tally(10)
    tally.passed(3)
    tally.skip("needs root", 4)
    tally.skip("no JDK")
    tally.failed("wrong")
    assert (tally.done, tally.handled) == (4, 9)
    assert tally.skipped == {"needs root": 4, "no JDK": 1}
    assert skipped_in_words(tally.skipped) == "5 skipped (needs root; no JDK)"
    assert skipped_in_words({}) == ""


def test_cases_of_other_processes_are_counted_apart() -> None:
    """Three of nine cases are skipped, one fails; no others replace them."""
    tally = Tally(9 * _WORTH)
    run_cases(__name__, tally.total, 7, tally, worth=_WORTH)
    assert tally.handled >= tally.total
    assert tally.skipped["needs root"] == (tally.handled // _WORTH + 2) // 3 * _WORTH
    assert len(tally.failures) == 1


def test_skipped_case_has_done_nothing() -> None:
    module = SimpleNamespace(problem=problem)
    assert guarded(module, "1/3") == ("", 0, {"done": _WORTH}, {"needs root": _WORTH})
    assert guarded(module, "1/5") == ("", _WORTH, {}, {})


def run_programme(
    skipped: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> tuple[int, list[str]]:
    """The status, and the lines that it prints, with one method that skips."""

    def run(count: int, seed: int, tally: Tally) -> None:
        tally.passed(count - sum(skipped.values()))
        for why, number in skipped.items():
            tally.skip(why, number)

    method = SimpleNamespace(
        NAME="some", UNIT="cases", COUNTS={"commit": 6_000, "nightly": 1}, run=run
    )
    monkeypatch.setattr(programme, "METHODS", (method,))
    status = programme.main(["--seed", "3"])
    return status, capsys.readouterr().out.splitlines()


def test_table_and_last_line_say_what_was_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line alone must show that cases were skipped."""
    status, lines = run_programme({"needs root": 5_000}, monkeypatch, capsys)
    assert status == 0
    assert lines[2].split()[:3] == ["some", "1,000", "cases"]
    assert lines[3] == "    5,000 skipped: needs root"
    assert lines[-1] == ("0 failures, 5,000 skipped (needs root), size commit, seed 3")


def test_last_line_says_nothing_of_skips_if_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines = run_programme({}, monkeypatch, capsys)
    assert lines[-1] == "0 failures, size commit, seed 3"


@pytest.mark.parametrize(
    ("mounts", "tool", "reason"),
    [("needs root", "/bin/true", "needs root"), ("", None, "needs mkfs.ext4")],
)
def test_full_disk_that_cannot_be_had_is_skipped(
    monkeypatch: pytest.MonkeyPatch, mounts: str, tool: str | None, reason: str
) -> None:
    monkeypatch.setattr(small_disks, "_own_mounts", lambda: mounts)
    monkeypatch.setattr(small_disks.shutil, "which", lambda _: tool)
    monkeypatch.setattr(full, "any_kind", lambda _: "ext4")
    outcome = guarded(full, "1/1")
    assert outcome.skipped == {reason: full.CALLS_A_CASE}
    assert (outcome.problem, outcome.done) == ("", 0)


def test_file_system_that_cannot_be_mounted_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Skipped if, for example, the kernel lacks it; the reason names no directory of
    the case."""
    monkeypatch.setattr(small_disks, "_own_mounts", lambda: "")
    monkeypatch.setattr(small_disks, "_run", lambda *_: f"mount: {tmp_path}/disk: no")
    with (
        pytest.raises(Skip, match=r"^needs tmpfs-bytes: mount: /disk: no$"),
        small_disks.mounted("tmpfs-bytes", tmp_path),
    ):
        pass
    assert small_disks.any_kind(random.Random(1)) in small_disks.KINDS


def test_bug_that_cannot_be_hunted_here_is_neither_caught_nor_missed() -> None:
    tally = Tally(1)

    def hunt(bug: planted.Bug, folder: Path) -> tuple[bool, str]:
        raise Skip("needs root")

    hunt_all([planted.BUGS[0]], hunt, tally)
    assert tally.skipped == {"needs root": 1}
    assert (tally.done, tally.failures) == (0, [])


def test_hunt_that_makes_no_case_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The output of the process on the copy is parsed."""
    bug = next(bug for bug in planted.BUGS if bug.method == "full")
    said = SimpleNamespace(returncode=0, stdout="seed 1\nskipped: needs root\n")
    monkeypatch.setattr(planted, "run_on_copy", lambda *_: said)
    with pytest.raises(Skip, match="needs root"):
        planted._hunt(bug, tmp_path, 1)
