"""A read, read_batches or read_arrow that has begun, truncate_to below its position,
and appends past it: the read continues without an error, in the new log. It has
delivered records that are gone, and leaves out the records that have their offsets now.

Usage: python a38_read_mixes_two_logs.py
"""

import itertools
import tempfile

import logstore

wrong = False
for where, how in itertools.product(
    ("same store", "read-only store"), ("read", "read_batches", "read_arrow")
):
    with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
        p = store.create_topic("t")[0]
        p.append_many([b"old" + b"." * 60] * 20_000)
        seen_by = (
            p
            if where == "same store"
            else logstore.open(path, read_only=True).topic("t")[0]
        )
        if how == "read":
            records = seen_by.read()
        elif how == "read_batches":
            records = itertools.chain.from_iterable(seen_by.read_batches())
        else:
            records = (
                logstore.Record(o, 0, None, v)
                for b in seen_by.read_arrow(batch_records=1000)
                for o, v in zip(
                    b.column("offset").to_pylist(),
                    b.column("value").to_pylist(),
                    strict=True,
                )
            )
        seen = list(itertools.islice(records, 12_000))
        p.truncate_to(6000)
        p.append_many([b"new" + b"." * 60] * 30_000)
        error = None
        try:
            seen += records
        except logstore.LogStoreError as found:
            error = found
        old = sum(r.value[:3] == b"old" and r.offset >= 6000 for r in seen)
        new = [r.offset for r in seen if r.value[:3] == b"new"]
        bad = error is None and bool(old) and bool(new)
        wrong |= bad
        print(
            "WRONG" if bad else "OK   ",
            f"{where}, {how}:",
            f"{old} truncated records, then new ones from offset "
            f"{new[0] if new else None} "
            f"(they begin at 6000); error: {type(error).__name__ if error else None}",
        )
raise SystemExit(wrong)
