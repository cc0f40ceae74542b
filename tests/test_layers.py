"""Who may import whom, and who may touch files: the rules of CONTRIBUTING.md as data.

A new module needs one line: its name in `LAYERS`. Modules in a package inside logstore
(`logstore.cli.main`) have the layer of that package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "logstore"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_native", "errors"),
    (
        "_binding",
        "arguments",
        "config",
        "extras",
        "layout",
        "records",
        "recovery_report",
    ),
    ("locks",),
    ("_files", "compression", "cuts", "index", "parallel", "partitioners"),
    (
        "decoding",
        "checkpoints",
        "descriptors",
        "housekeeper",
        "locking",
        "place",
    ),
    (
        "arrow",
        "arrow_routing",
        "partition_state",
        "background_retention",
        "batches",
        "digests",
        "encoder",
    ),
    ("segment", "producer_batches", "staging"),
    ("resync", "tail", "view"),
    ("segment_writer", "reader", "index_rebuild", "survey", "retention"),
    (
        "producers",
        "catalog",
        "loading",
        "marks",
        "adoption",
        "frames",
    ),
    ("publications", "log_files", "leader_epochs"),
    ("live", "log_writer"),
    ("writer",),
    ("partition", "partition_writers", "publishing", "measures"),
    ("merging", "routing", "topic"),
    ("store",),
    ("verify", "diagnosis"),
    ("repair", "reporting", "metrics"),
    ("_public",),
    ("cli", "spark"),
    ("__main__",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

NATIVE_IMPORTERS = {"_native", "_binding"}
PUBLIC_NAMES_ONLY = {"cli", "spark"}

# Modules that may open files themselves: the seam, and those that also handle files
# which are no store's (the output of an export, a report). `_native` has the build
# script.
FILE_USERS = {"_native", "_files", "cli", "reporting"}
# What the others may take from `os`: nothing of it looks at a file.
OS_PURE = {
    "PathLike",
    "cpu_count",
    "environ",
    "fsdecode",
    "fsencode",
    "fspath",
    "getpid",
    "register_at_fork",
    "sched_getaffinity",
    "sep",
    "strerror",
    "urandom",
}
OS_PATH_PURE = {
    "abspath",
    "basename",
    "commonpath",
    "dirname",
    "isabs",
    "join",
    "normpath",
    "relpath",
    "split",
    "splitext",
}
FILE_MODULES = {"fcntl", "glob", "mmap", "shutil", "tempfile"}
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "iterdir"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a logstore module: `target` is "" for the package itself."""

    target: str
    names: tuple[str, ...]
    line: int
    in_function: bool


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module of the package; `unit` is the name that has a layer."""

    path: str
    dotted: tuple[str, ...]  # without "logstore", without "__init__"
    is_package: bool
    tree: ast.Module

    @property
    def unit(self) -> str:
        return self.dotted[0] if self.dotted else ""


def load(package: Path = PACKAGE) -> list[Module]:
    modules = []
    for path in sorted(package.rglob("*.py")):
        dotted = path.relative_to(package).with_suffix("").parts
        is_package = dotted[-1] == "__init__"
        tree = ast.parse(path.read_bytes())
        name = path.relative_to(package).as_posix()
        dotted = dotted[:-1] if is_package else dotted
        modules.append(Module(name, dotted, is_package, tree))
    return modules


# Without the package's own __init__, which gathers the public names of all layers.
MODULES = [module for module in load() if module.dotted]
UNITS = {module.unit for module in MODULES}


def nodes(tree: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below `tree`, each with whether it stands inside a function."""
    for child in ast.iter_child_nodes(tree):
        yield child, in_function
        inside = in_function or isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef
        )
        yield from nodes(child, inside)


def imports(module: Module, units: set[str] = UNITS) -> Iterator[Import]:
    """The imports of logstore's own modules, absolute or relative."""
    for node, inside in nodes(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == "logstore":
                    yield Import(".".join(rest), (), node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                here = ("logstore", *module.dotted)
                up = node.level - (1 if module.is_package else 0)
                base = here[: len(here) - up]
                dotted = (*base, *(node.module.split(".") if node.module else ()))
            else:
                dotted = tuple((node.module or "").split("."))
            if dotted[0] != "logstore":
                continue
            rest = dotted[1:]
            names = tuple(alias.name for alias in node.names)
            if rest:
                yield Import(".".join(rest), names, node.lineno, inside)
                continue
            for name in names:  # from logstore import segment, Store
                target, taken = (name, ()) if name in units else ("", (name,))
                yield Import(target, taken, node.lineno, inside)


def import_faults(module: Module, units: set[str] = UNITS) -> list[str]:
    """What is wrong with the imports of `module`, a sentence each."""
    faults = []
    docstring = ast.get_docstring(module.tree) or ""
    for found in imports(module, units):
        where = f"{module.path}:{found.line}"
        other = found.target.split(".")[0]
        if other == module.unit:
            continue
        if found.in_function:
            faults.append(f"{where}: imports logstore.{other} inside a function")
        if other == "_native" and module.unit not in NATIVE_IMPORTERS:
            faults.append(f"{where}: only _binding imports _native")
        if not other:
            if module.unit not in PUBLIC_NAMES_ONLY:
                faults.append(f"{where}: imports the package it is a part of")
        elif module.unit in PUBLIC_NAMES_ONLY:
            faults.append(f"{where}: uses logstore.{other}, not public names alone")
        elif other in LAYER and LAYER[other] > LAYER[module.unit]:
            faults.append(
                f"{where}: imports upward, {other} (layer {LAYER[other]}) from "
                f"{module.unit} (layer {LAYER[module.unit]})"
            )
        elif (
            other in LAYER
            and LAYER[other] == LAYER[module.unit]
            and not re.search(rf"\b{other}\b", docstring)
        ):
            faults.append(
                f"{where}: imports {other} beside it, which its docstring must say"
            )
    return faults


def file_faults(module: Module) -> list[str]:
    """Where `module` goes around `_files`, a sentence each."""
    faults = []
    for node, _ in nodes(module.tree):
        bad = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                bad = "open()"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr not in {*OS_PURE, "path"}:
                bad = f"os.{node.attr}"
            elif owner == "os.path" and node.attr not in OS_PATH_PURE:
                bad = f"os.path.{node.attr}"
            elif (owner, node.attr) == ("io", "open") or node.attr in PATH_METHODS:
                bad = f"{owner}.{node.attr}"
        elif isinstance(node, ast.Import):
            taken = {alias.name.split(".")[0] for alias in node.names} & FILE_MODULES
            bad = f"import {', '.join(sorted(taken))}" if taken else None
        elif isinstance(node, ast.ImportFrom) and not node.level:
            allowed = {"os": OS_PURE, "os.path": OS_PATH_PURE}.get(node.module or "")
            names = {alias.name for alias in node.names}
            if node.module in FILE_MODULES or (
                allowed is not None and not names <= allowed
            ):
                bad = f"from {node.module} import {', '.join(sorted(names))}"
        if bad:
            faults.append(f"{module.path}:{node.lineno}: {bad} goes around _files")
    return faults


# ------------------------------------------------------------------ the package itself

HOW_TO_ADD = "add it to LAYERS in tests/test_layers.py and to the table in CONTRIBUTING"


def test_every_module_has_a_layer() -> None:
    """A module that no layer knows is a decision nobody has taken yet."""
    unknown = sorted(UNITS - LAYER.keys())
    assert not unknown, f"{', '.join(unknown)} has no layer: {HOW_TO_ADD}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_module_imports_only_from_lower_layers(module: Module) -> None:
    """Strictly lower, or beside as the docstring says, and at the top of the file."""
    if module.unit not in LAYER:
        pytest.fail(f"{module.unit} has no layer: {HOW_TO_ADD}")
    assert import_faults(module) == []


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.unit not in FILE_USERS],
    ids=lambda module: module.path,
)
def test_module_touches_files_only_through_the_seam(module: Module) -> None:
    """System calls on a store go through `_files`, where tests can replace them."""
    assert file_faults(module) == []


# ------------------------------------------------------------------- the checks fail

BAD_IMPORTS = {
    "upward": ("segment", "from logstore.store import Store"),
    "upward-submodule": ("segment", "from logstore import store"),
    "upward-relative": ("segment", "from .store import Store"),
    "upward-plain": ("segment", "import logstore.store"),
    "upward-typing": (
        "segment",
        "if TYPE_CHECKING:\n    from logstore.store import Store",
    ),
    "beside-unsaid": ("index", "from logstore import compression"),
    "native": ("records", "from logstore._native import _ls"),
    "inside": ("segment", "def f():\n    from logstore import index"),
    "inside-method": (
        "segment",
        "class A:\n    def f(self):\n        from . import index",
    ),
    "whole-package": ("segment", "import logstore"),
    "facade": ("segment", "from logstore import Store"),
    "cli-internals": ("cli", "from logstore.segment import Segment"),
}
GOOD_IMPORTS = {
    "lower": ("segment", "from logstore import index, _files"),
    "lower-relative": ("segment", "from .index import OffsetIndex"),
    "beside-said": (
        "index",
        '"""Uses compression beside it."""\nfrom . import compression',
    ),
    "binding": ("_binding", "from logstore._native import _ls"),
    "cli-public": ("cli", "import logstore\nfrom logstore import Store"),
    "optional": ("arrow", "def f():\n    import pyarrow"),
}
BAD_FILE_USE = {
    "open": "open('x')",
    "os": "import os\nos.pread(3, 1, 0)",
    "os-exists": "import os\nos.path.exists('x')",
    "os-from": "from os import rename",
    "mmap": "import mmap",
    "shutil": "from shutil import rmtree",
    "pathlib": "Path('x').read_bytes()",
}
GOOD_FILE_USE = {
    "pure": "import os\nos.path.join(os.fspath('a'), 'b')",
    "method": "files.open('x')\nself.files.rename('a', 'b')",
    "environ": "from os import environ",
}


def invented(unit: str, source: str) -> Module:
    return Module(f"{unit}.py", (unit,), False, ast.parse(source))


@pytest.mark.parametrize(("unit", "source"), BAD_IMPORTS.values(), ids=BAD_IMPORTS)
def test_bad_import_is_found(unit: str, source: str) -> None:
    """Each way around the layers is noticed."""
    assert import_faults(invented(unit, source), set(LAYER))


@pytest.mark.parametrize(("unit", "source"), GOOD_IMPORTS.values(), ids=GOOD_IMPORTS)
def test_good_import_is_accepted(unit: str, source: str) -> None:
    """What the rules allow is not complained about."""
    assert import_faults(invented(unit, source), set(LAYER)) == []


@pytest.mark.parametrize("source", BAD_FILE_USE.values(), ids=BAD_FILE_USE)
def test_file_use_beside_the_seam_is_found(source: str) -> None:
    """Each way around `_files` is noticed."""
    assert file_faults(invented("segment", source))


@pytest.mark.parametrize("source", GOOD_FILE_USE.values(), ids=GOOD_FILE_USE)
def test_use_of_the_seam_is_accepted(source: str) -> None:
    """Pure functions of `os` and the seam's own methods are not complained about."""
    assert file_faults(invented("segment", source)) == []
