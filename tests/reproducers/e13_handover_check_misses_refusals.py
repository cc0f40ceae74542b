"""`check_handover` finds nothing in directories on which Kafka 3.9.1 does not start, or
whose records it deletes. Each case was started with a real broker (KRaft, one log
directory, default cleaner), whose answer is in the table; this script runs the check
alone.

Usage: python e13_handover_check_misses_refusals.py
"""

import os
import shutil
import sys
import tempfile

import logstore as ls

META = (
    "version=1\nnode.id=1\ncluster.id=AAECAwQFBgcICQoLDA0ODw\n"
    "directory.id=nJ5bdC2mTnq5mYMJVYsXGg\n"
)


def write(*path, text=""):
    with open(os.path.join(*path), "w") as f:
        f.write(text)


CASES = {
    "a directory zz-9999999999": (
        lambda d: os.mkdir(os.path.join(d, "zz-9999999999")),
        "KafkaException: 'zz-9999999999' is not in the form of topic-partition",
    ),
    "a-00 beside a-0": (
        lambda d: shutil.copytree(os.path.join(d, "a-0"), os.path.join(d, "a-00")),
        "IllegalStateException: Duplicate log directories for a-0",
    ),
    "a-0/abc.log": (
        lambda d: write(d, "a-0", "abc.log"),
        'NumberFormatException: For input string: "abc"; Error starting LogManager',
    ),
    "a-0/abc.index": (
        lambda d: write(d, "a-0", "abc.index"),
        'NumberFormatException: For input string: "abc"',
    ),
    "a-0/abc.snapshot": (
        lambda d: write(d, "a-0", "abc.snapshot"),
        'NumberFormatException: For input string: "abc"',
    ),
    "a damaged cleaner-offset-checkpoint": (
        lambda d: write(d, "cleaner-offset-checkpoint", text="garbage\n"),
        (
            "IOException: Malformed line in checkpoint file; all log dirs have failed,"
            " the broker ends"
        ),
    ),
    "cleaner-offset-checkpoint of version 1": (
        lambda d: write(d, "cleaner-offset-checkpoint", text="1\n1\na 0 5\n"),
        "IOException: Unrecognised version:1",
    ),
    "meta.properties without node.id": (
        lambda d: write(d, "meta.properties", text=META.replace("node.id=1\n", "")),
        "RuntimeException: Failed to find node.id",
    ),
    "meta.properties of version 7": (
        lambda d: write(
            d, "meta.properties", text=META.replace("version=1", "version=7")
        ),
        "RuntimeException: Unknown meta.properties version number 7",
    ),
    "meta.properties without cluster.id": (
        lambda d: write(
            d,
            "meta.properties",
            text=META.replace("cluster.id=AAECAwQFBgcICQoLDA0ODw\n", ""),
        ),
        "RuntimeException: cluster.id was not found",
    ),
    "meta.properties with a bad directory.id": (
        lambda d: write(
            d, "meta.properties", text=META.replace("nJ5bdC2mTnq5mYMJVYsXGg", "%%%")
        ),
        "RuntimeException: Unable to read directory.id as a Uuid",
    ),
    "log-start-offset-checkpoint beyond the end": (
        lambda d: write(d, "log-start-offset-checkpoint", text="0\n1\na 0 10000\n"),
        (
            "starts, and DELETES all 300 records (logEndOffset was smaller than"
            " logStartOffset)"
        ),
    ),
}
quiet = []
for case, (change, broker) in CASES.items():
    root = os.path.join(tempfile.mkdtemp(), "logs")
    with ls.open(root) as store:
        p = store.create_topic("a", config=ls.TopicConfig(message_format=2))[0]
        p.append_many([b"v"] * 300)
    write(root, "meta.properties", text=META)
    write(
        root,
        "a-0",
        "partition.metadata",
        text="version: 0\ntopic_id: 2f1rYkIjTKyCf-0hQMvLDg",
    )
    for path in (root, os.path.join(root, "a-0")):
        for name in os.listdir(path):
            if name.startswith(".logstore"):
                os.unlink(os.path.join(path, name))
    change(root)
    report = ls.kafka.check_handover(
        root, from_kafka=False, release="3.9", retention_ms=-1
    )
    if not [f for f in report.findings if f.effect in ("refuses", "loses")]:
        quiet.append(f"{case} (broker: {broker})")
print(
    f"{'WRONG' if quiet else 'OK'}: {len(quiet)} of {len(CASES)} cases are not"
    f" foreseen: {'; '.join(quiet)}"
)
sys.exit(bool(quiet))
