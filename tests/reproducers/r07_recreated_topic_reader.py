"""Like r06: a reader and the writer disagree about the start and the end of the new,
empty partition.

Usage: python r07_recreated_topic_reader.py
"""

import logging
import os
import tempfile

from common import end, recreated

import logstore

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "store")
store, log = recreated(path)
mine = (log.start_offset, log.end_offset)
with logstore.open(path, read_only=True) as other:
    theirs = (other["t"][0].start_offset, other["t"][0].end_offset)
store.close()
end("" if mine == theirs else f"the writer says {mine}, a reader {theirs}")
