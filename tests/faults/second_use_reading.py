"""Chunks, batches, iterators and Arrow readers that are used once more."""

from __future__ import annotations

import itertools

import logstore
from faults.second_use_state import CLOSED, GONE, REFUSED, Held, MachineState, Wrong


class Readings(MachineState):
    """Uses results of reads a second and a third time."""

    # -- what reading gives

    def use_new_reading(self) -> None:
        """Keep a chunk, a batch, an iterator, a reader."""
        held = self.pick("partition")
        if held is None or self.errors_of(held):
            return
        partition, log, rng = held.thing, held.log, self.rng
        first = rng.randint(log.start, len(log.values))
        options = {"isolation": rng.choice(("read_committed", "read_uncommitted"))}
        right = list(enumerate(log.values))[first:]
        more = {"right": right, "at": 0, "ended": False, "least": len(right)}
        kind = rng.choice(("chunk", "batch", "iterator", "arrow"))
        if kind == "chunk":
            thing = partition.fetch(first, rng.choice((1, 300, 1 << 20)), **options)
            more["right"] = list(enumerate(log.values))[first : thing.next_offset]
        elif kind == "batch":
            thing = next(iter(partition.read_batches(first, **options)), None)
            if thing is None:
                return
            more["right"] = list(enumerate(log.values))[
                thing.base_offset : thing.next_offset
            ]
        elif kind == "iterator":
            how = rng.choice((partition.read, partition.read, partition.follow))
            if how == partition.follow:
                options["timeout"] = 0
                more["right"] = None
            thing = how(first, **options)
            more["first"] = first
        else:
            size = rng.choice((1, 7, 100))
            thing = partition.read_arrow(first, batch_records=size, **options)
        self.keep(kind, Held(thing, held.store, log, **more))

    def use_chunk(self) -> None:
        """Check that each pass over a chunk or batch gives the same records, whatever
        happened to its log."""
        held = self.pick(self.rng.choice(("chunk", "batch")))
        if held is None:
            return
        thing, right = held.thing, held.more["right"]
        begun = iter(thing)
        some = [
            (r.offset, r.value) for r in itertools.islice(begun, self.rng.randrange(3))
        ]
        whole = [(r.offset, r.value) for r in thing]
        some += [(r.offset, r.value) for r in begun]
        self.again += 2
        self.check(whole == right, f"{thing!r} gives {whole}, not {right}")
        self.check(
            some == right, f"{thing!r}, a pass beside another: {some}, not {right}"
        )
        bytes(thing.buffer)
        len(thing)
        if isinstance(thing, logstore.RecordBatch):
            self.check(thing.control_record() is None, "a control record")

    def use_iterator(self) -> None:
        held = self.pick("iterator")
        if held is None:
            return
        more = held.more
        right = more["right"]
        if right is None:
            right = list(enumerate(held.log.values))[more["first"] :]
        errors = CLOSED if not self.is_open(held) else ()
        if more["right"] is None and not held.log.is_there:
            errors = (*errors, *GONE)
        if more["right"] is None and held.log.start > more["first"] + more["at"]:
            errors = (*errors, "OffsetOutOfRangeError")
        if self.rng.random() < 0.1:
            held.thing.close()
            more["ended"] = True
        for _ in range(self.rng.randrange(1, 8)):
            try:
                record = self.ask("next", lambda: next(held.thing, None), *errors)
            except Wrong:
                more["ended"] = True
                raise
            if record is REFUSED:
                more["ended"] = True
            elif record is None:
                # A follower may have looked before the last record was appended.
                complete = more["at"] >= more["least"] or more["ended"]
                self.check(complete, f"ends after {more['at']} of {len(right)} records")
                more["ended"] = True
            else:
                found = record.offset, record.value
                self.check(not more["ended"], f"ended, and then gives {found}")
                self.check(more["at"] < len(right), f"{found} is too much")
                self.check(
                    found == right[more["at"]], f"{found}, not {right[more['at']]}"
                )
                more["at"] += 1

    def use_arrow(self) -> None:
        """Read from a RecordBatchReader, also after its end."""
        held = self.pick("arrow")
        if held is None:
            return
        more = held.more
        for _ in range(self.rng.randrange(1, 4)):
            try:
                batch = held.thing.read_next_batch()
            except StopIteration:
                complete = more["at"] == len(more["right"]) or more["ended"]
                self.check(complete, f"ends after {more['at']} of {len(more['right'])}")
                more["ended"] = True
                continue
            except Exception as error:
                # pyarrow replaces an error that is raised in a stream by its own.
                is_named = "closed" in str(error) and not self.is_open(held)
                self.check(is_named, f"read_arrow raises {type(error)}: {error}")
                more["ended"] = True
                continue
            self.check(not more["ended"], "a reader that has ended goes on")
            columns = (
                batch.column("offset").to_pylist(),
                batch.column("value").to_pylist(),
            )
            found = list(zip(*columns, strict=True))
            right = more["right"][more["at"] :][: len(found)]
            self.check(found == right, f"{found}, not {right}")
            more["at"] += len(found)
