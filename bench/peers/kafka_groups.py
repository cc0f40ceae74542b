"""Consumer groups of Apache Kafka 3.9.1, with confluent-kafka as its client.

    python -m bench.peers.kafka_groups ADDRESS GROUP   # a member that reads and waits

One broker (KRaft, one node) on the same cores, with the broker's default of
``group.initial.rebalance.delay.ms``. Members have the lowest ``session.timeout.ms``
that a broker takes by default, 6 s; their own default is 45 s. A commit is synchronous,
and written by the broker, which leaves it to the operating system.

Java and the jars are the same as in the tests: tests/support/kafka_tools.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.rounds import UnavailableError

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

from support.kafka_tools import ToolsUnavailableError
from support.running_broker import Broker, BrokerError

__all__ = ["KafkaGroups"]

SESSION_S: Final = 6
_TOPIC: Final = "t"
_WAIT_S: Final = 60
_BATCH: Final = 1000
_DELAY: Final = "group.initial.rebalance.delay.ms=3000"


def _consumer(address: str, group: str, **more: Any) -> Any:
    found = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_S * 1000,
            # The one that holds the partition keeps it when another one joins.
            "partition.assignment.strategy": "cooperative-sticky",
            **more,
        }
    )
    found.subscribe([_TOPIC])
    return found


def _first(consumer: Any) -> None:
    """Wait for a record."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            return
    raise AssertionError(f"no record came in {_WAIT_S} s")


class KafkaGroups:
    """A broker with a topic of one partition; a context manager.

    Args:
        folder: an empty one.
        values: of its records.

    Raises:
        UnavailableError: it cannot run here.
    """

    def __init__(self, folder: Path, values: list[bytes]) -> None:
        self._count = len(values)
        self._bytes = sum(map(len, values))
        try:
            self._broker = Broker(folder, _DELAY)
        except (ToolsUnavailableError, BrokerError) as error:
            raise UnavailableError(str(error)) from error
        self.address = self._broker.address
        try:
            admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(30)
            producer = Producer(
                {
                    "bootstrap.servers": self.address,
                    "queue.buffering.max.messages": 2 * self._count,
                    "linger.ms": 5,
                }
            )
            for value in values:
                producer.produce(_TOPIC, value)
            assert producer.flush(60) == 0
        except BaseException:
            self._broker.kill()
            raise

    def __enter__(self) -> KafkaGroups:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._broker.kill()

    def takeovers(self, count: int) -> list[float]:
        """Seconds from the SIGKILL of the holder to the first record of another member,
        in order."""
        return sorted(self._takeover() for _ in range(count))

    def _takeover(self) -> float:
        group = f"takeover-{uuid.uuid4()}"
        command = [sys.executable, "-m", __spec__.name, self.address, group]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"ready\n"
                other = _consumer(self.address, group)
                self._join_idle(other, group)
                begin = time.perf_counter()
                holder.kill()
                _first(other)
                taken = time.perf_counter() - begin
                other.close()
                return taken
            finally:
                holder.kill()

    def _join_idle(self, other: Any, group: str) -> None:
        """Poll until the member is in the group, which has nothing for it."""
        end = time.monotonic() + _WAIT_S
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while time.monotonic() < end:
            message = other.poll(0.2)
            if message is not None and message.error() is None:
                raise AssertionError("the partition has changed hands too early")
            found = admin.describe_consumer_groups([group])[group].result(10)
            if len(found.members) == 2 and found.state.name == "STABLE":
                return
        raise AssertionError(f"group {group} has not two members after {_WAIT_S} s")

    def first_records(self, count: int) -> list[float]:
        """Seconds from the constructor to the first record, alone in a new group, in
        order."""
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            one = _consumer(self.address, f"first-{uuid.uuid4()}")
            _first(one)
            found.append(time.perf_counter() - begin)
            one.close()
        return sorted(found)

    def polls(self, rounds: int, *, at_once: bool) -> Iterator[float]:
        """Records a second, their values touched; the member has joined.

        Args:
            at_once: many by each call of `consume`; else one by each call of `poll`.
        """
        # At the end of the log the broker would let the client wait for 500 ms, and
        # the next round with it.
        wait = {"fetch.wait.max.ms": 10}
        one = _consumer(self.address, f"polls-{uuid.uuid4()}", **wait)
        _first(one)
        for _ in range(rounds):
            count = size = 0
            begin = time.perf_counter()
            one.seek(TopicPartition(_TOPIC, 0, 0))
            while count < self._count:
                found = one.consume(_BATCH, 10) if at_once else [one.poll(10)]
                for message in found:
                    if message is not None:
                        size += len(message.value())
                        count += 1
            yield count / (time.perf_counter() - begin)
            if (count, size) != (self._count, self._bytes):
                raise AssertionError(f"{count} records with {size} bytes came")
        one.close()

    def commits(self, count: int) -> float:
        """Synchronous commits a second."""
        one = _consumer(self.address, f"commits-{uuid.uuid4()}")
        _first(one)
        begin = time.perf_counter()
        for offset in range(1, count + 1):
            one.commit(offsets=[TopicPartition(_TOPIC, 0, offset)], asynchronous=False)
        rate = count / (time.perf_counter() - begin)
        (found,) = one.committed([TopicPartition(_TOPIC, 0)], 10)
        if found.offset != count:
            raise AssertionError(f"{found.offset} is committed, not {count}")
        one.close()
        return rate


def _hold(address: str, group: str) -> None:
    """Be the member that has the partition."""
    one = _consumer(address, group)
    _first(one)
    print("ready", flush=True)
    one.pause(one.assignment())
    while True:
        one.poll(1)


if __name__ == "__main__":
    _hold(*sys.argv[1:])
