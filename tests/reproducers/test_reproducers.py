"""Programs that once showed a mistake of logstore's, one each: they show none today.

The head of each says what went wrong then. Each is a whole program, that a person can
run (`python tests/reproducers/a01_*.py`): it prints WRONG or OK for what it tries, and
ends with status 1 or 0. Here they run in processes of their own, for a shorter time
than by hand where they look for something rare; LOGSTORE_REPRODUCERS=long gives them
the time that they ask for.
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
SCRIPTS = sorted(HERE.glob("a[0-9]*.py"))
SOURCES = Path(logstore.__file__).parents[1]

LONG = {"a26_interrupt_leaves_lock": [["flush"], ["append"]]}
# Some seconds or more, or much memory: at the level "all" only. What each of them
# found has a test of its own, too.
SLOW = {
    "a05_follow_spins",
    "a08_slow_iterable",
    "a12_read_committed_cost",
    "a13_fork_close_hangs",
    "a15_limit_of_open_files",
    "a18_interrupt_ends_flushes",
    "a19_signal_handler_appends",
    "a21_large_records",
    "a22_costs_that_grow",
    "a26_interrupt_leaves_lock",
    "a27_interrupt_leaves_publish_locks",
    "a28_close_cannot_be_finished",
    "a29_partial_append_is_seen",
    "a33_verify_false_alarm",
}
NEEDS = {
    "a20_arrow_not_validated": "pyarrow",
    "a21_large_records": "pyarrow",
    "a35_spark_retention_race": "pyspark",
    "a38_read_mixes_two_logs": "pyarrow",
}
# These make thousands of files, and have nothing to do with how long a sync takes.
IN_MEMORY = {
    "a14_reader_beside_big_deletion",
    "a15_limit_of_open_files",
    "a16_rolls_leak_descriptors",
    "a18_interrupt_ends_flushes",
}
MEMORY = "/dev/shm"
SECONDS = 240

# What a script is told where there is little time; without arguments it takes longer.
SHORT = {
    "a12_read_committed_cost": [["100"]],
    "a19_signal_handler_appends": [["5"]],
    # Where a sync costs nothing: this is about what logstore does itself.
    "a22_costs_that_grow": [[MEMORY] if os.path.isdir(MEMORY) else []],
    "a26_interrupt_leaves_lock": [["flush", "10"], ["append", "5"]],
    "a27_interrupt_leaves_publish_locks": [["10"]],
    "a33_verify_false_alarm": [["6"]],
}
# What `a21` takes at its largest, bytes.
LARGE = 12 << 30

is_long = os.environ.get("LOGSTORE_REPRODUCERS") == "long"


def _runs() -> list[object]:
    runs = []
    for script in SCRIPTS:
        name = script.stem
        choices = (LONG if is_long else SHORT).get(name, [[]])
        for arguments in choices:
            marks = [pytest.mark.slow, pytest.mark.thorough] if name in SLOW else []
            text = "-".join([name, *arguments])
            runs.append(pytest.param(script, arguments, marks=marks, id=text))
    return runs


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
    """The program finds nothing wrong."""
    needed = NEEDS.get(script.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    if script.stem == "a21_large_records" and _free_memory() < LARGE:
        pytest.skip(f"needs {LARGE >> 30} GiB of memory")
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path
    if script.stem in IN_MEMORY and os.path.isdir(MEMORY):
        folder = Path(tempfile.mkdtemp(prefix="reproducer-", dir=MEMORY))
        request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    begin = time.monotonic()
    # What it leaves behind, killed or not, goes with the test's directory.
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
    if said != "status 0":
        pytest.fail(
            f"{script.name} {' '.join(arguments)}: {said}\n{out}", pytrace=False
        )


def test_every_script_is_there() -> None:
    """All 41 are run: names in the tables above are names of scripts."""
    names = {script.stem for script in SCRIPTS}
    assert len(names) == 41
    assert names.issuperset({*SHORT, *LONG, *SLOW, *NEEDS, *IN_MEMORY})
