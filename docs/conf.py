"""The site of the documentation, for Sphinx with MyST and furo: `make docs` builds it.

The reference of the public names (`api.md`) is generated from the docstrings at each
build. Two pages come from the root of the repository, whose links point into `docs`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import logstore

DOCS = Path(__file__).parent
ROOT_PAGES = ("CHANGELOG.md", "SECURITY.md")
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
    reference = runpy.run_path(str(DOCS / "make_api.py"))["page"]()
    (DOCS / "api.md").write_text(reference, encoding="utf-8")
    for name in ROOT_PAGES:
        text = (DOCS.parent / name).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](")
        (DOCS / name.lower()).write_text(text, encoding="utf-8")


def link_to_root_pages(app: Any, document: str, source: list[str]) -> None:
    """Links of pages in docs to those of the root."""
    for name in ROOT_PAGES:
        source[0] = source[0].replace(f"](../{name}", f"]({name.lower()}")


def setup(app: Any) -> None:
    for name in PLAIN_BLOCKS:
        app.add_lexer(name, TextLexer)
    app.connect("source-read", link_to_root_pages)


generate()
