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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

START_S = 60
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def session_members(leader: int) -> list[int]:
    """The processes of a session, also those in groups of their own (Python's)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text()
                if int(stat.rsplit(")", 1)[1].split()[3]) == leader:
                    found.append(int(entry))
    return found


class Daemon:
    """A master or a worker, with all that it starts, in a session of its own."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

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
            ended = self._process.poll() is not None
            assert not ended, f"{self.log.name} ended: {text[-3000:]}"
            assert time.monotonic() < deadline, f"{self.log.name}: {text[-3000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL for it and all that it has started, as when its machine dies."""
        # Again until there is none: one may start another between the two looks.
        while members := session_members(self._process.pid):
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()


class Cluster:
    """The cluster; `directory` has logs and what the workers need.

    Attributes:
        url: for `SparkSession.builder.master`.
        workers: by name, as they were started.
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
            # None of them lives long enough to gain from more.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        if java_home:
            self.env["JAVA_HOME"] = java_home
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

    def start_workers(self, *names: str, prefix: Sequence[str] = ()) -> None:
        """Start workers, one core each, and wait until the master knows them.

        Their tasks find the name in the environment as ``TEST_WORKER``.

        Args:
            prefix: a command that runs the command that follows it.
        """
        for name in names:
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            options += ["--work-dir", str(self._directory / name), self.url]
            env = {"TEST_WORKER": name}
            self.workers[name] = self._start(name, "Worker", options, env, prefix)
        for name in names:
            self.workers[name].await_line(r"Successfully registered with master")

    def run(
        self,
        program: str,
        *arguments: str,
        cwd: Path,
        while_running: Callable[[subprocess.Popen[str]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end: its standard output, and what it complained about.

        Args:
            program: Python; ``sys.argv[1]`` is the master.
            while_running: called once the driver runs.
        """
        script = cwd / "driver.py"
        script.write_text(program)
        # A file: a pipe that nobody reads would fill and stop it.
        with (cwd / "driver.err").open("w+") as errors:
            with subprocess.Popen(
                [sys.executable, str(script), self.url, *arguments],
                cwd=cwd,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            ) as driver:
                try:
                    if while_running is not None:
                        while_running(driver)
                    output, _ = driver.communicate(timeout=200)
                finally:
                    for member in session_members(driver.pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(member, signal.SIGKILL)
            errors.seek(0)
            return subprocess.CompletedProcess(
                driver.args, driver.returncode, output, errors.read()
            )

    def stop(self) -> None:
        """Kill all of it."""
        for daemon in reversed(self._daemons):
            daemon.kill()
