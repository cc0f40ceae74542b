"""Stores for the tests of the browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from support.damage import flip_bit

BATCH = 50
BATCHES = 20


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """orders with two partitions and JSON, clicks with one that is compressed."""
    config = {"message_format": 2, "index_interval_bytes": 200}
    with logstore.open(tmp_path / "shop") as store:
        orders = store.create_topic("orders", 2, logstore.TopicConfig(**config))  # type: ignore[arg-type]
        for partition in orders:
            for begin in range(0, BATCH * BATCHES, BATCH):
                numbers = range(begin, begin + BATCH)
                partition.append_many(
                    [b'{"order": %d}' % n for n in numbers],
                    [b"user-%03d" % (n % 100) for n in numbers],
                    # Times of the second partition lie between times of the first.
                    timestamps_ms=[
                        1_700_000_000_000 + 1000 * n + 500 * partition.number
                        for n in numbers
                    ],
                )
        clicks = store.create_topic(
            "clicks",
            1,
            logstore.TopicConfig(compression_type="lz4", **config),  # type: ignore[arg-type]
        )
        for begin in range(0, 3000, 300):
            clicks[0].append_many([b"click %d" % (begin + n) for n in range(300)])
    return tmp_path / "shop"


@pytest.fixture
def damaged(shop: Path) -> Path:
    """The same with a flipped bit in the tenth batch of orders-1: offsets 450 to 499
    are damaged."""
    log = shop / "orders-1" / f"{0:020}.log"
    with logstore.open(shop, read_only=True) as store:
        batches = list(store.topic("orders")[1].read_batches(450, limit=1))
    flip_bit(log, 8 * (batches[0].position + batches[0].size_bytes - 3))
    return shop


@pytest.fixture
def misconfigured(shop: Path) -> Path:
    """The same with settings of clicks that no version accepts."""
    path = shop / layout.TOPICS
    state = json.loads(path.read_text().split("\n", 1)[1])
    state["topics"]["clicks"]["config"]["compression_type"] = "zstd2"
    path.write_bytes(checkpoints.pack_state(state))
    return shop
