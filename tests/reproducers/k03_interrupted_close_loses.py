"""Readers lose acknowledged, durable records after one Ctrl-C in `close()`. An append
(or publish, roll) to the partition failed or was interrupted, and was undone: the
writer has a new state object from then on, `active.state` is still the old one. Later
appends are acknowledged. The first `close()` writes the right state and retires the
writer, and is interrupted before it is finished. The second `close()` opens a writer
from the old state, writes the state file again from that, and marks the store as closed
cleanly. The next opening reports damage; the records are not read, no read raises an
error, and the partition takes no appends.

A trace function raises the KeyboardInterrupt directly after the call of `retire()`,
where the interpreter looks for signals. With real timers it takes some 500 programs.

Usage: python k03_interrupted_close_loses.py
"""

import errno
import inspect
import logging
import os
import sys
import tempfile

import logstore as ls
from logstore.io.files import Files

logging.disable(logging.CRITICAL)


def interrupted(call, function, line_has):
    """call() with a KeyboardInterrupt after the line of `function` that has a text.

    Whether it was raised."""
    armed = [False]

    def step(frame, event, arg):
        if event == "line":
            if armed[0]:
                armed[0] = False
                sys.settrace(None)
                raise KeyboardInterrupt
            lines, first = inspect.getsourcelines(frame.f_code)
            if line_has in lines[frame.f_lineno - first]:
                armed[0] = True
        return step

    def trace(frame, event, arg):
        return step if frame.f_code.co_name == function else None

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


class Full(Files):
    """Make the disk full at the n-th write from now on."""

    left = 0

    def write(self, fd, data, pos):
        if self.left:
            self.left -= 1
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, pos)


wrong = 0
for how in (
    "append 1 failed",
    "append 2 failed",
    "append 3 failed",
    "roll failed",
    "publish failed",
    "nothing failed",
):
    for magic in (1, 2):
        for stop in ("close is interrupted", "close is not interrupted"):
            with tempfile.TemporaryDirectory() as path:
                files, said = Full(), ""
                s = ls.open(path, _files=files)
                p = s.create_topic("t", config=ls.TopicConfig(message_format=magic))[0]
                p.append_many([b"a"] * 4)
                p.flush()
                try:
                    if how.startswith("append"):
                        files.left = int(how.split()[1])
                        p.append_many([b"x" * 50_000] * 60)  # some pieces of 256 KiB
                    elif how.startswith("roll"):
                        files.left = 1
                        p.roll()
                    elif how.startswith("publish"):
                        with s.stage("who", 1) as stage:
                            stage.append_many(p, [b"x"] * 3)
                            staged = stage.finish()
                        files.left = 2
                        s.publish([staged], identity="who", sequence=1)
                except ls.LogStoreError as e:
                    said = type(e).__name__
                files.left = 0
                first = p.end_offset
                p.append_many([b"acknowledged"] * 3, durable=True)
                hit = stop == "close is interrupted" and interrupted(
                    s.close, "_end_close", "retire()"
                )
                s.close()
                with ls.open(path) as s:
                    p = s.topic("t")[0]
                    got, error = [], ""
                    try:
                        for r in p.read():
                            got.append(r.offset)
                    except ls.LogStoreError as e:
                        error = f"; read: {type(e).__name__}: {str(e).split(':')[0]}"
                    report = [a.label for a in s.recovery_report.actions]
                    try:
                        p.append(b"more")
                        takes = "takes appends"
                    except ls.LogStoreError as e:
                        takes = f"append: {type(e).__name__}"
                lost = [o for o in range(first, first + 3) if o not in got]
                bad = (
                    lost
                    or error
                    or set(report) - {"index-rebuilt"}
                    or takes != "takes appends"
                )
                wrong += bool(bad)
                print(
                    f"{how} {said and f'({said})'}, magic {magic},"
                    f" {('close interrupted' if hit else stop)}: {len(lost)} of 3"
                    f" acknowledged records are not read; report {report};"
                    f" {takes}{error}"
                )
print("WRONG" if wrong else "OK")
sys.exit(bool(wrong))
