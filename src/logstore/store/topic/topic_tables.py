"""The topics of a store as one table: a dataset, and the view in a notebook."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from logstore.config import check_kind
from logstore.errors import LogStoreError, TopicNotFoundError
from logstore.log.frames.log import Log
from logstore.log.read.options import ReadOptions
from logstore.record.arguments import as_items
from logstore.record.extras import frames_module
from logstore.store.topic.topic import Topic

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = ["dataset_of", "page_of"]


class TableSource(Protocol):
    """A store, as far as its topics are shown."""

    @property
    def path(self) -> str: ...

    def topics(self) -> list[str]: ...

    def topic(self, name: str) -> Topic: ...

    def metrics(self) -> dict[str, Any]: ...


def dataset_of(
    store: TableSource,
    topics: str | Iterable[str] | None,
    threads: int | None,
    options: ReadOptions,
) -> pyarrow.dataset.Dataset:
    """See `Store.to_dataset`."""
    wanted = _Choice(topics)
    wanted.among(store.topics())

    def logs() -> list[Log]:
        chosen = map(store.topic, wanted.among(store.topics()))
        return [log for topic in chosen for log in topic._logs_now(options)]

    return frames_module("dataset").LogDataset(logs, f"store {store.path}", threads)


def page_of(store: TableSource) -> str | None:
    """A table of the topics, as HTML; None if the store is closed."""
    try:
        partition_rows = store.metrics()["partitions"]
    except LogStoreError:
        return None
    notebook = frames_module("notebook")
    number, size = notebook.Cell.number, notebook.Cell.size
    rows = []
    for name, some in itertools.groupby(partition_rows, lambda row: row["topic"]):
        sizes = [row["size_bytes"] or 0 for row in some]
        rows.append([notebook.Cell(name), number(len(sizes)), size(sum(sizes))])
    page: str = notebook.shown(repr(store), ("topic", "partitions", "bytes"), rows)
    return page


class _Choice:
    """Names of topics, and patterns of names.

    Args:
        topics: as in `Store.to_dataset`.
    """

    def __init__(self, topics: str | Iterable[str] | None) -> None:
        names = ("*",) if topics is None else topics
        self._given = tuple(as_items("topics", _listed(names), of="names"))
        for name in self._given:
            check_kind("topics", name, str)

    def among(self, names: Iterable[str]) -> list[str]:
        """Names that are chosen among `names`, in their order.

        Raises:
            TopicNotFoundError: one that is not a pattern is not among them.
        """
        there = list(names)
        for name in self._given:
            if name not in there and not _PATTERN.search(name):
                raise TopicNotFoundError(
                    f"no topic {name!r}; there are: {', '.join(there) or 'none'}",
                    topic=name,
                )
        return [
            name
            for name in there
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._given)
        ]


# A name with one of these is a pattern: names of topics cannot contain them.
_PATTERN: Final = re.compile(r"[*?\[]")


def _listed(topics: str | Iterable[str]) -> Iterable[str]:
    return (topics,) if isinstance(topics, str) else topics
