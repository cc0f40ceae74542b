"""The module of records (pyrecords.c): its functions, and leftovers of records and
their iterators in memory and with the collector."""

import contextlib
import copy
import gc
import itertools
import operator
import pickle
import subprocess
import sys
import weakref
from functools import partial

import pytest
from unit._native.kafka_bytes import T, short

from logstore import Record, TimestampType, TopicRecord
from logstore._native import _records
from logstore._native._ls import ffi
from logstore._native._records import DecodedRecords, Flattened
from support.references import counts, growth

MIN, MAX = -(2**63), 2**63 - 1
KINDS = tuple(sorted(TimestampType))
RECORD = Record(5, T, b"key", b"value", (("a", b"b"),), TimestampType.LOG_APPEND_TIME)


@pytest.fixture
def configured():
    """Restore the configuration of record.record afterwards."""
    yield
    _records.configure(KINDS)


# ------------------------------------------------------------------ of_topic


def test_of_topic_gives_a_record_its_topic():
    """Its fields are the same objects."""
    topic, headers = "a topic of its own", [object()]
    for number in (MIN, -1, 0, 5, MAX):
        record = RECORD._replace(offset=number, headers=headers)
        made = _records.of_topic(topic, number, record)
        assert type(made) is TopicRecord
        assert made == (topic, number, *record)
        assert made.topic is topic
        assert made[2:] == record
        for name in ("key", "value", "headers", "timestamp_type"):
            assert getattr(made, name) is getattr(record, name)


def test_of_topic_with_wrong_arguments_raises():
    """Arguments are not a record, not a number, too many, or too few."""
    made = _records.of_topic("orders", 1, RECORD)
    for other in (made, tuple(RECORD), None, Record, object(), 5, [RECORD]):
        with pytest.raises(TypeError):
            _records.of_topic("orders", 1, other)
    for number in ("1", None, 1.0, b"1", RECORD):
        with pytest.raises(TypeError):
            _records.of_topic("orders", number, RECORD)
    for number in (MIN - 1, MAX + 1, 2**64, 10**100):
        with pytest.raises(OverflowError):
            _records.of_topic("orders", number, RECORD)
    for arguments in ((), ("orders",), ("orders", 1), ("orders", 1, RECORD, 1)):
        with pytest.raises(TypeError):
            _records.of_topic(*arguments)
    with pytest.raises(TypeError):
        _records.of_topic("orders", 1, record=RECORD)


def test_of_topic_takes_any_topic():
    """The caller has made sure that it is a text."""
    for topic in (None, 5, b"b", ["a"]):
        assert _records.of_topic(topic, 0, RECORD).topic is topic


# ------------------------------------------------------------------ configure


@pytest.mark.usefixtures("configured")
def test_configure_gives_the_default_of_new_records():
    """Existing records keep their default."""
    kinds = tuple([name] for name in ("none", "created", "appended"))
    before = Record(1, 2, None, None)
    assert _records.configure(kinds) is None
    assert Record(1, 2, None, None).timestamp_type is kinds[1]
    assert TopicRecord("a", 0, 1, 2, None, None).timestamp_type is kinds[1]
    assert Record(1, 2, None, None, (), 5).timestamp_type == 5
    assert before.timestamp_type is TimestampType.CREATE_TIME
    assert _records.of_topic("a", 0, before).timestamp_type is before.timestamp_type


@pytest.mark.usefixtures("configured")
def test_configure_with_anything_but_a_tuple_of_three_raises():
    """The earlier configuration stays."""
    for wrong in ((), KINDS[:2], (*KINDS, 1), list(KINDS), None, 5, "abc", iter(KINDS)):
        with pytest.raises(TypeError, match="tuple of three"):
            _records.configure(wrong)
    for arguments in ((), KINDS, (KINDS, KINDS)):
        with pytest.raises(TypeError):
            _records.configure(*arguments)
    with pytest.raises(TypeError):
        _records.configure(kinds=KINDS)
    assert Record(1, 2, None, None).timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.usefixtures("configured")
def test_configure_keeps_reference_counts():
    """It holds each of the three once, until the next call."""
    kinds = tuple([name] for name in ("none", "created", "appended"))
    before = counts(*kinds, kinds)
    _records.configure(kinds)
    for _ in range(1000):
        _records.configure(kinds)
        with contextlib.suppress(TypeError):
            _records.configure(kinds[:2])
    during = counts(*kinds, kinds)
    assert [d - b for d, b in zip(during, before, strict=True)] == [1, 1, 1, 0]
    records = [Record(i, 2, None, None) for i in range(10)]
    assert counts(*kinds, kinds)[1] - during[1] == 10
    del records
    _records.configure(KINDS)
    assert counts(*kinds, kinds) == before


def test_configure_while_a_record_is_made_frees_nothing_that_is_used():
    """The call comes from code of an argument: in a separate process, which it may
    end."""
    program = """if True:
        from logstore import Record
        from logstore._native import _records

        class Kind:
            pass

        class Number:
            def __index__(self):
                _records.configure((Kind(), Kind(), Kind()))
                self.others = [bytearray(40) for _ in range(1000)]
                return 7

        _records.configure((Kind(), Kind(), Kind()))
        record = Record(Number(), 1, None, None)
        print(record.offset, type(record.timestamp_type).__name__, flush=True)
    """
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"7 Kind\n")


@pytest.mark.usefixtures("configured")
def test_configure_again_and_again_takes_no_memory():
    """The earlier configuration is released."""
    assert growth(lambda: _records.configure(([], [], []))) < 20_000


# ------------------------------------------------------------------ memory of records


@pytest.mark.parametrize("kind", [Record, TopicRecord])
def test_records_are_small_and_the_collector_does_not_know_them(kind):
    """Half the size of a named tuple and its numbers."""
    made = [RECORD, _records.of_topic("orders", 1, RECORD), Record(1, 2, None, None)]
    assert kind.__basicsize__ <= 80
    assert kind.__dictoffset__ == kind.__weakrefoffset__ == kind.__itemsize__ == 0
    gc.collect()
    for record in (*made, *map(copy.copy, made)):
        assert sys.getsizeof(record) <= 80
        assert not gc.is_tracked(record)
        assert not hasattr(record, "__dict__")


@pytest.mark.parametrize("kind", [Record, TopicRecord])
def test_records_have_no_other_shape(kind):
    """A subclass, another class, and a record without fields are refused."""
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Other", (kind,), {})
    with pytest.raises(TypeError):
        object.__new__(kind)
    with pytest.raises(TypeError):
        tuple.__new__(kind, RECORD)
    for other in (Record, TopicRecord):
        if other is not kind:
            with pytest.raises(TypeError):
                kind.__new__(other, *RECORD)
    record = RECORD if kind is Record else _records.of_topic("orders", 1, RECORD)

    class Empty:
        __slots__ = ()

    for other in (Record, TopicRecord, _records.DecodedRecords, Empty, tuple):
        if other is not kind:
            with pytest.raises(TypeError):
                record.__class__ = other
    assert type(record) is kind


def test_records_survive_a_busy_collector():
    """A collection comes at each allocation, in all their methods."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(200):
            headers = (("a", [number]),)
            record = Record(number, T, b"k", None, headers)
            of_topic = _records.of_topic("orders", number, record)
            assert of_topic == ("orders", number, *record)
            assert record + of_topic == (*record, *of_topic)
            assert repr(number) in repr(record)
            assert pickle.loads(pickle.dumps(of_topic)) == copy.deepcopy(of_topic)
            assert record._replace(offset=1)[1:] == record[1:]
    finally:
        gc.set_threshold(*before)


ONE = (1,)
USES = {
    "make": lambda record: type(record)(*record),
    "make by name": lambda record: type(record)(**record._asdict()),
    "default": lambda record: type(record)(*record[:-2]),
    "no number": lambda record: type(record)("a", "b", *record[2:]),
    "too large": lambda record: record._replace(offset=2**63),
    "too few": lambda record: type(record)(*record[:3]),
    "unknown": lambda record: type(record)(*record[:-1], other=1),
    "fields": lambda record: [getattr(record, name) for name in record._fields],
    "set": lambda record: setattr(record, "key", record.value),
    "items": lambda record: (record[0], record[-1], record[1:4], *record),
    "no item": lambda record: record[9],
    "no place": lambda record: record["key"],
    "equal": lambda record: (record == record[:], record != RECORD, record == 5),
    "order": lambda record: (record < record[:], record >= record),
    "no order": lambda record: record < 5,
    "no order of items": lambda record: record < (None, *record[1:]),
    "hash": hash,
    "no hash": lambda record: hash(record._replace(headers=[])),
    "repr": repr,
    "sum": lambda record: (record + record, record + ONE, ONE + record),
    "no sum": lambda record: operator.add(record, [1]),
    "no sum on the right": lambda record: operator.add([1], record),
    "in": lambda record: (record.key in record, 6.5 in record),
    "pickle": lambda record: pickle.loads(pickle.dumps(record)),
    "copy": lambda record: (copy.copy(record), copy.deepcopy(record)),
    "half": lambda record: next(iter(record)),
    "of_topic": lambda record: _records.of_topic("orders", 1, record),
    "of_topic bad": lambda record: _records.of_topic("orders", record, record),
    "of_topic too large": lambda record: _records.of_topic("orders", 2**63, record),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", [Record, TopicRecord])
@pytest.mark.parametrize("use", USES)
def test_uses_of_records_leave_nothing_behind(use, kind):
    """No references to the fields, the record and its type, and no memory, on success
    and on failure."""
    things = [b"a key of its own", b"a value of its own", (("a", b"b"),), [1]]
    place = ["a topic of its own", 1] if kind is TopicRecord else []
    record = kind(*place, 5, T, *things)
    counted = [record, kind, *place[:1], *things, (), None, NotImplemented]
    call = partial(USES[use], record)
    growth(call, 100)
    before = counts(*counted)
    assert growth(call, 3000) < 20_000
    after = counts(*counted)
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True))
    before = counts(*things)
    del call, record, counted[0]
    assert counts(*things) == [count - 1 for count in before]


# ------------------------------------------------------------------ memory of iterators

DATA = b"keyvalue" + short(b"name") + short(b"header value") * 2 + short(None)
COLUMNS = [
    ffi.new("char[]", DATA),
    *(ffi.new("int64_t[]", [10**6, 10**7]) for _ in ("offset", "timestamp")),
    *(ffi.new("int32_t[]", [number, number]) for number in (0, 3, 3, 5)),
    ffi.new("int8_t[]", [0, 1]),
    ffi.new("int32_t[]", [8, 8]),
    ffi.new("int32_t[]", [2, 1]),
]
DATA_BYTES = len(DATA)
ADDRESSES = [int(ffi.cast("uintptr_t", column)) for column in COLUMNS]


def decoded(count=2, *, size=DATA_BYTES, headers=True):
    """Records; the first has two headers, the second one."""
    columns = ADDRESSES if headers else (*ADDRESSES[:-2], 0, 0)
    return DecodedRecords(COLUMNS, count, size, *columns)


class Source:
    """An iterable, and an iterator, that can be in a cycle."""

    def __init__(self, items):
        self.items = iter(items)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)


class Unwilling:
    """An iterable whose iterator cannot be had."""

    def __iter__(self):
        raise ValueError


def closed(items):
    next(items)
    items.close()


def in_a_cycle(items):
    source = Source([items, items])
    source.flat = Flattened(source)
    return next(source.flat)


ITERATIONS = {
    "all": lambda items: list(decoded()),
    "bare": lambda items: list(decoded(headers=False)),
    "one": lambda items: next(decoded()),
    "not one": lambda items: decoded(),
    "end": lambda items: next(decoded(0), None),
    "headers not there": lambda items: next(decoded(size=20)),
    "count negative": lambda items: decoded(-1),
    "count wrong": lambda items: decoded([]),
    "keyword": lambda items: DecodedRecords(items, owner=items),
    "flattened all": lambda items: list(Flattened([items, decoded()])),
    "flattened one": lambda items: next(Flattened(run for run in (items, items))),
    "flattened not one": lambda items: Flattened(decoded()),
    "flattened end": lambda items: next(Flattened([]), None),
    "closed": lambda items: closed(Flattened([iter(items), items])),
    "source fails": lambda items: list(Flattened(map(ord, ["a", *items]))),
    "run fails": lambda items: list(Flattened([items, map(ord, items)])),
    "no iterator": lambda items: list(Flattened([items, Unwilling()])),
    "no iterable": lambda items: list(Flattened([items, 5])),
    "no iterator at first": lambda items: Flattened(Unwilling()),
    "no iterable at first": lambda items: Flattened(5),
    "flattened keyword": lambda items: Flattened(items, runs=items),
    "cycle": in_a_cycle,
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("use", ITERATIONS)
def test_iterators_leave_nothing_behind(use):
    """No references and no memory, on success and on failure."""
    items = [[1], [2]]
    counted = [items, *items, COLUMNS, Record, DecodedRecords, Flattened, KINDS[1]]
    call = partial(ITERATIONS[use], items)
    growth(call, 100)
    before = counts(*counted)
    assert growth(call, 5000) < 20_000
    after = counts(*counted)
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True))


def test_decoded_records_hold_what_they_need_once():
    """They hold the owner; each record holds its timestamp type, headers and its only
    references to bytes."""
    counted = [COLUMNS, Record, DecodedRecords]
    before = counts(*counted)
    made = decoded()
    during = counts(*counted)
    assert [d - b for d, b in zip(during, before, strict=True)] == [1, 0, 1]
    records = list(made)
    during = counts(*counted)
    assert [d - b for d, b in zip(during, before, strict=True)] == [1, 2, 1]
    fresh = [bytes(bytearray(b"value")) for _ in range(3)]
    own = records[0].key, records[1].value, records[0].headers[0][1]
    assert counts(*own) == counts(*tuple(fresh))
    own = None
    del made, records
    assert counts(*counted) == before


def test_allocations_that_fail_raise_and_skip_no_record():
    """MemoryError is raised, and then the same record comes again or the end, but not
    the next one."""
    testing = pytest.importorskip("_testcapi")
    counted = [COLUMNS, Record, DecodedRecords]
    before = counts(*counted)
    failures = 0
    for fail in range(20):
        made = decoded()
        first = None
        testing.set_nomemory(fail, fail + 1)
        try:
            first = next(made)
        except MemoryError:
            failures += 1
        finally:
            testing.remove_mem_hooks()
        found = [record.offset for record in (first, *made) if record]
        assert found in ([10**6, 10**7], [])
    del made, first
    assert failures >= 6  # the key, the value, the record, the headers
    assert counts(*counted) == before


def test_flattened_in_a_cycle_is_collected():
    """The cycles go through the source, and through a run."""
    for place in ("source", "run"):
        run = Source([1, 2])
        source = Source([run, [3]])
        items = Flattened(source)
        (source if place == "source" else run).flat = items
        assert next(items) == 1
        assert gc.is_tracked(items)
        assert {id(source), id(run)} <= set(map(id, gc.get_referents(items)))
        gone = [weakref.ref(run), weakref.ref(source)]
        del run, source, items
        assert gone[0]() is not None
        gc.collect()
        assert [ref() for ref in gone] == [None, None]


def test_a_generator_in_a_cycle_is_closed_by_the_collector():
    """Its `finally` runs, and may use the iterator that it is part of."""
    log = []

    def runs():
        own = yield [1]
        try:
            yield [2, 3]
        finally:
            own.close()
            log.append(list(own))

    source = runs()
    items = Flattened(source)
    assert next(items) == 1
    source.send(items)
    del source, items
    gc.collect()
    assert log == [[]]


def test_iterators_survive_a_busy_collector():
    """The runs are in cycles; they are read to the end, to the half, and closed."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for size in range(40):
            runs = [Source([[n], *decoded()]) for n in range(size)]
            for run in runs:
                run.itself = run
            items = Flattened(Source(runs))
            plain = [x for n in range(size) for x in ([n], *decoded())]
            if runs:
                runs[0].flat = items
                del run
            del runs
            half = list(itertools.islice(items, size))
            if size % 2:
                items.close()
            assert half + list(items) == (half if size % 2 else plain)
            assert half == plain[:size]
    finally:
        gc.set_threshold(*before)


def test_flattened_records_keep_their_owner_until_the_end_of_their_run():
    """The owner is released during reading: the memory of a run is used again after
    it."""
    alive = []

    def run():
        owner = Source([])
        alive.append(weakref.ref(owner))
        return DecodedRecords(owner, 2, DATA_BYTES, *ADDRESSES)

    items = Flattened(run() for _ in range(3))
    assert [next(items).offset for _ in range(3)] == [10**6, 10**7, 10**6]
    assert (alive[0](), alive[1]() is None) == (None, False)
    assert len(list(items)) == 3
    assert [ref() for ref in alive] == [None] * 3
