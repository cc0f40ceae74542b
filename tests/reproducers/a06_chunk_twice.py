"""A Chunk of fetch(isolation="read_committed") that is iterated a second time gives
other records: it includes records of aborted transactions, or leaves out committed
ones. The filter of the first pass is used up.

Usage: python a06_chunk_twice.py
"""

import struct
import tempfile

import crc32c  # any CRC-32C

import logstore


def varint(n):
    n = (n << 1) ^ (n >> 63)
    n &= (1 << 64) - 1
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def batch(base, records, *, control=False, pid=7, ts=1000):
    """A transactional batch of magic 2; records: (key, value)."""
    area = b""
    for i, (key, value) in enumerate(records):
        body = (
            b"\0"
            + varint(0)
            + varint(i)
            + varint(len(key))
            + key
            + varint(len(value))
            + value
            + varint(0)
        )
        area += varint(len(body)) + body
    attributes = 0x10 | (0x20 if control else 0)
    rest = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(records) - 1,
            ts,
            ts,
            pid,
            0,
            -1 if control else base,
            len(records),
        )
        + area
    )
    head = struct.pack(">ib", 0, 2) + struct.pack(">I", crc32c.crc32c(rest))
    return struct.pack(">qi", base, len(head) + len(rest)) + head + rest


def marker(base, commit):
    return batch(
        base,
        [(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))],
        control=True,
    )


def attempt(first_commits):
    log = (
        batch(0, [(b"k", b"first")])
        + marker(1, first_commits)
        + batch(2, [(b"k", b"second")])
        + marker(3, not first_commits)
    )
    with tempfile.TemporaryDirectory() as path:
        import os

        os.mkdir(f"{path}/t-0", 0o700)
        with open(f"{path}/t-0/{0:020d}.log", "wb") as file:
            file.write(log)
        with logstore.open(path, read_only=True) as store:
            p = store.topic("t")[0]
            chunk = p.fetch(0, isolation="read_committed")
            return (
                [r.value for r in chunk],
                [r.value for r in chunk],
                [r.value for r in p.read(isolation="read_committed")],
            )


wrong = False
for first_commits in (True, False):
    one, two, read = attempt(first_commits)
    bad = not one == two == read
    wrong |= bad
    print(
        "WRONG" if bad else "OK   ",
        f"first pass {one}, second pass {two}, read() {read}",
    )
raise SystemExit(wrong)
