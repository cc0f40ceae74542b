"""The process in which recorded programs run, with `recorder.c` preloaded.

Reads tasks as lines of JSON, forks a child for each, and answers with its exit status.
It has one thread, so that a fork is safe.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from faults import accounts
from faults.programs import PROGRAMS
from faults.programs_services import EACH_CALL, SERVICE_PROGRAMS

_ALL = {**PROGRAMS, **SERVICE_PROGRAMS, **EACH_CALL}

# Exit status of a child after an error without a name.
UNNAMED = 9
_SECONDS = 30


def main() -> None:
    """Serve until the input ends."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    recorder = ctypes.CDLL(None)
    for text in sys.stdin:
        task = json.loads(text)
        child = os.fork()
        if child == 0:
            _run(recorder, task)
        print(json.dumps(_ended(child)), flush=True)


def _ended(child: int) -> Any:
    """End of a child: its exit status, minus a signal, or "hangs"."""
    until = time.monotonic() + _SECONDS
    pause = 0.0005
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def _run(recorder: Any, task: dict[str, Any]) -> None:
    status = UNNAMED
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        trace = os.open(task["trace"], flags, 0o600)
        told = os.open(os.devnull, os.O_WRONLY)
        root = task["store"]

        marks = [0]

        def say(*fields: Any) -> None:
            if fields[0] == accounts.MARK:
                marks.append(recorder.recorder_calls())
            os.write(told, accounts.line(*fields))

        if task.get("fsize"):
            soft = (task["fsize"], resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        recorder.recorder_begin(
            root.encode(), trace, told, ctypes.c_int64(task.get("nth", -1)),
            task.get("error", 0), task.get("goes_on", 0), task.get("short", 0),
            ctypes.c_int64(task.get("sync", -1)),
        )  # fmt: skip
        _ALL[task["program"]](Path(root), say, task["seed"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        calls, syncs = recorder.recorder_calls(), recorder.recorder_syncs()
        counts = (calls, syncs, marks[-1])
        with open(task["counts"], "w", encoding="ascii") as file:
            file.write(json.dumps(counts))
        status = 0
    except BaseException:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        with open(task["counts"], "w", encoding="utf-8") as file:
            file.write(json.dumps(traceback.format_exc()[-1500:]))
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
