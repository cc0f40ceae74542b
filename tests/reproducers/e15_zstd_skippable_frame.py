"""A batch whose zstd stream begins with a skippable frame (RFC 8878, 3.1.2) is damage
for logstore. The format logstore-jvm reads it with zstd-jni, which Kafka uses too. The
checksum of the batch is right.

Usage: python e15_zstd_skippable_frame.py
"""

import os
import struct
import sys
import tempfile

import zstandard
from kbatch import batch, record

import logstore as ls

area = record(0, b"k", b"v" * 50)
payload = (
    struct.pack("<II", 0x184D2A50, 4)
    + b"skip"
    + zstandard.ZstdCompressor().compress(area)
)
assert (
    zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True).read()
    == area
)  # the library itself has no objection
path = tempfile.mkdtemp()
os.mkdir(os.path.join(path, "c-0"))
with open(os.path.join(path, "c-0", f"{0:020d}.log"), "wb") as f:
    f.write(
        batch(0, [(b"k", b"")], attributes=4, payload=payload)
        + batch(1, [(b"k", b"w")])
    )
with open(os.path.join(path, "c-0", f"{2:020d}.log"), "wb") as f:
    f.write(batch(2, [(b"k", b"x")]))
with ls.open(path, read_only=True) as store:
    try:
        got, wrong = [r.offset for r in store.topic("c")[0].read()], False
    except ls.CorruptRecordError as error:
        got, wrong = f"CorruptRecordError: {str(error)[:120]}", True
print(f"{'WRONG' if wrong else 'OK'}: {got}")
sys.exit(wrong)
