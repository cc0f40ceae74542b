"""Seeded programs over a store on a `MemoryDisk`, with the promises made to them.

A `Program` goes step by step; what each step may have left is in `promises` while it
runs and after it. Steps are methods whose names begin with ``do_``; a step that fails
with a `LogStoreError` leaves open what it may have done, as the documents say.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from faults.checker import HandKeeper, open_quietly, shown, view_of
from faults.promises import Log, Promises, TopicPromise
from faults.rows import append_rows, encoded
from logstore import LogStoreError, Partition, Record, Store, StoreConfig, TopicConfig
from logstore.errors import SyncFailedError, UnsupportedError
from logstore.io import layout
from logstore.io.layout import TopicPartition
from logstore.log import retention
from support.adopting import adopting, copying
from support.disk import MemoryDisk
from support.disk_changes import ROOT, Moment, Nodes
from support.power_cut import cuts
from support.values import (
    FORMATS,
    config_of,
    headers_of,
    key_of,
    record_of,
    timestamp_of,
    value_of,
)

# How often each step is taken.
WEIGHTS = {
    "append": 12, "append_many": 8, "append_durable": 6, "append_batches": 2,
    "append_arrow": 1, "publish": 5, "flush": 4, "roll": 3, "delete_before": 3,
    "truncate_to": 4, "retention": 2, "configure": 1, "create_topic": 2,
    "add_partitions": 1, "delete_topic": 1, "housekeeping": 3, "reopen": 4, "kill": 2,
    "cut": 2, "leftovers": 1, "kafka": 1,
}  # fmt: skip


class Step(NamedTuple):
    """A step that was taken.

    Attributes:
        name: of the step.
        moments: of the disk while it ran.
        during: the promises while it runs.
        after: the promises once it has returned.
    """

    name: str
    moments: list[Moment]
    during: Promises
    after: Promises


def _config(rng: random.Random) -> TopicConfig:
    magic, codec = rng.choice(FORMATS)
    return config_of(
        magic,
        codec,
        segment_bytes=rng.choice((300, 600, 2000)),
        index_interval_bytes=rng.choice((0, 60, 200)),
        file_delete_delay_ms=rng.choice((0, 0, 1000)),
        flush_ms=rng.choice((50, 1 << 62)),
        flush_messages=rng.choice((3, 1 << 40)),
    )


class Program:
    """A store, the calls and crashes of a program on it, and its promises.

    Attributes:
        disk: as the present process sees it.
        promises: the required content now.
        harmless: labels of recovery that the program itself causes.
        is_disk_full: a deletion continues without its state file, segment by segment.
    """

    def __init__(self, seed: int, *, model: str = "weak", topics: int = 2) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.disk = MemoryDisk(model=model, seed=seed)
        self.promises = Promises()
        self.harmless: set[str] = set()
        self.is_disk_full = False
        self._topics = topics
        self._seed = seed * 1000
        self._sequence = 0
        # No thread serves others, so that the program is repeatable.
        self._config = StoreConfig(
            flush_checkpoint_ms=self.rng.choice((0, 0, 5000)), publish_for_others=False
        )
        self.store: Store
        self._steps = list(WEIGHTS)
        self._weights = list(WEIGHTS.values())

    # ------------------------------------------------------------ running

    def take_only(self, names: Sequence[str]) -> None:
        """Take no other steps than these (none: all)."""
        if names:
            self._steps = list(names)
            self._weights = [WEIGHTS[name] for name in names]

    def run(self, count: int) -> Iterator[Step]:
        """Open a store that is not there, then take this number of steps, then close
        it."""
        yield self._taken("open", self.open)
        yield self._taken("create_topic", self.do_create_topic)
        for _ in range(count):
            name = self.rng.choices(self._steps, self._weights)[0]
            yield from self.step(name)
        yield self._taken("close", self.close)

    def step(self, name: str) -> Iterator[Step]:
        """Take one step (which may be several for a checker)."""
        if name in ("reopen", "kill", "cut", "leftovers", "kafka"):
            if name == "kill":
                self.disk = self.disk.kill()
            elif name == "cut":
                self.cut()
            else:
                yield self._taken("close", self.close)
                if name == "leftovers":
                    self.leave_leftovers()
                elif name == "kafka":
                    self.forget_own_files()
            yield self._taken("open", self.open)
        else:
            yield self._taken(name, getattr(self, f"do_{name}"))

    def _taken(self, name: str, call: Callable[[], None]) -> Step:
        """Run a step; its promises while it runs are known when it calls `began`."""
        self._during = self.promises.copy()
        moments = self.disk.record()
        call()
        moments = list(moments)
        self.disk.medium.moments = None
        return Step(name, moments, self._during, self.promises.copy())

    def began(self) -> None:
        """Called by a step when it is about to make its call."""
        self._during = self.promises.copy()

    def see(self) -> None:
        """Record as promised what the store reports as durable, like the return of a
        flush."""
        for name, topic in self.promises.topics.items():
            if not topic.is_certain or name not in self.store.topics():
                continue
            for number, log in enumerate(topic.logs):
                if (name, number) in self.store._topics.writers.broken:
                    continue
                if self.store._topics.writers.get(
                    TopicPartition(name, number)
                ).health.damage:
                    continue
                partition = self.store.topic(name)[number]
                told = partition.durable_offset
                if self.rng.random() < 0.2:
                    for record in partition.read(durable_only=True):
                        told = max(told, record.offset + 1)
                log.durable = max(log.durable, min(told, log.end))

    # ------------------------------------------------------------ opening, closing

    def open(self) -> None:
        """Open the store, and take its content as promised."""
        self.store = open_quietly(self.disk, config=self._config)
        self.store.recover()
        trouble = {
            key
            for key, w in self.store._topics.writers.loaded.items()
            if w.health.damage is not None
        }
        if not self.store._topics.writers.broken and not trouble:
            self.promises.settle(view_of(self.store))
            return
        # Calls failed while it was opened: settle only the partitions that were opened.
        for name, topic in self.promises.topics.items():
            for number, log in enumerate(topic.logs if topic.is_certain else ()):
                if (
                    name,
                    number,
                ) not in trouble | self.store._topics.writers.broken.keys():
                    log.settle(shown(self.store.topic(name)[number]))
        rows = self.promises.publication
        left = trouble | self.store._topics.writers.broken.keys()
        self.promises.publication = tuple(row for row in rows if row[:2] in left)

    def close(self) -> None:
        self.see()
        self.store.close()
        for topic in self.promises.topics.values():
            for log in topic.logs:
                log.durable = len(log.records)

    def cut(self) -> None:
        """Cut the power now, continue with one of the states that it may leave."""
        moment = self.disk.moment()
        for topic in self.promises.topics.values():
            for log in topic.logs:
                log.is_cut = True
        states = list(cuts(moment, self.rng, 6, model=self.model))
        self.restart(self.rng.choice(states)[1])

    def restart(self, nodes: Nodes) -> None:
        """Continue with a disk that has these nodes, after a restart of the machine."""
        self.disk.kill()
        clock = self.disk.medium.clock
        seed = self.rng.random().__hash__()
        self.disk = MemoryDisk(nodes, model=self.model, clock=clock, seed=seed)

    def reopened(self, store: Store) -> str:
        """Continue with a store that others have opened; the problem, or ""."""
        self.store = store
        return ""

    def goes_on(self) -> str:
        """Problem of other parts of the open store after failed calls, or ""."""
        return ""

    # ------------------------------------------------------------ partitions

    def partitions(self) -> list[tuple[Log, Partition]]:
        """Partitions that take appends, with their promises."""
        found: list[tuple[Log, Partition]] = []
        writers = self.store._topics.writers
        for name, topic in self.promises.topics.items():
            if topic.is_certain and not topic.growing:
                found += [
                    (log, self.store.topic(name)[number])
                    for number, log in enumerate(topic.logs)
                    if (name, number) not in writers.broken
                    and writers.get(TopicPartition(name, number)).health.damage is None
                ]
        return [(log, p) for log, p in found if not log.coming and not log.ends]

    def pick(self) -> tuple[Log, Partition] | None:
        found = self.partitions()
        return self.rng.choice(found) if found else None

    def append(
        self,
        log: Log,
        partition: Partition,
        records: list[Record],
        call: Callable[[], object],
        *,
        durable: bool = False,
    ) -> None:
        """Make a call that appends these records."""
        log.records += records
        log.coming = len(records)
        self.began()
        try:
            call()
        except LogStoreError as error:
            self._append_failed(log, partition, error)
            raise
        log.coming = 0
        if durable:
            log.durable = len(log.records)
        self.see()

    def _append_failed(
        self, log: Log, partition: Partition, error: LogStoreError
    ) -> None:
        """All or nothing is in; in doubt only if the undoing failed as well."""
        end, count = partition.end_offset, log.coming
        if count and end == len(log.records):
            assert isinstance(error, SyncFailedError), "it is in, and said to be not"
            log.coming = 0
        else:
            assert end == log.end, f"the end is {end} after a failed append"
            if partition._log.health.failed is None:  # else: until it is opened again
                del log.records[end:]
                log.coming = 0

    def _new(self, partition: Partition, count: int) -> tuple[range, int, int]:
        """(offsets, magic, seed) of the next records of a partition."""
        self._seed += 1
        first = partition.end_offset
        magic = partition.config.message_format
        return range(first, first + count), magic, self._seed

    def do_append(self, durable: bool = False) -> None:
        """Append one record."""
        picked = self.pick()
        if picked is None:
            return
        log, partition = picked
        (offset, *_), magic, seed = self._new(partition, 1)
        self.append(
            log,
            partition,
            [record_of(offset, magic, seed)],
            lambda: partition.append(
                value_of(offset, seed),
                key_of(offset, seed),
                timestamp_ms=timestamp_of(offset, seed),
                headers=headers_of(offset, seed) if magic == 2 else (),
                durable=durable,
            ),
            durable=durable,
        )

    def do_append_durable(self) -> None:
        self.do_append(durable=True)

    def do_append_many(self) -> None:
        """Append some records, now and then more than fit into a segment."""
        picked = self.pick()
        if picked is None:
            return
        log, partition = picked
        count = self.rng.choice((1, 2, 3, 5, 12, 50))
        durable = self.rng.random() < 0.3
        offsets, magic, seed = self._new(partition, count)
        self.append(
            log,
            partition,
            [record_of(o, magic, seed) for o in offsets],
            lambda: append_rows(partition, offsets, magic, seed, durable=durable),
            durable=durable,
        )

    def do_append_batches(self) -> None:
        """Append batches of a producer, of any format."""
        picked = self.pick()
        if picked is None:
            return
        log, partition = picked
        magic, codec = self.rng.choice(FORMATS)
        offsets, _, seed = self._new(partition, self.rng.randrange(1, 5))
        data = encoded(magic, codec, len(offsets), offsets[0], seed)
        records = [record_of(o, magic, seed) for o in offsets]
        self.append(log, partition, records, lambda: partition.append_batches(data))

    def do_append_arrow(self) -> None:
        """An Arrow table."""
        picked = self.pick()
        if picked is None:
            return
        pyarrow = _pyarrow()
        if pyarrow is None:
            return
        log, partition = picked
        offsets, magic, seed = self._new(partition, 3)
        data = pyarrow.table(
            {
                "value": pyarrow.array([value_of(o, seed) for o in offsets], "binary"),
                "key": pyarrow.array([key_of(o, seed) for o in offsets], "binary"),
                "timestamp": pyarrow.array([timestamp_of(o, seed) for o in offsets]),
            }
        )
        records = [record_of(o, magic, seed)._replace(headers=()) for o in offsets]
        self.append(log, partition, records, lambda: partition.append_arrow(data))

    def do_publish(self) -> None:
        """Publish to some partitions at once; now and then the same twice."""
        found = [one for one in self.partitions() if one[1].config.message_format]
        if not found:
            return
        count = self.rng.choice((1, 2, 2, 3))
        picked = self.rng.sample(found, min(len(found), count))
        # Adopt the staged files, if possible, or append record by record.
        way = adopting() if self.rng.random() < 0.5 else contextlib.nullcontext()
        late = contextlib.nullcontext() if self._sequence % 2 else copying()
        with way, late:
            self._publish(picked)

    def _publish(self, picked: list[tuple[Log, Partition]]) -> None:
        self._sequence += 1
        sequence, records = self._sequence, []
        with self.store.stage("program", sequence) as stage:
            for _, partition in picked:
                offsets, magic, seed = self._new(partition, self.rng.choice((1, 3, 12)))
                stage.append_many(
                    partition,
                    [value_of(o, seed) for o in offsets],
                    [key_of(o, seed) for o in offsets],
                    [timestamp_of(o, seed) for o in offsets],
                    [headers_of(o, seed) for o in offsets] if magic == 2 else None,
                )
                records.append([record_of(o, magic, seed) for o in offsets])
            staged = stage.finish()
        rows = []
        for (log, partition), added in zip(picked, records, strict=True):
            first = len(log.records)
            log.records += added
            log.coming = len(added)
            end = first + len(added)
            rows.append((partition.topic, partition.number, first, end))
        self.promises.publication = tuple(rows)
        self.began()
        try:
            self.store.publish([staged], identity="program", sequence=sequence)
        except LogStoreError as error:
            self._publish_failed(picked, sequence, error)
            raise
        for log, _ in picked:
            log.coming = 0
            log.durable = len(log.records)
        self.promises.publication = ()
        if self.rng.random() < 0.3:
            again = self.store.publish([staged], identity="program", sequence=sequence)
            assert not again.is_new, "it was published twice"
        self.see()

    def _publish_failed(
        self,
        picked: list[tuple[Log, Partition]],
        sequence: int,
        error: LogStoreError,
    ) -> None:
        """Nothing is in; in doubt only if the writers have ended."""
        for log, partition in picked:
            end = partition.end_offset
            if end == len(log.records):
                assert isinstance(error, SyncFailedError), (
                    "it is in, and said to be not"
                )
            else:
                assert end == log.end, f"the end is {end} after a failed publication"
                if partition._log.health.failed is None:
                    del log.records[end:]
                    log.coming = 0
        left = {(p.topic, p.number) for log, p in picked if log.coming}
        rows = self.promises.publication
        self.promises.publication = tuple(r for r in rows if r[:2] in left)

    def do_flush(self) -> None:
        picked = self.pick()
        if picked is not None:
            log, partition = picked
            partition.flush()
            log.durable = len(log.records)
            self.see()

    def do_roll(self) -> None:
        picked = self.pick()
        if picked is not None:
            picked[1].roll()
            self.see()

    def do_delete_before(self) -> None:
        picked = self.pick()
        if picked is not None:
            log, partition = picked
            target = self.rng.randint(partition.start_offset, partition.end_offset)
            bases = {s.base_offset for s in partition.segments}
            self._delete(log, target, bases, lambda: partition.delete_before(target))

    def _delete(
        self, log: Log, target: int, bases: set[int], call: Callable[[], object]
    ) -> None:
        log.starts |= {target}
        if self.is_disk_full:
            log.starts |= {b for b in bases if min(log.starts) < b < target}
        self.began()
        call()
        log.starts = frozenset({target})
        self.see()

    def do_retention(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        log, partition = picked
        policy = retention.RetainBytes(self.rng.choice((0, 200, 500)))
        planned = partition.apply_retention(dry_run=True, policies=[policy])
        if planned:
            target = max(planned[-1].segment.next_offset, partition.start_offset)
            bases = {deletion.segment.base_offset for deletion in planned}
            self._delete(
                log,
                target,
                bases,
                lambda: partition.apply_retention(policies=[policy]),
            )

    def do_truncate_to(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        log, partition = picked
        target = self.rng.randint(
            max(partition.start_offset, partition.end_offset - 6), partition.end_offset
        )
        log.ends = frozenset({target})
        self.began()
        try:
            partition.truncate_to(target)
        except UnsupportedError:
            log.ends = frozenset()  # inside a batch
            return
        except LogStoreError:
            if partition._log.health.failed is None:
                log.ends = frozenset()
            raise
        del log.records[target:]
        log.ends = frozenset()
        log.durable = min(log.durable, target)
        self.see()

    # ------------------------------------------------------------ topics

    def do_create_topic(self) -> None:
        free = [f"t{n}" for n in range(self._topics)]
        free = [name for name in free if name not in self.promises.topics]
        if not free:
            return
        name = self.rng.choice(free)
        count = self.rng.choice((1, 1, 2, 3, 8))
        config = _config(self.rng)
        topic = TopicPromise([Log() for _ in range(count)], is_certain=False)
        self.promises.topics[name] = topic
        self.began()
        self.store.create_topic(name, count, config)
        topic.is_certain = True

    def _certain(self) -> list[str]:
        topics = self.promises.topics.items()
        return [name for name, t in topics if t.is_certain and not t.growing]

    def do_add_partitions(self) -> None:
        names = [n for n in self._certain() if len(self.promises.topics[n].logs) < 8]
        if not names:
            return
        name = self.rng.choice(names)
        topic = self.promises.topics[name]
        topic.growing = self.rng.randrange(1, 3)
        self.began()
        self.store.topic(name).add_partitions(topic.growing)
        topic.logs += [Log() for _ in range(topic.growing)]
        topic.growing = 0

    def do_delete_topic(self) -> None:
        names = self._certain()
        if not names:
            return
        name = self.rng.choice(names)
        self.promises.topics[name].is_certain = False
        self.began()
        self.store.delete_topic(name)
        del self.promises.topics[name]

    def do_configure(self) -> None:
        names = self._certain()
        if names:
            self.store.topic(self.rng.choice(names)).configure(_config(self.rng))
            self.see()

    def do_housekeeping(self) -> None:
        """Advance the clock, and run due tasks: syncs, durable offsets, deletions."""
        self.disk.advance(self.rng.choice((0.06, 2, 90)))
        keeper = self.store._context.scheduler
        assert isinstance(keeper, HandKeeper)
        keeper.run_due()
        self.see()

    # ------------------------------------------------------------ other programs

    def leave_leftovers(self) -> None:
        """Leave files of a compaction of Kafka's, finished or not, and deleted ones."""
        files = self.disk.tree()
        logs = [
            path.removesuffix(".log")
            for path in files
            if path.endswith(".log") and "-delete/" not in path
        ]
        if not logs:
            return
        path = self.rng.choice(sorted(logs))
        folder = path.rpartition("/")[0] + "/"
        mates = [p for p in logs if p.startswith(folder) and p > path]
        added: dict[str, bytes] = {}
        if self.rng.random() < 0.5 and mates:
            # A swap file with the same content as its sealed segment.
            for suffix in (".log", ".index", ".timeindex"):
                if path + suffix in files:
                    added[f"{path}{suffix}.swap"] = files[path + suffix]
            self.harmless.add("swap-finished")
        else:
            added[f"{path}.log.cleaned"] = files[f"{path}.log"]
            added[f"{path}.index.cleaned"] = b""
            self.harmless.add("leftovers-removed")
        added[f"{folder}{0:020d}.log.deleted"] = b"gone"
        self.rewrite(added, ())

    def forget_own_files(self) -> None:
        """Leave the store like Kafka, without logstore's own files."""
        removed = [
            path
            for path in self.disk.tree()
            if path.rpartition("/")[2].startswith(layout.OWN_PREFIX)
        ]
        self.rewrite({}, removed)

    def rewrite(self, added: dict[str, bytes], removed: list[str] | tuple[()]) -> None:
        """Change files of the closed store durably."""
        nodes = dict(self.disk.medium.nodes)
        for path in removed:
            *parents, name = path.split("/")
            at = _walk(nodes, parents)
            nodes[at] = {n: i for n, i in nodes[at].items() if n != name}
        for path, content in added.items():
            *parents, name = path.split("/")
            at = _walk(nodes, parents)
            number = max(nodes) + 1
            nodes[at] = {**nodes[at], name: number}
            nodes[number] = content
        self.restart(nodes)


def _walk(nodes: Nodes, parts: list[str]) -> int:
    at = ROOT
    for part in parts:
        at = nodes[at][part]
    return at


@functools.lru_cache(maxsize=1)
def _pyarrow() -> object:
    with contextlib.suppress(ImportError):
        import pyarrow

        return pyarrow
    return None
