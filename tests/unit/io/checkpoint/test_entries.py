"""Entries of state files: valid entries after a torn append, and damage."""

from __future__ import annotations

import json
import random

import pytest

from logstore.io.checkpoint.entries import (
    FileEnd,
    end_of,
    first_entry,
    later_entries,
    later_entry,
    seal_of,
    split_entries,
    with_room_for_seal,
)

BODIES = [b'{"version":1}', b'{"a":[1,2,3],"version":1}', b'{"b":"xxh64 "}', b"{}"]


def written(bodies: list[bytes], *, is_sealed: bool = False) -> tuple[bytes, list[int]]:
    """A file with these entries, and the end of each of them; each entry that was
    appended is followed by a seal."""
    data = first_entry(bodies[0])
    end = end_of(data, None)
    ends = [len(data)]
    for body in bodies[1:]:
        entry = later_entry(end, body)
        data, end = data[: end.size] + entry, end.after(entry)
        data += seal_of(end) if is_sealed else b""
        ends.append(end.size)
    return data, ends


def test_entries_are_read_as_they_were_written() -> None:
    """Entries come in order, and the end is the position of the next one."""
    data, ends = written(BODIES)
    bodies, end = split_entries(data)
    assert bodies == BODIES
    assert (end.first, end.size) == (ends[0], ends[-1] == len(data) and len(data))


def test_file_of_one_entry_is_that_of_earlier_versions() -> None:
    """The last line end may be missing."""
    data = first_entry(b'{"version":1}')
    assert data.startswith(b"xxh64 ")
    assert data.endswith(b'\n{"version":1}\n')
    assert split_entries(data)[0] == [b'{"version":1}']
    assert split_entries(data[:-1])[0] == [b'{"version":1}']


def test_torn_entry_leaves_those_before_it() -> None:
    """The entry is cut off at each byte, and followed by zeros or other old bytes, as
    after a power failure during the only write that was not synced."""
    data, ends = written(BODIES)
    random_bytes = random.Random(1)
    for count in range(1, len(ends)):
        begin, stop = ends[count - 1], ends[count]
        size = stop - begin
        for cut in range(size):
            assert split_entries(data[: begin + cut])[0] == BODIES[:count]
            for other in (
                bytes(size - cut),
                random_bytes.randbytes(size - cut),
                (data[: stop - cut] * 2)[: size - cut],
                (data[random_bytes.randrange(begin) :] * 9)[: size - cut],
            ):
                torn = data[: begin + cut] + other
                if torn != data[:stop]:
                    bodies, end = split_entries(torn)
                    assert bodies == BODIES[:count]
                    assert end.size == begin
            later = data[:begin] + bytes(cut) + data[begin + cut : stop]
            if later != data[:stop]:
                assert split_entries(later)[0] == BODIES[:count]


def test_each_flipped_bit_before_the_last_entry_is_damage() -> None:
    """In the last one it looks like a torn write."""
    data, ends = written(BODIES)
    for pos in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[pos] ^= 1 << bit
            if pos < ends[-2]:
                with pytest.raises(ValueError, match="checksum"):
                    split_entries(bytes(flipped))
            else:
                assert split_entries(bytes(flipped))[0] == BODIES[:-1]


def test_lost_sector_before_the_last_entries_is_damage() -> None:
    """Two entries that stand one after the other show that they were written."""
    data, ends = written([*BODIES, b'{"c":1}', b'{"d":1}'])
    for begin in range(ends[0], ends[3]):
        for stop in range(begin + 1, ends[3] + 1):
            holed = data[:begin] + bytes(stop - begin) + data[stop:]
            with pytest.raises(ValueError, match="checksum"):
                split_entries(holed)


def test_entry_counts_only_where_it_was_written() -> None:
    """An entry does not count a second time, in another order, or after another first
    entry."""
    data, ends = written([b"{}", b"{}", b"{}", b"{}"])
    first, second = data[ends[0] : ends[1]], data[ends[1] : ends[2]]
    assert len(split_entries(data[: ends[0]] + second)[0]) == 1
    assert len(split_entries(data[: ends[1]] + first)[0]) == 2
    assert len(split_entries(first_entry(b"[]") + first)[0]) == 1


def test_text_like_many_entries_takes_no_long_time() -> None:
    """A megabyte of checksum lines in one line: each of them could begin an entry."""
    data = first_entry(b"{}") + b"xxh64 0123456789abcdef " * 50_000 + b"\n"
    assert split_entries(data)[0] == [b"{}"]


def test_file_is_long_when_its_entries_have_its_first_size() -> None:
    """The limit is at least 64 KiB."""
    assert not FileEnd(100, 100 + (64 << 10), 0).is_long()
    assert FileEnd(100, 101 + (64 << 10), 0).is_long()
    assert not FileEnd(1 << 20, 2 << 20, 0).is_long()
    assert FileEnd(1 << 20, (2 << 20) + 1, 0).is_long()


def test_later_entries_are_those_behind_an_end() -> None:
    """Entries after each end are found; none after the last one."""
    data, ends = written(BODIES)
    for count, at in enumerate(ends, 1):
        _, end = split_entries(data[:at])
        found = later_entries(data[at:], end)
        assert found is not None
        assert found[0] == BODIES[count:]
        assert found[1] == split_entries(data)[1]


def test_later_entries_are_all_valid_or_refused() -> None:
    """The file may be cut off, have one other byte, or follow another file of the same
    size."""
    data, ends = written(BODIES)
    _, end = split_entries(data[: ends[0]])
    later = data[ends[0] :]
    whole = [at - ends[0] for at in ends]
    for size in range(len(later)):
        assert (later_entries(later[:size], end) is None) == (size not in whole)
        changed = bytearray(later)
        changed[size] ^= 1
        assert later_entries(bytes(changed), end) is None
    other = split_entries(first_entry(BODIES[0].replace(b"1", b"2")))[1]
    assert other.size == end.size
    assert later_entries(later, other) is None


# ---------------------------------------------------------------- sealed entries


def test_seal_is_no_entry_and_is_overwritten_by_the_next_one() -> None:
    """The file is read whole, or from an earlier end on."""
    data, ends = written(BODIES, is_sealed=True)
    assert len(data) > ends[-1]
    for found in (data, data[: ends[-1]]):
        bodies, end = split_entries(found)
        assert (bodies, end.size) == (BODIES, ends[-1])
    _, end = split_entries(data[: ends[1]])
    later = later_entries(data[ends[1] :], end)
    assert later is not None
    assert later == (BODIES[2:], split_entries(data)[1])
    # Only the seal has been written since.
    assert later_entries(data[ends[-1] :], later[1]) == ([], later[1])


def test_each_damaged_bit_of_a_sealed_entry_is_damage() -> None:
    """Damage of a seal is ignored: it carries no data."""
    data, ends = written(BODIES, is_sealed=True)
    for pos in range(ends[-2], len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[pos] ^= 1 << bit
            if pos < ends[-1]:
                with pytest.raises(ValueError, match="checksum"):
                    split_entries(bytes(flipped))
            else:
                assert split_entries(bytes(flipped))[0] == BODIES


def test_entry_that_is_cut_off_over_a_seal_leaves_those_before_it() -> None:
    """Any part of the entry may be there, and any bytes in the place of the rest."""
    before, ends = written(BODIES, is_sealed=True)
    end = split_entries(before)[1]
    entry = later_entry(end, b'{"version":1,"text":"%s"}' % (b"x" * 40))
    old = before[ends[-1] :].ljust(len(entry), b"\0")
    for cut in range(len(entry)):
        for torn in (entry[:cut], entry[:cut] + old[cut:], old[:cut] + entry[cut:]):
            if torn != entry:
                found = split_entries(before[: ends[-1]] + torn)
                assert found[0] == BODIES
                assert found[1].size == ends[-1]


def test_seal_begins_no_block_of_the_disk() -> None:
    """The entry may end at any position: a full disk has room for both, or for none."""
    data = first_entry(b'{"version":1}')
    end = end_of(data, None)
    for size in range(1500):
        body = with_room_for_seal(end, b'{"a":"%s"}' % (b"x" * (size % 700)))
        entry = later_entry(end, body)
        data, end = data + entry, end.after(entry)
        seal = seal_of(end)
        assert end.size % 512
        assert end.size // 512 == (end.size + len(seal) - 1) // 512
    bodies, found = split_entries(data)
    assert found.size == len(data)
    assert [json.loads(body) for body in bodies[1:4]] == [
        {"a": ""}, {"a": "x"}, {"a": "xx"},
    ]  # fmt: skip
    assert 0 < sum(body.endswith(b" ") for body in bodies) < 300
