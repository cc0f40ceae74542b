"""The wheel is what the repository has, and the same bytes wherever it is built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT = ("*.so", "__pycache__", "*.egg-info", "_ls.c", "*.o")


def build(place: Path) -> Path:
    """Build the wheel from a copy of the sources, without network; return it."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns(*BUILT)
            shutil.copytree(ROOT / part, place / part, ignore=ignored)
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, place / part)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", "dist", "--quiet"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    environment.pop("PYTHONPATH", None)
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "No module named" in done.stderr:
        pytest.skip("pip or setuptools is not installed")
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_wheel_is_reproducible_and_holds_what_the_repository_has(
    tmp_path: Path,
) -> None:
    """Two directories, one SOURCE_DATE_EPOCH, the same bytes; and nothing in it but the
    files of the package, the two extensions and the metadata."""
    first = build(tmp_path / "one" / "place")
    second = build(tmp_path / "another")
    digests = {hashlib.sha256(p.read_bytes()).hexdigest() for p in (first, second)}
    assert len(digests) == 1
    source = ROOT / "src"
    expected = {
        p.relative_to(source).as_posix(): p.read_bytes()
        for package in ("logstore", "pyspark_logstore")
        for pattern in ("*.py", "*.pyi", "py.typed")
        for p in (source / package).rglob(pattern)
    }
    with zipfile.ZipFile(first) as wheel:
        found = {name: wheel.read(name) for name in wheel.namelist()}
    built = {n for n in found if n.endswith(".so")}
    metadata = {n for n in found if ".dist-info/" in n}
    modules = {name.rpartition("/")[2].partition(".")[0] for name in built}
    assert modules == {"_locks", "_ls", "_records"}
    assert {n: d for n, d in found.items() if n not in built | metadata} == expected
    for name in built:
        assert str(tmp_path).encode() not in found[name]
