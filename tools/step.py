"""Run one step of a set-up and show how far it is.

    python tools/step.py 2/3 "installing the build tools" -- COMMAND...

On a terminal: a bar, the seconds so far, and the last line that the command printed.
Elsewhere: one line when the step begins and one when it ends. The output of the command
is shown if it fails, and its exit status is this program's. Standard library only:
this runs before anything is installed.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

BAR_WIDTH = 24
REFRESH_S = 0.1


def bar(step: int, steps: int, elapsed_s: float) -> str:
    """A bar for `steps` steps of which `step` (from 1) runs; its part fills slowly,
    because nothing tells how long it takes."""
    part = elapsed_s / (elapsed_s + 10)
    filled = round(BAR_WIDTH * (step - 1 + part) / steps)
    return "[" + "#" * filled + "." * (BAR_WIDTH - filled) + "]"


def show(text: str) -> None:
    """Replace the line of the terminal by `text`, cut to its width."""
    width = shutil.get_terminal_size().columns - 1
    sys.stdout.write("\r\033[2K" + text[:width])
    sys.stdout.flush()


def run(number: str, label: str, command: Sequence[str]) -> int:
    """Run the command; its exit status."""
    step, steps = map(int, number.split("/"))
    live = sys.stdout.isatty()
    if not live:
        print(f"{number} {label} ...", flush=True)
    begun = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        print(f"{number} {label}: {error}", file=sys.stderr)
        return 127
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(process, lines), daemon=True).start()
    output: list[str] = []
    try:
        for line in pending(lines):
            if line:
                output.append(line)
            if live:
                elapsed_s = time.monotonic() - begun
                last = output[-1].strip() if output else ""
                head = f"{bar(step, steps, elapsed_s)} {number} {label}"
                show(f"{head} ({elapsed_s:.0f} s) {last}")
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()
        status = 130
    elapsed_s = time.monotonic() - begun
    if live:
        show("")
    if status == 0:
        print(f"{number} {label}: done in {elapsed_s:.1f} s", flush=True)
    else:
        sys.stderr.write("".join(output))
        print(f"{number} {label}: failed with status {status}", file=sys.stderr)
    return status


def read_lines(
    process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]
) -> None:
    """Put each line of the output into the queue, and None at its end."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def pending(lines: queue.SimpleQueue[str | None]) -> Iterator[str]:
    """The lines as they come, and "" whenever none came for `REFRESH_S`."""
    while True:
        try:
            line = lines.get(timeout=REFRESH_S)
        except queue.Empty:
            yield ""
            continue
        if line is None:
            return
        yield line


def main(argv: Sequence[str]) -> int:
    """Run the step that the arguments name."""
    if len(argv) < 4 or argv[2] != "--":
        print(__doc__, file=sys.stderr)
        return 2
    return run(argv[0], argv[1], argv[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
