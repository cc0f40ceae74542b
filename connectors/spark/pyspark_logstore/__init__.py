"""The Spark data source ``logstore``.

Spark looks for its sources in all top-level modules named ``pyspark_*``: it imports
them in a separate process and uses the class called `DefaultSource`. One module that
fails there hides the sources of all others, so this one never fails, and imports only
the source's name; other modules import the rest when they need it.
"""

import contextlib

__all__ = ["DefaultSource"]

with contextlib.suppress(ImportError):  # no pyspark, or one before 4.0
    from pyspark_logstore.source import DefaultSource
