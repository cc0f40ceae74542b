"""A task of logstore.aio is cancelled while it enters `async with
consumer.transaction()`. The transaction stays open: the next one, of any task, raises
CommitFailedError ("neither committed nor aborted"), and no call can end the first one.

Usage: python s15_cancelled_aenter_of_a_transaction.py
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
    said = 0
    async with aio.Consumer(path, group="g", topics=["t"], reset="earliest") as c:
        await c.getmany(timeout_ms=300)

        async def work():
            async with c.transaction():
                await c.getmany()

        for _ in range(20):
            task = asyncio.create_task(work())
            for _ in range(2):
                await asyncio.sleep(0)
            time.sleep(0.01)  # any work of another task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                await work()
            except ls.errors.CommitFailedError:
                said += 1
    return said


said = asyncio.run(main())
print(
    "WRONG" if said else "OK",
    f"{said} of 20 transactions after a cancelled one: CommitFailedError",
)
raise SystemExit(bool(said))
