"""Like r06, and the process is killed before the first append: the empty partition was
[0, 0) and begins at 70 after the next opening.

Usage: python r09_recreated_topic_killed.py
"""

import logging
import os
import signal
import tempfile

from common import end, recreated

import logstore

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "store")
child = os.fork()
if not child:
    store, log = recreated(path)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with logstore.open(path) as store:
    log = store["t"][0]
    found = (log.start_offset, log.end_offset, log.append(b"first"))
end(
    ""
    if found == (0, 0, 0)
    else f"start, end and the offset of the first append are {found}"
)
