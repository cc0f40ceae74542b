"""The reader in Java (``java/``): its jar, and the Python that it asks for plans and
for all that it does not decide itself.

A Spark process that only looks up names imports this module: it imports nothing.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["FORMAT_OF_JAVA", "JAR", "NOT_BUILT", "ONLY_READS", "jar_path"]

FORMAT_OF_JAVA: Final = "logstore-jvm"
JAR: Final = "logstore-jvm.jar"

# Why there is no reader in Java, and the command that builds it.
NOT_BUILT: Final = (
    "logstore was installed without the reader in Java, because no JDK or no "
    "Spark was found; `python -m logstore.spark` builds it, with a JDK 17 or "
    "later"
)

ONLY_READS: Final = "it only reads; write with the format logstore"


def jar_path() -> str | None:
    """The jar with the reader in Java, for ``--jars``, ``spark.jars`` or, with Spark
    Connect, `spark.addArtifact`. None if logstore was built without it: then
    ``python -m logstore.spark`` builds it."""
    path = os.path.join(os.path.dirname(__file__), JAR)
    return path if os.path.exists(path) else None
