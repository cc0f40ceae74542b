"""JSON without orjson: the same bytes, and the same refusals."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.cli import plain_json

Dumps = Callable[..., bytes]
# Without halves of surrogate pairs, which both refuse.
TEXT = st.text(st.characters(codec="utf-8"))
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(TEXT, inner)
    ),
)


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    THREE = 3


class Text(str):
    pass


class Items(list[Any]):
    pass


class Pair(tuple[int, ...]):
    pass


class Float(float):
    pass


@given(VALUES)
def test_any_value_is_written_as_orjson_writes_it(value: Any) -> None:
    assert plain_json.dumps(value) == orjson.dumps(value)


@given(st.floats(1e-7, 1e-3) | st.floats(1e14, 1e18))
def test_number_near_a_change_of_notation_is_written_as_orjson_writes_it(
    value: float,
) -> None:
    for number in (value, -value):
        assert plain_json.dumps(number) == orjson.dumps(number)


def test_every_character_is_written_as_orjson_writes_it() -> None:
    """The same characters are escaped, in the same way."""
    codes = [*range(0xD800), *range(0xE000, 0x110000)]
    for first in range(0, len(codes), 4096):
        text = "".join(map(chr, codes[first : first + 4096]))
        assert plain_json.dumps(text) == orjson.dumps(text)


@pytest.mark.parametrize(
    "value",
    [Text("a"), Items([1]), Colour.RED, [Number.THREE], {}, [], (), {"": [{}]}, -0.0],
    ids=repr,
)
def test_type_that_is_a_kind_of_another_is_written_as_orjson_writes_it(
    value: Any,
) -> None:
    assert plain_json.dumps(value) == orjson.dumps(value)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


REFUSED = {
    "integer": 1 << 64,
    "negative": -(1 << 63) - 1,
    "name": {1: 2},
    "no name": {None: 2},
    "kind of a name": {Text("a"): 1},
    "half a pair": "\ud800",
    "half a pair in a name": {"\udcff": 1},
    "bytes": b"x",
    "set": {1},
    "kind of a tuple": Pair((1,)),
    "kind of a float": Float(1.5),
    "deep": nested(254),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_orjson_refuses_is_refused(value: Any) -> None:
    """The error is the same; the caller converts the value."""
    for dumps in (orjson.dumps, plain_json.dumps):
        with pytest.raises(TypeError):
            dumps(value)


def test_deepest_value_is_written_as_orjson_writes_it() -> None:
    assert plain_json.dumps(nested(253)) == orjson.dumps(nested(253))


@pytest.mark.parametrize("module", [orjson, plain_json], ids=["orjson", "plain"])
def test_default_makes_values_of_other_types(module: Any) -> None:
    """Fragments, and values that need a second conversion; an endless chain is
    refused."""

    def default(value: Any) -> Any:
        if isinstance(value, set):
            return [Pair(value)]
        if isinstance(value, bytes):
            return module.Fragment(value)
        return list(value)

    value = {"a": {1}, "b": b'{"n": 1e999}'}
    assert module.dumps(value, default=default) == b'{"a":[[1]],"b":{"n": 1e999}}'
    with pytest.raises(TypeError):
        module.dumps({1}, default=lambda value: value)


def test_what_is_written_is_json() -> None:
    """A parser of Python's reads it back."""
    value = {"a": [1, -2.5e-9, None, True, "\u00e9\x00\x7f\u2028"], "b": {"c": "d"}}
    assert json.loads(plain_json.dumps(value)) == value
    assert plain_json.dumps([math.inf, math.nan]) == b"[null,null]"
