"""verify ("may run while a writer ... works on the store") of an intact store calls it
damaged if a topic is created or deleted meanwhile: "lost-segment ... is gone",
"unreadable".

Usage: python a33_verify_false_alarm.py [seconds, 15]
"""

import collections
import subprocess
import sys
import tempfile
import textwrap

import logstore

WRITER = textwrap.dedent("""
    import sys, time, logstore
    stop = time.time() + float(sys.argv[2])
    with logstore.open(sys.argv[1]) as store:
        keep = store.create_topic("keep", 20)
        for p in keep:
            p.append_many([b"x" * 1000] * 500)
        print("ready", flush=True)
        n = 0
        while time.time() < stop:
            n += 1
            store.create_topic(f"job{n}")[0].append(b"1")
            time.sleep(0.05)
            store.delete_topic(f"job{n}")
            time.sleep(0.05)
    """)
seconds = [*sys.argv, "15"][1]
kinds, runs, bad, message = collections.Counter(), 0, 0, ""
with tempfile.TemporaryDirectory() as path:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path, seconds], stdout=subprocess.PIPE, text=True
    )
    writer.stdout.readline()
    while writer.poll() is None:
        report = logstore.verify(path)
        runs += 1
        bad += not report.ok
        for problem in report.problems:
            kinds[problem.kind] += 1
            message = problem.message.replace(path, "STORE")
print(
    f"{runs} runs beside a writer that makes and deletes ten topics a second: {bad} "
    f"found problems {dict(kinds)}"
)
if bad:
    print("  ", message)
print("WRONG" if bad else "OK")
raise SystemExit(bool(bad))
