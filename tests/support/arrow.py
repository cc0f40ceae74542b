"""Helpers for tests of Arrow columns, which are skipped without pyarrow."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
arrow = pytest.importorskip("logstore.record.arrow")
batches = pytest.importorskip("logstore.record.arrow_batches")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW = 1_700_000_000_000
