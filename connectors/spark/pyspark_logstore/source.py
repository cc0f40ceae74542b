"""`DefaultSource`: gives Spark the schema, the readers and the writers.

A Spark process that only looks up names imports this module, so modules that need a
store or pyarrow are imported only by the code that uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source ``logstore``; see docs/spark.md."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore"

    def schema(self) -> Any:
        """The columns of Spark's Kafka source. Not called if the user gives a schema,
        which must be a selection of them.

        At `load()` Spark calls only this method, so it also checks the options, and
        that the store has the topics and partitions that they name.

        Raises:
            ConfigError: an option is invalid both in a batch query and in a stream, or
                names something that the store does not have.
            StoreNotFoundError: there is no store.
        """
        from pyspark_logstore.read.checks import check_source
        from pyspark_logstore.read.columns import source_schema
        from pyspark_logstore.read.options import check_reader, parse_any

        options, streaming = parse_any(self.options)
        check_reader(self.options)
        check_source(options, streaming=streaming)
        asked = str(self.options.get("includeHeaders", "")).strip().lower() == "true"
        return source_schema(include_headers=asked)

    def reader(self, schema: Any) -> Any:
        """Called by ``spark.read``.

        Raises:
            ConfigError: an option or the schema is invalid.
        """
        from pyspark_logstore.read.batch import BatchReader
        from pyspark_logstore.read.options import parse

        return BatchReader(schema, parse(self.options, streaming=False))

    def streamReader(self, schema: Any) -> Any:
        """Called by ``spark.readStream``.

        Raises:
            ConfigError: an option or the schema is invalid.
        """
        from pyspark_logstore.read.options import parse
        from pyspark_logstore.read.stream import StreamReader

        return StreamReader(schema, parse(self.options, streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Called by ``df.write``.

        Raises:
            ConfigError: an option, a column or the mode is invalid.
            TopicNotFoundError, StoreNotFoundError: it does not exist, and the options
                do not let it be created.
        """
        from pyspark_logstore.write.options import parse_sink
        from pyspark_logstore.write.writer import BatchWriter

        options = parse_sink(self.options, streaming=False)
        return BatchWriter(schema, options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Called by ``df.writeStream``.

        Raises:
            ConfigError: an option, a column or the mode is invalid.
            TopicNotFoundError, StoreNotFoundError: it does not exist, and the options
                do not let it be created.
        """
        from pyspark_logstore.write.options import parse_sink
        from pyspark_logstore.write.writer import StreamWriter

        options = parse_sink(self.options, streaming=True)
        return StreamWriter(schema, options, overwrite)
