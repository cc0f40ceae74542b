"""A message of magic 1 has no timestamp (-1), as brokers store messages of clients
before 0.10. Record.timestamp gives None, the command line prints "-", and JSON and CSV
have null; the column of Arrow has 1969-12-31 23:59:59.999.

Needs pyarrow.

Usage: python r27_no_timestamp_in_arrow.py
"""

import logging
import pathlib
import struct
import zlib

from common import end
from kbatch import directory, message

import logstore

logging.disable(logging.CRITICAL)
path = directory(
    {0: message(0, b"k", b"v")[:18] + b"\xff" * 8 + message(0, b"k", b"v")[26:]},
    clean_end=1,
)
file = pathlib.Path(path, "t-0", f"{0:020}.log")
data = bytearray(file.read_bytes())
data[12:16] = struct.pack(">I", zlib.crc32(data[16:]))
file.write_bytes(data)
with logstore.open(path, read_only=True) as store:
    one = next(store["t"][0].read()).timestamp
    (other,) = store["t"][0].read_arrow().read_all()["timestamp"].to_pylist()
end(
    ""
    if one == other
    else f"Record.timestamp is {one}, the column of Arrow has {other}"
)
