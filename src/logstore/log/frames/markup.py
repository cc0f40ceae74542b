"""HTML from Python values, escaped in one place.

`tag` makes an element. A child or attribute that is plain text is escaped; a value that
is `Html` already is used unchanged, and only this module makes `Html`. So text of the
data (paths, names, messages) cannot become markup, in any position. A template engine
would do the same by its autoescape: this is 80 lines instead of a dependency.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Child", "Html", "join", "printable", "raw", "tag"]


class Html(str):
    """Markup: text of the data in it is escaped."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"

_VOID = frozenset({"meta", "br", "hr", "rect", "line", "path", "circle", "col"})
_VISIBLE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\x7f": "\\x7f"}


def printable(text: str) -> str:
    r"""Text that UTF-8 and a browser can show: control characters, directions of
    writing and bytes of a name that is not UTF-8 become escapes (``\n``, ``\xff``)."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    replacement = _VISIBLE.get(char)
    if replacement is not None:
        return replacement
    try:
        data = char.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = char.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def raw(text: str) -> Html:
    """Markup that is in the source code of logstore; never text of the data."""
    return Html(text)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(printable(child), quote=True)
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(_text, child))


def join(*children: Child) -> Html:
    """Several children, one after the other."""
    return Html("".join(map(_text, children)))


def tag(
    name: str, /, *children: Child, **attributes: str | int | float | bool | None
) -> Html:
    """An element.

    Args:
        name: of the element; a constant of the caller.
        children: text (escaped), numbers, `Html`, None (nothing) or lists of them.
        attributes: ``cls`` is ``class``; other underscores become hyphens, a last one
            is dropped (``for_``). True: without a value; None and False: left out.
    """
    parts = ["<", name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        parts.append(" " + shown)
        if value is not True:
            parts.append(f'="{_text(value)}"')
    if name in _VOID and not children:
        # "/>" also ends an element of SVG.
        parts.append("/>")
        return Html("".join(parts))
    parts.append(">")
    parts.extend(map(_text, children))
    parts.append(f"</{name}>")
    return Html("".join(parts))
