"""The documentation as a site: it builds without a warning, and needs no other host."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import logstore

ROOT = Path(__file__).parents[2]
# Elements that a browser fetches when it opens a page; a link is fetched on a click.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
LINKS_FETCHED = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}


class Fetches(html.parser.HTMLParser):
    """The addresses that a page fetches when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in FETCHED:
            self.found.append(given.get(FETCHED[tag]) or "")
        elif tag == "link" and {*(given.get("rel") or "").split()} & LINKS_FETCHED:
            self.found.append(given.get("href") or "")


def fetches(page: str) -> list[str]:
    parser = Fetches()
    parser.feed(page)
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, of a copy of the pages."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "examples", copy / "examples")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    run = subprocess.run(
        [*command, str(copy / "docs"), str(copy / "html")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return copy / "html"


def test_site_has_each_page_and_a_search(site: Path) -> None:
    """A page that is missing in every list of contents is a warning, and so an
    error."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    assert (site / "searchindex.js").stat().st_size > 100_000
    assert "guide" in (site / "index.html").read_text(encoding="utf-8")


def test_home_page_is_the_readme(site: Path) -> None:
    """The home page has the pictures, and links to pages of the site."""
    text = (site / "index.html").read_text(encoding="utf-8")
    for said in ("Quickstart", "Is it for you?", 'href="guide.html"'):
        assert said in text
    assert 'href="docs/' not in text
    assert "demo.svg" in text


def test_reference_is_generated(site: Path) -> None:
    """The reference has a page for each of the large classes."""
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in logstore.__all__:
        assert re.search(rf">(?:logstore\.)?{name}<", text), name
    consumer = (site / "api" / "Consumer.html").read_text(encoding="utf-8")
    assert "logstore.Consumer.poll" in consumer
    assert "logstore.types.VerifyReport" in (site / "api" / "types.html").read_text()


def test_no_page_fetches_from_another_host(site: Path) -> None:
    """Scripts, styles, fonts and pictures are local; style sheets refer to local
    files."""
    pages = list(site.rglob("*.html"))
    for page in pages:
        found = fetches(page.read_text(encoding="utf-8"))
        assert found
        assert not [one for one in found if re.match(r"(?:\w+:)?//", one)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text())


def test_fetch_is_found() -> None:
    """One of each sort, and a plain link to another site, which is not fetched."""
    page = (
        '<link rel="stylesheet" href="https://a/x.css"><script src="//b/x.js"></script>'
        '<img src="https://c/x.png"><a href="https://d">d</a>'
    )
    assert fetches(page) == ["https://a/x.css", "//b/x.js", "https://c/x.png"]
