"""The records that every case writes and reads, and how what came back is checked.

Keys are 8 bytes, values 100 bytes, batches 1,000 records, unless a case says otherwise.
A value is made from a seed and its number, so that a record in the wrong place shows.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

__all__ = [
    "BATCH_RECORDS",
    "KEY_BYTES",
    "TIMESTAMP_MS",
    "VALUE_BYTES",
    "Digest",
    "Workload",
]

KEY_BYTES: Final = 8
VALUE_BYTES: Final = 100
BATCH_RECORDS: Final = 1_000
TIMESTAMP_MS: Final = 1_700_000_000_000
_SEED: Final = 20261121


class Digest:
    """Number and checksums of the keys and values that were added, in order."""

    def __init__(self) -> None:
        self.count = 0
        self.keys = 0
        self.values = 0

    def add(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        values = list(values)
        self.count += len(values)
        self.keys = zlib.crc32(b"".join(keys), self.keys)
        self.values = zlib.crc32(b"".join(values), self.values)

    def add_arrow(self, batch: Any) -> None:
        """A record batch with columns ``key`` and ``value``."""
        self.count += batch.num_rows
        self.keys = zlib.crc32(_data_of(batch.column("key")), self.keys)
        self.values = zlib.crc32(_data_of(batch.column("value")), self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Digest({self.count} records, {self.keys:#010x}, {self.values:#010x})"


def _data_of(column: Any) -> memoryview:
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[column.offset], ends[column.offset + len(column)]
    return memoryview(data)[first:last]


class Workload:
    """`count` records, in batches of `batch_records`.

    Attributes:
        keys, values: lists of bytes; the key of record n is n in 8 bytes of the
            machine's order, which is also how LMDB wants an integer key.
        batches: the same as (keys, values) of `batch_records` records each.
        pairs: the same as lists of (key, value).
    """

    def __init__(
        self,
        count: int,
        value_bytes: int = VALUE_BYTES,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        if count % batch_records:
            raise ValueError(f"count={count} is not a multiple of {batch_records}")
        self.count = count
        self.value_bytes = value_bytes
        self.batch_records = batch_records
        noise = random.Random(_SEED).randbytes(value_bytes + 4096)
        self.keys = [n.to_bytes(KEY_BYTES, "little") for n in range(count)]
        self.values = [
            key + noise[n % 4096 : n % 4096 + value_bytes - KEY_BYTES]
            for n, key in enumerate(self.keys)
        ]
        self.batches = [
            (self.keys[i : i + batch_records], self.values[i : i + batch_records])
            for i in range(0, count, batch_records)
        ]
        self.pairs = [list(zip(*batch, strict=True)) for batch in self.batches]
        self.digest = Digest()
        self.digest.add(self.keys, self.values)

    def arrow_batches(self) -> Iterator[Any]:
        """The batches as Arrow record batches."""
        for keys, values in self.batches:
            yield pa.record_batch(
                {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.array(values, pa.binary()),
                }
            )

    def check(self, digest: Digest, who: str) -> None:
        """Raise unless `digest` is that of all records."""
        if digest != self.digest:
            raise AssertionError(f"{who} gave {digest}, not {self.digest}")

    def check_pairs(self, pairs: Iterable[tuple[bytes, bytes]], who: str) -> None:
        """Raise unless these (key, value) pairs equal all records, in order."""
        pairs = list(pairs)
        digest = Digest()
        digest.add([key for key, _ in pairs], [value for _, value in pairs])
        self.check(digest, who)

    def check_count(self, count: int, who: str) -> None:
        if count != self.count:
            raise AssertionError(f"{who} gave {count} records, not {self.count}")
