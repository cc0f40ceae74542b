"""The committed positions of all groups no longer count after a copy of a running store
without .logstore-owner, after a broker has had the directory, or after one damaged bit
in .logstore-owner, though the files of the groups are whole: the topics get other ids.
With reset="earliest" everything is processed again, and the output of transactions is
there twice.

Usage: python s19_positions_are_lost_with_the_owner_file.py
"""

import collections
import logging
import os
import shutil
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
LEFT_OUT = {
    ".lock",
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
}


def work(path, group):
    with ls.Consumer(path, group=group, topics=["t"], reset="earliest") as c:
        for _ in range(2):
            with c.transaction() as tx:
                for v in c.poll(timeout_ms=200).values():
                    for r in v:
                        tx.append("out", r.value)


def backup(path):
    with ls.open(path):  # it runs
        shutil.copytree(
            path,
            f"{path}.backup",
            ignore=lambda d, names: LEFT_OUT.intersection(names) if d == path else (),
        )
    return f"{path}.backup"


def broker(path):  # what a broker leaves: another marker, other recovery points
    with open(f"{path}/.kafka_cleanshutdown", "w") as f:
        f.write('{"version":0,"brokerEpoch":5}')
    return path


def bit(path):
    with open(f"{path}/.logstore-owner", "r+b") as f:
        data = bytearray(f.read())
        data[40] ^= 1
        f.seek(0)
        f.write(data)
    return path


wrong = []
for how in (backup, broker, bit):
    path = os.path.join(tempfile.mkdtemp(), "s")
    with ls.open(path) as s:
        s.create_topic("out")
        s.create_topic("t").append_many([b"%d" % i for i in range(10)], durable=True)
    work(path, "tx")
    with ls.Consumer(path, group="co", topics=["t"], reset="earliest") as c:
        assert len(c.poll(timeout_ms=500)[("t", 0)]) == 10
        c.commit()
    path = how(path)
    ls.open(path).close()
    with ls.Consumer(path, group="co", topics=["t"], reset="earliest") as c:
        committed = c.committed(("t", 0))
    work(path, "tx")
    with ls.open(path, read_only=True) as s:
        out = collections.Counter(r.value for r in s["out"][0].read())
    if committed is None or max(out.values()) > 1:
        wrong.append(
            f"{how.__name__}: committed() {committed},"
            f" {sum(n > 1 for n in out.values())} of {len(out)} outputs twice"
        )
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
