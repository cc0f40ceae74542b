"""Checks against the store before a query runs: the path, the topics, and the
partitions that offsets are given for.

Spark creates a source's reader when a query runs: an error found there is a failed
query. An error found here is raised by `load()`.
"""

from __future__ import annotations

import os

from pyspark_logstore.option_values import refuse
from pyspark_logstore.read.offsets import check_names
from pyspark_logstore.read.options import SourceOptions
from pyspark_logstore.stores import OpenStore

__all__ = ["check_source"]


def check_source(
    options: SourceOptions, *, streaming: bool | None, directory: str = ""
) -> None:
    """Raise unless a query with these options has something to read.

    A stream continues from its checkpoint, so its options may be out of date: they may
    name a deleted topic, with ``failOnDataLoss=false``, or start offsets from before a
    partition was added. The query checks these: it knows its start.

    Args:
        streaming: whether for ``readStream``; None if unknown.
        directory: base of relative paths; "" for the directory of this process.

    Raises:
        StoreNotFoundError: there is no store at the path.
        ConfigError: a topic or a partition given by name does not exist; ``stateDir``
            does not.
        StorageError: the store cannot be read.
    """
    opened = OpenStore(os.path.abspath(os.path.join(directory, options.path)))
    try:
        if streaming is False or options.fail_on_data_loss:
            names = opened.check_selected(options.selection)
            if streaming is False:
                check_names(options.start, names)
                check_names(options.end, names)
    finally:
        opened.store.close()
    state = os.path.join(directory, options.state_dir)
    if options.state_dir and not os.path.isdir(state):
        refuse("stateDir", options.state_dir, "there is no such directory")
