"""What the reader in Java (connectors/spark/java) asks for: plans, and all that it does
not decide itself."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["JAR", "jar_path"]

JAR: Final = "logstore-jvm.jar"


def jar_path() -> str | None:
    """The jar with the reader in Java, for ``spark.jars``, ``--jars`` or, with Spark
    Connect, `spark.addArtifact`. None if logstore was built without it: install a JDK
    (17 or later) and pyspark, and then logstore from its sources, with
    ``pip install --no-build-isolation``."""
    path = os.path.join(os.path.dirname(__file__), JAR)
    return path if os.path.exists(path) else None
