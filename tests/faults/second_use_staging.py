"""Stages and staged records that are used once more."""

from __future__ import annotations

import pyarrow as pa

from faults.second_use_state import CLOSED, REFUSED, Held, MachineState


class Stages(MachineState):
    """Stages and staged records, after their end and once published."""

    # -- stages

    def use_new_stage(self) -> None:
        identity = self.rng.choice(("", f"me {next(self.serial)}"))
        stage = self.store.stage(identity, 1 if identity else 0)
        is_left = self.rng.random() < 0.2
        if is_left:
            with stage:
                pass
        self.keep(
            "stage",
            Held(stage, self.store, None, identity=identity, rows=[], result=None,
                  gone=False, is_left=is_left, unsure=False),
        )  # fmt: skip

    def use_stage(self) -> None:
        held = self.pick("stage")
        target = self.pick("partition")
        if held is None or target is None or self.errors_of(target):
            return
        if target.store is not held.store:
            return
        more = held.more
        is_over = (
            more["result"] is not None
            or more["gone"]
            or more["unsure"]
            or not self.is_open(held)
        )
        values = [self.new_value() for _ in range(self.rng.choice((1, 3)))]
        if self.rng.random() < 0.5:
            call = lambda: held.thing.append_many(target.thing, values)  # noqa: E731
        else:
            table = pa.table({"value": values})
            call = lambda: held.thing.append_arrow(target.thing, table)  # noqa: E731
        may_refuse = is_over or more["is_left"]
        errors = ("LogStoreError",) if may_refuse else ()
        found = self.ask("stage.append", call, *errors)
        if found is REFUSED:
            return
        self.check(not is_over, "a stage that has ended takes records")
        self.check(found == len(values), f"stage.append gives {found}")
        more["rows"].append((target.log, values))

    def use_finish(self) -> None:
        held = self.pick("stage")
        if held is None:
            return
        more = held.more
        is_over = more["gone"] or more["unsure"] or not self.is_open(held)
        errors = ("LogStoreError",) if is_over else ()
        staged = self.ask("finish", held.thing.finish, *errors)
        if staged is REFUSED:
            return
        if more["result"] is not None:
            self.check(staged == more["result"], f"finish again gives {staged}")
            return
        count = sum(len(values) for _, values in more["rows"])
        if not more["gone"]:
            self.check(
                staged.records == count, f"{staged.records} of {count} are staged"
            )
        more["result"] = staged
        self.keep(
            "staged",
            Held(staged, held.store, None, stage=more, published=False, doubtful=False),
        )

    def use_discard(self) -> None:
        held = self.pick("stage")
        if held is None or self.rng.random() < 0.5:
            return
        errors = () if self.is_open(held) else CLOSED
        self.ask("discard", held.thing.discard, *errors)
        # If its store is closed, it cannot reach the files any more.
        held.more["gone" if self.is_open(held) else "unsure"] = True

    def use_publish(self) -> None:
        held = self.pick("staged")
        if held is None:
            return
        more, store = held.more, self.store
        stage = more["stage"]
        identity = stage["identity"]
        is_double = self.rng.random() < 0.2
        given = [held.thing, held.thing] if is_double else [held.thing]
        rows = stage["rows"]
        known = bool(identity) and more["published"]
        bad = stage["gone"] or not all(log.is_there for log, _ in rows)
        may_fail = (
            bad or stage["unsure"] or more["published"] or more["doubtful"] or is_double
        )
        errors = ("LogStoreError",) if may_fail and rows and not known else ()
        if is_double and more["doubtful"]:
            errors = ("LogStoreError",)
        result = self.ask(
            "publish",
            lambda: store.publish(
                given, identity=identity, sequence=1 if identity else 0
            ),
            *errors,
        )
        if result is REFUSED:
            more["doubtful"] = True
            return
        if known and rows:
            self.check(not result.is_new, f"published twice: {result}")
            return
        count = sum(len(values) for _, values in rows)
        if count:
            self.check(not more["published"], f"published twice: {result}")
            self.check(not bad, f"published, although it was gone: {result}")
        self.check(result.records == count, f"published {result.records} of {count}")
        for log, values in rows:
            log.values += values
        more["published"] = True
