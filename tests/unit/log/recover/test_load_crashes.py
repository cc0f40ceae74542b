"""Crashes and failing calls that once lost or hid something, one by one.

`tests/faults` found them; here each is a short story on a disk in memory.
"""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import Partition, Store, StoreConfig
from logstore.io.layout import PARTITION_STATE
from support.damage import fixed_crc
from support.disk import MemoryDisk, Nodes, Write, apply, tree
from support.power_cut import cuts
from support.values import append_one, expected, fill, new_partition

LOG_0 = "store/orders-0/00000000000000000000.log"


def opened(disk: MemoryDisk, **options: object) -> Store:
    """The store, without a thread."""
    return open_quietly(disk, **options)


def orders(store: Store) -> Partition:
    return store.topic("orders")[0]


def at_work(count: int = 12, magic: int = 1, codec: str = "none", **settings: int):
    """A disk, with a store on it that has some segments."""
    disk = MemoryDisk()
    settings = {"segment_bytes": 300, "file_delete_delay_ms": 0, **settings}
    store = opened(disk)
    partition = new_partition(store, magic, codec, **settings)
    fill(partition, count, call=2)
    partition.flush()
    return disk, partition


def after_cut(disk: MemoryDisk, nodes: Nodes | None = None) -> MemoryDisk:
    """The disk after a power cut that removed as much as it could (or with `nodes`)."""
    return MemoryDisk(disk.medium.base if nodes is None else nodes)


def labels(store: Store) -> list[str]:
    return [action.label for action in store.recovery_report.actions]


def test_topic_that_recovery_completes_has_its_directories_first() -> None:
    """A power cut in that recovery loses no partition, whatever it leaves."""
    disk = MemoryDisk()
    moments = disk.record()
    opened(disk).create_topic("orders", 3)
    begun = next(m for m in moments if m.what == "mkdir orders-0")
    again = after_cut(disk, begun.base)
    moments = again.record()
    opened(again)
    rng = random.Random(1)
    for moment in moments:
        for words, nodes in cuts(moment, rng, 40):
            assert labels(opened(after_cut(disk, nodes))) == [], (moment.what, words)


def test_deletion_whose_renames_were_lost_in_part_is_finished() -> None:
    """The segments below the first one that the state knows are gone."""
    disk, partition = at_work(20)
    bases = [segment.base_offset for segment in partition.segments]
    assert len(bases) > 3
    partition.delete_before(bases[3])
    left = dict(disk.medium.base)
    for change in disk.medium.pending:
        if f"{bases[1]:020d}.log" in str(change):
            apply(left, change)
    assert LOG_0 in tree(left)
    again = after_cut(disk, left)
    with opened(again) as store:
        assert labels(store) == []
        assert [s.base_offset for s in orders(store).segments] == bases[3:]
    assert LOG_0 not in again.tree()
    assert logstore.verify(PATH, _files=again).ok


def cut_short(disk: MemoryDisk, partition: Partition) -> MemoryDisk:
    """Kill a truncation to 3 after its commit."""
    disk.fail("truncate", errno.EIO, name=".log")
    with pytest.raises(logstore.errors.SyncFailedError):
        partition.truncate_to(3)
    return disk.kill()


def test_reader_sees_an_interrupted_truncation_as_recovery_will() -> None:
    """After the commit the records are gone for each later opening."""
    disk, partition = at_work(6, segment_bytes=5000)
    disk = cut_short(disk, partition)
    with opened(disk, read_only=True) as store:
        assert list(orders(store).read()) == expected(1, 0, 3)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("act", ["truncate", "delete", "delete inside"])
def test_recovery_makes_a_state_durable_before_it_finishes_what_that_says(
    act: str, full: bool
) -> None:
    """A writer on a full disk changes the state file in place, and the sync of that
    fails: then its pages count as written, and are not on the disk."""
    disk, partition = at_work(20)
    start = partition.segments[2].base_offset
    for name in (PARTITION_STATE, PARTITION_STATE + ".tmp"):
        disk.fail("sync", errno.EDQUOT, name=name)
    with contextlib.suppress(logstore.StorageError):
        if act == "truncate":
            partition.truncate_to(3)
        else:
            partition.delete_before(start + 1 if act == "delete" else 1)
    disk = disk.kill()
    if full:
        disk.fail("sync", errno.ENOSPC, name=PARTITION_STATE + ".tmp")
    store = opened(disk)
    store.recover()
    begin, end = orders(store).start_offset, orders(store).end_offset
    disk.heal()
    with opened(after_cut(disk)) as again:
        assert not {"lost-end", "lost-segment", "corrupt"} & {*labels(again)}
        assert orders(again).start_offset == begin
        read = [record.offset for record in orders(again).read()]
        assert read == list(range(begin, end))
        append_one(orders(again))


def test_records_after_a_finished_truncation_stay() -> None:
    """The next opening does not finish it once more, which would remove them."""
    disk, partition = at_work(6, segment_bytes=5000)
    disk = cut_short(disk, partition)
    partition = orders(opened(disk, config=StoreConfig()))  # writes no state at a sync
    assert append_one(partition, durable=True) == 3
    with opened(after_cut(disk)) as store:
        assert labels(store) == []
        assert list(orders(store).read()) == expected(1, 0, 4)


def test_truncation_ends_the_writer_where_its_last_step_fails() -> None:
    """Otherwise the state would still contain a truncation under way."""
    disk, partition = at_work(6, segment_bytes=5000)
    disk.fail("rename", errno.EIO, nth=2, name="-state.tmp", times=1)
    with pytest.raises(logstore.errors.SyncFailedError):
        partition.truncate_to(3)
    with pytest.raises(logstore.errors.SyncFailedError):
        append_one(partition)
    with opened(disk.kill()) as store:
        assert list(orders(store).read()) == expected(1, 0, 3)


def test_recovery_acts_on_no_state_that_may_be_taken_back() -> None:
    """A commit whose directory sync failed is made durable before it is acted on."""
    disk, partition = at_work(6, segment_bytes=5000)
    disk.fail("sync_directory", errno.EIO, times=1)
    with pytest.raises(logstore.errors.SyncFailedError):
        partition.truncate_to(3)
    disk = disk.kill()
    opened(disk).recover()
    with opened(after_cut(disk)) as store:
        assert labels(store) == []
        assert list(orders(store).read()) == expected(1, 0, 3)


def test_index_entries_that_a_state_counts_are_durable() -> None:
    """The state was written by a flush, or by a flush after a close."""
    disk, _ = at_work(6, segment_bytes=5000, index_interval_bytes=60)
    for _ in range(2):
        index = LOG_0.replace(".log", ".index")
        assert len(disk.tree()[index]) >= 16
        assert tree(disk.medium.base)[index] == disk.tree()[index]
        opened_again = orders(opened(disk := disk.kill()))
        fill(opened_again, 4, call=2)
        opened_again.flush()


def test_settings_are_taken_over_though_an_index_cannot_be_written() -> None:
    disk, _ = at_work(6, segment_bytes=5000, index_interval_bytes=60)
    store = opened(disk := disk.kill())
    fill(orders(store), 4, call=2)
    disk.fail("open", errno.EMFILE, name=".index")
    store.topic("orders").configure(orders(store).config)
    disk.heal()
    with opened(after_cut(disk)) as store:
        assert list(orders(store).read()) == expected(1, 0, 10)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_index_whose_sync_failed_is_written_again(
    suffix: str, is_reopened: bool
) -> None:
    """The same process or the next one writes it: pages that count as clean are on no
    disk."""
    disk, _ = at_work(6, segment_bytes=5000, index_interval_bytes=60)
    store = opened(disk := disk.kill())
    fill(orders(store), 4, call=2)
    disk.fail("sync", errno.EIO, name=suffix, times=1)
    if is_reopened:
        with pytest.raises(logstore.StorageError):
            store.close()
        store = opened(disk := disk.kill())
        fill(orders(store), 1)
    else:
        orders(store).flush()
    orders(store).flush()
    store.close()
    name = LOG_0.replace(".log", suffix)
    assert tree(disk.medium.base)[name] == disk.tree()[name]
    with opened(after_cut(disk)) as store:
        assert labels(store) == []
    assert not logstore.verify(PATH, _files=after_cut(disk)).problems


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_with_a_lost_offset_is_a_torn_tail(magic: int) -> None:
    """Its offset is under no checksum; the messages inside show the correct one."""
    disk, partition = at_work(0, magic, "gzip")
    fill(partition, 4, call=4)
    write = disk.medium.pending[-1]
    assert isinstance(write, Write)
    nodes = dict(disk.medium.nodes)
    lost = bytes(8) + write.data[8:]
    assert fixed_crc(lost) == lost
    apply(nodes, write._replace(data=lost))
    with opened(after_cut(disk, nodes)) as store:
        assert labels(store) == ["torn-tail"]
        assert list(orders(store).read()) == []
        assert append_one(orders(store)) == 0


@pytest.mark.parametrize("nth", range(1, 12))
def test_append_that_fails_behind_a_roll_leaves_no_trace_after_a_kill(nth: int) -> None:
    """The state file has no trace either, nor does a log to which nothing can be
    written any more."""
    disk, partition = at_work(3)
    disk.fail("write", errno.ENOSPC, nth=nth)
    with pytest.raises(logstore.StorageError):
        partition.append_many([b"x" * 100] * 9)
    disk = disk.kill()
    with opened(disk) as store:
        assert set(labels(store)) <= {"torn-tail"}
        assert list(orders(store).read()) == expected(1, 0, 3)
        assert append_one(orders(store)) == 3


@pytest.mark.parametrize("name", [".log", ".index", "state.tmp"])
@pytest.mark.parametrize("method", ["open", "create", "write", "sync"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_append_that_fails_behind_a_roll_leaves_no_trace_after_a_power_cut(
    method: str, name: str, nth: int
) -> None:
    """A roll syncs the first part of it: that part must not be all that stays."""
    disk, partition = at_work(3)
    disk.fail(method, errno.ENOSPC, nth=nth, name=name, times=1)
    try:
        partition.append_many([b"x" * 100] * 9)
    except logstore.StorageError:
        disk.heal()
        moment = disk.moment()
        states = [moment.base, moment.nodes]
        states += [nodes for _, nodes in cuts(moment, random.Random(nth), 3)]
        for nodes in states:
            with opened(after_cut(disk, nodes)) as store:
                assert list(orders(store).read()) == expected(1, 0, 3)


def test_record_whose_write_failed_at_its_end_does_not_come_back() -> None:
    """It was cut off again; the power fails before that is on the disk."""
    disk, partition = at_work(3, segment_bytes=5000)
    disk.fail("write", errno.EIO, name=".log", short=1000, times=1)
    with pytest.raises(logstore.StorageError):
        append_one(partition)
    for _, nodes in cuts(disk.moment(), random.Random(1), 20):
        with opened(after_cut(disk, nodes)) as store:
            assert list(orders(store).read()) == expected(1, 0, 3)


def test_cut_whose_sync_failed_is_made_durable_by_the_next_opening() -> None:
    disk, partition = at_work(3, segment_bytes=5000)
    disk.fail("write", errno.EIO, name=".log", short=1000, times=1)
    disk.fail("sync", errno.EIO)
    with pytest.raises(logstore.errors.SyncFailedError):
        append_one(partition)
    store = opened(disk := disk.kill())
    assert list(orders(store).read()) == expected(1, 0, 3)
    for _, nodes in cuts(disk.moment(), random.Random(1), 20):
        with opened(after_cut(disk, nodes)) as store:
            assert list(orders(store).read()) == expected(1, 0, 3)


def test_segment_that_a_truncation_cannot_rename_ends_the_writer() -> None:
    """Otherwise the log would grow into its offsets, and a torn tail look like
    damage."""
    disk, partition = at_work(12)
    assert len(partition.segments) > 2
    disk.fail("rename", errno.EIO, name=".log", times=1)
    with pytest.raises(logstore.errors.SyncFailedError):
        partition.truncate_to(2)
    with pytest.raises(logstore.errors.SyncFailedError):
        append_one(partition)
    with opened(disk.kill()) as store:
        assert list(orders(store).read()) == expected(1, 0, 2)


def test_half_made_segment_blocks_appends_until_it_is_gone() -> None:
    """An empty file after the active segment would hide later records."""
    disk, partition = at_work(3, segment_bytes=5000)
    disk.fail("unlink", errno.EACCES)
    with pytest.raises(logstore.StorageError):
        partition.roll()
    with pytest.raises(logstore.StorageError):
        append_one(partition)
    disk.heal()
    assert append_one(partition, durable=True) == 3
    with opened(after_cut(disk)) as store:
        assert list(orders(store).read()) == expected(1, 0, 4)


def test_marks_that_cannot_be_read_are_not_taken_for_missing() -> None:
    """The first append fails, and the store is still logstore's own."""
    disk, partition = at_work(3)
    fill(partition, 1)
    disk = disk.kill()
    opened(disk).close()
    partition = orders(opened(disk))
    disk.fail("open", errno.EMFILE, name=".kafka_cleanshutdown")
    with pytest.raises(logstore.StorageError):
        append_one(partition)
    disk.heal()
    with opened(disk.kill()) as store:
        assert labels(store) == []


def test_deletion_on_a_full_disk_is_durable() -> None:
    """Its new names are synced, since no state file records the deletion."""
    disk, partition = at_work()
    base = partition.segments[2].base_offset
    disk.fill(0)
    assert partition.delete_before(base) == base
    with opened(after_cut(disk)) as store:
        assert orders(store).start_offset == base


@pytest.mark.parametrize("fault", ["full", "quota", "quota at the sync"])
def test_topic_is_never_half_deleted_on_a_full_disk(fault: str) -> None:
    """The settings cannot record the deletion; the new names do."""
    disk = MemoryDisk()
    store = opened(disk)
    store.create_topic("orders", 3)[1].append(b"v", durable=True)
    store.create_topic("other")
    moments = disk.record()
    if fault == "full":
        disk.fill(0)
        store.delete_topic("orders")
    else:
        call = "sync_directory" if "sync" in fault else "write"
        disk.fail(call, errno.EDQUOT, name="" if "sync" in fault else ".tmp")
        with contextlib.suppress(logstore.DiskFullError):
            store.delete_topic("orders")
    counts = set()
    rng = random.Random(1)
    for moment in [*moments, disk.moment("the end")]:
        for words, nodes in cuts(moment, rng, 30):
            where = (moment.what, words)
            assert logstore.verify(PATH, _files=after_cut(disk, nodes)).ok, where
            for left, read_only in ((1 << 20, True), (1 << 20, False), (0, False)):
                again = after_cut(disk, nodes)
                again.fill(left)
                with opened(again, read_only=read_only) as found:
                    assert labels(found) == [], where
                    assert set(found.topics()) - {"orders"} == {"other"}
                    if "orders" in found:
                        topic = found.topic("orders")
                        counts.add(len(topic))
                        assert [r.value for r in topic[1].read()] == [b"v"], where
                    else:
                        counts.add(0)
    assert counts == {0, 3}


def test_full_disk_keeps_a_topic_without_an_id_whole() -> None:
    """A broker created it: the names could not record its deletion."""
    disk = MemoryDisk()
    with opened(disk) as store:
        store.create_topic("one")
        store.create_topic("two", 2).append(b"v", partition=1)
    nodes = dict(disk.medium.nodes)
    for number, node in nodes.items():
        if isinstance(node, dict):
            nodes[number] = {n: i for n, i in node.items() if ".logstore-" not in n}
    disk = after_cut(disk, nodes)
    with opened(disk) as store:
        disk.fill(0)
        with pytest.raises(logstore.DiskFullError):
            store.delete_topic("two")
        assert [r.value for r in store.topic("two")[1].read()] == [b"v"]
        store.delete_topic("one")  # it has only one directory
        disk.medium.budget = None
        assert store.topics() == ["two"]
        store.delete_topic("two")
        assert store.topics() == []


def test_directory_is_lost_though_an_earlier_topic_was_deleted() -> None:
    """Only names with its own id say that a topic is being deleted."""
    disk = MemoryDisk()
    with opened(disk) as store:
        store.create_topic("orders", 2)
        store.delete_topic("orders")
        store.create_topic("orders", 2).append(b"v", partition=1)
    nodes = dict(disk.medium.nodes)
    for number, node in nodes.items():
        if isinstance(node, dict):
            nodes[number] = {n: i for n, i in node.items() if n != "orders-0"}
    disk = after_cut(disk, nodes)
    assert not logstore.verify(PATH, _files=disk.process()).ok
    with opened(disk) as store:
        assert labels(store) == ["lost-segment"]
        assert [r.value for r in store.topic("orders")[1].read()] == [b"v"]


def test_segment_of_unknown_size_that_cannot_be_opened_is_no_gap() -> None:
    """Such a store of Kafka's raises an error, and a read does not continue after
    it."""
    disk, partition = at_work()
    base = partition.segments[1].base_offset
    partition._writer.context.services.store.close()  # type: ignore[union-attr]
    nodes = dict(disk.medium.nodes)
    for number, node in nodes.items():
        if isinstance(node, dict):
            nodes[number] = {n: i for n, i in node.items() if ".logstore-" not in n}
    disk = after_cut(disk, nodes)
    # The error comes from recovery, and from later use, which tries again.
    disk.fail("open", errno.EMFILE, name=f"{base:020d}.log", times=2)
    with opened(disk) as store:
        assert labels(store) == ["unreadable"]
        with pytest.raises(logstore.StorageError):
            orders(store)
        assert list(orders(store).read()) == expected(1, 0, 12)
        assert labels(store) == []
    with opened(disk) as store:
        assert list(orders(store).read()) == expected(1, 0, 12)


def test_leader_epochs_that_cannot_be_written_have_a_name() -> None:
    """The append fails as any other does, and is tried again."""
    disk, partition = at_work(0, 2)
    disk.fail("create", errno.EROFS, name="leader-epoch-checkpoint.tmp", times=1)
    with pytest.raises(logstore.StorageError, match="leader-epoch-checkpoint"):
        append_one(partition)
    assert append_one(partition) == 0


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "read-only"])
@pytest.mark.parametrize("method", ["open", "read"])
def test_log_whose_end_cannot_be_read_is_not_taken_for_shorter(
    method: str, read_only: bool
) -> None:
    """After a crash only the log itself shows its end: if it cannot be read, the
    partition is an error, and not as long as its durable point."""
    disk, partition = at_work(6, segment_bytes=5000)
    partition.flush()
    disk = disk.kill()
    disk.fail(method, errno.EIO, name=".log")
    with opened(disk, read_only=read_only) as store:
        with pytest.raises(logstore.StorageError):
            list(orders(store).read())
    disk.heal()
    with opened(disk.kill()) as store:
        assert list(orders(store).read()) == expected(1, 0, 6)


def test_closing_behind_a_change_of_settings_notes_where_the_log_ends() -> None:
    """All records may have been durable before: the state file was not written
    since."""
    disk = MemoryDisk()
    with opened(disk) as store:
        new_partition(store, 1)
    store = logstore.store.opening.open_store(PATH, _files=disk)
    fill(orders(store), 3)
    orders(store).flush()
    store.topic("orders").configure(store.topic("orders").config)
    store.close()
    with opened(disk) as again:
        assert not again.recovery_report
        assert list(orders(again).read()) == expected(1, 0, 3)
        assert orders(again).append(b"x") == 3


def test_recovery_point_of_before_a_truncation_is_no_loss() -> None:
    """Kafka's checkpoint has the end of the last clean stop; then the log was cut, and
    the machine stopped twice while it rolled."""
    disk, partition = at_work(20)
    partition._log.context.services.store.close()
    store = opened(disk)
    partition = orders(store)
    partition.truncate_to(11)
    moments = disk.record()
    partition.roll()
    fill(partition, 12, call=1)
    checked = 0
    for moment in list(moments):
        first = MemoryDisk(moment.nodes)
        with opened(first) as once:
            end = orders(once).end_offset
            append_one(orders(once))
            again = opened(MemoryDisk(first.medium.nodes))
            assert "lost-end" not in labels(again), moment.what
            assert list(orders(again).read()) == expected(1, 0, end + 1)
            checked += 1
    assert checked > 10
