"""A header name contains the bytes of a surrogate (ed a0 80, as old Java and CESU-8
write it). The two formats of Spark return different texts: logstore-jvm has one U+FFFD,
as Kafka's consumer has, logstore has three.

Needs pyspark and the jar of logstore.

Usage: python e14_jvm_header_names.py
"""

import os
import tempfile

import sparkling
from kbatch import batch

path = tempfile.mkdtemp()
os.mkdir(os.path.join(path, "c-0"))
with open(os.path.join(path, "c-0", f"{0:020d}.log"), "wb") as f:
    f.write(
        batch(
            0,
            [
                (b"k", b"v", [(b"\xed\xa0\x80", b"1")]),
                (b"k", b"v", [(b"\xed\xa0\xbd\xed\xb8\x80", b"1")]),
                (b"k", b"v", [(b"\xc3", b"1")]),
            ],
        )
    )
spark = sparkling.session()
names = []
for each in ("logstore", "logstore-jvm"):
    frame = sparkling.load(spark, each, path, includeHeaders="true")
    names.append([row.headers[0].key for row in frame.select("headers").collect()])
said = [[name.encode("unicode_escape").decode() for name in each] for each in names]
sparkling.end(names[0] != names[1], f"logstore {said[0]}, logstore-jvm {said[1]}")
