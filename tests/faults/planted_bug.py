"""A planted bug, how a list of them is hunted, and the bugs of hand-in."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import logstore
from faults.method import Skip, Tally

_SOURCE = pathlib.Path(logstore.__file__).parent
_CONNECTOR = "connectors/spark/"
_TESTS = pathlib.Path(__file__).resolve().parents[1]
_REPOSITORY = _TESTS.parent


class Bug(NamedTuple):
    """A bug.

    Attributes:
        what: in words.
        file: of the package, or of the connector for Spark, with that directory.
        changes: (present lines, lines of the bug).
        method: which must catch it.
        only: steps of programs, scenarios, calls on a scene, kinds of histories, ends
            of file names, or kinds of lies that are enough; none: all. Of
            `recorded_calls` the kind of states, and programs; of `units` the test
            files, relative to tests/unit.
        call: of `failing_calls`, only cases in which this method of the disk fails.
        quick: the seed of 1 to 10 that shows it soonest, for bugs of the smallest
            size; 0: it is not among them.
    """

    what: str
    file: str
    changes: tuple[tuple[str, str], ...]
    method: str
    only: tuple[str, ...] = ()
    call: str = ""
    quick: int = 0

    @property
    def source(self) -> pathlib.Path:
        """The file."""
        is_connector = self.file.startswith(_CONNECTOR)
        return (_REPOSITORY if is_connector else _SOURCE) / self.file

    def plant(self, folder: pathlib.Path) -> str:
        """Make a copy of the sources with the bug in a directory; returns why it cannot
        be made, else ""."""
        shutil.copytree(_SOURCE, folder / "logstore")
        file = folder / "logstore" / self.file
        if self.file.startswith(_CONNECTOR):
            shutil.copytree(_REPOSITORY / _CONNECTOR, folder / _CONNECTOR)
            file = folder / self.file
        text = file.read_text(encoding="utf-8")
        for old, new in self.changes:
            if old not in text:
                return f"these lines are not in {self.file} any more: {old!r}"
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
        build = {
            ".java": f"{_CONNECTOR}pyspark_logstore/jvm/build_jar.py",
            ".c": "logstore/_native/build_ffi.py",
        }.get(file.suffix)
        if build:
            done = subprocess.run(
                [sys.executable, build],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                return f"it cannot be built: {done.stderr[-600:]}"
        return ""


def unit_bug(
    what: str, file: str, old: str, new: str, *tests: str, quick: int = 0
) -> Bug:
    """A bug that unit tests alone must catch: `old` is in the file once.

    Args:
        tests: the test files that must catch it, relative to tests/unit.
    """
    return Bug(what, file, ((old, new),), "units", tests, quick=quick)


def run_on_copy(
    folder: pathlib.Path, *module: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module with the copy in `folder` in place of the repository's sources.

    Args:
        module: its name and its arguments.
        env: variables that differ from this process's.
    """
    path = [str(folder), str(folder / "connectors" / "spark"), str(_TESTS)]
    return subprocess.run(
        [sys.executable, "-m", *module],
        env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(path)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def hunt_all(
    bugs: Sequence[Bug],
    hunt: Callable[[Bug, pathlib.Path], tuple[bool, str]],
    tally: Tally,
) -> None:
    """Hunt each bug in a separate directory, as many at once as there are cores.

    Args:
        hunt: returns whether the bug in that directory's copy was caught, and a text;
            raises `Skip` if that cannot be known on this machine.
    """

    def hunted(bug: Bug) -> tuple[bool | None, str]:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            at = pathlib.Path(folder)
            problem = bug.plant(at)
            try:
                return (False, problem) if problem else hunt(bug, at)
            except Skip as skip:
                return None, skip.why

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for bug, (is_caught, text) in zip(bugs, pool.map(hunted, bugs), strict=True):
            if is_caught is None:
                tally.skip(text)
            elif is_caught:
                tally.passed()
                tally.note(f"{bug.what}: {text}")
            else:
                tally.failed(f"{bug.what}: {text}")


BUGS_OF_HAND_IN = (
    Bug(
        "publications of a process that has ended are dropped",
        "store/hand_in/served_processes.py",
        (("            if not call.is_named:\n                call.drop()\n"
          "        return [call for call in calls if call.is_named], bool(calls)\n",
          "            call.drop()\n        return [], bool(calls)\n"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "a pinned identity is forgotten as others are",
        "io/checkpoint/ledger.py",
        (("                if not (entry.is_pinned or entry.calls):\n",
          "                if not entry.calls:\n"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "what the journal of publications has is not kept when it ends",
        "io/checkpoint/publication_journal.py",
        (("                if state.changes:\n                    value",
          "                if False:\n                    value"),),
        "hand_ins",
        quick=1,
    ),
)  # fmt: skip
