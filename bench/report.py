"""The JSON output of the programs: rows, and the place and time of their
measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import logstore

__all__ = ["environment", "quantile", "write"]

_PACKAGES: Final = (
    "aiokafka",
    "confluent-kafka",
    "kafka-python",
    "litequeue",
    "lmdb",
    "persist-queue",
    "pyarrow",
    "rocksdict",
)


def environment() -> dict[str, Any]:
    """The day, the machine, the versions, and how busy the machine is."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    release = ".".join(platform.release().split(".")[:2])
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "logstore": logstore.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {release}",
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 1) for load in os.getloadavg()],
        "packages": packages,
    }


def write(path: str, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Write the rows to a file, or to stdout for ``-``."""
    head = json.dumps({**environment(), **facts})[:-1]
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{head},\n"rows": [\n{lines}\n]}}\n'
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
