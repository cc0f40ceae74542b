"""Programs that each showed a mistake of logstore once, where no other test makes the
same: each needs much memory, or real timers for some time.

The docstring of each describes the mistake. Each is a whole program that a person can
run (`python tests/reproducers/a21_*.py`): it prints WRONG or OK for each attempt, and
exits with status 1 or 0. Here each runs in its own process, at the level "all" only,
and for a shorter time than by hand; LOGSTORE_REPRODUCERS=long gives them the time that
they ask for.

All other mistakes have tests of their own: docs/fault-runs.md names them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import logstore

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("[a-z][0-9][0-9]_*.py"))
SOURCES = Path(logstore.__file__).parents[1]

# Arguments of a script if there is little time; without arguments it takes longer.
SHORT = {
    "a21_large_records": [],
    "k09_interrupted_publish_in_part": ["20"],
    "s04_interrupted_commit_keeps_the_store_locked": ["25"],
}
# Makes thousands of files, and does not depend on the duration of a sync.
IN_MEMORY = {"k09_interrupted_publish_in_part"}
MEMORY = "/dev/shm"
SECONDS = 240
# Bytes of memory that `a21` needs.
LARGE = 12 << 30

is_long = os.environ.get("LOGSTORE_REPRODUCERS") == "long"


def _runs() -> list[object]:
    runs = []
    for script in SCRIPTS:
        arguments = [] if is_long else SHORT.get(script.stem, [])
        text = "-".join([script.stem, *arguments])
        runs.append(pytest.param(script, arguments, id=text))
    return runs


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(("script", "arguments"), _runs())
def test_what_once_went_wrong_is_right(
    script: Path,
    arguments: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The program finds no mistake."""
    if script.stem == "a21_large_records":
        if importlib.util.find_spec("pyarrow") is None:
            pytest.skip("needs pyarrow")
        if _free_memory() < LARGE:
            pytest.skip(f"needs {LARGE >> 30} GiB of memory")
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path
    if script.stem in IN_MEMORY and os.path.isdir(MEMORY):
        folder = Path(tempfile.mkdtemp(prefix="reproducer-", dir=MEMORY))
        request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    begin = time.monotonic()
    # Files that it leaves, killed or not, are removed with the test's directory.
    process = subprocess.Popen(
        [sys.executable, script, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": path.strip(os.pathsep),
            "TMPDIR": str(folder),
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out = process.communicate(timeout=SECONDS)[0]
        said = f"status {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out = process.communicate()[0]
        said = f"still there after {time.monotonic() - begin:.0f} s"
    text = f"{script.name} {' '.join(arguments)}: {said}\n{out}"
    if "WRONG" in out:
        pytest.fail(text, pytrace=False)
    assert said == "status 0", text


def test_every_script_is_there() -> None:
    """All of them are run: names in the tables above are names of scripts."""
    names = {script.stem for script in SCRIPTS}
    assert names == SHORT.keys()
    assert names.issuperset(IN_MEMORY)
    others = {path.stem for path in HERE.glob("*.py")} - names
    assert others == {"test_reproducers"}
