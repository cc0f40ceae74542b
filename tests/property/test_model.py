"""Random operations against a plain list, for every magic and codec.

The model is the list of records with a start offset; after each step, and after each
reopening or kill, the partition equals the model.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import logstore
from logstore import Record, TimestampType
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.store.opening import open_store
from support.damage import Unsynced, crash
from support.values import FORMATS, config_of

payloads = st.one_of(st.none(), st.binary(max_size=60), st.just(bytes(300)))
stamps = st.integers(0, 5000)
names = st.text(max_size=5)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=3)
rows = st.tuples(payloads, payloads, stamps, headers)

operations = st.one_of(
    st.tuples(st.just("append"), rows),
    st.tuples(st.just("append_many"), st.lists(rows, max_size=12)),
    st.tuples(st.just("append_batches"), st.lists(rows, min_size=1, max_size=5)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("delete_before"), st.floats(0, 1)),
    st.tuples(st.just("truncate_to"), st.floats(0, 1)),
    st.tuples(st.just("retention"), st.integers(0, 6000)),
    st.tuples(st.just("read"), st.tuples(st.floats(0, 1), st.floats(0, 1))),
    st.tuples(st.just("time"), stamps),
)


class Model:
    """A partition and the list that it has to equal."""

    def __init__(self, directory: Path, magic: int, codec: str) -> None:
        self.directory = directory
        self.magic = magic
        self.path = directory / "store0"
        self.kills = 0
        self.records: list[Record] = []
        self.start = self.end = 0
        self.config = config_of(
            magic, codec, segment_bytes=700, index_interval_bytes=100,
            file_delete_delay_ms=0, retention_ms=1000,
        )  # fmt: skip
        self.store = open_store(self.path, _files=Unsynced())
        self.partition = self.store.create_topic("orders", config=self.config)[0]

    def record(self, row: tuple, offset: int) -> Record:
        value, key, stamp, pairs = row
        return Record(
            offset,
            -1 if self.magic == 0 else stamp,
            key,
            value,
            tuple(pairs) if self.magic == 2 else (),
            TimestampType.NO_TIMESTAMP
            if self.magic == 0
            else TimestampType.CREATE_TIME,
        )

    def add(self, added: list[tuple], span: range) -> None:
        assert span == range(self.end, self.end + len(added))
        self.records += [
            self.record(row, o) for row, o in zip(added, span, strict=True)
        ]
        self.end += len(added)

    def columns(self, added: list[tuple]) -> tuple:
        values, keys, times, pairs = (
            list(column) for column in zip(*added, strict=True)
        )
        return values, keys, times, pairs if self.magic == 2 else None

    # -- operations

    def append(self, row: tuple) -> None:
        value, key, stamp, pairs = row
        options = {"headers": pairs} if self.magic == 2 else {}
        offset = self.partition.append(value, key, timestamp_ms=stamp, **options)
        self.add([row], range(offset, offset + 1))

    def append_many(self, added: list[tuple]) -> None:
        if added:
            self.add(added, self.partition.append_many(*self.columns(added)))
        else:
            self.add([], self.partition.append_many([]))

    def append_batches(self, added: list[tuple]) -> None:
        path = self.directory / "from"
        with open_store(path, _files=Unsynced()) as store:
            source = store.create_topic("orders", config=self.config)[0]
            source.append_many(*self.columns(added))
            data = b"".join(bytes(b.buffer) for b in source.read_batches())
        shutil.rmtree(path)
        self.add(added, self.partition.append_batches(data))

    def roll(self, _: None) -> None:
        self.partition.roll()

    def flush(self, _: None) -> None:
        self.partition.flush()
        assert self.partition.durable_offset == self.end

    def reopen(self, _: None) -> None:
        self.store.close()
        self.store = open_store(self.path, _files=Unsynced())
        assert not self.store.recovery_report
        self.partition = self.store.topic("orders")[0]

    def kill(self, _: None) -> None:
        self.kills += 1
        copy = crash(self.path, self.directory / f"store{self.kills}")
        self.store.close()
        shutil.rmtree(self.path)
        self.path = copy
        self.store = open_store(self.path, _files=Unsynced())
        self.partition = self.store.topic("orders")[0]
        assert self.partition.durable_offset == self.end

    def delete_before(self, share: float) -> None:
        start = self.start + round(share * (self.end - self.start))
        assert self.partition.delete_before(start) == start
        self.drop_below(start)

    def drop_below(self, start: int) -> None:
        self.start = start
        self.records = [r for r in self.records if r.offset >= start]

    def truncate_to(self, share: float) -> None:
        target = self.start + round(share * (self.end - self.start))
        try:
            assert self.partition.truncate_to(target) == target
        except logstore.errors.UnsupportedError:
            bases = {b.base_offset for b in self.partition.read_batches()}
            assert target not in bases
            return
        self.end = target
        self.records = [r for r in self.records if r.offset < target]

    def retention(self, now: int) -> None:
        if self.magic == 0:
            return  # uses the files' times
        before = self.partition.segments
        told = self.partition.apply_retention(now, dry_run=True)
        done = self.partition.apply_retention(now)
        assert [d.segment.base_offset for d in done] == [
            d.segment.base_offset for d in told
        ]
        if done:
            assert [d.segment for d in done] == list(before[: len(done)])
            self.drop_below(max(done[-1].segment.next_offset, self.start))

    def read(self, shares: tuple[float, float]) -> None:
        low, high = sorted(
            self.start + round(s * (self.end - self.start)) for s in shares
        )
        want = [r for r in self.records if low <= r.offset < high]
        assert list(self.partition.read(low, high)) == want
        batches = [r for b in self.partition.read_batches(low, high) for r in b]
        assert [r for r in batches if low <= r.offset < high] == want
        rest = [r for r in self.records if r.offset >= low]
        found: list[Record] = []
        offset = low
        while offset < self.end:
            chunk = self.partition.fetch(offset, 1 + high)
            found += chunk
            assert chunk.next_offset > offset
            offset = chunk.next_offset
        assert found == rest
        assert list(self.partition.follow(low, timeout=0)) == rest

    def time(self, stamp: int) -> None:
        want = next((r.offset for r in self.records if r.timestamp_ms >= stamp), None)
        assert self.partition.offset_for_time(stamp) == want

    # -- invariants

    def check(self) -> None:
        partition = self.partition
        assert (partition.start_offset, partition.end_offset) == (self.start, self.end)
        assert self.start <= partition.durable_offset <= self.end
        assert list(partition.read()) == self.records
        segments = partition.segments
        for one, two in itertools.pairwise(segments):
            assert one.next_offset == two.base_offset
        assert not segments or segments[-1].next_offset == self.end
        self.check_state(segments)

    def check_state(self, segments: Sequence[logstore.types.SegmentInfo]) -> None:
        """Entries of the state file about sealed segments are right: the next opening
        trusts them, or takes the difference for damage."""
        state = PartitionState.read(self.partition._log.directory)
        known = {one.base_offset: (one.size_bytes, one.next_offset) for one in segments}
        for base, size, next_offset, *_ in state.sealed if state is not None else ():
            assert known[base] == (size, next_offset)

    def finish(self) -> None:
        with logstore.open(self.path, read_only=True) as store:
            assert list(store.topic("orders")[0].read()) == self.records
        self.reopen(None)
        self.check()
        self.store.close()


@pytest.mark.parametrize(
    ("magic", "codec"), FORMATS, ids=[f"magic{m}-{c}" for m, c in FORMATS]
)
@settings(
    max_examples=max(6, settings.default.max_examples // 12),
    suppress_health_check=list(HealthCheck),
)
@given(steps=st.lists(operations, min_size=3, max_size=12))
def test_random_operations_agree_with_a_list(
    magic: int, codec: str, steps: list[tuple]
) -> None:
    """After any operations, the partition holds the records of the list."""
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory), magic, codec)
        try:
            for name, argument in steps:
                getattr(model, name)(argument)
                model.check()
            model.finish()
        finally:
            model.store.close()


@pytest.mark.parametrize("seed", range(6))
def test_long_random_run_agrees_with_a_list(tmp_path: Path, seed: int) -> None:
    """A longer run with a seed, so that segments and indexes come into play."""
    rng = random.Random(seed)
    magic, codec = FORMATS[seed * 5 % len(FORMATS)]
    model = Model(tmp_path, magic, codec)

    def row() -> tuple:
        return rng.randbytes(rng.randrange(50)), None, rng.randrange(5000), []

    for _ in range(60):
        step = rng.randrange(12)
        if step < 4:
            model.append_many([row() for _ in range(rng.randrange(1, 20))])
        elif step < 6:
            model.append(row())
        elif step < 7:
            model.append_batches([row() for _ in range(rng.randrange(1, 9))])
        else:
            choice = rng.choice(
                ["roll", "flush", "reopen", "kill", "delete_before", "truncate_to"]
            )
            share = rng.random() * (0.3 if choice == "delete_before" else 1)
            share = share / 2 + 0.5 if choice == "truncate_to" else share
            is_share = choice in ("delete_before", "truncate_to")
            getattr(model, choice)(share if is_share else None)
        model.read((rng.random(), rng.random()))
        model.time(rng.randrange(5000))
        model.check()
    model.finish()


@pytest.mark.parametrize("seed", range(4))
def test_log_that_is_sealed_and_cut_again_and_again_agrees_with_a_list(
    tmp_path: Path, seed: int
) -> None:
    """Within one opening, the segments that the writer remembers stay up to date."""
    rng = random.Random(f"cuts {seed}")
    model = Model(tmp_path, *FORMATS[seed * 3 % len(FORMATS)])
    for number in range(80):
        choice = rng.choice(["append_many", "roll", "delete_before", "truncate_to"])
        if choice == "append_many":
            values = [b"%d" % number] * rng.randrange(1, 4)
            model.append_many([(value, None, number, []) for value in values])
        elif choice == "roll":
            model.roll(None)
        else:
            share = rng.random() / 4
            getattr(model, choice)(share if choice == "delete_before" else 1 - share)
        model.check()
    model.finish()
