"""The format logstore-jvm never ends if 1 MiB or more of a segment is zero from the
beginning of a batch on (a lost extent, a hole): its task uses a core for ever and
cannot be cancelled. The format logstore raises CorruptRecordError at once.

Needs pyspark and the jar of logstore.

Usage: python e10_jvm_hangs_on_zeros.py
"""

import os
import tempfile
import threading
import time

import sparkling

import logstore as ls

path = tempfile.mkdtemp()
with ls.open(path) as store:
    p = store.create_topic("c", config=ls.TopicConfig(message_format=2))[0]
    for _ in range(50):
        p.append_many([b"x" * 1000] * 100)
    p.roll()
    p.append(b"end")
    at = min(b.position for b in p.read_batches() if b.position > 1_000_000)
with open(os.path.join(path, "c-0", f"{0:020d}.log"), "r+b") as f:
    f.seek(at)
    f.write(bytes(2_500_000))
spark = sparkling.session()
told = {}


def ask(name):
    told[name] = sparkling.outcome(
        lambda: len(sparkling.load(spark, name, path).select("value").collect())
    )


for name in ("logstore", "logstore-jvm"):
    thread = threading.Thread(target=ask, args=(name,), daemon=True)
    thread.start()
    thread.join(60)
hung = "logstore-jvm" not in told
spark.sparkContext.cancelAllJobs()
time.sleep(3)
busy = [
    str(e.getKey().getName())
    for e in spark.sparkContext._jvm.java.lang.Thread.getAllStackTraces().entrySet()
    if any("logstore.spark.TaskReader" in str(x) for x in e.getValue())
]
if hung:
    by_jvm = f"no answer in 60 s; 3 s after cancelAllJobs still in TaskReader: {busy}"
else:
    by_jvm = told["logstore-jvm"][1]
sparkling.end(hung, f"logstore: {told['logstore'][1]}; logstore-jvm: {by_jvm}")
