"""The name ``logstore-jvm`` for sessions without the reader in Java.

Spark takes one source, `DefaultSource`, from each top-level module named ``pyspark_*``.
A format in Java of the same name goes before it. As in `pyspark_logstore`, this module
never fails to import, since that would hide the sources of all others.
"""

import contextlib

__all__ = ["DefaultSource"]

with contextlib.suppress(ImportError):  # no pyspark, or one before 4.0
    from pyspark_logstore.jvm.missing import MissingReader as DefaultSource
