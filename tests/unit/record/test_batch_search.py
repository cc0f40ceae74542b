"""Batches are found by their checksums after any other bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from logstore import TopicConfig
from logstore import _native as native
from logstore.record import batch_search
from logstore.record.batch_search import BATCH_BYTES_MIN, MAGIC_POS, possible_batches
from logstore.record.encoder import Encoder, pack_rows


def batch(magic: int, offset: int = 5) -> bytes:
    encoder = Encoder(TopicConfig(message_format=magic))
    rows = pack_rows([b"value"], [b"key"], None, None, now_ms=7, magic=magic)
    return b"".join(
        bytes(native.buffer_of(data, size))
        for data, size in encoder.encode(rows, offset, 7, 0)
    )


def found(data: bytes) -> list[tuple[int, bool]]:
    return list(possible_batches(data, native.pointer(data)))


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("before", [b"", b"\0", b"\2" * 40, bytes(300), b"x" * 999])
def test_batch_is_found_behind_anything(magic: int, before: bytes) -> None:
    """Two batches are found, too, of each format."""
    one, two = batch(magic), batch(magic, 6)
    assert len(one) >= BATCH_BYTES_MIN
    places = [at for at, is_whole in found(before + one + two) if is_whole]
    assert places == [len(before), len(before) + len(one)]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_changed_byte_makes_it_none(magic: int) -> None:
    """A change anywhere under the checksum counts; the offset is not covered."""
    data, rng = batch(magic), random.Random(magic)
    for at in range(8, len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << rng.randrange(8)
        whole = [pos for pos, is_whole in found(bytes(wrong)) if is_whole]
        # The leader's epoch of magic 2 is not covered either.
        assert whole == ([0] if magic == 2 and 12 <= at < 16 else []), at


def test_batch_without_its_end_may_be_one() -> None:
    """The header decides."""
    data = batch(2)
    cut = found(data[:-1])
    assert cut[0] == (0, False)
    assert not any(is_whole for _, is_whole in cut)
    assert found(data[: BATCH_BYTES_MIN - 10]) == []
    assert found(b"") == []


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batch_of_a_large_offset_is_found_at_the_end(magic: int) -> None:
    """Its first bytes are not zeros: it counts as a batch only if it is complete, to
    the byte."""
    data = batch(magic, 5 << 32)
    assert (0, True) in found(data)
    assert (0, True) in found(data + b"\xff")
    assert not any(at == 0 for at, _ in found(data[:-1]))


def plain_candidates(data: bytes) -> list[int]:
    """Plain reference: each position, one after the other."""
    positions = []
    for begin in range(len(data) - MAGIC_POS):
        length = int.from_bytes(data[begin + 8 : begin + 12], "big")
        if data[begin + MAGIC_POS] > 2 or data[begin] >= 0x80:
            continue
        is_small = length <= len(data) - begin - 12
        if 14 <= length < 1 << 31 and (is_small or not any(data[begin : begin + 4])):
            positions.append(begin)
    return positions


def test_zeros_hide_no_batch() -> None:
    """Runs of zeros have any length, between random bytes and batches."""
    rng = random.Random(7)
    for _ in range(300):
        pieces = []
        for _ in range(rng.randrange(1, 6)):
            pieces.append(bytes(rng.choice((1, 11, 12, 60, 63, 64, 65, 75, 76, 300))))
            pieces.append(rng.choice((b"", batch(rng.randrange(3)), rng.randbytes(30))))
        data = b"".join(pieces)
        assert list(batch_search._candidates(data)) == plain_candidates(data)


def test_long_runs_of_zeros_are_passed_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file may have gigabytes of them after a crash."""
    tries = 0

    class Counted:
        def finditer(self, data: bytes, start: int) -> Iterator[re.Match[bytes]]:
            nonlocal tries
            for one in re.compile(rb"[\0-\2]").finditer(data, start):
                tries += 1
                yield one

    monkeypatch.setattr(batch_search, "_MAGICS", Counted())
    zeros = bytes(8 << 20)
    data = zeros + batch(2) + zeros
    assert (len(zeros), True) in found(data)
    assert tries < 1000
