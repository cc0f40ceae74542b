"""Bugs about cancelled tasks: what becomes of a result that a task does
not get, and whose turn it is then."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_CANCELLATIONS = (
    Bug(
        "a record counts as delivered when it was read ahead",
        "group/consumer/reading.py",
        (("                    self._ahead = records[::-1]\n",
          "                    self._ahead = records[::-1]\n"
          "                    self.position = position\n"),),
        "cancellations",
    ),
    Bug(
        "a task that was cancelled keeps what it was given",
        "aio/turns.py",
        (("                if is_fresh is None:\n                    return None\n",
          "                if is_fresh is None:\n                    return None\n"
          "                result = take(not is_fresh)\n"
          "                if result:\n"
          "                    self._give_back()\n"
          "                    await asyncio.sleep(0)\n"
          "                    return result\n"),),
        "cancellations",
        quick=1,
    ),
    Bug(
        "a transaction that a cancelled task has entered stays open",
        "aio/turns.py",
        (("            self._submit(call.take_back, _do_nothing)\n",
          "            pass\n"),),
        "cancellations",
    ),
    Bug(
        "the end of a transaction is dropped with its task",
        "aio/turns.py",
        (("        return self.future.cancelled() and not self.is_kept\n",
          "        return self.future.cancelled()\n"),),
        "cancellations",
    ),
    Bug(
        "a cancelled task keeps the turn",
        "aio/turns.py",
        (("            if self._holder is waiter and not self._is_reading:\n"
          "                self._again()\n",
          "            if self._holder is waiter and waiter.future.cancelled():\n"
          "                self._again()\n"),),
        "cancellations",
    ),
    Bug(
        "a follower forgets what it has in memory when its task is cancelled",
        "aio/follower.py",
        (("        finally:\n            self._waiting.discard(woken)\n",
          "        except asyncio.CancelledError:\n"
          "            next(self._steps, None)\n"
          "            raise\n"
          "        finally:\n            self._waiting.discard(woken)\n"),),
        "cancellations",
    ),
    Bug(
        "a call that waits for a thread is dropped with its task",
        "aio/partition.py",
        (("        return await asyncio.shield(made)\n",
          "        return await made\n"),),
        "cancellations",
    ),
    Bug(
        "records that were appended in a thread are told before they are durable",
        "aio/commits.py",
        (("            sync.end = max(sync.end, end)\n",
          "            sync.end = max(sync.end, end - 1)\n"),),
        "cancellations",
    ),
)  # fmt: skip
