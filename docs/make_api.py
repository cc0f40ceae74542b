"""Writes docs/api.md and docs/api/*.md, the reference of the public names, from their
docstrings.

docs/conf.py generates the pages whenever the site is built. The text about a name is
the name's docstring and nothing else: to change a page, change the docstring. A class
of the root, and of `logstore.aio`, has a page; so has each other module.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import logstore

# Chapters of the first page and their names.
CHAPTERS: dict[str, tuple[str, ...]] = {
    "Open": ("open", "Store", "StoreConfig"),
    "Topics and partitions": ("Topic", "Partition", "TopicConfig", "TopicPartition"),
    "Records": ("Record", "TopicRecord", "RecordBatch", "TimestampType"),
    "Consume": ("Consumer", "OffsetAndMetadata", "groups", "reset_offsets"),
    "Publish": ("Stage", "Producer"),
    "Choose a partition": (
        "Partitioner",
        "KafkaPartitioner",
        "ConsistentHashPartitioner",
    ),
    "Keep and delete": (
        "RetentionPolicy",
        "RetainAge",
        "RetainBytes",
        "RetainFreeSpace",
    ),
    "Look and mend": (
        "verify",
        "repair",
        "rebuild_index",
        "inspect_file",
        "report",
        "doctor",
    ),
    "Errors that are often caught": (
        "LogStoreError",
        "ConfigError",
        "StoreNotFoundError",
        "StoreLockedError",
        "TopicExistsError",
        "TopicNotFoundError",
        "OffsetOutOfRangeError",
        "PublicationTimeoutError",
        "StorageError",
        "DiskFullError",
        "CorruptionError",
        "CorruptRecordError",
    ),
    "Modules": ("aio", "errors", "types", "kafka", "metrics"),
}

HEAD = """\
# Public names

<!-- Made by docs/make_api.py from the docstrings; do not edit. -->

Everything here is in `logstore.__all__`, or in that of one of its public modules, and
promised; everything else may change. By example it is all in the [guide](guide.md);
what to do about an error is in [operations](operations.md). Words are those of the
[glossary](glossary.md). Methods may be called by any thread unless said otherwise.
"""

LINE = 88


class Member(NamedTuple):
    """A method or property of a public class; `owner` is where it was found."""

    name: str
    value: Any

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function behind it; None for a property."""
        if isinstance(self.value, classmethod | staticmethod):
            return self.value.__func__  # type: ignore[no-any-return]
        return self.value if inspect.isfunction(self.value) else None

    @property
    def doc(self) -> str:
        """Its own docstring; "" for none."""
        return inspect.cleandoc(getattr(self.value, "__doc__", None) or "")


def members(kind: type) -> Iterator[Member]:
    """The public methods and properties of a class, in the order of the source.

    Those of its bases count where they are logstore's own.
    """
    seen: set[str] = set()
    for base in inspect.getmro(kind):
        if not base.__module__.startswith("logstore"):
            continue
        for name, value in vars(base).items():
            is_member = inspect.isfunction(value) or isinstance(
                value, property | classmethod | staticmethod
            )
            if name.startswith("_") or name in seen or not is_member:
                continue
            seen.add(name)
            yield Member(name, value)


def is_documented_above(kind: type, member: Member) -> bool:
    """Whether a class above `kind` says what the member does."""
    return any(
        getattr(vars(base).get(member.name), "__doc__", None)
        for base in inspect.getmro(kind)[1:]
    )


# ------------------------------------------------------------------------ signatures


def parameter_text(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif parameter.kind is parameter.VAR_KEYWORD:
        text = f"**{text}"
    annotated = parameter.annotation is not parameter.empty
    if annotated:
        text += f": {type_text(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        equals = " = " if annotated else "="
        text += f"{equals}{default_text(parameter.default)}"
    return text


def type_text(annotation: object) -> str:
    """An annotation as the source has it, without the names of logstore's modules."""
    return re.sub(r"\b(native|retention)\.", "", str(annotation))


def default_text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple) and value:
        return f"({', '.join(map(default_text, value))})"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return repr(value)


def signature_text(name: str, function: Callable[..., Any]) -> str:
    """``name(parameters) -> result``, over several lines where it is long."""
    signature = inspect.signature(function)
    parts: list[str] = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(parameter_text(parameter))
    result = signature.return_annotation
    tail = "" if result in (signature.empty, "None") else f" -> {type_text(result)}"
    line = f"{name}({', '.join(parts)}){tail}"
    if len(line) <= LINE:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{inner}){tail}"


def class_signature(kind: type) -> str:
    """How one is made, where that is for users."""
    if issubclass(kind, Exception):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        return f"class {kind.__name__}({bases})"
    if issubclass(kind, enum.Enum):
        values = ", ".join(f"{member.name} = {member.value}" for member in kind)
        return f"class {kind.__name__}: {values}"
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if is_named or dataclasses.is_dataclass(kind):
        return wrapped(kind.__name__, fields_of(kind))
    if getattr(kind, "_is_protocol", False):
        return f"class {kind.__name__}(Protocol)"
    makes_itself = "__init__" in vars(kind) and "Made by" not in (kind.__doc__ or "")
    if makes_itself and kind.__module__ != "logstore.record.record":
        return signature_text(kind.__name__, kind.__init__)  # type: ignore[misc]
    return f"class {kind.__name__}"


def fields_of(kind: type) -> list[str]:
    """The fields of a named tuple or dataclass, with types and defaults."""
    if dataclasses.is_dataclass(kind):
        defaults = {
            field.name: field.default
            for field in dataclasses.fields(kind)
            if field.default is not dataclasses.MISSING
        }
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        defaults, names = kind._field_defaults, list(kind._fields)  # type: ignore[attr-defined]
    fields = []
    bases = reversed(inspect.getmro(kind))
    annotations = {
        k: v for base in bases for k, v in vars(base).get("__annotations__", {}).items()
    }
    for name in names:
        annotation = annotations[name]
        text = f"{name}: {getattr(annotation, '__forward_arg__', annotation)}"
        fields.append(
            f"{text} = {default_text(defaults[name])}" if name in defaults else text
        )
    return fields


def wrapped(name: str, parts: list[str]) -> str:
    line = f"{name}({', '.join(parts)})"
    if len(line) <= LINE:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


# ------------------------------------------------------------------------ docstrings

SECTION = re.compile(r"(Args|Attributes|Raises|Returns):(?: (.*))?")


def markdown(doc: str) -> list[str]:
    """A docstring as Markdown: sections become lists, the rest stays."""
    lines: list[str] = []
    in_section = False
    for line in doc.splitlines():
        match = SECTION.fullmatch(line)
        if match:
            rest = match[2]
            lines += [f"**{match[1]}:** {rest}" if rest else f"**{match[1]}:**", ""]
            in_section = not rest
            continue
        if line and not line.startswith(" "):
            in_section = False
        if in_section and line.startswith("    "):
            text = line[4:]
            if text.startswith(" "):
                lines.append(f"  {text.strip()}")
            else:
                lines.append(f"- {item(text)}")
            continue
        lines.append(line)
    return lines


def item(text: str) -> str:
    """``a, b: what`` with the names in code."""
    names, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"\w+(, \w+)*( and)?", names):
        return text
    shown = re.sub(r"\w+", lambda m: m[0] if m[0] == "and" else f"`{m[0]}`", names)
    return f"{shown}:{rest}"


# ------------------------------------------------------------------------- the page


def code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def value_lines(shown: str, value: Any, level: str) -> Iterator[str]:
    """The part of a page about one class or function, whose heading has a level."""
    yield from (f"{level} `{shown}`", "")
    if inspect.isclass(value):
        yield from class_lines(value, shown, f"{level}#")
    elif callable(value):
        yield from code(signature_text(shown, value))
        yield from markdown(inspect.getdoc(value) or "")
        yield ""
    else:
        yield from (f"`{value!r}`", "")


def class_lines(kind: type, shown: str, level: str) -> Iterator[str]:
    """The part about a class and its members, whose headings have a level."""
    yield from code(class_signature(kind))
    yield from markdown(inspect.getdoc(kind) or "")
    yield ""
    if issubclass(kind, Exception):
        return
    for member in members(kind):
        if not member.doc and is_documented_above(kind, member):
            continue
        if member.function is None:
            yield from (f"{level} `{shown}.{member.name}` (property)", "")
        else:
            yield from (f"{level} `{shown}.{member.name}`", "")
            yield from code(signature_text(member.name, member.function))
        yield from markdown(member.doc)
        yield ""


def has_page(value: object) -> bool:
    """Whether a public name of a module has a page of its own: a class with methods."""
    is_class = inspect.isclass(value) and not issubclass(value, Exception)
    return is_class and any(member.function for member in members(value))


def first_sentence(value: object) -> str:
    """What a name is, in the table of the first page."""
    doc = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s", doc)[0].rstrip(".:").replace("|", "\\|")


def pages() -> dict[str, str]:
    """All pages, by their paths below docs."""
    found = {}
    lines, toc = [HEAD], []
    for title, names in CHAPTERS.items():
        lines += ["", f"## {title}", "", "| name | |", "| --- | --- |"]
        rest = []
        for name in names:
            value, shown = getattr(logstore, name), f"logstore.{name}"
            link = f"#logstore{name.lower()}"
            if inspect.ismodule(value):
                link = f"api/{name}.md"
                found |= module_pages(name, value, toc)
            elif is_error(value):
                link = f"api/errors.md#logstoreerrors{name.lower()}"
            elif has_page(value):
                link = f"api/{name}.md"
                found[link] = text_of(value_lines(shown, value, "#"))
                toc.append(link)
            else:
                rest.append(value_lines(shown, value, "###"))
            lines.append(f"| [`{shown}`]({link}) | {first_sentence(value)} |")
        lines.append("")
        for part in rest:
            lines += part
    lines += ["", "```{toctree}", ":hidden:", "", *toc, "```"]
    return {"api.md": text_of(lines), **found}


def is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def module_pages(name: str, module: ModuleType, toc: list[str]) -> dict[str, str]:
    """The page of a module, and those of its classes, which follow it in `toc`."""
    path, found = f"api/{name}.md", {}
    toc.append(path)
    lines = [f"# `logstore.{name}`", "", *markdown(inspect.getdoc(module) or ""), ""]
    for inner in module.__all__:
        value, shown = getattr(module, inner), f"logstore.{name}.{inner}"
        if name == "aio" and has_page(value):
            place = f"api/{name}-{inner}.md"
            found[place] = text_of(value_lines(shown, value, "#"))
            toc.append(place)
            lines += [f"[`{shown}`]({place[4:]}): {first_sentence(value)}.", ""]
        else:
            lines += value_lines(shown, value, "##")
    return {path: text_of(lines), **found}


def text_of(lines: Iterable[str]) -> str:
    text = "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
