"""A shop in one command: python examples/shop/shop.py

Starts two web workers and two workers that write invoices, takes some orders as a
client would, and shows the invoices. With --serve it stays until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


@contextlib.contextmanager
def running(store: str, port: int, billing: int = 2) -> Iterator[list[int]]:
    """The processes of the shop; yields the ids of those that were started here."""
    environment = {**os.environ, "SHOP_STORE": store}
    web = [
        sys.executable, "-m", "uvicorn", "app:app", "--app-dir", str(HERE),
        "--workers", "2", "--port", str(port), "--log-level", "warning",
        "--timeout-graceful-shutdown", "3",  # browsers follow the invoices
    ]  # fmt: skip
    commands = [web, *[[sys.executable, str(HERE / "billing.py")]] * billing]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        number: int = server.getsockname()[1]
        return number


def order(
    port: int, number: int, item: str, seconds: float = 60
) -> dict[str, int | None]:
    """Order, again and again until it is taken: its partition and offset. One that was
    answered by nobody may have been taken: by its key it is taken once, and then its
    offset is None."""
    deadline = time.monotonic() + seconds
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    content = json.dumps({"id": number, "item": item})
    while True:
        try:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            client.request("POST", "/orders", content, headers)
            answer = client.getresponse()
            if answer.status == 201:
                done: dict[str, int | None] = json.loads(answer.read())
                return done
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def invoices(port: int, count: int) -> list[str]:
    """The first invoices, as a browser would follow them."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/invoices")
    answer, found = client.getresponse(), list[str]()
    while len(found) < count:
        line = answer.readline().decode()
        if line.startswith("data: "):
            found.append(line[6:].rstrip())
    client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", help="its directory (default: a new one)")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--serve", action="store_true", help="stay until Ctrl-C")
    given = parser.parse_args()
    port = given.port or free_port()
    with contextlib.ExitStack() as stack:
        store = given.store or stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(running(store, port))
        if given.serve:
            print(
                f"the shop is at http://127.0.0.1:{port} (POST /orders, GET /invoices)"
            )
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
            return
        for number, item in enumerate(["apples", "pears", "plums"]):
            place = order(port, number, item)
            print(f"ordered {item}: {place['partition']}@{place['offset']}")
        for invoice in invoices(port, 3):
            print("invoice", invoice)


if __name__ == "__main__":
    main()
