"""Inputs for the decoders in C and in Java, and the verdict of each.

    PYTHONPATH=tests python -m support.java_decoder 1000000 SEED

Whole batches of all formats, and the same batches with damage or with mistakes of a
writer: if the checksum is corrected, the decoders read the structure after it.
"""

from __future__ import annotations

import functools
import random
import runpy
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import logstore
from logstore import _native as native
from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.record import compression
from logstore.record.decoder import ChunkReader, Damage
from support.values import FORMATS

_HEADER = struct.Struct(">ibiqqq")
_RESULT = struct.Struct(">biiI")
_ROW = struct.Struct(">qqbi")
# A start of Java costs as much as some thousand inputs.
_ROUND = 50_000
ENDED, STOPPED, INVALID = range(3)


class Input(NamedTuple):
    """A buffer to decode.

    Attributes:
        contiguous: with the checks of logs that logstore wrote.
        limit: most bytes of a decompressed batch.
        before: the offset before the first batch; -2: unknown.
        start, stop: the offsets wanted.
    """

    contiguous: bool
    limit: int
    before: int
    start: int
    stop: int
    data: bytes


class Verdict(NamedTuple):
    """Result of a decoder.

    Attributes:
        end: ENDED, STOPPED at an offset, or INVALID.
        position: where.
        count, checksum: of the rows before.
    """

    end: int
    position: int
    count: int
    checksum: int


@functools.cache
def _logs() -> list[bytes]:
    """Small logs of every format, as logstore writes them."""
    rng = random.Random(7)
    logs = []
    with tempfile.TemporaryDirectory() as folder, logstore.open(folder) as store:
        for n, (magic, codec) in enumerate(FORMATS * 3):
            config = logstore.TopicConfig(
                message_format=magic, compression_type=codec, flush_messages=1 << 40
            )
            partition = store.create_topic(f"t{n}", config=config)[0]
            for _ in range(rng.randrange(1, 6)):
                count = rng.randrange(1, 5)
                headers = [[("h", rng.choice([None, b"x"]))]] * count
                partition.append_many(
                    [rng.choice([None, b"", rng.randbytes(rng.randrange(40))])] * count,
                    [rng.choice([None, b"", b"key"]) for _ in range(count)],
                    [1_600_000_000_000 + rng.randrange(10**6) for _ in range(count)],
                    **({"headers": headers} if magic == 2 else {}),
                )
            logs.append(Path(partition.segments[0].path).read_bytes())
    return logs


def _frames(data: bytes) -> list[bytes]:
    frames, pos = [], 0
    while len(data) - pos >= 12:
        size = 12 + max(int.from_bytes(data[pos + 8 : pos + 12], "big", signed=True), 0)
        frames.append(data[pos : pos + size])
        pos += size
    return frames


def sealed(frame: bytearray) -> bytes:
    """A batch with the right length and checksum for its content."""
    if len(frame) < 18:
        return bytes(frame)
    frame[8:12] = struct.pack(">i", len(frame) - 12)
    if frame[16] == 2:
        frame[17:21] = struct.pack(">I", native.crc32c(memoryview(frame)[21:]))
    else:
        frame[12:16] = struct.pack(">I", zlib.crc32(frame[16:]))
    return bytes(frame)


def _payload(frame: bytearray) -> tuple[int, int]:
    """(codec, where the payload begins) of a compressed batch; codec 0: plain."""
    if frame[16] == 2:
        return frame[22] & 7, 61
    at = 18 if frame[16] == 0 else 26
    key = max(int.from_bytes(frame[at : at + 4], "big", signed=True), 0)
    return frame[17] & 7, at + 8 + key


def _spoiled(frame: bytes, rng: random.Random) -> bytes:
    """A batch with a mistake that its checksum does not show."""
    spoiled = bytearray(frame)
    codec, at = _payload(spoiled)
    if codec in (1, 2, 3, 4) and at < len(spoiled) and rng.random() < 0.7:
        magic = spoiled[16]
        try:
            content = compression.decompress(
                codec, memoryview(bytes(spoiled[at:])), magic, 1 << 20
            )
        except Exception:
            return bytes(frame)
        inner = bytearray(content)
        _change(inner, rng)
        if magic < 2 and len(inner) > 18 and rng.random() < 0.7:
            inner = bytearray(b"".join(sealed(bytearray(f)) for f in _frames(inner)))
        packed = compression.compress(codec, bytes(inner), magic, 1)
        spoiled[at:] = packed
        if magic < 2:
            spoiled[at - 4 : at] = struct.pack(">i", len(packed))
    else:
        low = rng.choice([0, 12, 17, 17, 17, at])
        part = spoiled[low:]
        _change(part, rng)
        spoiled[low:] = part
        if len(spoiled) < 18:
            return bytes(spoiled)
    return sealed(spoiled)


def _change(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not data:
            return
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF])
        elif kind == 2:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            data[at : at + 4] = struct.pack(
                ">i", rng.choice([-1, -2, 0, 1, 2**31 - 1, -(2**31), len(data)])
            )
        else:
            data[at : at + 8] = rng.choice([b"\xff" * 8, b"\x80" * 8, bytes(8)])


def make(rng: random.Random) -> Input:
    """An input."""
    frames = _frames(rng.choice(_logs()))
    if rng.random() < 0.2:
        frames += _frames(rng.choice(_logs()))
    kind = rng.randrange(8)
    if kind < 4:
        at = rng.randrange(len(frames))
        frames[at] = _spoiled(frames[at], rng)
    elif kind == 4:
        rng.shuffle(frames)
    data = bytearray(b"".join(frames))
    if kind == 5:
        _change(data, rng)
    elif kind == 6:
        del data[rng.randrange(len(data)) :]
        data += rng.choice([b"", bytes(rng.randrange(40))])
    first = rng.choice([0, 0, 0, 1, 3, 8])
    return Input(
        rng.random() < 0.5,
        rng.choice([1 << 20, 1 << 20, 1 << 20, 60]),
        rng.choice([-2, -1, -1, 0, 2]),
        first,
        rng.choice([1 << 62, 1 << 62, first + 1, first + 3]),
        bytes(data),
    )


_reader_of_limit = functools.cache(ChunkReader)


def verdict_of_c(given: Input) -> Verdict:
    """Verdict of logstore's own reader, which reads one chunk after the other."""
    reader = _reader_of_limit(given.limit)
    checks = native.CHECK_ALL | (native.CHECK_OWN if given.contiguous else 0)
    count = checksum = 0
    end = ENDED
    runs = reader.columns(
        native.pointer(given.data),
        given.data,
        len(given.data),
        given.before,
        checks,
        given.start,
        given.stop,
    )
    try:
        for run in runs:
            decoder = run.decoder
            pairs = zip(
                native.decoded_records(run),
                decoder.arrays.header_count[0 : decoder.count],
                strict=True,
            )
            for record, headers in pairs:
                checksum = zlib.crc32(
                    _ROW.pack(
                        record.offset,
                        record.timestamp_ms,
                        int(record.timestamp_type),
                        headers,
                    ),
                    checksum,
                )
                for part in (record.key, record.value):
                    length = -1 if part is None else len(part)
                    checksum = zlib.crc32(struct.pack(">i", length), checksum)
                    checksum = zlib.crc32(part or b"", checksum)
                count += 1
    except (Damage, CorruptRecordError, UnsupportedError):
        end = INVALID
    else:
        end = STOPPED if reader.stop == native.STOP_OFFSET else ENDED
    return Verdict(end, reader.pos, count, checksum)


BUILD: Final = runpy.run_path(
    str(
        Path(__file__).resolve().parents[2]
        / "connectors/spark/pyspark_logstore/jvm/build_jar.py"
    )
)


def java_decoder(folder: Path) -> JavaDecoder | str:
    """The decoder in Java, or why it is missing here."""
    javac, jars = BUILD["find_javac"](), BUILD["find_jars"]()
    if javac is None or jars is None or not BUILD["JAR"].exists():
        return "the reader in Java is not built here: no JDK, or no Spark"
    return JavaDecoder(folder, javac, BUILD["JAR"], jars)


class JavaDecoder:
    """The decoder in Java, compiled for this check."""

    def __init__(self, folder: Path, javac: str, classes: Path, jars: Path) -> None:
        self._folder = folder
        self._java = str(Path(javac).with_name("java"))
        self._path = f"{folder}:{classes}:{jars}/*"
        source = Path(__file__).with_name("DecoderCheck.java")
        command = [javac, "-d", str(folder), "-cp", self._path, str(source)]
        subprocess.run(command, check=True)

    def verdicts(self, given: list[Input], capacity: int) -> Iterator[Verdict]:
        """Verdicts of the Java decoder on inputs.

        Raises:
            subprocess.CalledProcessError: any other exception than the named one.
        """
        into, out = self._folder / "inputs", self._folder / "outputs"
        with into.open("wb") as file:
            for one in given:
                head = _HEADER.pack(len(one.data), *one[:5])
                file.write(head + one.data)
        options = ["-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [self._java, *options, "-cp", self._path, "DecoderCheck"]
        subprocess.run([*command, str(into), str(out), str(capacity)], check=True)
        for fields in _RESULT.iter_unpack(out.read_bytes()):
            yield Verdict(*fields)


def is_left_to_python(given: Input, in_c: Verdict, in_java: Verdict) -> bool:
    """Whether Java stopped at a batch that it does not decode on purpose: lz4 of magic
    0, whose header has another checksum, the forms of lz4 that Kafka does not write,
    and bytes after a gzip stream."""
    if in_java.end != INVALID or in_java.count > in_c.count:
        return False
    frame = given.data[in_java.position : in_java.position + 63]
    if len(frame) < 63:
        return False
    codec = (frame[22] if frame[16] == 2 else frame[17]) & 7
    return codec in (1, 3)


def differences(java: JavaDecoder, count: int, seed: int) -> tuple[list[str], int]:
    """(disagreements of the decoders, number of inputs that Java leaves to Python)."""
    rng = random.Random(seed)
    found, left = [], 0
    for first in range(0, count, _ROUND):
        inputs = [make(rng) for _ in range(min(_ROUND, count - first))]
        capacity = rng.choice([1, 2, 7, 4096])
        says = list(java.verdicts(inputs, capacity))
        assert len(says) == len(inputs)
        for given, in_java in zip(inputs, says, strict=True):
            in_c = verdict_of_c(given)
            if in_c.end == INVALID:
                # The reported place differs: the batch, or the place inside of it.
                in_c = in_c._replace(position=in_java.position)
            if in_c == in_java:
                continue
            if is_left_to_python(given, in_c, in_java):
                left += 1
                continue
            found.append(f"{in_c} in C, {in_java} in Java, of {given!r}")
    return found, left


def main() -> None:
    """Compare the decoders on a number of inputs from a seed."""
    with tempfile.TemporaryDirectory() as folder:
        java = java_decoder(Path(folder))
        assert not isinstance(java, str), java
        found, left = differences(java, int(sys.argv[1]), int(sys.argv[2]))
    print(f"{sys.argv[1]} inputs, {left} left to Python, {len(found)} differences")
    for text in found[:5]:
        print(text)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
