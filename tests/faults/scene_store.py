"""Plans of calls on the store as a whole: publishing, opening it again, maintenance."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import logstore
from faults.scene_log import Log, Plan
from faults.scene_reads import by_record
from faults.scene_state import Given, SceneState, Unavailable
from faults.watched import Broken
from logstore import LogStoreError


class WholeStore(SceneState):
    """Plans of calls on the store as a whole, and of calls from outside of it."""

    # Publishing.

    def _plan_stage(self) -> Plan:
        logs = [log for log in list(self.logs.values()) if self._magic(log)]
        logs = self.rng.sample(logs, min(len(logs), self.rng.randint(1, 3)))
        rows = [(log, self.values(self.rng.randint(1, 4))) for log in logs]
        targets = [self.given.partition(self.partition(log)) for log in logs]
        given = [self.given.many(list(values)) for _, values in rows]
        sequence = next(self._sequence)

        def call() -> Any:
            with self.store.stage("p", sequence) as stage:
                for target, values in zip(targets, given, strict=True):
                    stage.append_many(target, values)
                return stage.finish()

        def told(staged: Any) -> None:
            if staged.records != sum(len(values) for _, values in rows):
                raise Broken(f"{staged.records} records were staged")
            self._staged.append((staged, rows, sequence))

        # A topic may have been configured to a format that cannot be published to.
        expects: tuple[type[BaseException], ...] = (logstore.errors.UnsupportedError,)
        if not self.given.is_plain:
            expects += (TypeError,)
        return Plan("stage", call, told, expects=expects)

    def _magic(self, log: Log) -> bool:
        try:
            return bool(self.partition(log).config.message_format)
        except Unavailable:
            return False

    def _plan_publish(self) -> Plan:
        if not self._staged:
            # Not the examined call: nothing disturbs it.
            given, self.given = self.given, Given()
            plan = self._plan_stage()
            self.given = given
            try:
                plan.told(plan.call())
            except LogStoreError as error:
                raise Unavailable(error) from error
        try:
            staged, rows, sequence = self._staged.pop()
        except IndexError as error:  # another thread has just taken it
            nothing = logstore.TopicNotFoundError("nothing is staged", topic="")
            raise Unavailable(nothing) from error
        many = self.given.many([staged])

        def call() -> Any:
            try:
                return self.store.publish(many, identity="p", sequence=sequence)
            except logstore.TopicNotFoundError as error:
                is_gone = any(
                    log.is_gone or log.topic in self.doubtful for log, _ in rows
                )
                if "is not the one" in str(error) and not is_gone:
                    raise Broken(f"no topic was made anew: {error}") from error
                raise

        def told(publication: Any) -> None:
            for log, values in rows:
                if not values or not publication.is_new:
                    continue
                span = publication.offsets.get((log.topic, log.number), range(0))
                if len(span) != len(values):
                    raise Broken(f"published {len(values)} to {log.name}: {span}")
                self._told(plan, log, span.start, values)

        plan = Plan(
            f"publish to {', '.join(log.name for log, _ in rows)}",
            call,
            told,
            appends=rows,
            # A conflict: an earlier sequence was left out, or a later one was
            # published. Unsupported: the format of the topic was changed.
            expects=(
                logstore.errors.PublicationConflictError,
                logstore.errors.UnsupportedError,
                logstore.TopicNotFoundError,
                logstore.errors.PartitionNotFoundError,
            ),
        )
        return plan

    def _plan_discard_staged(self) -> Plan:
        some = [self._staged.pop()[0]] if self._staged else []
        many = self.given.many(some)
        return Plan("discard_staged", lambda: self.store.discard_staged(many))

    # The store as a whole, and from outside.

    def _plan_open_again(self) -> Plan:
        def call() -> None:
            try:
                logstore.open(self.path).close()
            except logstore.StoreLockedError:
                return
            if not self.has_closed:
                raise Broken("a second writer got in")

        return Plan("a second writer", call)

    def _plan_open_reader(self) -> Plan:
        path = self.given.text(str(self.path))

        def call() -> None:
            with logstore.open(path, read_only=True) as store:
                for name in store.topics():
                    with contextlib.suppress(
                        logstore.TopicNotFoundError,
                        logstore.errors.PartitionNotFoundError,
                        logstore.OffsetOutOfRangeError,
                    ):  # fmt: skip
                        for partition in store.topic(name).partitions:
                            by_record(partition)

        return Plan("a reader of its own", call)

    def _plan_forget(self) -> Plan:
        """Open another store, and forget it without closing it."""
        path = self.path.with_name(f"forgotten-{next(self._serial)}")

        def call() -> None:
            self.forgotten.append(path)
            store = logstore.open(path)
            store.create_topic("t", exist_ok=True)[0].append(b"x")
            cycle = [store]
            cycle.append(cycle)  # type: ignore[arg-type]

        return Plan("a store that is forgotten", call)

    def written_by_another(self) -> None:
        """The next opening finds that another program was the last writer: it may have
        recreated the topics of staged records."""
        self._staged.clear()
        self.is_of_another = True

    def check_forgotten(self) -> None:
        """Check that the garbage collector has closed the forgotten stores."""
        gc.collect()
        for path in self.forgotten:
            self.watch.say("opening a store that was forgotten")
            if not path.exists():
                continue
            try:
                logstore.open(path).close()
            except LogStoreError as error:
                raise Broken(f"a store that was forgotten: {error!r}"[:600]) from error

    def _plan_verify(self) -> Plan:
        return Plan("verify", lambda: logstore.verify(self.path))

    def _plan_doctor(self) -> Plan:
        return Plan("doctor", lambda: logstore.doctor(self.path))

    def _plan_rebuild_index(self) -> Plan:
        log, _ = self.pick()
        path = self.path / log.name
        return Plan(
            "rebuild_index", lambda: logstore.rebuild_index(path),
            expects=(logstore.StoreLockedError, logstore.StoreNotFoundError),
        )  # fmt: skip

    def _plan_repair(self) -> Plan:
        log, _ = self.pick()
        path = self.path / log.name
        return Plan(
            "repair", lambda: logstore.repair(path, mode="cut"),
            expects=(logstore.StoreLockedError, logstore.StoreNotFoundError),
        )  # fmt: skip

    def _plan_close(self) -> Plan:
        self.has_closed = True
        return Plan("close", self.store.close)
