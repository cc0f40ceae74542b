"""Makes docs/images/browse.svg, a picture of `logstore-dump browse`.

    python docs/make_browse_picture.py

It fills a store with invented data, damages it in one place, opens a record in the
browser without a terminal, and keeps what Textual exports, without the fonts that it
would load from the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import logstore
from logstore.cli.browse.browser import Browser
from logstore.cli.browse.catalog import BrowserCatalog
from logstore.cli.browse.document_view import DocumentView
from logstore.cli.browse.payload import Document

PICTURE: Final = Path(__file__).with_name("images") / "browse.svg"
SIZE: Final = (100, 30)
WAIT_S: Final = 30
BEGIN_MS: Final = 1_767_225_600_000  # the first of January 2026
FRUITS: Final = ("apples", "pears", "plums", "figs", "dates")
CITIES: Final = ("Oslo", "Lima", "Kyoto", "Quito")


def fill(path: Path) -> None:
    """Orders, of which one batch is damaged."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(path) as store:
        (orders,) = store.create_topic("orders", 1, config)
        for begin in range(0, 20_000, 20):
            numbers = range(begin, begin + 20)
            orders.append_many(
                [
                    b'{"order": %d, "city": "%s", "items": [{"%s": %d}]}'
                    % (n, CITIES[n % 4].encode(), FRUITS[n % 5].encode(), n % 7 + 1)
                    for n in numbers
                ],
                [b"customer-%d" % (n * 37 % 900) for n in numbers],
                timestamps_ms=[BEGIN_MS + n * 4321 for n in numbers],
            )
        batch = next(orders.read_batches(12_340, limit=1))
        position = batch.position + batch.size_bytes - 3
    log = path / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)


async def _exported(path: str) -> str:
    with contextlib.closing(BrowserCatalog(path)) as catalog:
        app = Browser(catalog, start=12_336)
        async with app.run_test(size=SIZE) as pilot:
            end = time.monotonic() + WAIT_S
            document = Document()
            while not len(document):
                if time.monotonic() > end:
                    raise RuntimeError("no record was shown")
                await pilot.pause(0.2)
                views = app.screen.query(DocumentView)
                if views and not views.first().display:
                    await pilot.press("j", "j", "enter")
                elif views:
                    document = views.first().document
            return app.export_screenshot(title=f"logstore-dump browse {path}")


def picture() -> str:
    """The SVG. It needs nothing from the network."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        try:
            fill(Path("data"))
            svg = asyncio.run(_exported("data"))
        finally:
            os.chdir(here)
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)


def main() -> int:
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
