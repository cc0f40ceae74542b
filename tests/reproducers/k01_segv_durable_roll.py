"""Two threads append durably to one partition. A segment is rolled while the sync of
the other thread is under way: the process ends with SIGSEGV. After a sync, which gives
the interpreter's lock away, the C code reads the index of the prepared records without
a check that they still belong to its mark; the roll has cleared them.

Usage: python k01_segv_durable_roll.py [directory [seconds]]
"""

import subprocess
import sys
import tempfile
import time

CHILD = """
import faulthandler, sys, threading, time
import logstore as ls
faulthandler.enable()
with ls.open(sys.argv[1]) as store:
    size, magic = map(int, sys.argv[3:5])
    config = ls.TopicConfig(segment_bytes=size, message_format=magic)
    p = store.create_topic("t", config=config)[0]
    until = time.time() + float(sys.argv[2])
    def work(k):
        n = 0
        while time.time() < until:
            n += 1
            if sys.argv[5] == "many":
                values = [b"%d %d %d" % (k, n, i) for i in range(9)]
                p.append_many(values, durable=k == 0)
            else:
                p.append(b"%d %d" % (k, n), durable=k == 0)
    ts = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    print(p.end_offset, "records", len(p.segments), "segments")
"""
where = sys.argv[1] if len(sys.argv) > 1 else None
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
bad = 0
for how in ("many", "one"):
    for magic in (1, 2):
        for size in (300, 2000):
            with tempfile.TemporaryDirectory(dir=where) as d:
                t = time.time()
                r = subprocess.run(
                    [
                        sys.executable,
                        "-c",
                        CHILD,
                        f"{d}/s",
                        str(seconds),
                        str(size),
                        str(magic),
                        how,
                    ],
                    capture_output=True,
                    text=True,
                )
                print(
                    f"append {how}, magic {magic}, segment_bytes {size}: status"
                    f" {r.returncode} after {time.time() - t:.1f} s {r.stdout.strip()}"
                )
                if r.returncode:
                    bad += 1
                    print(
                        "\n".join(x for x in r.stderr.splitlines() if x.strip())[:1500]
                    )
print("WRONG" if bad else "OK")
sys.exit(bool(bad))
