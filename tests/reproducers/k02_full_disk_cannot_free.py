"""On a file system that is really full (ext4 on a loop device, tmpfs without room,
tmpfs without inodes) the calls that free space fail: delete_before, retention and
others raise DiskFullError, because they rename files to a longer name first. The
directory of the partition has 24 to 48 segments; with some of these numbers, its last
block has no room for a longer name.

Needs root, because it mounts.

Usage: python k02_full_disk_cannot_free.py [directory [kinds of file system [calls]]]
"""

import collections
import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time

import logstore as ls

ARGUMENTS = dict(enumerate(sys.argv))
KINDS = ARGUMENTS.get(2, "ext4-1k,ext4-4k,tmpfs-room,tmpfs-inodes").split(",")
work = tempfile.mkdtemp(dir=ARGUMENTS.get(1))
mnt = os.path.join(work, "mnt")
store = os.path.join(mnt, "s")
os.mkdir(mnt)


def run(*a):
    subprocess.run(a, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def mount(kind):
    if kind.startswith("ext4"):
        image = os.path.join(work, "image")
        with open(image, "wb") as f:
            f.truncate(24 << 20)
        run(
            "mkfs.ext4",
            "-q",
            "-F",
            "-m",
            "0",
            "-N",
            "4096",
            "-b",
            "1024" if kind == "ext4-1k" else "4096",
            "-O",
            "^has_journal" if "nojournal" in kind else "has_journal",
            image,
        )
        run("mount", "-o", "loop", image, mnt)
    else:
        run(
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size=6m,nr_inodes={4000 if kind == 'tmpfs-room' else 1500}",
            "tmpfs",
            mnt,
        )


def fill(kind):
    n = 0
    if kind == "tmpfs-inodes":
        os.mkdir(os.path.join(mnt, "filler.d"))
        try:
            while True:
                open(os.path.join(mnt, "filler.d", str(n)), "x").close()
                n += 1
        except OSError:
            return
    fd = os.open(os.path.join(mnt, "filler"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for size in (1 << 16, 4096, 1024, 1):
        try:
            while True:
                os.write(fd, b"x" * size)
        except OSError:
            pass
    os.fsync(fd)
    os.close(fd)


def free():
    s = os.statvfs(mnt)
    return s.f_bavail * s.f_frsize, s.f_favail


def make(store, segments, **kw):
    s = ls.open(store)
    p = s.create_topic(
        "t",
        config=ls.TopicConfig(
            message_format=2,
            segment_bytes=8000,
            file_delete_delay_ms=0,
            flush_ms=10**9,
            **kw,
        ),
    )[0]
    for i in range(segments):
        p.append_many(
            [b"%d" % (i % 7) + b"v" * 700] * 8,
            keys=(
                [b"%d" % (j % 5) for j in range(8)]
                if kw.get("cleanup_policy")
                else None
            ),
        )
        p.roll()
    p.append(b"last", b"k")
    u = s.create_topic("u", config=ls.TopicConfig(message_format=2))[0]
    u.append(b"other")
    p.flush()
    return s, p


# Calls that free space. Each is made on a store from before the disk was full.
def delete_before(s, p):
    p.delete_before(p.segments[-2].base_offset)


def retention(s, p):
    s.topic("t").apply_retention(policies=[ls.RetainBytes(9000)])


def delete_topic(s, p):
    s.delete_topic("t")


def truncate_to(s, p):
    p.truncate_to(p.segments[1].base_offset)


def roll(s, p):
    p.roll()


def compact(s, p):
    p.compact(force=True)


def close_open_delete(s, p):
    s.close()
    with ls.open(store) as again:
        p = again.topic("t")[0]
        p.delete_before(p.segments[-2].base_offset)


def called(call, kind, segments):
    """The store, the result of the call, and the free space before it."""
    settings = {"cleanup_policy": "compact"} if call is compact else {}
    s, p = make(store, segments, **settings)
    fill(kind)
    before = free()
    try:
        call(s, p)
    except ls.LogStoreError as e:
        text = str(e).replace(store, "")
        if call not in MAY_FAIL:
            print(f"   {call.__name__} of {segments} segments: {text}")
        return s, f"{type(e).__name__}: {text.split(':')[0]}", before
    return s, "done", before


# The same in the background, after a kill, and what else should go well.
def background_retention(kind, segments):
    s, p = make(store, segments)
    settings = {"message_format": 2, "segment_bytes": 8000, "retention_bytes": 9000}
    s.topic("t").configure(ls.TopicConfig(file_delete_delay_ms=0, **settings))
    s.close()
    fill(kind)
    before = free()
    s = ls.open(store, config=ls.StoreConfig(retention_check_ms=100))
    p = s.topic("t")[0]
    stop = time.time() + 3
    while time.time() < stop:
        try:
            if p.start_offset > 0:
                return s, "done", before
            s.topics()
        except ls.LogStoreError as e:
            return s, type(e).__name__, before
        time.sleep(0.05)
    return s, "nothing is deleted in 3 s", before


def repair_cut(kind, segments):
    s, _ = make(store, segments)
    s.close()
    logs = sorted(x for x in os.listdir(f"{store}/t-0") if x.endswith(".log"))
    with open(f"{store}/t-0/{logs[segments // 2]}", "r+b") as f:
        f.seek(3000)
        f.write(b"DAMAGE" * 10)
    fill(kind)
    before = free()
    try:
        ls.repair(f"{store}/t-0", "cut")
    except ls.LogStoreError as e:
        return None, type(e).__name__, before
    return None, "done", before


def commit_of_a_group(kind, segments):
    s, _ = make(store, segments)
    with ls.Consumer(store, group="g", topics=["t"], reset="earliest") as c:
        while not c.assignment():
            c.poll(timeout_ms=20, max_records=1)
        c.commit({("t", 0): 1})
        fill(kind)
        before = free()
        try:
            for k in range(2, 3000):
                c.commit({("t", 0): k % 100}, durable=False)
            return s, "done", before
        except ls.LogStoreError as e:
            return s, type(e).__name__, before


def open_after_a_kill_and_delete(kind, segments):
    pid = os.fork()
    if not pid:
        make(store, segments)
        os._exit(0)
    os.waitpid(pid, 0)
    fill(kind)
    before, s = free(), None
    try:
        s = ls.open(store)
        p = s.topic("t")[0]
        p.delete_before(p.segments[-2].base_offset)
    except ls.LogStoreError as e:
        return s, f"{type(e).__name__} {str(e).split(':')[0].split('/')[0]}", before
    return s, "done", before


CALLS = (
    *(delete_before, retention, delete_topic, truncate_to, roll, compact),
    close_open_delete,
)
SITUATIONS = (
    *(background_retention, repair_cut, commit_of_a_group),
    open_after_a_kill_and_delete,
)
MAY_FAIL = (roll, compact, repair_cut, commit_of_a_group)


def afterwards(s):
    """Whether everything works as soon as there is room again."""
    said = []
    try:
        if s is not None:
            s.close()
    except ls.LogStoreError as e:
        said.append(f"close: {type(e).__name__}")
    shutil.rmtree(os.path.join(mnt, "filler.d"), ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(mnt, "filler"))
    try:
        with ls.open(store) as z:
            for topic in z:
                for p in topic:
                    list(p.read())
                    p.append(b"more", b"k")
        v = ls.verify(store, deep=True, threads=1)
        said.append(f"verify {'ok' if v.ok else v.problems[0].kind}")
    except ls.LogStoreError as e:
        said.append(f"afterwards: {type(e).__name__} {str(e)[:60]}")
    return said


def unmount():
    for _ in range(20):
        if subprocess.call(["umount", mnt], stderr=subprocess.DEVNULL) == 0:
            return
        gc.collect()
        time.sleep(0.1)


def one(call, kind, segments):
    """(Result of the call, bytes and inodes that it freed, problems afterwards.)"""
    if call in CALLS:
        s, result, before = called(call, kind, segments)
    else:
        s, result, before = call(kind, segments)
    time.sleep(0.05)
    freed = [now - then for now, then in zip(free(), before, strict=True)]
    return result, freed, afterwards(s)


names = {call.__name__: call for call in (*CALLS, *SITUATIONS)}
wanted = ARGUMENTS.get(3, ",".join(names)).split(",")
wrong = collections.Counter()
for kind in KINDS:
    for name in wanted:
        call = names[name]
        said, freed, after = collections.Counter(), [], collections.Counter()
        for segments in range(24, 49, 2 if call in CALLS else 6):
            mount(kind)
            try:
                result, space, then = one(call, kind, segments)
            finally:
                unmount()
            said[result] += 1
            freed.append(space)
            after.update(then)
        print(
            f"{kind:12} {name:26} {dict(said)}; freed at most"
            f" {max(f[0] for f in freed)} bytes, {max(f[1] for f in freed)} inodes;"
            f" {dict(after)}",
            flush=True,
        )
        if call not in MAY_FAIL and set(said) != {"done"}:
            wrong[kind, name] += sum(said.values()) - said["done"]
shutil.rmtree(work, ignore_errors=True)
print(f"WRONG {dict(wrong)}" if wrong else "OK")
sys.exit(bool(wrong))
