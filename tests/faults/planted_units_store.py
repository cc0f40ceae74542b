"""Bugs planted for the unit level in the rooms of stores: `store`, `aio`."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_STORES = (
    unit_bug(
        "requests that wait behind answered ones wait for the next report",
        "store/publication/hand_in.py",
        "        while self._names and not waiting:\n",
        "        if self._names:\n",
        "store/publication/test_hand_in.py",
    ),
    unit_bug(
        "the active segment of an idle log is not counted",
        "store/measures.py",
        "            row[\"segments\"] = len(sizes) + 1\n",
        "            row[\"segments\"] = len(sizes)\n",
        "store/test_measures.py",
    ),
    unit_bug(
        "a follower of a topic ends though records came meanwhile",
        "store/topic/merging.py",
        "            if any(cursor.has_moved for cursor in now):\n"
        "                last = time.monotonic()\n",
        "            if any(cursor.has_moved for cursor in now):\n",
        "store/topic/test_merging.py",
    ),
    unit_bug(
        "a journal that takes the place of another one wakes nobody",
        "store/partition/new_records.py",
        "(signals, directories, watches, journal and journal[0], incarnation)",
        "(signals, directories, watches, incarnation)",
        "store/partition/test_new_records.py",
    ),
    unit_bug(
        "a failure in the background that comes back is not raised again",
        "store/background.py",
        "            self._act(*key)\n            self._met.pop(key, None)\n",
        "            self._act(*key)\n",
        "store/test_background_retention.py",
    ),
    unit_bug(
        "a publication that is repeated keeps its old note",
        "store/publication/publication.py",
        "return before._replace(note=self.note, is_pinned=is_pinned)",
        "return before._replace(is_pinned=is_pinned)",
        "store/publication/test_publication.py",
    ),
    unit_bug(
        "a publication tells the offsets of its last part alone",
        "store/publication/publication_group.py",
        "                mine[target.key] = range(begin, span.stop)\n",
        "                mine[target.key] = range(span.start, span.stop)\n",
        "store/publication/test_publication_group.py",
    ),
    unit_bug(
        "a commit that an interrupt has left unsynced is shown",
        "store/publication/group_commit.py",
        "            self._journal.confirm()\n            self.barrier",
        "            self.barrier",
        "store/publication/test_group_commit.py",
    ),
    unit_bug(
        "a reader counts a commit that has no seal",
        "io/checkpoint/publications.py",
        "journal.pending is None or ownership.is_same_boot:\n",
        "journal.pending is None:\n",
        "store/publication/test_unfinished.py",
    ),
    unit_bug(
        "other records in the place of published ones are cut off",
        "store/publication/unfinished.py",
        "            if found_in(context.root, key, span) is not Found.OTHER:\n",
        "            if True:\n",
        "store/publication/test_unfinished.py",
    ),
    unit_bug(
        "a log and the journal are synced one after the other",
        "_native/system.py",
        "    if lib.ls_sys_sync_files(list(fds), results, len(fds), function) < 0:\n",
        "    sync = lib.ls_sys_sync_files\n"
        "    calls = enumerate(fds)\n"
        "    if [sync([f], results + n, 1, function) for n, f in calls] == 0:\n",
        "store/publication/test_unfinished.py",
    ),
    unit_bug(
        "a publication that was interrupted before it began is there in part",
        "store/publication/group_commit.py",
        "        return self._has_begun and any(\n",
        "        return any(\n",
        "store/publication/test_group_commit.py",
    ),
    unit_bug(
        "an end that a deletion has forgotten is a commit",
        "io/checkpoint/publication_journal.py",
        "any(known.get(key, base) != base for",
        "any(known.get(key) != base for",
        "store/publication/test_group_commit.py",
    ),
    unit_bug(
        "readers leave a publication that was interrupted to the next one",
        "log/write/log_writer.py",
        "        if not (self.visibility.barrier.is_open or health.has_ended):\n",
        "        if False:\n",
        "store/publication/test_group_commit.py",
    ),
    unit_bug(
        "an append to several partitions begins before the last one is checked",
        "store/topic/routing.py",
        "    for number, writer in writers.items():\n"
        "        writer.appends.check_append(rows[number], durable)\n",
        "",
        "store/topic/test_topic_records.py",
    ),
    unit_bug(
        "a copy of a topic that is still there has its id",
        "store/catalog/topic_ids.py",
        "return derived_id(found, topic) if found and is_taken(found, \"\") else found",
        "return found",
        "store/catalog/test_topic_ids_found.py",
    ),
    unit_bug(
        "a full disk does not stop a deletion that only the settings tell",
        "store/catalog/topic_settings.py",
        "            if is_needed or not isinstance(failed, DiskFullError):\n",
        "            if not isinstance(failed, DiskFullError):\n",
        "store/catalog/test_topic_settings.py",
    ),
    unit_bug(
        "emptied directories go while the settings still have their topic",
        "store/catalog/deleted_directories.py",
        "        if self._settings.is_dirty:\n",
        "        if False:\n",
        "store/catalog/test_topic_settings.py",
    ),
    unit_bug(
        "a topic has another id at each first append",
        "store/catalog/known_ids.py",
        "self._minted.setdefault(topic, uuid.uuid4().hex)",
        "uuid.uuid4().hex",
        "store/catalog/test_topic_settings.py",
    ),
    unit_bug(
        "a change that was interrupted behind the file stays in the file",
        "store/catalog/topic_settings.py",
        "self.is_dirty or self._is_damaged or self._is_in_doubt",
        "self.is_dirty or self._is_damaged",
        "store/catalog/test_topic_settings.py",
    ),
    unit_bug(
        "a durable append succeeds though its sync has failed",
        "aio/commits.py",
        "                call.error = call.error or _copy_of(error)\n",
        "                pass\n",
        "aio/test_commits.py",
    ),
    unit_bug(
        "a follower that begins gets an older look at the log",
        "aio/wakes.py",
        "later than this place.\n        self._seen = None\n",
        "later than this place.\n",
        "aio/test_wakes.py",
    ),
    unit_bug(
        "a durable append to a topic returns before its sync",
        "aio/topic.py",
        "return [(self.blocking[number], span.stop) for number, span in appended]",
        "return [(self.blocking[number], span.start) for number, span in appended]",
        "aio/test_topic.py",
    ),
    unit_bug(
        "the time of a follower does not begin anew with a record",
        "aio/follower.py",
        "        elif step:\n            self._moved_at = loop.time()\n",
        "        elif step:\n            pass\n",
        "aio/test_follower.py",
    ),
    unit_bug(
        "callers publish under the identities of groups",
        "store/publication/publication.py",
        "identity.startswith(GROUP_IDENTITY)",
        "identity == GROUP_IDENTITY",
        "store/publication/test_publication.py",
    ),
    unit_bug(
        "a snapshot is made in the store that it is of",
        "store/copy/snapshot.py",
        "    if _lies_in(files, source, path):\n",
        "    if source == path:\n",
        "store/copy/test_snapshot.py",
    ),
)  # fmt: skip
