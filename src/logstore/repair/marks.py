"""The marks on a store that tell who wrote last, and how it ended, around a repair.

The steps are those of a writer (`logstore.store`): the mark of a clean stop goes before
the first change, and comes back behind the last one where it was there before. There is
no moment at which a crash makes logstore's own state look like a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore import checkpoints, layout
from logstore._files import Directory
from logstore.verify.facts import StoreFacts


class Marks:
    """The owner file, Kafka's marker and recovery points of a store under repair."""

    def __init__(self, root: Directory, facts: StoreFacts) -> None:
        self.root = root
        self.own = facts.own
        self.clean = facts.clean
        self.points = dict(facts.points)
        self._has_begun = False

    def begin(self) -> None:
        """Take away the mark of a clean stop, once, before anything is changed.

        1. owner file: not clean, as it is now or without Kafka's marker; 2. remove the
        marker; 3. sync. A store that another program wrote last has no mark of ours.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if not self.own:
            return
        now = checkpoints.store_fingerprint(self.root)
        self._write_owner(False, now, {**now, "clean_shutdown": None})
        self.root.unlink(layout.CLEAN_SHUTDOWN, missing_ok=True)
        self.root.sync()

    def finish(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Have the recovery points tell of the partitions that were mended (`ends`:
        where each log ends, all of it synced), and put the mark back.

        1. owner file: as it is now, with the new points, with the marker; 2. recovery
        points; 3. Kafka's marker; 4. owner file: clean, if it was.
        """
        if not self._has_begun:
            return
        points = {**self.points}
        for key, end in ends.items():
            if self.own or points.get(key, 0) > end:
                points[key] = end
        if not self.own:
            if points != self.points:
                checkpoints.write_offsets(self.root, layout.RECOVERY_CHECKPOINT, points)
            return
        now = checkpoints.store_fingerprint(self.root)
        pointed = {
            **now,
            "recovery_points": checkpoints.digest_of(
                checkpoints.format_offsets(points)
            ),
        }
        marker = checkpoints.CLEAN_SHUTDOWN_TEXT
        marked = {**pointed, "clean_shutdown": checkpoints.digest_of(marker)}
        self._write_owner(False, now, pointed, marked)
        checkpoints.write_offsets(self.root, layout.RECOVERY_CHECKPOINT, points)
        if self.clean:
            self.root.write_file(layout.CLEAN_SHUTDOWN, marker)
            self._write_owner(True, marked)

    def _write_owner(
        self, clean: bool, *fingerprints: Mapping[str, str | None]
    ) -> None:
        checkpoints.write_state(
            self.root,
            layout.OWNER,
            {"clean": clean, "fingerprints": list(fingerprints)},
        )
