"""The pictures in docs/images, and the script that makes them."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BYTES_MAX = 150_000


def load(name: str) -> ModuleType:
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for dataclasses
    spec.loader.exec_module(module)
    return module


MAKE: Any = load("make_recordings")
MAKE_BROWSE: Any = load("make_browse_picture")
# Text that each picture must show, so that an old one or a failed run is noticed.
SHOWN = {
    "demo": ("make demo", "all well", "0 lost", "repaired:"),
    "repair": ("verify --deep data", "damaged", "--mode skip", "no problems"),
    "broker_disk": ("export broker_disk", "codec-snappy", "torn", "130"),
    "report": ("logstore-dump report data -o report.html", "report.html"),
}
# A class name of Textual's export, which is no recording.
BROWSE = ("logstore-dump browse data", "orders / partition 0", "customer-", "damaged:")


def text_of(svg: str) -> str:
    """The text of a picture, row by row."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        place = (float(node.get("x", 0)), (node.text or "").replace("\xa0", " "))
        rows.setdefault(float(node.get("y", 0)), []).append(place)
    return "\n".join(
        "".join(text for _, text in sorted(rows[row])) for row in sorted(rows)
    )


def test_every_recording_is_checked() -> None:
    """A new recording needs an entry in `SHOWN`."""
    assert set(SHOWN) == set(MAKE.RECORDINGS)


@pytest.mark.parametrize("name", [*SHOWN, "browse"])
def test_picture_shows_what_it_is_for(name: str) -> None:
    """It is small, needs no network, and names nothing of the machine that made it."""
    path = IMAGES / f"{name}.svg"
    svg = path.read_text(encoding="utf-8")
    assert len(svg.encode()) <= BYTES_MAX
    text = text_of(svg)
    for said in {**SHOWN, "browse": BROWSE}[name]:
        assert said in text, said
    assert "Traceback" not in text
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|usr|var|opt)\b", svg)
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in re.sub(r"url\(#", "", svg)


@pytest.mark.parametrize("name", ["demo", "repair"])
def test_readme_has_the_picture(name: str) -> None:
    """The pictures are in the README."""
    assert f"](docs/images/{name}.svg)" in (ROOT / "README.md").read_text()


def test_picture_of_the_browser_is_made_anew() -> None:
    """The picture shows the store, record and damage of the page."""
    text = text_of(MAKE_BROWSE.picture())
    for said in (*BROWSE, "value: ", '"city": "'):
        assert said in text


def test_recording_is_made_anew(tmp_path: Path) -> None:
    """The commands are run: the picture has their output, and plays."""
    path = MAKE.make("repair", tmp_path)
    svg = path.read_text(encoding="utf-8")
    text = text_of(svg)
    for said in SHOWN["repair"]:
        assert said in text
    assert str(tmp_path) not in svg
    delays = re.findall(r"\.row(\d+) \{ animation-delay: ([\d.]+)s", svg)
    times = [float(delay) for _, delay in delays]
    assert times == sorted(times)
    assert times[0] < times[-1] < 60
    assert "prefers-reduced-motion" in svg


def test_command_that_fails_leaves_the_old_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the command, and has its output."""
    failing = MAKE.Recording(
        "x", lambda _: None, (MAKE.Command("echo 'no such thing'; exit 3"),)
    )
    monkeypatch.setitem(MAKE.RECORDINGS, "repair", failing)
    (tmp_path / "repair.svg").write_text("old")
    assert MAKE.main(["repair", "--to", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "status 3, expected 0" in said
    assert "no such thing" in said
    assert (tmp_path / "repair.svg").read_text() == "old"


def test_answer_that_nothing_asked_for_is_an_error(tmp_path: Path) -> None:
    """The command has changed, and the recording must be adapted."""
    terminal = MAKE.Terminal()
    with pytest.raises(RuntimeError, match="not all was asked for"):
        MAKE.run_in(terminal, MAKE.Command("echo hello", answers=("y",)), tmp_path)


def test_question_is_answered(tmp_path: Path) -> None:
    """The answer appears as if typed."""
    terminal = MAKE.Terminal()
    line = "printf 'Sure? '; read answer; echo \"you said $answer\""
    MAKE.run_in(terminal, MAKE.Command(line, answers=("maybe",)), tmp_path)
    assert [row.plain for row in terminal.rows()] == ["Sure? maybe", "you said maybe"]


def test_terminal_keeps_what_is_left_at_the_end() -> None:
    """A bar that was replaced is not in the picture; colours are, and dim text."""
    terminal = MAKE.Terminal()
    for part in (
        b"10%\r",
        b"100%\r\033[2Kdone\r\n\033[",
        b"2mdim\033[0m \033[31mred\033",
    ):
        terminal.feed(part)
    terminal.feed(b"[0m\r\n")
    rows = terminal.rows()
    assert [row.plain for row in rows] == ["done", "dim red"]
    svg = MAKE.to_svg("name", "title", terminal)
    assert "#8a8a8a" in svg
    assert len({span.style.color for span in rows[1].spans if span.style.color}) == 2


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the known names."""
    with pytest.raises(SystemExit):
        MAKE.main(["nothing"])
    assert "no recording is called nothing" in capsys.readouterr().err
