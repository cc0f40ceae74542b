"""Counts turns of phrase that make technical English hard to read.

    python tools/prose.py            # a table: kind of text, words, matches per 1,000
    python tools/prose.py --list     # and every match, with its place
    python tools/prose.py --rooms    # by room: turns in 1,000 words, both together

Kinds of text: README, the pages in docs, error messages, help texts, docstrings,
comments. tests/test_prose.py holds them to a bound. Well-kept packages have 0 to 2 of
these phrases per 1,000 words (LevelDB, click, rich, pytest): conditions with "where",
people instead of programs ("who", "nobody"), private words instead of technical terms.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[1]

PHRASES: Final = {
    "who, nobody": r"\b(?:who|whoever|whom|nobody|somebody|anybody|everybody)\b",
    "where as a condition": (
        r"\b(?:where|wherever) (?:it|that|there|this|they|one|none|no|nothing|"
        r"(?:a|an|the|its|their) \w+(?: \w+){0,2}? (?:is|are|was|were|has|have|had|"
        r"does|do|did|may|can|cannot|must|lies|stands))\b"
    ),
    "that which": (
        r"\b(?:that which|what it is|what (?:lies|stands|comes|goes|belongs))\b"
    ),
    "what ... as a subject": r"(?:^|[.:;] )What (?!does|do|did|is it|if|to)\w+",
    "anew": r"\banew\b",
    "beside": r"\bbeside\b",
    "behind": r"\bbehind\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "take away": r"\bt(?:ake|akes|aken|aking|ook) away\b",
    "write down": r"\bwr(?:ite|ites|itten|iting|ote) down\b",
    "tell": r"\bt(?:ell|ells|old|elling)\b",
    "let go": r"\b(?:let|lets|letting) go\b|\bgo(?:es)? for good\b",
    "go on": r"\bgo(?:es)? on\b|\bwent on\b",
    "believe": r"\bbeliev(?:e|es|ed|ing)\b|\brumours?\b",
    "sound": r"\bsound\b",
    "all the same": r"\ball the same\b|\bmore than that\b|\bof its own accord\b",
}
# Turns that hide the subject or the noun of a sentence.
TURNS: Final = {
    "is to be": r"\b(?:is|are|was|were) to (?:be|have)\b",
    "so many": r"\bso many\b",
    "those of, those that": r"\bthose (?:of|that|which|in|with|who|for|from|on)\b",
    "is none": r"\b(?:is|are|was|were|has|have|had) none\b",
    "of its own": r"\bof (?:one's|its|their|his|her|my|our|your) own\b",
    "what it is": (
        r"\bwhat (?:it|they|that|this) (?:is|are|was|were|has|have|had|does)\b"
    ),
    "of what": r"\b(?:of|in|for|with|from|to|by|on|about) what\b",
    "as it is": r"\bas (?:it|they|that) (?:is|are|was|were|stands?)\b",
    "that one": r"\bthat one\b",
}
# A docstring begins with a verb or a noun.
FIRST_WORDS: Final = frozenset(
    ["Those", "That", "For", "Of", "As", "What", "Also", "With"]
)
_PATTERNS = {
    # Only a sentence that begins with it, so as it is written.
    name: re.compile(text, re.M if "What" in text else re.M | re.I)
    for name, text in PHRASES.items()
}
_TURNS = {name: re.compile(text, re.M | re.I) for name, text in TURNS.items()}
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|https?://\S+", re.S)


class Text(NamedTuple):
    """A piece of prose and its place."""

    kind: str
    path: Path
    line: int
    text: str


class Match(NamedTuple):
    """A phrase that was found."""

    text: Text
    phrase: str
    line: int
    found: str


def pages() -> Iterator[Text]:
    """The pages, without code and without tables of contents."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        if path.name != "api.md":  # made of docstrings
            kind = "README" if path.name == "README.md" else "docs"
            yield Text(kind, path, 1, path.read_text(encoding="utf-8"))


def sources() -> Iterator[Path]:
    """The Python files of the package and of the connector."""
    yield from sorted((ROOT / "src" / "logstore").rglob("*.py"))
    yield from sorted(
        (ROOT / "connectors" / "spark" / "pyspark_logstore").rglob("*.py")
    )


def texts_of(path: Path) -> Iterator[Text]:
    """Docstrings, comments, error messages and help texts of a Python file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield Text("docstrings", path, node.body[0].lineno, docstring)
        elif isinstance(node, ast.Call):
            func = node.func
            name = func.attr if isinstance(func, ast.Attribute) else None
            name = func.id if isinstance(func, ast.Name) else name
            if name is not None and name.endswith("Error"):
                for argument in node.args[:1]:
                    yield Text("errors", path, node.lineno, _literal(argument))
            for keyword in node.keywords:
                if keyword.arg in ("help", "short_help", "epilog"):
                    yield Text("help", path, node.lineno, _literal(keyword.value))
    comment: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            if comment and token.start[0] != last + 1:
                yield Text("comments", path, begin, " ".join(comment))
                comment = []
            if not comment:
                begin = token.start[0]
            comment.append(token.string.lstrip("# "))
            last = token.start[0]
    if comment:
        yield Text("comments", path, begin, " ".join(comment))


def _literal(node: ast.expr) -> str:
    """The text of a string, with X in the place of what is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "X"
            for part in node.values
            if isinstance(part, ast.FormattedValue)
            or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        )
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    return ""


def prose(text: str) -> str:
    """A text without code; lines stay where they are."""
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


def c_comments(path: Path) -> Iterator[Text]:
    """The comments of a C file."""
    source = path.read_text(encoding="utf-8")
    for found in re.finditer(r"/\*(.*?)\*/|//([^\n]*)", source, re.S):
        text = re.sub(r"(?m)^ *\* ?", "", found[1] or found[2])
        yield Text("C comments", path, source.count("\n", 0, found.start()) + 1, text)


def rooms(wanted: set[Path] | None = None) -> Iterator[tuple[str, Text]]:
    """Docstrings and comments, with the room that they are in.

    Args:
        wanted: only of these files and directories.
    """
    for room, path in _files():
        if not wanted or wanted & {path, *path.parents}:
            texts = c_comments(path) if room == "C" else texts_of(path)
            yield from ((room, text) for text in texts)


def _files() -> Iterator[tuple[str, Path]]:
    """The files with docstrings and comments, with the room that they are in."""
    package = ROOT / "src" / "logstore"
    for path in sources():
        inside = path.relative_to(package).parts if path.is_relative_to(package) else ()
        room = (inside[0] if len(inside) > 1 else "root") if inside else "connector"
        yield room, path
    for path in sorted(package.rglob("*.[ch]")):
        if path.name != "_ls.c":  # cffi's
            yield "C", path
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    tests += [*(ROOT / "connectors" / "spark" / "tests").rglob("*.py")]
    for path in sorted(tests):
        if "data" not in path.parts:
            yield "tests", path


def count_by_room() -> dict[str, tuple[int, int, int, int]]:
    """(words, turns, turns and phrases, docstrings with a bad first word) by room."""
    found: dict[str, tuple[int, int, int, int]] = {}
    for room, text in rooms():
        plain = prose(text.text)
        turns = sum(len(one.findall(plain)) for one in _TURNS.values())
        both = turns + len(list(matches_of(text)))
        first = plain.split(maxsplit=1)[:1]
        bad = text.kind == "docstrings" and first and first[0] in FIRST_WORDS
        words, *counts = found.get(room, (0, 0, 0, 0))
        added = (turns, both, int(bool(bad)))
        found[room] = (
            words + len(_WORD.findall(plain)),
            *(a + b for a, b in zip(counts, added, strict=True)),
        )
    return found


def turns_in(wanted: set[Path]) -> Iterator[str]:
    """Lines about the turns, phrases and first words in these files and directories."""
    for _, text in rooms(wanted):
        plain, where = prose(text.text), text.path.relative_to(ROOT)
        for name, pattern in {**_TURNS, **_PATTERNS}.items():
            for found in pattern.finditer(plain):
                line = text.line + plain.count("\n", 0, found.start())
                context = plain[max(found.start() - 40, 0) : found.end() + 40]
                yield f"{where}:{line}: {name}: {' '.join(context.split())}"
        first = plain.split(maxsplit=1)[:1]
        if text.kind == "docstrings" and first and first[0] in FIRST_WORDS:
            yield f"{where}:{text.line}: first word: {plain.splitlines()[0]}"


def all_texts() -> Iterator[Text]:
    yield from pages()
    for path in sources():
        yield from texts_of(path)


def matches_of(text: Text) -> Iterator[Match]:
    plain = prose(text.text)
    for phrase, pattern in _PATTERNS.items():
        for found in pattern.finditer(plain):
            line = text.line + plain.count("\n", 0, found.start())
            context = plain[max(found.start() - 40, 0) : found.end() + 40]
            yield Match(text, phrase, line, " ".join(context.split()))


def count(texts: Iterable[Text]) -> dict[str, tuple[int, int]]:
    """(words, matches) of each kind of text."""
    found: dict[str, tuple[int, int]] = {}
    for text in texts:
        words, matches = found.get(text.kind, (0, 0))
        words += len(_WORD.findall(prose(text.text)))
        found[text.kind] = words, matches + len(list(matches_of(text)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="every match")
    parser.add_argument("--rooms", action="store_true", help="turns, room by room")
    parser.add_argument("--turns", action="store_true", help="every turn of a room")
    parser.add_argument(
        "paths", nargs="*", type=Path, help="only matches in these files"
    )
    options = parser.parse_args()
    if options.rooms:
        for room, (words, turns, both, bad) in sorted(count_by_room().items()):
            rates = f"{1000 * turns / words:>8.1f}{1000 * both / words:>8.1f}"
            print(f"{room:<12}{words:>8} words{rates}{bad:>6} first words")
        return
    wanted = {path.resolve() for path in options.paths}
    if options.turns:
        for line in turns_in(wanted):
            print(line)
        return
    texts = [one for one in all_texts() if not wanted or one.path.resolve() in wanted]
    if options.list:
        for text in texts:
            for match in matches_of(text):
                where = text.path.relative_to(ROOT)
                print(f"{where}:{match.line}: {match.phrase}: {match.found}")
    for kind, (words, matches) in count(texts).items():
        print(f"{kind:<12}{words:>8} words{1000 * matches / max(words, 1):>8.1f}")


if __name__ == "__main__":
    main()
