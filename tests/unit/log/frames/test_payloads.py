"""Keys and values as text, and columns of JSON, for every way to a table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.frames import payloads
from support.arrow import pa
from support.values import config_of

VALUES = [
    b'{"city": "Bonn", "n": 1, "x": 0.5, "ok": true}',
    b'{"city": "\xc3\xa9", "n": 9223372036854775807, "x": 2}',
    b'{"city": 5, "n": 1.0, "x": "1", "ok": 1}',
    b'{"n": 9223372036854775808, "x": 1e999}',
    b'{"n": true, "x": NaN}',
    b'{"city": "a", "city": "b"}',
    b'{"city": {"city": "deep"}}',
    b'{"city": "half \\ud800"}',
    b'{"city": "\xff"}',
    b'{"city": "one"}{"city": "two"}',
    b'{"city": "open',
    b"[" * 100_000,
    b"null",
    b'["city"]',
    b"",
    None,
    b'\n {"city": "\xe2\x82\xac"}\n',
]
JSON = {"city": "string", "n": "int64", "x": "double", "ok": "bool"}
CITIES = ["Bonn", "é", *[None] * 3, "b", *[None] * 10, "€"]
NUMBERS: list[Any] = [1, 2**63 - 1, *[None] * 15]


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", partitions=2, config=config_of(2))
        for partition in topic:
            partition.append_many(VALUES, keys=[b"k\xff"] * len(VALUES))
        yield topic


@pytest.mark.parametrize("loads", [payloads._loads, payloads._loads_slowly])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("view", [False, True])
def test_columns_of_json_have_what_is_of_their_type_and_null(
    topic: Any, monkeypatch: pytest.MonkeyPatch, loads: Any, threads: int, view: bool
) -> None:
    """This holds with orjson and without it; no value makes a read fail."""
    monkeypatch.setattr(payloads, "_loads", loads)
    for source, times in ((topic, 2), (topic[0], 1)):
        reader = source.read_arrow(
            columns=["offset"], json=JSON, threads=threads, view=view
        )
        assert reader.schema.names == ["offset", *JSON]
        table = reader.read_all()
        table.validate(full=True)
        assert table["city"].to_pylist() == CITIES * times
        assert table["n"].to_pylist() == NUMBERS * times
        assert table["x"].to_pylist()[:3] == [0.5, 2.0, None]
        assert table["ok"].to_pylist()[:3] == [True, None, None]
    assert topic[0].to_table(json={"n": "int32"})["n"].to_pylist()[:2] == [1, None]


def test_json_of_random_objects_is_what_was_written(tmp_path: Path) -> None:
    """Batches may be of any size, with other columns around it."""
    rng = random.Random(3)

    def value() -> Any:
        number = rng.randrange(-(2**70), 2**70)
        text = rng.choice(["", "text", "\u00e9\u20ac\U0001f600"])
        others = [None, True, rng.random(), [1], {"a": 1}]
        return rng.choice([number, number >> 8, number % 9, text, *others])

    objects = [{name: value() for name in JSON} for _ in range(2000)]
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([json.dumps(one).encode() for one in objects])
        table = partition.read_arrow(json=JSON, batch_records=77).read_all()
    for name, types in (("city", str), ("ok", bool)):
        expected = [o[name] if type(o[name]) is types else None for o in objects]
        assert table[name].to_pylist() == expected
    fits = [type(o["n"]) is int and -(2**63) <= o["n"] < 2**63 for o in objects]
    numbers = [o["n"] if fit else None for o, fit in zip(objects, fits, strict=True)]
    assert table["n"].to_pylist() == numbers
    doubles = [float(o["x"]) if type(o["x"]) in (int, float) else None for o in objects]
    assert table["x"].to_pylist() == doubles


@pytest.mark.parametrize("view", [False, True])
def test_text_has_replacements_for_what_is_no_utf_8(topic: Any, view: bool) -> None:
    """Each value is there; only bytes that are not UTF-8 are replaced."""
    table = topic[0].read_arrow(text=True, view=view, batch_records=4).read_all()
    table.validate(full=True)
    kind = pa.string_view() if view else pa.string()
    assert {table.schema.field(name).type for name in ("key", "value")} == {kind}
    texts = [None if v is None else v.decode("utf-8", "replace") for v in VALUES]
    assert table["value"].to_pylist() == texts
    assert set(table["key"].to_pylist()) == {"k\ufffd"}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"json": {"offset": "int64"}}, logstore.ConfigError, "a column of a log"),
        ({"json": {"a": "date"}}, logstore.ConfigError, "one of string, int32"),
        ({"json": {1: "string"}}, TypeError, "json is int"),
        ({"json": ["a"]}, TypeError, "not a mapping"),
        ({"text": 1}, TypeError, "text is int"),
    ],
)
def test_wrong_choice_is_refused_before_anything_is_read(
    topic: Any, given: dict[str, Any], error: type, words: str
) -> None:
    for source in (topic, topic[0]):
        with pytest.raises(error, match=words):
            source.read_arrow(**given)
        with pytest.raises(error, match=words):
            source.to_table(**given)


def test_limit_and_damage_are_as_without(tmp_path: Path) -> None:
    """A function may decide about damage, which one thread calls."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for number in range(3):
            partition.append(b'{"n": %d}' % number)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with logstore.open(tmp_path, read_only=True) as store:
        partition, asked = store.topic("t")[0], list[Any]()
        with pytest.raises(logstore.CorruptRecordError):
            partition.to_table(json={"n": "int32"})

        def skip(damaged: Any) -> bool:
            asked.append(damaged)
            return True

        table = partition.to_table(json={"n": "int32"}, on_corruption=skip)
        assert table["n"].to_pylist() == [0, 2]
        assert [one.first for one in asked] == [1]
        some = partition.to_table(json={"n": "int32"}, limit=1)
        assert some["n"].to_pylist() == [0]
