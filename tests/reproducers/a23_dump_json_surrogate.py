"""One record whose value is a JSON text with a lone surrogate ends `logstore-dump
records --payload json`: no later record is shown. And --format jsonl prints NaN and
Infinity, which no JSON parser but Python's takes.

Usage: python a23_dump_json_surrogate.py
"""

import json
import subprocess
import sys
import tempfile

import logstore

wrong = False
with tempfile.TemporaryDirectory() as path:
    with logstore.open(path) as store:
        p = store.create_topic("t")[0]
        p.append_many([b'{"n": 1}', b'{"s": "\\ud800"}', b"[NaN, 1e999]", b'{"n": 2}'])
    for form in ("text", "jsonl"):
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "logstore.cli",
                "records",
                path,
                "--payload",
                "json",
                "--format",
                form,
            ],
            capture_output=True,
            text=True,
        )
        lines = ended.stdout.splitlines()
        if len(lines) != 4:
            print(
                f"WRONG {form}: {len(lines)} of 4 records, status {ended.returncode}, "
                f"{ended.stderr.strip()}"
            )
            wrong = True
        for line in lines if form == "jsonl" else ():

            def refuse(constant):
                raise ValueError(constant)

            try:
                json.loads(line, parse_constant=refuse)
            except ValueError as error:
                print(f"WRONG {form}: not JSON ({error}): {line}")
                wrong = True
print("" if wrong else "OK")
raise SystemExit(wrong)
