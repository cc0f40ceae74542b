"""`logstore.demo`: runs, keeps its store, fails when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore import demo


def test_demo_runs_and_keeps_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With few records; the store is as it says."""
    # Spark has a test of its own, with the connector's.
    store = str(tmp_path / "store")
    assert demo.main(["--records", "5000", "--dir", store, "--no-spark"]) == 0
    assert capsys.readouterr().out.endswith("all well\n")
    assert logstore.verify(tmp_path / "store", deep=True).ok


def test_demo_fails_when_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that differs from the one that was written."""
    wrong = iter(range(10**9))
    monkeypatch.setattr(
        demo, "time_of", lambda offset: demo.START_MS + offset + next(wrong)
    )
    assert demo.main(["--records", "100"]) == 1
    assert "FAILED: partition 0, offset 0" in capsys.readouterr().err


def test_demo_needs_a_record_for_each_partition() -> None:
    """Fewer are unusable arguments."""
    with pytest.raises(SystemExit) as caught:
        demo.main(["--records", "3"])
    assert caught.value.code == 2
