"""`CompactionReport.memory` does not include the buffers of large batches: it reports 2
MB after a compaction that took 100 MB, with a `max_memory` of 6 MiB. Later it reported
200 MB: a buffer was included of which nothing was used.

Usage: python e17_compaction_report_memory.py
"""

import subprocess
import sys
import tempfile

import logstore as ls


def peak_kib():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if len(sys.argv) > 1:
    with ls.open(sys.argv[1]) as store:
        p = store.topic("c")[0]
        before = peak_kib()
        report = p.compact(force=True, max_memory=6 << 20)
        took = (peak_kib() - before) << 10
    wrong = not report.memory / 1.2 < took < report.memory * 1.2
    print(
        f"{'WRONG' if wrong else 'OK'}: reported {report.memory / 1e6:.1f} MB,"
        f" the process has grown by {took / 1e6:.1f} MB"
    )
    sys.exit(wrong)
path = tempfile.mkdtemp()
with ls.open(path) as store:
    config = ls.TopicConfig(
        message_format=2, cleanup_policy="compact", max_message_bytes=1 << 30
    )
    p = store.create_topic("c", config=config)[0]
    p.append_many([bytes(100_000_000), b"x"], keys=[b"k", b"z"])
    p.append(b"small", key=b"k")
    p.roll()
    p.append(b"x", key=b"x")
sys.exit(subprocess.run([sys.executable, __file__, path]).returncode)
