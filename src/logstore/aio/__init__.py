"""logstore for asyncio: calls that wait are awaited, and block no event loop.

    import logstore.aio

    async with logstore.aio.open("data") as store:
        orders = store.topic("orders")[0]
        await orders.append(b"value", durable=True)
        async for record in orders.follow():
            print(record.offset, record.key, record.value)

Objects here are named as in `logstore`, and have the object from there as `blocking`.
"""

from logstore.aio.consumer import Consumer
from logstore.aio.follower import Follower
from logstore.aio.partition import Partition
from logstore.aio.producer import Producer
from logstore.aio.store import Store, open_store
from logstore.aio.topic import Topic

open = open_store

__all__ = ["Consumer", "Follower", "Partition", "Producer", "Store", "Topic", "open"]
