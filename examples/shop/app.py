"""The web server of the shop: any number of processes of it append to one store.

uvicorn starts several processes of this program. Each of them opens the store with
`shared=True`, so each can take orders, and none has to be there first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

import logstore
import logstore.aio

STORE = os.environ.get("SHOP_STORE", "shop-data")
KEY_MAX = 200
WAIT_MS = 30_000


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store for as long as the process serves requests."""
    async with logstore.aio.open(STORE, shared=True) as store:
        app.state.store = store
        app.state.orders = await store.create_topic("orders", 4, exist_ok=True)
        app.state.invoices = await store.create_topic("invoices", exist_ok=True)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take_order(request: Request) -> dict[str, object]:
    """Take an order: JSON with an `id` and an `item`. When this returns, the order is
    on stable storage. All orders with one id are in one partition, in their order.

    A request with the header `Idempotency-Key` may be sent again: the order is taken
    once. Without it, it is taken as often as it is sent."""
    order = await request.json()
    if not isinstance(order, dict) or not {"id", "item"} <= order.keys():
        raise HTTPException(422, "an order has an id and an item")
    value, name = json.dumps(order).encode(), str(order["id"]).encode()
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_MAX:
        raise HTTPException(400, f"Idempotency-Key has 1 to {KEY_MAX} characters")
    try:
        if key is not None:
            return await take_once(key, name, value)
        done = await app.state.orders.append(value, key=name)
    except logstore.PublicationTimeoutError as error:
        # 503: it was not taken, try again. 504: it may have been taken.
        status = 503 if error.outcome == "not written" else 504
        raise HTTPException(status, str(error)) from error
    return {"partition": done.partition, "offset": done.offset}


async def take_once(key: str, name: bytes, value: bytes) -> dict[str, object]:
    """Publish an order under its `Idempotency-Key`. The store remembers the last 10,000
    of them. Of an order that was taken before, it does not tell the offset."""
    store, orders = app.state.store, app.state.orders
    number = orders.partitioner.partition(name, len(value), len(orders))
    identity, digest = f"order/{key}", hashlib.sha256(value).digest()
    with store.stage(identity, 1) as stage:
        stage.append_many(orders[number], [value], [name])
        staged = stage.finish()
    done = await store.submit(
        [staged], identity=identity, sequence=1, metadata=digest, timeout_ms=WAIT_MS
    )
    if done.metadata != digest:
        raise HTTPException(422, "this Idempotency-Key was used for another order")
    offsets = [span.start for span in done.offsets.values()]
    return {"partition": number, "offset": offsets[0] if offsets else None}


@app.get("/invoices")
async def follow_invoices(request: Request, start: int = 0) -> StreamingResponse:
    """The invoices from an offset on, as server-sent events. A browser that connects
    again sends the last offset that it has seen (`Last-Event-ID`)."""
    last = request.headers.get("last-event-id")
    begin = start if last is None else int(last) + 1

    async def events() -> AsyncIterator[str]:
        async for record in app.state.invoices[0].follow(begin):
            value = (record.value or b"").decode()
            yield f"id: {record.offset}\ndata: {value}\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/metrics")
def metrics() -> PlainTextResponse:
    """The numbers of the store, for Prometheus."""
    return PlainTextResponse(
        logstore.metrics.text(logstore.metrics.of_directory(STORE))
    )
