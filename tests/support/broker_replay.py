"""A broker that gets the batches of random sequences, one request after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.append_sequences import AppendSequence
from support.kafka_broker import KafkaBroker
from support.kafka_wire import Wire, WireError

__all__ = ["BrokerReplay"]

# The last format that brokers before 3.0 write with messages of magic 1.
_MAGIC_1 = {"message.format.version": "0.10.2"}


class BrokerReplay:
    """A broker with a topic of one partition for each sequence.

    Attributes:
        times: of each append so far, by the name of the sequence; -1 with CreateTime.

    Args:
        broker: not started yet; its caller ends it.
    """

    def __init__(
        self, broker: KafkaBroker, sequences: Sequence[AppendSequence]
    ) -> None:
        self.broker = broker
        self.sequences = sequences
        self.times: dict[str, list[int]] = defaultdict(list)
        broker.start()
        self._is_running = True
        with Wire(broker.address) as wire:
            wire.create_topics({one.name: self._settings(one) for one in sequences})

    def _settings(self, sequence: AppendSequence) -> dict[str, str]:
        settings = sequence.settings()
        if self.broker.release >= "4":
            # Since 4.0 only tests may set segments of less than a MiB.
            settings["internal.segment.bytes"] = settings.pop("segment.bytes")
        return settings | (_MAGIC_1 if sequence.magic == 1 else {})

    def phase(
        self, appends: Mapping[str, Sequence[bytes]], *, kill: bool = False
    ) -> None:
        """Start the broker if it was stopped, append to the logs, and stop it. With
        `kill`, kill it, start it again so that it recovers, and then stop it.

        Args:
            appends: of each sequence: each is one request, with a batch, or with a
                message set of magic 1.
        """
        if not self._is_running:
            self.broker.start()
        with Wire(self.broker.address) as wire:
            for magic in (1, 2):
                left = {
                    one.name: iter(appends[one.name])
                    for one in self.sequences
                    if one.magic == magic
                }
                while left:
                    found = {
                        name: next(batches, None) for name, batches in left.items()
                    }
                    turn = {name: one for name, one in found.items() if one is not None}
                    left = {name: left[name] for name in turn}
                    if turn:
                        self._produce(wire, turn)
            before = wire.end_offsets(one.name for one in self.sequences)
        self.broker.stop(kill=kill)
        if kill:
            self.broker.start()
            with Wire(self.broker.address) as wire:
                ends = wire.end_offsets(one.name for one in self.sequences)
            assert ends == before
            self.broker.stop()
        self._is_running = False

    def _produce(self, wire: Wire, turn: Mapping[str, bytes]) -> None:
        """One append to each of these logs."""
        for name, answer in wire.produce(turn).items():
            if answer.error:
                raise WireError(f"an append to {name} was refused: {answer.error}")
            self.times[name].append(answer.time_ms)

    def partition(self, sequence: AppendSequence) -> Path:
        return self.broker.data / f"{sequence.name}-0"
