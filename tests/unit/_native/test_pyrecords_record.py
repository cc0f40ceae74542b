"""Record and TopicRecord as values (pyrecords_record.c), compared with equal named
tuples."""

import collections
import collections.abc
import copy
import copyreg
import ctypes
import datetime
import gc
import itertools
import operator
import pickle
import random
import subprocess
import sys
import weakref
from typing import Any, NamedTuple

import pytest
from unit._native.kafka_bytes import T

from logstore import Record, TimestampType, TopicRecord
from logstore._native import _records

MIN, MAX = -(2**63), 2**63 - 1
CREATED = TimestampType.CREATE_TIME
APPENDED = TimestampType.LOG_APPEND_TIME
HEADERS = (("a", b"b"), ("c", None))
COMPARISONS = [getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")]


class Plain(NamedTuple):
    """Reference behaviour of a Record."""

    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Any = ()
    timestamp_type: Any = CREATED


class PlainOfTopic(NamedTuple):
    """Reference behaviour of a TopicRecord."""

    topic: Any
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Any = ()
    timestamp_type: Any = CREATED


Plain.__name__ = Plain.__qualname__ = "Record"
PlainOfTopic.__name__ = PlainOfTopic.__qualname__ = "TopicRecord"
GOOD = {
    Record: (5, T, b"key", b"value", HEADERS, APPENDED),
    TopicRecord: ("orders", 3, 5, T, b"key", b"value", HEADERS, APPENDED),
}
PLAIN = {Record: Plain, TopicRecord: PlainOfTopic}
NUMBERS = [
    (kind, place)
    for kind, places in ((Record, (0, 1)), (TopicRecord, (1, 2, 3)))
    for place in places
]


@pytest.fixture(params=[Record, TopicRecord], ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture
def good(kind):
    """Good arguments, none of them a default."""
    return GOOD[kind]


@pytest.fixture
def record(kind, good):
    return kind(*good)


@pytest.fixture
def plain(kind, good):
    """The named tuple of the same fields."""
    return PLAIN[kind](*good)


def with_field(kind, place, value):
    """A record with another value in one field."""
    fields = list(GOOD[kind])
    fields[place] = value
    return kind(*fields)


# ------------------------------------------------------------------ fields


def test_public_types_are_those_of_the_module(kind):
    """The types have their public names."""
    assert getattr(_records, kind.__name__) is kind
    assert (kind.__module__, kind.__qualname__) == ("logstore", kind.__name__)


def test_fields_are_what_was_given(kind, good, record):
    """By position and by keyword, the same objects."""
    assert [getattr(record, name) for name in kind._fields] == list(good)
    for name, value in zip(kind._fields, good, strict=True):
        if type(value) is not int:
            assert getattr(record, name) is value
    named = dict(zip(kind._fields, good, strict=True))
    assert kind(**named) == record
    assert kind(**dict(reversed(named.items()))) == record
    assert kind(*good[:3], **dict(list(named.items())[3:])) == record


def test_fields_that_may_be_left_out_have_defaults(kind, good):
    """The defaults are no headers, and the time of creation."""
    short = kind(*good[:-2])
    assert (short.headers, short.timestamp_type) == ((), CREATED)
    assert short.timestamp_type is CREATED
    assert kind._field_defaults == {"headers": (), "timestamp_type": CREATED}
    assert kind(*good[:-2], timestamp_type=APPENDED).headers == ()
    assert kind(*good[:-2], headers=HEADERS).timestamp_type is CREATED
    assert kind(*good[:-2], None, None)[-2:] == (None, None)


@pytest.mark.parametrize(("kind", "place"), NUMBERS)
@pytest.mark.parametrize("number", [MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX])
def test_numbers_keep_their_ends(kind, place, number):
    """The range is all of int64."""
    made = with_field(kind, place, number)
    assert made[place] == getattr(made, kind._fields[place]) == number
    assert type(made[place]) is int
    assert repr(number) in repr(made)


@pytest.mark.parametrize(("kind", "place"), NUMBERS)
def test_numbers_beyond_int64_raise(kind, place):
    """The call never returns a wrong number."""
    for number in (MIN - 1, MAX + 1, 2**64, 2**64 + 5, -(2**64), 10**100):
        with pytest.raises(OverflowError):
            with_field(kind, place, number)


@pytest.mark.parametrize(("kind", "place"), NUMBERS)
@pytest.mark.parametrize(
    "other",
    ["5", b"5", 5.0, None, (5,), object(), datetime.datetime(2024, 1, 1)],
    ids=lambda other: type(other).__name__,
)
def test_numbers_must_be_integers(kind, place, other):
    """Nothing is rounded or parsed."""
    with pytest.raises(TypeError):
        with_field(kind, place, other)


@pytest.mark.parametrize(("kind", "place"), NUMBERS)
def test_numbers_may_be_what_has_an_index(kind, place):
    """`__index__` is used as everywhere in Python; its errors are passed on."""

    class Number:
        def __index__(self):
            return 7

    class Bad:
        def __index__(self):
            raise LookupError

    assert with_field(kind, place, Number())[place] == 7
    assert type(with_field(kind, place, True)[place]) is int
    with pytest.raises(LookupError):
        with_field(kind, place, Bad())


def test_other_fields_take_any_object(kind, good):
    """Their types are the contract of the code that makes records."""
    for place, name in enumerate(kind._fields):
        if (kind, place) not in NUMBERS:
            thing = [object()]
            assert getattr(with_field(kind, place, thing), name) is thing


def test_wrong_arguments_raise(kind, good):
    """Arguments are too few, too many, unknown, or given twice."""
    named = dict(zip(kind._fields, good, strict=True))
    for size in range(len(good) - 2):
        with pytest.raises(TypeError):
            kind(*good[:size])
    with pytest.raises(TypeError):
        kind(*good, 1)
    with pytest.raises(TypeError):
        kind(*good[:-2], other=1)
    for name in kind._fields:
        with pytest.raises(TypeError):
            kind(*good, **{name: named[name]})
        if name not in kind._field_defaults:
            with pytest.raises(TypeError):
                kind(**{k: v for k, v in named.items() if k != name})
    with pytest.raises(TypeError):
        Record(*GOOD[Record], topic="orders")


def test_attributes_are_read_only(kind, record, good):
    """No attribute can be set, deleted or added."""
    for name in (*kind._fields, "timestamp", "other", "__dict__", "__weakref__"):
        with pytest.raises(AttributeError):
            setattr(record, name, 1)
        with pytest.raises(AttributeError):
            delattr(record, name)
        assert hasattr(record, name) == (name in (*kind._fields, "timestamp"))
    with pytest.raises(TypeError):
        record[0] = 1
    with pytest.raises(TypeError):
        del record[0]
    with pytest.raises(TypeError):
        weakref.ref(record)
    assert record == good


# ------------------------------------------------------------------ comparisons


def test_equality_order_and_hash_are_those_of_tuples(record, plain, good):
    """Both directions of a comparison agree, and use as keys."""
    for other in (plain, good, type(record)(*good)):
        assert record == other
        assert other == record
        assert (record != other) is False
        assert hash(record) == hash(other)
        assert {other: 1}[record] == 1
        assert {record: 1}[other] == 1
        assert record <= other <= record
        assert not record < other
        assert not record > other
    assert record < (*good, 1)
    assert (*good, 1) > record
    assert record > good[:-1]
    assert record != good[:-1]
    assert record != ()
    assert len({record, plain, good}) == 1


def test_each_field_counts_in_comparisons(kind, record, good):
    """This includes the last field."""
    for place, value in enumerate(good):
        if value is not HEADERS:
            larger = value + type(value)(1) if (kind, place) in NUMBERS else None
            if isinstance(value, (bytes, str)):
                larger = value + value
            if place == len(good) - 1:
                larger = 2
            other = with_field(kind, place, larger)
            assert other != record
            assert record < other
            assert other >= record
            assert hash(other) != hash(record)


def test_a_record_is_not_the_record_of_a_topic():
    """A tuple of six does not equal one of eight."""
    record, of_topic = Record(*GOOD[Record]), TopicRecord(*GOOD[TopicRecord])
    assert record != of_topic
    assert of_topic != record
    assert of_topic[2:] == record
    with pytest.raises(TypeError):
        record < of_topic  # noqa: B015
    number = TopicRecord(5, T - 1, 1, 2, b"key", b"value")
    assert number < record
    assert record > number


@pytest.mark.parametrize(
    "other", [5, None, "text", [1], {}, object(), 1.5], ids=lambda o: type(o).__name__
)
def test_comparison_with_other_types_is_theirs(record, good, other):
    """The result is NotImplemented: unequal, and without an order."""
    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        assert getattr(record, name)(other) is NotImplemented
    assert record.__eq__(list(good)) is NotImplemented
    assert record != other
    assert other != record
    for compare in COMPARISONS[2:]:
        with pytest.raises(TypeError):
            compare(record, other)
        with pytest.raises(TypeError):
            compare(other, record)


def test_the_other_type_is_asked(record):
    """It may compare itself with everything."""

    class Any:
        def __eq__(self, other):
            return "asked"

        __lt__ = __gt__ = __le__ = __ge__ = __ne__ = __radd__ = __add__ = __eq__
        __hash__ = None

    for ask in (*COMPARISONS, operator.add):
        assert ask(record, Any()) == "asked"
        assert ask(Any(), record) == "asked"


def test_what_fields_raise_goes_through(kind, good):
    """The error comes from a comparison, a hash or a repr."""

    class Bad:
        def __eq__(self, other):
            raise LookupError

        def __hash__(self):
            raise LookupError

        def __repr__(self):
            raise LookupError

    bad = with_field(kind, len(good) - 2, Bad())
    for ask in (
        lambda: bad == with_field(kind, len(good) - 2, 1),
        lambda: good == bad,
        lambda: hash(bad),
        lambda: repr(bad),
        lambda: bad.index(6.5),
        lambda: 6.5 in bad,
    ):
        with pytest.raises(LookupError):
            ask()
    with pytest.raises(TypeError):
        hash(with_field(kind, len(good) - 2, []))


# ------------------------------------------------------------------ as a sequence


def test_items_are_the_fields(kind, record, good):
    """Items are taken by number, by slice, unpacked and iterated over."""
    size = len(good)
    assert len(record) == size
    assert tuple(record) == good
    assert list(record) == list(good)
    assert list(reversed(record)) == list(reversed(good))
    first, *_, last = record
    assert (first, last) == (good[0], good[-1])
    assert [record[i] for i in range(-size, size)] == [*good, *good]
    assert record[True] == good[1]
    bounds = (None, *range(-size - 2, size + 3))
    for begin, end, step in itertools.product(bounds, bounds, (None, -2, -1, 1, 3)):
        part = record[begin:end:step]
        assert type(part) is tuple
        assert part == good[begin:end:step]


def test_places_that_are_none_raise(record, good):
    """IndexError beyond the ends, TypeError for other types."""
    for place in (len(good), -len(good) - 1, MAX, MIN, 10**100, -(10**100)):
        with pytest.raises(IndexError):
            record[place]
    for place in ("offset", 1.0, None, (0,), b"0"):
        with pytest.raises(TypeError):
            record[place]
    with pytest.raises(ValueError):
        record[::0]


def test_places_of_the_c_api_are_those_of_a_tuple(record, good):
    """PySequence_GetItem adds the length to a negative place once, not twice."""
    item = ctypes.pythonapi.PySequence_GetItem
    item.restype, item.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_ssize_t)
    size = len(good)
    assert [item(record, i) for i in range(-size, size)] == [*good, *good]
    for place in (size, MAX, -size - 1, -2 * size, -2 * size - 1, MIN):
        with pytest.raises(IndexError):
            item(good, place)
        with pytest.raises(IndexError):
            item(record, place)


def test_in_count_and_index_are_those_of_a_tuple(record, good):
    """Equality decides."""
    for value in good:
        assert value in record
        assert record.count(value) == good.count(value)
        assert record.index(value) == good.index(value)
    assert 6.5 not in record
    assert record.count(6.5) == 0
    assert record.index(good[-1], 2) == record.index(good[-1], 1, len(good))
    for bounds in ((), (0, 2)):
        with pytest.raises(ValueError):
            record.index(6.5, *bounds)


def test_an_iterator_outlives_its_record(kind, good):
    """The iterator holds the fields."""
    fields = iter(kind(*good))
    assert operator.length_hint(fields) == len(good)
    gc.collect()
    assert tuple(fields) == good


def test_a_sum_is_a_tuple(record, plain, good):
    """Either side may be a tuple or a record."""
    extra = (1, [2])
    for other in (record, plain, good, (), extra, TopicRecord(*GOOD[TopicRecord])):
        assert record + other == good + tuple(other)
        assert other + record == tuple(other) + good
        assert type(record + other) is type(other + record) is tuple
    assert sum([record, record], ()) == good + good
    both = record
    both += extra
    assert both == good + extra
    assert operator.concat(record, good) == record + record


@pytest.mark.parametrize(
    "other", [5, None, "text", b"b", [1], {}, iter(())], ids=lambda o: type(o).__name__
)
def test_a_sum_with_anything_else_raises(record, other):
    """A tuple raises the same."""
    with pytest.raises(TypeError):
        record + other
    with pytest.raises(TypeError):
        other + record
    if other != [1]:
        with pytest.raises(TypeError):
            other += record


def test_a_record_is_a_sequence(kind, record):
    """It is neither a tuple nor a mapping, and has a separate type."""
    for base in (collections.abc.Sequence, collections.abc.Hashable):
        assert isinstance(record, base)
        assert issubclass(kind, base)
    assert not isinstance(record, (tuple, collections.abc.Mapping))
    assert not issubclass(Record, TopicRecord)
    assert not issubclass(TopicRecord, Record)


def test_match_statements_take_a_record_apart(kind, record, good):
    """Patterns are a class with names, a class with places, and a sequence."""
    match record:
        case Record(offset, timestamp_ms, key, value, headers, timestamp_type=t):
            found = offset, timestamp_ms, key, value, headers, t
        case TopicRecord(topic, number, offset, value=value):
            found = (topic, number, offset, *record[3:5], value, *record[6:])
    assert found == good
    match record:
        case {}:
            raise AssertionError
        case [first, *_, headers, TimestampType.LOG_APPEND_TIME]:
            assert (first, headers) == (good[0], HEADERS)
        case _:
            raise AssertionError
    match record:
        case [_, _, _] | tuple():
            raise AssertionError
        case [_, _, _, _, _, _] | [_, _, _, _, _, _, _, _]:
            pass
        case _:
            raise AssertionError


# ------------------------------------------------------------------ as a named tuple


@pytest.mark.parametrize(
    "part",
    [b"", b"'", b"\"'\n\0\xff", None, "täxt \u2028 %s %R", 5, (), [], {1: (2,)}, 1e300],
    ids=repr,
)
def test_repr_is_that_of_a_named_tuple(kind, good, part):
    """Contents of the fields may be anything."""
    for place in range(len(good)):
        if (kind, place) not in NUMBERS:
            record = with_field(kind, place, part)
            assert repr(record) == repr(PLAIN[kind](*record))
            assert str(record) == f"{record}" == repr(record)


def test_repr_of_a_record_in_itself_ends(kind, good):
    """The inner list is shown as `[...]`."""
    headers = []
    record = with_field(kind, len(good) - 2, headers)
    headers.append(record)
    assert "headers=[...]" in repr(record)
    headers.clear()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dumps", [pickle.dumps, pickle._dumps], ids=["C", "Python"])
def test_pickles_are_the_same_record(kind, record, protocol, dumps):
    """Each protocol works, under the public name."""
    data = dumps([record, record], protocol)
    for loads in (pickle.loads, pickle._loads):
        one, other = loads(data)
        assert type(one) is kind
        assert one == record
        assert one is other
        assert one.timestamp_type is APPENDED
    assert copyreg.__newobj__(kind, *record) == record  # the named tuples of before
    assert record.__reduce__() == (kind, tuple(record))
    assert record.__reduce_ex__(protocol) == (kind, tuple(record))


def test_pickles_load_in_a_process_that_has_imported_nothing(kind, record):
    """Loading them imports what is needed, in time for the default."""
    program = (
        "import pickle, sys;"
        "record = pickle.load(sys.stdin.buffer);"
        "print(record._replace(offset=7));"
        "print(type(record)(*record[:-2]).timestamp_type.name)"
    )
    for protocol in (0, 5):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(record, protocol),
            stdout=subprocess.PIPE,
            check=True,
        )
        lines = done.stdout.decode().splitlines()
        assert lines == [repr(record._replace(offset=7)), "CREATE_TIME"]


def test_copies_are_equal(kind, record, good):
    """Deep copies have separate headers."""
    for copied in (copy.copy(record), copy.deepcopy(record)):
        assert type(copied) is kind
        assert copied == record
    headers = [["a", b"b"]]
    record = with_field(kind, len(good) - 2, headers)
    assert copy.copy(record).headers is headers
    deep = copy.deepcopy([record, headers])
    assert deep == [record, headers]
    assert deep[0].headers is deep[1]
    assert deep[0].headers[0] is not headers[0]


def test_replace_changes_fields(kind, record, plain, good):
    """The record itself stays unchanged."""
    for name in kind._fields:
        value = 9 if name != "key" else None
        changed = record._replace(**{name: value})
        assert type(changed) is kind
        assert changed == plain._replace(**{name: value})
        assert getattr(changed, name) == value
    assert record._replace() == record == good
    assert record._replace(key=b"a", value=b"b", headers=())[-3:-1] == (b"b", ())


def test_replace_refuses_what_is_no_field(record):
    """Unknown names are refused, even next to good ones; so are values that a record
    does not accept."""
    with pytest.raises(ValueError, match=r"\['other'\]"):
        record._replace(other=1)
    with pytest.raises(ValueError, match=r"\['timestamp', 'x'\]"):
        record._replace(offset=1, timestamp=2, x=3)
    with pytest.raises(TypeError):
        record._replace(offset="1")
    with pytest.raises(OverflowError):
        record._replace(offset=2**63)


def test_asdict_make_and_names_are_those_of_a_named_tuple(kind, record, plain, good):
    """Fields come in their order."""
    assert kind._fields == kind.__match_args__ == type(plain)._fields
    assert kind._field_defaults == type(plain)._field_defaults
    assert list(record._asdict().items()) == list(plain._asdict().items())
    for source in (good, list(good), iter(good), record, plain):
        made = kind._make(source)
        assert type(made) is kind
        assert made == record
    for wrong in ((), good[:-3], (*good, 1)):
        with pytest.raises(TypeError):
            kind._make(wrong)


@pytest.mark.parametrize(
    ("milliseconds", "is_there"),
    [
        *((MIN, False), (-1, False)),
        *((0, True), (T, True)),
        (253402300799999, True),
        (253402300800000, False),
        (MAX, False),
    ],
)
def test_timestamp_is_a_datetime_in_utc(kind, milliseconds, is_there):
    """None if the record has no time, and after the year 9999."""
    record = with_field(kind, kind._fields.index("timestamp_ms"), milliseconds)
    assert record.timestamp_ms == milliseconds
    if not is_there:
        assert record.timestamp is None
        return
    assert record.timestamp.utcoffset() == datetime.timedelta(0)
    since = record.timestamp - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    assert since // datetime.timedelta(milliseconds=1) == milliseconds


@pytest.mark.parametrize("seed", range(5))
def test_random_records_behave_as_named_tuples(seed):
    """Any operation gives the same result."""
    rng = random.Random(seed)

    def fields(kind):
        few = rng.random() < 0.5
        numbers = (MIN, -1, 0, 1, MAX) if few else range(-(2**62), 2**62, 12345)
        row = [rng.choice(("a", "b")), rng.choice(numbers)] * (kind is TopicRecord)
        row += [rng.choice(numbers), rng.choice(numbers)]
        row += [rng.choice((None, b"", rng.randbytes(rng.randrange(3)))) for _ in "kv"]
        row += [rng.choice(((), HEADERS, (("a", rng.randbytes(2)),)))]
        return [*row, rng.choice(list(TimestampType))]

    def answer(ask, *things):
        try:
            return ask(*things)
        except TypeError:
            return TypeError

    for _ in range(300):
        kinds = rng.choice((Record, TopicRecord)), rng.choice((Record, TopicRecord))
        rows = [fields(kind) for kind in kinds]
        if rng.random() < 0.3 and kinds[0] is kinds[1]:
            rows[1] = [*rows[0][:-1], rows[1][-1]]
        a, b = (kind(*row) for kind, row in zip(kinds, rows, strict=True))
        x, y = (PLAIN[kind](*row) for kind, row in zip(kinds, rows, strict=True))
        for ask in COMPARISONS:
            expected = answer(ask, x, y)
            for one, other in ((a, b), (a, y), (x, b), (a, tuple(y)), (tuple(x), b)):
                assert answer(ask, one, other) is expected
        assert (a == b) <= (hash(a) == hash(b))
        assert a + b == a + y == x + b == x + y
        assert (hash(a), repr(a), len(a), a._asdict()) == (
            *(hash(x), repr(x), len(x)),
            x._asdict(),
        )
        begin, end, step = (rng.choice((None, *range(-9, 10))) for _ in "bes")
        assert a[begin : end : step or None] == x[begin : end : step or None]
        name = rng.choice(a._fields)
        value = rng.choice((0, MIN, MAX))
        assert a._replace(**{name: value}) == x._replace(**{name: value})
        for thing in (*x, 7):
            assert a.count(thing) == x.count(thing)
            assert (thing in a) == (thing in x)
        assert pickle.loads(pickle.dumps(a, rng.randrange(6))) == x
        assert copy.deepcopy(a) == kinds[0]._make(iter(x)) == x
        assert sorted([a, *[kinds[0](*x)]]) == [x, x]
