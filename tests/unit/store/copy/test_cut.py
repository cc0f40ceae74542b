"""A cut of a store that is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import logstore
from logstore.store.copy.cut import take_cut


class _Grows(dict[str, Any]):
    """Settings of a topic that grow during a copy: another topic gets some."""

    def __init__(self, all_settings: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(own)
        self._all = all_settings

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        self._all["of Kafka"] = {"id": "0" * 32, "partitions": 1}
        return dict(self)


def test_cut_while_a_first_append_records_a_topic_has_the_settings_of_before(
    tmp_path: Path,
) -> None:
    """An append does not have the store's lock, and may add a topic to the settings."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a").append(b"x")
        store.create_topic("b").append(b"x")
        settings = store._topics.catalog.settings.stored
        settings["a"] = _Grows(settings, settings["a"])
        cut = take_cut(store._context, store._topics, store._publishing.publisher)
        assert sorted(cut.settings) == ["a", "b"]
        del settings["of Kafka"]
