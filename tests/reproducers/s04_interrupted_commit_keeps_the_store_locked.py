"""A signal raises in the commit of a transaction, or in Store.submit, while no process
has the store open. The store stays open for writing in this process until a garbage
collection finds it. Until then the next commit, here and in every other process, waits
for ever.

Usage: python s04_interrupted_commit_keeps_the_store_locked.py [seconds, 35]
"""

import gc
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import logstore as ls

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
OTHER = r"""
import logging, sys
logging.disable(50)
import logstore as ls
with ls.open(sys.argv[1], read_only=True) as s:
    with s.stage("other", 1) as st:
        st.append_many(s["b"][0], [b"1"])
        done = st.finish()
    try:
        s.submit([done], identity="other", sequence=1, timeout_ms=4000)
        print("published")
    except ls.PublicationTimeoutError:
        print("PublicationTimeoutError after 4 s")
"""
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 35
armed = False


def boom(*_):
    if armed:
        raise KeyboardInterrupt


signal.signal(signal.SIGALRM, boom)
path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("a").append_many([b"%d" % i for i in range(100000)], durable=True)
    s.create_topic("b")
c = ls.Consumer(path, group="tx", topics=["a"], reset="earliest", max_poll_records=1)


def read(tx):
    for v in c.poll(timeout_ms=1000).values():
        for r in v:
            tx.append("b", r.value)


def one(**kw):
    with c.transaction(**kw) as tx:
        read(tx)


one()
begun = time.perf_counter()
one()
took = time.perf_counter() - begun
rnd, begun, n, said = random.Random(), time.time(), 0, ""
while time.time() - begun < seconds and not said:
    n += 1
    try:
        with c.transaction() as tx:
            read(tx)
            armed = True
            signal.setitimer(signal.ITIMER_REAL, rnd.uniform(took * 0.3, took))
    except (KeyboardInterrupt, ls.LogStoreError):
        pass
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        one(timeout_ms=20000)
        continue
    except ls.PublicationTimeoutError:
        pass
    except ls.LogStoreError:
        continue
    other = subprocess.run(
        [sys.executable, "-c", OTHER, path], capture_output=True, text=True
    ).stdout.strip()
    gc.collect()
    try:
        ls.open(path).close()
        after = "free after gc.collect()"
    except ls.StoreLockedError:
        after = "also after gc.collect()"
    said = (
        f"interrupt {n}: the next commit: PublicationTimeoutError after 20 s; another"
        f" process: {other}; {after}"
    )
print(f"WRONG {said}" if said else f"OK {n} interrupts")
raise SystemExit(bool(said))
