"""An owner is killed between the append and the commit of a publication, and opened
again while the disk is full: opening raises DiskFullError, or a partition takes no
appends as soon as there is space again.

Needs root: it mounts a tmpfs of 4 MB.

Usage: python s16_owner_opened_on_a_full_disk.py
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
CHILD = r"""
import os, sys, logstore as ls
from logstore.io.checkpoint.publication_journal import PublicationJournal
s = ls.open(sys.argv[1])
def publish(seq):
    with s.stage("i", seq) as st:
        for p in s["b"]:
            st.append_many(p, [b"x" * 100] * int(sys.argv[2]))
        d = st.finish()
    s.publish([d], identity="i", sequence=seq)
for seq in range(1, 4):
    publish(seq)
PublicationJournal.commit = lambda *a: os.kill(os.getpid(), 9)
publish(4)
"""
mnt = tempfile.mkdtemp()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mnt], check=True)
wrong = []
try:
    for records in (5, 50, 500):
        for leave in (0, 4096):
            path = f"{mnt}/s{records}-{leave}"
            with ls.open(path) as s:
                s.create_topic(
                    "b", 2, ls.TopicConfig(message_format=2, file_delete_delay_ms=0)
                )
            subprocess.run(
                [sys.executable, "-c", CHILD, path, str(records)],
                stderr=subprocess.DEVNULL,
            )
            fill = f"{mnt}/fill"
            with contextlib.suppress(OSError), open(fill, "ab", buffering=0) as f:
                while True:
                    f.write(b"x" * 4096)
            if leave:
                os.truncate(fill, os.path.getsize(fill) - leave)
            what = f"{records} records, {leave} bytes free: "
            s = None
            try:
                s = ls.open(path, config=ls.StoreConfig(publish_for_others=True))
            except ls.LogStoreError as e:
                wrong.append(
                    f"{what}open: {type(e).__name__}"
                    f" {str(e).replace(path, 'the store')[:60]}"
                )
            os.unlink(fill)
            if s is not None:
                try:
                    with s.stage("i", 9) as st:
                        st.append_many(s["b"][0], [b"1"])
                        d = st.finish()
                    s.publish([d], identity="i", sequence=9)
                except ls.LogStoreError as e:
                    wrong.append(
                        f"{what}with room again, publish: {type(e).__name__}"
                        f" {str(e).replace(path, 'the store')[:70]}"
                    )
                try:
                    s["b"][0].append(b"2")
                except ls.LogStoreError as e:
                    wrong.append(f"{what}append: {type(e).__name__}")
                with contextlib.suppress(ls.LogStoreError):
                    s.close()
            shutil.rmtree(path)
finally:
    subprocess.run(["umount", "-l", mnt])
    os.rmdir(mnt)
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
