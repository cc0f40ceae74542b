"""Planted bugs about consumer groups: state that is read again under each lock, holders
of partitions, and records that count as done."""

from __future__ import annotations

from faults.planted_bug import Bug


def _unread(call: str) -> tuple[str, str]:
    """A call, and the same without reading the group's file under the mutex."""
    indent = call[: len(call) - len(call.lstrip())]
    lines = (
        "read = self.group.file.refresh_held\n",
        "self.group.file.refresh_held = lambda slots: None\n",
        "try:\n",
        f"    {call.strip()}\n",
        "finally:\n",
        "    self.group.file.refresh_held = read\n",
    )
    return call, "".join(indent + line for line in lines)


BUGS_OF_GROUPS = (
    Bug(
        "a position is cached under the lock: a commit does not read the file again",
        "group/member/membership.py",
        (_unread("        group.locked(work)\n"),),
        "groups",
        quick=1,
    ),
    Bug(
        "the next generation is made without reading the last one again",
        "group/member/membership.py",
        (_unread(
            "            self.group.try_locked(lambda: self._settle(stuck, idle))\n"
        ),),
        "groups",
        ("commits", "commits, evict", "transactions, evict"),
    ),
    Bug(
        "a partition is taken without reading what was committed for it meanwhile",
        "group/member/membership.py",
        (_unread("            self.group.try_locked(self._take_held)\n"),),
        "groups",
        ("commits, handed over",),
    ),
    Bug(
        "a member leaves without reading the file again",
        "group/member/membership.py",
        (_unread("                self.group.locked(self._leave_held)\n"),),
        "groups",
        quick=1,
    ),
    Bug(
        "published positions are read once, and not again with the turn to publish",
        "group/consumer/transaction.py",
        (("        last, published = self._positions.read()\n",
          "        kept = self._slots.__dict__\n"
          "        if \"once\" not in kept:\n"
          "            kept[\"once\"] = self._positions.read()\n"
          "        last, published = kept[\"once\"]\n"),),
        "groups",
        ("transactions, quiet",),
        quick=6,
    ),
    Bug(
        "a partition is let go of before `on_revoke` has run",
        "group/consumer/assigned_partitions.py",
        (("            told = [key for key in keys if key in self._told]\n"
          "            self.call(self.callbacks.revoke, told)\n",
          "            told = [key for key in keys if key in self._told]\n"
          "            if self._place.member is not None:\n"
          "                self._place.member.holder.release(keys)\n"
          "            self.call(self.callbacks.revoke, told)\n"),),
        "groups",
        ("commits, quiet",),
        quick=1,
    ),
    Bug(
        "the child of a fork holds the locks of its parent on",
        "group/file/lock_file.py",
        (("    for file in list(_open_files):\n        file.close()\n",
          "    for file in list(_open_files):\n        pass\n"),),
        "groups",
        ("commits", "commits, evict"),
        quick=8,
    ),
    Bug(
        "the identity of a live group is forgotten as others are",
        "group/consumer/transaction.py",
        (("                pinned=True,\n", "                pinned=False,\n"),),
        "groups",
        ("transactions, quiet",),
        quick=1,
    ),
    Bug(
        "a record is committed that was not delivered",
        "group/consumer/committer.py",
        (("                commits[key] = OffsetAndMetadata(reader.position)\n",
          "                commits[key] = OffsetAndMetadata(reader.position + 1)\n"),),
        "groups",
        ("commits",),
        quick=1,
    ),
    Bug(
        "a member that was thrown out commits",
        "group/member/holder.py",
        (("            if state.member(self.id) is None:\n"
          "                raise self._fenced(\"it was evicted",
          "            if False:\n"
          "                raise self._fenced(\"it was evicted"),
         ("            if state.rows.get(partition) != row:\n"
          "                raise self._fenced", "            if False:\n"
          "                raise self._fenced")),
        "groups",
        ("commits, evict, thrown out",),
        quick=1,
    ),
    Bug(
        "the lock of a member that was thrown out keeps its partition",
        "group/member/membership.py",
        (("tuple(members.values()), fenced)", "tuple(members.values()), ())"),),
        "groups",
        ("commits, evict",),
    ),
    Bug(
        "a member goes on with the file from before its compaction",
        "group/file/group_log.py",
        (("            if size is None:\n                # Replaced",
          "            size = size or (file and file.size)\n"
          "            if size is None:\n                # Replaced"),
         ("        if size < self.end_pos:\n", "        if False:\n")),
        "groups",
        ("commits", "commits, quiet"),
        quick=1,
    ),
    Bug(
        "a durable point counts though its sync has failed",
        "group/file/synced_file.py",
        (("        elif not (self.is_of(point) and point.is_synced) or point.size",
          "        elif not self.is_of(point) or point.size"),),
        "failing_calls",
        ("write a group's file anew",),
        call="sync",
    ),
    Bug(
        "a commit in one call does not look where the file ends",
        "_native/system.py",
        (("        self._c[number].size = pos\n", ""),),
        "groups",
        ("commits",),
        quick=1,
    ),
    Bug(
        "offsets are reset beside a member",
        "group/resets.py",
        (("        _check_members(slots, self._group)\n        _check_way",
          "        _check_way"),),
        "groups",
        ("commits, quiet",),
        quick=1,
    ),
    Bug(
        "a poll that is interrupted has delivered what it has read",
        "group/consumer/deliveries.py",
        (("            for reader, position in before:\n"
          "                reader.back_to(position)\n"
          "            raise\n", "            raise\n"),
         ("                core.before = before\n", "")),
        "interrupts",
        ("poll", "append_many"),
        quick=1,
    ),
)  # fmt: skip
