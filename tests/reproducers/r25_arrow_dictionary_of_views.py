"""`append_arrow` of a column that Polars makes of a Categorical (a dictionary of
string_view) raises an error of Arrow's without a name of the column, instead of taking
it or refusing it by name.

Needs pyarrow.

Usage: python r25_arrow_dictionary_of_views.py
"""

import logging
import os
import tempfile

import pyarrow as pa
from common import end

import logstore

logging.disable(logging.CRITICAL)
table = pa.table(
    {
        "value": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())
        )
    }
)
with logstore.open(os.path.join(tempfile.mkdtemp(), "store")) as store:
    try:
        store.create_topic("t")[0].append_arrow(table)
        end(
            ""
            if [r.value for r in store["t"][0].read()] == [b"a", b"b", b"a"]
            else "other values"
        )
    except (logstore.LogStoreError, TypeError):
        end("")
    except Exception as error:
        end(f"{type(error).__name__}: {error}")
