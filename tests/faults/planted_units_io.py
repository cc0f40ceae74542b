"""Bugs planted for the unit level in the rooms of files: `io`, `io/checkpoint`."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_IO = (
    unit_bug(
        "a waiter that was woken by a signal is not woken by the next one",
        "io/wakeups.py",
        "            self._register()\n            return True\n",
        "            return True\n",
        "io/test_wakeups.py",
    ),
    unit_bug(
        "a process of the machine's last run counts as running",
        "io/byte_locks.py",
        "return process.boot == boot and process.start == _start_of(process.pid) != 0",
        "return process.start == _start_of(process.pid) != 0",
        "io/test_byte_locks.py",
    ),
    unit_bug(
        "an open file counts the names of the file that has replaced it",
        "io/links.py",
        "return mine.st_nlink if os.path.samestat(mine, named) else 0",
        "return mine.st_nlink",
        "io/test_links.py",
    ),
    unit_bug(
        "the size of a replaced index stays in the sum",
        "io/file_cache.py",
        "            self._index_bytes -= dropped[1]\n",
        "            pass\n",
        "io/test_file_cache.py",
    ),
    unit_bug(
        "files put beside those of an owner with a group are closed to it",
        "io/filesystem.py",
        "        root.access = access._replace(group=access.group | group)\n",
        "        root.access = access\n",
        "io/test_filesystem.py",
    ),
    unit_bug(
        "the name of a deleted directory may be longer than 255 characters",
        "io/layout.py",
        "    return topic[: 255 - len(tail)] + tail\n",
        "    return topic + tail\n",
        "io/test_layout.py",
        quick=1,
    ),
    unit_bug(
        "files are removed while the second-last user reads them",
        "io/scheduler.py",
        "            while references and references[-1]() is None:\n"
        "                references.pop()\n",
        "            if references and references[-1]() is None:\n"
        "                references.clear()\n",
        "io/test_scheduler.py",
    ),
    unit_bug(
        "a cut raises the checkpoint of what is compacted",
        "io/checkpoint/cleaner.py",
        "after = {key: min(at, ends.get(key, at)) for key, at in before.items()}",
        "after = {key: ends.get(key, at) for key, at in before.items()}",
        "io/checkpoint/test_cleaner.py",
        quick=1,
    ),
    unit_bug(
        "a name that needs another id forgets its earlier ones",
        "io/checkpoint/producer_names.py",
        "after = NamedProducer(0, (_new_id(), *before.ids))",
        "after = NamedProducer(0, (_new_id(),))",
        "io/checkpoint/test_producer_names.py",
    ),
    unit_bug(
        "a digest that was copied from another segment counts",
        "io/checkpoint/segment_digest.py",
        "        if digest.base_offset == base_offset:\n            return digest\n",
        "        return digest\n",
        "io/checkpoint/test_segment_digest.py",
    ),
    unit_bug(
        "leader epochs are compared from the lower of two starts on",
        "io/checkpoint/leader_epochs.py",
        "start = max(self.rows[0][1], other.rows[0][1])",
        "start = min(self.rows[0][1], other.rows[0][1])",
        "io/checkpoint/test_leader_epochs.py",
    ),
    unit_bug(
        "the lowest of the merged cuts is forgotten",
        "io/checkpoint/cuts.py",
        "            rows[:2] = [(rows[1][0], rows[0][1])]\n",
        "            del rows[0]\n",
        "io/checkpoint/test_cuts.py",
    ),
    unit_bug(
        "the last batch of a state counts though the file is shorter now",
        "io/checkpoint/log_tail.py",
        "return found is not None and found[0] == self and found[1] <= size",
        "return found is not None and found[0] == self",
        "io/checkpoint/test_log_tail.py",
    ),
    unit_bug(
        "a file system whose UUID was unknown makes a store a copy",
        "io/checkpoint/place.py",
        "is_same_system = not (recorded[1] and system) or recorded[1] == system",
        "is_same_system = recorded[1] == system",
        "io/checkpoint/test_place.py",
        quick=1,
    ),
    unit_bug(
        "an error tells another process a number that its file cannot hold",
        "io/checkpoint/plain_errors.py",
        "return isinstance(value, int) and -(1 << 63) <= value < 1 << 63",
        "return isinstance(value, int)",
        "io/checkpoint/test_plain_errors.py",
    ),
    unit_bug(
        "a file that was never finished counts as one of logstore",
        "io/checkpoint/topic_identity.py",
        "name.startswith(OWN_PREFIX) and not name.endswith(\".tmp\")",
        "name.startswith(OWN_PREFIX)",
        "io/checkpoint/test_topic_identity.py",
    ),
    unit_bug(
        "an end that cannot be read protects no log",
        "io/checkpoint/verdicts.py",
        "return self.closed in (_ANY_END, ClosedEnd.of(store_epoch, active))",
        "return self.closed == ClosedEnd.of(store_epoch, active)",
        "io/checkpoint/test_verdicts.py",
    ),
    unit_bug(
        "a producer may have two rows",
        "io/checkpoint/state_fields.py",
        "if not isinstance(name, str) or not name or name in names:",
        "if not isinstance(name, str) or not name:",
        "io/checkpoint/test_state_fields.py",
    ),
    unit_bug(
        "a checkpoint of which lines are missing is read",
        "io/checkpoint/checkpoints.py",
        "            int(words[1]) == len(offsets)\n            and max(",
        "            max(",
        "io/checkpoint/test_checkpoints.py",
    ),
    unit_bug(
        "a log counts as synced when it has just got its end in the journal",
        "io/checkpoint/publications.py",
        "                    if key in bases:\n"
        "                        synced.add(key)\n",
        "                    synced.add(key)\n",
        "io/checkpoint/test_publications.py",
    ),
    unit_bug(
        "a request that was handed in anew is removed with the answered one",
        "io/checkpoint/requests.py",
        "            if self._root.stat(self.name).inode == self._inode:\n"
        "                self._root.unlink(self.name)\n",
        "            self._root.unlink(self.name)\n",
        "io/checkpoint/test_requests.py",
    ),
    unit_bug(
        "a snapshot that waits for its removal counts",
        "io/checkpoint/producer_snapshot.py",
        "        and parsed.suffix == SNAPSHOT\n        and not parsed.transition\n",
        "        and parsed.suffix == SNAPSHOT\n",
        "io/checkpoint/test_producer_snapshot.py",
    ),
    unit_bug(
        "the durable page of another run of a log counts",
        "io/checkpoint/durable_page.py",
        "or not head or not data.startswith(head):",
        "or not head:",
        "io/checkpoint/test_durable_page.py",
    ),
)  # fmt: skip
