"""Decoded records as Arrow record batches, without a Python object per record.

pyarrow is optional: this module imports it, and `extras` imports this module at the
first use.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from logstore import _native as native
from logstore.config import check_kind
from logstore.errors import ConfigError, UnsupportedError, again
from logstore.record.decoder import read_headers

__all__ = [
    "SCHEMA",
    "BatchMaker",
    "Memory",
    "as_views",
    "check_columns",
    "check_view",
    "reader_of",
    "schema_of",
    "stream_of",
]

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = {
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "timestampType": pa.field("timestampType", pa.int32(), nullable=False),
    "headers": pa.field("headers", pa.list_(_HEADER)),
}
_PAYLOADS: Final = ("key", "value")
# A batch ends before its keys, or its values, have more bytes, unless it is a single
# record: so its memory can be used again, and is bounded. (Arrow's binary columns have
# 32 bit positions. A record is always smaller than 2 GiB.)
_DATA_BYTES_MAX: Final = 8 << 20
# A column may grow to this at once because a full batch is likely to need it.
_GROWTH_BYTES_MAX: Final = 8 << 20
# A batch of views keeps the buffers alive that it points into: it ends when they have
# this many bytes.
_PINNED_BYTES_MAX: Final = 4 << 20
# Bytes of each read but the first: columns cost so little to decode that each call
# counts.
READ_BYTES: Final = 2 << 20
# Blocks of each kind to keep that no batch uses, for each user. A consumer that drops a
# batch when it has the next one needs two.
_KEPT_MIN: Final = 2
_KEPT_BYTES_MAX: Final = 16 << 20


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    for name in columns:
        if name not in SCHEMA:
            raise ConfigError(
                f"columns has {name!r}, which is not one of {', '.join(SCHEMA)}",
                name="columns",
                value=name,
            )
    return tuple(columns)


def check_view(view: bool) -> None:
    """Raise unless `view` can be given.

    Raises:
        TypeError: it is not a bool.
        UnsupportedError: views are wanted, and this pyarrow does not have them.
    """
    check_kind("view", view, bool)
    if view and not hasattr(pa, "binary_view"):
        raise UnsupportedError(
            f"view=True needs pyarrow 16 or later, which has binary_view; this is "
            f"pyarrow {pa.__version__}"
        )


def schema_of(columns: Sequence[str], view: bool = False) -> Any:
    """The `pyarrow.Schema` of these columns; with `view`, of views."""
    schema = pa.schema([SCHEMA[name] for name in columns])
    return as_views(schema) if view else schema


def as_views(schema: Any) -> Any:
    """A schema with the columns `key` and `value` as views."""
    for index, field in enumerate(schema):
        if field.name in _PAYLOADS:
            schema = schema.set(index, field.with_type(pa.binary_view()))
    return schema


class Memory:
    """Memory for the columns of batches. A block is used again when no array refers to
    it any more: memory that is new to the process costs more than filling it, because
    the system clears each page first. Any thread may use it.

    Attributes:
        view: whether keys and values are views of the bytes that were read.
        reads: buffers for the reads.
        sizes: bytes that a batch's keys and values may need; its users update them.
    """

    def __init__(self, users: int = 1, *, view: bool = False) -> None:
        """Args: users: how many batches are filled at the same time."""
        self.view = view
        self.reads = native.BufferPool(
            READ_BYTES, _KEPT_BYTES_MAX * users // READ_BYTES
        )
        self.sizes = {"key": 4096, "value": 65536}
        # Not read from the module: at the end of the interpreter, that may be empty.
        self._kept_min = _KEPT_MIN
        self._kept_bytes_max = _KEPT_BYTES_MAX * users
        self._free: dict[str, deque[Any]] = {}
        self._is_open = True

    def take(self, kind: str, size: int) -> _Block:
        """A block of at least `size` bytes, for the caller alone."""
        free = self._free.setdefault(kind, deque())
        memory = None
        with contextlib.suppress(IndexError):
            memory = free.pop()
        if memory is None or not size <= memory.size <= 4 * size:
            memory = pa.allocate_buffer(size)
        return _Block(self, free, memory)

    def take_back(self, free: deque[Any], memory: Any) -> None:
        """Called when nothing refers to a block any more."""
        kept = len(free)
        is_kept = (
            kept < self._kept_min or (kept + 1) * memory.size <= self._kept_bytes_max
        )
        if self._is_open and is_kept:
            free.append(memory)

    def close(self) -> None:
        """Keep nothing from now on; blocks in use are not changed."""
        self._is_open = False
        self.reads.close()
        for free in list(self._free.values()):
            free.clear()


class _Block:
    """Memory that goes back when no buffer of it is left."""

    __slots__ = ("_free", "_home", "_memory", "address", "size")

    def __init__(self, home: Memory, free: deque[Any], memory: Any) -> None:
        self._home = home
        self._free = free
        self._memory = memory
        self.address = memory.address
        self.size = memory.size

    def buffer(self, size: int) -> Any:
        """Its first bytes as a `pyarrow.Buffer`, which keeps the block."""
        return pa.foreign_buffer(self.address, size, self)

    def __del__(self) -> None:
        self._home.take_back(self._free, self._memory)


class _Batch:
    """A record batch that is being filled.

    Attributes:
        headers: of its records, if they are wanted, and of some more.
        header_bytes: upper bound of their bytes.
    """

    def __init__(self, columns: Sequence[str], capacity: int, memory: Memory) -> None:
        self.headers: list[Any] = []
        self.header_bytes = 0
        self.rows = native.ArrowRows(capacity)
        self._capacity = capacity
        self._memory = memory
        self._view = memory.view
        self._payloads = [name for name in _PAYLOADS if name in columns]
        self._blocks: dict[str, _Block] = {}
        # The buffers that views point into, and how many bytes of each.
        self._owners: list[Any] = []
        self._owner_sizes: list[int] = []
        for name in columns:
            if name in _PAYLOADS:
                self._begin_payload(name, capacity)
            elif name == "timestampType":
                self.rows.use_types(self._block(name, 4 * capacity))
            elif name != "headers":
                self.rows.use_int64(name, self._block(name, 8 * capacity))
            if name == "timestamp":
                self.rows.use_timed(self._block("timed", capacity // 8 + 8))

    def _block(self, kind: str, size: int) -> int:
        """The address of new memory."""
        block = self._blocks[kind] = self._memory.take(kind, size)
        return int(block.address)

    def _begin_payload(self, name: str, capacity: int) -> None:
        validity = self._block(f"{name} nulls", capacity // 8 + 8)
        if self._view:
            views = self._block(f"{name} views", native.VIEW_BYTES * capacity)
            self.rows.use_views(name, validity, views)
        else:
            offsets = self._block(f"{name} offsets", 4 * (capacity + 1))
            self.rows.use_binary(name, validity, offsets)
            size = min(max(self._memory.sizes[name], 64), _DATA_BYTES_MAX)
            self._use_data(name, self._memory.take(f"{name} data", size), size)

    def _use_data(self, name: str, block: _Block, size: int) -> None:
        self._blocks[f"{name} data"] = block
        capacity = min(block.size, max(size, _DATA_BYTES_MAX))
        self.rows.use_data(name, block.address, capacity)

    @property
    def count(self) -> int:
        return int(self.rows.count)

    @property
    def left(self) -> int:
        """How many more records it may have."""
        return self._capacity - self.count

    def accepts(self, run: native.Columns) -> bool:
        """Prepare to point into the bytes of a run; False if it must not keep more of
        them."""
        if not self._view:
            return True
        if not self._owners or self._owners[-1] is not run.owner:
            if self.count and sum(self._owner_sizes) >= _PINNED_BYTES_MAX:
                return False
            self.rows.point_into(len(self._owners))
            self._owner_sizes.append(run.size)
            self._owners.append(run.owner)
        self._owner_sizes[-1] = max(self._owner_sizes[-1], run.size)
        return True

    def grow(self, run: native.Columns, first: int, count: int) -> bool:
        """Make room for the bytes of the next records of a run; False if the batch is
        as large as it may be."""
        if self._view:
            return False
        d, has_grown = run.decoder, False
        for name in self._payloads:
            lengths = d.arrays.key_len if name == "key" else d.arrays.value_len
            used, room = self.rows.used(name), self.rows.room(name)
            needed = used + d.sum_lengths(lengths, first, first + count)
            if needed <= room:
                continue
            likely = used * self.rows.capacity // max(self.count, 1)
            likely = min(likely + likely // 16, _GROWTH_BYTES_MAX)
            size = min(max(needed, 2 * room, likely), _DATA_BYTES_MAX)
            least_size = used + d.sum_lengths(lengths, first, first + 1)
            if least_size > size:
                if self.count:
                    return False
                size, self._capacity = least_size, 1
            if size > room:
                old = self._blocks[f"{name} data"]
                block = self._memory.take(f"{name} data", size)
                native.copy_bytes(block.address, old.address, used)
                self._use_data(name, block, size)
                has_grown = True
        return has_grown

    def arrays(self, columns: Sequence[str]) -> list[Any]:
        """Its columns; it must not be filled any further."""
        return [self._array(name) for name in columns]

    def _array(self, name: str) -> Any:
        count, kind = self.count, SCHEMA[name].type
        if name == "headers":
            return pa.array(self.headers[:count], type=kind)
        if name in _PAYLOADS:
            return self._payload_array(name)
        timed = None
        if name == "timestamp" and self.rows.untimed:
            timed = self._blocks["timed"].buffer(count // 8 + 1)
        data = self._blocks[name].buffer(count * kind.bit_width // 8)
        return pa.Array.from_buffers(kind, count, [timed, data])

    def _payload_array(self, name: str) -> Any:
        rows, count, blocks = self.rows, self.count, self._blocks
        nulls, validity = rows.nulls(name), None
        if nulls:
            validity = blocks[f"{name} nulls"].buffer(count // 8 + 1)
        if self._view:
            views = blocks[f"{name} views"].buffer(native.VIEW_BYTES * count)
            # Short values are in their views, and need no buffer to be kept.
            others = map(_shown, self._owners, self._owner_sizes)
            buffers = [validity, views, *(others if rows.apart(name) else ())]
            kind = pa.binary_view()
        else:
            used = rows.used(name)
            offsets = blocks[f"{name} offsets"].buffer(4 * (count + 1))
            buffers = [validity, offsets, blocks[f"{name} data"].buffer(used)]
            self._memory.sizes[name] = min(used + used // 16, _DATA_BYTES_MAX)
            kind = pa.binary()
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)


def _shown(owner: Any, size: int) -> Any:
    """The bytes of an owner as a `pyarrow.Buffer`, which keeps it."""
    if isinstance(owner, native.Buffer):
        return pa.foreign_buffer(native.address_of(owner.c), size, owner)
    return pa.py_buffer(owner)


class BatchMaker:
    """Turns runs of decoded records into record batches of `batch_records` each.

    Args:
        memory: for the columns; makers of the same log share one. If it is for views,
            each run must have an `owner`, and a batch may have fewer records.
    """

    def __init__(
        self,
        columns: Sequence[str],
        batch_records: int,
        memory: Memory,
    ) -> None:
        self.columns = columns
        self.batch_records = batch_records
        self.schema = schema_of(columns, memory.view)
        self._memory = memory
        self._batch: _Batch | None = None

    def batches(self, runs: Iterable[native.Columns]) -> Iterator[Any]:
        """Record batches, full except for the last one and batches of views. Records
        read before damage are yielded before the error is raised."""
        try:
            for run in runs:
                yield from self._add(run)
        except GeneratorExit:
            raise
        except BaseException:
            if self._batch is not None and self._batch.count:
                yield self._finish(self._batch)
            raise
        if self._batch is not None and self._batch.count:
            yield self._finish(self._batch)

    def _add(self, run: native.Columns) -> Iterator[Any]:
        total, first = run.decoder.count, 0
        while first < total:
            batch = self._batch
            if batch is None:
                batch = _Batch(self.columns, self.batch_records, self._memory)
                self._batch = batch
            if not batch.accepts(run):
                yield self._finish(batch)
                continue
            count = min(total - first, batch.left)
            if "headers" in self.columns:
                wanted, count = count, self._add_headers(batch, run, first, count)
            else:
                wanted = count
            taken = batch.rows.fill(run.decoder, run.c, first, count)
            first += taken
            has_room = taken == count == wanted
            if taken < count:
                has_room = batch.grow(run, first, count - taken)
            if not has_room or not batch.left:
                yield self._finish(batch)

    def _add_headers(
        self, batch: _Batch, run: native.Columns, first: int, n: int
    ) -> int:
        """Read the headers of as many of the next n records as there is room for:
        returns how many."""
        del batch.headers[batch.count :]
        d = run.decoder
        counts = d.unpack(d.arrays.header_count + first, n)
        places = d.unpack(d.arrays.header_pos + first, n)
        for number, (place, count) in enumerate(zip(places, counts, strict=True)):
            if not count:
                batch.headers.append([])
                continue
            pairs = read_headers(run.c, run.raw, run.size, place, count)
            more = sum(len(k) * 4 + len(v or b"") for k, v in pairs)
            if batch.header_bytes + more > _DATA_BYTES_MAX and batch.headers:
                return number
            batch.header_bytes += more
            batch.headers.append([{"key": k, "value": v} for k, v in pairs])
        return n

    def _finish(self, batch: _Batch) -> Any:
        assert batch.count  # otherwise `_add` would not end
        arrays = batch.arrays(self.columns)
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._batch = None
        return made


class _Batches:
    """Record batches until the end, or until an error, which is raised again at each
    further call: a reader must not take the error for the end."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise again(self._error)
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = again(error)
            raise


def reader_of(
    columns: Sequence[str],
    batch_records: int,
    memory: Memory,
    runs: Iterable[native.Columns],
) -> Any:
    """A RecordBatchReader over runs of decoded records; it closes the memory."""
    maker = BatchMaker(columns, batch_records, memory)
    return stream_of(maker.schema, _until_closed(maker.batches(runs), memory))


def _until_closed(batches: Iterator[Any], memory: Memory) -> Iterator[Any]:
    try:
        yield from batches
    finally:
        memory.close()


def stream_of(schema: Any, batches: Iterator[Any]) -> Any:
    """A RecordBatchReader over record batches; it raises an error again each time."""
    return pa.RecordBatchReader.from_batches(schema, _Batches(batches))


# The last line of the import: the module must not be used before it.
IS_COMPLETE: Final = True
