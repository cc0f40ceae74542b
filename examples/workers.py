"""Worker processes that share a topic: python examples/workers.py

Four partitions of orders, two workers, one invoice for each order. A worker writes its
invoices and its position in one transaction. One worker is killed (SIGKILL) while it
works: the other one takes its partitions over, and at the end each order has one
invoice.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import logstore

PARTITIONS = 4


def work(path: Path, name: str) -> None:
    """Write an invoice for each order, until the process is killed."""
    with logstore.Consumer(
        path, group="billing", topics=["orders"], reset="earliest", max_poll_records=20
    ) as consumer:
        while True:
            # All that `poll` has delivered belongs to the transaction.
            with consumer.transaction() as transaction:
                for records in consumer.poll(timeout_ms=1_000).values():
                    for record in records:
                        value = b"%b, by %b" % (record.value, name.encode())
                        transaction.append("invoices", value)


def run(path: Path, orders: int, tell: Callable[[str], None]) -> None:
    """Start both, kill one, and count the invoices.

    Raises:
        ValueError: an order has no invoice, or two.
    """
    with logstore.open(path) as store:
        topic = store.create_topic("orders", PARTITIONS)
        for number in range(orders):
            topic[number % PARTITIONS].append(b"order %d" % number)
        store.create_topic("invoices")
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=work, args=(path, name), daemon=True)
        for name in ("ann", "bob")
    ]
    for worker in workers:
        worker.start()
    with logstore.open(path, read_only=True) as store:
        invoices: Counter[bytes] = Counter()
        by: Counter[str] = Counter()
        is_killed = False
        for record in store.topic("invoices")[0].follow(limit=orders, timeout=60):
            order, _, name = (record.value or b"").partition(b", by ")
            invoices[order] += 1
            by[name.decode()] += 1
            if not is_killed and by["ann"] and sum(by.values()) >= orders // 4:
                workers[0].kill()
                is_killed = True
                tell(f"ann was killed after {by['ann']:,} invoices")
    workers[1].kill()
    tell(f"bob has written {by['bob']:,}, also of the partitions that ann had")
    if invoices != Counter(b"order %d" % number for number in range(orders)):
        raise ValueError("an order has no invoice, or two")


def main() -> None:
    parser = argparse.ArgumentParser(description="Worker processes share a topic.")
    parser.add_argument("--orders", type=int, default=2_000, help="how many (2000)")
    args = parser.parse_args()
    if args.orders < 200:
        parser.error("--orders: at least 200")
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        run(Path(folder) / "store", args.orders, lambda text: print(text, flush=True))
    print(f"each of {args.orders:,} orders has one invoice")


if __name__ == "__main__":
    main()
