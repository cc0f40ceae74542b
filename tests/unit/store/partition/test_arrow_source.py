"""`to_table`, `to_pandas`, `to_polars`, `head`, and the display in notebooks."""

from __future__ import annotations

import datetime
import html.parser
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from support.arrow import pa, pc
from support.values import config_of

COUNT = 20


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Topics a, b-1 and b-2 with two partitions each."""
    with logstore.open(tmp_path) as store:
        for name in ("a", "b-1", "b-2"):
            for partition in store.create_topic(name, 2, config_of(2)):
                partition.append_many(
                    [b'{"n": %d}' % number for number in range(COUNT)],
                    keys=[b"key"] * COUNT,
                )
        yield store


def test_table_has_all_records_or_what_was_asked_for(store: Any) -> None:
    topic, partition = store["a"], store["a"][1]
    assert topic.to_table().equals(topic.read_arrow().read_all())
    assert partition.to_table().equals(partition.read_arrow().read_all())
    assert topic.to_table(start={0: 15}, stop=18).num_rows == 3 + 18
    table = partition.to_table(columns=["value", "offset"], limit=3, threads=2)
    assert table.schema.names == ["value", "offset"]
    assert table["offset"].to_pylist() == [0, 1, 2]
    with pytest.raises(logstore.ConfigError, match="threads"):
        topic.to_table(threads=0)


def test_head_has_the_first_records(store: Any) -> None:
    assert store["a"][0].head().num_rows == 10
    table = store["a"].head(COUNT + 3, columns=["partition", "offset"])
    offsets = [*range(COUNT), 0, 1, 2]
    assert table["offset"].to_pylist() == offsets
    assert table["partition"].to_pylist() == [0] * COUNT + [1] * 3
    assert store["a"].head(0).num_rows == 0
    with pytest.raises(logstore.ConfigError):
        store["a"].head(-1)


def test_frames_of_pandas_and_polars_have_the_same_rows(store: Any) -> None:
    pandas, polars = (pytest.importorskip(name) for name in ("pandas", "polars"))
    options = {"text": True, "json": {"n": "int64", "none": "int64"}}
    for source in (store["a"], store["a"][0]):
        table = source.to_table(**options)
        assert source.to_polars(**options).equals(polars.DataFrame(table))
        frame = source.to_pandas(**options)
        assert list(frame.columns) == table.schema.names
        assert frame["n"].tolist() == table["n"].to_pylist()
        # An integer with nulls is no float, which would not represent large ones
        # exactly.
        assert frame["n"].dtype == frame["none"].dtype == pandas.Int64Dtype()
        assert frame["none"].isna().all()
        assert source.to_pandas(stop=3)["value"].iloc[0] == b'{"n": 0}'


def test_frame_made_of_a_topic_itself_is_refused(store: Any) -> None:
    """It would have the partitions for its rows."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="to_pandas"):
        pandas.DataFrame(store["a"])
    with pytest.raises((TypeError, ValueError)):
        pandas.DataFrame(store["a"][0])


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_package_that_is_not_there_is_named(
    store: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = importlib.import_module

    def refuse(wanted: str) -> Any:
        if wanted == name:
            raise ModuleNotFoundError(name=name)
        return real(wanted)

    topic, error = store["a"], logstore.errors.UnsupportedError
    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(error, match=f"pip install {name}"):
        getattr(topic, f"to_{name}")()


async def _same_frames(path: str) -> None:
    async with await logstore.aio.open(path, read_only=True) as store:
        assert store["a"].to_table().num_rows == 2 * COUNT
        assert store["a"][0].head(3).num_rows == 3
        assert store.to_dataset("b-*").count_rows() == 4 * COUNT


def test_asyncio_has_the_same_frames(store: Any) -> None:
    import asyncio

    asyncio.run(_same_frames(store.path))


# ------------------------------------------------------------------ datasets


def test_dataset_of_a_store_has_the_topics_that_are_chosen(store: Any) -> None:
    """Topics are chosen by name or pattern; a later topic is in the next scan."""

    def topics(chosen: Any) -> list[str]:
        table = store.to_dataset(chosen).to_table(columns=["topic"])
        return sorted(set(table["topic"].to_pylist()))

    assert topics(None) == ["a", "b-1", "b-2"]
    assert topics("a") == ["a"]
    assert topics("b-*") == topics("b-[0-9]") == topics("b-?") == ["b-1", "b-2"]
    assert topics(["a", "*-2"]) == ["a", "b-2"]
    assert topics("none*") == []
    dataset = store.to_dataset("b-*")
    filtered = dataset.count_rows(filter=pc.field("topic") == "b-2")
    assert filtered == 2 * COUNT
    store.create_topic("b-3")[0].append(b"late")
    assert dataset.count_rows() == 4 * COUNT + 1
    for wrong in ("c", ["a", "c"]):
        with pytest.raises(logstore.TopicNotFoundError, match="no topic 'c'"):
            store.to_dataset(wrong)
    for wrong in (5, [5], b"a"):
        with pytest.raises(TypeError):
            store.to_dataset(wrong)


@pytest.mark.parametrize("time", ["2026-11-29", datetime.datetime(2026, 11, 29)])
def test_condition_on_a_time_without_a_zone_says_what_to_give(
    store: Any, time: Any
) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="an aware time"):
        store["a"].to_dataset().count_rows(filter=pc.field("timestamp") >= time)
    with pytest.raises(pa.ArrowNotImplementedError) as caught:
        store["a"].to_dataset().count_rows(filter=pc.field("offset") >= "5")
    assert "aware" not in str(caught.value)


# ------------------------------------------------------------------ notebooks


class Cells(html.parser.HTMLParser):
    """The texts of the cells of a table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_notebook_shows_tables(store: Any) -> None:
    texts = Cells(store._repr_html_()).texts
    assert [text for text in texts if text in store] == store.topics()
    for source, partitions in ((store["a"], 2), (store["a"][1], 1)):
        texts = Cells(source._repr_html_()).texts
        assert texts[0] == repr(source)
        assert texts.count(str(COUNT)) == partitions
    with logstore.Consumer(
        store, group="g", topics=["a"], reset="earliest"
    ) as consumer:
        consumer.poll()
        consumer.commit()
        texts = Cells(logstore.groups(store.path)._repr_html_()).texts
    assert {"g", "Stable"} <= set(texts)


def test_notebook_shows_markup_in_names_as_text(tmp_path: Path) -> None:
    path = tmp_path / "<script>alert(1)</script>&"
    with logstore.open(path) as store:
        topic = store.create_topic("t")
        for page in (store._repr_html_(), topic._repr_html_(), topic[0]._repr_html_()):
            assert page is not None
            assert "<script" not in page
            assert "script" not in Cells(page).tags


def test_notebook_shows_the_text_of_what_is_closed(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t")
    assert store._repr_html_() is None
    assert topic._repr_html_() is None


def test_notebook_shows_the_first_of_many_rows(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        page = store.create_topic("t", partitions=130)._repr_html_()
        assert page is not None
        assert "and 30 more" in page
        assert Cells(page).tags.count("tr") == 101
