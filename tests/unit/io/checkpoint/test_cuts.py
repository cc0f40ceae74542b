"""The lowest cut of a log since a given look: never less than is true."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import NO_CUT, ROWS_MAX, Cuts
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.values import config_of


def state_of(path: Path) -> PartitionState:

    root = Directory.open_root(Files(), str(path))
    try:
        state = PartitionState.read(root.child("orders-0"))
    finally:
        root.close()
    assert state is not None
    return state


def append(partition: logstore.Partition, value: bytes) -> None:
    """Ten batches."""
    for _ in range(10):
        partition.append(value)


def test_lowest_cut_from_a_time_counts_cuts_at_that_time() -> None:
    """A commit and a cut may have the same millisecond: which came first is unknown."""
    cuts = Cuts().after(30, 1000).after(50, 2000)
    assert [cuts.lowest_from(ms) for ms in (0, 1000, 1001, 2000)] == [30, 30, 50, 50]
    assert cuts.lowest_from(2001) == NO_CUT
    assert Cuts().lowest_from(0) == NO_CUT


def test_return_of_the_log_is_a_cut_that_removes_nothing() -> None:
    """It limits the offsets that a reader may trust, and is no removal; one that goes
    as low takes its place, and so does a merge."""
    cuts = Cuts().after(30, 1000).after(40, 2000, is_return=True).after(50, 3000)
    assert cuts.returns == (2000,)
    assert [cuts.lowest_since(at) for at in (0, 1000, 2000)] == [30, 40, 50]
    assert [cuts.lowest_removal_since(at) for at in (0, 1000, 2000)] == [30, 50, 50]
    assert cuts.lowest_removal_since(3000) == NO_CUT
    assert [cuts.has_return_since(at) for at in (0, 1999, 2000)] == [True, True, False]
    assert Cuts.from_rows(cuts.serial, cuts.rows, cuts.returns) == cuts
    lower = cuts.after(40, 4000)
    assert (lower.returns, lower.lowest_removal_since(1000)) == ((), 40)
    many = Cuts().after(1, 10).after(2, 20, is_return=True)
    for step in range(ROWS_MAX - 1):
        assert many.returns == (20,)
        many = many.after(3 + step, 30 + step)
    assert (many.returns, many.rows[0]) == ((), (20, 1))


def test_merged_row_stays_a_bound_when_a_later_cut_leaves_few_rows() -> None:
    """The cuts that it stands for are not distinguished by the number of rows."""
    cuts = Cuts()
    for step in range(ROWS_MAX + 1):
        cuts = cuts.after(100 * (step + 1))
    cuts = cuts.after(150)
    assert (len(cuts.rows), cuts.lowest_since(1)) == (2, 100)
    assert [cuts.is_known_since(at) for at in (1, 2, ROWS_MAX)] == [False, True, True]
    again = Cuts.from_rows(cuts.serial, cuts.rows, is_merged=True)
    assert again == cuts
    lower = cuts.after(100)
    assert (lower.is_merged, lower.is_known_since(1)) == (False, True)


def test_state_file_says_that_a_row_is_merged(tmp_path: Path) -> None:
    """A later process then does not take the bound for exact."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        append(partition, b"a")
        partition.truncate_to(1)
        mark = partition.mark()
        assert mark is not None
        partition.append(b"b")
        partition.append(b"c")
        partition.truncate_to(2)
        for _ in range(ROWS_MAX):
            partition.append(b"d")
            partition.truncate_to(partition.append(b"e"))
        partition.truncate_to(4)
        assert partition.unchanged_below(mark) is None
    assert state_of(path).cuts.is_merged
    with logstore.open(path, read_only=True) as store:
        assert store.topic("orders")[0].unchanged_below(mark) is None


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(20))
def test_lowest_cut_since_a_serial_is_that_of_the_list_of_all_cuts(seed: int) -> None:
    """The result is exact as long as the rows are few, and never too high. Low cuts
    keep the rows few; without any, the oldest ones are merged."""
    random_ = random.Random(seed)
    share_low = (0.5, 0.05, 0.005, 0.0)[seed % 4]
    cuts, history = Cuts(), [(0, NO_CUT)]
    for _ in range(300):
        is_low = random_.random() < share_low
        offset = random_.randrange(1000) if is_low else 1000 + len(history)
        cuts = cuts.after(offset, random_.choice([0, cuts.serial + 7, 5]))
        history.append((cuts.serial, offset))
        assert len(cuts.rows) <= ROWS_MAX
        again = Cuts.from_rows(cuts.serial, cuts.rows, is_merged=cuts.is_merged)
        assert again == cuts
        is_exact = len(cuts.rows) < ROWS_MAX and len(history) < ROWS_MAX
        for at, (serial, _) in enumerate(history):
            lowest = min((o for _, o in history[at + 1 :]), default=NO_CUT)
            found = cuts.lowest_since(serial)
            is_known = is_exact or cuts.is_known_since(serial)
            assert found == lowest if is_known else found <= lowest


def test_serial_of_the_future_is_of_another_log() -> None:
    """No offset that was read under it counts."""
    assert Cuts().after(5, 100).lowest_since(101) == 0


def test_cuts_of_a_version_that_noted_how_often_may_have_taken_all() -> None:
    cuts = Cuts.from_rows(3, [])
    assert [cuts.lowest_since(serial) for serial in (0, 2, 3)] == [0, 0, NO_CUT]
    assert cuts.after(50).lowest_since(3) == 50
    assert cuts.after(50).lowest_since(2) == 0


@pytest.mark.parametrize(
    ("serial", "rows"),
    [
        (1, [(2, 5)]),
        (9, [(2, 5), (2, 6)]),
        (9, [(2, 5), (9, 5)]),
        (9, [(3, 5), (2, 6)]),
    ],
)
def test_cuts_that_do_not_rise_are_refused(
    serial: int, rows: list[tuple[int, int]]
) -> None:
    with pytest.raises(ValueError, match=r"cut|rise"):
        Cuts.from_rows(serial, rows)


@pytest.mark.parametrize("magic", [1, 2])
def test_truncation_notes_how_low_it_cut_and_the_log_keeps_its_id(
    tmp_path: Path, magic: int
) -> None:
    with logstore.open(tmp_path) as store:
        orders = store.create_topic("orders", config=config_of(magic))[0]
        append(orders, b"a")
    first = state_of(tmp_path)
    assert len(first.log_id) == 32
    assert first.cuts == Cuts()
    with logstore.open(tmp_path) as store:
        orders = store.topic("orders")[0]
        orders.truncate_to(4)
        append(orders, b"b")
        orders.truncate_to(9)
        append(orders, b"c")
    second = state_of(tmp_path)
    assert second.log_id == first.log_id
    assert [offset for _, offset in second.cuts.rows] == [4, 9]
    assert second.cuts.lowest_since(first.cuts.serial) == 4


def test_log_that_was_made_anew_has_another_id(tmp_path: Path) -> None:
    ids = set()
    for _ in range(3):
        with logstore.open(tmp_path) as store:
            orders = store.create_topic("orders")[0]
            orders.append(b"a", durable=True)
        ids.add(state_of(tmp_path).log_id)
        with logstore.open(tmp_path) as store:
            store.delete_topic("orders")
    assert len(ids) == 3


def test_opening_for_writing_is_no_cut(tmp_path: Path) -> None:
    """A reader that continued before the state was written again has read nothing
    wrong."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append_many([b"a"] * 100)
    with logstore.open(tmp_path, read_only=True) as reading:
        follower = reading.topic("orders")[0].follow(timeout=5)
        assert [next(follower).offset for _ in range(100)] == list(range(100))
        with logstore.open(tmp_path) as store:
            orders = store.topic("orders")[0]
            orders.append_many([b"b"] * 50)
            assert [next(follower).offset for _ in range(50)][-1] == 149
        with logstore.open(tmp_path) as store:
            store.topic("orders")[0].append_many([b"c"] * 5)
            assert [next(follower).offset for _ in range(5)][-1] == 154


def test_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has neither id nor cuts; both are there once it is written again."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append_many([b"a"] * 10)

    root = Directory.open_root(Files(), str(tmp_path))
    directory = root.child("orders-0")
    value = checkpoints.read_state(directory, ".logstore-state")
    assert value is not None
    del value["version"], value["log_id"], value["cuts"]
    checkpoints.write_state(directory, ".logstore-state", {**value, "truncations": 7})
    root.close()
    assert state_of(tmp_path).log_id == ""
    assert state_of(tmp_path).cuts.rows == ((7, 0),)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        store.topic("orders")[0].append(b"b", durable=True)
    assert len(state_of(tmp_path).log_id) == 32


# ------------------------------------------------------------------ marks


def test_many_cuts_are_not_known_one_by_one() -> None:
    """Beyond `ROWS_MAX` cuts, the lowest cut since a serial is only a bound."""
    cuts = Cuts()
    for number in range(ROWS_MAX - 1):
        cuts = cuts.after(number * 10)
    assert cuts.is_known_since(0)
    early, late = cuts.serial, cuts.after(9990).serial
    for number in range(2 * ROWS_MAX):
        cuts = cuts.after(10_000 + number * 10)
    assert not cuts.is_known_since(early)
    assert not cuts.is_known_since(late)
    assert cuts.is_known_since(cuts.serial)
    assert cuts.is_known_since(cuts.rows[0][0])


@pytest.mark.parametrize("is_reader", [False, True], ids=["writer", "reader"])
def test_mark_tells_how_much_of_a_log_is_what_it_was(
    is_reader: bool, tmp_path: Path
) -> None:
    """Truncation with regrowth, deletion with re-creation, and a writer that comes and
    goes: seen by any process with the old mark."""
    path = tmp_path / "data"
    store = logstore.open(path)
    reader = logstore.open(path, read_only=True)
    partition = store.create_topic("orders", config=config_of(2))[0]
    append(partition, b"a")
    append(partition, b"b")
    partition.flush()
    eyes = (reader if is_reader else store).topic("orders")[0]
    mark = eyes.mark()
    assert mark is not None
    assert eyes.unchanged_below(mark) == NO_CUT
    append(partition, b"c")
    partition.flush()
    assert eyes.mark() == mark
    partition.truncate_to(13)
    append(partition, b"d")
    append(partition, b"e")
    assert eyes.unchanged_below(mark) == 13
    later = eyes.mark()
    assert later is not None
    assert later.log_id == mark.log_id
    assert eyes.unchanged_below(later) == NO_CUT
    store.close()
    with logstore.open(path) as again:
        eyes = (reader if is_reader else again).topic("orders")[0]
        append(again.topic("orders")[0], b"f")
        again.topic("orders")[0].flush()
        assert eyes.unchanged_below(mark) == 13
        assert eyes.unchanged_below(later) == NO_CUT
        again.delete_topic("orders")
        append(again.create_topic("orders", config=config_of(2))[0], b"g")
        again.topic("orders")[0].flush()
        reader.close()
        reader = logstore.open(path, read_only=True)
        eyes = (reader if is_reader else again).topic("orders")[0]
        assert eyes.unchanged_below(mark) == eyes.unchanged_below(later) == 0
    reader.close()


def test_log_of_a_broker_has_no_mark(tmp_path: Path) -> None:
    """No process records its cuts: neither 0 nor all is known to be unchanged."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        append(store.create_topic("orders", config=config_of(2))[0], b"a")
        mark = store.topic("orders")[0].mark()
    assert mark is not None
    for file in [*path.glob(".logstore*"), *path.glob("*/.logstore*")]:
        file.unlink()
    with logstore.open(path, read_only=True) as store:
        assert store.topic("orders")[0].mark() is None
        assert store.topic("orders")[0].unchanged_below(mark) is None


def test_mark_of_a_partition_that_is_gone_is_a_named_error(tmp_path: Path) -> None:
    """Its offsets raise the same error."""
    path = tmp_path / "data"
    with logstore.open(path) as store, logstore.open(path, read_only=True) as reader:
        store.create_topic("orders")
        partition = reader.topic("orders")[0]
        store.delete_topic("orders")
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            partition.mark()


def test_writer_that_comes_and_goes_is_no_cut_for_who_reads_beside_it(
    tmp_path: Path,
) -> None:
    """Appends are seen with the serial of that writer from the first byte on: none is
    taken for cut off when the writer closes, or another one opens."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        append(store.create_topic("orders", config=config_of(2))[0], b"a")
    with logstore.open(path, read_only=True) as reader:
        seen = reader.topic("orders")[0]
        for number in range(3):
            with logstore.open(path) as store:
                append(store.topic("orders")[0], b"b")
                mark, end = seen.mark(), seen.end_offset
                assert end == 20 + 10 * number
                assert mark is not None
            below = seen.unchanged_below(mark)
            assert below is not None
            assert below >= end
            with logstore.open(path) as store:
                store.topic("orders")[0].append(b"c", durable=True)
                store.topic("orders")[0].truncate_to(end)
                below = seen.unchanged_below(mark)
                assert below is not None
                assert below >= end
