"""Planted bugs about the identity of topics, logs and positions."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_INCARNATIONS = (
    Bug(
        "another program has written: a topic gets another id",
        "store/catalog/known_ids.py",
        (("        return {\"id\": topic_id, \"identified\": True, **also}",
          "        return {\"id\": topic_id[::-1], \"identified\": True, **also}"),),
        "incarnations",
        quick=1,
    ),
    Bug(
        "a topic that a broker has made again keeps its id",
        "store/catalog/topic_ids.py",
        (("        return self.kafka_id(topic) not in kafka_ids",
          "        return False"),),
        "incarnations",
        quick=1,
    ),
    Bug(
        "a handle does not ask whether its topic is still there",
        "store/topic/open_topics.py",
        (("            if held and not self._catalog_file.is_of(",
          "            if not held and not self._catalog_file.is_of("),),
        "incarnations",
        quick=1,
    ),
    Bug(
        "a position counts in a log that has another batch below it",
        "group/consumer/log_reader.py",
        (("self._proof is not None and views", "self._proof == -1 and views"),),
        "incarnations",
    ),
    Bug(
        "a consumer that lives goes on above a cut of its log",
        "group/consumer/log_reader.py",
        (("            if not records and self._step > 1 and not is_other:\n",
          "            if not records and self._step > 1:\n"
          "                self._latest = Latest()\n"),),
        "incarnations",
    ),
    Bug(
        "a position of a log that was cut is committed",
        "group/consumer/log_reader.py",
        (("            and is_read\n            and not seen", "            and False\n"
          "            and not seen"),),
        "incarnations",
    ),
    Bug(
        "cuts that logstore has recorded do not count in another program's log",
        "log/follow/decide.py",
        (("recorded = now.cuts.lowest_removal_since(before.cuts.serial)",
          "recorded = NO_CUT"),),
        "incarnations",
    ),
    Bug(
        "a cut by the writer that takes over the log of another program is not seen",
        "log/follow/decide.py",
        (("    if newest is not None and newest not in now.bytes.standing:\n",
          "    is_same = before.is_foreign is now.is_foreign\n"
          "    if newest and is_same and newest not in now.bytes.standing:\n"),),
        "incarnations",
    ),
    Bug(
        "a consumer that is told of a cut repeats what is committed behind it",
        "group/consumer/positions.py",
        (("partition.start_offset, self._proven(reader)\n",
          "partition.start_offset\n"),),
        "incarnations",
    ),
    Bug(
        "the id of a topic is not looked for in its partitions",
        "store/catalog/topic_ids.py",
        (("        identity = self.identity(topic)\n        if identity is None:",
          "        identity = None\n        if identity is None:"),),
        "incarnations",
        quick=1,
    ),
    Bug(
        "a position from before a cut is lowered to the end of the log",
        "store/copy/copies.py",
        (("    return end if commit_ms < 0 else min(", "    return max("),),
        "incarnations",
    ),
    Bug(
        "a topic that was moved twice has another id",
        "store/catalog/topics.py",
        (("            if identity is not None and identity.topic_id in lost:\n",
          "            if identity and identity.topic in lost.values():\n"),),
        "incarnations",
    ),
    Bug(
        "a follower takes the end of another program's use of the log for a cut",
        "log/follow/decide.py",
        (("        or now.cuts.has_return_since(before.cuts.serial)\n", ""),),
        "incarnations",
    ),
)  # fmt: skip
