"""Running `logstore-dump` in a test: in this process, or as another one."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from typing import Any, Final

from support.golden import SLICE

RECORDS: Final = 60
SMALL: Final = {"segment_bytes": 1000, "index_interval_bytes": 200}
TXN: Final = SLICE / "4.2.0" / "clean" / "txn-0"


class Result:
    """Output of a run of the command, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [strict(line) for line in self.out.split("\n") if line]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def strict(line: str) -> Any:
    """A line of strict JSON: no NaN or Infinity, no characters that control a
    terminal."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {line}")

    value = json.loads(line, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    assert line.rstrip("\n").isprintable()
    return value


def command(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """`logstore-dump` as a process. It receives interrupts even if the tests run in
    the background of a shell that ignores them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "logstore", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
