"""A real broker of one of several releases, in a directory, until it is stopped.

The jars come from `support.kafka_tools`, for 0.8.2.2 and later. Releases before 3.3
need ZooKeeper, the others are their own controller.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from support.kafka_tools import (
    JAVA_OPTIONS,
    POM,
    KafkaTools,
    find_classpath,
    numbers_of,
)

__all__ = ["KafkaBroker", "KafkaBrokerError", "LogMessage", "cache_directory"]

_CLUSTER = "bG9nc3RvcmUtZ3JvdXBzLQ"
_START_SECONDS_MAX = 120
_STOP_SECONDS_MAX = 60
_COMMON = """
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
offsets.topic.num.partitions=5
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
"""
# 0.8 has no setting for listeners.
_ZOOKEEPER = """
broker.id=1
host.name=127.0.0.1
port={port}
zookeeper.connect=127.0.0.1:{other}
"""
# Commands that remove the entries of a killed broker, which otherwise stay until its
# session expires. The exit status is that of the last command.
_SESSION = "delete /brokers/ids/1\ndelete /controller\nls /\n"
_OWN_CONTROLLER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{other}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms=6000
"""
_SHARE = """
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
# Log lines with level and name of the logger, in the same form for all releases.
_LOGGING = """
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={file}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=@%p\t%c\t%m%n
"""


class KafkaBrokerError(Exception):
    """A program of Kafka's failed; the message has the end of its output."""


class LogMessage(NamedTuple):
    """A message in the log of a broker, without a stack trace."""

    level: str
    logger: str
    text: str


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class KafkaBroker:
    """A broker; a context manager: its exit kills all processes that still run.

    Attributes:
        data: its log directory.
        address: for clients, while it runs.
        tools: the jars of its release.

    Args:
        directory: an empty one, or that of an earlier broker of this release.
        release: as "3.9.1".
        cache: see `KafkaTools.find`.
        settings: of the broker, in addition to the required ones.

    Raises:
        ToolsUnavailableError: Java, Maven or the jars are missing.
    """

    def __init__(
        self,
        directory: Path,
        release: str,
        cache: Path,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.tools = KafkaTools.find(cache, release)
        self.release = release
        self.data = directory / "data"
        self._directory = directory
        self._numbers = numbers_of(release)
        self._logging_jars = ""
        if self._numbers >= (4,):  # has no logger in its jars
            pom = POM.with_name("logging-pom.xml")
            self._logging_jars = os.pathsep + find_classpath(pom, cache)
        self._broker: subprocess.Popen[bytes] | None = None
        self._zookeeper: subprocess.Popen[bytes] | None = None
        port, other = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._port, self._other = port, other
        self._settings = directory / "server.properties"
        self.configure(settings or {})
        logging = _LOGGING.format(file=self._log("broker-log"))
        (directory / "log4j.properties").write_text(logging)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Settings for the next start, which replace the last ones."""
        port, other = self._port, self._other
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        text = _ZOOKEEPER
        if not self._has_zookeeper:
            text = _OWN_CONTROLLER
            listeners += f",CONTROLLER://127.0.0.1:{other}"
        text += _COMMON + _SHARE * (self._numbers >= (4, 1))
        text = text.format(port=port, other=other, data=self.data, listeners=listeners)
        for name, value in settings.items():
            text += f"{name}={value}\n"
        self._settings.write_text(text)

    @property
    def zookeeper(self) -> str:
        """The address of its ZooKeeper."""
        assert self._has_zookeeper
        return f"127.0.0.1:{self._other}"

    @property
    def _has_zookeeper(self) -> bool:
        return self._numbers < (3, 3)

    def __enter__(self) -> KafkaBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (self._broker, self._zookeeper):
            if process is not None:
                process.kill()
                process.wait()
        self._broker = self._zookeeper = None

    def _java(self, *arguments: str) -> list[str]:
        # At the end of the path: each release has its own settings for logging.
        return [
            self.tools.java,
            *JAVA_OPTIONS,
            "-cp",
            self.tools.classpath,
            *arguments,
        ]

    def _launch(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, **(environment or {})},
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def format(self, *options: str) -> None:
        """Format its directory with kafka-storage, as `start` does an empty one."""
        format_ = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER]
        self.run(*format_, "-c", str(self._settings), *options)

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it on the contents of its directory, and wait until it takes
        connections.

        Args:
            environment: of the broker, besides that of this process.
        """
        if self._has_zookeeper:
            self._start_zookeeper()
        elif not (self.data / "meta.properties").exists():
            self.format()
        self._log("broker-log").write_text("")
        java, *rest = self._java("kafka.Kafka", str(self._settings))
        rest[rest.index("-cp") + 1] += self._logging_jars
        logging = f"-Dlog4j.configuration=file:{self._directory}/log4j.properties"
        command = (java, logging, *rest)
        self._broker = self._launch("broker", *command, environment=environment)
        self._wait_for(self._broker, "broker", self._port)

    def _start_zookeeper(self) -> None:
        if self._zookeeper is None:
            kept = str(self._directory / "zookeeper")
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            # Its own server for operators has one port for all.
            quiet = "-Dzookeeper.admin.enableServer=false"
            command = self._java(quiet, main, str(self._other), kept)
            self._zookeeper = self._launch("zookeeper", *command)
            self._wait_for(self._zookeeper, "zookeeper", self._other)
        else:
            main = "org.apache.zookeeper.ZooKeeperMain"
            self.run(main, "-server", self.zookeeper, stdin=_SESSION)

    def messages(self) -> list[LogMessage]:
        """The log of the broker since its last start."""
        messages = self._log("broker-log").read_text(errors="replace").split("\n@")
        found = []
        for message in messages:
            first = message.removeprefix("@").partition("\n")[0]
            if first:
                found.append(LogMessage(*first.split("\t", 2)))
        return found

    def _wait_for(self, process: subprocess.Popen[bytes], name: str, port: int) -> None:
        end = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    text = self._log(name).read_text(errors="replace")[-1500:]
                    if name == "broker":
                        text += "".join(one.text for one in self.messages()[-9:])
                    raise KafkaBrokerError(f"{name} did not start: {text}") from None
                time.sleep(0.1)

    def stop(self, *, kill: bool = False) -> None:
        """Stop it like an operator; or kill the broker, but not its ZooKeeper."""
        assert self._broker is not None
        if kill:
            self._broker.kill()
        else:
            self._broker.terminate()
        self._broker.wait(_STOP_SECONDS_MAX)
        self._broker = None
        if self._zookeeper is not None and not kill:
            self._zookeeper.terminate()
            self._zookeeper.wait(_STOP_SECONDS_MAX)
            self._zookeeper = None

    def copy_to(self, directory: Path) -> None:
        """Copy its directory while it is stopped, for another broker of this
        release."""
        for name in ("data", "zookeeper"):
            if (self._directory / name).exists():
                shutil.copytree(self._directory / name, directory / name)

    def run(self, *arguments: str, stdin: str = "") -> str:
        """The output of a program of the release.

        Raises:
            KafkaBrokerError: it ended with another status than 0.
        """
        run = subprocess.run(
            self._java(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS_MAX,
            check=False,
            cwd=self._directory,
        )
        if run.returncode:
            raise KafkaBrokerError(f"{arguments}: {run.stdout}{run.stderr}"[-3000:])
        return run.stdout

    def groups(self, *options: str) -> str:
        """Output of `kafka-consumer-groups.sh`."""
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        if self._numbers < (3, 8):
            main = "kafka.admin.ConsumerGroupCommand"
        return self.run(main, "--bootstrap-server", self.address, *options)

    def run_clients(self, source: str, *arguments: str) -> str:
        """The output of a Java program in the directory of the pom, when it has
        ended."""
        return self.run(str(POM.with_name(source)), self.address, *arguments)

    def clients(self, source: str, *arguments: str) -> subprocess.Popen[str]:
        """A Java program in the directory of the pom, with pipes for its input and
        output."""
        command = self._java(str(POM.with_name(source)), self.address, *arguments)
        with self._log("clients").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory,
            )

    def said(self, process: subprocess.Popen[str], word: str) -> None:
        """Wait until a program prints a line.

        Raises:
            KafkaBrokerError: it ended before that.
        """
        lines: IO[str] | None = process.stdout
        assert lines is not None
        for line in lines:
            if line.strip() == word:
                return
        text = self._log("clients").read_text(errors="replace")[-3000:]
        raise KafkaBrokerError(f"the clients ended before {word}: {text}")


def cache_directory() -> Path:
    """The directory that keeps the lists of jars between runs."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"logstore-kafka-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
