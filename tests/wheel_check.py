"""Check of an installed wheel: `python tests/wheel_check.py`, run by cibuildwheel for
each interpreter, and by a test in an empty environment.

It needs the wheel and its dependencies, nothing else. With ``--with-jar``, it must have
the reader in Java.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import logstore

JAR_BYTES_MAX = 150_000


def main() -> None:
    """Write and read with every codec, then check the store with the command."""
    assert version("pylogstore") == logstore.__version__
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        with logstore.open(path) as store:
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                config = logstore.TopicConfig(message_format=2, compression_type=codec)
                partition = store.create_topic(codec, config=config)[0]
                partition.append_many([b"%d" % n for n in range(1000)])
                partition.flush()
                values = [record.value for record in partition.read()]
                assert values == [b"%d" % n for n in range(1000)], codec
        command = Path(sys.executable).with_name("logstore-dump")
        for arguments in (["--version"], ["ls", path], ["verify", "--deep", path]):
            subprocess.run([command, *arguments], check=True, timeout=60)
    if "--with-jar" in sys.argv:
        from pyspark_logstore.jvm import jar_path

        jar = jar_path()
        assert jar is not None
        with zipfile.ZipFile(jar) as archive:
            assert "logstore/spark/LogSource.class" in archive.namelist()
        assert Path(jar).stat().st_size <= JAR_BYTES_MAX
    print(f"pylogstore {logstore.__version__} works, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
