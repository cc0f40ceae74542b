"""Programs that each showed a mistake of logstore once: they show none today.

The docstring of each says what went wrong. Each is a whole program that a person can
run (`python tests/reproducers/a01_*.py`): it prints WRONG or OK for each attempt, and
exits with status 1 or 0. Here each runs in its own process, for a shorter time than by
hand if it looks for something rare; LOGSTORE_REPRODUCERS=long gives them the time that
they ask for.

The letters name the attacks: a, an attack on all of logstore; k, checks from outside;
r, situations of public bug reports; s, services; e, the engine and Spark. Programs of
one attack share `common.py`, `kbatch.py` and `sparkling.py`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

import logstore

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("[aekrs][0-9][0-9]_*.py"))
SOURCES = Path(logstore.__file__).parents[1]

# Open mistakes: the rule that each of these programs shows to be broken. A program that
# finds nothing fails here, so that its entry is removed.
XFAIL: dict[str, str] = {}
# The same for programs that find their mistake only by luck.
XFAIL_BY_LUCK = {
    "k09_interrupted_publish_in_part": (
        "after an interrupt a publication is done or undone; real timers"
    ),
    "s04_interrupted_commit_keeps_the_store_locked": (
        "after an interrupt a call continues to a state that has a name; real timers"
    ),
}

LONG = {
}
# Some seconds or more, or much memory: at the level "all" only. Each mistake that they
# found has another test, too.
SLOW = {
    "a21_large_records",
    "k09_interrupted_publish_in_part",
    "s04_interrupted_commit_keeps_the_store_locked",
}
NEEDS = {
    "a21_large_records": "pyarrow",
}
# These make thousands of files, or large ones, and do not depend on the duration of a
# sync.
IN_MEMORY = {
    "k09_interrupted_publish_in_part",
}
MEMORY = "/dev/shm"
SECONDS = 240

# Arguments of a script if there is little time; without arguments it takes longer.
SHORT = {
    "k09_interrupted_publish_in_part": [["20"]],
    "s04_interrupted_commit_keeps_the_store_locked": [["25"]],
}
# Bytes of memory that `a21` needs.
LARGE = 12 << 30

is_long = os.environ.get("LOGSTORE_REPRODUCERS") == "long"


def _runs() -> list[object]:
    runs = []
    for script in SCRIPTS:
        name = script.stem
        choices = (LONG if is_long else SHORT).get(name, [[]])
        for arguments in choices:
            text = "-".join([name, *arguments])
            runs.append(pytest.param(script, arguments, marks=_marks(name), id=text))
    return runs


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow, pytest.mark.thorough] if name in SLOW else []
    reason = XFAIL.get(name) or XFAIL_BY_LUCK.get(name)
    if reason is not None:
        xfail = pytest.mark.xfail(
            raises=pytest.fail.Exception, reason=reason, strict=name in XFAIL
        )
        marks.append(xfail)
    return marks


NAMES = {
    "mounts": "root, a loop device and mkfs.ext4",
    "spark": "pyspark, the Java of this machine and the jar of logstore",
}


@functools.cache
def _is_there(needed: str) -> bool:
    """Whether a program finds a package, or one of NAMES."""
    if needed == "mounts":
        return _can_mount() and shutil.which("mkfs.ext4") is not None
    if needed != "spark":
        return importlib.util.find_spec(needed) is not None
    java = os.environ.get("JAVA_HOME") or shutil.which("java")
    if java is None or importlib.util.find_spec("pyspark") is None:
        return False
    import logstore.spark

    return logstore.spark.jar_path() is not None


def _can_mount() -> bool:
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        return False
    folder = tempfile.mkdtemp()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return False
        return subprocess.run(["umount", folder]).returncode == 0
    finally:
        os.rmdir(folder)


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(("script", "arguments"), _runs())
def test_what_once_went_wrong_is_right(
    script: Path,
    arguments: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The program finds no mistake."""
    needed = NEEDS.get(script.stem)
    if needed is not None and not _is_there(needed):
        pytest.skip(f"needs {NAMES.get(needed, needed)}")
    if script.stem == "a21_large_records" and _free_memory() < LARGE:
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
    # A program that could not run its check is no expected failure.
    assert said == "status 0", text


COUNTS = {"a": 1, "k": 1, "s": 1}


def test_every_script_is_there() -> None:
    """All of them are run: names in the tables above are names of scripts."""
    names = {script.stem for script in SCRIPTS}
    assert Counter(name[0] for name in names) == COUNTS
    assert XFAIL.keys().isdisjoint(XFAIL_BY_LUCK)
    tables = (SHORT, LONG, SLOW, NEEDS, IN_MEMORY, XFAIL, XFAIL_BY_LUCK)
    assert names.issuperset(set().union(*tables))
    others = {path.stem for path in HERE.glob("*.py")} - names
    assert others == {"common", "kbatch", "sparkling", "test_reproducers"}
