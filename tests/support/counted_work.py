"""Work whose instructions are counted, as a program that runs under callgrind.

`tests/support/instructions.py` starts it, with the pieces to do as arguments. Each is
done with a smaller and with a larger number, so that the fixed cost can be subtracted.
Between two pieces is a call of `getsid`: there callgrind writes the counts since the
call before.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import logstore
from logstore import _native as native

__all__ = ["PIECES", "SIZES"]

# A piece of work, by a number of records or calls.
Work = Callable[[int], Any]

_NEVER = (1 << 63) - 1
_BATCH = 250
_CRC_BYTES = 65_536


def _config(magic: int) -> logstore.TopicConfig:
    return logstore.TopicConfig(
        message_format=magic, flush_messages=_NEVER, flush_ms=_NEVER
    )


def _pieces_of(directory: Path, magic: int) -> Iterator[tuple[str, Work]]:
    keys = [b"%08d" % number for number in range(_BATCH)]
    values = [key + bytes(92) for key in keys]
    # A thread that serves other processes would be counted, too.
    config = logstore.StoreConfig(publish_for_others=False)
    store = logstore.open(directory / f"store-{magic}", config=config)
    partition = store.create_topic("t", config=_config(magic))[0]

    def append(count: int) -> None:
        call = partition.append
        for _ in range(count):
            call(values[0], keys[0])

    def append_many(count: int) -> None:
        for _ in range(count // _BATCH):
            partition.append_many(values, keys)

    def append_batches(count: int) -> None:
        for _ in range(count // _BATCH):
            partition.append_batches(sent)

    def read(count: int) -> None:
        for record in partition.read(start, start + count):
            _ = record.value

    def get(count: int) -> None:
        call = partition.get
        for number in range(count):
            call(start + number)

    def scan(count: int) -> None:
        log = logs[count]
        found = native.scan_batches(
            log, len(log), checks=native.CHECK_ALL, count_max=count
        )
        assert len(found.headers) == count // (_BATCH if magic == 2 else 1)

    def verify(count: int) -> None:
        assert logstore.verify(stores[count]).records == count

    yield f"append, magic {magic}", append
    yield f"append_many, magic {magic}", append_many
    producer = store.create_topic("sent", config=_config(magic))[0]
    producer.append_many(values, keys)
    sent = Path(producer.segments[0].path).read_bytes()
    # Under the lock, like each counted call: the work of Python at the very first call
    # is not counted.
    partition.append_batches(sent, expected_offset=partition.end_offset)
    yield f"append_batches, magic {magic}", append_batches
    start = partition.end_offset
    for _ in range(SIZES["read"][1] // _BATCH):
        partition.append_many(values, keys)
    yield f"read, magic {magic}", read
    yield f"get, magic {magic}", get
    stores = {n: directory / f"stored-{magic}-{n}" for n in SIZES["verify"]}
    logs = {}
    for count, path in stores.items():
        with logstore.open(path) as other:
            one = other.create_topic("t", config=_config(magic))[0]
            for _ in range(count // _BATCH):
                one.append_many(values, keys)
            logs[count] = Path(one.segments[0].path).read_bytes()
    yield f"scan, magic {magic}", scan
    yield f"verify, magic {magic}", verify
    store.close()


def _checksums() -> Iterator[tuple[str, Work]]:
    data = bytes(range(256)) * (_CRC_BYTES // 256)
    for name, call in (("crc32", native.crc32), ("crc32c", native.crc32c)):
        for size in (128, _CRC_BYTES):
            part = data[:size]

            def sums(count: int, call: Any = call, part: bytes = part) -> None:
                for _ in range(count):
                    call(part)

            yield f"{name}, {size} bytes", sums


# The smaller and the larger number of each kind of work. Scanning and verifying have
# the same logs.
SIZES = {
    "append": (20, 120),
    "append_many": (500, 2500),
    "append_batches": (500, 2500),
    "read": (500, 2500),
    "get": (20, 120),
    "scan": (500, 2500),
    "verify": (500, 2500),
    "crc32": (10, 60),
    "crc32c": (10, 60),
}
KINDS = ("append", "append_many", "append_batches", "read", "get", "scan", "verify")
PIECES = [
    *(f"{kind}, magic {magic}" for magic in (1, 2) for kind in KINDS),
    *(f"{kind}, {n} bytes" for kind in ("crc32", "crc32c") for n in (128, _CRC_BYTES)),
]


def main() -> None:
    """Do each piece uncounted, then the smaller number of it, then the larger one."""
    chosen = set(sys.argv[2:])
    gc.disable()  # any change of the code would move its runs
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for pieces in (
            _pieces_of(directory, 1),
            _pieces_of(directory, 2),
            _checksums(),
        ):
            for name, work in pieces:
                if name not in chosen:
                    continue
                small, large = SIZES[name.partition(",")[0]]
                work(small)
                work(large)
                for number in (small, large):
                    os.getsid(0)
                    work(number)
                os.getsid(0)


if __name__ == "__main__":
    main()
