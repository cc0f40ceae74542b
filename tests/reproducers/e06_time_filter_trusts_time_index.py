"""A .timeindex of a broker is wrong: `where timestamp >= ...` of the format
logstore-jvm leaves out rows that the format logstore returns. It begins at
`offset_for_time`, which trusts the index. `verify` reports the index.

The second half needs pyspark and the jar of logstore.

Usage: python e06_time_filter_trusts_time_index.py
"""

import os
import pathlib
import struct
import tempfile

from kbatch import batch

import logstore as ls

T = 1_700_000_000_000
root = tempfile.mkdtemp()
part = os.path.join(root, "c-0")
os.mkdir(part)
times = [T + 1000] * 200
times[10], times[150] = T + 50_000, T + 60_000
data, positions = b"", []
for i in range(200):
    positions.append(len(data))
    data += batch(i, [(b"k", b"v")], time=times[i])
first = pathlib.Path(part, f"{0:020}")
index = b"".join(struct.pack(">ii", i, positions[i]) for i in (40, 80, 120, 160))
first.with_suffix(".log").write_bytes(data)
first.with_suffix(".index").write_bytes(index)
# A time index of another file, for example.
times_index = struct.pack(">qiqi", T + 1000, 80, T + 60_000, 150)
first.with_suffix(".timeindex").write_bytes(times_index)
last = batch(200, [(b"k", b"end")], time=T + 70_000)
pathlib.Path(part, f"{200:020}.log").write_bytes(last)
with ls.open(root, read_only=True) as store:
    found = store.topic("c")[0].offset_for_time(T + 40_000)
kinds = [x.kind for x in ls.verify(root, deep=True).problems]
said = (
    f"offset_for_time returns {found}, the first record that late is 10"
    f" (verify: {kinds})"
)
try:
    import sparkling

    spark = sparkling.session()
except ImportError:
    print(f"{'WRONG' if found != 10 else 'OK'}: {said}")
    raise SystemExit(found != 10) from None


def rows(name):
    late = f"timestamp >= timestamp_millis({T + 40_000})"
    frame = sparkling.load(spark, name, root).where(late).select("offset")
    return [row.offset for row in frame.collect()]


by_python, by_jvm = rows("logstore"), rows("logstore-jvm")
sparkling.end(
    by_python != by_jvm,
    f"{said}; rows of the filter: logstore {by_python}, logstore-jvm {by_jvm}",
)
