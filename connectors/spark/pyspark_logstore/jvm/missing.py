"""`MissingReader`: says why a session does not have the format ``logstore-jvm``."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource

from pyspark_logstore.jvm import FORMAT_OF_JAVA, NOT_BUILT, ONLY_READS, jar_path

__all__ = ["MissingReader"]


class MissingReader(DataSource):
    """Stands in for the reader in Java, under its name, in a session without it. Every
    call raises `ConfigError`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT_OF_JAVA

    def schema(self) -> Any:
        """Called by `load()` without a schema."""
        _refuse(_why())

    def reader(self, schema: Any) -> Any:
        """Called by ``spark.read``."""
        _refuse(_why())

    def streamReader(self, schema: Any) -> Any:
        """Called by ``spark.readStream``."""
        _refuse(_why())

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Called by ``df.write``."""
        _refuse(ONLY_READS)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Called by ``df.writeStream``."""
        _refuse(ONLY_READS)


def _why() -> str:
    jar = jar_path()
    if jar is None:
        return NOT_BUILT
    return (
        f"this session does not have the reader in Java; call "
        f"logstore.spark.register(spark), or start Spark with --jars {jar}"
    )


def _refuse(why: str) -> NoReturn:
    # Imported here: the Spark process that only looks up names does not need it.
    from pyspark_logstore.option_values import refuse

    refuse("format", FORMAT_OF_JAVA, why)
