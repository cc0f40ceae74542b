"""Large records: read_arrow over two whose sizes together pass 2 GiB, and
append_batches of a buffer beyond 2 GiB. Needs 10 GB of memory and 5 GB in the directory
that is given.

Usage: python a21_large_records.py [directory for 5 GB]
"""

import sys
import tempfile

import logstore

wrong = []
with tempfile.TemporaryDirectory(
    dir=sys.argv[1] if len(sys.argv) > 1 else None
) as path:
    with logstore.open(path) as store:
        config = logstore.TopicConfig(max_message_bytes=2**31 - 1, message_format=2)
        p, q = store.create_topic("t", 2, config=config).partitions
        for size in (900 << 20, 1300 << 20):
            p.append(bytes(size))
        try:
            sizes = [batch.column("value").nbytes >> 20 for batch in p.read_arrow()]
            print("OK    read_arrow:", sizes)
        except BaseException as error:
            wrong.append(
                "read_arrow of two records of 900 and 1300 MiB: "
                f"{type(error).__module__}.{type(error).__name__}: {error}"
            )
        q.append_many([b"x" * 1000] * 1000)
        one = bytes(q.fetch(0, 1 << 26).buffer)
        try:
            print(
                "OK    append_batches:", q.append_batches(one * (2**31 // len(one) + 2))
            )
        except BaseException as error:
            text = (
                f"append_batches of a sound buffer beyond 2 GiB: "
                f"{type(error).__name__}: {str(error)[:150]}"
            )
            if isinstance(error, logstore.CorruptRecordError):
                wrong.append(text)
            else:
                print("OK   ", text)
print("\n".join("WRONG " + one for one in wrong))
raise SystemExit(bool(wrong))
