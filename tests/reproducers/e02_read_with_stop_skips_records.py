"""A read with a `stop` of a log with gaps silently leaves out records after a batch
whose base offset has one flipped bit, if that offset is now at or above the stop: the
batch is taken for the first one after the range. All reads of Spark have a stop, and so
have the parts of a dataset and `export --until`; without a stop `read` raises.

Usage: python e02_read_with_stop_skips_records.py
"""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as store:
    p = store.create_topic(
        "c", config=ls.TopicConfig(message_format=2, cleanup_policy="compact")
    )[0]
    for i in range(200):
        p.append(b"value %03d" % i, key=b"k%03d" % i)
    p.roll()
    p.append(b"newer", key=b"k000")
    p.roll()
    p.append(b"end", key=b"end")
    p.compact(force=True)
    position = next(b.position for b in p.read_batches(51, 52))
log = pathlib.Path(path, "c-0", f"{0:020}.log")
data = bytearray(log.read_bytes())
data[position + 7] ^= 64  # 51 becomes 115
log.write_bytes(data)


def command():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "logstore.cli", "records"),
            os.path.join(path, "c-0"),
            *("--until", "100", "-f", r"%o\n"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ls.CorruptionError(done.stderr, path=path)
    return [int(x) for x in done.stdout.split()]


ways = {
    "read": lambda p: [r.offset for r in p.read(0, 100)],
    "read_batches": lambda p: [r.offset for b in p.read_batches(0, 100) for r in b],
    "logstore-dump records --until": lambda p: command(),
}
try:
    import pyarrow.dataset

    ways["read_arrow"] = lambda p: p.read_arrow(0, 100).read_all()["offset"].to_pylist()
    ways["a dataset with a filter"] = lambda p: (
        p.to_dataset()
        .to_table(filter=pyarrow.dataset.field("offset") < 100)["offset"]
        .to_pylist()
    )
except ImportError:
    pass
told, bad = [], 0
with ls.open(path, read_only=True) as store:
    for name, way in ways.items():
        try:
            got = way(store.topic("c")[0])
            bad += len(got) < 98
            told.append(f"{name}: {len(got)} of 99 records, no error")
        except ls.CorruptionError:
            told.append(f"{name} raises")
    try:
        list(store.topic("c")[0].read())
        whole = "gives records"
    except ls.CorruptRecordError:
        whole = "raises"
print(
    f"{'WRONG' if bad else 'OK'}: up to 100: {'; '.join(told)}; read of the whole log"
    f" {whole}"
)
sys.exit(bool(bad))
