"""append_arrow trusts the positions of a binary column. A record batch that came over
IPC or the C interface is not validated by pyarrow; one whose positions lead outside of
its data makes logstore write the memory after it into the log, or crash.

Usage: python a20_arrow_not_validated.py
"""

import struct
import subprocess
import sys
import tempfile

import pyarrow as pa

import logstore


def attempt(length, path):
    data = pa.py_buffer(b"0123456789")
    offsets = pa.py_buffer(struct.pack("<ii", 0, 10))
    array = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("value", pa.binary())])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([array], ["value"]))
    sent = sink.getvalue().to_pybytes()
    at = sent.rindex(struct.pack("<ii", 0, 10))
    sent = (
        sent[:at] + struct.pack("<ii", 0, length) + sent[at + 8 :]
    )  # what a hostile peer sends
    received = pa.ipc.open_stream(sent).read_next_batch()  # no error
    with logstore.open(path) as store:
        p = store.create_topic(
            "t", config=logstore.TopicConfig(max_message_bytes=2**31 - 1)
        )[0]
        p.append_arrow(received)
        value = next(p.read()).value
        print(
            f"WRONG a value of 10 bytes was stored as {len(value)}; behind it: "
            f"{value[10:40]!r}"
        )
    return 1


if len(sys.argv) > 1:
    raise SystemExit(attempt(int(sys.argv[1]), sys.argv[2]))
wrong = False
for length in (10_000, 1_500_000_000):
    with tempfile.TemporaryDirectory() as path:  # the child may not live to remove it
        ended = subprocess.run(
            [sys.executable, __file__, str(length), path],
            capture_output=True,
            text=True,
        )
    error = ended.stderr.strip().splitlines()
    if ended.returncode < 0:
        print(f"WRONG died of signal {-ended.returncode}")
        wrong = True
    else:
        print(ended.stdout.strip() or f"OK    {error[-1] if error else ''}")
        wrong |= "WRONG" in ended.stdout
raise SystemExit(wrong)
