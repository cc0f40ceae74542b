"""The cost of the check of producers in `append_batches`: ``python -m
bench.producers``.

Batches of 1,000 records of 8 + 100 bytes, of one idempotent producer, and the same
bytes without a producer, are appended in turns, each to a separate partition, no sync.
The medians are of single calls. All appended records are read back.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import crc32c

import logstore

__all__ = ["main"]

_RECORDS = 1_000
# In a batch of magic 2: producer id, epoch and sequence; the checksum, what it covers.
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POS = 43
_CRC_POS, _COVERED_POS = 17, 21


def _numbered(path: Path, count: int) -> list[bytes]:
    """Buffers of whole batches, as a producer sends them."""
    with logstore.open(path) as store:
        config = logstore.TopicConfig(message_format=2)
        partition = store.create_topic("made", config=config)[0]
        producer = store.producer("bench")
        buffers = []
        for n in range(count):
            keys = [b"%08d" % (n * _RECORDS + i) for i in range(_RECORDS)]
            values = [key * 12 + b"1234" for key in keys]
            offsets = producer.append_many(partition, values, keys)
            batches = partition.read_batches(offsets.start)
            buffers.append(b"".join(bytes(batch.buffer) for batch in batches))
        return buffers


def _plain(buffer: bytes) -> bytes:
    """The same without a producer: of one batch."""
    data = bytearray(buffer)
    _PRODUCER.pack_into(data, _PRODUCER_POS, -1, -1, -1)
    crc = crc32c.crc32c(bytes(data[_COVERED_POS:]))
    struct.pack_into(">I", data, _CRC_POS, crc)
    return bytes(data)


def _timed(partition: logstore.Partition, buffer: bytes) -> int:
    begin = time.perf_counter_ns()
    partition.append_batches(buffer)
    return time.perf_counter_ns() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--directory", default=None, help="where the stores are made")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        numbered = _numbered(Path(folder, "made"), options.calls)
        plain = [_plain(buffer) for buffer in numbered]
        config = logstore.TopicConfig(message_format=2, flush_ms=1 << 60)
        times: tuple[list[int], list[int]] = ([], [])
        with logstore.open(Path(folder, "store")) as store:
            sides = [store.create_topic(name, 1, config)[0] for name in ("a", "b")]
            for turn, pair in enumerate(zip(plain, numbered, strict=True)):
                # The second one finds warmer caches.
                for side in (0, 1) if turn % 2 else (1, 0):
                    times[side].append(_timed(sides[side], pair[side]))
            for partition in sides:
                found = sum(1 for _ in partition.read())
                assert found == options.calls * _RECORDS, "not all was appended"
    without, checked = (statistics.median(side) / 1_000 for side in times)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    print(
        f"append_batches, {_RECORDS} records: {without:.1f} us without a producer, "
        f"{checked:.1f} us with one; ratio {ratio:.3f}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
