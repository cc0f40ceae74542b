"""A fork while another thread holds the lock of the store (create_topic, delete_topic,
recover): the child that leaves `with logstore.open(...)`, or calls close(), waits for
ever for a lock whose holder does not exist there.

Usage: python a13_fork_close_hangs.py
"""

import os
import signal
import tempfile
import threading
import time

import logstore

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    store.create_topic("t")
    begun, forked = threading.Event(), threading.Event()

    def busy():
        begun.set()
        for number in range(50):
            store.create_topic(f"u{number}", 300)
            if forked.is_set():
                break

    thread = threading.Thread(target=busy)
    thread.start()
    begun.wait()
    hung = 0
    for _ in range(8):
        time.sleep(0.05)
        child = os.fork()
        if child == 0:
            store.close()  # as leaving the `with` of the parent's code does
            os._exit(0)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                break
            time.sleep(0.02)
        else:
            hung += 1
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    forked.set()
    thread.join()
print(f"{hung} of 8 children hung in close()")
print("WRONG" if hung else "OK")
raise SystemExit(bool(hung))
