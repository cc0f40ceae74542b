"""A task is cancelled in `getmany` of logstore.aio. Calls that other tasks have queued
run before its records are put back: a commit commits them, so that they are lost after
a kill; another `getmany` gets later ones and then all again; a seek is undone.

Usage: python s02_aio_getmany_cancelled.py
"""

import asyncio
import contextlib
import logging
import tempfile
import time

import logstore as ls
import logstore.aio as aio

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("t").append_many([b"%d" % i for i in range(1000)], durable=True)
wrong = []


async def some(c):
    while True:
        got = [r.offset for v in (await c.getmany(timeout_ms=1000)).values() for r in v]
        if got:
            return got


async def cancelled_beside(c, call):
    """getmany, and a call that another task queues after it.

    The loop is busy for a moment, then getmany is cancelled."""
    reader = asyncio.create_task(c.getmany(timeout_ms=1000))
    await asyncio.sleep(0)
    other = asyncio.create_task(call)
    await asyncio.sleep(0)
    time.sleep(0.1)  # any work of another task
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    return await other


async def main():
    where = {"topics": ["t"], "reset": "earliest", "max_poll_records": 10}
    c = aio.Consumer(path, group="commit", **where)
    got = await some(c)
    await cancelled_beside(c, c.commit())
    committed = (await c.committed(("t", 0))).offset
    if committed != got[-1] + 1:
        wrong.append(
            f"committed {committed}, delivered {got[0]} to {got[-1]}: lost if it is"
            " killed now"
        )
    await c.stop()
    async with aio.Consumer(path, group="auto", auto_commit_ms=0, **where) as c:
        got = await some(c)
        await cancelled_beside(c, c.getmany(timeout_ms=100, max_records=1))
        committed = (await c.committed(("t", 0))).offset
        if committed > got[-1] + 1:
            wrong.append(f"committed by itself {committed}, delivered up to {got[-1]}")
    async with aio.Consumer(path, group="twice", **where) as c:
        got = await some(c)
        got += [
            r.offset
            for v in (await cancelled_beside(c, c.getmany(timeout_ms=1000))).values()
            for r in v
        ]
        while len(got) < 60:
            got += await some(c)
        if got != list(range(len(got))):
            wrong.append(
                f"offsets delivered {got[8:22]}... : {len(got) - len(set(got))} twice"
            )
    async with aio.Consumer(path, group="seek", **where) as c:
        await some(c)
        await cancelled_beside(c, c.seek(("t", 0), 500))
        got = await some(c)
        if got[0] != 500:
            wrong.append(f"after seek(500) comes {got[0]}")


asyncio.run(main())
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
