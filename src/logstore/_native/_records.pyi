import datetime
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    SupportsIndex,
    TypeVar,
    final,
    overload,
)

from logstore._native._locks import Mutex, OpenFile, Turns
from logstore._native.segments import StepFacts
from logstore.record.record import Headers, TimestampType

Item = TypeVar("Item")

# So many index entries wait until they are written to the index file.
UNWRITTEN_MAX: Final[int]

class _NamedFields:
    __match_args__: ClassVar[tuple[str, ...]]
    _fields: ClassVar[tuple[str, ...]]
    _field_defaults: ClassVar[dict[str, Any]]

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: TimestampType

    @property
    def timestamp(self) -> datetime.datetime | None: ...
    def _asdict(self) -> dict[str, Any]: ...
    def count(self, value: object, /) -> int: ...
    def index(self, value: object, /, *bounds: int) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    @overload
    def __getitem__(self, place: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, places: slice, /) -> tuple[Any, ...]: ...
    def __contains__(self, value: object, /) -> bool: ...
    def __add__(self, other: tuple[Any, ...], /) -> tuple[Any, ...]: ...
    def __radd__(self, other: tuple[Any, ...], /) -> tuple[Any, ...]: ...
    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...

@final
class Record(_NamedFields):
    def __new__(
        cls,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_type: TimestampType = ...,
    ) -> Record: ...
    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Record: ...
    def _replace(self, **changes: Any) -> Record: ...

@final
class TopicRecord(_NamedFields):
    topic: str
    partition: int

    def __new__(
        cls,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_type: TimestampType = ...,
    ) -> TopicRecord: ...
    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> TopicRecord: ...
    def _replace(self, **changes: Any) -> TopicRecord: ...

@final
class DecodedRecords(Iterator[Record]):
    def __new__(
        cls,
        owner: object,
        count: int,
        size: int,
        base: int,
        offset: int,
        timestamp: int,
        key_pos: int,
        key_len: int,
        value_pos: int,
        value_len: int,
        timestamp_type: int,
        header_pos: int,
        header_count: int,
        topic: str | None = None,
        partition: int = 0,
        /,
    ) -> DecodedRecords: ...
    def __next__(self) -> Record: ...
    def __length_hint__(self) -> int: ...

@final
class Flattened(Iterator[Item], Generic[Item]):
    def __new__(cls, runs: Iterable[Iterable[Item]], /) -> Flattened[Item]: ...
    def __next__(self) -> Item: ...
    def close(self) -> None: ...

def configure(kinds: tuple[TimestampType, TimestampType, TimestampType], /) -> None: ...
def connect(*addresses: int) -> None: ...
def encode_lists(
    values: object,
    keys: object,
    timestamps_ms: object,
    now_ms: int,
    magic: int,
    max_bytes: int,
    batch_max: int,
    /,
) -> bytes | None: ...
def find(
    fd: int,
    entries: EntriesFields,
    base_offset: int,
    next_offset: int,
    size: int,
    checks: int,
    offset: int,
    /,
) -> Record | None: ...
def find_time(
    fd: int,
    times: EntriesFields,
    entries: EntriesFields,
    base_offset: int,
    next_offset: int,
    size: int,
    checks: int,
    start: int,
    timestamp: int,
    /,
) -> int | None: ...
def floor(
    entries: bytes | bytearray, count: int, target: int, is_time: bool, /
) -> tuple[int, int, int]: ...
def look(
    dir_fd: int, name: str, names: bytes, count: int, before: bytes | None, /
) -> tuple[int, bytes]: ...
def of_topic(topic: str, partition: int, record: Record, /) -> TopicRecord: ...
def pack_times(items: list[Any] | tuple[Any, ...], /) -> bytes | None: ...
def point(
    items: list[Any] | tuple[Any, ...], /
) -> tuple[tuple[Any, ...], int, bytes, bytes] | None: ...

# What steps of C read and write of a part of a log, which inherits it. The part says
# what it means.
class LogFields:
    __slots__ = ("bounds",)
    bounds: Any

class HealthFields:
    __slots__ = ("is_blocked", "is_poisoned", "is_torn")
    is_blocked: bool
    is_poisoned: bool
    is_torn: bool

class WriterFields:
    __slots__ = ("dirty",)
    dirty: tuple[int, int] | None

class SegmentFields:
    __slots__ = ("next_offset", "size")
    next_offset: int
    size: int

class EntriesFields:
    __slots__ = ("_data", "count", "written")
    _data: bytes | bytearray
    count: int
    written: int

@final
class PreparedAppend:
    def __new__(
        cls,
        log: LogFields,
        health: HealthFields,
        lock: Mutex,
        undo: Callable[[Any, BaseException], BaseException],
        bounds: type[tuple[Any, ...]],
        quiet: tuple[Sized, ...],
        methods: tuple[Callable[..., Any] | None, ...],
        facts: StepFacts,
        address: int,
    ) -> PreparedAppend: ...
    def append(self, value: object, key: object, timestamp_ms: object, /) -> int: ...
    def append_many(
        self, values: object, keys: object, timestamps_ms: object, /
    ) -> range | None: ...
    def append_arrow(
        self,
        schema: object,
        batch: object,
        value: int,
        value_bytes: int,
        key: int,
        key_bytes: int,
        timestamp: int,
        /,
    ) -> range | None: ...
    def append_batches(self, data: object, check: bool, /) -> range | None: ...
    def append_encoded(
        self, data: bytes | bytearray, count: int, is_mine: bool = False, /
    ) -> range | None: ...
    def append_rows(
        self, address: int, base: int, is_held: bool, /
    ) -> range | None: ...
    def clear(self) -> None: ...
    def watch(
        self, table: object, address: int, count: int, expiry_ms: int, /
    ) -> None: ...
    def keep(self, durable: int, quiet_size: int, /) -> None: ...
    def prepare(
        self,
        writer: WriterFields,
        segment: SegmentFields,
        index: EntriesFields,
        times: EntriesFields,
        /,
    ) -> None: ...

@final
class Durations:
    def add(self, seconds: float, /) -> None: ...
    def get(self) -> tuple[int, float, float]: ...

@final
class SharedSync:
    def __new__(
        cls,
        usual: Callable[[int], bool],
        finish: Callable[[Any, int, int], None],
        failed: Callable[[Any, OSError], NoReturn],
        prepared: PreparedAppend,
        turns: Turns,
        lock: Mutex,
        store_lock: OpenFile | None,
        durations: Durations,
        owners: tuple[object, ...],
        marked: int,
        synced: int,
        page: int,
    ) -> SharedSync: ...
    def append(self, value: object, key: object, timestamp_ms: object, /) -> int: ...
    def sync(self, upto: int, /) -> None: ...
