"""Plans of calls of consumers and producers, and their promises.

Two groups read a topic that a named producer fills: one commits offsets, the other
publishes output records in transactions. No other calls touch these topics. The rules,
for every record and whatever else happens around a call:

- a consumer delivers the records of a partition one after the other, none twice and
  none left out, from the committed offset of its group;
- a poll that raises has delivered nothing;
- a commit that has returned counts, one that has raised without a name may; nothing
  else is committed, and no committed offset goes back;
- the output of the transactions is there for each record below the committed offsets,
  once, and for no other;
- the records of the producer are there once, in the order of its sequences.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import logstore
from faults.scene_log import Plan
from faults.scene_state import SceneState, Unavailable
from faults.watched import Broken
from logstore import LogStoreError, TopicConfig, TopicPartition

__all__ = ["GROUP_CALLS", "GROUP_TOPICS", "Groups"]

# Loaded now: a signal handler cannot use a module that it has found half loaded.
_Consumer = logstore.Consumer

_IN, _OUT = "in", "out"
GROUP_TOPICS = frozenset({_IN, _OUT})
_PARTITIONS = 2
_ROWS_MAX = 6
_PRODUCER = "feeder"

GROUP_CALLS = (
    "produce", "produce_again", "take_over", "poll", "commit", "transaction",
    "committed", "seek", "end_consumer",
)  # fmt: skip


class _Group:
    """A group, its consumer, and its progress.

    Attributes:
        consumer: None: no consumer now.
        next: by partition, the offsets that the next record may have; none: the
            committed offset of the group.
        committed: by partition, the offsets that may be committed.
        delivered: by partition, the end of the delivered records.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumer: Any = None
        self.next: dict[int, set[int]] = {}
        self.committed: dict[int, set[int]] = {p: {0} for p in range(_PARTITIONS)}
        self.delivered = [0] * _PARTITIONS

    def starts(self, partition: int) -> set[int]:
        """Possible offsets of the next record of a partition."""
        return self.next.get(partition) or set(self.committed[partition])

    def take(self, found: dict[Any, list[Any]]) -> list[tuple[int, int]]:
        """Note delivered records; (partition, offset) of each."""
        taken = []
        for key, records in found.items():
            for record in records:
                if record.offset not in self.starts(key.partition):
                    raise Broken(
                        f"group {self.name} got {record.offset} of {key}, not "
                        f"{self.starts(key.partition)}"
                    )
                end = record.offset + 1
                self.next[key.partition] = {end}
                before = self.delivered[key.partition]
                self.delivered[key.partition] = max(end, before)
                taken.append((key.partition, record.offset))
        return taken

    def is_committed(self, positions: dict[int, set[int]], *, is_sure: bool) -> None:
        """Note positions that are committed, or may be."""
        for partition, offsets in positions.items():
            if is_sure:
                self.committed[partition] = set(offsets)
            else:
                self.committed[partition] |= offsets

    def forget(self) -> None:
        """Note that the next consumer begins at the committed offsets."""
        self.next.clear()


class Groups(SceneState):
    """Plans of calls of consumers and producers."""

    groups: dict[str, _Group] = {}

    def begin_apart(self) -> None:
        """Make the topics."""
        super().begin_apart()
        config = TopicConfig(message_format=2, segment_bytes=2_000, flush_ms=4)
        self.store.create_topic(_IN, _PARTITIONS, config)
        self.store.create_topic(_OUT, config=config)
        self.groups = {name: _Group(name) for name in ("g", "x")}
        self._producer: Any = None
        # By partition: number of acknowledged rows, and of rows that may be there.
        self._rows: list[int] = [0] * _PARTITIONS
        self._rows_max: list[int] = [0] * _PARTITIONS

    # ------------------------------------------------------------ producers

    def _own_producer(self) -> Any:
        if self._producer is None or self._producer[0] is not self.store:
            try:
                self._producer = self.store, self.store.producer(_PRODUCER)
            except LogStoreError as error:
                raise Unavailable(error) from error
        return self._producer[1]

    def _plan_produce(self, again: int = 0) -> Plan:
        """Send the next records of a producer; or some that may be there, and more."""
        producer = self._own_producer()
        number = self.rng.randrange(_PARTITIONS)
        first = max(self._rows[number] - again, 0)
        # Records that may be there are sent again unchanged.
        count = max(self.rng.randint(1, _ROWS_MAX), self._rows_max[number] - first)
        if first < self._rows[number]:
            count = min(self._rows[number] - first, _ROWS_MAX)
        values = [b"%d:%d" % (number, row) for row in range(first, first + count)]
        end = first + count

        def call() -> Any:
            self._rows_max[number] = max(self._rows_max[number], end)
            return producer.append_many((_IN, number), values, sequence=first)

        def told(span: Any) -> None:
            if span != range(first, end):
                raise Broken(f"rows {first} to {end} of {number} are at {span}")
            self._rows[number] = max(self._rows[number], end)

        return Plan(
            f"{count} rows of a producer from {first} on to {number}", call, told,
            # An earlier call was interrupted after its records were appended, or
            # another has come first; its last batches may not be remembered any more.
            expects=(
                logstore.errors.OutOfOrderSequenceError,
                logstore.errors.DuplicateSequenceError,
                logstore.errors.ProducerFencedError,
            ),
        )  # fmt: skip

    def _plan_produce_again(self) -> Plan:
        return self._plan_produce(again=self.rng.randint(1, _ROWS_MAX))

    def _plan_take_over(self) -> Plan:
        store = self.store

        def told(producer: Any) -> None:
            self._producer = store, producer

        return Plan("a producer is taken over", lambda: store.producer(_PRODUCER), told)

    # ------------------------------------------------------------ consumers

    def _is_in_call(self, group: _Group) -> bool:
        return any(plan.group == group.name for plan in list(self.flying))

    def _plan_for(self, group: _Group, plan: Plan) -> Plan:
        """The plan; from inside of a call on the same consumer, another one that looks
        at it: an unknown half of that call is done then."""
        if not self._is_in_call(group):
            plan.group = group.name
            # A call inside of the making of this plan may have closed its consumer.
            plan.expects += (logstore.errors.StoreClosedError,)
            return plan
        consumer = group.consumer
        return Plan(
            f"a look at {group.name}", lambda: consumer.subscription(),
            expects=(logstore.errors.StoreClosedError,),
        )  # fmt: skip

    def _consumer(self, group: _Group) -> Any:
        if self.is_of_another:
            raise Unavailable(logstore.TopicNotFoundError(_IN, topic=_IN))
        if group.consumer is None or group.consumer._entry.is_closed:
            group.forget()
            try:
                group.consumer = self._new_consumer(group)
            except LogStoreError as error:
                raise Unavailable(error) from error
        return group.consumer

    def _new_consumer(self, group: _Group) -> Any:
        return _Consumer(
            self.store, group=group.name, topics=[_IN], reset="earliest",
            durable_only=self.rng.random() < 0.5, max_poll_records=7,
            on_assign=lambda keys: [group.next.pop(k.partition, 0) for k in keys],
        )  # fmt: skip

    def _plan_poll(self) -> Plan:
        group = self.groups["g"]
        consumer = self._consumer(group)
        is_looked = self.rng.random() < 0.5
        wait_ms = self.rng.choice((0, 0, 3))

        def call() -> Any:
            if is_looked:
                consumer._core.look_now()
            return consumer.poll(wait_ms)

        return self._plan_for(group, Plan("poll", call, group.take))

    def _plan_commit(self) -> Plan:
        group = self.groups["g"]
        consumer = self._consumer(group)
        durable = self.rng.random() < 0.3
        positions: dict[int, set[int]] = {}

        def call() -> None:
            keys = consumer.assignment()
            # Before its first read: its possible start offsets.
            positions.update({k.partition: group.starts(k.partition) for k in keys})
            consumer.commit(durable=durable)

        plan = Plan(f"commit{', durable' * durable}", call)

        def told(_: object) -> None:
            for partition, offsets in positions.items():
                # If the position was not known, one of these offsets was committed.
                is_sure = len(offsets) == 1
                group.is_committed({partition: offsets}, is_sure=is_sure)

        plan.told = told
        plan.failed = lambda is_done: group.is_committed(
            positions if is_done else {}, is_sure=False
        )
        return self._plan_for(group, plan)

    def _plan_transaction(self) -> Plan:
        group = self.groups["x"]
        consumer = self._consumer(group)
        ends: dict[int, set[int]] = {}

        def call() -> None:
            with consumer.transaction(timeout_ms=5_000) as transaction:
                for key, records in consumer.poll().items():
                    for record in records:
                        transaction.append(_OUT, record.value)
                    ends[key.partition] = {records[-1].offset + 1}
                    self._check_begin(group, key, records)

        plan = Plan("transaction", call)

        def told(_: object) -> None:
            group.is_committed(ends, is_sure=True)
            group.forget()

        def failed(_: bool) -> None:
            group.is_committed(ends, is_sure=False)
            group.forget()

        plan.told, plan.failed = told, failed
        # Only the next transaction finds out whether an earlier one was published, or
        # was left unfinished.
        plan.expects = (
            logstore.errors.FencedError, logstore.PublicationTimeoutError,
            logstore.errors.CommitFailedError,
        )  # fmt: skip
        return self._plan_for(group, plan)

    def _check_begin(self, group: _Group, key: Any, records: list[Any]) -> None:
        offsets = [record.offset for record in records]
        first = offsets[0]
        if first not in group.starts(key.partition) or offsets != list(
            range(first, first + len(offsets))
        ):
            raise Broken(
                f"a transaction got {offsets} of {key}, not from "
                f"{group.starts(key.partition)} on"
            )

    def _plan_committed(self) -> Plan:
        group = self.groups[self.rng.choice(("g", "x"))]
        consumer = self._consumer(group)
        number = self.rng.randrange(_PARTITIONS)
        maybe = set(group.committed[number])

        def told(found: Any) -> None:
            self._check_committed(group, number, found, maybe, "a look")

        plan = Plan(
            f"committed({number})", lambda: consumer.committed((_IN, number)), told
        )
        return self._plan_for(group, plan)

    def _check_committed(
        self, group: _Group, number: int, found: Any, maybe: set[int], where: str
    ) -> None:
        offset = 0 if found is None else found.offset
        allowed = maybe | group.committed[number]
        if offset not in allowed:
            raise Broken(
                f"group {group.name} has committed {offset} of {number} in {where}, "
                f"not {allowed}"
            )
        if offset > group.delivered[number] and group.name == "g":
            raise Broken(
                f"group {group.name} has committed {offset} of {number} in {where}, "
                f"and was delivered {group.delivered[number]}"
            )

    def _plan_seek(self) -> Plan:
        """Seek to the committed position, or back."""
        group = self.groups["g"]
        consumer = self._consumer(group)
        is_back = self.rng.random() < 0.3

        def call() -> None:
            if is_back:
                # Not below the committed offset, which must not go back.
                for key in consumer.assignment():
                    low = max(group.committed[key.partition])
                    group.next.setdefault(key.partition, set()).add(low)
                    consumer.seek(key, low)
            else:
                for key in consumer.assignment():
                    number = key.partition
                    at = group.next.get(number, set()) | group.committed[number]
                    group.next[number] = at
                consumer.seek_to_committed()

        return self._plan_for(group, Plan("seek", call))

    def _plan_end_consumer(self) -> Plan:
        group = self.groups[self.rng.choice(("g", "x"))]
        consumer = self._consumer(group)
        plan = Plan(f"the consumer of {group.name} is closed", consumer.close)
        return self._plan_for(group, plan)

    # ------------------------------------------------------------ looking

    def end_consumers(self) -> None:
        """Close the consumers of a closed store, before it is opened again."""
        for group in self.groups.values():
            consumer, group.consumer = group.consumer, None
            if consumer is not None:
                try:
                    consumer.close()
                except LogStoreError as error:
                    raise Broken(f"a consumer does not close: {error!r}") from error
            group.forget()

    def settle_groups(self, where: str) -> None:
        """Check the committed offsets and outputs of the groups, and continue from
        them."""
        self._settle_rows(where)
        if self.is_of_another:
            return
        for group in self.groups.values():
            if group.consumer is not None and group.consumer._entry.is_closed:
                group.consumer = None
                group.forget()
            with _Consumer(self.store, group=group.name) as looker:
                for number in range(_PARTITIONS):
                    key = TopicPartition(_IN, number)
                    found = looker.committed(key)
                    self._check_committed(group, number, found, set(), where)
                    group.committed[number] = {0 if found is None else found.offset}
        made = Counter(r.value for r in self.store.topic(_OUT).read())
        want = Counter(
            b"%d:%d" % (number, row)
            for number, (end,) in self.groups["x"].committed.items()
            for row in range(end)
        )
        if made != want:
            raise Broken(
                f"transactions have made {made - want} too much, and {want - made} "
                f"is missing, in {where}"
            )

    def _settle_rows(self, where: str) -> None:
        for number, partition in enumerate(self.store.topic(_IN)):
            found = [record.value for record in partition.read()]
            want = [b"%d:%d" % (number, row) for row in range(len(found))]
            least, most = self._rows[number], self._rows_max[number]
            if found != want or not least <= len(found) <= most:
                raise Broken(
                    f"{found} of a producer are in {number} in {where}, of {least} to "
                    f"{most}"
                )
            self._rows[number] = len(found)
