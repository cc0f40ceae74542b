"""The offset of the last durable batch is altered after the store was closed, or its
writer killed: no checksum covers it. The next opening takes appends after it, reads
end there, and `verify` calls the new, intact record damaged.

Usage: python k15_append_behind_an_altered_offset.py
"""

import contextlib
import logging
import os
import shutil
import struct
import tempfile

import common

import logstore as ls

logging.disable(logging.CRITICAL)
FORMATS = [(0, "none"), (0, "gzip"), (1, "none"), (1, "lz4"), (2, "none"), (2, "zstd")]


def make(path, magic, codec, kill):
    config = ls.TopicConfig(message_format=magic, compression_type=codec)
    with ls.open(path, config=ls.StoreConfig(flush_checkpoint_ms=0)) as store:
        log = store.create_topic("t", config=config)[0]
        for _ in range(3):
            log.append_many([b"a", b"b", b"c"], durable=True)
        if kill:
            shutil.copytree(path, path + "-killed")
    return path + "-killed" if kill else path


def alter(file, by):
    """Alter the offset of the last batch; return the position of the batch."""
    with open(file, "r+b") as log:
        data, pos, last = log.read(), 0, 0
        while pos < len(data):
            offset, length = struct.unpack_from(">qi", data, pos)
            last, pos = pos, pos + 12 + length
        log.seek(last)
        log.write(struct.pack(">q", offset + by))
    return last


wrong = []
for magic, codec in FORMATS:
    for kill in (False, True):
        for by in (-1, 1, 1000):
            path = make(os.path.join(tempfile.mkdtemp(), "s"), magic, codec, kill)
            at = alter(os.path.join(path, "t-0", f"{0:020d}.log"), by)
            taken = "refused"
            with ls.open(path) as store:
                with contextlib.suppress(ls.LogStoreError):
                    taken = store["t"][0].append(b"new", durable=True)
            places = [p.position for p in ls.verify(path).problems]
            line = f"magic {magic} {codec} {'killed' if kill else 'closed'} {by:+}: "
            line += f"append {taken}, damage at {at}, verify says {places}"
            print(line)
            if taken != "refused" or at not in places:
                wrong.append(line)
common.end(f"{len(wrong)} cases" if wrong else "")
