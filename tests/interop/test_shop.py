"""``examples/shop``: two processes of a web server and two workers are killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.levels import IS_ALL

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
KILLS = 50 if IS_ALL else 6


@pytest.fixture(scope="module")
def shop() -> dict[str, Any]:
    return runpy.run_path(str(SHOP / "shop.py"))


def children_of(pid: int) -> list[int]:
    """The processes of the web server that serve requests."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
            if int(stat[1]) == pid and b"spawn_main" in command:
                found.append(int(entry.name))
    return found


def start_billing(store: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SHOP_STORE": store}
    return subprocess.Popen([sys.executable, SHOP / "billing.py"], env=environment)


@contextlib.contextmanager
def killed(web: int, store: str, counts: Counter[str]) -> Iterator[None]:
    """Kill processes, at random, until there were enough kills; processes that have
    ended are started again, as systemd does it."""
    rng, workers = random.Random(3), [start_billing(store), start_billing(store)]
    try:
        end = threading.Event()

        def kill() -> None:
            while sum(counts.values()) < KILLS and not end.is_set():
                time.sleep(rng.random() * 0.4)
                serving = children_of(web)
                if rng.random() < 0.5 and len(serving) == 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(serving), signal.SIGKILL)
                        counts["web"] += 1
                else:
                    number = rng.randrange(len(workers))
                    workers[number].kill()
                    workers[number].wait()
                    counts["billing"] += 1
                    workers[number] = start_billing(store)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            yield
        finally:
            end.set()
            killer.join()
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def test_each_order_gets_one_invoice(tmp_path: Path, shop: dict[str, Any]) -> None:
    """Despite the kills, an acknowledged order is stored once, however often it was
    sent, at the place that the answer named, and has one invoice."""
    store, port = str(tmp_path / "store"), shop["free_port"]()
    counts: Counter[str] = Counter()
    said: dict[int, dict[str, int | None]] = {}
    with shop["running"](store, port, billing=0) as (web,):
        said[0] = shop["order"](port, 0, "first")
        with killed(web, store, counts):
            number = 1
            while sum(counts.values()) < KILLS:
                said[number] = shop["order"](port, number, f"item {number}")
                number += 1
            said[number] = shop["order"](port, number, "last")
            with logstore.open(store, read_only=True) as reader:
                orders = reader.topic("orders")
                deadline = time.monotonic() + 120
                while len(reader.topic("invoices")[0]) < sum(map(len, orders)):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
    assert counts["web"] > 0
    assert counts["billing"] > 0
    with logstore.open(store, read_only=True) as reader:
        orders = reader.topic("orders")
        found: dict[int, list[tuple[int, int]]] = {}
        for record in orders.read():
            number = json.loads(record.value or b"")["id"]
            found.setdefault(number, []).append((record.partition, record.offset))
        for number, place in said.items():
            ((partition, offset),) = found[number]
            assert place == {"partition": partition, "offset": offset} or (
                place == {"partition": partition, "offset": None}
            )
        places = [
            b"%d@%d: %b" % (record.partition, record.offset, record.value or b"")
            for record in orders.read()
        ]
        invoices = [record.value for record in reader.topic("invoices")[0].read()]
    assert sorted(invoices) == sorted(places)  # type: ignore[type-var]


def test_shop_shows_what_it_has(tmp_path: Path, shop: dict[str, Any]) -> None:
    """Events, metrics, and refused orders."""
    store, port = str(tmp_path / "store"), shop["free_port"]()
    with shop["running"](store, port):
        for number in range(3):
            shop["order"](port, number, "apples")
        assert len(set(shop["invoices"](port, 3))) == 3
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        client.request("GET", "/metrics")
        assert b'topic="orders"' in client.getresponse().read()
        client.request("POST", "/orders", '{"item": "no id"}')
        assert client.getresponse().status == 422


def posted(
    port: int, order: dict[str, object], key: str | None = None
) -> tuple[int, dict[str, Any]]:
    """The status and the answer of an order."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {} if key is None else {"Idempotency-Key": key}
    client.request("POST", "/orders", json.dumps(order), headers)
    answer = client.getresponse()
    return answer.status, json.loads(answer.read())


def test_order_with_a_key_is_taken_once(tmp_path: Path, shop: dict[str, Any]) -> None:
    """By all processes together; the key of one order is not taken for another."""
    store, port = str(tmp_path / "store"), shop["free_port"]()
    apples, pears = {"id": 1, "item": "apples"}, {"id": 1, "item": "pears"}
    with shop["running"](store, port, billing=0):
        place = shop["order"](port, 0, "first")  # the server is there
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: posted(port, apples, "k"), range(16)))
        assert {status for status, _ in answers} == {201}
        assert len({answer["partition"] for _, answer in answers}) == 1
        (offset,) = {answer["offset"] for _, answer in answers} - {None}
        status, answer = posted(port, pears, "k")
        assert (status, "another order" in answer["detail"]) == (422, True)
        assert posted(port, pears, "")[0] == posted(port, pears, "k" * 201)[0] == 400
        assert [posted(port, pears)[0] for _ in range(2)] == [201, 201]
    assert place["offset"] is not None
    with logstore.open(store, read_only=True) as reader:
        orders = reader.topic("orders")
        items = [json.loads(record.value or b"")["item"] for record in orders.read()]
        first = orders[answers[0][1]["partition"]].get(offset).value
    assert sorted(items) == ["apples", "first", "pears", "pears"]
    assert b"apples" in (first or b"")
    assert not [name for name in os.listdir(store) if "staged" in name]


def test_the_one_command_runs() -> None:
    done = subprocess.run(
        [sys.executable, SHOP / "shop.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("invoice ") == 3
