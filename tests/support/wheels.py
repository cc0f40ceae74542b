"""Builds the wheel of the repository, as a release would."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["build_wheel", "copy_sources", "shared_wheel"]

ROOT = Path(__file__).parents[2]
PARTS = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT = ("*.so", "__pycache__", "*.egg-info", "_ls.c", "*.o")


def copy_sources(place: Path) -> None:
    """Copy what the distribution is built from into a directory, without what was built
    before. The directory is made if it is missing."""
    place.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns(*BUILT)
            shutil.copytree(ROOT / part, place / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, place / part)


def build_wheel(place: Path, **settings: str) -> Path:
    """Build the wheel from a copy of the sources, without network; its path.

    Args:
        place: a directory that is missing; the copy goes there, the wheel into `dist`.
        settings: further variables of the environment.
    """
    copy_sources(place)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", "dist", "--quiet"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **settings}
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


def shared_wheel(factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once for all tests that only install it, in all processes."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    place = folder / "shared-wheel"
    with (folder / "shared-wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wheels = list(place.glob("dist/*.whl"))
        return wheels[0] if wheels else build_wheel(place)
