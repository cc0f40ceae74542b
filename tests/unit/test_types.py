"""The public names: few at the root, the others in modules, and moved names."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

import logstore

MODULES = [logstore.errors, logstore.types, logstore.kafka, logstore.metrics]
# Names of filters, queues and the bucket.
RESERVED = {
    *("Queue", "Delivery", "delete_queue", "where", "export_table", "schemas"),
    *("Standby", "restore", "promote", "sweep", "send", "receive"),
}
MOVED = sorted(logstore._MOVED)


def test_root_is_learned_in_a_day() -> None:
    """There are at most 60 names including reserved ones, and no others."""
    assert len({*logstore.__all__, *RESERVED}) <= 60
    shown = {name for name in dir(logstore) if not name.startswith("__")}
    assert shown == set(logstore.__all__)


def test_no_name_is_at_the_root_that_is_not_public() -> None:
    """Except for names reserved by Python and this package, in a fresh process."""
    code = """
import logstore, types
for name in logstore.__all__: getattr(logstore, name)
print(sorted(
    name for name, value in vars(logstore).items()
    if name[0] != "_" and name not in logstore.__all__
    and not isinstance(value, types.ModuleType)
))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_star_import_gives_the_public_names() -> None:
    """There is no warning."""
    code = "from logstore import *; print(len([n for n in dir() if n[0] != '_']))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(logstore.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_has_what_it_promises(module: ModuleType) -> None:
    """Each name has a docstring, and is in one module."""
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
    others = [one for one in MODULES if one is not module]
    for other in (*others, logstore):
        for name in set(module.__all__) & set(other.__all__):
            assert logstore in (module, other), (module, other, name)
            assert getattr(module, name) is not getattr(other, name) or (
                module is logstore.errors
            ), name


@pytest.mark.parametrize("name", MOVED)
def test_moved_name_is_given_with_a_warning(name: str) -> None:
    """The warning has the present place, and the line that used the name."""
    home, inner = logstore._MOVED[name]
    place = f"logstore.{home}.{inner}"
    with pytest.warns(DeprecationWarning, match=f"logstore.{name} is {place} now") as w:
        value = getattr(logstore, name)
    assert value is getattr(getattr(logstore, home), inner)
    assert [one.filename for one in w] == [__file__]
    assert name not in logstore.__all__
    assert name not in dir(logstore)
    # It comes again at the next use, at any place.
    with pytest.warns(DeprecationWarning, match=place):
        getattr(logstore, name)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("logstore.maintenance.verify.report", "Problem", logstore.types.VerifyProblem),
        ("logstore.maintenance.verify.report", "Note", logstore.types.VerifyNote),
        ("logstore.log.retention", "Deletion", logstore.types.SegmentDeletion),
        ("logstore.group.overview", "Group", logstore.types.ConsumerGroup),
        ("logstore.group.overview", "Groups", logstore.types.ConsumerGroups),
    ],
)
def test_pickles_of_renamed_classes_are_read(module: str, old: str, new: type) -> None:
    """They have the name of the class in 0.1."""
    assert pickle.loads(f"c{module}\n{old}\n.".encode()) is new
