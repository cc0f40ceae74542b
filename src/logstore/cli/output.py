"""The output of a command: standard output, standard error, colour, progress.

rich draws bars; it is imported when the first of them is drawn.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, ClassVar, Final, TextIO

from logstore.cli.advice import for_command_line
from logstore.cli.lazy import import_package
from logstore.cli.schema import dumps
from logstore.cli.text import escape, grouped, harmless, relative, size_text

_BAR_DELAY_S: Final = 0.5
_REFRESHES_PER_S: Final = 10
_STYLES: Final = {
    "error": "\x1b[31m",
    "problem": "\x1b[31m",
    "warning": "\x1b[33m",
    "note": "\x1b[36m",
    "ok": "\x1b[32m",
    "bold": "\x1b[1m",
}
_RESET: Final = "\x1b[0m"


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that understands control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Whether to colour: a terminal, and ``NO_COLOR`` is not set (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


class Printer:
    """Standard output and standard error of one command."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._bytes: Any = getattr(self.out, "buffer", None)
        self._is_text_pending = False
        self._notes: set[str] = set()

    def line(self, text: str, style: str = "") -> None:
        """Print a line, in the encoding of standard output."""
        if is_terminal(self.out):
            Progress.clear()
        if style and has_colour(self.out):
            text = f"{_STYLES[style]}{text}{_RESET}"
        try:
            self.out.write(text + "\n")
        except UnicodeEncodeError:
            encoding = self.out.encoding or "ascii"
            safe = text.encode(encoding, "backslashreplace").decode(encoding)
            self.out.write(safe + "\n")
        self._is_text_pending = True

    def json(self, value: Any) -> None:
        """Print an object as a line of JSON, always in UTF-8."""
        self.raw(dumps(value) + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes to standard output."""
        if is_terminal(self.out):
            Progress.clear()
        if self._bytes is None:
            self.out.write(data.decode())
            return
        if self._is_text_pending:
            self.out.flush()
            self._is_text_pending = False
        self._bytes.write(data)

    def warn(self, text: str, style: str = "error") -> None:
        """A line on standard error, with relative paths, and advice for a terminal."""
        self.flush()
        Progress.clear()
        shown = f"logstore-dump: {harmless(relative(for_command_line(text)))}"
        if has_colour(self.err):
            shown = f"{_STYLES[style]}{shown}{_RESET}"
        self.err.write(shown + "\n")
        self.err.flush()

    def complain(self, text: str) -> None:
        """A line on standard error as another program prints it."""
        self.flush()
        Progress.clear()
        self.err.write(harmless(text) + "\n")

    def flush(self) -> None:
        self.out.flush()

    def once(self, text: str) -> None:
        """A note below tables, which is printed once if it is the same for several."""
        if text not in self._notes:
            self._notes.add(text)
            for text_line in text.splitlines():
                self.line(text_line, "note")


class Progress:
    """A bar on standard error while that is a terminal; else nothing.

    It has the part done, the rate and the time left, appears after half a second, and
    disappears when the block ends. A context manager; a call of it reports the
    progress. It may be called by several threads, one at a time.

    Args:
        what: the work, in a word or two.
        err: the stream; None: standard error.
        unit: ``bytes``, or a plural noun for the counted items.
        delay_s: for how many seconds nothing is shown.
    """

    _shown: ClassVar[Progress | None] = None

    def __init__(
        self,
        what: str,
        err: TextIO | None = None,
        unit: str = "bytes",
        delay_s: float = _BAR_DELAY_S,
    ) -> None:
        self._what = escape(what)
        self._err = err or sys.stderr
        self._unit = unit
        self._is_shown = is_terminal(self._err)
        self._begin = time.monotonic()
        self._delay_s = delay_s
        self._bar: Any = None
        self._task: Any = None

    def hide(self) -> None:
        """Show nothing: the printed output is progress enough."""
        self._is_shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    @classmethod
    def clear(cls) -> None:
        """Remove the bar before a line is printed; the next call of it draws it again,
        below that line."""
        if cls._shown is not None:
            cls._shown._remove()

    def _remove(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            Progress._shown = None
            bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done."""
        if not self._is_shown:
            return
        if self._bar is None:
            if time.monotonic() - self._begin < self._delay_s:
                return
            self._start()
        self._bar.update(self._task, completed=done, total=total, **self._texts(done))

    def _texts(self, done: int) -> dict[str, str]:
        rate = done / max(time.monotonic() - self._begin, 1e-6)
        if self._unit == "bytes":
            return {"amount": size_text(done), "rate": f"{size_text(rate)}/s"}
        amount = f"{grouped(done)} {self._unit}"
        return {"amount": amount, "rate": f"{grouped(round(rate))}/s"}

    def _start(self) -> None:
        progress = import_package("rich.progress")
        console = import_package("rich.console").Console(
            file=self._err,
            force_terminal=True,
            no_color=not has_colour(self._err),
            highlight=False,
            markup=False,
        )
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[amount]}", markup=False),
            progress.TextColumn("{task.fields[rate]}", markup=False),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
        )
        self._task = self._bar.add_task(self._what, **self._texts(0))
        self._bar.start()
        Progress._shown = self
