"""The site of the documentation, for Sphinx with MyST and furo: `make docs` builds it.

The reference of the public names (`api.md`, `api/`) is generated from the docstrings at
each build. The home page is the README, and further pages come from the root of the
repository: their links point into `docs`; a link to a file that the site does not have
becomes plain text.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import logstore

DOCS = Path(__file__).parent
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# A link to a file of the repository.
LOCAL_LINK = re.compile(r"\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)")
# Code blocks of docs/format.md, which tests read: nothing to highlight in them.
PLAIN_BLOCKS = ("fields", "hex", "state")

project = "logstore"
author = "the logstore authors"
version = release = logstore.__version__

extensions = ["myst_parser"]
root_doc = "index"
# Headings are targets of links, as they are where a code host shows the pages.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"logstore {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def generate() -> None:
    """Write the pages that are not in the repository."""
    for path, text in runpy.run_path(str(DOCS / "make_api.py"))["pages"]().items():
        place = DOCS / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for name in ROOT_PAGES:
        place = DOCS / name.lower()
        place.write_text(for_site(DOCS.parent / name), encoding="utf-8")


def for_site(page: Path) -> str:
    """A page of the root with links as the site has them."""

    def there(match: re.Match[str]) -> str:
        label, path = match.groups()
        if path in ROOT_PAGES:
            return f"[{label}]({path.lower()})"
        if path.startswith("docs/"):
            return f"[{label}]({path.removeprefix('docs/')})"
        return label

    return LOCAL_LINK.sub(there, page.read_text(encoding="utf-8"))


def fit_links(app: Any, document: str, source: list[str]) -> None:
    """Links of pages in docs to those of the root; the README for the home page."""
    for name in ROOT_PAGES:
        source[0] = source[0].replace(f"](../{name}", f"]({name.lower()}")
    if document == root_doc:
        source[0] = for_site(DOCS.parent / "README.md") + "\n" + source[0]


def setup(app: Any) -> None:
    for name in PLAIN_BLOCKS:
        app.add_lexer(name, TextLexer)
    app.connect("source-read", fit_links)


generate()
