"""Instruction counts of pieces of work, by callgrind, and the expected numbers.

    make instructions      # counts again, and rewrites tests/instructions.json

Instruction counts do not depend on other load of the machine, so they can be compared
when times cannot. callgrind simulates a processor: on any x86-64 machine that has
SSE4.2, PCLMULQDQ and AVX2, the program finds these and no AVX-512. So the C core takes
the same paths for its checksums everywhere (the narrow one, and the instruction of
SSE4.2), and the C library the same ones for copies.

Another version of Python, or another compiler, does change the numbers. Then
`TOLERANCE_ELSEWHERE` applies instead of `TOLERANCE`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import logstore
from support.counted_work import PIECES, SIZES

__all__ = [
    "Counts",
    "UnavailableError",
    "count",
    "environment",
    "faults",
    "read",
    "sums",
]

FILE: Final = Path(__file__).resolve().parents[1] / "instructions.json"
DRIVER: Final = Path(__file__).with_name("counted_work.py")
# A larger excess over the expected number is a fault.
TOLERANCE: Final = 0.10
TOLERANCE_ELSEWHERE: Final = 0.50
_SECONDS_MAX: Final = 240


class UnavailableError(Exception):
    """Instructions cannot be counted here; the message says why."""


class Counts(NamedTuple):
    """Instructions for one record, call or checksum.

    Attributes:
        all: of the whole process.
        core: of logstore's C modules, included in `all`.
    """

    all: float
    core: float


def environment() -> dict[str, str]:
    """Environment that the numbers depend on besides the code."""
    compiler = os.environ.get("CC", "cc")
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout
        # "gcc (Debian 12.2.0-14) 12.2.0": its major version.
        found = re.search(r"\) (\d+)\.|version (\d+)\.", version)
        major = (found[1] or found[2]) if found else "?"
    except (OSError, subprocess.CalledProcessError):
        major = "?"
    return {
        "machine": platform.machine(),
        "python": "{}.{}".format(*sys.version_info),
        "compiler": f"{'clang' if 'clang' in compiler else 'gcc'} {major}",
    }


def count(pieces: Sequence[str] = PIECES) -> dict[str, Counts]:
    """Do pieces of work, given in the order of `PIECES`, under callgrind.

    Raises:
        UnavailableError: there is no valgrind, or the C core was built in another way.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise UnavailableError("valgrind is not installed")
    package = Path(logstore.__file__).resolve().parent
    if "build" in package.parts:
        raise UnavailableError("the C core has a build with checks or counters")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            valgrind,
            "--tool=callgrind",
            "--dump-before=getsid",
            "--dump-line=no",
            f"--callgrind-out-file={folder}/counts",
            sys.executable,
            "-E",
            str(DRIVER),
            str(package.parent),
            *pieces,
        ]
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            # Hashes of strings, and with them the order of sets, are the same always.
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"},
        )
        if run.returncode != 0:
            raise AssertionError(run.stderr)
        names = [f"{folder}/counts.{n}" for n in range(1, 3 * len(pieces) + 1)]
        dumps = [sums(Path(name), package) for name in names]
    found = {}
    for number, piece in enumerate(pieces):
        _, small, large = dumps[3 * number : 3 * number + 3]
        low, high = SIZES[piece.partition(",")[0]]
        found[piece] = Counts(
            (large.all - small.all) / (high - low),
            (large.core - small.core) / (high - low),
        )
    return found


def sums(dump: Path, package: Path) -> Counts:
    """The instructions in a file of callgrind's.

    A line of costs is "line cost". After "calls=" it has the costs of the called
    function, which are listed elsewhere, too. ``ob=`` names the file of the code that
    follows, the first time with its number and later by that alone.
    """
    names: dict[str, str] = {}
    everything = core = 0
    is_core = is_call = False
    with dump.open() as lines:
        for line in lines:
            if line.startswith(("ob=", "cob=")):
                number, _, name = line.rstrip().partition("=")[2].partition(" ")
                if name:
                    names[number] = name
                if line.startswith("ob="):
                    is_core = names.get(number, "").startswith(f"{package}{os.sep}")
            elif line.startswith("calls="):
                is_call = True
            elif line[0].isdigit() or line[0] in "+-*":
                if not is_call:
                    cost = int(line.split()[1])
                    everything += cost
                    core += cost if is_core else 0
                is_call = False
    return Counts(everything, core)


def read() -> tuple[dict[str, str], dict[str, Counts]]:
    """The environment in which the expected numbers were made, and the numbers."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return data["environment"], {
        name: Counts(**counts) for name, counts in data["instructions"].items()
    }


def faults(
    found: dict[str, Counts], expected: dict[str, Counts], tolerance: float
) -> Iterator[str]:
    """A line for each number that is too large."""
    for name, counts in found.items():
        for kind in Counts._fields:
            now, before = getattr(counts, kind), getattr(expected[name], kind)
            if now > before * (1 + tolerance):
                yield f"{name} ({kind}): {now:,.0f} instructions, before {before:,.0f}"


def _write(found: dict[str, Counts]) -> None:
    data: dict[str, Any] = {
        "environment": environment(),
        "instructions": {
            name: {kind: round(number) for kind, number in counts._asdict().items()}
            for name, counts in found.items()
        },
    }
    FILE.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _table(found: dict[str, Counts], before: dict[str, Counts]) -> Iterable[str]:
    for name, counts in found.items():
        old = before.get(name, counts)
        yield (
            f"{name:26} {counts.all:10,.0f} ({counts.all / old.all - 1:+.1%})"
            f" {counts.core:10,.0f} ({counts.core / max(old.core, 1) - 1:+.1%})"
        )


if __name__ == "__main__":
    counted = count()
    print("\n".join(_table(counted, read()[1] if FILE.exists() else {})))
    _write(counted)
