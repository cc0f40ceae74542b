"""Makes the pictures of the report: docs/images/report.png and report-dark.png.

    python docs/make_screenshots.py

It fills a store with invented data, damages a copy of it in two places, has
`logstore.report` look at it, and takes pictures of the page with a headless Chromium
(`apt-get install chromium`), reduced to 256 colours.
"""

from __future__ import annotations

import math
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import logstore

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.chromium import Chromium, Picture, find

Colour = tuple[int, int, int]
IMAGES = Path(__file__).with_name("images")
DAYS = 9
HOUR_MS = 3_600_000
WIDTH, HEIGHT = 1120, 1760
BYTES_MAX = 200_000


def fill(path: Path, now_ms: int) -> None:
    """A shop: orders with a heavy partition, clicks by day and night, audits."""
    rng = random.Random(14)
    settings = {"message_format": 2, "flush_messages": 10**6, "retention_ms": -1}
    with logstore.open(path) as store:

        def topic(name: str, partitions: int, **more: object) -> logstore.Topic:
            config = logstore.TopicConfig(**{**settings, **more})  # type: ignore[arg-type]
            return store.create_topic(name, partitions, config)

        orders = topic(
            "orders", 4, segment_bytes=200_000, compression_type="zstd",
            retention_ms=DAYS * 24 * HOUR_MS,
        )  # fmt: skip
        clicks = topic("clicks", 3, segment_bytes=400_000, compression_type="lz4")
        audit = topic("audit", 1, segment_bytes=60_000)
        for hour in range(DAYS * 24):
            begin = now_ms - (DAYS * 24 - hour) * HOUR_MS
            busy = 1.2 + math.sin((hour % 24 - 9) / 24 * 2 * math.pi)
            for number, partition in enumerate(orders):
                count = int(rng.uniform(60, 120) * busy * (5 if number == 2 else 1))
                _append(partition, begin, [_order(rng) for _ in range(count)])
            for partition in clicks:
                count = int(rng.uniform(100, 260) * busy)
                _append(partition, begin, [_click(rng) for _ in range(count)])
            _append(audit[0], begin, [b"user %d logged in" % n for n in range(40)])


def _append(partition: logstore.Partition, begin: int, values: list[bytes]) -> None:
    if values:
        step = HOUR_MS // len(values)
        times = [begin + step * at for at in range(len(values))]
        partition.append_many(values, timestamps_ms=times)


def _order(rng: random.Random) -> bytes:
    return b'{"order": %d, "amount": %d, "note": "%s"}' % (
        rng.randrange(10**9),
        rng.randrange(10**6),
        rng.randbytes(16).hex().encode(),
    )


def _click(rng: random.Random) -> bytes:
    page, session = rng.randrange(10**4), rng.randrange(1 << 32)
    return b'{"page": "/product/%d", "session": "%08x"}' % (page, session)


def damage(path: Path) -> None:
    """Flip a bit in a sealed segment, and one in an index."""
    for name, suffix, at, pos in (
        ("orders-1", ".log", 2, 90_000),
        ("audit-0", ".index", 1, 6),
    ):
        file = sorted((path / name).glob(f"*{suffix}"))[at]
        data = bytearray(file.read_bytes())
        data[pos] ^= 16
        file.write_bytes(data)


def reduced(picture: Picture) -> bytes:
    """The same as a PNG with a palette, about half the size: the 256 colours that occur
    most often; the others, edges of letters, become the nearest of them."""
    rows = [
        [picture.pixel(x, y) for x in range(picture.width)]
        for y in range(picture.height)
    ]
    counts = Counter(colour for row in rows for colour in row)
    kept = [colour for colour, _ in counts.most_common(256)]
    palette = {colour: at for at, colour in enumerate(kept)}
    for colour in counts:
        if colour not in palette:
            palette[colour] = min(range(len(kept)), key=_distance_to(colour, kept))
    plte = bytes(channel for colour in kept for channel in colour)
    raw = b"".join(b"\0" + bytes(palette[colour] for colour in row) for row in rows)
    head = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"PLTE", plte), (b"IDAT", zlib.compress(raw, 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body
        + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (*chunks, (b"IEND", b""))
    )  # fmt: skip


def _distance_to(colour: Colour, kept: list[Colour]) -> Callable[[int], int]:
    def distance(at: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, kept[at], strict=True))

    return distance


def main() -> int:
    """Make both pictures; 1 where there is no browser or one is too large."""
    program = find()
    if program is None:
        print("no Chromium on this machine (apt-get install chromium)", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "shop"
        fill(store, int(time.time() * 1000))
        damage(store)
        page = Path(directory) / "report.html"
        html = logstore.report(store).to_html()
        page.write_text(html.replace(directory, "/var/lib"), encoding="utf-8")
        browser = Chromium(program, Path(directory))
        for name, dark in (("report.png", False), ("report-dark.png", True)):
            out = IMAGES / name
            shot = browser.picture(page, dark=dark, width=WIDTH, height=HEIGHT)
            out.write_bytes(reduced(shot))
            size = out.stat().st_size
            print(f"{out.relative_to(IMAGES.parent.parent)}: {size} bytes")
            if size > BYTES_MAX:
                print(f"more than {BYTES_MAX} bytes", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
