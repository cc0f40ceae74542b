"""While a task of logstore.aio waits for records, other calls should have their turn
within 0.1 s. Each waiting task queues its own 0.1 s: with 30 of them a commit or a stop
takes 3 s.

Usage: python s07_aio_turn_grows_with_waiters.py
"""

import asyncio
import logging
import tempfile
import time

import logstore as ls
import logstore.aio as aio

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("t").append_many([b"1"] * 3, durable=True)


async def main():
    c = aio.Consumer(path, group="g", topics=["t"], reset="earliest")
    await c.start()
    for _ in range(3):
        await c.getone()
    took = {}
    for kind in ("getone", "getmany"):
        waiting = [
            asyncio.create_task(
                c.getone() if kind == "getone" else c.getmany(timeout_ms=600000)
            )
            for _ in range(30)
        ]
        await asyncio.sleep(0.3)
        for what in ("commit", "pause"):
            begun = time.perf_counter()
            await (c.commit() if what == "commit" else c.pause(("t", 0)))
            took[kind, what] = time.perf_counter() - begun
        await c.resume(("t", 0))
        for t in waiting:
            t.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    begun = time.perf_counter()
    waiting = [asyncio.create_task(c.getone()) for _ in range(30)]
    await asyncio.sleep(0.3)
    begun = time.perf_counter()
    await c.stop()
    took["getone", "stop"] = time.perf_counter() - begun
    await asyncio.gather(*waiting, return_exceptions=True)
    return took


took = asyncio.run(main())
text = ", ".join(
    f"{what} beside 30 x {kind}: {t:.1f} s" for (kind, what), t in took.items()
)
wrong = max(took.values()) > 0.5
print("WRONG" if wrong else "OK", text)
raise SystemExit(wrong)
