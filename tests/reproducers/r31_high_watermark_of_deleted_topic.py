"""A broker's topic with a high watermark is deleted and created again, empty. After a
clean close, the checkpoint still has the high watermark of the deleted topic, above the
end of the log.

Usage: python r31_high_watermark_of_deleted_topic.py
"""

import logging
import pathlib

from common import end
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)
path = directory({0: rows(0, 80)}, clean_end=80)
file = pathlib.Path(path, "replication-offset-checkpoint")
file.write_text("0\n1\nt 0 80\n")
with logstore.open(path) as store:
    store.delete_topic("t")
    store.create_topic("t")
text = file.read_text().split()
end(
    ""
    if text[2:] in (["t", "0", "0"], [])
    else f"the log ends at 0, the high watermark is {text[-1]}"
)
