"""A process that has a store open for writing, and does nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_LOGSTORE = """
import sys
import logstore
config = logstore.StoreConfig(publish_for_others=sys.argv[2] == "True")
with logstore.open(sys.argv[1], config=config, lock_timeout_ms=120_000) as store:
    print("open", flush=True)
    sys.stdin.read()
"""
# Like a Kafka broker: its lock file does not describe it.
_BROKER = """
import fcntl, sys
with open(sys.argv[1] + "/.lock", "a") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("open", flush=True)
    sys.stdin.read()
"""


class StoreOwner:
    """A process that owns a store, if it runs. It ends with its test.

    Args:
        takes_requests: it publishes the requests of other processes.
        is_broker: it is another program than logstore, and never publishes.
    """

    def __init__(
        self, path: Path, *, takes_requests: bool = True, is_broker: bool = False
    ) -> None:
        code = _BROKER if is_broker else _LOGSTORE
        self._command = [sys.executable, "-c", code, str(path), str(takes_requests)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StoreOwner:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it unless it runs, and wait until it has the store."""
        if self._process is not None:
            return
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"open\n"

    def stop(self) -> None:
        """Make it close the store, and wait for its end."""
        assert self._process is not None
        self._process.communicate()
        self._process = None

    def pause(self) -> None:
        """Stop the process until `go_on`."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """Kill it; False if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return False
        process.kill()
        process.communicate()
        return True
