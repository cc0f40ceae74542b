"""The workers of the shop: one invoice for each order. Any number of them may run.

A worker is a member of the group `billing`. It writes its invoices and its position in
one transaction, so a worker that is killed leaves an order with one invoice or none,
and another worker writes that one.
"""

from __future__ import annotations

import os
import signal
import sys

import logstore

STORE = os.environ.get("SHOP_STORE", "shop-data")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with logstore.open(STORE, shared=True) as store:
        store.create_topic("orders", 4, exist_ok=True)
        store.create_topic("invoices", exist_ok=True)
        with logstore.Consumer(
            store, group="billing", topics=["orders"], reset="earliest"
        ) as consumer:
            while True:
                with consumer.transaction() as transaction:
                    for records in consumer.poll(timeout_ms=1_000).values():
                        for order in records:
                            place = b"%d@%d: " % (order.partition, order.offset)
                            invoice = place + (order.value or b"")
                            transaction.append("invoices", invoice)


if __name__ == "__main__":
    main()
