"""Planted bugs about services over power cuts and failing calls: durable parts of a
group's file, assumptions of a member about others, results of a hand-in."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_SERVICES = (
    Bug(
        "a durable commit that is made in one call is not synced",
        "io/files.py",
        (("        else:\n            self.sync(fd)\n        return True",
          "        return True"),),
        "disk_states",
        ("produce", "commit_durable"),
    ),
    Bug(
        "a group's file takes its name before its bytes are synced",
        "io/checkpoint/append_file.py",
        (("        file.sync()\n        return file\n", "        return file\n"),),
        "disk_states",
        ("produce", "commit", "commit_durable"),
    ),
    Bug(
        "a reset of offsets is told, and not logged",
        "group/resets.py",
        (("        if commits:\n            self._file.append(slots, commits)\n", ""),),
        "disk_states",
        ("produce", "flush", "commit", "reset"),
        quick=2,
    ),
    Bug(
        "a reset of offsets is not made durable",
        "group/resets.py",
        (("            if changes:\n                self._file.sync(slots, "
          "self._file.end)\n", ""),),
        "disk_states",
        ("produce", "flush", "commit", "reset"),
    ),
    Bug(
        "positions are published beside their records, not with them",
        "group/consumer/transaction.py",
        (("                metadata=metadata,\n                pinned=True,\n",
          "                metadata=b'{\"at\":[]}' if staged else metadata,\n"
          "                pinned=True,\n"),
         ("            is_mine = done.metadata == metadata\n",
          "            is_mine = True\n")),
        "disk_states",
        ("produce", "flush", "transaction"),
    ),
    Bug(
        "what is handed in again is published again",
        "store/publication/publisher.py",
        (("        if last is not None and sequence == last.sequence:\n",
          "        if False:\n"),),
        "disk_states",
        ("submit",),
        quick=1,
    ),
    Bug(
        "a member takes the failed sync of another for durable",
        "group/file/durable_point.py",
        (("is_now and any(boot), is_doubtful and is_now, is_synced",
          "is_now and any(boot), False, is_synced"),),
        "failing_calls",
        ("commit, durable", "first commit"),
        call="sync",
        quick=1,
    ),
    Bug(
        "nothing was committed, says a sync that could not begin",
        "group/file/group_log.py",
        (("            raise self._not_durable(error) from error\n\n    def _sync(",
          "            raise\n\n    def _sync("),),
        "failing_calls",
        ("commit, durable",),
        call="write",
        quick=1,
    ),
    Bug(
        "an epoch that cannot be written is given out",
        "io/checkpoint/producer_names.py",
        (("    checkpoints.write_state(root, layout.PRODUCERS, "
          "{\"producers\": rows})\n",
          "    try:\n"
          "        checkpoints.write_state(root, layout.PRODUCERS, "
          "{\"producers\": rows})\n"
          "    except OSError:\n        pass\n"),),
        "failing_calls",
        ("take a producer over",),
        quick=1,
    ),
    Bug(
        "a commit of a group that is made in one call is not synced",
        "io/checkpoint/append_file.py",
        (("                native.Step(native.STEP_SYNC, file.fd),\n",
          "                native.Step(native.STEP_UNLOCK, file.fd, 5000),\n"),),
        "recorded_calls",
        ("each call", "a commit"),
    ),
    Bug(
        "a group's file that was written anew is not synced",
        "io/checkpoint/append_file.py",
        (("        file.sync()\n        return file\n", "        return file\n"),),
        "recorded_calls",
        ("each call", "a group's file anew"),
    ),
    Bug(
        "positions of a transaction are lost",
        "group/consumer/transaction.py",
        (("                metadata=metadata,\n                pinned=True,\n",
          "                metadata=b'{\"at\":[]}' if staged else metadata,\n"
          "                pinned=True,\n"),
         ("            is_mine = done.metadata == metadata\n",
          "            is_mine = True\n")),
        "recorded_calls",
        ("each call", "a transaction"),
    ),
    Bug(
        "a publication is committed before its records are synced",
        "io/checkpoint/append_file.py",
        (("        fds = [*self.fds, calls.file.fd] if self.fds else []\n",
          "        fds = [calls.file.fd for _ in (*self.fds, calls)]\n"),),
        "recorded_calls",
        ("each call", "a publication", "a hand-in"),
    ),
    Bug(
        "a compacted segment takes its name before it is synced",
        "log/compact/output.py",
        (("        files.sync(self._fd)\n        self.close()\n",
          "        self.close()\n"),),
        "recorded_calls",
        ("each call", "a compaction"),
    ),
    Bug(
        "a batch that a producer sends again is not known",
        "log/write/appender.py",
        (("                log.idempotence.add(sent, base, log.bounds.end)\n",
          "                log.idempotence._is_adding = False\n"),),
        "recorded_calls",
        ("power cuts", "producers"),
    ),
    Bug(
        "the files of an interrupted compaction are taken for those of the log",
        "log/recover/apply.py",
        (("directory.rename(name, name.removesuffix(SWAP))",
          "directory.unlink(name)"),),
        "kills",
    ),
    Bug(
        "positions are published, and their records are lost",
        "group/consumer/transaction.py",
        (("                staged,\n                identity=identity,\n",
          "                [],\n                identity=identity,\n"),),
        "kills",
    ),
    Bug(
        "a commit counts before it is written",
        "group/file/group_file.py",
        (("        return self._log.append_at_once(slots, data, items, "
          "durable=durable)\n",
          "        self._records.note(items, None)\n        return True\n"),),
        "kills",
    ),
)  # fmt: skip
