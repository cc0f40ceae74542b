"""A service with threads: python examples/service_threads.py

Eight request threads append orders with `durable=True`, so that each of them answers
only when its order is on the disk. Calls that wait at the same time share one sync
(group commit). One thread follows the log and keeps a total by customer. SIGTERM and
SIGINT stop the service: requests end, the store is closed, and nothing that was
answered is lost. Without a signal it stops by itself after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import logstore

THREADS = 8
CUSTOMERS = 20


class Service:
    """Takes orders from any thread. `totals` follows what is in the log."""

    def __init__(self, path: Path) -> None:
        self.totals: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._store = logstore.open(path)
        self._orders = self._store.create_topic("orders", exist_ok=True)[0]
        self._follower = threading.Thread(target=self._follow, name="follower")
        self._follower.start()

    def order(self, customer: str, amount: int) -> int:
        """Take an order; its offset, once it is on the disk."""
        value = json.dumps({"customer": customer, "amount": amount}).encode()
        return self._orders.append(value, key=customer.encode(), durable=True)

    def stop(self) -> None:
        """Wait until the follower has seen every order, and close the store."""
        self._stopping.set()
        self._follower.join()
        self._store.close()

    def _follow(self) -> None:
        """Read all orders from the beginning, then wait for new ones."""
        position = self._orders.start_offset
        while not self._stopping.is_set() or position < self._orders.end_offset:
            # Ends after 0.2 s without an order, to look whether the service stops.
            for record in self._orders.follow(start=position, timeout=0.2):
                order = json.loads(record.value or b"")
                self.totals[order["customer"]] += order["amount"]
                position = record.offset + 1
                if self._stopping.is_set() and position >= self._orders.end_offset:
                    break


def requests(service: Service, seed: int, stop: threading.Event) -> Counter[str]:
    """Send orders until `stop` is set; what was answered, by customer."""
    chance = random.Random(seed)
    answered: Counter[str] = Counter()
    while not stop.is_set():
        customer = f"customer-{chance.randrange(CUSTOMERS)}"
        amount = chance.randrange(1, 100)
        service.order(customer, amount)
        answered[customer] += amount
    return answered


def run(path: Path, seconds: float) -> None:
    """Serve until a signal comes, or for so many seconds; then compare."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    service = Service(path)
    answered: list[Counter[str]] = []
    threads = [
        threading.Thread(
            target=lambda seed=seed: answered.append(requests(service, seed, stop))
        )
        for seed in range(THREADS)
    ]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    print(f"serving with {THREADS} threads", flush=True)
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    service.stop()
    expected = sum(answered, Counter())
    with logstore.open(path, read_only=True) as store:
        count = store.topic("orders")[0].end_offset
    print(f"{count} orders answered and durable in {took:.1f} s")
    print(f"orders by {len(expected)} customers, {expected.total()} in all")
    if service.totals != expected:
        raise SystemExit("the follower's totals are not those of the answers")
    print("the follower's totals are those of the answers")


def main() -> None:
    parser = argparse.ArgumentParser(description="A service with threads.")
    parser.add_argument("--seconds", type=float, default=2, help="how long (2)")
    parser.add_argument("--dir", type=Path, help="keep the store there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-") as folder:
        run(args.dir or Path(folder) / "store", args.seconds)


if __name__ == "__main__":
    main()
