"""Make the pictures in docs/images: python docs/make_recordings.py [NAME...]

Each is a recording: the commands of a table below run in a terminal in memory, in a
directory of their own, and what they print becomes an SVG that plays it once. If a
reader has asked for less motion, or the program that shows the file knows no animation,
the picture is what the terminal has at the end.

Run it again when the output of a command changes (`make pictures`). A command that ends
with another status than the table expects stops its recording, and the old picture
stays.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import fcntl
import io
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

import logstore

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
COLUMNS: Final = 84
ROWS: Final = 30  # of the terminal that the commands see
ROWS_KEPT: Final = 300  # of the one that keeps what they printed
TIMEOUT_S: Final = 300

# How the recording is played, in seconds: pauses that the machine made are cut to the
# first, and a command is typed after the second.
PAUSE_MAX: Final = 1.2
PAUSE_BEFORE_COMMAND: Final = 0.9


@dataclass(frozen=True, slots=True)
class Command:
    """A line for the shell, its exit status, and what is typed when it asks: one
    answer for each question, a question being what ends without a line end."""

    line: str
    status: int = 0
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """What is shown: `prepare` fills the directory in which the commands run."""

    title: str
    prepare: Callable[[Path], None]
    commands: tuple[Command, ...]
    plays: bool = True  # or is a picture of what the terminal has at the end


# ---------------------------------------------------------------------- what is shown


def link_checkout(folder: Path) -> None:
    """What `make demo` needs of a checkout that is set up."""
    environment = folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for name in ("venv", "package"):
        (environment / f".stamp-{name}").touch()
    for name in ("Makefile", "examples", "pyproject.toml", "setup.py", "src", "tools"):
        (folder / name).symlink_to(ROOT / name)


def damaged_store(folder: Path) -> None:
    """A store of orders in which one byte is wrong."""
    with logstore.open(folder / "data") as store:
        config = logstore.TopicConfig(message_format=2, compression_type="lz4")
        topic = store.create_topic("orders", partitions=3, config=config)
        for number, partition in enumerate(topic):
            for begin in range(0, 60_000, 500):
                partition.append_many(
                    [b'{"order": %d, "partition": %d}' % (begin + n, number)
                     for n in range(500)]
                )  # fmt: skip
    log = folder / "data" / "orders-1" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def broker_disk(folder: Path) -> None:
    """The log directory of a broker that was killed."""
    shutil.copytree(ROOT / "examples" / "broker_disk", folder / "broker_disk")


COUNT_ROWS: Final = (
    "python -c 'import duckdb; print(duckdb.sql("
    '"select topic, count(*) as records, min(timestamp) as first '
    'from \\"saved.parquet\\" group by all order by all"))\''
)

RECORDINGS: Final = {
    # At the head of the README, where nobody waits for it.
    "demo": Recording("make demo", link_checkout, (Command("make demo"),), plays=False),
    "repair": Recording(
        "Finding and repairing damage",
        damaged_store,
        (
            Command("logstore-dump verify --deep data", status=1),
            Command("logstore-dump repair data --mode skip", answers=("data",)),
            Command("logstore-dump verify --deep data"),
        ),
    ),
    "broker_disk": Recording(
        "The disk of a dead broker, to Parquet",
        broker_disk,
        (
            Command("logstore-dump ls broker_disk"),
            Command("logstore-dump verify broker_disk"),
            Command("logstore-dump export broker_disk --to saved.parquet"),
            Command(COUNT_ROWS),
        ),
    ),
    "report": Recording(
        "A report on a store",
        damaged_store,
        (
            Command("logstore-dump report data -o report.html", status=1),
            Command("ls -sh report.html"),
        ),
    ),
}


# ----------------------------------------------------------------------- the terminal


class Terminal:
    """Keeps what was printed, and for each row when it was last written to."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS_KEPT)
        self.times: dict[int, float] = {}
        self.text = ""
        self._stream = pyte.Stream(self.screen)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._clock = 0.0

    def wait(self, seconds: float) -> None:
        """Let so much time pass in the recording."""
        self._clock += seconds

    def feed(self, data: bytes) -> None:
        """Take what a program wrote."""
        text = self._rest + self._decode.decode(data)
        # A sequence may be cut by the end of the buffer.
        cut = re.search(r"\033(\[[\d;?]*)?$", text)
        self._rest = text[cut.start() :] if cut else ""
        text = text[: cut.start()] if cut else text
        self.text += text
        self.screen.dirty.clear()
        self._stream.feed(_without_dim(text))
        for row in self.screen.dirty:
            self.times[row] = self._clock

    def type(self, line: str) -> None:
        """Show a prompt and a command."""
        prompt = f"\033[1;32m$\033[0m \033[1m{line}\033[0m\r\n"
        self.feed(prompt.encode())

    def rows(self) -> list[Text]:
        """The rows, without the empty ones at the end, as styled text."""
        rows = []
        for number in range(ROWS_KEPT):
            line = self.screen.buffer[number]
            text = Text()
            chars = (line[column] for column in range(COLUMNS))
            for style, run in itertools.groupby(chars, _style):
                text.append("".join(char.data for char in run), style)
            text.rstrip()
            rows.append(text)
        while rows and not rows[-1].plain:
            rows.pop()
        return rows


def _without_dim(text: str) -> str:
    """Dim text in the colour of bright black: pyte has no dim."""

    def replace(match: re.Match[str]) -> str:
        codes = match[1].split(";")
        return f"\033[{';'.join('90' if code == '2' else code for code in codes)}m"

    # Not the 2 of `38;2;r;g;b`, a colour.
    return re.sub(r"\033\[((?!38;|48;)[\d;]*)m", replace, text)


def _style(char: pyte.screens.Char) -> Style:
    def color(name: str) -> str | None:
        if name == "default":
            return None
        if re.fullmatch(r"[0-9a-f]{6}", name):
            return f"#{name}"
        name = name.replace("bright", "bright_").replace("brown", "yellow")
        return "#8a8a8a" if name == "bright_black" else name

    return Style(
        color=color(char.fg),
        bgcolor=color(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def run_in(terminal: Terminal, command: Command, folder: Path) -> None:
    """Run a command in a terminal of its own, and keep what it prints.

    Raises:
        RuntimeError: it ended with another status than expected, or not at all.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command.line],
        cwd=folder,
        env=_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    # Only the directory is the machine's: relative to it, as somebody would see it.
    begun = last = time.monotonic()
    answers = list(command.answers)
    printed = b""
    with contextlib.suppress(OSError):  # the system's end of file
        while data := os.read(ours, 1 << 16):
            now = time.monotonic()
            terminal.wait(min(now - last, PAUSE_MAX))
            last = now
            printed += data
            terminal.feed(data.replace(f"{folder}/".encode(), b""))
            if answers and re.search(rb"[?:\]] $", data):
                os.write(ours, answers.pop(0).encode() + b"\n")
            if now - begun > TIMEOUT_S:
                process.kill()
    os.close(ours)
    status = process.wait()
    if status != command.status or answers:
        raise RuntimeError(
            f"$ {command.line}: status {status}, expected {command.status}"
            f"{', not all was asked for' if answers else ''}:\n"
            f"{printed.decode()[-2000:]}"
        )


def _environment() -> dict[str, str]:
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "MAKEFLAGS", "VENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    settings = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    return {**kept, **settings, "PATH": search, "PYTHONPATH": str(ROOT / "src")}


# ------------------------------------------------------------------------ the picture

# Rich's own, but for fonts from the network.
SVG: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas,
"DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})"
 clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def to_svg(name: str, title: str, terminal: Terminal) -> str:
    """The picture of what the terminal has."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    for row in terminal.rows():
        console.print(row, no_wrap=True, crop=True)
    return console.export_svg(title=title, code_format=SVG, unique_id=name)


def animated(name: str, svg: str, times: dict[int, float]) -> str:
    """Let the text of each row appear at its time, in seconds."""
    rules = [
        "@keyframes appear { from { opacity: 0 } to { opacity: 1 } }",
        f".{name}-matrix text {{ animation: appear 1ms backwards; }}",
        "@media (prefers-reduced-motion: reduce) "
        f"{{ .{name}-matrix text {{ animation: none; }} }}",
    ]
    shown = set()

    def add_row(match: re.Match[str]) -> str:
        row = int(match[2])
        shown.add(row)
        return match[0].replace(f'class="{match[1]}"', f'class="{match[1]} row{row}"')

    pattern = rf'<text class="([\w-]+)"[^>]*clip-path="url\(#{name}-line-(\d+)\)"'
    svg = re.sub(pattern, add_row, svg)
    rules += [
        f".{name}-matrix .row{row} {{ animation-delay: {times.get(row, 0):.2f}s; }}"
        for row in sorted(shown)
    ]
    return svg.replace("</style>", "\n".join(rules) + "\n</style>", 1)


def record(recording: Recording, folder: Path) -> Terminal:
    """Run all commands of a recording in the folder."""
    recording.prepare(folder)
    terminal = Terminal()
    for command in recording.commands:
        terminal.wait(PAUSE_BEFORE_COMMAND)
        terminal.type(command.line)
        terminal.wait(PAUSE_BEFORE_COMMAND / 3)
        run_in(terminal, command, folder)
    return terminal


def make(name: str, output: Path) -> Path:
    """Make one picture; its path.

    Raises:
        RuntimeError: a command did not end as expected; no picture was written.
    """
    recording = RECORDINGS[name]
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        terminal = record(recording, Path(folder))
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.svg"
    svg = to_svg(name, recording.title, terminal)
    if recording.plays:
        svg = animated(name, svg, terminal.times)
    path.write_text(svg, encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Make the pictures that are named, or all; 1 if one could not be made."""
    parser = argparse.ArgumentParser(description="Make the pictures in docs/images.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECORDINGS))
    parser.add_argument("--to", type=Path, default=IMAGES, help="another directory")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - RECORDINGS.keys():
        parser.error(f"no recording is called {', '.join(sorted(unknown))}")
    status = 0
    for name in args.names or RECORDINGS:
        try:
            path = make(name, args.to)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
