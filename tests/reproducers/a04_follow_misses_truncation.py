"""A follower at the end does not notice that the log was truncated below its position
and has grown past it again between two of its looks: it continues at its position, and
never gets the new records below. The contract: OffsetOutOfRangeError.

Usage: python a04_follow_misses_truncation.py [same|other]
"""

import subprocess
import sys
import tempfile
import textwrap

import logstore

WRITER = textwrap.dedent("""
    import sys, logstore
    with logstore.open(sys.argv[1]) as store:
        p = store.create_topic("t", exist_ok=True)[0]
        p.append_many([b"old"] * 10)
        print("ready", flush=True)
        sys.stdin.readline()
        p.truncate_to(5)
        p.append_many([b"new"] * 10)
        p.flush()
        print("done", flush=True)
        sys.stdin.readline()
""")


def judge(name, seen, error):
    """Check for either all new records, or an error."""
    new = [r.offset for r in seen if r.value == b"new"]
    if error is None and new != list(range(5, 15)):
        print(f"WRONG {name}: no error, and of the new records 5..14 came only {new}")
        return True
    print(f"OK    {name}: {new} {error!r}")
    return False


def same_process():
    with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
        p = store.create_topic("t")[0]
        p.append_many([b"old"] * 10)
        seen, error = [], None
        follower = p.follow(timeout=1)
        seen += [next(follower) for _ in range(10)]
        p.truncate_to(5)
        p.append_many([b"new"] * 10)
        try:
            seen += list(follower)
        except logstore.LogStoreError as found:
            error = found
        return judge("same process", seen, error)


def other_process():
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
            follower = store.topic("t")[0].follow(timeout=1)
            seen += [next(follower) for _ in range(10)]
            writer.stdin.write("\n")
            writer.stdin.flush()
            writer.stdout.readline()
            try:
                seen += list(follower)
            except logstore.LogStoreError as found:
                error = found
        writer.communicate("\n")
        return judge("other process", seen, error)


raise SystemExit(same_process() | other_process())
