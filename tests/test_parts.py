"""The limits that keep classes readable, and the table of the locks in the design.

A class with many attributes has states that its comments do not name: the parts of a
writer are small, each with its invariant, and use each other through public names.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore._native import locks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "logstore"
WRITERS = sorted((PACKAGE / "log" / "write").glob("*.py"))
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PARTS = DESIGN.partition("## The parts of a writer")[2].partition("\n## ")[0]

ATTRIBUTES_MAX = 15
METHODS_MAX = 30

# Private by name, and for all of the package, or of the language.
SHARED = {"_replace", "_fields", "_make"}


def classes_of(*paths: Path) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in paths
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef)
    }


MODULES = sorted(
    path
    for package in (PACKAGE, ROOT / "connectors" / "spark" / "pyspark_logstore")
    for path in package.rglob("*.py")
)
# Values and protocols have as many fields and methods as they need.
VALUES = {"NamedTuple", "Protocol", "TypedDict", "Enum", "IntFlag", "Exception"}
# `Files` has one method for each call of the system.
CALLS = {"Files"}
# Classes above the limits that are one thing, with the reason.
RULES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LARGE = {
    name
    for row in re.findall(r"^  \| (`[A-Z].*?) \|", RULES, re.MULTILINE)
    for name in re.findall("`(.+?)`", row)
}


def line_of(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """A class, and its base classes, if given."""
    found = classes.get(name)
    if found is not None:
        yield found
        for base in found.bases:
            yield from line_of(ast.unparse(base), classes)


def attributes(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Attributes assigned to `self` in a class, or declared as fields or slots."""
    found: set[str] = set()
    for one in line_of(name, classes):
        for node in ast.walk(one):
            match node:
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    found.add(name)
        for statement in one.body:
            match statement:
                case ast.AnnAssign(ast.Name(name)):
                    found.add(name)
                case ast.Assign([ast.Name("__slots__")], value):
                    found |= set(ast.literal_eval(value)) - {"__weakref__"}
    return found


def methods(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    return {
        node.name
        for one in line_of(name, classes)
        for node in one.body
        if isinstance(node, ast.FunctionDef)
    }


def is_value(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class is a plain value, an exception or a protocol."""
    bases = {ast.unparse(base) for one in line_of(name, classes) for base in one.bases}
    decorators = map(ast.unparse, classes[name].decorator_list)
    return bool(bases & VALUES) or any("dataclass" in text for text in decorators)


def is_small(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class is within the limits, including inherited members in the package:
    a subclass hides nothing."""
    sizes = len(attributes(name, classes)), len(methods(name, classes))
    return sizes[0] <= ATTRIBUTES_MAX and sizes[1] <= METHODS_MAX


def test_class_is_small_or_has_a_reason() -> None:
    """The list in CONTRIBUTING has the classes above the limits, and no others."""
    large, everywhere = set(), classes_of(*MODULES)
    for path in MODULES:
        own = classes_of(path)
        classes = everywhere | own  # some names occur twice
        large |= {
            name
            for name in own
            if name not in CALLS
            and not (is_value(name, classes) or is_small(name, classes))
        }
    assert large == LARGE


def dotted(node: ast.expr) -> str:
    """A name, or a name of a module's; "" for anything else."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""


def halves(trees: list[ast.Module]) -> dict[str, str]:
    """Each base with one subclass that is never instantiated itself, and the
    subclass."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = {one.name: one for one in nodes if isinstance(one, ast.ClassDef)}
    made = {dotted(one.func) for one in nodes if isinstance(one, ast.Call)}
    below: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                below.setdefault(base, []).append(node.name)
    return {
        base: subclasses[0]
        for base, subclasses in below.items()
        if base in classes and base not in made and len(subclasses) == 1
        if not is_value(base, classes)
    }


def test_base_of_one_class_is_used_by_itself() -> None:
    """Otherwise the two are one class in two files, or two parts of one thing. `Files`
    is a list of calls, in three files."""
    found = halves([ast.parse(path.read_bytes()) for path in MODULES])
    assert {base: name for base, name in found.items() if name not in CALLS} == {}


def test_half_of_a_class_is_found() -> None:
    """It has one subclass, and is never instantiated."""
    half = "class A: ...\nclass B(A): ...\nB()"
    assert halves([ast.parse(half)]) == {"A": "B"}
    assert halves([ast.parse(f"{half}\nA()")]) == {}
    assert halves([ast.parse(half), ast.parse("class C(A): ...")]) == {}


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: path.name)
def test_part_of_the_writer_uses_public_names_of_the_others(path: Path) -> None:
    """A private name belongs to one class, and is used through `self` alone."""
    used = {
        f"{ast.unparse(node)} in line {node.lineno}"
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
        and re.match("_[a-z]", node.attr)
        and node.attr not in SHARED
        and ast.unparse(node.value) != "self"
    }
    assert used == set()


def test_parts_of_the_writer_use_only_those_on_lower_lines() -> None:
    """docs/design.md shows the order; not in both directions, nor for types."""
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| [^|]+ \|$", PARTS, re.MULTILINE)
    level = {
        name: number
        for number, row in enumerate(rows)
        for name in re.findall("`(.+?)`", row)
    }
    faults, found = [], set()
    for path in WRITERS:
        tree = ast.parse(path.read_bytes())
        own = {getattr(node, "name", "") for node in tree.body} & level.keys()
        found |= own
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and "log.write" in (node.module or ""):
                used = {alias.name for alias in node.names} & level.keys()
                faults += [
                    f"{one} uses {other}"
                    for one, other in itertools.product(own, used)
                    if level[one] > level[other]
                ]
    assert found == level.keys()
    assert faults == []


def test_large_class_is_found() -> None:
    """A class counts even if its base has most of it."""
    text = "class A:\n  def __init__(self):\n"
    text += "".join(f"    self.a{n}, self.b{n} = 0, 0\n" for n in range(8))
    text += "".join(f"  def m{n}(self): pass\n" for n in range(20))
    text += "class B(A):\n"
    text += "".join(f"  def n{n}(self): self.c: int = 0\n" for n in range(10))
    classes = {one.name: one for one in ast.parse(text).body}  # type: ignore[attr-defined]
    assert len(attributes("B", classes)) == 17
    assert len(methods("B", classes)) == 31


# ------------------------------------------------------------------ the order of locks

ROW = re.compile(r"\| (\d+) `([A-Z]+)` \| ([^|]+) \|")


def locks_in(path: Path) -> Iterator[tuple[str, str]]:
    """(rank, ``Class.attribute`` or ``module.name``) of the locks made in a module."""
    tree = ast.parse(path.read_bytes())
    for outer in tree.body:
        owner = outer.name if isinstance(outer, ast.ClassDef) else path.stem
        for node in ast.walk(outer):
            match node:
                case ast.Assign(
                    [target], ast.Call(ast.Attribute(_, "Mutex" | "Turns"), args)
                ):
                    name = ast.unparse(target).removeprefix("self.")
                    rank = ast.unparse(args[0]).removeprefix("RANK_")
                    yield rank, f"{owner}.{name}"


def test_table_of_the_locks_is_that_of_the_code() -> None:
    """The ranks, their order, and the locks of each rank."""
    rows = ROW.findall(DESIGN)
    ranks = {
        name.removeprefix("RANK_"): rank
        for name, rank in vars(locks).items()
        if name.startswith("RANK_")
    }
    assert [(name, int(rank)) for rank, name, _ in rows] == list(ranks.items())
    told = {
        (name, one) for _, name, text in rows for one in re.findall("`(.+?)`", text)
    }
    assert told == {one for path in PACKAGE.rglob("*.py") for one in locks_in(path)}
