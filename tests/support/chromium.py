"""A headless Chromium, to look at pages as a reader does."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    # Any request of a page to a host becomes a visible error.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find() -> str | None:
    """The browser of this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Seen:
    """Result of loading a page: its document, and the lines of the console."""

    dom: str = ""
    console: list[str] = field(default_factory=list)


class Chromium:
    """Starts a new browser for each page, with a separate profile."""

    def __init__(self, program: str, directory: Path) -> None:
        self.program = program
        self.directory = directory
        self._count = 0

    def _run(
        self, page: Path, *options: str, dark: bool, width: int, height: int
    ) -> tuple[str, list[str]]:
        self._count += 1
        profile = self.directory / f"profile-{self._count}"
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = subprocess.run(
            [
                self.program,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                *scheme,
                *options,
                page.as_uri(),
            ],
            capture_output=True,
            timeout=180,
            check=True,
        )
        said = done.stderr.decode("utf-8", "replace")
        console = re.findall(r":CONSOLE[:(]\d+\)?\] (.*)", said)
        return done.stdout.decode("utf-8", "replace"), console

    def look(self, page: Path, *, dark: bool = False, width: int = 1280) -> Seen:
        """Load a page, let its scripts run, and return the document."""
        dom, console = self._run(
            page,
            "--dump-dom",
            "--virtual-time-budget=5000",
            dark=dark,
            width=width,
            height=900,
        )
        return Seen(dom, console)

    def picture(
        self,
        page: Path,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 900,
    ) -> Picture:
        """A picture of the top of a page."""
        out = self.directory / f"picture-{self._count}.png"
        # A sandboxed frame is drawn by another process, which needs time.
        options = (f"--screenshot={out}", "--virtual-time-budget=5000")
        self._run(page, *options, dark=dark, width=width, height=height)
        return Picture(out)


class Picture:
    """A PNG of 8 bits a channel without interlacing, as Chromium writes it."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        self.path = path
        pos, packed = 8, b""
        while pos < len(data):
            length, kind = struct.unpack_from(">I4s", data, pos)
            body = data[pos + 8 : pos + 8 + length]
            if kind == b"IHDR":
                self.width, self.height, depth, colour = struct.unpack(
                    ">IIBB", body[:10]
                )
                assert depth == 8
                self.channels = {2: 3, 6: 4}[colour]
            elif kind == b"IDAT":
                packed += body
            pos += length + 12
        self.rows = self._unfiltered(zlib.decompress(packed))

    def _unfiltered(self, raw: bytes) -> list[bytes]:
        size, step = self.width * self.channels, self.channels
        rows: list[bytes] = []
        above = bytes(size)
        for at in range(self.height):
            begin = at * (size + 1)
            row = bytearray(raw[begin + 1 : begin + 1 + size])
            _unfilter(raw[begin], row, above, step)
            above = bytes(row)
            rows.append(above)
        return rows

    def pixel(self, x: int, y: int) -> tuple[int, int, int]:
        """Red, green and blue."""
        begin = x * self.channels
        red, green, blue = self.rows[y][begin : begin + 3]
        return red, green, blue

    def lightness(self) -> float:
        """The mean of all channels of every fourth pixel each way, 0 to 255."""
        total = count = 0
        for y in range(0, self.height, 4):
            for x in range(0, self.width, 4):
                total += sum(self.pixel(x, y))
                count += 3
        return total / count

    def colours(self) -> set[tuple[int, int, int]]:
        """Colours of every second pixel in both directions."""
        return {
            self.pixel(x, y)
            for y in range(0, self.height, 2)
            for x in range(0, self.width, 2)
        }


def _unfilter(kind: int, row: bytearray, above: bytes, step: int) -> None:
    for at in range(len(row)):
        left = row[at - step] if at >= step else 0
        up = above[at]
        if kind == 1:
            row[at] = (row[at] + left) & 255
        elif kind == 2:
            row[at] = (row[at] + up) & 255
        elif kind == 3:
            row[at] = (row[at] + (left + up) // 2) & 255
        elif kind == 4:
            corner = above[at - step] if at >= step else 0
            guess = left + up - corner
            near = min((left, up, corner), key=lambda one: abs(guess - one))
            row[at] = (row[at] + near) & 255
        elif kind == 0:
            return
