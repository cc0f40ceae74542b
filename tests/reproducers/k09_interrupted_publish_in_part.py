"""Real timers interrupt `publish()` two or three times within a millisecond. After
`close()` and opening again, one of its partitions has its records and the other does
not, and `published()` says that nothing was published. A publication is there as a
whole or not at all.

Usage: python k09_interrupted_publish_in_part.py [seconds [seed]]
"""

import contextlib
import functools
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

import logstore as ls

logging.disable(logging.CRITICAL)
sys.unraisablehook = lambda *_: None
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 90
rnd = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
left = [0]


def handler(*_):
    if left[0] > 0:
        left[0] -= 1
        if left[0]:
            signal.setitimer(signal.ITIMER_REAL, rnd.uniform(2e-5, 4e-4))
        raise KeyboardInterrupt


signal.signal(signal.SIGALRM, handler)


def shoot(call, most, times):
    left[0] = times
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, rnd.uniform(0, most)))
            call()
            return None
        finally:
            left[0] = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as e:
        left[0] = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        return e
    except ls.LogStoreError as e:
        return e


def shoot_append(p):
    with contextlib.suppress(ls.LogStoreError):
        p.append(b"other", durable=rnd.random() < 0.3)


until, n, shots, wrong, took = time.time() + seconds, 0, 0, [], 0.002
while time.time() < until and len(wrong) < 3:
    path = tempfile.mkdtemp()
    try:
        config = ls.TopicConfig(
            message_format=rnd.choice((1, 2)),
            segment_bytes=rnd.choice((300, 2000, 1 << 20)),
            flush_ms=rnd.choice((1, 20, 10**9)),
        )
        s = ls.open(path)
        parts = s.create_topic("t", 3, config).partitions
        open_calls = []
        for _ in range(rnd.randrange(1, 12)):
            n += 1
            two = rnd.sample(range(3), 2)
            values = {
                i: [
                    b"p%d.%d.%d" % (n, i, k) + b"." * rnd.choice((0, 200))
                    for k in range(rnd.randrange(1, 5))
                ]
                for i in two
            }
            if rnd.random() < 0.3:
                shoot(parts[two[0]].roll, 1e-3, rnd.choice((1, 2)))
            try:
                with s.stage("who", n) as stage:
                    for i in two:
                        stage.append_many(parts[i], values[i])
                    staged = stage.finish()
            except ls.LogStoreError:
                break
            times = rnd.choice((0, 1, 2, 2, 3))
            t0 = time.perf_counter()
            e = shoot(
                functools.partial(s.publish, [staged], identity="who", sequence=n),
                took * 1.1 if times else 1e6,
                times,
            )
            if not times and e is None:
                took = 0.9 * took + 0.1 * (time.perf_counter() - t0)
            shots += e is not None
            open_calls.append(
                (n, values, type(e).__name__ if e is not None else "returned")
            )
            if isinstance(e, ls.LogStoreError):
                break
            if e is not None and rnd.random() < 0.5:  # another thread continues
                th = threading.Thread(
                    target=shoot_append, args=(parts[rnd.randrange(3)],)
                )
                th.start()
                th.join()
        s.close()
        with ls.open(path) as s:
            report = [
                (a.label, a.partition, a.first_offset)
                for a in s.recovery_report.actions
            ]
            there = {i: {r.value for r in s.topic("t")[i].read()} for i in range(3)}
            last = s.published("who")
        for k, values, how in open_calls:
            have = [v in there[i] for i in values for v in values[i]]
            if any(have) and not all(have):
                found = {i: [v in there[i] for v in values[i]] for i in values}
                wrong.append(
                    f"publication {k} of {sorted(values)}: {sum(have)} of {len(have)}"
                    f" records are there ({found}); publish {how}; the opening"
                    f" reports {report}; published() says {last}"
                )
            elif how == "returned" and not all(have):
                wrong.append(f"publication {k} returned and is not there")
    except ls.LogStoreError:
        pass
    finally:
        shutil.rmtree(path, ignore_errors=True)
print(
    "\n".join(f"WRONG {w}" for w in wrong) or "OK",
    f"({n} publications, {shots} interrupted)",
)
sys.exit(bool(wrong))
