"""Written files contain no uninitialised memory: two runs whose memory is filled with
different patterns write the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from logstore.io import layout

HERE = Path(__file__).parents[1]

CODE = """
import sys
from pathlib import Path
import logstore
from logstore.io.files import Files
from support.values import FORMATS, append_records, config_of, fill

class Still(Files):
    def now_ms(self):
        return 1_700_000_000_000

import uuid
uuid.uuid4 = lambda: uuid.UUID(int=7)

from logstore.store.opening import open_store
with open_store(Path(sys.argv[1]), _files=Still()) as store:
    for magic, codec in FORMATS:
        config = config_of(magic, codec, segment_bytes=2000, index_interval_bytes=100)
        partition = store.create_topic(f"t{magic}-{codec}", config=config)[0]
        fill(partition, 60)
        append_records(partition, 200)
        partition.delete_before(70)
        partition.truncate_to(partition.end_offset)
        fill(partition, 10)
"""


def bytes_written(store: Path, pattern: int) -> dict[str, bytes]:
    """Bytes of a store after the same work, in memory filled with a pattern."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
        "PYTHONMALLOC": "malloc",
        "MALLOC_PERTURB_": str(pattern),
        "PYTHONHASHSEED": str(pattern),
    }
    command = [sys.executable, "-c", CODE, str(store)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = {
        str(p.relative_to(store)): p.read_bytes()
        for p in sorted(store.rglob("*"))
        # Names of files that wait for their removal do not depend on memory, but
        # whether they still wait depends on time. The file that announces syncs to
        # other processes names the owner file, by its inode and time; the record of the
        # lock has the process.
        if p.is_file()
        and not p.name.endswith((".deleted", layout.DURABLE, layout.LOCK_RECORD))
    }
    # The owner file names the directory by its inode, and its checksum covers
    # everything.
    owner = json.loads(files[layout.OWNER].partition(b"\n")[2])
    files[layout.OWNER] = json.dumps({**owner, "directory": None}).encode()
    return files


def test_uninitialised_memory_never_reaches_the_disk(tmp_path: Path) -> None:
    """Segments, indexes, state, checkpoints, of all magics and codecs."""
    first = bytes_written(tmp_path / "a", 85)
    second = bytes_written(tmp_path / "b", 170)
    assert len([name for name in first if name.endswith(".log")]) > 20
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
