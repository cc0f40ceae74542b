"""The report in a real browser: no error, light and dark, wide and narrow, its script.

Skipped without Chromium; `apt-get install chromium` installs it.
"""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from support import golden
from support.chromium import Chromium, find
from support.damage import flip_bit, logs_in

PROGRAM = find()
pytestmark = [
    pytest.mark.skipif(
        PROGRAM is None,
        reason="no Chromium on this machine (apt-get install chromium)",
    ),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
NOW = int(time.time() * 1000)
HOUR = 3_600_000
# The vermilion of damage, and the background of the page, in both schemes.
DAMAGE = {False: (194, 65, 12), True: (255, 138, 76)}
GROUND = {False: (245, 246, 248), True: (15, 20, 26)}
# Actions on the page in a frame: layout, sorting, hints. A frame from `srcdoc` is of
# the same origin, so this script may access it.
PROBE = """
<!doctype html><meta charset="utf-8"><body><pre id="out">nothing</pre><script>
const page = %s, found = {errors: []};
function frame(width) { return new Promise(done => {
  const f = document.createElement('iframe');
  f.width = width; f.height = 900; f.style.border = 0; f.srcdoc = page;
  f.onload = () => done(f); document.body.appendChild(f); }) }
(async () => {
  for (const width of [1280, 400]) {
    const f = await frame(width), d = f.contentDocument.documentElement;
    found['w' + width] = [d.clientWidth, d.scrollWidth];
  }
  const f = await frame(1280), d = f.contentDocument, w = f.contentWindow;
  found.title = d.title;
  found.h1 = d.querySelector('h1').textContent;
  found.first = d.querySelector('ul.list li b').textContent;
  found.rects = d.querySelectorAll('.map rect').length;
  const cells = () => [...d.querySelectorAll('#topics + div tbody tr')]
    .map(r => r.cells[0].textContent);
  const head = at => d.querySelectorAll('#topics + div th button')[at];
  found.before = cells();
  head(4).click(); found.bySize = cells();
  found.sort = head(4).parentElement.getAttribute('aria-sort');
  head(4).click(); found.bySizeUp = cells();
  head(0).click(); found.byName = cells();
  const r = d.querySelector('.map rect.hurt');
  r.dispatchEvent(new w.PointerEvent('pointermove', {bubbles: true, clientX: 50,
    clientY: 50}));
  const tip = d.querySelector('#tip');
  found.tip = [tip.style.display, tip.textContent];
  found.font = w.getComputedStyle(d.body).fontSize;
})().catch(e => found.errors.push(String(e))).finally(() => {
  document.getElementById('out').textContent = JSON.stringify(found) });
</script></body>
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    assert PROGRAM is not None
    return Chromium(PROGRAM, tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a damaged store with three topics of different sizes."""
    directory = tmp_path_factory.mktemp("report")
    with logstore.open(directory / "shop") as store:
        for name, records in (("audit", 4), ("clicks", 30), ("orders", 12)):
            config = logstore.TopicConfig(
                segment_bytes=20_000, message_format=2, retention_ms=-1
            )
            topic = store.create_topic(name, partitions=2, config=config)
            for hour in range(48):
                for partition in topic:
                    partition.append_many(
                        [b"some value of a record" * 3] * records,
                        timestamps_ms=[NOW - (48 - hour) * HOUR] * records,
                    )
    flip_bit(logs_in(directory / "shop" / "clicks-1")[1], 8 * 9000)
    out = directory / "report.html"
    logstore.report(directory / "shop").save(out)
    return out


def probed(chromium: Chromium, page: Path) -> dict[str, Any]:
    text = json.dumps(page.read_text(encoding="utf-8")).replace("</", "<\\/")
    probe = page.with_name("probe.html")
    probe.write_text(PROBE % text, encoding="utf-8")
    seen = chromium.look(probe)
    assert seen.console == []
    (out,) = re.findall(r'<pre id="out">(.*?)</pre>', seen.dom, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(out))
    return found


def test_page_loads_without_a_word_on_the_console(
    chromium: Chromium, page: Path
) -> None:
    """No error of the script, no violation of the policy, no request."""
    seen = chromium.look(page)
    assert seen.console == []
    assert "clicks-1 is damaged" in seen.dom
    assert "</footer>" in seen.dom


def test_page_follows_the_colour_scheme(chromium: Chromium, page: Path) -> None:
    """Light and dark differ, and damage stands out in both."""
    light = chromium.picture(page, height=1600)
    dark = chromium.picture(page, height=1600, dark=True)
    assert light.lightness() > 210
    assert dark.lightness() < 60
    for picture, is_dark in ((light, False), (dark, True)):
        assert picture.pixel(2, 2) == GROUND[is_dark]
        assert DAMAGE[is_dark] in picture.colours()


def test_page_is_read_without_its_script(chromium: Chromium, page: Path) -> None:
    """Drawings and words are there without it."""
    text = page.read_text(encoding="utf-8")
    bare = page.with_name("bare.html")
    bare.write_text(re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL))
    # A busy machine may take a picture before everything is drawn.
    seen: dict[Path, list[list[bytes]]] = {page: [], bare: []}
    for _ in range(8):
        for each, pictures in seen.items():
            picture = chromium.picture(each, height=1600)
            pictures.append(picture.rows)
        if any(rows in seen[page] for rows in seen[bare]):
            break
    assert any(rows in seen[page] for rows in seen[bare])
    assert DAMAGE[False] in picture.colours()


def test_page_fits_a_desk_and_a_phone_and_its_script_works(
    chromium: Chromium, page: Path
) -> None:
    """Nothing is wider than the window at 1280 and at 400 pixels; tables are sorted by
    numbers, and a hint names the damage."""
    found = probed(chromium, page)
    assert found["errors"] == []
    for width in (1280, 400):
        inner, scrolled = found[f"w{width}"]
        assert scrolled <= inner == width
    assert found["h1"] == "shop"
    assert found["first"] == "clicks-1 is damaged in 1 place"
    assert found["rects"] > 10
    assert found["before"] == ["audit", "clicks", "orders"]
    assert found["bySize"] == ["clicks", "orders", "audit"]
    assert found["sort"] == "descending"
    assert found["bySizeUp"] == ["audit", "orders", "clicks"]
    assert found["byName"] == ["orders", "clicks", "audit"]
    assert found["tip"][0] == "block"
    assert "is damaged at byte" in found["tip"][1]


@pytest.mark.parametrize("scenario", ["2.8.2/killed", "4.2.0/swap"])
def test_page_on_a_directory_of_a_broker_loads(
    chromium: Chromium, tmp_path: Path, scenario: str
) -> None:
    """The directory was left by a kill."""
    out = tmp_path / "report.html"
    logstore.report(golden.SLICE / scenario).save(out)
    seen = chromium.look(out)
    assert seen.console == []
    assert "What a broker would do" in seen.dom


def test_evil_name_runs_nothing(chromium: Chromium, tmp_path: Path) -> None:
    """It does not run on load, nor when a reader hovers over it."""
    path = tmp_path / "<img src=x onerror=document.title='owned'>"
    with logstore.open(path) as store:
        store.create_topic("t")[0].append(b"x")
    (path / "<script>document.title='owned'<").mkdir()
    out = tmp_path / "report.html"
    logstore.report(path).save(out)
    seen = chromium.look(out)
    assert seen.console == []
    assert "<title>owned" not in seen.dom
    assert "<img" not in seen.dom


def test_notebook_frame_shows_the_page(
    chromium: Chromium, page: Path, tmp_path: Path
) -> None:
    """A cell's output is that page, in a frame that lets its script run."""
    report = logstore.report(page.parent / "shop")
    cell = tmp_path / "cell.html"
    body = f"<!doctype html><meta charset='utf-8'><body>{report._repr_html_()}"
    cell.write_text(body, encoding="utf-8")
    seen = chromium.look(cell)
    assert seen.console == []
    for _ in range(5):
        # Another process draws the frame, and a busy machine may take a picture first.
        colours = chromium.picture(cell).colours()
        if GROUND[False] in colours:
            break
    assert GROUND[False] in colours
    assert DAMAGE[False] in colours
