"""Apache Kafka 3.9.1 as a process: one broker (KRaft, one node), until it is killed.

The jars come from `support.kafka_tools`; confluent-kafka is its client.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.kafka_tools import KafkaTools

__all__ = ["Broker", "BrokerError"]

_CLUSTER = "bG9nc3RvcmUtYmVuY2gtMQ"
_START_SECONDS_MAX = 120
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.message.timestamp.before.max.ms=9223372036854775807
"""


class BrokerError(Exception):
    """It did not start; the message has the end of its log."""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Broker:
    """A running broker.

    Attributes:
        data: its log directory.
        address: for clients.

    Args:
        directory: an empty one.
        more: settings that go before its own.

    Raises:
        ToolsUnavailableError: Java, Maven or the jars are missing.
        BrokerError: it did not start.
    """

    def __init__(self, directory: Path, more: str = "") -> None:
        cache = Path(tempfile.gettempdir()) / f"logstore-bench-kafka-{os.getuid()}"
        cache.mkdir(mode=0o700, exist_ok=True)
        tools = KafkaTools.find(cache)
        self.data = directory / "data"
        self._log = directory / "broker.log"
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, data=self.data) + more
        )
        java = [tools.java, "-Xmx1g", "-Xms1g", "-cp", tools.classpath]
        format_ = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER]
        subprocess.run(
            [*java, *format_, "-c", str(settings)], check=True, capture_output=True
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _START_SECONDS_MAX
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            try:
                admin.list_topics(timeout=2)
                return
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise BrokerError(
                        f"the broker did not start: {self._log.read_text()[-500:]}"
                    ) from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """CPU time of all its threads since its start."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
