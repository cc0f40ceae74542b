"""`python -m faults --for PATH`: the methods for a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults import __main__ as programme
from faults import planted
from faults.methods import METHODS
from faults.responsible import methods_for

NAMES = [method.NAME for method in METHODS]
ROOT = Path(__file__).parents[2]


def test_file_and_its_rooms_have_the_methods_of_its_bugs() -> None:
    """A file is found by any of its names; a room has the methods of all its files."""
    file = "log/write/active_segment.py"
    found = methods_for(file)
    assert "disk_states" in found
    assert methods_for(f"src/logstore/{file}") == found
    for room in ("log/write", "log/write/", "log", "src/logstore/log"):
        assert set(found) <= set(methods_for(room))
    assert methods_for("log/writ") == methods_for("nothing") == []


def test_each_bug_is_found_by_its_file() -> None:
    """The methods of a file include that of each of its bugs, in the programme's
    order."""
    for bug in planted.BUGS:
        found = methods_for(bug.file)
        assert bug.method.replace("_", "-") in [n.replace("_", "-") for n in found]
        assert found == [name for name in NAMES if name in found]


def test_file_without_a_bug_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The programme does not succeed without running a method."""
    with pytest.raises(SystemExit) as ended:
        programme.main(["--for", "cli/app.py"])
    assert ended.value.code == 2
    assert "no bug is planted in cli/app.py: run all methods" in capsys.readouterr().err


def test_table_of_what_to_run_has_the_methods_of_each_room() -> None:
    """CONTRIBUTING names them, and paths that exist, for every room of the package."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = page.partition("## What to run after a change")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| `([\w/]+)/` \| `(.+?)` \| \d+ \| (.+) \|$", section)
    for room, paths, methods in rows:
        assert re.findall(r"`([\w-]+)`", methods) == methods_for(room), room
        assert all((ROOT / path).exists() for path in paths.split()), room
    package = ROOT / "src" / "logstore"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} - {"spark"}
    assert {room.partition("/")[0] for room, *_ in rows} == rooms | {"connectors"}
