"""Arguments of callers, converted to plain numbers."""

from __future__ import annotations

import datetime

import pytest

from logstore.errors import ConfigError
from logstore.record.arguments import as_limit, as_time_ms, as_timeout, parse_time

UTC = datetime.timezone.utc
SECOND = datetime.datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SECOND_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("microseconds", "milliseconds"),
    [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (-1, 0), (-1000, -1), (-1001, -1)],
)
def test_time_between_two_milliseconds_is_the_later_one(
    microseconds: int, milliseconds: int
) -> None:
    """A record of the earlier millisecond is older than that time."""
    when = SECOND + datetime.timedelta(microseconds=microseconds)
    assert as_time_ms("start", when) == SECOND_MS + milliseconds


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:00Z", " 2026-01-31T12:00:00z ", "2026-01-31T14:00:00+02:00"],
)
def test_text_is_the_time_that_it_says(text: str) -> None:
    assert as_time_ms("start", text) == SECOND_MS


def test_parsed_text_has_a_zone_only_if_it_says_one() -> None:
    """A caller can then refuse a text without a zone."""
    assert parse_time(" 2026-01-31T12:00:00z ") == SECOND
    assert parse_time("2026-01-31") == datetime.datetime(2026, 1, 31)
    for text in ("soon", "", "2026-02-30", "Z"):
        with pytest.raises(ValueError):
            parse_time(text)


def test_time_without_a_zone_is_local() -> None:
    local = SECOND.astimezone().replace(tzinfo=None)
    assert as_time_ms("start", local) == SECOND_MS
    day = datetime.date(2026, 1, 31)
    midnight = datetime.datetime(2026, 1, 31).astimezone(UTC)
    assert as_time_ms("start", day) == as_time_ms("start", midnight)


def test_milliseconds_stay_as_they_are() -> None:
    assert as_time_ms("start", -5) == -5


def test_text_that_is_no_time_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="start='soon' is not an ISO 8601 time"
    ) as caught:
        as_time_ms("start", "soon")
    assert caught.value.name == "start"


def test_limit_and_timeout_have_bounds_and_a_timeout_may_be_none() -> None:
    assert as_limit(0) == 0
    with pytest.raises(ConfigError, match="limit=-1 is below 0"):
        as_limit(-1)
    assert as_timeout(None) is None
    assert as_timeout(0.5) == 0.5
    for wrong in ("1", b"1", float("nan"), object()):
        with pytest.raises(TypeError, match="not a number of seconds"):
            as_timeout(wrong)
