"""The colours of a report: readable, and distinguishable without colour vision."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import logstore
from logstore.maintenance.report.style import AGES, STYLE
from support import reports
from support.reports import DAY, NOW, SMALL

store = reports.store  # a fixture


def schemes() -> list[dict[str, tuple[int, int, int]]]:
    """The colours by name, of the light and of the dark scheme."""
    light, _, dark = STYLE.partition("prefers-color-scheme:dark")
    found = []
    for text in (light, dark):
        pairs = re.findall(r"--([a-z0-9-]+):#([0-9a-f]{3,6})\b", text)
        found.append({name: _rgb(value) for name, value in pairs})
    return found


def _rgb(text: str) -> tuple[int, int, int]:
    if len(text) == 3:
        text = "".join(char * 2 for char in text)
    red, green, blue = bytes.fromhex(text)
    return red, green, blue


def luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance as the Web Content Accessibility Guidelines define it."""
    parts = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in (channel / 255 for channel in colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_text_can_be_read_in_both_schemes(
    scheme: dict[str, tuple[int, int, int]],
) -> None:
    """Each colour of text has a contrast of 4.5 at least to its background."""
    for name in ("ink", "soft", "link", "bad", "warn", "info", "ok"):
        for ground in ("bg", "card"):
            assert contrast(scheme[name], scheme[ground]) >= 4.5, (name, ground)
    for name in ("bad", "warn", "info", "ok"):
        assert contrast(scheme[name], scheme[f"{name}-bg"]) >= 4.5, name


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_ages_differ_in_lightness_alone(
    scheme: dict[str, tuple[int, int, int]],
) -> None:
    """Older segments can be distinguished without colour vision."""
    ages = [luminance(scheme[f"a{group}"]) for group in range(AGES)]
    assert ages == sorted(ages, reverse=ages[0] > ages[-1])
    for older, newer in pairwise(range(AGES)):
        assert contrast(scheme[f"a{older}"], scheme[f"a{newer}"]) >= 1.2


def test_picture_of_the_documentation_is_small() -> None:
    """docs/make_screenshots.py makes it."""
    images = Path(__file__).parents[4] / "docs" / "images"
    for name in ("report.png", "report-dark.png"):
        assert 20_000 < (images / name).stat().st_size <= 200_000


def test_legend_tells_its_ages_apart(tmp_path: Path) -> None:
    """The unit is days, minutes or seconds, as needed."""
    for step, sample in ((DAY, r"^\d{4}-\d\d-\d\d$"), (60_000, r":\d\d$")):
        path = tmp_path / f"data-{step}"
        with logstore.open(path) as store:
            partition = store.create_topic("t", config=SMALL)[0]
            for number in range(12):
                when = NOW - (40 - number) * step
                partition.append(b"x" * 100, timestamp_ms=when)
                partition.roll()
        page = logstore.report(path).to_html()
        (legend,) = re.findall(r'<div class="legend">(.*?)</div>', page)
        shown = re.findall(r"from ([0-9: -]+)<", legend)
        assert len(shown) == len(set(shown)) == AGES
        assert all(re.search(sample, text) for text in shown)
