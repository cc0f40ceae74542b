"""The columns of a topic in Arrow."""

from __future__ import annotations

import pytest

import logstore
from support.arrow import pa

columns = pytest.importorskip("logstore.log.frames.columns")


@pytest.mark.parametrize("counts", [(3, 5, 2), (1, 0, 1), (5,)])
def test_each_batch_gets_topic_and_partition_in_all_rows(
    counts: tuple[int, ...],
) -> None:
    """A batch may be longer than the ones before."""
    schema = columns.schema_of(("value", "partition", "topic"))
    source = columns.SourceColumns(schema, "orders", 7)
    for count in counts:
        values = [b"%d" % number for number in range(count)]
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        found = source.add(batch)
        assert found.schema == schema
        assert found.to_pydict() == {
            "value": values,
            "partition": [7] * count,
            "topic": ["orders"] * count,
        }


def test_columns_are_known_names_each_once() -> None:
    assert columns.check_columns(["key", "offset"]) == ("key", "offset")
    for wrong in ([], ["key", "key"], ["keys"]):
        with pytest.raises(logstore.ConfigError):
            columns.check_columns(wrong)
    with pytest.raises(TypeError, match="columns is a str"):
        columns.check_columns("key")
