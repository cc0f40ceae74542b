"""Record batches of magic 2, messages of magic 0 and 1, and log directories as a broker
leaves them, made with the standard library alone.
"""

import os
import pathlib
import struct
import tempfile
import zlib

TIME = 1_700_000_000_000
NO_FIELD = struct.pack(">i", -1)


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(n):
    n = ((n << 1) ^ (n >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(data):
    return varint(-1) if data is None else varint(len(data)) + data


def record(delta, key, value, headers=(), time_delta=0):
    """A record of a batch of magic 2."""
    body = b"\0" + varint(time_delta) + varint(delta) + field(key) + field(value)
    body += varint(len(headers))
    body += b"".join(field(name) + field(text) for name, text in headers)
    return varint(len(body)) + body


def _framed(base, rest, magic=2):
    head = struct.pack(">qiibI", base, len(rest) + 9, 0, magic, crc32c(rest))
    return head + rest


def batch(
    base,
    records,
    producer=-1,
    attributes=0,
    time=TIME,
    payload=None,
    last=None,
    sequence=0,
):
    """A batch of [(key, value)] or [(key, value, headers)].

    payload: that of a compressed batch, whose codec is in the attributes."""
    if payload is None:
        payload = b"".join(record(i, *fields) for i, fields in enumerate(records))
    count = len(records)
    epoch, sequence = (0, sequence) if producer >= 0 else (-1, -1)
    last = count - 1 if last is None else last
    rest = struct.pack(">hiqq", attributes, last, time, time)
    rest += struct.pack(">qhii", producer, epoch, sequence, count)
    return _framed(base, rest + payload)


def rows(base, count, codec=0, compress=None, magic=2):
    """A batch of `count` records with keys and values of its offsets, as a producer
    and a broker make it: their times are one millisecond apart."""
    data = b"".join(
        record(i, b"k%d" % (base + i), b"value-%d " % (base + i) * 5, time_delta=i)
        for i in range(count)
    )
    rest = struct.pack(">hiqq", codec, count - 1, TIME, TIME + count - 1)
    rest += struct.pack(">qhii", -1, -1, -1, count)
    return _framed(base, rest + (compress(data) if compress else data), magic)


def marker(base, producer, commit=True):
    """The end of a transaction."""
    fields = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0)
    return batch(base, [fields], producer, 0x30)


def message(offset, key, value, magic=1, attributes=0):
    """A message of magic 0 or 1."""
    body = bytes([magic, attributes]) + (struct.pack(">q", TIME) if magic else b"")
    for part in (key, value):
        body += NO_FIELD if part is None else struct.pack(">i", len(part)) + part
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def damaged(data):
    """The bytes with another last one."""
    return data[:-1] + bytes([data[-1] ^ 0x55])


def flip(data, at):
    """The bytes with one flipped bit."""
    data = bytearray(data)
    data[at] ^= 0x40
    return bytes(data)


def directory(logs, clean_end=None, points=None, starts=None, topic="t"):
    """A log directory as a broker leaves it, of {base offset: bytes of the segment}.

    clean_end: where the log ended when it was closed; without it, it was killed."""
    path = tempfile.mkdtemp()
    part = os.path.join(path, f"{topic}-0")
    os.mkdir(part, 0o700)
    for base, data in logs.items():
        pathlib.Path(part, f"{base:020d}.log").write_bytes(data)
    if clean_end is not None:
        pathlib.Path(path, ".kafka_cleanshutdown").touch()
        points = f"{topic} 0 {clean_end}"
    for name, lines in (("recovery-point", points), ("log-start", starts)):
        if lines is not None:
            file = pathlib.Path(path, f"{name}-offset-checkpoint")
            file.write_text(f"0\n1\n{lines}\n")
    return path
