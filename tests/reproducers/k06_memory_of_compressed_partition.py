"""Each partition with a single written record keeps far more memory than 20 KiB if its
format is a compressed one.

Usage: python k06_memory_of_compressed_partition.py [partitions, 400]
"""

import subprocess
import sys
import tempfile

CHILD = """
import gc, os, resource, sys
import logstore as ls
def rss():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() / 1024
n, magic, codec = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with ls.open(sys.argv[1]) as s:
    config = ls.TopicConfig(
        message_format=magic, compression_type=codec, flush_ms=10**9
    )
    parts = s.create_topic("t", n + 100, config).partitions
    for p in parts[:100]:
        p.append(b"x")
    gc.collect()
    base = rss()
    for p in parts[100:]:
        p.append(b"x")
    gc.collect()
    print(round((rss() - base) / n, 1), flush=True)
    os._exit(0)
"""
n = sys.argv[1] if len(sys.argv) > 1 else "400"
bad = 0
for magic, codec in (
    (1, "none"),
    (1, "gzip"),
    (2, "none"),
    (2, "gzip"),
    (2, "snappy"),
    (2, "lz4"),
    (2, "zstd"),
):
    with tempfile.TemporaryDirectory() as d:
        r = subprocess.run(
            [sys.executable, "-c", CHILD, f"{d}/s", n, str(magic), codec],
            capture_output=True,
            text=True,
        )
        print(
            f"magic {magic}, {codec:6} {r.stdout.strip()} KiB a partition"
            f" {r.stderr[-200:]}"
        )
        bad += float(r.stdout or 0) > 20
print("WRONG" if bad else "OK")
sys.exit(bool(bad))
