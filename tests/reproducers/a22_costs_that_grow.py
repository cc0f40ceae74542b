"""Costs that grow with the store: a roll with the number of segments, create_topic with
the number of topics, delete_before inside a segment with the number of partitions. Each
writes or looks at all of them.

Usage: python a22_costs_that_grow.py [directory, best on a tmpfs]
"""

import cProfile
import pstats
import resource
import sys
import tempfile
import time

import logstore

where = sys.argv[1] if len(sys.argv) > 1 else None
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
wrong = []


def judge(what, few, many, by):
    growth = many / few
    print(f"{what}: {few * 1000:.2f} ms, with {by} {many * 1000:.2f} ms")
    if growth > 4:
        wrong.append(what)


def timed(act, count):
    # CPU time, and the best of five rounds: others may be using the machine.
    each = count // 5
    rounds = []
    for first in range(0, count, each):
        begin = time.process_time()
        for number in range(first, first + each):
            act(number)
        rounds.append((time.process_time() - begin) / each)
    return min(rounds)


with tempfile.TemporaryDirectory(dir=where) as path, logstore.open(path) as store:
    config = logstore.TopicConfig(segment_bytes=100)
    p = store.create_topic("t", config=config)[0]
    p.append(b"x" * 60)
    few = timed(lambda _: p.append(b"x" * 60), 100)
    for _ in range(1900):
        p.append(b"x" * 60)
    profile = cProfile.Profile()
    many = timed(lambda _: p.append(b"x" * 60), 100)
    profile.runcall(lambda: [p.append(b"x" * 60) for _ in range(50)])
    judge("an append that rolls", few, many, "2,000 segments")
    pstats.Stats(profile).sort_stats("tottime").print_stats(4)

with tempfile.TemporaryDirectory(dir=where) as path, logstore.open(path) as store:
    few = timed(lambda n: store.create_topic(f"a{n}"), 50)
    for n in range(1000):
        store.create_topic(f"b{n}")
    many = timed(lambda n: store.create_topic(f"c{n}"), 50)
    judge("create_topic", few, many, "1,000 topics")

with tempfile.TemporaryDirectory(dir=where) as path, logstore.open(path) as store:

    def trim(p):
        p.append(b"1")
        p.append(b"2")
        p.delete_before(p.end_offset - 1)

    small = store.create_topic("small", 20)
    few = timed(lambda n: trim(small[n]), 20)
    large = store.create_topic("large", 5000)
    many = timed(lambda n: trim(large[n]), 100)
    judge("delete_before inside a segment", few, many, "5,000 partitions")


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


with tempfile.TemporaryDirectory(dir=where) as path, logstore.open(path) as store:
    parts = store.create_topic("t", 1500).partitions
    before = resident()
    for p in parts:
        p.append(b"x")
    each = (resident() - before) / len(parts) / 1024
    print(f"memory of a partition that was appended to: {each:.0f} KiB")
    if each > 32:
        wrong.append("memory of a partition")
print("WRONG" if wrong else "OK", wrong)
raise SystemExit(bool(wrong))
