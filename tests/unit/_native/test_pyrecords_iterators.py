"""DecodedRecords and Flattened (pyrecords_iterators.c)."""

import collections.abc
import contextlib
import copy
import gc
import itertools
import operator
import pickle
import random
import sys
import threading
import tracemalloc
import weakref

import pytest
from unit._native.kafka_bytes import T, short

from logstore import Record, TimestampType
from logstore._native import _records
from logstore._native._ls import ffi
from logstore._native._records import DecodedRecords, Flattened

KINDS = tuple(sorted(TimestampType))


class Thing:
    """An object that a weak reference can point to."""


class Columns:
    """Columns of (offset, timestamp, key, value, timestamp type) in own memory, and of
    the headers of each."""

    def __init__(self, rows, headers=None):
        data = bytearray()
        keys, values, places_of_headers = [], [], []
        for _, _, key, value, _ in rows:
            for part, places in ((key, keys), (value, values)):
                data += b"~"
                places.append((len(data), -1 if part is None else len(part)))
                data += part or b""
        self.count = len(rows)
        headers = [()] * len(rows) if headers is None else headers
        for pairs in headers:
            places_of_headers.append((len(data), len(pairs)))
            data += b"".join(
                short(name.encode(errors="surrogateescape")) + short(value)
                for name, value in pairs
            )
        self.size = len(data)
        self.data = ffi.from_buffer(data or bytearray(b"~"))
        self.arrays = [
            ffi.new(kind, list(values) or [0])
            for kind, values in (
                ("int64_t[]", [r[0] for r in rows]),
                ("int64_t[]", [r[1] for r in rows]),
                *(("int32_t[]", [p[i] for p in keys]) for i in (0, 1)),
                *(("int32_t[]", [p[i] for p in values]) for i in (0, 1)),
                ("int8_t[]", [r[4] for r in rows]),
                *(("int32_t[]", [p[i] for p in places_of_headers]) for i in (0, 1)),
            )
        ]

    @property
    def addresses(self):
        return [int(ffi.cast("uintptr_t", a)) for a in (self.data, *self.arrays)]

    def records(self, count=None, owner=None):
        count = self.count if count is None else count
        return DecodedRecords(owner or self, count, self.size, *self.addresses)


ROWS = [
    (5, T, b"key", b"value", 0),
    (6, T, None, b"value", 1),
    (7, T + 1, b"key", None, 0),
    (8, -1, None, None, -1),
    (9, -1, b"", b"", -1),
    (2**63 - 1, -(2**63), b"\0", b"\xff" * 300, 1),
    (-(2**63), 2**63 - 1, b"k" * 70_000, b"v" * 1_000_000, 0),
]


def expected(rows, headers=None):
    """The records of rows."""
    headers = headers or [()] * len(rows)
    return [
        (*row[:4], h, KINDS[row[4] + 1]) for row, h in zip(rows, headers, strict=True)
    ]


# ------------------------------------------------------------------ decoded records


def test_there_is_a_record_for_each_row():
    """A null value gives None, an empty one is empty, and the numbers keep their
    ends."""
    made = list(Columns(ROWS).records())
    assert made == expected(ROWS)
    assert {type(record) for record in made} == {Record}
    assert all(record.timestamp_type in KINDS for record in made)
    assert made[0]._replace(key=b"x") == (5, T, b"x", b"value", (), KINDS[1])


def test_there_are_none_of_no_rows():
    """Only the count need be zero."""
    assert list(Columns([]).records()) == []
    assert list(Columns(ROWS).records(count=0)) == []
    assert list(Columns(ROWS).records(count=2)) == expected(ROWS[:2])


@pytest.mark.parametrize("seed", range(5))
def test_records_equal_the_rows(seed):
    """Rows are random; timestamps repeat or do not."""
    rng = random.Random(seed)
    rows = [
        (
            rng.getrandbits(rng.choice((1, 31, 33, 62))),
            T + rng.randrange(3),
            *(rng.choice((None, rng.randbytes(rng.randrange(40)))) for _ in "kv"),
            rng.randrange(-1, 2),
        )
        for _ in range(500)
    ]
    headers = [(("name", rng.randbytes(3)),) * rng.randrange(3) for _ in rows]
    plain = expected(rows, headers)
    made = Columns(rows, headers).records()
    found = []
    while left := operator.length_hint(made):
        assert left == len(rows) - len(found)
        found += itertools.islice(made, rng.randrange(9))
    assert found == list(Columns(rows, headers).records()) == plain
    assert list(map(hash, found)) == list(map(hash, plain))


def test_headers_are_pairs_of_names_and_values():
    """Records have no headers, one, or many; null and empty values; names that are not
    UTF-8."""
    many = tuple((f"name {i}", b"v" * i) for i in range(300))
    some = [
        (),
        (("a", None),),
        (("", b""), ("a", b"b"), ("a", b"c")),
        (("\u00e4\U0001f600", b"\0"),),
        many[:16],
        many[:17],
        many,
    ]
    made = list(Columns(ROWS, some).records())
    assert [record.headers for record in made] == some
    assert made == expected(ROWS, some)
    (odd,) = Columns(ROWS[:1], [(("a\udcff", b"v"),)]).records()
    assert odd.headers == (("a\ufffd", b"v"),)


def test_records_without_headers_share_an_empty_tuple():
    """The columns may be left out."""
    columns = Columns(ROWS)
    bare = DecodedRecords(columns, 7, columns.size, *columns.addresses[:-2], 0, 0)
    for made in (list(columns.records()), list(bare)):
        assert made == expected(ROWS)
        assert len({id(record.headers) for record in made}) == 1


def test_headers_that_are_not_there_raise():
    """The decoder has checked them: such a call is our own mistake; nothing outside is
    read."""
    columns = Columns(ROWS[:2], [(("a", b"b"),)] * 2)
    for number, value in ((7, columns.size), (8, 9), (8, 100_000)):
        broken = Columns(ROWS[:2], [(("a", b"b"),)] * 2)
        broken.arrays[number][0] = value
        with pytest.raises(ValueError, match="cannot be read"):
            next(broken.records())


def test_timestamp_types_are_those_configured_when_a_record_is_made():
    """Each of the three values is one object."""
    kinds = ["none", "created", "appended"]
    made = Columns(ROWS).records()
    first = next(made)
    _records.configure(tuple(kinds))
    rest = list(made)
    _records.configure(KINDS)
    assert first.timestamp_type is KINDS[1]
    assert [r.timestamp_type for r in rest] == [kinds[row[4] + 1] for row in ROWS[1:]]


def test_a_record_is_made_when_it_is_asked_for():
    """It has the content of the columns at that time; earlier records stay."""
    columns = Columns([(i, T, b"abc", b"def", 0) for i in range(4)])
    made = columns.records()
    first = next(made)
    columns.arrays[0][0] = columns.arrays[0][1] = 77
    columns.arrays[3][1] = -1
    columns.arrays[6][1] = 1
    ffi.memmove(columns.data, b"~ABC~DEF~", 9)
    assert first == (0, T, b"abc", b"def", (), KINDS[1])
    assert next(made) == (77, T, None, b"def", (), KINDS[2])
    assert [record.offset for record in made] == [2, 3]


def test_nothing_is_made_ahead():
    """Neither bytes nor records are made: a caller that wants one does not pay for the
    others."""
    columns = Columns([(i, T, b"k" * 1000, b"v" * 1000, 0) for i in range(1000)])
    tracemalloc.start()
    try:
        made = columns.records()
        first = next(made)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert first.offset == 0


def test_the_owner_lives_as_long_as_the_iterator():
    """The owner lives until then, even at the end of the iterator. The records own
    their bytes."""
    for taken in (0, 1, len(ROWS), len(ROWS) + 1):
        owner = Thing()
        owner.columns = Columns(ROWS)
        alive = weakref.ref(owner)
        made = owner.columns.records(owner=owner)
        del owner
        gc.collect()
        records = list(itertools.islice(made, taken))
        assert alive() is not None
        del made
        assert alive() is None
        assert records == expected(ROWS[:taken])


def test_length_hint_is_how_many_are_left():
    """The number falls to zero, and then stays."""
    made = Columns(ROWS).records()
    for left in (*range(len(ROWS), 0, -1), 0, 0, 0):
        assert operator.length_hint(made) == made.__length_hint__() == left
        assert (next(made, "end") == "end") == (left == 0)


@pytest.mark.parametrize("kind", [DecodedRecords, Flattened])
def test_it_is_an_iterator_and_nothing_else(kind):
    """It cannot be copied, pickled, derived from or made without arguments."""
    made = Columns(ROWS).records() if kind is DecodedRecords else Flattened([[1]])
    assert iter(made) is made
    assert isinstance(made, collections.abc.Iterator)
    assert gc.is_tracked(made) == (kind is Flattened)
    assert not hasattr(made, "__dict__")
    for protocol in range(6):
        with pytest.raises(TypeError):
            pickle.dumps(made, protocol)
    for wrong in (
        lambda: copy.copy(made),
        lambda: copy.deepcopy(made),
        lambda: object.__new__(kind),
        lambda: type("Other", (kind,), {}),
        lambda: made[0],
        lambda: len(made),
    ):
        with pytest.raises(TypeError):
            wrong()
    assert len(list(made)) in (1, len(ROWS))


def test_wrong_counts_raise():
    """Counts are negative, or too large."""
    columns = Columns(ROWS)
    for count in (-1, -sys.maxsize - 1):
        with pytest.raises(ValueError, match="negative"):
            columns.records(count=count)
        with pytest.raises(ValueError, match="negative"):
            DecodedRecords(columns, 1, count, *columns.addresses)
    for count in (sys.maxsize + 1, -sys.maxsize - 2, 10**100):
        with pytest.raises(OverflowError):
            columns.records(count=count)


def test_wrong_arguments_raise():
    """Arguments are too few, too many, addresses that are not numbers, or keywords."""
    columns = Columns(ROWS)
    good = [columns, columns.count, columns.size, *columns.addresses]
    for wrong in (
        (*good, "t", 0, 0),
        (*good, "t", "0"),
        *(good[:size] for size in range(len(good))),
    ):
        with pytest.raises(TypeError):
            DecodedRecords(*wrong)
    for place in range(1, len(good)):
        for wrong in ("1", None, 1.0, b"1", (1,)):
            with pytest.raises(TypeError):
                DecodedRecords(*good[:place], wrong, *good[place + 1 :])
    for given, named in ((good, {"other": 1}), (good[1:], {"owner": columns})):
        with pytest.raises(TypeError, match="no keyword"):
            DecodedRecords(*given, **named)
    assert len(list(DecodedRecords(*good))) == len(ROWS)


# ------------------------------------------------------------------ flattened


def flat(runs):
    """Pure Python version of Flattened."""
    for run in runs:
        yield from run


def steps(items, count):
    """Results of `count` calls of next(): items and errors."""
    found = []
    for _ in range(count):
        try:
            found.append(next(items))
        except BaseException as error:
            found.append((type(error), str(error)))
    return found


class Source:
    """An iterator that a weak reference can point to; its first step calls `first`."""

    def __init__(self, items, first=None):
        self.items = iter(items)
        self.first = first
        self.calls = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.calls += 1
        if self.calls == 1 and self.first:
            self.first()
        return next(self.items)


class AtIter(Source):
    """The same, but `first` is called when its iterator is asked for."""

    def __init__(self, items, first):
        super().__init__(items)
        self.at_iter = first

    def __iter__(self):
        self.at_iter()
        return self


def failing(error, *items):
    """A generator that fails at its end."""
    yield from items
    raise error


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "runs",
    [
        *([], [[]], [[1]], [[1, 2], [3]]),
        [[], [1], [], [], [2, 3], []],
        ((1, None), "ab", {4: 5}, range(3), b"x"),
        [[[1], [2]], [[3]]],
        {(1, 2): "a", (3,): "b"},
    ],
    ids=repr,
)
def test_flattened_gives_the_items_of_the_runs(runs):
    """The runs may be lists, or iterators of iterators."""
    plain = [item for run in runs for item in run]
    assert list(Flattened(runs)) == plain
    assert list(Flattened(iter(runs))) == plain
    assert list(Flattened(map(iter, runs))) == plain
    assert list(Flattened((item for item in run) for run in runs)) == plain
    assert list(Flattened([Flattened(runs), Flattened(runs)])) == plain * 2


def test_flattened_stays_at_its_end():
    """It stays there even if the source has more runs."""
    runs = [[1], [2]]
    items = Flattened(runs)
    assert list(items) == [1, 2]
    runs.append([3])
    assert list(items) == []


def test_flattened_with_wrong_arguments_raises():
    """Arguments are not an iterable, too few, too many, or keywords."""
    for wrong in (None, 5, object(), Flattened):
        with pytest.raises(TypeError):
            Flattened(wrong)
    with pytest.raises(TypeError):
        Flattened([], [])
    for given, named in (((), {"runs": []}), (([],), {"other": 1})):
        with pytest.raises(TypeError, match="no keyword"):
            Flattened(*given, **named)
    with pytest.raises(LookupError):
        Flattened(AtIter([], lambda: raise_(LookupError())))
    assert list(Flattened([[1]])) == [1]


def test_flattened_asks_for_a_run_when_the_one_before_is_at_its_end():
    """The run before was released by then; a new iterator asks for nothing."""
    runs = [Source([1, 2]), Source([]), Source([3])]
    alive = [weakref.ref(run) for run in runs]
    source = Source(runs.pop(0) for _ in range(3))
    gone = weakref.ref(source)
    items = Flattened(source)
    asked = [source.calls]
    for _ in range(3):
        next(items)
        asked.append((source.calls, [ref() is None for ref in alive]))
    assert asked == [0, *[(1, [False] * 3)] * 2, (3, [True, True, False])]
    del source
    assert list(items) == []
    assert (gone(), alive[2]()) == (None, None)


@pytest.mark.parametrize(
    "error",
    [LookupError, MemoryError, KeyboardInterrupt, GeneratorExit, StopAsyncIteration],
)
@pytest.mark.parametrize("place", ["source", "run", "iterator", "no iterable"])
def test_flattened_is_at_its_end_after_an_error(place, error):
    """The same error is raised once, with its traceback; all held objects are
    released."""
    error = error("own")
    runs = {
        "source": lambda: failing(error, [1]),
        "run": lambda: [failing(error, 1), [2]],
        "iterator": lambda: [[1], AtIter([], lambda: raise_(error)), [2]],
        "no iterable": lambda: [[1], 5, [2]],
    }[place]()
    source = Source(runs)
    gone = weakref.ref(source)
    items = Flattened(source)
    del source, runs
    assert next(items) == 1
    with pytest.raises(TypeError if place == "no iterable" else type(error)) as caught:
        next(items)
    if place != "no iterable":
        assert caught.value is error
        assert caught.traceback[-1].name in ("failing", "raise_")
    assert list(items) == []
    del caught
    error.__traceback__ = None
    gc.collect()
    assert gone() is None
    assert next(items, "end") == "end"


def test_an_error_is_not_lost_to_code_that_runs_when_things_are_released(monkeypatch):
    """The run fails; then the source is closed, which fails as well."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: unraisable.append(u.exc_value))
    closed = []

    def runs():
        try:
            yield failing(LookupError("own"))
        finally:
            closed.append(list(Flattened([[1], [2]])))
            raise RuntimeError("closing")

    with pytest.raises(LookupError, match="own"):
        next(Flattened(runs()))
    assert closed == [[1, 2]]
    assert [str(error) for error in unraisable] == ["closing"]


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("taken", range(6))
def test_close_releases_everything_and_ends(taken, how):
    """The call closes a generator, the run before the source, as a release of it does;
    a second call does nothing."""
    log = []

    def logged(name, items):
        try:
            yield from items
        finally:
            log.append(name)

    source = logged("source", (logged(name, "xy") for name in "ab"))
    before = sys.getrefcount(source)
    items = Flattened(source)
    assert sys.getrefcount(source) == before + 1
    assert len(list(itertools.islice(items, taken))) == min(taken, 4)
    if how == "drop":
        del items
    else:
        assert items.close() is None
    assert sys.getrefcount(source) == before
    del source
    begun = ["a", "b"][: (taken + 1) // 2]
    assert log == [*begun, *["source"] * (taken > 0)]
    if how == "close":
        items.close()
        assert list(items) == []
        with pytest.raises(TypeError):
            items.close(1)


@pytest.mark.parametrize("place", ["source", "run", "iterator"])
@pytest.mark.parametrize("after", ["gives", "fails", "ends"])
def test_close_while_it_runs_ends_it(place, after):
    """The code of its source closes it: no crash, and nothing is left."""

    def close():
        items.close()
        items.close()
        gc.collect()
        if after == "fails":
            raise LookupError

    content = ["item"] if after == "gives" else []
    run = (AtIter if place == "iterator" else Source)(content, close)
    source = Source([run])
    if place == "source":
        run.first, source.first = None, close
    alive = [weakref.ref(run), weakref.ref(source)]
    items = Flattened(source)
    del run, source
    if after == "fails":
        with pytest.raises(LookupError):
            next(items)
    else:
        assert next(items, "end") in ("item", "end")
    assert list(items) == []
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_close_by_a_generator_that_it_runs_ends_it():
    """The generator continues until it yields, and is then closed."""
    log = []

    def runs():
        with contextlib.closing(Flattened([])), contextlib.ExitStack() as stack:
            stack.callback(log.append, "end")
            log.append(items.close())
            yield [1]
            log.append("not reached")

    items = Flattened(runs())
    assert list(items) == []
    assert log == [None, "end"]


@pytest.mark.parametrize("place", ["source", "run", "iterator"])
def test_next_while_it_runs_leaves_nothing_behind(place):
    """The inner call gives an item or is refused: no crash, and all is released."""
    found = []

    def again():
        with contextlib.suppress(ValueError):
            found.append(next(items, "end"))

    first = (AtIter if place == "iterator" else Source)([1, 2], again)
    runs = [first, *(Source([number, number]) for number in range(3, 6))]
    source = Source(runs)
    if place == "source":
        first.first, source.first = None, again
    alive = [weakref.ref(thing) for thing in (source, *runs)]
    items = Flattened(source)
    del first, runs, source
    found += items
    assert set(found) <= {1, 2, 3, 4, 5, "end"}
    items = None
    gc.collect()
    assert [ref() for ref in alive] == [None] * 5


@pytest.mark.parametrize("place", ["source", "run"])
def test_next_by_a_generator_that_it_runs_is_refused(place):
    """ValueError is raised, as with generators, and nothing is lost."""
    refused = []

    def again():
        try:
            next(items)
        except ValueError as error:
            refused.append(str(error))

    def run():
        if place == "run":
            again()
        yield from (1, 2)

    def runs():
        if place == "source":
            again()
        yield run()
        yield [3]

    for kind in (flat, Flattened):
        items = kind(runs())
        assert list(items) == [1, 2, 3]
        assert "already executing" in refused.pop()


def test_next_in_a_second_thread_does_not_end_that_of_the_first():
    """One of the calls is refused; the other thread gets all items."""
    inside, go_on = threading.Event(), threading.Event()
    found = []

    def runs():
        yield [1]
        inside.set()
        assert go_on.wait(60)
        yield from ([2, 3], [4])

    items = Flattened(runs())
    first = threading.Thread(target=lambda: found.extend(items))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(ValueError, match="already"):
            next(items)
    finally:
        go_on.set()
        first.join(60)
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_are_those_of_a_generator(seed):
    """Items, errors and the end agree, at each step."""
    rng = random.Random(seed)

    def build(plan):
        if not isinstance(plan, list):
            return plan
        items = map(build, plan)
        kind = len(plan) % 7
        return failing(LookupError("planned"), *items) if kind == 6 else Source(items)

    plan = [
        [rng.randrange(9) for _ in range(rng.randrange(7 if rng.random() < 0.2 else 6))]
        if rng.random() < 0.98
        else rng.choice((5, None))
        for _ in range(rng.randrange(20))
    ]
    assert steps(Flattened(build(plan)), 80) == steps(flat(build(plan)), 80)
    assert steps(Flattened(plan), 80) == steps(flat(plan), 80)
