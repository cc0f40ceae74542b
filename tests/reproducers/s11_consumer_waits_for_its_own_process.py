"""A program has the store open for writing, and a consumer that it opened by its path.
The commit of a transaction (and Store.submit) waits for that same process, for ever,
without a log line: even for the same thread, which can never close it.

Usage: python s11_consumer_waits_for_its_own_process.py [seconds, 20]
"""

import subprocess
import sys
import tempfile

CHILD = r"""
import logging, sys, logstore as ls
logging.basicConfig(level=logging.DEBUG)
path = sys.argv[1]
with ls.open(path) as store:
    store.create_topic("out")
    store.create_topic("t").append(b"1", durable=True)
    with ls.Consumer(path, group="g", topics=["t"], reset="earliest") as consumer:
        with consumer.transaction() as transaction:
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    transaction.append("out", record.value)
print("done")
"""
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
command = [sys.executable, "-c", CHILD, tempfile.mkdtemp()]
p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
try:
    out, err = p.communicate(timeout=seconds)
except subprocess.TimeoutExpired:
    p.kill()
    out, err = p.communicate()
    print(f"WRONG hangs for {seconds:.0f} s; logged: {err[-200:]!r}")
    raise SystemExit(1) from None
print("OK", out.strip(), err.strip().split("\n")[-1][:200])
