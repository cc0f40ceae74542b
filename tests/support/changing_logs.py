"""A store whose log changes under its readers: its writer cuts or deletes it, a broker
takes it over, a backup is put back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logstore
from logstore.io import layout
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.read_ways import append
from support.values import new_partition

__all__ = ["Scene", "bounds", "put_back", "write_epochs", "write_starts"]


class Scene(contextlib.ExitStack):
    """A store with the partition ``orders-0``, as its writer has it.

    Attributes:
        path, backup: of the store, and of a copy of it.
        store: of the last opening.
        config: of the next one.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.backup = path / "store", path / "backup"
        self.store: logstore.Store
        self.config: logstore.StoreConfig | None = None

    @property
    def partition_path(self) -> Path:
        return self.path / "orders-0"

    @property
    def log(self) -> Path:
        """The file of the first segment."""
        return self.partition_path / f"{0:020d}.log"

    @property
    def saved_log(self) -> Path:
        """The same file of the backup."""
        return self.backup / self.log.relative_to(self.path)

    def open(self, files: Any = None) -> None:
        """Open the store as its writer."""
        opened = open_store(self.path, _files=files or Unsynced(), config=self.config)
        self.store = self.enter_context(opened)

    def create(self, magic: int = 1, files: Any = None, **settings: Any) -> Any:
        """Make the store and the partition, which is returned."""
        self.open(files)
        return new_partition(self.store, magic, **settings)

    def open_partition(self) -> Any:
        """Open the store as its writer; return the partition."""
        self.open()
        return self.store.topic("orders")[0]

    def recreate(self, magic: int = 1, **settings: Any) -> Any:
        """Delete the topic, and create it again; return the partition."""
        self.store.delete_topic("orders")
        return new_partition(self.store, magic, **settings)

    def saved(self, count: int, magic: int = 1, **settings: Any) -> Any:
        """Make a partition with `count` records, and a backup of the closed store;
        return the partition, opened again."""
        append(self.create(magic, **settings), b"old", count)
        self.store.close()
        shutil.copytree(self.path, self.backup)
        return self.open_partition()

    def killed(self, saved: int, more: int) -> None:
        """Make a store as after a kill, and a backup of it without the last records,
        since which no state was written."""
        live = self.path.with_name("live")
        with open_store(live, _files=Unsynced()) as store:
            p = new_partition(store)
            append(p, b"old", saved)
            p.flush()
            shutil.copytree(live, self.backup)
            append(p, b"old", more)
            shutil.copytree(live, self.path)

    def to_another_program(self) -> None:
        """Mark the store as taken over by another program."""
        (self.path / layout.RECOVERY_CHECKPOINT).write_text("0\n1\nx 0 7\n")
        (self.path / layout.CLEAN_SHUTDOWN).unlink()

    @contextlib.contextmanager
    def reading(self, where: str = "other", **options: Any) -> Iterator[logstore.Store]:
        """The store as its writer's process has it, or opened by a reader."""
        if where == "own":
            yield self.store
            return
        with open_store(self.path, read_only=True, **options) as reading:
            yield reading


def put_back(backup: Path, path: Path, how: str = "overwritten") -> None:
    """Put a backup back in place of the files of a closed store: by new files; over the
    existing ones; or so that these get the times of the backup, too (`restored`)."""
    for file in path.rglob("*.log"):
        if how == "restored" and not (backup / file.relative_to(path)).exists():
            file.unlink()
    for file in filter(Path.is_file, backup.rglob("*")):
        to = path / file.relative_to(backup)
        if how == "replaced":
            temporary = to.with_name(".putting-back")
            shutil.copy2(file, temporary)
            temporary.rename(to)
        elif how == "restored":
            shutil.copy2(file, to)
        else:
            to.write_bytes(file.read_bytes())


def write_epochs(partition: Path, *epochs: tuple[int, int]) -> None:
    """Write Kafka's leader epochs: (epoch, its first offset)."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {first}" for epoch, first in epochs)]
    new = partition / "leader-epoch-checkpoint.tmp"
    new.write_text("\n".join(lines) + "\n")
    new.rename(partition / "leader-epoch-checkpoint")


def write_starts(path: Path, start: int | None = None) -> None:
    """Write the log start offsets as a broker does; None: no row for the log."""
    rows = "" if start is None else f"orders 0 {start}\n"
    temporary = path / "log-start-offset-checkpoint.tmp"
    temporary.write_text(f"0\n{len(rows) and 1}\n{rows}")
    temporary.rename(path / "log-start-offset-checkpoint")


def bounds(p: logstore.Partition) -> tuple[int, int, list[int]]:
    """The start and the end of a log, and where its segments begin."""
    return p.start_offset, p.end_offset, [one.base_offset for one in p.segments]
