"""A copy without the owner file and the recovery points has one damaged byte. The first
opening reports "corrupt", cuts nothing and takes no appends. The second one reports a
torn tail and cuts everything after the damage, intact batches too.

Usage: python r01_damage_forgotten_backup.py
"""

import logging
import os
import pathlib
import shutil
import tempfile

from common import end

import logstore

logging.disable(logging.CRITICAL)
store = os.path.join(tempfile.mkdtemp(), "store")
with logstore.open(store) as s:
    log = s.create_topic("t", config=logstore.TopicConfig(message_format=2))[0]
    for i in range(20):
        log.append_many([b"value %d " % (5 * i + j) * 10 for j in range(5)])
copy = os.path.join(tempfile.mkdtemp(), "copy")
left_out = {
    ".lock",
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
}
shutil.copytree(store, copy, ignore=lambda d, names: left_out if d == store else ())
os.chmod(copy, 0o700)
file = pathlib.Path(copy, "t-0", f"{0:020}.log")
data = bytearray(file.read_bytes())
data[len(data) // 3] ^= 0x40
file.write_bytes(data)
with logstore.open(copy) as s:
    first = [a.label for a in s.recovery_report.actions]
with logstore.open(copy) as s:
    second = [(a.label, a.bytes) for a in s.recovery_report.actions]
size = os.path.getsize(file)
end(
    ""
    if size == len(data)
    else (
        f"the first opening said {first} and cut nothing; the second said {second}:"
        f" {size} of {len(data)} bytes are left"
    )
)
