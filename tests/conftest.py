"""Configuration of all tests: Hypothesis profiles, the head of the report, the levels,
and the distribution to processes."""

from __future__ import annotations

import gc
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support.levels import IS_ALL, LEVEL, chosen
from support.temporary import remove, use_memory

# Examples take longer on a busy machine; a deadline would only make flaky tests.
# LOGSTORE_HYPOTHESIS=thorough searches ten times as long.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("LOGSTORE_HYPOTHESIS", "default"))
# The sessions of tests are short: the time of Java's second compiler does not pay off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


# A shell starts background jobs with this signal ignored, and Python then raises no
# KeyboardInterrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# None: the files of the tests are on the disk, or another process began the run.
_MEMORY = use_memory()

_of_spark: dict[Path, bool] = {}


def pytest_report_header() -> list[str]:
    """Name the tested build of the C core (see `make sanitize`), and the level."""
    level = f"level: {LEVEL}" + ("" if IS_ALL else "; `make test-all` runs everything")
    try:
        from logstore._native import _ls
    except ImportError as error:
        return [f"C core: cannot be imported: {error}", level]
    return [f"C core: {os.path.relpath(_ls.__file__)}", level]


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect tests that the level has no time for. Files with tests of Spark come
    first: several processes share the others meanwhile."""
    if not IS_ALL:
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]
    items.sort(key=lambda item: not _is_of_spark(item.path))


def _is_of_spark(path: Path) -> bool:
    """Whether a file has tests that start Spark."""
    if path not in _of_spark:
        _of_spark[path] = "pytest.mark.spark" in path.read_text("utf-8")
    return _of_spark[path]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Group tests for the same process: tests of a file, as fixtures of a module are
    made once in each process; and all files with tests of Spark, which takes all cores
    and most of the memory."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return "spark" if _is_of_spark(config.rootpath / file) else file

    return ByFile(config, log)


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests marked `thorough`, and `sampled` ones except for the given number."""
    found = [item for item in items if item.get_closest_marker("thorough")]
    sampled: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None and item.get_closest_marker("thorough") is None:
            function = item.nodeid.partition("[")[0]
            sampled[function, marker.args[0]].append(item)
    for (_, count), cases in sampled.items():
        kept = chosen([item.nodeid for item in cases], count)
        found += [item for item in cases if item.nodeid not in kept]
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the files of a failed run until the next one."""
    if _MEMORY is not None and not session.testsfailed:
        remove(_MEMORY)


def pytest_collection_finish() -> None:
    """Exclude thousands of collected tests from each ``gc.collect()``."""
    _set_aside()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude the modules that the tests of a file have imported."""
    if nextitem is None or nextitem.path != item.path:
        _set_aside()


def _set_aside() -> None:
    """Exclude all live objects from later collections."""
    gc.collect()
    gc.freeze()
