"""The pages of docs/ against the code: labels, errors, settings, names.

Code blocks of README and guide are run by test_pages.py, blocks of the Spark page with
the connector's tests.

test_format_doc.py tests docs/format.md, except for the chapters on logstore's own
files: their examples are decoded here, and their tables are compared with files that a
store has just written.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import xxhash

import logstore
from logstore import errors
from logstore.config import from_stored, to_stored
from logstore.group import errors as group_errors
from logstore.io.checkpoint import recovery_report as recovery
from logstore.maintenance.repair import report as repair_report

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "src" / "logstore"
REPAIR = SOURCES / "maintenance" / "repair"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
NAME = operator.attrgetter("name")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str, head: str) -> Iterator[list[str]]:
    """The rows of the tables whose first column has this head."""
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if cells[0] == head:
            inside = True
        elif inside and not set(line) <= set("|- "):
            yield cells


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def chapter(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"no heading {heading!r}"
    return found[1]


# ------------------------------------------------------------ design: recovery's labels

LABELS = {
    value
    for name, value in vars(recovery).items()
    if name.isupper() and isinstance(value, str) and re.fullmatch(r"[a-z-]{4,}", value)
}


def labels_in_table(heading: str) -> list[str]:
    text = chapter(page("design.md"), heading)
    return [label for cells in rows(text, "label") for label in in_code(cells[0])]


def test_recovery_table_has_the_labels_of_the_code() -> None:
    """The table has each label that recovery can report, and no other."""
    assert len(LABELS) >= 12
    assert sorted(labels_in_table("## Recovery")) == sorted(LABELS)


def test_repair_tables_have_the_labels_of_the_code() -> None:
    """Labels of `RepairAction` in the design, on the command's page and in its
    docstring; each is reported by some module."""
    labels = {
        name: value
        for name, value in vars(repair_report).items()
        if name.isupper() and isinstance(value, str)
    }
    assert len(labels) == 13
    wanted = sorted(labels.values())
    assert sorted(labels_in_table("## Repair")) == wanted
    listed = rows(chapter(page("cli.md"), "## `repair`"), "label of an action")
    assert sorted(one for cells in listed for one in in_code(cells[0])) == wanted
    told = set(re.findall(r"``([a-z-]+)``", repair_report.RepairAction.__doc__ or ""))
    assert set(wanted) <= told
    text = "".join(path.read_text() for path in REPAIR.glob("*.py"))
    for name in labels:
        assert len(re.findall(rf"\b{name}\b", text)) > 2, name


def test_every_label_is_used_in_the_code() -> None:
    """A label that is no longer reported is not documented."""
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    for name, value in vars(recovery).items():
        if name.isupper() and isinstance(value, str) and value in LABELS:
            assert len(re.findall(rf"\b{name}\b", text)) > 1, name


def test_operations_says_what_to_do_about_each_label() -> None:
    """Every label of a report is in the table."""
    listed = [in_code(cells[0]) for cells in rows(page("operations.md"), "label")]
    assert sorted(label for labels in listed for label in labels) == sorted(LABELS)


# ------------------------------------------------------------------- operations: errors

ERRORS = {
    name: value
    for name, value in {**vars(errors), **vars(group_errors)}.items()
    if inspect.isclass(value) and issubclass(value, errors.LogStoreError)
}


def test_operations_has_an_entry_for_each_error() -> None:
    """Every exception of logstore.errors has an entry with its meaning and remedy."""
    text = chapter(page("operations.md"), "## Errors")
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == sorted(ERRORS)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_entry_names_the_facts_and_the_built_in_base(name: str) -> None:
    """The attributes of an exception are named, and the built-in base class."""
    kind = ERRORS[name]
    entry = chapter(page("operations.md"), f"### `{name}`")
    words = set(in_code(entry))
    made = "__init__" in vars(kind)
    parameters = inspect.signature(kind).parameters.values() if made else ()
    facts = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    # `path` of a StorageError is its `filename`, as in OSError.
    facts = {"filename" if (name, f) == ("StorageError", "path") else f for f in facts}
    inherited = {"path", "position", "reason", "message"}
    if kind is not errors.CorruptionError and issubclass(kind, errors.CorruptionError):
        facts -= inherited
    assert facts <= words
    built_in = [
        base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"
    ]
    assert set(built_in) - {"Exception"} <= words


def log_messages() -> set[str]:
    """The messages that the library logs, unformatted."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
            ):
                found.add(ast.literal_eval(node.args[0]))
    return found


def test_operations_has_each_log_message() -> None:
    """Every message that the library logs is in the table."""
    listed = {in_code(cells[1])[0] for cells in rows(page("operations.md"), "level")}
    assert listed == log_messages()


# ------------------------------------------------------------------- settings, glossary


@pytest.mark.parametrize("kind", [logstore.StoreConfig, logstore.TopicConfig])
def test_setting_is_explained_in_its_docstring(kind: Any) -> None:
    """Each field is in the docstring, from which the reference is made."""
    text = inspect.getdoc(kind) or ""
    for field in dataclasses.fields(kind):
        assert re.search(rf"^    .*\b{field.name}\b.*:", text, re.MULTILINE), field.name


def number(text: str) -> int:
    """The number at the beginning of a cell: 10 000 records, 1 GiB, 7 days."""
    match = re.match(r"([0-9][0-9 ]*) ?(\w*)", text)
    assert match, text
    units = {"MiB": 1 << 20, "GiB": 1 << 30, "days": 86_400_000}
    return int(match[1].replace(" ", "")) * units.get(match[2], 1)


def test_defaults_in_durability_are_those_of_the_code() -> None:
    """The tables by setting name the real defaults."""
    settings = {
        field.name: field.default
        for kind in (logstore.StoreConfig, logstore.TopicConfig)
        for field in dataclasses.fields(kind)
    }
    seen = set()
    for cells in rows(page("durability.md"), "setting"):
        names = in_code(cells[0])
        shown = cells[1].split(", ")
        assert len(names) == len(shown)
        for name, text in zip(names, shown, strict=True):
            seen.add(name)
            value = settings[name]
            if isinstance(value, bool):
                assert text == ("on" if value else "off"), name
            elif isinstance(value, int) and value != -1:
                assert number(text) == value, name
            else:
                assert text == "none", name
    assert {f.name for f in dataclasses.fields(logstore.StoreConfig)} <= seen
    assert {"flush_messages", "flush_ms", "file_delete_delay_ms"} <= seen


# ------------------------------------------------------------------------- public names


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for dataclasses
    spec.loader.exec_module(module)
    return module


MAKE_API = load(DOCS / "make_api.py")


REFERENCE = MAKE_API.pages()
PUBLIC = [logstore, *(getattr(logstore, n) for n in MAKE_API.CHAPTERS["Modules"])]


def test_reference_has_every_public_name() -> None:
    """Each name of the public modules, once as a heading or as the title of a page; the
    errors with their module."""
    assert sorted(n for names in MAKE_API.CHAPTERS.values() for n in names) == sorted(
        logstore.__all__
    )
    named = [
        name
        for text in REFERENCE.values()
        for name in re.findall(r"^##?#? `(logstore\.[\w.]+)`$", text, re.MULTILINE)
    ]
    public = [
        f"{module.__name__}.{name}"
        for module in PUBLIC
        for name in module.__all__
        if module is not logstore or not name.endswith("Error")
    ]
    assert sorted(n for n in named if n in set(public)) == sorted(public)
    for page in ("api/Consumer.md", "api/aio-Store.md", "api/kafka.md"):
        assert page in REFERENCE
        assert f"({page})" in REFERENCE["api.md"] or page.startswith("api/aio-")


def test_reference_leaves_out_what_is_not_for_users() -> None:
    """Parameters with an underscore are left out: they are for tests."""
    assert not re.search(r"^ +_\w+:|[(,] ?_\w+:", "\n".join(REFERENCE.values()), re.M)


CLASSES = list(
    dict.fromkeys(
        value
        for module in PUBLIC
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name))
    )
)
MEMBERS = [
    pytest.param(kind, member, id=f"{kind.__module__}.{kind.__name__}.{member.name}")
    for kind in CLASSES
    for member in MAKE_API.members(kind)
]


@pytest.mark.parametrize("name", sorted(logstore.__all__))
def test_public_name_has_a_docstring(name: str) -> None:
    """Every class and function is explained."""
    value = getattr(logstore, name)
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert doc
    # Generated docstrings of dataclasses and named tuples do not count.
    assert not doc.startswith(f"{name}(")


@pytest.mark.parametrize(("kind", "member"), MEMBERS)
def test_public_member_has_a_docstring(kind: type, member: Any) -> None:
    """Every method and property is explained, or overrides one that is."""
    assert member.doc or MAKE_API.is_documented_above(kind, member)


# ----------------------------------------------------------------------- logstore's own

FORMAT = page("format.md")
OWN_FILES = {
    "owner": ".logstore-owner",
    "topics": ".logstore-topics",
    "topic": ".logstore-topic",
    "published": ".logstore-published",
    "publication": ".logstore-publication",
    "producers": ".logstore-producers",
    "partition": ".logstore-state",
    "damaged": ".logstore-damaged",
    "digest": ".logstore-digest-*",
}
STATE = re.compile(r"```state (\w+)\n(.*?)```\n```fields\n(.*?)```", re.DOTALL)
STATES = [pytest.param(*found, id=found[0]) for found in STATE.findall(FORMAT)]


def unpack(data: bytes) -> dict[str, Any]:
    """A state file, unpacked by the rules of docs/format.md."""
    head, body, *rest = data.split(b"\n")
    assert rest in ([b""], [])
    assert head == b"xxh64 " + xxhash.xxh64(body, seed=0).hexdigest().encode()
    value = json.loads(body)
    assert isinstance(value, dict)
    assert value["version"] in (1, 2, 3, 4)
    return value


def fields_of(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a state file in the form that the page shows."""
    if kind == "owner":
        prints = [
            f"{one['clean_shutdown']}/{one['recovery_points']}"
            for one in value["fingerprints"]
        ]
        return {**value, "fingerprints": " ".join(prints)}
    if kind == "topics":
        (config,) = [topic["config"] for topic in value["topics"].values()]
        named = [f"{n}*{topic['partitions']}" for n, topic in value["topics"].items()]
        return {**config, "version": value["version"], "topics": " ".join(named)}
    if kind == "topic":
        return {**value, "topic": f"{value['topic']}-{value['partition']}"}
    if kind == "digest":
        return value
    if kind == "damaged":
        return {**value["rows"][0], "version": value["version"]}
    if kind == "published":
        done = [f"{identity}={last}" for identity, last, *_ in value["published"]]
        return {**value, "published": " ".join(done)}
    if kind == "publication":
        bases = [f"{topic}-{n}@{base}" for topic, n, base in value["bases"]]
        done = [f"{identity}={last}" for identity, last, *_ in value["changes"]]
        return {**value, "bases": " ".join(bases), "changes": " ".join(done)}
    if kind == "producers":
        named = [f"{n}={epoch}@{ids[0]}" for n, epoch, ids in value["producers"]]
        return {**value, "producers": " ".join(named)}
    active = value["active"]
    sealed = [f"{base}-{end - 1}@{size}" for base, size, end, *_ in value["sealed"]]
    first, last = active["base_offset"], active["last_offset"]
    return {
        **active,
        "version": value["version"],
        "start_offset": value["start_offset"],
        "time_digest": value["time_digest"],
        "sealed": " ".join(sealed),
        "active": f"{first}-{last}@{active['size']}",
    }


@pytest.mark.parametrize(("kind", "block", "fields"), STATES)
def test_example_of_a_state_file_decodes(kind: str, block: str, fields: str) -> None:
    """The examples have right checksums, and their fields are the ones listed below
    them."""
    found = fields_of(kind, unpack(block.encode()))
    said = dict(line.split(": ", 1) for line in fields.splitlines())
    assert said == {name: str(found[name]) for name in said}


def test_every_state_file_has_an_example() -> None:
    """Each kind of state file has one example."""
    assert [kind for kind, _, _ in STATE.findall(FORMAT)] == list(OWN_FILES)


def field_names(value: Any, prefix: str = "") -> Iterator[str]:
    """``a``, ``b.c``, ``d[].e``: the names of fields in the tables."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}{name}"
            yield from field_names(inner, f"{prefix}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from field_names(inner, f"{prefix.removesuffix('.')}[].")


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several segments that was closed cleanly; afterwards a topic of it
    was damaged, and the damage was found."""
    root = tmp_path_factory.mktemp("docs") / "data"
    with logstore.open(root) as store:
        config = logstore.TopicConfig(segment_bytes=400, segment_digests=True)
        partition = store.create_topic("orders", config=config)[0]
        for n in range(25):
            partition.append(b"%d" % n)
        with store.stage("docs", 1) as stage:
            stage.append_many(partition, [b"published"])
            staged = [stage.finish()]
            store.publish(
                staged, identity="docs", sequence=1, metadata=b"docs", pinned=True
            )
        # The first entry: closing the store removes the file.
        name = ".logstore-publication"
        entry = b"\n".join((root / name).read_bytes().split(b"\n")[:2])
        (root.parent / name).write_bytes(entry)
        store.producer("docs")
        store.create_topic("damaged")[0].append(b"value")
    with next((root / "damaged-0").glob("*.log")).open("ab") as file:
        file.write(b"garbage")
    with logstore.open(root) as store:
        store.topic("damaged")[0]
    return root


@pytest.mark.parametrize("kind", OWN_FILES)
def test_tables_have_the_fields_that_are_written(kind: str, closed_store: Path) -> None:
    """All fields of a file that a store has just written are in its table, and the
    table has no others."""
    name = OWN_FILES[kind]
    path = next(closed_store.parent.rglob(name))
    text = chapter(FORMAT, f"### `{name}`")
    listed = {in_code(cells[0])[0] for cells in rows(text, "field")}
    written = set(field_names(unpack(path.read_bytes())))
    if kind == "topics":
        written = {re.sub(r"^topics\.\w+", "topics.*", f) for f in written}
        written -= {f for f in written if f.startswith("topics.*.config.")}
        listed |= {"topics.*"}
        # Steps of a creation and a deletion.
        written |= {"topics.*.creating", "topics.*.deleting"}
        # Of a topic that Kafka has used.
        written |= {"topics.*.kafka_id", "topics.*.message_format"}
    if kind == "partition":
        listed |= {"active"}
        # A log that was compacted, one during a swap, one after another program wrote,
        # and one that was cut often.
        written |= {"compactions", "swapping", "returns", "is_merged"}
    if kind == "publication":
        # An entry that was appended.
        written |= {"logs"}
    assert written == listed


def test_settings_that_a_topics_file_leaves_out_are_on_the_page(tmp_path: Path) -> None:
    """These defaults can never change: stores have been written without them."""
    text = chapter(FORMAT, "### `.logstore-topics`")
    left_out = {
        in_code(cells[0])[0]: json.loads(cells[1]) for cells in rows(text, "setting")
    }
    always = {"retention_ms": -1}
    assert to_stored(logstore.TopicConfig(**left_out)) == always
    assert from_stored({}).to_dict() == left_out
    other = dict.fromkeys(("flush_ms", "segment_ms", "retention_ms"), 1)
    assert to_stored(logstore.TopicConfig(**{**left_out, **other})) == other
    assert from_stored({**other, "of_a_later_version": 1}).to_dict() == {
        **left_out,
        **other,
    }


def test_backup_command_of_the_page_copies_a_running_store(tmp_path: Path) -> None:
    """The one command of the page, in a shell, while the store is in use."""
    (command,) = re.findall(
        r"```sh\n(.+)\n```", chapter(page("operations.md"), "## Backup")
    )
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    with logstore.open(tmp_path / "data") as store:
        config = logstore.TopicConfig(segment_bytes=400)
        partition = store.create_topic("orders", config=config)[0]
        partition.append_many([b"value"] * 100)
        subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            check=True,
            env={**os.environ, "PATH": places},
        )
        partition.append(b"later")
    with logstore.open(tmp_path / "backup") as backup:
        assert backup.topic("orders").config == config
        assert len(list(backup.topic("orders")[0].read())) == 100


# A program that ends without closing its store.
UNCLEAN_STOP = """
import logstore, os
partition = logstore.open("data").create_topic("t")[0]
partition.append(b"value")
partition.roll()
partition.append(b"value")
os._exit(0)
"""


def test_torn_tail_is_kept_under_the_name_on_the_page(tmp_path: Path) -> None:
    """`.logstore-torn-`, base offset, position; the bytes that were cut."""
    subprocess.run([sys.executable, "-c", UNCLEAN_STOP], cwd=tmp_path, check=True)
    (log,) = (tmp_path / "data").rglob(f"{1:020d}.log")
    position = log.stat().st_size
    log.write_bytes(log.read_bytes() + b"torn")
    with logstore.open(tmp_path / "data") as store:
        (action,) = store.recovery_report.actions
    name = re.search(r"`(\.logstore-torn-)(\d{20})(-)\d+` was cut from", FORMAT)
    assert name
    kept = log.with_name(f"{name[1]}{1:020d}{name[3]}{position}")
    assert action.kept_at == str(kept)
    assert kept.read_bytes() == b"torn"


# -------------------------------------------------------------------------------- links


def anchors(text: str) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


# These pages come from elsewhere; the tests pass without them.
WRITTEN_APART = {"cli.md", "spark.md", "benchmarks.md"}


@pytest.mark.parametrize("path", PAGES, ids=NAME)
def test_links_lead_somewhere(path: Path) -> None:
    """Links lead to existing files and to headings in them."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        if not linked.exists() and linked.name in WRITTEN_APART:
            continue
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("path", PAGES, ids=NAME)
def test_page_does_not_name_absolute_paths(path: Path) -> None:
    """Pages have no paths of the machine on which they were written."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|usr|var)/", text)


# ----------------------------------------------------------- walks through the code

WALKS = ("finding-a-record.md", "durable-append.md")


@pytest.mark.parametrize("name", WALKS)
def test_walk_names_what_is_in_the_code(name: str) -> None:
    """Each file, each class with its method, each function."""
    sources = [*SOURCES.rglob("*.py"), *SOURCES.rglob("*.c")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    spans = set(re.findall(r"`([^`]+)`", page(name))) - {"src/logstore/"}
    files = [span for span in spans if re.fullmatch(r"[\w/]+(\.py|\.c|/)", span)]
    assert len(files) >= 8
    for file in files:
        assert (SOURCES / file).exists(), file
    names = [span for span in spans if re.fullmatch(r"(?:[A-Z]\w+\.)?_?[a-z]\w*", span)]
    assert len(names) >= 10
    for one in names:
        owner, _, method = one.rpartition(".")
        assert re.search(rf"\b{method}\b", code), one
        if owner:
            found = re.search(rf"^class {owner}\b.*?(?=^class |\Z)", code, re.M | re.S)
            assert found, one
            assert re.search(rf"def {method}\b", found[0]), one
