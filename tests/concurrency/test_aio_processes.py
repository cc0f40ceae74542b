"""Tasks that follow what another process appends, until it is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import logstore
import logstore.aio
from support.tasks import every_loop, run

WRITER = """
import asyncio, sys
import logstore, logstore.aio

async def main():
    async with logstore.aio.open(sys.argv[1]) as store:
        config = logstore.TopicConfig(segment_bytes=20_000)
        p = (await store.create_topic("orders", config=config, exist_ok=True))[0]
        print("ready", flush=True)

        async def work(task):
            n = 0
            while True:
                value = b"%d.%d" % (task, n)
                offset = await p.append(value, durable=task % 2 == 0)
                print(offset, value.decode(), flush=True)
                n += 1
                await asyncio.sleep(0.001)

        await asyncio.gather(*(work(task) for task in range(10)))

asyncio.run(main())
"""


@every_loop
def test_followers_have_what_a_killed_process_has_acknowledged(
    tmp_path: Path, loop_kind: str
) -> None:
    """Each record once, in order, over rolls; every acknowledged one is delivered."""

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        acknowledged: dict[int, bytes] = {}

        async def listen() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                if line.endswith(b"\n"):
                    offset, value = line.split()
                    acknowledged[int(offset)] = value

        listening = asyncio.create_task(listen())
        async with logstore.aio.open(tmp_path, read_only=True) as store:
            p = store.topic("orders")[0]
            all_of_it, durable = p.follow(), p.follow(durable_only=True)
            seen = [(await anext(all_of_it)).value for _ in range(1500)]
            sure = [(await anext(durable)).value for _ in range(500)]
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await listening
            end = max(acknowledged) + 1
            while len(seen) < end:
                seen.append((await anext(all_of_it)).value)
            assert sure == seen[:500]
            assert {n: seen[n] for n in acknowledged} == acknowledged
            assert len(p.segments) > 1
            assert len(set(seen)) == len(seen)
        with logstore.open(tmp_path) as store:
            kept = [record.value for record in store.topic("orders")[0].read()]
            assert kept[: len(seen)] == seen

    run(main(), loop_kind)
