"""A Spark standalone cluster on this machine: one master, and workers with one core.

Its processes die with the test: each gets the kernel's signal when its parent ends, and
`Cluster.stop` kills everything in the sessions that it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

START_S = 60
DRIVER_S = 240
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Session:
    """A process in a separate session, with all processes that it starts there, in any
    group. Its id is not reused until `kill`, so that no other process is killed."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], output: Path, errors: Path
    ) -> None:
        output.write_bytes(b"")
        errors.write_bytes(b"")
        # Both in append mode, as they may be the same file.
        with output.open("ab") as out, errors.open("ab") as err:
            self._process = subprocess.Popen(
                command,
                cwd=output.parent,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._is_killed = False

    def has_ended(self) -> bool:
        """Whether the first process is done; the others may continue."""
        if self._is_killed:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def members(self) -> list[int]:
        """The processes that run in it."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    stat = Path("/proc", entry, "stat").read_text()
                    state, _, _, session, *_ = stat.rsplit(")", 1)[1].split()
                    if int(session) == self._process.pid and state not in "ZX":
                        found.append(int(entry))
        return found

    def kill(self) -> int:
        """Send SIGKILL to all of them, as if their machine died; the exit status of the
        first one."""
        # Repeat until no process is left: one may start another between the two looks.
        while not self._is_killed and (members := self.members()):
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(0.02)
        self._is_killed = True
        return self._process.wait()


class Daemon(Session):
    """A master or a worker, with the executors of the worker and their Pythons."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> None:
        super().__init__(command, env, log, log)
        self.log = log

    def await_line(self, pattern: str) -> re.Match[str]:
        """The first match in its log.

        Raises:
            AssertionError: it ended, or `START_S` went by, without one.
        """
        deadline = time.monotonic() + START_S
        while True:
            text = self.log.read_text(errors="replace")
            found = re.search(pattern, text)
            if found:
                return found
            assert not self.has_ended(), f"{self.log.name} ended: {text[-3000:]}"
            assert time.monotonic() < deadline, f"{self.log.name}: {text[-3000:]}"
            time.sleep(0.1)


class Cluster:
    """The cluster; `directory` has the logs and the working directories.

    Attributes:
        url: for `SparkSession.builder.master`.
        workers: by name, in the order of their start.
    """

    def __init__(self, directory: Path, java_home: str) -> None:
        import pyspark

        self._directory = directory
        self._home = Path(pyspark.__file__).parent
        self._daemons: list[Daemon] = []
        self.workers: dict[str, Daemon] = {}
        self.env = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(directory),
            "PYSPARK_PYTHON": sys.executable,
            # The processes are too short-lived to gain from more compilation.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        if java_home:
            self.env["JAVA_HOME"] = java_home
        self.url = ""

    def start(self) -> None:
        """Start the master and wait until it is there."""
        master = self._start("master", "Master", ["--host", "127.0.0.1"], {}, ())
        self.url = master.await_line(r"Starting Spark master at (spark://\S+)")[1]
        # Port 0, chosen by the kernel, is in no other line of its log.
        master.await_line(r"I have been elected leader")

    def _start(
        self,
        name: str,
        kind: str,
        options: Iterable[str],
        env: dict[str, str],
        prefix: Sequence[str],
    ) -> Daemon:
        command = [
            *prefix,
            str(self._home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind.lower()}.{kind}",
            *("--port", "0", "--webui-port", "0"),
            *options,
        ]
        log = self._directory / f"{name}.log"
        daemon = Daemon(command, {**self.env, **env}, log)
        self._daemons.append(daemon)
        return daemon

    def start_workers(
        self, *names: str, prefix: Sequence[str] = (), env: Mapping[str, str] = {}
    ) -> None:
        """Start workers, one core each, and wait until the master knows them.

        Their tasks find the name in the environment as ``TEST_WORKER``.

        Args:
            prefix: a command that runs the command that follows it.
            env: additional variables.
        """
        for name in names:
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            options += ["--work-dir", str(self._directory / name), self.url]
            given = {**env, "TEST_WORKER": name}
            self.workers[name] = self._start(name, "Worker", options, given, prefix)
        for name in names:
            self.workers[name].await_line(r"Successfully registered with master")

    def run(
        self,
        program: str,
        *arguments: str,
        cwd: Path,
        while_running: Callable[[Session], None] | None = None,
        submit_with: Sequence[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end; return its status, output and errors.

        Args:
            program: Python; ``sys.argv[1]`` is the master.
            while_running: called once the driver runs.
            submit_with: options of spark-submit, which runs it; None: it runs alone.
        """
        script, output, errors = (cwd / f"driver.{end}" for end in ("py", "out", "err"))
        script.write_text(program)
        command = [str(script), self.url, *arguments]
        if submit_with is None:
            command = [sys.executable, *command]
        else:
            submit = str(self._home / "bin" / "spark-submit")
            command = [submit, "--master", self.url, *submit_with, *command]
        driver = Session(command, self.env, output, errors)
        try:
            if while_running is not None:
                while_running(driver)
            deadline = time.monotonic() + DRIVER_S
            while not driver.has_ended():
                assert time.monotonic() < deadline, errors.read_text()[-3000:]
                time.sleep(0.1)
        finally:
            status = driver.kill()
        return subprocess.CompletedProcess(
            command, status, output.read_text(), errors.read_text()
        )

    def stop(self) -> None:
        """Kill all of it."""
        for daemon in reversed(self._daemons):
            daemon.kill()
