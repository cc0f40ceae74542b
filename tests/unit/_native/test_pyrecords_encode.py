"""Lists of keys and values as batches in one call (pyrecords_encode.c)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from logstore import TopicConfig
from logstore import _native as native
from logstore.record.encoder import BATCH_BYTES_TARGET, Encoder, pack_rows
from support.references import MANY, counts, growth

T = 1_700_000_000_000


def encoded(
    values: Any, keys: Any = None, times: Any = None, magic: int = 2, **other: int
) -> bytes | None:
    chosen = {"max_bytes": 1 << 20, "target": BATCH_BYTES_TARGET, **other}
    return native.encode_lists(
        values, keys, times, T, magic, chosen["max_bytes"], chosen["target"]
    )


def usual(values: Any, keys: Any, times: Any, magic: int) -> bytes:
    """Encode the same records with the usual encoder."""
    rows = pack_rows(values, keys, times, None, magic=magic, now_ms=T)
    runs = Encoder(TopicConfig(message_format=magic)).encode(rows, 0, T, 0)
    return b"".join([native.bytes_of(run, size) for run, size in runs])


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("kind", [list, tuple])
def test_bytes_are_those_of_the_encoder(magic: int, kind: type) -> None:
    """Lists of bytes may have keys and times or not, and fill several batches."""
    rng = random.Random(magic)
    for _ in range(40):
        count = rng.choice([1, 2, 100, 900])

        def column(
            count: int = count, sizes: tuple[int, ...] = (0, 1, 9, 200)
        ) -> list[bytes | None]:
            return [
                None if rng.random() < 0.2 else rng.randbytes(rng.choice(sizes))
                for _ in range(count)
            ]

        values = column(sizes=(0, 100, 240))
        keys = column(sizes=(0, 1, 9)) if rng.random() < 0.5 else None
        times = [T + rng.randrange(9) for _ in values] if rng.random() < 0.5 else None
        found = encoded(kind(values), keys and kind(keys), times and kind(times), magic)
        assert found == usual(values, keys, times, magic)


@pytest.mark.parametrize(
    "arguments",
    [
        ([],), ("text",), (b"bytes",), (None,), ({b"v"},), ([b"v", "w"],),
        ([bytearray(b"v")],), ([b"v"], [5]), ([b"v"], []), ([b"v"], b"k"),
        ([b"v"], None, [None]), ([b"v"], None, [-2]), ([b"v"], None, [1.5]),
        ([b"v"], None, [1 << 63]), ([b"v"], None, [1, 2]), ([b"v"] * 8193,),
        ([bytes(100_000)] * 3,), ([bytes(1 << 21)],),
    ],
)  # fmt: skip
def test_all_else_goes_the_usual_way(arguments: Any) -> None:
    """The usual way reports the error, if there is one."""
    assert encoded(*arguments) is None
    assert encoded([b"v"]) is not None


def test_limits_are_those_of_the_topic() -> None:
    assert encoded([bytes(500)], magic=1, max_bytes=534) is not None
    assert encoded([bytes(501)], magic=1, max_bytes=534) is None
    assert encoded([bytes(500)], max_bytes=500) is None
    few, many = encoded([bytes(90)] * 9), encoded([bytes(90)] * 9, target=300)
    assert few is not None
    assert many is not None
    assert len(many) > len(few)
    assert encoded([b"v"], magic=3) is encoded([b"v"], magic=-1) is None


def test_other_arguments_are_our_own_mistake() -> None:
    for arguments in ((), ([b"v"],), ([b"v"], None, None, "now", 2, 1, 1)):
        with pytest.raises(TypeError):
            native.encode_lists(*arguments)  # type: ignore[call-arg]


def test_references_and_memory_stay_the_same() -> None:
    item = b"an item of its own " * 2
    items, bad = [item, None], [item, "text"]
    before = counts(item, items, bad)
    for _ in range(MANY):
        encoded(items)
        encoded(bad)
        encoded([item], items)
    assert counts(item, items, bad) == before
    assert growth(lambda: encoded(items, items)) < 20_000
