"""The web server of the shop: any number of processes of it append to one store.

uvicorn starts several processes of this program. Each of them opens the store with
`shared=True`, so each can take orders, and none has to be there first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

import logstore
import logstore.aio

STORE = os.environ.get("SHOP_STORE", "shop-data")


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store for as long as the process serves requests."""
    async with logstore.aio.open(STORE, shared=True) as store:
        app.state.orders = await store.create_topic("orders", 4, exist_ok=True)
        app.state.invoices = await store.create_topic("invoices", exist_ok=True)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take_order(request: Request) -> dict[str, object]:
    """Take an order: JSON with an `id` and an `item`. When this returns, the order is
    on stable storage. All orders with one id are in one partition, in their order."""
    order = await request.json()
    if not isinstance(order, dict) or not {"id", "item"} <= order.keys():
        raise HTTPException(422, "an order has an id and an item")
    try:
        done = await app.state.orders.append(
            json.dumps(order).encode(), key=str(order["id"]).encode()
        )
    except logstore.PublicationTimeoutError as error:
        # 503: it was not taken, try again. 504: it may have been taken.
        status = 503 if error.outcome == "not written" else 504
        raise HTTPException(status, str(error)) from error
    return {"partition": done.partition, "offset": done.offset}


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
