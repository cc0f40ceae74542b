"""Cases that share one session of Spark, in a separate process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import Counter

from faults.method import Tally

__all__ = ["no_spark", "through_spark"]


@functools.cache
def no_spark() -> str:
    """Why the readers of Spark cannot run here; "" if they can."""
    try:
        from support.java_tasks import no_java
    except ImportError as error:
        return f"{error.name} is not installed"
    return no_java()


def through_spark(module: str, count: int, seed: int, tally: Tally) -> None:
    """Run `count` cases of a module, which is run with the seed and the count. For each
    case it prints a line of JSON: its problem ("" for none), and notes with their
    counts."""
    command = [sys.executable, "-m", module, str(seed), str(count)]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    notes: Counter[str] = Counter()
    for number, (text, noted) in enumerate(lines):
        notes.update(noted)
        if text:
            tally.failed(f"({' '.join(command[1:])}), {number}: {text}")
        else:
            tally.passed()
    if len(lines) < count:
        tally.failed(f"{' '.join(command[1:])} ended: {done.stderr[-2000:]}")
    words = ", ".join(f"{n:,} {what}" for what, n in notes.most_common())
    tally.note(f"{len(lines):,} of them through Spark{': ' * bool(words)}{words}")
