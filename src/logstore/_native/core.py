"""Shared by all calls into the C core: constants, errors, memory, small functions."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore._native._ls import ffi, lib
from logstore._native._records import pack_times

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def _prepare() -> None:
    """Have cffi make all types and functions now. Otherwise it makes each at its first
    use, and must not be called again meanwhile: if the garbage collector started there
    and a finalizer called cffi, the interpreter ended."""
    numbers = ("int32_t", "int64_t", "uint8_t", "uint64_t", "uintptr_t", "char")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in (*numbers, *ffi.list_types()[0]):
            for text in (name, f"{name} *", f"{name}[]"):
                ffi.typeof(text)
            ffi.new(f"{name} *")
            # cffi makes the fields of a struct when they are first read.
            getattr(ffi.typeof(name), "fields", None)
        for name in dir(lib):
            getattr(lib, name)
    finally:
        if was_enabled:
            gc.enable()


_prepare()

OFFSET_MAX: Final = (1 << 63) - 1

CHECK_CRC: Final[int] = lib.LS_CHECK_CRC
CHECK_ORDER: Final[int] = lib.LS_CHECK_ORDER
CHECK_ALL: Final[int] = lib.LS_CHECK_CRC | lib.LS_CHECK_ORDER
# For batches that only logstore wrote: no gaps, and its leader epoch.
CHECK_OWN: Final[int] = lib.LS_CHECK_GAPLESS | lib.LS_CHECK_EPOCH
CHECK_GAPLESS: Final[int] = lib.LS_CHECK_GAPLESS
OFFSET_UNKNOWN: Final[int] = lib.LS_OFFSET_UNKNOWN

HEADERS_MAX: Final[int] = lib.LS_HEADERS_MAX

PAGE_BYTES: Final[int] = lib.LS_PAGE_BYTES
PAGE_DURABLE_POS: Final[int] = lib.LS_PAGE_DURABLE_POS
PAGE_CHECK_POS: Final[int] = lib.LS_PAGE_CHECK_POS
PAGE_TO_OPEN: Final[int] = lib.LS_PAGE_TO_OPEN
PAGE_OFF: Final[int] = lib.LS_PAGE_OFF

WATCH_ENTRIES: Final[int] = lib.LS_WATCH_ENTRIES
WATCH_RENAMES: Final[int] = lib.LS_WATCH_RENAMES
WATCH_FILE: Final[int] = lib.LS_WATCH_FILE
WATCH_CLOSES: Final[int] = lib.LS_WATCH_CLOSES
WATCH_NAMES: Final[int] = lib.LS_WATCH_NAMES
WATCH_WRITES: Final[int] = lib.LS_WATCH_WRITES
WATCH_ENDED: Final[int] = lib.LS_WATCH_ENDED

STOP_END: Final[int] = lib.LS_STOP_END
STOP_PARTIAL: Final[int] = lib.LS_STOP_PARTIAL
STOP_ZEROS: Final[int] = lib.LS_STOP_ZEROS
STOP_FULL: Final[int] = lib.LS_STOP_FULL
STOP_COMPRESSED: Final[int] = lib.LS_STOP_COMPRESSED
STOP_OFFSET: Final[int] = lib.LS_STOP_OFFSET
STOP_ROLL_SIZE: Final[int] = lib.LS_STOP_ROLL_SIZE
STOP_ROLL_TIME: Final[int] = lib.LS_STOP_ROLL_TIME
STOP_ROLL_INDEX: Final[int] = lib.LS_STOP_ROLL_INDEX
STOP_ROLL_OFFSET: Final[int] = lib.LS_STOP_ROLL_OFFSET

E_NO_SPACE: Final[int] = lib.LS_E_NO_SPACE
E_CRC: Final[int] = lib.LS_E_CRC
E_OFFSET: Final[int] = lib.LS_E_OFFSET
E_LENGTH: Final[int] = lib.LS_E_LENGTH
E_MAGIC: Final[int] = lib.LS_E_MAGIC
E_NO_MAGIC: Final[int] = lib.LS_E_NO_MAGIC
E_CODEC: Final[int] = lib.LS_E_CODEC
E_TOO_LARGE: Final[int] = lib.LS_E_TOO_LARGE
E_HEADER_KEY: Final[int] = lib.LS_E_HEADER_KEY

_REASONS: Final[dict[int, str]] = {
    lib.LS_E_ARGUMENT: "bad argument to the native core",
    lib.LS_E_NO_SPACE: "a buffer is too small",
    lib.LS_E_CRC: "checksum differs",
    lib.LS_E_LENGTH: "a length is impossible",
    lib.LS_E_MAGIC: "magic is above 2",
    lib.LS_E_NO_MAGIC: "magic is negative",
    lib.LS_E_CODEC: "codec is not known for this magic",
    lib.LS_E_RECORD: "a record contradicts its own length",
    lib.LS_E_VARINT: "a varint is longer than its type",
    lib.LS_E_OFFSET: "offsets do not increase or lie outside their batch",
    lib.LS_E_COUNT: "a record or header count is impossible",
    lib.LS_E_NESTED: "a wrapper holds a compressed message, or none of magic 0 or 1",
    lib.LS_E_EMPTY: "a wrapper holds no record",
    lib.LS_E_TOO_LARGE: "a record is larger than the limit",
    lib.LS_E_HEADER_KEY: "a header name is null or not UTF-8",
    lib.LS_E_EPOCH: "the leader epoch is not the one that logstore writes",
}


class NativeError(Exception):
    """A negative status of the C core with its facts (see ``ls_error``)."""

    def __init__(
        self,
        status: int,
        pos: int = 0,
        offset: int = -1,
        expected: int = 0,
        found: int = 0,
    ) -> None:
        self.status = status
        self.pos = pos
        self.offset = offset
        self.expected = expected
        self.found = found
        super().__init__(self.reason)

    @property
    def reason(self) -> str:
        text = _REASONS.get(self.status, f"status {self.status}")
        if self.status == E_CRC:
            return f"{text}: stored {self.expected:#010x}, computed {self.found:#010x}"
        if self.expected or self.found:
            return f"{text} (expected {self.expected}, found {self.found})"
        return text

    @property
    def is_unsupported(self) -> bool:
        return self.status in (E_MAGIC, E_CODEC)


def statuses() -> dict[int, str]:
    """Every status of the C core and its text."""
    return dict(_REASONS)


def native_error(status: int, error: Any) -> NativeError:
    return NativeError(status, error.pos, error.offset, error.expected, error.found)


class BatchHeader(NamedTuple):
    """The header of one batch; the fields of ``ls_batch``."""

    pos: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    record_count: int
    crc: int
    attributes: int
    payload_pos: int
    payload_size: int
    magic: int
    codec: int
    timestamp_type: int

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x10)


def raw_header(header: BatchHeader) -> Any:
    return ffi.new("ls_batch *", header)  # by the order of the fields


allocate = ffi.new_allocator(should_clear_after_alloc=False)


class Buffer:
    """Memory that C writes to and that files are read into.

    Attributes:
        c: pointer to the first byte.
        raw: the same as a buffer; slicing it gives bytes (a copy).
        view: the same as a writable memoryview.
    """

    __slots__ = ("c", "capacity", "raw", "view")

    def __init__(self, capacity: int) -> None:
        self._use(allocate("uint8_t[]", capacity), capacity)

    def _use(self, memory: Any, capacity: int) -> None:
        self.capacity = capacity
        self.c = memory
        self.raw = ffi.buffer(memory, capacity)
        self.view = memoryview(self.raw)


class BufferPool:
    """Buffers of one size. Each is used again when nothing refers to it any more: not
    its taker, nor arrays that point into it. Any thread may use it.

    Memory that is new to the process costs more than reading into it: the system clears
    each page of it first.
    """

    __slots__ = ("_free", "_is_open", "capacity")

    def __init__(self, capacity: int, kept: int) -> None:
        """Args:
        capacity: bytes of each buffer.
        kept: the most buffers to keep that are not in use.
        """
        self.capacity = capacity
        self._free: deque[Any] = deque(maxlen=kept)
        self._is_open = True

    def take(self) -> Buffer:
        """A buffer, for the caller alone; its content is undefined."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = allocate("uint8_t[]", self.capacity)
        return _PooledBuffer(memory, self.capacity, self)

    def take_back(self, memory: Any) -> None:
        """Called when nothing refers to a buffer any more."""
        if self._is_open:
            self._free.append(memory)

    def close(self) -> None:
        """Keep nothing from now on; buffers in use stay valid."""
        self._is_open = False
        self._free.clear()


class _PooledBuffer(Buffer):
    __slots__ = ("_memory", "_pool")

    def __init__(self, memory: Any, capacity: int, pool: BufferPool) -> None:
        self._memory = memory
        self._pool = pool
        self._use(memory, capacity)

    def __del__(self) -> None:
        self._pool.take_back(self._memory)


def pointer(data: ReadableBuffer) -> Any:
    """Pointer to the bytes of any buffer; keep both alive while it is used."""
    if type(data) is memoryview:
        # Keep no reference to the object that holds it, not even here (a signal may
        # raise): if the garbage collector finds both in one cycle (that of an error
        # and its frames), Python up to 3.12.6 crashes (python/cpython#77894).
        return ffi.cast("uint8_t *", ffi.from_buffer("uint8_t[]", data))
    return ffi.from_buffer("uint8_t[]", data)


def address_pointer(address: int, kind: str = "uint8_t *") -> Any:
    """Pointer to memory that another object owns (an Arrow buffer)."""
    return ffi.cast(kind, address)


def crc32(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32 (IEEE) of a buffer, as ``zlib.crc32``."""
    return int(lib.ls_crc32(crc, pointer(data), memoryview(data).nbytes))


def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of a buffer."""
    return int(lib.ls_crc32c(crc, pointer(data), memoryview(data).nbytes))


def crc_hardware() -> tuple[bool, bool]:
    """Whether CRC-32 and CRC-32C run on hardware instructions here."""
    bits = lib.ls_crc_hardware()
    return bool(bits & 1), bool(bits & 2)


def murmur2(key: ReadableBuffer) -> int:
    """Kafka's murmur2 hash of a key, signed 32 bit."""
    return int(lib.ls_murmur2(pointer(key), memoryview(key).nbytes))


def buffer_of(data: Any, size: int) -> memoryview:
    """The first `size` bytes at a pointer (no copy)."""
    return memoryview(ffi.buffer(data, size))


def bytes_of(data: Any, size: int) -> bytes:
    """A copy of the first `size` bytes at a pointer."""
    copy: bytes = ffi.buffer(data, size)[:]
    return copy


def int64_array(values: Sequence[int]) -> Any:
    return ffi.new("int64_t[]", values)


def smallest(numbers: Any, count: int) -> int:
    """The smallest of `count` 64 bit integers; `OFFSET_MAX` if `count` is 0."""
    return int(lib.ls_smallest(numbers, count))


def first_null(lengths: Any, count: int) -> int:
    """The first of `count` lengths that is that of a null; -1 if none is."""
    return int(lib.ls_first_null(lengths, count))


def times_array(items: Sequence[Any]) -> Any:
    """Timestamps to store; None if one of a list or tuple is not an int of at least
    -1."""
    packed = pack_times(items)  # type: ignore[arg-type]
    return None if packed is None else ffi.from_buffer("int64_t[]", packed)


def int32_array(values: Sequence[int]) -> Any:
    return ffi.new("int32_t[]", values)
