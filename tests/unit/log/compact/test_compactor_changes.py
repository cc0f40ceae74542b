"""Compaction of a log that changes meanwhile: transactions, cuts and other compactions
in each window between its steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    Partition,
    StorageError,
    Store,
    TopicConfig,
    TopicNotFoundError,
)
from logstore.errors import ReentrantCallError, SyncFailedError
from logstore.io.checkpoint.cleaner import CompactedOffsets
from logstore.log.compact import compactor
from logstore.log.compact.passes import BUFFERS_BYTES
from logstore.log.write.replacement import Replacement
from logstore.store.catalog.topic_settings import TopicSettings
from logstore.store.opening import open_store
from support.compacting import ABORT, COMMIT, TIME_MS, Item, batch2, marker
from support.damage import Unsynced
from support.interrupts import InterruptAtCall

CONFIG = TopicConfig(
    cleanup_policy="compact",
    message_format=2,
    file_delete_delay_ms=0,
    delete_retention_ms=1000,
)
# Of the smallest map.
KEYS = 57


def topic(store: Store) -> Partition:
    return store.create_topic("t", config=CONFIG)[0]


def checkpoint(store: Path) -> str:
    return (store / "cleaner-offset-checkpoint").read_text()


def values(partition: Partition, key: bytes) -> list[bytes | None]:
    """Values of a key for a reader of committed records."""
    records = partition.read(isolation="read_committed")
    return [record.value for record in records if record.key == key]


def append_open(partition: Partition, key: bytes, value: bytes | None) -> None:
    """Append a record of a transaction of producer 7."""
    data = batch2(
        [Item(0, key, value, TIME_MS)], producer=(7, 0, 0), attributes=0x10
    ).data
    partition.append_batches(data, transactions=True)


def append_end(partition: Partition, kind: int) -> None:
    """Append the marker of its end."""
    partition.append_batches(marker(0, 7, 0, kind, TIME_MS).data, transactions=True)


def once(at: int, action: Callable[[], Any]) -> Callable[[Any], None]:
    """Callback for `on_progress`: run an action after the step of this number, from
    1."""
    steps = []

    def on_progress(_: Any) -> None:
        steps.append(1)
        if len(steps) == at:
            action()

    return on_progress


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> int:
    """`max_memory` that leaves room for `KEYS` keys."""
    monkeypatch.setattr(compactor, "MEMORY_MIN", BUFFERS_BYTES)
    return BUFFERS_BYTES


def test_dry_run_of_a_log_with_gaps_takes_few_passes(
    tmp_path: Path, small_map: int
) -> None:
    """The number of passes depends on the keys, not on the offsets."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    for base in range(0, 1 << 32, 1 << 27):
        batches = [
            batch2([Item(base + n, b"%d.%d" % (base, n), b"v", TIME_MS)])
            for n in range(0, 1 << 26, 1 << 23)
        ]
        data = b"".join(batch.data for batch in batches)
        (folder / f"{base:020d}.log").write_bytes(data)
    seen: list[Any] = []
    with logstore.open(tmp_path) as store:
        store.topic("t").configure(CONFIG)
        report = store.topic("t")[0].compact(
            force=True, dry_run=True, max_memory=small_map, on_progress=seen.append
        )
    assert report.removed == 0
    # Each of 8 passes reads it twice, and 31 segments one by one.
    assert len(seen) < 31 * 8 * 2 * 2
    assert all(one.bytes_read <= one.bytes_total for one in seen)


def changed_while_counted(
    path: Path, change: Callable[[Store], Any]
) -> tuple[compactor.CompactionReport, compactor.CompactionReport]:
    """Results of a reader's dry run while the log changes, and afterwards."""
    with logstore.open(path) as store, logstore.open(path, read_only=True) as reader:
        partition = topic(store)
        for number in range(40):
            partition.append(b"v" * (1000 + number), b"%d" % (number % 10))
        partition.roll()
        on_progress = once(1, lambda: change(store))
        reading = reader.topic("t")[0]
        dry = reading.compact(force=True, dry_run=True, on_progress=on_progress)
        return dry, reading.compact(force=True, dry_run=True)


def test_dry_run_of_a_log_that_another_process_cuts_looks_again(tmp_path: Path) -> None:
    """Batches of other sizes have replaced the old ones: this is no damage."""

    def change(store: Store) -> None:
        partition = store.topic("t")[0]
        partition.truncate_to(1)
        for number in range(60):
            partition.append(b"w" * (700 - number), b"%d" % (number % 20))
        partition.roll()

    dry, after = changed_while_counted(tmp_path, change)
    assert dry == after
    assert dry.removed > 0


def test_dry_run_believes_damage_that_is_there_again(tmp_path: Path) -> None:
    """Appends to the log in between change nothing."""

    def damage(store: Store) -> None:
        log = min((tmp_path / "t-0").glob("*.log"))
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        store.topic("t")[0].append(b"more", b"key")

    with pytest.raises(logstore.CorruptRecordError):
        changed_while_counted(tmp_path, damage)


def test_dry_run_in_several_passes_counts_everything_once(
    tmp_path: Path, small_map: int
) -> None:
    """Aborted records, tombstones and their batches are counted, too; and markers
    stay."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        for number in range(3 * KEYS):
            partition.append(b"v" * 100, b"u%d" % number)
        aborted = [Item(n, b"a%d" % n, b"aborted", TIME_MS) for n in range(20)]
        data = batch2(aborted, producer=(7, 0, 0), attributes=0x10).data
        partition.append_batches(data, transactions=True)
        append_end(partition, ABORT)
        for number in range(10):
            partition.append(None, b"u%d" % number)
        partition.roll()
        planned = partition.compact(force=True, dry_run=True, max_memory=small_map)
        report = partition.compact(force=True, max_memory=small_map)
        size = sum(segment.size_bytes for segment in partition.segments)
        assert planned.removed == report.removed == 20 + 10
        assert report.after == size
        assert abs(planned.after - size) <= 10 * 61


def test_transaction_that_arrives_between_two_passes_is_seen(
    tmp_path: Path, small_map: int
) -> None:
    """The first pass has found no producer. Later an aborted record of a key does not
    supersede the earlier one."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"kept", b"k")
        for number in range(2 * KEYS):
            partition.append(b"v", b"u%d" % number)
        partition.roll()

        def abort_one() -> None:
            append_open(partition, b"k", b"aborted")
            append_end(partition, ABORT)
            partition.roll()

        partition.compact(
            force=True, max_memory=small_map, on_progress=once(1, abort_one)
        )
        assert values(partition, b"k") == [b"kept"]
        end = partition.end_offset
        assert checkpoint(tmp_path) == f"0\n1\nt 0 {end}\n"


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("is_cut", [False, True])
def test_marker_behind_the_extent_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, is_cut: bool
) -> None:
    """The transaction ends after the compaction has seen the bounds of the log, or
    (with `is_cut`: the log was cut and written again in between) after it has asked for
    the last stable offset. It does not count as committed: the record before it stays,
    and the next compaction decides."""
    begin = Replacement.begin
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"before", b"k")
        partition.roll()
        append_open(partition, b"k", b"after")
        partition.append(b"o", b"other")
        partition.roll()
        if is_cut:
            append_end(partition, kind)
        partition.append(b"o", b"other2")
        done: list[int] = []

        def interrupted(replacement: Replacement) -> Any:
            if done:
                return begin(replacement)
            done.append(1)
            if is_cut:
                partition.truncate_to(3)
                partition.append(b"o", b"other2")
                return begin(replacement)
            found = begin(replacement)
            thread = threading.Thread(target=append_end, args=(partition, kind))
            thread.start()
            thread.join()
            return found

        monkeypatch.setattr(Replacement, "begin", interrupted)
        partition.compact(force=True)
        assert done
        assert [r.value for r in partition.read() if r.key == b"k"] == [
            b"before",
            b"after",
        ]
        if is_cut:
            append_end(partition, kind)
        wanted = b"before" if kind == ABORT else b"after"
        assert values(partition, b"k")[-1] == wanted
        partition.compact(force=True)
        assert values(partition, b"k") == [wanted]


def test_cut_that_removes_a_marker_begins_the_compaction_anew(tmp_path: Path) -> None:
    """A transaction that was aborted when the log was surveyed, and is committed after
    the cut, keeps its record."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"before", b"k")
        append_open(partition, b"k", b"after")
        partition.roll()
        partition.append(b"o", b"other")
        end = partition.end_offset
        append_end(partition, ABORT)

        def commit_instead() -> None:
            partition.truncate_to(end)
            append_end(partition, COMMIT)

        # Steps: two segments are surveyed, one is mapped, then written.
        partition.compact(force=True, on_progress=once(3, commit_instead))
        assert values(partition, b"k") == [b"after"]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_cut_in_what_is_being_read_is_no_damage(
    tmp_path: Path, step: int, rolls: bool, dry_run: bool
) -> None:
    """A compaction that reaches the end of a segment which was cut restarts; it raises
    no error, and it ends."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        for number in range(30):
            # A step reads 1 MiB.
            partition.append(bytes(100_000), key=b"%d" % (number % 7))
        partition.roll()
        partition.append(b"end", key=b"end")

        def cut() -> None:
            partition.truncate_to(12)
            if rolls:
                partition.roll()

        options: Any = {"force": True, "dry_run": dry_run}
        partition.compact(on_progress=once(step, cut), **options)
        partition.roll()
        partition.compact(force=True)
        left = [record.offset for record in partition.read()]
        assert left == list(range(5, 12))


def test_cut_at_the_end_of_a_full_map_begins_the_compaction_anew(
    tmp_path: Path, small_map: int
) -> None:
    """The map has keys of records after its end; the cut removes these."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"kept", b"k")
        for number in range(KEYS - 3):
            partition.append(b"v", b"u%d" % number)
        partition.roll()
        cut = partition.end_offset
        keys = [b"k", *(b"z%d" % number for number in range(10))]
        partition.append_many([b"newer"] + [b"x"] * 10, keys)
        partition.roll()
        done: list[int] = []

        def cut_there(_: Any) -> None:
            # The first pass writes; nothing is replaced yet.
            if not done and any((tmp_path / "t-0").glob("*.cleaned")):
                done.append(partition.truncate_to(cut))

        partition.compact(force=True, max_memory=small_map, on_progress=cut_there)
        assert done == [cut]
        assert values(partition, b"k") == [b"kept"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_cut_stays_in_the_checkpoint(tmp_path: Path, step: int) -> None:
    """The cut counts even if no group has changed: later appends are dirty, and a
    tombstone among them goes only after the records it deletes."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        for number in range(10):
            partition.append(b"v", b"u%d" % number)
        partition.roll()

        def cut() -> None:
            partition.truncate_to(2)
            partition.append(b"old", b"k")
            partition.append(None, b"k")
            for number in range(6):
                partition.append(b"w", b"n%d" % number)
            partition.roll()

        now = TIME_MS + 10**9
        partition.compact(force=True, now_ms=now, on_progress=once(step, cut))
        assert values(partition, b"k") == [None]
        partition.append(b"x", b"z")
        partition.roll()
        partition.compact(force=True, now_ms=now + 1000)
        assert values(partition, b"k") == []


def test_second_compaction_reads_the_checkpoint_when_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut and appends come while it waits: all of them are dirty."""
    enter = compactor._Compactor._enter
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        for number in range(20):
            partition.append(b"v", b"u%d" % number)
        partition.roll()
        partition.compact(force=True)
        partition.append(b"q", b"q")
        partition.roll()

        def slow(self: Any, mine: Any) -> None:
            monkeypatch.setattr(compactor._Compactor, "_enter", enter)
            partition.truncate_to(5)
            partition.append(b"old", b"k")
            partition.append(None, b"k")
            for number in range(20):
                partition.append(b"w", b"n%d" % number)
            partition.roll()
            enter(self, mine)

        monkeypatch.setattr(compactor._Compactor, "_enter", slow)
        report = partition.compact(force=True)
        assert report.removed == 1
        assert values(partition, b"k") == [None]


def test_deletion_of_the_topic_ends_the_compaction_before_it_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of the compaction could begin right after that; it would leave its
    checkpoint to the next topic of the name. No segment has to be replaced."""
    forget = CompactedOffsets.forget
    waits, goes = threading.Event(), threading.Event()
    raised: list[Exception] = []
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"1", b"a")
        partition.append(b"2", b"b")
        partition.roll()

        def wait() -> None:
            waits.set()
            goes.wait(60)

        def run() -> None:
            try:
                partition.compact(force=True, on_progress=once(3, wait))
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=run)

        def forget_slowly(self: Any, keys: Any) -> None:
            forget(self, keys)
            goes.set()
            thread.join()

        monkeypatch.setattr(CompactedOffsets, "forget", forget_slowly)
        thread.start()
        assert waits.wait(60)
        store.delete_topic("t")
        assert [type(error) for error in raised] == [TopicNotFoundError]
        path = tmp_path / "cleaner-offset-checkpoint"
        assert not path.exists() or "t 0" not in path.read_text()


def test_topic_that_could_not_be_deleted_is_compacted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction whose steps are all before or after the attempt continues, too."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"1", b"a")
        partition.append(b"2", b"a")
        partition.roll()

        def fail(*_: Any, **named: Any) -> None:
            raise StorageError("no", path="topics", action="write")

        def delete() -> None:
            with monkeypatch.context() as patch, pytest.raises(StorageError):
                patch.setattr(TopicSettings, "write_if_room", fail)
                store.delete_topic("t")

        partition.compact(force=True, on_progress=once(1, delete))
        assert values(partition, b"a") == [b"2"]
        assert len(list(partition.read())) == 1


def test_compaction_from_inside_itself_is_refused(tmp_path: Path) -> None:
    """The inner one would wait for itself; the outer one continues. A compaction of
    another partition is allowed."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        other = store.create_topic("other", config=CONFIG)[0]
        for one in (partition, other):
            one.append(b"1", b"a")
            one.append(b"2", b"a")
            one.roll()

        def again() -> None:
            with pytest.raises(ReentrantCallError, match="t-0 is being compacted"):
                partition.compact(force=True)
            assert other.compact(force=True).removed == 1

        assert partition.compact(force=True, on_progress=once(1, again)).removed == 1
        assert partition.compact(force=True).removed == 0


@pytest.mark.parametrize("now_ms", [-1, 1 << 63, 1 << 70, -(1 << 70)])
def test_time_outside_of_64_bits_is_refused(tmp_path: Path, now_ms: int) -> None:
    """A time before 1970 is refused, too: a batch cannot have it."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(None, b"a")
        partition.roll()
        with pytest.raises(ConfigError, match="now_ms"):
            partition.compact(force=True, now_ms=now_ms)
        with pytest.raises(ConfigError, match="now_ms"):
            partition.apply_retention(now_ms=now_ms)
        partition.compact(force=True, now_ms=(1 << 63) - 1)
        assert values(partition, b"a") == [None]


@pytest.mark.parametrize("dry_run", [False, True])
def test_interrupt_of_a_compaction_leaves_none_under_way(
    tmp_path: Path, dry_run: bool
) -> None:
    """At any call: the next compaction begins without a wait for the interrupted one.
    If the log has ended, it raises an error."""
    place, has_raised = 1, True
    while has_raised:
        with open_store(tmp_path, _files=Unsynced()) as store:
            partition = store["t"][0] if "t" in store else topic(store)
            for value in (b"1", b"2"):
                partition.append(value, b"k")
                partition.roll()
            interrupt = InterruptAtCall(place)
            with contextlib.suppress(InterruptAtCall.Interrupt), interrupt:
                partition.compact(force=True, dry_run=dry_run)
            has_raised = interrupt.has_raised
            place += 1 if place < 12 else 61
            with contextlib.suppress(SyncFailedError):
                partition.compact(force=True)
            with ThreadPoolExecutor(1) as other, contextlib.suppress(SyncFailedError):
                other.submit(partition.compact, force=True).result(60)
            values = [record.value for record in partition.read()]
            assert set(values) <= {b"1", b"2"}
            assert values[-1] == b"2"
    assert place > 200
