"""Remove the distribution `logstore` from the environment of this interpreter.

    .venv/bin/python tools/old_name.py

The distribution is called `pylogstore` now. An environment that was set up before has
the same package installed as `logstore`: whichever of the two is removed later takes
the files of the other with it, and `pip list` shows both. So the old one goes before
the new one is installed. Nothing happens where it is not there.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

OLD_NAME = "logstore"
SOURCES = Path(__file__).resolve().parents[1] / "src"


def is_installed() -> bool:
    """Whether the environment has a distribution of the old name."""
    try:
        importlib.metadata.distribution(OLD_NAME)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main() -> int:
    """Remove it; the status of pip."""
    # An editable installation puts `src` on the path, so this counts as a second one.
    shutil.rmtree(SOURCES / f"{OLD_NAME}.egg-info", ignore_errors=True)
    if not is_installed():
        return 0
    print(f"removing the distribution under its old name, {OLD_NAME}", flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    return subprocess.call([*pip, "uninstall", "--yes", OLD_NAME])


if __name__ == "__main__":
    sys.exit(main())
