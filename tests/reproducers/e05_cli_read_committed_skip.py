"""`logstore-dump records` and `export` with `--isolation read_committed --on-corruption
skip` leave out intact committed records of a broker's log that "missing" does not list,
and print others twice. `Partition.read` with the same arguments returns the right
records.

Usage: python e05_cli_read_committed_skip.py
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from kbatch import batch, damaged, marker

import logstore as ls


def plain(base, n, **kw):
    return batch(base, [(b"k%d" % i, b"v%d" % i) for i in range(base, base + n)], **kw)


TX = {"producer": 7, "attributes": 0x10}
CASES = {
    "two damaged batches": (
        [
            plain(0, 5),
            damaged(plain(5, 5)),
            plain(10, 5),
            damaged(plain(15, 5)),
            plain(20, 5),
        ],
        plain(25, 5),
    ),
    "one, in a committed transaction": (
        [
            plain(0, 5),
            plain(5, 5, **TX),
            damaged(plain(10, 5, **TX)),
            plain(15, 5),
            marker(20, 7),
        ],
        plain(21, 5),
    ),
    "a damaged marker": (
        [
            plain(0, 5),
            plain(5, 5, **TX),
            plain(10, 2),
            damaged(marker(12, 7)),
            plain(13, 5),
        ],
        plain(18, 5),
    ),
}
bad, told = 0, []
for case, (first, second) in CASES.items():
    root = tempfile.mkdtemp()
    part = os.path.join(root, "c-0")
    os.mkdir(part)
    pathlib.Path(part, f"{0:020}.log").write_bytes(b"".join(first))
    base = int.from_bytes(second[:8], "big")
    pathlib.Path(part, f"{base:020}.log").write_bytes(second)
    with ls.open(root, read_only=True) as store:
        want = [
            r.offset
            for r in store.topic("c")[0].read(
                isolation="read_committed", on_corruption="skip"
            )
        ]
    how = ["--isolation", "read_committed", "--on-corruption", "skip"]
    for command in (
        ["records", part, "--format", "jsonl"],
        ["export", root, "--format", "jsonl", "-o", "-"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "logstore.cli", *command, *how],
            capture_output=True,
            text=True,
        )
        got = [json.loads(line)["offset"] for line in done.stdout.splitlines()]
        lost = sorted(set(want) - set(got))
        twice = sorted({o for o in got if got.count(o) > 1})
        listed = [
            x.split("offsets ")[1].split(" ")[0]
            for x in done.stderr.splitlines()
            if "missing: " in x
        ]
        if lost or twice or set(got) - set(want):
            bad += 1
            told.append(
                f"{case}, {command[0]}: without {lost}, twice {twice}, beyond what is"
                f" decided {sorted(set(got) - set(want))} (status {done.returncode};"
                f" listed as missing: {', '.join(listed)})"
            )
print(f"{'WRONG' if bad else 'OK'}: {'; '.join(told[::2]) or 'the same records'}")
sys.exit(bool(bad))
