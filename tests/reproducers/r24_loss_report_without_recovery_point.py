"""A partition of a killed broker without a recovery point has one bad batch. `export`
with --on-corruption skip ends at it, and reports far fewer records missing than are
missing.

Usage: python r24_loss_report_without_recovery_point.py
"""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile

from common import end
from kbatch import directory, flip, rows

logging.disable(logging.CRITICAL)
good = [rows(5 * i, 5) for i in range(10)]
path = directory({0: b"".join(good[:4]) + flip(good[4], -3) + b"".join(good[5:])})
out = os.path.join(tempfile.mkdtemp(), "saved.jsonl")
done = subprocess.run(
    [
        sys.executable,
        "-m",
        "logstore",
        "export",
        "--on-corruption",
        "skip",
        path,
        "-o",
        out,
    ],
    capture_output=True,
    text=True,
)
shown = pathlib.Path(out).read_text().count("\n")
said = done.stderr.strip().splitlines()[-1]
end("" if "30 " in said or shown == 45 else f"{shown} of 50 records; it says: {said}")
