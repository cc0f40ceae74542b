"""Producers over crashes: each of their records is in the log once, and both sides know
the last one.

Seeded programs on a disk in memory send batches of named producers, and of others, and
records without a producer; they roll, delete, cut, take names over, close the store,
kill it and cut its power. After each call to the system of some steps a crash is
tried: the store is opened, and the last sequence of each producer is compared with the
records in the log, and with the deleted ones; its last call is repeated, and another
one follows.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import logstore
from faults.checker import open_quietly
from faults.crash_states import until_done
from faults.method import Tally
from logstore import Partition, Producer, Store
from logstore.log.producers import Producers
from logstore.log.write.idempotence import Idempotence
from logstore.store.partition.partition import appends_of
from support.disk import MemoryDisk, end_processes
from support.disk_changes import Moment, Nodes
from support.power_cut import cuts
from support.producing import sent
from support.values import config_of

NAME = "producers"
UNIT = "crash states"
COUNTS = {"commit": 3_000, "nightly": 60_000, "release": 200_000}

_STEPS = 25
_PER_MOMENT = 4
# Maximum number of moments of a step that are tried.
_MOMENTS = 6
_NAMES = ("a", "b")
# The id of a producer without a name.
_OTHER = 7
_WEIGHTS = {
    "send": 12, "send_again": 4, "other": 5, "plain": 4, "roll": 3, "delete": 3,
    "truncate": 4, "take_over": 2, "zombie": 2, "reopen": 3, "kill": 2, "cut": 2,
    "unchecked": 1, "days": 1, "send_joined": 2, "drain": 2,
}  # fmt: skip


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` states, of as many programs as that takes."""
    until_done(states_of, count, seed, tally)


def states_of(seed: int) -> tuple[int, list[str]]:
    """Check the states of the program of a seed: (number of passed states,
    failures)."""
    program = _Program(seed)
    try:
        program.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return program.passed, [f"program {seed}, {program.step}: {text}"]
    finally:
        end_processes()
    return program.passed, []


class _Row(NamedTuple):
    """A record.

    Attributes:
        owner: the name of its producer; "" if it has no producer, or an expired one.
    """

    owner: str
    sequence: int
    value: bytes


def _rows(owner: str, first: int, count: int) -> list[_Row]:
    # As `sent` makes them.
    return [_Row(owner, n, b"%d" % n) for n in range(first, first + count)]


def _next_of(rows: list[_Row], owner: str) -> int:
    """The sequence after the last record of a producer."""
    return next((row.sequence + 1 for row in reversed(rows) if row.owner == owner), 0)


class _Program:
    """A store with one partition, its producers, and their records.

    Attributes:
        rows: all records that were appended and not cut, from offset 0 on.
        epochs: the newest epoch of each producer, by name.
        passed: number of states that passed.
        step: the current step.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"producers {seed}")
        self.model = "ext4" if self.rng.random() < 0.3 else "weak"
        self.disk = MemoryDisk(model=self.model, seed=seed)
        self.rows: list[_Row] = []
        self.epochs: dict[str, int] = {}
        self.producers: dict[str, Producer] = {}
        self.zombies: list[Producer] = []
        self.passed = 0
        self.step = "create"
        self._has_aged = False
        self._codec = self.rng.choice(("none", "none", "gzip"))
        self._segment_bytes = self.rng.choice((400, 1_000, 1 << 20))
        self.store: Store
        self.partition: Partition

    # ------------------------------------------------------------ the program

    def run(self) -> None:
        self.store = open_quietly(self.disk)
        config = config_of(
            2,
            self._codec,
            segment_bytes=self._segment_bytes,
            file_delete_delay_ms=0,
        )
        self.partition = self.store.create_topic("t", config=config)[0]
        for name in _NAMES:
            self._take_over(name)
        steps, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        for _ in range(_STEPS):
            self.step = self.rng.choices(steps, weights)[0]
            is_tried = self.rng.random() < 0.5
            moments = self.disk.record() if is_tried else []
            before, epochs = list(self.rows), dict(self.epochs)
            getattr(self, f"_do_{self.step}")()
            moments = list(moments)
            if self.step not in ("kill", "cut", "drain"):
                self.disk.medium.moments = None
                self.rng.shuffle(moments)
                for moment in moments[:_MOMENTS]:
                    self._try(moment, before, epochs)
            # Not always, so that the producer state may stay unread.
            asked = self.producers if self.rng.random() < 0.4 else {}
            self._check(self.partition, self.rows, asked)
        self.store.close()

    def _take_over(self, name: str) -> None:
        producer = self.store.producer(name)
        assert producer.epoch > self.epochs.get(name, -1), "an epoch was used again"
        self.epochs[name] = producer.epoch
        if name in self.producers:
            self.zombies.append(self.producers[name])
        self.producers[name] = producer

    def _do_send(self) -> None:
        """Append by a named producer, with or without its sequence."""
        name = self.rng.choice(_NAMES)
        first = _next_of(self.rows, name)
        rows = _rows(name, first, self.rng.choice((1, 1, 2, 5)))
        offsets = self.producers[name].append_many(
            self.partition,
            [row.value for row in rows],
            sequence=self.rng.choice((None, first)),
            durable=self.rng.random() < 0.3,
        )
        self._appended(offsets, rows)

    def _appended(self, offsets: range, rows: list[_Row]) -> None:
        assert offsets.start == len(self.rows), "other offsets than the next"
        assert len(offsets) == len(rows)
        self.rows += rows

    def _do_send_again(self) -> None:
        _repeat(self.partition, self.rows, self.producers)

    def _do_send_joined(self) -> None:
        """Send the last two batches of a producer again in one call: they are found if
        they are adjacent, and refused otherwise."""
        name = self.rng.choice(_NAMES)
        batches = [
            batch
            for batch in self.partition.read_batches()
            if self.rows[batch.base_offset].owner == name
        ][-2:]
        if len(batches) < 2 or batches[0].base_offset < self.partition.start_offset:
            return
        first, second = batches
        count = first.record_count + second.record_count
        try:
            offsets = self.producers[name].append_many(
                self.partition, [b"again"] * count, sequence=first.base_sequence
            )
        except logstore.errors.OutOfOrderSequenceError:
            assert first.next_offset != second.base_offset, "they are there"
        else:
            assert offsets == range(first.base_offset, second.next_offset)
            assert len(offsets) == count, "others lie between"

    def _do_other(self) -> None:
        """Append a batch of a producer without a name, now and then twice."""
        rows = _rows("other", _next_of(self.rows, "other"), self.rng.randrange(1, 4))
        data = _batch(self.disk, rows)
        offsets = self.partition.append_batches(data)
        self._appended(offsets, rows)
        if self.rng.random() < 0.5:
            assert self.partition.append_batches(data) == offsets, "appended twice"

    def _do_unchecked(self) -> None:
        """Append a batch without a check of its sequence."""
        rows = _rows("other", _next_of(self.rows, "other"), 1)
        data = _batch(self.disk, rows)
        offsets = self.partition.append_batches(data, check_producers=False)
        self._appended(offsets, rows)

    def _do_plain(self) -> None:
        rows = _rows("", len(self.rows), self.rng.choice((1, 1, 3, 30)))
        offsets = self.partition.append_many([row.value for row in rows])
        self._appended(offsets, rows)

    def _do_roll(self) -> None:
        self.partition.roll()

    def _do_delete(self) -> None:
        start, end = self.partition.start_offset, self.partition.end_offset
        self.partition.delete_before(
            self.rng.choice((end, self.rng.randint(start, end)))
        )

    def _do_drain(self) -> None:
        """Append without producers after a kill, and delete all earlier records."""
        self._do_kill()
        for _ in range(2):
            self._do_plain()
            self.partition.roll()
        self._do_plain()
        self.partition.delete_before(self.partition.segments[-1].base_offset)
        self._do_kill()
        self._check(self.partition, self.rows, self.producers)

    def _do_truncate(self) -> None:
        bases = [batch.base_offset for batch in self.partition.read_batches()]
        bases = [base for base in bases if base >= self.partition.start_offset][-6:]
        if bases:
            end = self.rng.choice(bases)
            self.partition.truncate_to(end)
            del self.rows[end:]

    def _do_take_over(self) -> None:
        self._take_over(self.rng.choice(_NAMES))

    def _do_zombie(self) -> None:
        """Try to append by a producer that was taken over."""
        if self.zombies:
            zombie = self.rng.choice(self.zombies)
            try:
                zombie.append(self.partition, b"zombie")
            except logstore.errors.ProducerFencedError:
                return
            raise AssertionError("a producer that was taken over has appended")

    def _do_reopen(self) -> None:
        self.store.close()
        self._open()

    def _do_kill(self) -> None:
        self.disk = self.disk.kill()
        self._open()
        assert self.partition.end_offset == len(self.rows), "lost by a kill"

    def _do_cut(self) -> None:
        """Cut the power, and continue with the remaining records."""
        moment = self.disk.moment()
        durable = self.partition.durable_offset
        states = list(cuts(moment, self.rng, 6, model=self.model))
        self.disk.kill()
        clock, nodes = self.disk.medium.clock, self.rng.choice(states)[1]
        self.disk = MemoryDisk(nodes, model=self.model, clock=clock)
        self._open()
        end = self.partition.end_offset
        assert durable <= end <= len(self.rows), "lost by a power cut"
        del self.rows[end:]

    def _do_days(self) -> None:
        """Let more time pass than a broker remembers a producer."""
        self.disk.advance(3 * 24 * 3600)
        self._has_aged = True
        self.rows = [
            row._replace(owner="") if row.owner == "other" else row for row in self.rows
        ]
        self._do_plain()

    def _open(self) -> None:
        self.store = open_quietly(self.disk)
        self.partition = self.store.topic("t")[0]
        self.zombies.clear()
        names = [*_NAMES]
        self.rng.shuffle(names)
        for name in names:
            self._take_over(name)
        self.zombies.clear()

    # ------------------------------------------------------------ what must hold

    def _try(self, moment: Moment, before: list[_Row], epochs: dict[str, int]) -> None:
        """Check the crash states of a moment of a step.

        Args:
            before: the records before the step.
            epochs: by producer, its epoch before the step.
        """
        states: list[Nodes] = [moment.nodes]
        states += [n for _, n in cuts(moment, self.rng, _PER_MOMENT, model=self.model)]
        for nodes in states:
            disk = MemoryDisk(nodes, clock=moment.clock)
            store = open_quietly(disk)
            partition = store.topic("t")[0]
            end = partition.end_offset
            # The step has appended, or cut, or neither.
            longer = max(before, self.rows, key=len)
            rows = (before if end <= len(before) else longer)[:end]
            producers = {}
            for name in _NAMES:
                producers[name] = store.producer(name)
                assert producers[name].epoch > epochs[name], "an epoch again"
            self._check(partition, rows, producers)
            _repeat(partition, rows, producers)
            for name, producer in producers.items():
                new = _rows(name, _next_of(rows, name), 1)
                offset = producer.append(
                    partition, new[0].value, sequence=new[0].sequence
                )
                assert offset == len(rows), "not appended"
                rows += new
            # The log grows beyond the end that it had, and is killed again.
            more = _rows("", 0, max(len(before) - len(rows), 0) + 1)
            partition.append_many([row.value for row in more])
            rows += more
            with open_quietly(disk.kill()) as again:
                found = {name: again.producer(name) for name in _NAMES}
                self._check(again.topic("t")[0], rows, found)
            self.passed += 1

    def _check(
        self,
        partition: Partition,
        rows: list[_Row],
        producers: dict[str, Producer],
    ) -> None:
        """Check that the log has these records, and that the store knows the last
        sequences of its producers."""
        found = [record.value for record in partition.read()]
        expected = [row.value for row in rows[partition.start_offset :]]
        assert found == expected, "other records"
        assert partition.end_offset == len(rows), "another end"
        for name, producer in producers.items():
            told, last = producer.last_sequence(partition), _next_of(rows, name) - 1
            assert (-1 if told is None else told) == last, (
                f"{name} is told {told}, and has appended {last}"
            )
        if partition.start_offset == 0:
            now_ms = self.disk.now_ms()
            state, scanned = _state(partition, now_ms), _scanned(partition, now_ms)
            if self._has_aged:
                # Batches that are older than a day may be left out.
                scanned = {
                    key: (epoch, batches[-len(state[key][1]) :])
                    for key, (epoch, batches) in scanned.items()
                }
            assert state == scanned, "another state than that of the log"


def _batch(disk: MemoryDisk, rows: list[_Row]) -> bytes:
    """A batch of the producer without a name."""
    first, now_ms = rows[0].sequence, disk.now_ms()
    return sent(_OTHER, 0, first, len(rows), timestamp_ms=now_ms)


def _repeat(
    partition: Partition, rows: list[_Row], producers: dict[str, Producer]
) -> None:
    """Send the last batch of each named producer again."""
    batches = list(partition.read_batches())
    for name, producer in producers.items():
        own = [b for b in batches if rows[b.base_offset].owner == name]
        for batch in own[-1:]:
            values = [b"again"] * batch.record_count
            found = producer.append_many(
                partition, values, sequence=batch.base_sequence
            )
            offsets = range(batch.base_offset, batch.next_offset)
            assert found == offsets, "appended twice"


def _state(partition: Partition, now_ms: int) -> dict[int, Any]:
    log = appends_of(partition).writer()._log
    return _shown(log.idempotence._upto(log.bounds), now_ms)


def _scanned(partition: Partition, now_ms: int) -> dict[int, Any]:
    """The same, by a scan of the whole log."""
    log = appends_of(partition).writer()._log
    producers = Producers(0)
    Idempotence(log.context, 0)._read_on(producers, log.bounds)
    return _shown(producers, now_ms)


def _shown(producers: Producers, now_ms: int) -> dict[int, Any]:
    return {
        key: (one.epoch, list(one.batches))
        for key, one in producers._by_id.items()
        if not one.is_old(now_ms)
    }
