"""The Spark data source ``logstore``.

Spark looks for its sources in all top-level modules named ``pyspark_*``: it imports
them in a process of its own and takes the class called `DefaultSource`. One module that
fails there hides the sources of all others, so this one never does, and brings in only
what tells the source's name; the rest is imported where it is used.
"""

import contextlib

__all__ = ["DefaultSource"]

with contextlib.suppress(ImportError):  # no pyspark, or one before 4.0
    from pyspark_logstore.source import DefaultSource
