"""What all tests share: Hypothesis profiles and the head of the report."""

from __future__ import annotations

import os

import hypothesis
import pytest

# Examples take as long as the machine is busy; a deadline would only make flaky tests.
# LOGSTORE_HYPOTHESIS=thorough searches ten times as long.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("LOGSTORE_HYPOTHESIS", "default"))


def pytest_report_header() -> str:
    """Tell which build of the C core is tested (see `make sanitize`)."""
    try:
        from logstore._native import _ls
    except ImportError as error:
        return f"C core: cannot be imported: {error}"
    return f"C core: {os.path.relpath(_ls.__file__)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests: which tests stay together.

    Those of a file do, as fixtures of a module are made once in each process; and all
    that start Spark, which takes all cores and most of the memory. That group is the
    longest and begins first.
    """
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    for item in items:
        is_spark = item.get_closest_marker("spark") is not None
        group = "spark" if is_spark else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
