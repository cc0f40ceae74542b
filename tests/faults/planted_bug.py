"""What a planted bug is, and those of hand-in."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

import logstore

_SOURCE = pathlib.Path(logstore.__file__).parent
_CONNECTOR = "connectors/spark/"
_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class Bug(NamedTuple):
    """A bug.

    Attributes:
        what: in words.
        file: of the package, or of the connector for Spark, with that directory.
        changes: (lines as they are, lines as they are to be).
        method: which must catch it.
        only: steps of programs, scenarios, calls on a scene, kinds of histories, ends
            of file names, or kinds of lies that are enough; none: all. Of
            `recorded_calls` the kind of states, and programs.
        call: of `failing_calls`, only those where this method of the disk fails.
        quick: the seed of 1 to 10 that shows it soonest, for those of the smallest
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
            ".java": f"{_CONNECTOR}java/build_jar.py",
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


BUGS_OF_HAND_IN = (
    Bug(
        "a request is removed before it is published",
        "store/hand_in.py",
        (("            outcomes = self._publisher.publish_all(requests) if requests",
          "            for one, _ in asked:\n"
          "                self._root.unlink(one.name, missing_ok=True)\n"
          "            outcomes = self._publisher.publish_all(requests) if requests"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "a pinned identity is forgotten as others are",
        "io/checkpoint/publications.py",
        (("        if not entry.is_pinned and identity not in kept\n",
          "        if identity not in kept\n"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "what the journal of publications has is not kept when it ends",
        "io/checkpoint/publication_journal.py",
        (("                self._fold(state)\n                self._file.forget()",
          "                self._file.forget()"),),
        "hand_ins",
        quick=1,
    ),
)  # fmt: skip
