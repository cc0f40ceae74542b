"""A legal identity (1 to 1000 characters) whose text has an unbalanced bracket, or 20
digits after a colon, comma or bracket, makes `.logstore-published` unreadable for the
writer that wrote it: every later publication fails, and `published()` raises. Killed
before the commit, it leaves a store that cannot be opened any more.

Usage: python a01_identity_bricks_publishing.py
"""

import subprocess
import sys
import tempfile

import logstore

KILLED = """
import os, sys, logstore
from logstore.io.files import Files
class Dying(Files):
    def write(self, fd, data, pos):
        if b'"changes":[[' in bytes(data):
            os._exit(9)
        super().write(fd, data, pos)
store = logstore.open(sys.argv[1], _files=Dying())
p = store.create_topic("t")[0]
with store.stage(sys.argv[2], 1) as stage:
    stage.append_many(p, [b"x"])
    staged = stage.finish()
store.publish([staged], identity=sys.argv[2], sequence=1)
"""


def said(error):
    return f"{type(error).__name__}: {str(error).split(': ', 1)[-1]}"


def attempt(identity):
    with tempfile.TemporaryDirectory() as path:
        with logstore.open(path) as store:
            p = store.create_topic("t")[0]

            def publish(name, sequence):
                with store.stage(name, sequence) as stage:
                    stage.append_many(p, [b"x"])
                    staged = stage.finish()
                return store.publish([staged], identity=name, sequence=sequence)

            publish("somebody-else", 1)
            publish(identity, 1)  # succeeds
            for what, call in (
                ("published()", lambda: store.published("somebody-else")),
                (
                    "the next publication of another identity",
                    lambda: publish("somebody-else", 2),
                ),
            ):
                try:
                    call()
                except logstore.LogStoreError as error:
                    return f"{what}: {said(error)}"
    return None


def killed(identity):
    with tempfile.TemporaryDirectory() as path:
        subprocess.run([sys.executable, "-c", KILLED, path, identity], check=False)
        try:
            logstore.open(path).close()
        except logstore.LogStoreError as error:
            return f"cannot be opened: {said(error)}"
    return None


wrong = False
for identity in (
    "job[3]",  # balanced: fine
    "a[",
    "etl {nightly",
    "a)b]",
    "spark-txn:20251122084530123456",  # strftime("%Y%m%d%H%M%S%f") as txnAppId
    "host,00000000000000000001",
):
    found = attempt(identity)
    wrong |= found is not None
    print(
        ("WRONG " if found else "OK    ")
        + repr(identity)
        + (f" -> {found}" if found else "")
    )
for identity in ("job[3]", "a["):
    found = killed(identity)
    wrong |= found is not None
    print(
        ("WRONG " if found else "OK    ")
        + f"{identity!r}, killed before the commit"
        + (f" -> {found}" if found else "")
    )
raise SystemExit(wrong)
