"""A large append_many that is interrupted is undone, but a follower in another process
has been given its first records meanwhile ("all or nothing ... also for readers in
other processes"). If the log has grown past them again, the follower gets no error: it
has records that were never appended, and lacks the records that have their offsets now.

Usage: python a29_partial_append_is_seen.py
"""

import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import logstore

FOLLOWER = textwrap.dedent("""
    import sys, logstore
    seen = {}
    with logstore.open(sys.argv[1], read_only=True) as store:
        print("ready", flush=True)
        try:
            for record in store.topic("t")[0].follow(timeout=3):
                seen[record.offset] = record.value[:8]
            print("no error")
        except logstore.LogStoreError as error:
            print(type(error).__name__)
    print(sum(v == b"undone--" for v in seen.values()))
    print(sum(v == b"appended" for v in seen.values()))
""")


class Interrupt(Exception):
    pass


def handler(*_):
    raise Interrupt


signal.signal(signal.SIGALRM, handler)
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    # No sync by number of records: an interrupt in it comes after the whole append.
    config = logstore.TopicConfig(flush_messages=100_000_000)
    p, other = store.create_topic("t", 2, config).partitions
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, path], stdout=subprocess.PIPE, text=True
    )
    follower.stdout.readline()
    values = [b"undone--" + b"." * 92] * 3_000_000
    begin = time.monotonic()
    other.append_many(values)
    delay = 0.5 * (time.monotonic() - begin)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        p.append_many(values)
        raise SystemExit("too fast: not interrupted")
    except Interrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if p.end_offset:
            raise SystemExit("too fast: interrupted behind the append") from None
        print(
            f"   append_many raised after {delay:.2f} s; end_offset is {p.end_offset}"
        )
    p.append_many([b"appended" + b"." * 92] * 2_900_000)
    out = follower.communicate()[0].split("\n")
told, undone, appended = out[0], int(out[1]), int(out[2])
print(
    f"   the follower: {told}; {undone} records that were never appended, {appended} "
    "of 2,900,000 that were"
)
bad = undone > 0
print("WRONG" if bad else "OK")
raise SystemExit(bad)
