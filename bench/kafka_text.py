"""The dump of a segment: `logstore-dump kafka-dump-log` and Kafka's own tool, 3.9.1.

    python -m bench.kafka_text             # a segment of 1 GiB
    python -m bench.kafka_text --mib 64

Records of 8 + 100 bytes in batches of 140 (16 KiB), from the page cache, each program
as a separate process, with its start, its output through a pipe: shallow, and with
``--print-data-log``. Both print the same, which is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import logstore
from support.kafka_broker import cache_directory
from support.kafka_tools import KafkaTools

_BATCH = 140
_FIRST_MS = 1_700_000_000_000
_VALUE_BYTES = 100
# As kafka-run-class.sh gives them to a tool.
_JAVA_OPTIONS = ("-Xmx256M", "-server", "-XX:+UseG1GC", "-Dfile.encoding=UTF-8")


def written(directory: Path, size: int) -> tuple[Path, int]:
    """A log of at least `size` bytes, and how many records it has."""
    values = [f"{number:0{_VALUE_BYTES}d}".encode() for number in range(_BATCH)]
    config = logstore.TopicConfig(message_format=2, segment_bytes=(1 << 31) - 1)
    with logstore.open(directory) as store:
        partition = store.create_topic("big", config=config)[0]
        log = directory / "big-0" / f"{0:020d}.log"
        count = 0
        while not count or log.stat().st_size < size:
            numbers = range(count, count + _BATCH)
            keys = [f"{number:08d}".encode() for number in numbers]
            times = [_FIRST_MS + number for number in numbers]
            partition.append_many(values, keys, timestamps_ms=times)
            count += _BATCH
    return log, count


def measured(command: Sequence[str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds, and the digest of the output."""
    begin = time.perf_counter()
    digest = hashlib.md5(usedforsecurity=False)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        assert program.stdout is not None
        while data := program.stdout.read(1 << 20):
            digest.update(data)
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        sys.exit(f"{command[0]} ended with status {program.returncode}")
    cpu = used.ru_utime + used.ru_stime
    return time.perf_counter() - begin, cpu, digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    arguments = parser.parse_args()
    tools = KafkaTools.find(cache_directory())
    java = [tools.java, *_JAVA_OPTIONS, "-cp", tools.classpath, tools.dump_class]
    ours = [sys.executable, "-m", "logstore", "kafka-dump-log"]
    with tempfile.TemporaryDirectory() as directory:
        log, count = written(Path(directory), arguments.mib << 20)
        mib = log.stat().st_size / (1 << 20)
        print(f"{mib:,.0f} MiB, {count:,} records")
        for options in ((), ("--print-data-log",)):
            found = set()
            for name, program in (("Kafka 3.9.1", java), ("logstore", ours)):
                command = [*program, *options, "--files", str(log)]
                seconds, cpu, digest = measured(command)
                found.add(digest)
                print(
                    f"{' '.join(options) or 'shallow':<17} {name:<12} "
                    f"{seconds:7.2f} s, of processors {cpu:7.2f} s, "
                    f"{mib / seconds:6.0f} MiB/s, {count / seconds / 1e6:5.2f} M "
                    f"records/s"
                )
            if len(found) != 1:
                sys.exit("the two have printed different lines")


if __name__ == "__main__":
    main()
