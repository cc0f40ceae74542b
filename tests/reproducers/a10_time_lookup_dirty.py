"""offset_for_time (and a `start` or `stop` that is a datetime) looks into segments that
a publication has made and not committed: it returns an offset beyond the end, of
records that may be taken back. In the same process and in another.

Usage: python a10_time_lookup_dirty.py
"""

import datetime
import subprocess
import sys
import tempfile

import logstore
from logstore.io.files import Files

OTHER = """
import sys, logstore
with logstore.open(sys.argv[1], read_only=True) as store:
    p = store.topic("t")[0]
    print(p.offset_for_time(2000), p.end_offset)
"""
wrong = []


class Watched(Files):
    """Looks at the store just before a publication is committed."""

    def write(self, fd, data, pos):
        if b'"changes":[' in bytes(data[:200]) and pos:
            look()
        super().write(fd, data, pos)


def look():
    found, end = p.offset_for_time(2000), p.end_offset
    said = subprocess.run(
        [sys.executable, "-c", OTHER, path], capture_output=True, text=True
    )
    for where, one, other in (
        ("same process", found, end),
        ("other process", *map(eval, said.stdout.split())),
    ):
        print(f"   {where}: offset_for_time(2000) is {one}, end_offset {other}")
        if one is not None and one >= other:
            wrong.append(
                f"{where}: offset {one} is behind the end, {other}, and may be taken "
                "back"
            )
    try:
        print(
            "   read(start=datetime):",
            list(p.read(datetime.datetime.fromtimestamp(2, datetime.timezone.utc))),
        )
    except logstore.LogStoreError as error:
        wrong.append(f"read(start=datetime): {type(error).__name__}: {error}")


with (
    tempfile.TemporaryDirectory() as path,
    logstore.open(path, _files=Watched()) as store,
):
    config = logstore.TopicConfig(message_format=2, segment_bytes=1 << 20)
    p = store.create_topic("t", config=config)[0]
    p.append_many([b"x"] * 10, timestamps_ms=[1000] * 10)
    with store.stage() as stage:
        for _ in range(3):  # more than a segment
            stage.append_many(p, [b"y" * 1000] * 1000, timestamps_ms=[3000] * 1000)
        staged = stage.finish()
    store.publish([staged])
print("\n".join("WRONG " + one for one in wrong) or "OK")
raise SystemExit(bool(wrong))
