"""The recipe of docs/operations.md for a service: SIGTERM closes the store."""

from __future__ import annotations

import configparser
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import logstore

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
CHAPTER = PAGE.read_text(encoding="utf-8").partition("## Running a service")[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_that_is_stopped_closes_its_store(tmp_path: Path, number: int) -> None:
    """The code of the page, unchanged. The next opening has nothing to recover, and all
    is durable."""
    (code,) = re.findall(r"```python\n(.*?)```", CHAPTER, re.DOTALL)
    service = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    logs = tmp_path / "data" / "orders-0"
    while not any(file.stat().st_size for file in logs.glob("*.log")):
        assert service.poll() is None
        time.sleep(0.01)
    service.send_signal(number)
    _, said = service.communicate(timeout=60)
    assert (service.returncode, said) == (0, "")
    with logstore.open(tmp_path / "data") as store:
        assert not store.recovery_report
        partition = store["orders"][0]
        assert partition.end_offset >= 1
        assert partition.durable_offset == partition.end_offset
        assert store["orders"].config.retention_ms == 604_800_000


def test_unit_file_is_one() -> None:
    """The unit file has its sections, and each name once; the timeouts leave time for a
    close."""
    (text,) = re.findall(r"```ini\n(.*?)```", CHAPTER, re.DOTALL)
    unit = configparser.ConfigParser(comment_prefixes="#", interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert int(unit["Service"]["TimeoutStopSec"]) >= 30
    assert unit["Service"]["StateDirectoryMode"] == "0700"
