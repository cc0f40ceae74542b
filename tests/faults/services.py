"""Seeded programs with services on a store: consumers that commit, join and leave,
transactions, resets, a named producer, and processes that hand in.

`ServiceProgram` is a `Program` on two more topics: a named producer fills ``in``, and a
group reads it and commits offsets; another one publishes output records to ``out``, in
transactions; others hand in to ``out``. `ServicePromises` holds the required state of
these services, in addition to the records.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import logstore
from faults.checker import PATH, open_quietly
from faults.promises import Log, TopicPromise
from faults.service_promises import (
    COMMITS,
    HANDS_IN,
    IN,
    OUT,
    PARTITIONS,
    PRODUCER,
    TRANSACTIONS,
    ServicePromises,
    committed_in,
    consumer_of,
    small_files,
)
from faults.workloads import Program, Step
from logstore import LogStoreError, Store, TopicPartition
from logstore.errors import SyncFailedError
from logstore.group import resets
from logstore.io.checkpoint.process_requests import ProcessFile
from logstore.log.write.calls import Submission
from logstore.store.opening import open_store
from support.values import (
    config_of,
    headers_of,
    key_of,
    record_of,
    timestamp_of,
    value_of,
)

__all__ = ["SERVICE_STEPS", "ServiceProgram"]

# How often each step is taken, including the steps of a `Program` named here.
SERVICE_STEPS = {
    "produce": 6, "produce_again": 2, "take_over": 1, "poll": 4, "commit": 6,
    "commit_durable": 5, "leave": 2, "beside": 2, "transaction": 5, "reset": 2,
    "submit": 4, "append_many": 3, "flush": 2, "housekeeping": 1, "reopen": 3,
    "kill": 2, "cut": 2,
}  # fmt: skip


class NoThread:
    """Replaces the thread of an owner that publishes for others, and its wakeups:
    requests are served when a program says so."""

    is_reporting = False

    @property
    def wakeups(self) -> NoThread:
        return self

    def take(self) -> None:
        """None: changes are unknown, the directory must be listed."""

    def add(self, watch: object) -> None:
        """No changes are reported."""

    def wake(self) -> None:
        """Do nothing: there is no thread."""

    stop = abandon = start = wake


# ---------------------------------------------------------------- the program


class ServiceProgram(Program):
    """A `Program` with services.

    Attributes:
        consumers: the open ones, by group.
    """

    promises: ServicePromises

    def __init__(self, seed: int, *, model: str = "weak", topics: int = 0) -> None:
        super().__init__(seed, model=model, topics=topics)
        self.promises = ServicePromises()
        self._steps = list(SERVICE_STEPS)
        self._weights = list(SERVICE_STEPS.values())
        self.consumers: dict[str, Any] = {}
        self._producer: Any = None
        self._requests = 0

    def take_only(self, names: Any) -> None:
        if names:
            self._steps = list(names)
            self._weights = [SERVICE_STEPS[name] for name in names]

    # ------------------------------------------------------------ opening, closing

    def open(self) -> None:
        super().open()
        self._begin()

    def _begin(self) -> None:
        """Prepare the state for a store that was just opened."""
        self.consumers.clear()
        self._producer = None
        self.store._publishing.hand_in._thread = NoThread()  # type: ignore[assignment]
        self.promises.settle_of(self.store)

    def close(self) -> None:
        self.leave_all()
        super().close()

    def cut(self) -> None:
        self.promises.offsets.is_cut = True
        super().cut()

    def leave_all(self) -> None:
        """Close all consumers."""
        for group in list(self.consumers):
            self.consumers.pop(group).close()

    def run(self, count: int) -> Iterator[Step]:
        yield self._taken("open", self.open)
        for _ in range(2):
            yield self._taken("create_topic", self.do_create_topic)
        for _ in range(count):
            yield from self.step(self.rng.choices(self._steps, self._weights)[0])
        yield self._taken("close", self.close)

    def do_create_topic(self) -> None:
        """Create the one of the two topics that is missing."""
        name = OUT if IN in self.promises.topics else IN
        logs = [Log() for _ in range(PARTITIONS if name == IN else 1)]
        topic = self.promises.topics[name] = TopicPromise(logs, is_certain=False)
        self.began()
        config = config_of(2, "none", segment_bytes=self.rng.choice((600, 5_000)))
        self.store.create_topic(name, len(logs), config)
        topic.is_certain = True

    # ------------------------------------------------------------ producers

    def do_produce(self, again: bool = False) -> None:
        """Append records of the named producer; or its last ones once more."""
        if self._producer is None:
            self.do_take_over()
            return
        number = self.rng.randrange(PARTITIONS)
        picked = self._of(IN, number)
        if picked is None:
            return
        log, partition = picked
        known = self.promises.sequences[number]
        if again:
            self._produce_again(partition, known)
            return
        sequence = max(known.values(), default=-1) + 1
        count = self.rng.choice((1, 2, 4))
        offsets, _, seed = self._new(partition, count)
        durable = self.rng.random() < 0.5
        # Missing services are not asked for.
        known.update({o: sequence + n for n, o in enumerate(offsets)})
        try:
            self.append(
                log,
                partition,
                [record_of(o, 2, seed) for o in offsets],
                lambda: self._producer.append_many(
                    partition,
                    *_columns(offsets, seed),
                    sequence=sequence,
                    durable=durable,
                ),
                durable=durable,
            )
        except LogStoreError:
            for offset in offsets[len(log.records) - offsets.start :]:
                del known[offset]
            raise

    def _produce_again(self, partition: Any, known: dict[int, int]) -> None:
        """Check that the last batch of the producer is recognised."""
        there = {offset for offset in known if offset < partition.end_offset}
        batches = [b for b in partition.read_batches() if b.base_offset in there]
        for batch in batches[-1:]:
            found = self._producer.append_many(
                partition,
                [b"again"] * batch.record_count,
                sequence=known[batch.base_offset],
            )
            span = range(batch.base_offset, batch.next_offset)
            assert found == span, f"appended twice: {found} for {span}"

    def do_produce_again(self) -> None:
        self.do_produce(again=True)

    def do_take_over(self) -> None:
        """Restart the producer."""
        self.began()
        self._producer = self.store.producer(PRODUCER)
        assert self._producer.epoch > self.promises.epoch, "an epoch comes again"
        self.promises.epoch = self._producer.epoch

    def _of(self, topic: str, number: int) -> tuple[Log, Any] | None:
        """A partition with its promise, if it takes appends."""
        for log, partition in self.partitions():
            if (partition.topic, partition.number) == (topic, number):
                return log, partition
        return None

    # ------------------------------------------------------------ a group

    def consumer(self, group: str) -> Any:
        """The consumer of a group, in the process of the owner."""
        if group not in self.consumers:
            self.consumers[group] = consumer_of(self.store, group)
        return self.consumers[group]

    def do_poll(self) -> None:
        """Poll; the next records must come, and nothing else."""
        with small_files():
            one = self.consumer(COMMITS)
            one._core.look_now()
            before = {k: one.position(k) for k in one.assignment()}
            for key, records in one.poll(max_records=3).items():
                first = before.get(key)
                if first is None:
                    first = self.promises.offsets.written[key.partition]
                offsets = [record.offset for record in records]
                wanted = list(range(first, first + len(offsets)))
                assert offsets == wanted, f"{offsets} are delivered, not {wanted}"

    def do_commit(self, durable: bool = False) -> None:
        """Commit the position of the consumer."""
        self.do_poll()
        one = self.consumer(COMMITS)
        offsets = {k.partition: one.position(k) for k in one.assignment()}
        given = {TopicPartition(IN, n): offset for n, offset in offsets.items()}
        self._commit(offsets, lambda: one.commit(given, durable=durable), durable)

    def _commit(
        self, offsets: dict[int, int], call: Callable[[], Any], durable: bool
    ) -> None:
        self.promises.offsets.begin(offsets)
        self.began()
        try:
            with small_files():
                call()
        except LogStoreError as error:
            counts = isinstance(error, SyncFailedError)
            self.promises.offsets.has_failed(offsets, counts=counts)
            raise
        self.promises.offsets.has_returned(offsets, durable=durable)

    def do_commit_durable(self) -> None:
        self.do_commit(durable=True)

    def do_leave(self) -> None:
        """Leave the groups: the next poll joins again."""
        with small_files():
            self.leave_all()

    def do_beside(self) -> None:
        """Join in another process, commit and leave."""
        with small_files():
            self.leave_all()
            disk = self.disk.process()
            with open_quietly(disk, read_only=True) as store:
                with consumer_of(store, COMMITS) as one:
                    one.poll(max_records=2)
                    offsets = {k.partition: one.position(k) for k in one.assignment()}
                    durable = self.rng.random() < 0.5
                    self._commit(offsets, lambda: one.commit(durable=durable), durable)

    def do_reset(self) -> None:
        """Reset to any offset; the group has no member."""
        self.leave_all()
        ends = [partition.end_offset for partition in self.store.topic(IN)]
        # Not beyond the durable offset: a power cut would leave it beyond the end.
        least = min(partition.durable_offset for partition in self.store.topic(IN))
        self._reset(self.disk.process(), self.rng.randint(0, least), ends)

    def reset_alone(self) -> None:
        """Reset in this process, while no process owns the store."""
        ends = [len(log.records) for log in self.promises.topics[IN].logs]
        least = min(log.durable for log in self.promises.topics[IN].logs)
        self._reset(self.disk, self.rng.randint(0, least), ends)

    def _reset(self, disk: Any, to: int, ends: list[int]) -> None:
        opens = functools.partial(open_store, _files=disk)
        offsets = {number: min(to, end) for number, end in enumerate(ends)}
        with mock.patch.object(resets, "open_store", opens):
            self._commit(
                offsets,
                lambda: logstore.reset_offsets(
                    PATH, COMMITS, to=to, topics=[IN], dry_run=False
                ),
                durable=True,
            )

    # ------------------------------------------------------------ reopening

    def reopened(self, store: Store) -> str:
        super().reopened(store)
        self._begin()
        return self.goes_on()

    def goes_on(self) -> str:
        """Check after failed calls that the services of the open store work, and have
        their promised state."""
        for group in list(self.consumers):
            one = self.consumers.pop(group)
            if self.rng.random() < 0.5:
                one._core.abandon()  # as if its process had ended
            else:
                with contextlib.suppress(LogStoreError):
                    one.close()
        try:
            found = committed_in(self.store)
            text = self.promises.offsets.problem(found, is_killed=True)
            if not text:
                for name in ("commit_durable", "produce", "transaction", "submit"):
                    getattr(self, f"do_{name}")()
            self.leave_all()
        except LogStoreError as error:
            return f"a service does not go on: {error!r}"
        return text

    # ------------------------------------------------------------ publications

    def do_transaction(self) -> None:
        """Publish outputs and positions, both or neither."""
        picked = self._of(OUT, 0)
        if picked is None:
            return
        log, partition = picked
        with small_files():
            one = self.consumer(TRANSACTIONS)
            one._core.look_now()
            with one.transaction() as transaction:
                found = one.poll(max_records=4)
                count = sum(map(len, found.values()))
                offsets, _, seed = self._new(partition, count)
                for offset in offsets:
                    transaction.append(
                        OUT, value_of(offset, seed), key=key_of(offset, seed),
                        headers=headers_of(offset, seed), partition=0,
                        timestamp_ms=timestamp_of(offset, seed),
                    )  # fmt: skip
                after = {k.partition: some[-1].offset + 1 for k, some in found.items()}
                first = partition.end_offset
                self.promises.moving = (after, first) if count else None
                self._publish_to_out(
                    log, partition, [record_of(o, 2, seed) for o in offsets],
                    transaction.commit,
                )  # fmt: skip
        if self.promises.moving is not None:
            self.promises.positions |= after
            self.promises.moving = None

    def _publish_to_out(
        self, log: Log, partition: Any, records: list[Any], call: Callable[[], Any]
    ) -> None:
        """Make a call that publishes these records, all or none."""
        log.records += records
        log.coming = len(records)
        first = log.end
        self.promises.publication = ((OUT, 0, first, first + len(records)),)
        self.began()
        try:
            call()
        except LogStoreError as error:
            self._publish_failed([(log, partition)], 0, error)
            if not log.coming and partition.end_offset == first:
                self.promises.moving = self.promises.coming_hand = None
            raise
        log.coming = 0
        if records:  # else nothing was published, and nothing synced
            log.durable = len(log.records)
        self.promises.publication = ()

    def do_submit(self) -> None:
        """Hand in from another process, and publish as the owner."""
        picked = self._of(OUT, 0)
        if picked is None:
            return
        log, partition = picked
        with open_quietly(self.disk.process(), read_only=True) as other:
            staged, records = self._staged(other, partition)
            sequence = self.promises.handed + 1
            content = Submission(staged.logs, HANDS_IN, sequence).packed()
            root = other._context.root
            self._requests += 1
            file = ProcessFile(root, f"{self._requests:032x}", {})
            try:
                assert file.put(content) is not None
                self.promises.coming_hand = sequence, partition.end_offset
                try:
                    self._publish_to_out(log, partition, records, self._serve_one)
                except LogStoreError:
                    other.discard_staged(identity=HANDS_IN, before=sequence + 1)
                    raise
                self.promises.handed, self.promises.coming_hand = sequence, None
                # A repeated request that is served again is not published twice.
                assert file.put(content) is not None
                self._serve()
                assert partition.end_offset == len(log.records), "published twice"
            finally:
                file.free_others(())
                file.close()

    def submit_alone(self) -> None:
        """Hand in while no process owns the store: this process takes the lock."""
        log = self.promises.topics[OUT].logs[0]
        with open_quietly(self.disk, read_only=True) as store:
            partition = store.topic(OUT)[0]
            staged, records = self._staged(store, partition)
            sequence = self.promises.handed + 1
            self.promises.coming_hand = sequence, partition.end_offset
            log.records += records
            log.coming = len(records)
            first = log.end
            self.promises.publication = ((OUT, 0, first, first + len(records)),)
            self.began()
            store.submit([staged], identity=HANDS_IN, sequence=sequence, timeout_ms=0)
            log.coming = 0
            log.durable = len(log.records)
            self.promises.publication = ()
            self.promises.handed, self.promises.coming_hand = sequence, None

    def _serve_one(self) -> None:
        if not self._serve():
            raise logstore.StorageError("the owner did not see the request")

    def _serve(self) -> int:
        """Publish the pending requests as the owner; their number. If all of them
        fail, the first error is raised."""
        outcomes: list[Any] = []
        publisher = self.store._publishing.publisher
        publish_all = publisher.publish_all

        def noted(requests: Any) -> Any:
            found = publish_all(requests)
            outcomes.extend(found)
            return found

        with mock.patch.object(publisher, "publish_all", noted):
            self.store._publishing.hand_in.serve()
        # A request whose answer failed is served again, and is still published.
        failed = [one for one in outcomes if isinstance(one, LogStoreError)]
        if failed and len(failed) == len(outcomes):
            raise failed[0]
        return len(outcomes)

    def _staged(self, store: Store, partition: Any) -> tuple[Any, list[Any]]:
        offsets, _, seed = self._new(partition, self.rng.choice((1, 3)))
        with store.stage(HANDS_IN, self.promises.handed + 1) as stage:
            stage.append_many(partition, *_columns(offsets, seed))
            staged = stage.finish()
        return staged, [record_of(o, 2, seed) for o in offsets]


def _columns(offsets: range, seed: int) -> tuple[list[Any], ...]:
    """Values, keys, times and headers."""
    return (
        [value_of(o, seed) for o in offsets],
        [key_of(o, seed) for o in offsets],
        [timestamp_of(o, seed) for o in offsets],
        [headers_of(o, seed) for o in offsets],
    )
