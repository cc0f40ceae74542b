"""append_many takes any iterable and walks it under the lock, after the choice of the
base offset. If the iteration appends to the same partition (a generator that logs bad
lines in the same log), both get the same offsets: acknowledged records become
unreadable, and after a crash recovery cuts or refuses.

Usage: python a02_reentrant_append_many.py
"""

import tempfile

import logstore


def attempt(**settings):
    with tempfile.TemporaryDirectory() as path:
        with logstore.open(path) as store:
            p = store.create_topic("t", config=logstore.TopicConfig(**settings))[0]
            p.append(b"first")
            inner = []

            def lines():
                for line in (b"good", b"bad", b"good"):
                    if line == b"bad":
                        inner.append(p.append(b"saw a bad line", durable=True))
                    else:
                        yield line

            told = []
            try:
                told += list(p.append_many(lines()))
            except Exception as error:
                print("   append_many raised", repr(error)[:100])
            print("   inner append was told", inner, ", append_many was told", told)
            try:
                seen = [(r.offset, r.value) for r in p.read()]
            except logstore.LogStoreError as error:
                return f"read: {type(error).__name__}: {error}"
            if len(seen) != p.end_offset or set(inner) & set(told):
                return f"same offset told twice, or records missing: {seen}"
        with logstore.open(path) as store:
            seen = [r.value for r in store.topic("t")[0].read()]
            if inner and b"saw a bad line" not in seen:
                return f"durable record is gone: {seen}"
    return None


wrong = False
for settings in ({}, {"message_format": 2}, {"compression_type": "gzip"}):
    found = attempt(**settings)
    wrong |= found is not None
    print(
        ("WRONG " if found else "OK    ")
        + str(settings)
        + (f" -> {found}" if found else "")
    )
raise SystemExit(wrong)
