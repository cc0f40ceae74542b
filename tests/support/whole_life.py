"""A store's whole life, for tests that watch from outside: `python -m
support.whole_life DIRECTORY [audit]`.

With `audit` an audit hook watches every event of the interpreter, and the run fails at
the first one that leads out of the store: a path that is not relative to a directory
descriptor, a socket, another process, an object made of data. An audit hook cannot be
removed, so this is a program and not a function of a test.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logstore
from logstore.cli.main import main
from logstore.cli.output import Printer
from logstore.cli.schema import dumps, payload_value
from logstore.cli.tables import Column, print_table
from support.damage import append_garbage, frames, logs_in, overwrite
from support.values import FORMATS, append_records, config_of, fill

FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
    "os.spawn", "pty.", "pickle.find_class", "marshal.loads", "ctypes.", "urllib.",
    "http.", "ftplib.", "smtplib.", "shutil.", "tempfile.", "os.symlink", "os.link",
)  # fmt: skip
# Events of calls that take a name, and where their directory descriptors stand.
RELATIVE = {
    "os.mkdir": (2,),
    "os.rename": (2, 3),
    "os.remove": (1,),
    "os.rmdir": (1,),
    "os.chmod": (2,),
    "os.chown": (3,),
    "os.utime": (3,),
}


BEGIN, END = "/own-work-begins", "/own-work-ends"
_own_work = False


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Context of the program's own work on files, which hooks ignore."""
    global _own_work
    _own_work = True
    os.path.exists(BEGIN)  # a marker in the system calls
    try:
        yield
    finally:
        os.path.exists(END)
        _own_work = False


def live(store: Path) -> None:
    """Create, append, roll, delete, truncate, reopen, recover, verify, dump."""
    with logstore.open(store) as opened:
        for magic, codec in FORMATS:
            config = config_of(magic, codec, segment_bytes=700, file_delete_delay_ms=0)
            topic = opened.create_topic(f"t{magic}-{codec}", config=config)
            partition = topic[0]
            fill(partition, 30)
            partition.roll()
            append_records(partition, 5, durable=True)
            partition.delete_before(12)
            partition.truncate_to(35)
            topic.configure(config)
            assert len(list(partition.read())) == 23
            assert (partition.offset_for_time(0) is None) == (magic == 0)
            partition.fetch(20)
            list(partition.read_batches())
            topic.apply_retention()  # the timestamps are of long ago
            append_records(partition, 5)
        opened.create_topic("gone", 3)[0].append(b"x")
        opened.topic("gone").add_partitions(1)
        opened.delete_topic("gone")
    torn = store.with_name("torn")
    with own_work():
        shutil.copytree(store, torn)
        append_garbage(logs_in(torn / "t1-none-0")[-1], b"\x00" * 99)
        (torn / ".logstore-owner").unlink()
        (torn / ".kafka_cleanshutdown").unlink()
    with logstore.open(torn) as opened:
        assert opened.recovery_report
        fill(opened.topic("t1-none")[0], 3)
    with own_work():
        damaged = logs_in(torn / "t2-none-0")[0]
        overwrite(damaged, frames(damaged)[0].pos + 70, b"\xff")
    with logstore.open(torn, read_only=True) as opened:
        for name in opened.topics():
            list(opened.topic(name)[0].read(on_corruption="skip"))
    assert not logstore.verify(torn, deep=True).ok
    logstore.rebuild_index(store)
    partition_path = str(store / "t2-zstd-0")
    for arguments in (
        ["ls", str(store), "--segments"],
        ["records", partition_path],
        ["batches", str(store)],
        ["index", str(logs_in(store / "t1-none-0")[0].with_suffix(".index"))],
        ["verify", str(store), "--deep"],
        ["rebuild-index", str(store)],
        ["doctor", str(store), "--write-test"],
        ["stat", str(store)],
        ["tail", str(store)],
        ["export", partition_path, "--to", str(store.with_name("out.jsonl"))],
    ):
        assert main(arguments) == 0, arguments


def load_all() -> None:
    """Import modules that are loaded at first use: imports are not watched."""
    assert all(getattr(logstore, name) for name in logstore.__all__)
    importlib.import_module("logstore.cli.run")
    print_table(Printer(io.StringIO()), [Column("name", str)], ["value"])
    dumps({})
    payload_value(b"", "base64")


def audited(store: Path) -> None:
    """The same with an audit hook; what it finds ends the process with status 3."""
    roots = {str(store), str(store.with_name("torn")), str(store.parent)}
    seen: set[str] = set()

    def complain(event: str, args: tuple[Any, ...]) -> None:
        print(f"not allowed: {event} {args!r}", file=sys.stderr, flush=True)
        os._exit(3)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if _own_work:
            return
        if event.startswith(FORBIDDEN):
            complain(event, args)
        elif event == "open" and isinstance(args[0], str | bytes):
            name, flags = os.fsdecode(args[0]), args[2]
            if not os.path.isabs(name):
                # The audit event does not show the descriptor, but a plain name that
                # follows no link is what calls relative to one have.
                if os.sep in name or not flags & os.O_NOFOLLOW:
                    complain(event, args)
                seen.add("open relative")
            elif name.startswith(str(store.parent)):
                # A whole path opens the directory of a store, the one of a partition
                # that was given by itself, or the output of an export.
                is_root = name in roots or os.path.dirname(name) in roots
                is_output = os.path.basename(name).startswith("out.jsonl")
                if not is_output and not (is_root and os.path.isdir(name)):
                    complain(event, args)
        elif event in RELATIVE:
            seen.add(event)
            is_output = os.path.basename(str(args[0])).startswith("out.jsonl")
            if not is_output and any(args[number] == -1 for number in RELATIVE[event]):
                complain(event, args)

    load_all()
    sys.addaudithook(hook)
    live(store)
    # A hook that saw nothing would prove nothing.
    assert {"open relative", "os.rename", "os.remove", "os.mkdir"} <= seen, seen


if __name__ == "__main__":
    (audited if sys.argv[2:] == ["audit"] else live)(Path(sys.argv[1]) / "data")
