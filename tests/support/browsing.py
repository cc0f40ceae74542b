"""`logstore-dump browse` in a test: with a screen in memory, or in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len

import logstore
from logstore.cli.browse.browser import Browser
from logstore.cli.browse.catalog import BrowserCatalog

_WAIT_S: Final = 30
_SVG_TEXT: Final = "{http://www.w3.org/2000/svg}text"

# Keys and values that attack a terminal, a markup, or a width.
HOSTILE: Final = (
    b"[bold red]x[/] [link=http://x]y[/link] [@click=app.quit]z[/]",
    b"\x1b[2J\x1b[H\x1b]0;title\x07\x9b31m\x90q\x9c\x08\x0d",
    b"\x1b[?1049l\x1b[?1000l\x1bc\x0e\x0f\x00\x7f",
    bytes(range(256)),
    b"\xf0\x9f\x98 \xed\xa0\x80 \xff",
    "\u202eevil\u2066\u200b\ufeff\U000e0041\u2028\u2029\x85".encode(),
    ("e" + "\u0301" * 500).encode(),
    "\u6f22\u5b57\u304b\u306a".encode() * 200,
    "\U0001f3f4\u200d\u2620\ufe0f \U0001f469\u200d\U0001f466".encode(),
    "\u0b95\u0bcd\u0bb7 \u1100\u1161\u11a8".encode(),
    b"[" * 5000,
    b"\\x1b[31m \\ \\\\",
    b"x" * 100_000,
)
_SVG_CELL: Final = 12.2  # of rich


def _joined(texts: dict[int, str]) -> str:
    """The parts of a row, each at its column."""
    line = ""
    for column in sorted(texts):
        line += " " * (column - cell_len(line)) + texts[column]
    return line


class Hand:
    """Presses keys and reads the screen."""

    def __init__(self, app: Browser, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    def text(self) -> str:
        """Text on the screen, row by row."""
        rows: dict[float, dict[int, str]] = {}
        svg = ElementTree.fromstring(self.app.export_screenshot())
        for node in svg.iter(_SVG_TEXT):
            text = (node.text or "").replace("\xa0", " ")
            if "title" in node.get("class", "") or not text.strip("\n"):
                continue
            column = round(float(node.get("x", 0)) / _SVG_CELL)
            rows.setdefault(float(node.get("y", 0)), {})[column] = text
        return "\n".join(_joined(rows[row]) for row in sorted(rows))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text at the cursor."""
        names = {"-": "minus", ":": "colon", ".": "full_stop", ",": "comma"}
        await self.pilot.press(*(names.get(char, char) for char in text))

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        end = time.monotonic() + _WAIT_S
        while not holds():
            assert time.monotonic() < end, f"never {what}:\n{self.text()}"
            await self.pilot.pause(0.02)

    async def see(self, *texts: str) -> None:
        """Wait until all texts are on the screen."""

        def holds() -> bool:
            shown = self.text()
            return all(text in shown for text in texts)

        await self.until(holds, f"saw {texts}")

    async def miss(self, text: str) -> None:
        """Wait until a text is no longer on the screen."""
        await self.until(lambda: text not in self.text(), f"without {text}")


def browse(
    path: Path,
    act: Callable[[Hand], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    topics: tuple[str, ...] = (),
    numbers: tuple[int, ...] = (),
    start: Any = None,
    config: logstore.StoreConfig | None = None,
) -> int | None:
    """Run the browser on a path; returns its exit code."""

    async def run() -> int | None:
        with contextlib.closing(
            BrowserCatalog(str(path), topics, numbers, config)
        ) as catalog:
            app = Browser(catalog, config=config, start=start)
            async with app.run_test(size=size) as pilot:
                await act(Hand(app, pilot))
            return app.return_value

    return asyncio.run(run())


class Terminal:
    """`logstore-dump` as a process in a terminal."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "logstore", *map(str, arguments)],
            stdin=child,
            stdout=child,
            stderr=child,
            env=env | {"TERM": "xterm-256color"} | environment,
            start_new_session=True,
        )
        os.close(child)
        self._fd = parent
        self.written = b""

    def send(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def until(self, text: bytes) -> None:
        """Wait until the process has written a text."""
        end = time.monotonic() + _WAIT_S
        while text not in self.written:
            assert time.monotonic() < end, self.written[-2000:]
            self._read()

    def _read(self) -> bool:
        if not select.select([self._fd], [], [], 0.1)[0]:
            return True
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            data = os.read(self._fd, 1 << 16)
            self.written += data
            return bool(data)
        return False

    def end(self) -> int:
        """Wait for the end of the process; its status."""
        end = time.monotonic() + _WAIT_S
        while self.process.poll() is None and time.monotonic() < end:
            self._read()
        while self._read() and select.select([self._fd], [], [], 0)[0]:
            pass
        return self.process.wait(timeout=1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)


@contextlib.contextmanager
def terminal(*arguments: object, **environment: str) -> Iterator[Terminal]:
    """A terminal in which `logstore-dump` runs, at most until the block ends."""
    opened = Terminal(*arguments, **environment)
    try:
        yield opened
    finally:
        opened.close()


def rows(hand: Hand) -> list[int]:
    """The offsets that are on the screen."""
    found = re.findall(r"^ *(?:\d+:)?(\d+)  \S*Z  ", hand.text(), re.MULTILINE)
    return [int(one) for one in found]
