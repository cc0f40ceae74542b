"""A follower over thousands of rolls and deletions: its resources do not grow.

The number of rolls matters, not the hours that a follower runs. The writer rolls every
few records and deletes all but the newest segments; a follower in another process
counts its resources at several points, and each count is compared with the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import append_records, config_of

ROLLS = 2000
CALL = 10  # records that make a segment
KEPT = 40  # segments

# Allowed growth since the first point, for buffers and caches. A leak of one object for
# each roll would be thousands.
SLACK = {"descriptors": 2, "maps": 10, "threads": 0, "objects": 400, "kib": 1500}

FOLLOWER = """
import gc, json, os, sys
import logstore
from support.values import *

def held():
    gc.collect()
    status = open("/proc/self/status").read()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": sum(1 for _ in open("/proc/self/maps")),
        "kib": int(status.split("VmRSS:")[1].split()[0]),
        "threads": len(os.listdir("/proc/self/task")),
        "objects": len(gc.get_objects()),
    }

path, count, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = logstore.StoreConfig(max_open_files=8)
with logstore.open(path, read_only=True, config=config) as store:
    partition = store.topic("orders")[0]
    expected_offset = 0
    for record in partition.follow(timeout=60):
        assert record.offset == expected_offset, (record.offset, expected_offset)
        assert record == record_of(record.offset, 1)
        expected_offset += 1
        if expected_offset % step == 0:
            # The writer may go on to delete what lies before.
            print(json.dumps([expected_offset, held()]), flush=True)
        if expected_offset == count:
            break
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_follower_over_thousands_of_rolls_holds_no_more_than_at_first(
    tmp_path: Path,
) -> None:
    """Each record once and in order; the numbers of descriptors, mappings, threads and
    Python objects, and the memory, do not grow."""
    tests = Path(__file__).parents[1]
    source = Path(logstore.__file__).parents[1]
    step = KEPT // 2 * CALL
    held: list[dict[str, int]] = []
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(segment_bytes=1 << 30, file_delete_delay_ms=0)
        partition = store.create_topic("orders", config=config)[0]
        command = [sys.executable, "-c", FOLLOWER, str(tmp_path), str(ROLLS * CALL)]
        with subprocess.Popen(
            [*command, str(step)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"},
        ) as follower:
            try:
                assert follower.stdout is not None
                for roll in range(ROLLS):
                    append_records(partition, CALL)
                    partition.roll()
                    if partition.end_offset % step == 0 and roll >= KEPT:
                        line = follower.stdout.readline()
                        offset, found = json.loads(line)
                        held.append(found)
                        partition.delete_before(offset - step)
                while len(held) < ROLLS * CALL // step:
                    held.append(json.loads(follower.stdout.readline())[1])
                assert follower.wait(60) == 0
            finally:
                follower.kill()
        assert len(partition.segments) < 4 * KEPT
    first, *later = held[len(held) // 8 :]
    assert len(later) > 20
    for name, slack in SLACK.items():
        assert max(found[name] for found in later) <= first[name] + slack, name
