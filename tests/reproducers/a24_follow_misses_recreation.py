"""A follower in another process, or `logstore-dump tail -f`, whose topic is deleted and
created again between two of its looks, continues in the new topic at the old offset: it
never gets the new records below, and there is no error. The contract:
PartitionNotFoundError.

Usage: python a24_follow_misses_recreation.py
"""

import subprocess
import sys
import tempfile
import textwrap

import logstore

WRITER = textwrap.dedent("""
    import sys, logstore
    with logstore.open(sys.argv[1]) as store:
        p = store.create_topic("t")[0]
        p.append_many([b"old"] * 10)
        print("ready", flush=True)
        sys.stdin.readline()
        store.delete_topic("t")
        p = store.create_topic("t")[0]
        p.append_many([b"new"] * 20)
        print("done", flush=True)
        sys.stdin.readline()
""")
tries, silent = 3, 0
for _ in range(tries):
    with tempfile.TemporaryDirectory() as path:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        writer.stdout.readline()
        with logstore.open(path, read_only=True) as store:
            seen, error = [], None
            follower = store.topic("t")[0].follow(timeout=0.5)
            seen += [next(follower) for _ in range(10)]

            # The consumer is busy with the tenth record meanwhile.
            writer.stdin.write("\n")
            writer.stdin.flush()
            writer.stdout.readline()
            try:
                seen += list(follower)
            except logstore.LogStoreError as found:
                error = found
        writer.communicate("\n")
    new = [r.offset for r in seen if r.value == b"new"]
    if error is None and new != list(range(20)):
        silent += 1
        last = new
    else:
        print("   told:", type(error).__name__, str(error)[:80])
if silent:
    print(
        f"in {silent} of {tries} tries no error, and of the new records 0..19 came "
        f"{last[:1]}..{last[-1:]}"
    )
print("WRONG" if silent else "OK")
raise SystemExit(bool(silent))
