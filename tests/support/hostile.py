"""Partitions that an attacker made, and every way to read them, in little
memory: `python -m support.hostile DIRECTORY make|read|look`.

`read` opens them with a small limit on decompressed batches and 256 MiB of address
space in addition to the interpreter's; `look` runs verify and the command line, which
have the default limit of 256 MiB, in 1 GiB. Checksums are right everywhere: they
protect against accidents, not against attackers.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import resource
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import lz4.frame
import xxhash
import zstandard

import logstore
from logstore.cli.main import main
from support.levels import some

MAX32, MAX64 = (1 << 31) - 1, (1 << 63) - 1
LIMIT = 8 << 20
BOMB = 300 << 20  # beyond the default limit, too
TIME = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

# ------------------------------------------------------------------ bytes


def varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def record(fields: bytes, length: int | None = None) -> bytes:
    return varint(len(fields) if length is None else length) + fields


def batch(
    payload: bytes,
    *,
    base: int = 0,
    codec: int = 0,
    count: int = 1,
    delta: int | None = None,
    timestamp: int = TIME,
    length: int | None = None,
) -> bytes:
    """A batch of magic 2 with the checksum that belongs to it."""
    covered = struct.pack(
        ">hiqqqhii", codec, count - 1 if delta is None else delta, timestamp, timestamp,
        -1, -1, -1, count,
    ) + payload  # fmt: skip
    size = len(covered) + 9 if length is None else length
    head = struct.pack(">qiib", base, size, 0, 2)
    return head + struct.pack(">I", crc32c.crc32c(covered)) + covered


def message(
    value: bytes | None,
    *,
    magic: int = 1,
    codec: int = 0,
    base: int = 0,
    key_length: int = -1,
    value_length: int | None = None,
    length: int | None = None,
) -> bytes:
    """A message of magic 0 or 1 with the checksum that belongs to it."""
    body = struct.pack(">bb", magic, codec)
    body += struct.pack(">q", TIME) if magic else b""
    size = (
        (-1 if value is None else len(value)) if value_length is None else value_length
    )
    body += struct.pack(">i", key_length) + struct.pack(">i", size) + (value or b"")
    size = len(body) + 4 if length is None else length
    return struct.pack(">qiI", base, size, zlib.crc32(body)) + body


def _zeros_gzip(size: int) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [deflater.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join(parts) + deflater.flush()


def _zeros_zstd(size: int) -> bytes:
    out = io.BytesIO()
    compressor = zstandard.ZstdCompressor()
    with compressor.stream_writer(out, closefd=False) as writer:
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
    return out.getvalue()


def _zeros_lz4(size: int) -> bytes:
    with lz4.frame.LZ4FrameCompressor() as compressor:
        parts = [compressor.begin()]
        parts += [compressor.compress(bytes(1 << 20)) for _ in range(size >> 20)]
        return b"".join([*parts, compressor.flush()])


def _raw_snappy(size: int) -> bytes:
    """A block of `size` bytes when decompressed: one zero, and copies of it."""
    out = bytearray()
    number = size
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out += bytes([number, 0x00, 0x00])
    copies, rest = divmod(size - 1, 64)
    out += b"\xfe\x01\x00" * copies
    return bytes(out) + (bytes([(rest - 1) << 2 | 2, 1, 0]) if rest else b"")


def _xerial(*chunks: bytes) -> bytes:
    head = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    return head + b"".join(struct.pack(">i", len(c)) + c for c in chunks)


def _lz4_claiming(size: int) -> bytes:
    descriptor = b"\x68\x40" + struct.pack("<Q", size)
    checksum = bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF])
    return b"\x04\x22\x4d\x18" + descriptor + checksum + b"\0\0\0\0"


def _zstd_frame(descriptor: int, rest: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + rest + b"\x01\x00\x00"


def bombs() -> Iterator[tuple[str, bytes]]:
    streams = {
        "gzip": (GZIP, _zeros_gzip(BOMB)),
        "gzip-members": (GZIP, gzip.compress(bytes(1 << 20)) * (BOMB >> 20)),
        "lz4": (LZ4, _zeros_lz4(BOMB)),
        "snappy-raw": (SNAPPY, _raw_snappy(BOMB)),
        "snappy-claim": (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(50)),
        "snappy-chunks": (SNAPPY, _xerial(*[_raw_snappy(1 << 20)] * (BOMB >> 20))),
        "lz4-claim": (LZ4, _lz4_claiming(1 << 60)),
    }
    for name, (codec, stream) in streams.items():
        yield f"bomb-{name}-2", batch(stream, codec=codec, count=3)
        for magic in (0, 1):
            yield f"bomb-{name}-{magic}", message(stream, magic=magic, codec=codec)
    yield "bomb-zstd-2", batch(_zeros_zstd(BOMB), codec=ZSTD, count=3)
    window = _zstd_frame(0x00, b"\xf8")  # 2^41 bytes of window
    yield "zstd-window", batch(window, codec=ZSTD)
    claim = _zstd_frame(0xE0, struct.pack("<Q", 1 << 60))
    yield "zstd-claim", batch(claim, codec=ZSTD)
    yield (
        "xerial-negative",
        batch(
            b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + b"\xff\xff\xff\xff",
            codec=SNAPPY,
        ),
    )
    yield "wrapper-null", message(None, codec=GZIP)
    inner = message(gzip.compress(message(b"x")), codec=GZIP)
    yield "wrapper-nested", message(gzip.compress(inner), codec=GZIP)


def lengths() -> Iterator[tuple[str, bytes]]:
    sound = record(b"\0\0\0\x01\x02x\0")
    for length in (MAX32, -1, 0, 13, 48, -(1 << 31), 1 << 30):
        yield f"batch-length-{length}", batch(sound, length=length)
        for magic in (0, 1):
            made = message(b"x", magic=magic, length=length)
            yield f"message-{magic}-length-{length}", made
    for count in (MAX32, -1, 0, 2, 1000, -(1 << 31)):
        yield f"count-{count}", batch(sound, count=count, delta=max(count - 1, 0))
        packed = gzip.compress(sound)
        last = max(count - 1, 0)
        yield (
            f"count-packed-{count}",
            batch(packed, codec=GZIP, count=count, delta=last),
        )
        empty = zstandard.compress(b"")
        yield (
            f"count-of-none-{count}",
            batch(empty, codec=ZSTD, count=count, delta=last),
        )
    for delta in (MAX32, -1, 5, -(1 << 31)):
        yield f"delta-{delta}", batch(sound, delta=delta)
    for size in (MAX32, MAX64, -1, -MAX64, 1000):
        yield f"record-length-{size}", batch(record(b"\0\0\0\x01\x02x\0", size))
    for size in (MAX32, MAX64, -2, -(1 << 31), 1000):
        big = varint(size)
        yield f"key-length-{size}", batch(record(b"\0\0\0" + big + b"\x02x\0"))
        yield f"value-length-{size}", batch(record(b"\0\0\0\x01" + big + b"x\0"))
        yield f"header-count-{size}", batch(record(b"\0\0\0\x01\x02x" + big))
        yield (
            f"header-key-{size}",
            batch(record(b"\0\0\0\x01\x02x\x02" + big + b"a\x01")),
        )
        yield f"header-value-{size}", batch(record(b"\0\0\0\x01\x02x\x02\x02a" + big))
    yield "varint-endless", batch(b"\xff" * 2000)
    yield "varint-long", batch(record(b"\0" + b"\x80" * 10 + b"\x01\0\x01\x02x\0"))
    for size in (MAX32, -2, -(1 << 31), 1000):
        for magic in (0, 1):
            made = message(b"x", magic=magic, key_length=size)
            yield f"message-{magic}-key-{size}", made
            made = message(b"x", magic=magic, value_length=size)
            yield f"message-{magic}-value-{size}", made
    many = b"".join(record(b"\0\0" + varint(i) + b"\x01\x01\0") for i in range(400_000))
    yield "many-records", batch(many, count=400_000)
    packed = zstandard.compress(many)
    yield "many-packed-records", batch(packed, codec=ZSTD, count=400_000)
    headers = record(b"\0\0\0\x01\x01" + varint(500_000) + b"\0\x01" * 500_000)
    yield "many-headers", batch(zstandard.compress(headers), codec=ZSTD)


def offsets() -> Iterator[tuple[str, bytes]]:
    sound = record(b"\0\0\0\x01\x02x\0")
    for base in (MAX64, MAX64 - 1, -1, -MAX64 - 1):
        yield f"base-{base}", batch(sound, base=base)
        yield f"base-{base}-delta", batch(sound, base=base, delta=MAX32, count=MAX32)
        for magic in (0, 1):
            yield f"message-{magic}-base-{base}", message(b"x", magic=magic, base=base)
    for timestamp in (MAX64, -MAX64 - 1, -2):
        late = record(b"\0" + varint(MAX64) + b"\0\x01\x02x\0")
        yield f"timestamp-{timestamp}", batch(late, timestamp=timestamp)
    yield "backwards", batch(sound, base=9) + batch(sound, base=8)
    yield "inner-delta", batch(record(b"\0\0" + varint(MAX32) + b"\x01\x02x\0"))
    yield "inner-delta-64", batch(record(b"\0\0" + varint(MAX64) + b"\x01\x02x\0"))


def sparse(path: Path, size: int, head: bytes = b"") -> None:
    path.write_bytes(head)
    os.truncate(path, size)


def beside() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Hostile files next to an intact log, or that are sparse."""
    first = f"{0:020d}"
    big = 1 << 30

    def put(name: str, data: bytes, size: int = 0) -> Callable[[Path], None]:
        def make(directory: Path) -> None:
            (directory / f"{first}.log").write_bytes(
                message(b"x") + message(b"y", base=1)
            )
            sparse(directory / name, max(size, len(data)), data)

        return make

    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        yield f"{suffix}-sparse", put(f"{first}.{suffix}", b"", big)
        yield f"{suffix}-full", put(f"{first}.{suffix}", b"\xff" * 4096)
        yield f"{suffix}-odd", put(f"{first}.{suffix}", b"\x00\x01\x7f" * 333)
        yield f"{suffix}-over", put(f"{first}.{suffix}", b"\x7f" * 999, (64 << 20) + 1)
    snapshot = struct.pack(">hI", 1, 0) + struct.pack(">i", MAX32) + bytes(60)
    crc = struct.pack(">I", crc32c.crc32c(snapshot[6:]))
    yield "snapshot-count", put(f"{2:020d}.snapshot", snapshot[:2] + crc + snapshot[6:])
    yield "epochs-sparse", put("leader-epoch-checkpoint", b"", big)
    yield "epochs-count", put("leader-epoch-checkpoint", b"0\n" + b"9" * 5000 + b"\n")
    yield "epochs-lines", put("leader-epoch-checkpoint", b"0\n1\n" + b"1 1\n" * 100_000)
    yield "epochs-number", put("leader-epoch-checkpoint", b"0\n1\n1 " + b"9" * 10_000)
    yield "state-sparse", put(".logstore-state", b"", big)
    yield "metadata-sparse", put("partition.metadata", b"version: 0\n", big)
    yield "log-2gib", put(f"{first}.log", b"", (1 << 31) + 5)
    yield "log-last-name", put(f"{MAX64:020d}.log", message(b"x", base=MAX64))
    yield "log-beyond-name", put(f"{MAX64 + 1:020d}.log", message(b"x"))
    yield "swap-sparse", put(f"{first}.log.swap", b"", big)


def make(root: Path) -> None:
    """Write each of them into a partition; at the commit level only some, since the
    next opening for writing recovers each partition."""
    made = {name: _log_of(data) for name, data in (*bombs(), *lengths(), *offsets())}
    made.update(beside())
    assert len(made) > 100
    for name in some(sorted(made), 30):
        directory = root / f"{name}-0"
        directory.mkdir(parents=True)
        made[name](directory)
    (root / "replication-offset-checkpoint").write_bytes(b"0\n1\n" + b"x 0 0\n" * 1000)


def _log_of(data: bytes) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / f"{0:020d}.log").write_bytes(
            data + message(b"after", base=1 << 40)
        )

    return make


# ------------------------------------------------------------------ reading


@contextlib.contextmanager
def named(what: str, found: list[str]) -> Iterator[None]:
    """Check that a raised error is one of logstore's, with a message."""
    try:
        yield
    except logstore.LogStoreError as error:
        found.append(type(error).__name__ if str(error) else f"{what}: no message")
    except BaseException as error:
        print(f"{what}: {type(error).__name__}: {error}", flush=True)
        raise


def memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmSize")


def confine(extra: int) -> None:
    """Limit this process to `extra` more bytes of memory, and small thread stacks."""
    threading.stack_size(1 << 20)
    limit = memory_bytes() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_every_way(store: logstore.Store, name: str, found: list[str]) -> None:
    with named(f"{name} open", found):
        partition = store.topic(name)[0]
        ways: tuple[Callable[[], Any], ...] = (
            partition.read,
            lambda: partition.read(on_corruption="skip"),
            lambda: partition.read(isolation="read_committed"),
            lambda: partition.follow(timeout=0),
            lambda: partition.fetch(partition.start_offset),
            partition.read_batches,
            lambda: (r for b in partition.read_batches() for r in b),
            lambda: partition.read(min(1, partition.end_offset)),
        )
        for number, way in enumerate(ways):
            with named(f"{name} way {number}", found):
                for _ in way():
                    pass
        for timestamp in (0, TIME, MAX64):
            with named(f"{name} time", found):
                partition.offset_for_time(timestamp)
        with named(f"{name} rest", found):
            _ = partition.segments, partition.durable_offset


def read(root: Path) -> None:
    """Read the store read-only, and then open it for writing and append."""
    confine(256 << 20)
    config = logstore.StoreConfig(max_batch_decompressed_bytes=LIMIT)
    found: list[str] = []
    with logstore.open(root, read_only=True, config=config) as store:
        names = store.topics()
        for name in names:
            read_every_way(store, name, found)
    with logstore.open(root, config=config) as store:
        for name in names:
            read_every_way(store, name, found)
            with named(f"{name} append", found):
                store.topic(name)[0].append(b"x")
            with named(f"{name} retention", found):
                store.topic(name).apply_retention()
    with logstore.open(root, config=config) as store:
        for name in names:
            read_every_way(store, name, found)
    assert set(found) <= set(logstore.errors.__all__), set(found)
    assert "RecordTooLargeError" in found
    assert "CorruptRecordError" in found


def look(root: Path) -> None:
    """Run verify, also deep, and the command line."""
    confine(1 << 30)
    found: list[str] = []
    for deep in (False, True):
        with named("verify", found):
            assert not logstore.verify(root, deep=deep).ok
    for directory in sorted(root.iterdir()):
        # Reading two GiB of zeros a dozen times is only slow; verify has read them.
        if not directory.is_dir() or directory.name == "log-2gib-0":
            continue
        for command in (
            ["records", "--payload", "hex", str(directory)],
            ["records", str(directory)],
            ["batches", str(directory / f"{0:020d}.log"), "--limit", "50"],
            ["stat", str(directory)],
            ["tail", str(directory)],
            *(["index", str(p), "--limit", "50"] for p in sorted(directory.iterdir())),
            ["rebuild-index", str(directory)],
        ):
            status = main(command)
            assert status in (0, 1, 2), command


if __name__ == "__main__":
    with open(os.devnull, "w") as null:
        if sys.argv[2] == "look":
            with contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                look(Path(sys.argv[1]))
        else:
            {"make": make, "read": read}[sys.argv[2]](Path(sys.argv[1]))
